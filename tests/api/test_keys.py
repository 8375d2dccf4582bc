from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from api_cases import HeldClock, make_house
from sqlalchemy import Engine, select, update

from api import key_format, keys, projects, tenants
from api.errors import (
    Conflict,
    ExpiredKey,
    InvalidKey,
    InvalidParameter,
    MissingKey,
    NotFound,
    RevokedKey,
)
from api.keys import IssuedKey
from api.roles import Principal, Role
from api.tables import api_keys
from metering.database import snapshot, transaction

DAY_S = 86_400


def issue(database: Engine, role: Role = Role.DEVELOPER, **options: object) -> IssuedKey:
    with transaction(database) as connection:
        tenant_id = tenants.create(connection, name="Acme").id if role.of_tenant else None
        return keys.create(connection, tenant_id=tenant_id, role=role, name="k", **options)


def identify(database: Engine, presented: str | None) -> keys.Key:
    with snapshot(database) as connection:
        return keys.identify(connection, presented)


def test_a_secret_speaks_for_its_key(database: Engine, held_clock: HeldClock) -> None:
    issued = issue(database, test_mode=True)
    expected = Principal(issued.key.id, issued.key.tenant_id, Role.DEVELOPER, test_mode=True)
    with snapshot(database) as connection:
        assert keys.authenticate(connection, issued.secret) == expected
        assert keys.principal_of(connection, issued.key.id) == expected
    assert identify(database, issued.secret) == issued.key


def test_only_a_hash_of_the_secret_is_stored(sqlite_database: Engine) -> None:
    issued = issue(sqlite_database)
    with snapshot(sqlite_database) as connection:
        row = connection.execute(select(api_keys)).one()
    stored = " ".join(str(value) for value in row)
    assert issued.secret not in stored
    assert issued.secret[26:69] not in stored
    assert row.last_four == issued.secret[-4:]
    assert issued.secret not in repr(issued)


@pytest.mark.parametrize("presented", [None, ""])
def test_no_key_is_missing_rather_than_wrong(sqlite_database: Engine, presented: str) -> None:
    with pytest.raises(MissingKey):
        identify(sqlite_database, presented)


def test_a_well_formed_key_of_nobody_is_as_wrong_as_a_malformed_one(
    sqlite_database: Engine,
) -> None:
    issued = issue(sqlite_database)
    stranger = key_format.mint(test_mode=False).text
    messages = set()
    for presented in (stranger, "nonsense", issued.secret[:-1], issued.secret.upper()):
        with pytest.raises(InvalidKey) as caught:
            identify(sqlite_database, presented)
        messages.add(str(caught.value))
        with snapshot(sqlite_database) as connection:
            assert keys.authenticate(connection, presented) is None
    assert len(messages) == 1


def test_a_live_key_cannot_be_passed_off_as_a_test_key(sqlite_database: Engine) -> None:
    issued = issue(sqlite_database)
    body = issued.secret[:-6].replace("live", "test")
    with pytest.raises(InvalidKey):
        identify(sqlite_database, body + key_format._checksum(body))


def test_a_key_dies_at_its_expiry_and_not_before(
    sqlite_database: Engine, held_clock: HeldClock
) -> None:
    issued = issue(sqlite_database, expires_at_us=held_clock.now_us + 1_000_000)
    held_clock.advance(0.999_999)
    assert identify(sqlite_database, issued.secret)
    held_clock.advance(0.000_001)
    with pytest.raises(ExpiredKey):
        identify(sqlite_database, issued.secret)
    with snapshot(sqlite_database) as connection:
        assert keys.authenticate(connection, issued.secret) is None
        assert keys.principal_of(connection, issued.key.id) is None


def test_a_revoked_key_is_dead_at_once_and_stays_so(database: Engine) -> None:
    issued = issue(database)
    with transaction(database) as connection:
        first = keys.revoke(connection, issued.key.id)
        assert keys.revoke(connection, issued.key.id) == first
    with pytest.raises(RevokedKey):
        identify(database, issued.secret)
    with snapshot(database) as connection:
        assert keys.principal_of(connection, issued.key.id) is None


def test_after_a_rotation_both_keys_live_until_the_overlap_ends(
    database: Engine, held_clock: HeldClock
) -> None:
    issued = issue(database, test_mode=True)
    held_clock.advance(5 * DAY_S)
    with transaction(database) as connection:
        successor = keys.rotate(connection, issued.key.id, overlap_s=60)
    assert successor.key.principal == Principal(
        successor.key.id, issued.key.tenant_id, Role.DEVELOPER, test_mode=True
    )
    assert successor.key.expires_at_us is None
    assert identify(database, issued.secret)
    assert identify(database, successor.secret)
    held_clock.advance(60)
    with pytest.raises(ExpiredKey):
        identify(database, issued.secret)
    assert identify(database, successor.secret)


def test_a_rotation_gives_the_same_lifetime_and_never_prolongs_the_old_key(
    sqlite_database: Engine, held_clock: HeldClock
) -> None:
    expires_at_us = held_clock.now_us + 10 * DAY_S * 1_000_000
    issued = issue(sqlite_database, expires_at_us=expires_at_us)
    held_clock.advance(9 * DAY_S)
    with transaction(sqlite_database) as connection:
        successor = keys.rotate(connection, issued.key.id, overlap_s=20 * DAY_S)
        old = keys.find(connection, issued.key.id)
    assert old is not None
    assert old.expires_at_us == expires_at_us
    assert successor.key.expires_at_us == held_clock.now_us + 10 * DAY_S * 1_000_000


def test_a_dead_key_cannot_be_rotated(sqlite_database: Engine, held_clock: HeldClock) -> None:
    expired = issue(sqlite_database, expires_at_us=held_clock.now_us + 1)
    revoked = issue(sqlite_database)
    held_clock.advance(1)
    with transaction(sqlite_database) as connection:
        keys.revoke(connection, revoked.key.id)
        for dead in (expired, revoked):
            with pytest.raises(Conflict):
                keys.rotate(connection, dead.key.id, overlap_s=0)
        with pytest.raises(NotFound):
            keys.rotate(connection, "key_nobody", overlap_s=0)
        with pytest.raises(InvalidParameter):
            keys.rotate(connection, revoked.key.id, overlap_s=-1)


def test_a_key_of_an_archived_project_is_rotated_only_out_of_it(database: Engine) -> None:
    issued = issue(database)
    tenant_id = issued.key.tenant_id
    assert tenant_id is not None
    with transaction(database) as connection:
        project = projects.create(connection, tenant_id, "red")
        projects.put_key(connection, tenant_id, project.id, issued.key.id)
        assert keys.rotate(connection, issued.key.id, overlap_s=60).key.project_id == project.id
        projects.archive(connection, tenant_id, project.id)
        with pytest.raises(Conflict, match="project is archived"):
            keys.rotate(connection, issued.key.id, overlap_s=60)
        projects.put_key(connection, tenant_id, None, issued.key.id)
        assert keys.rotate(connection, issued.key.id, overlap_s=60).key.project_id is None


@pytest.mark.parametrize(
    ("role", "tenant_id"),
    [(Role.OWNER, None), (Role.OPERATOR, "tenant"), (Role.REVIEWER, "tenant")],
)
def test_a_role_belongs_either_to_a_tenant_or_to_the_operator(
    sqlite_database: Engine, role: Role, tenant_id: str | None
) -> None:
    with transaction(sqlite_database) as connection, pytest.raises(InvalidParameter) as caught:
        keys.create(connection, tenant_id=tenant_id, role=role, name="k")
    assert caught.value.parameter == "role"


def test_a_key_needs_a_tenant_that_exists_and_an_expiry_to_come(
    sqlite_database: Engine, held_clock: HeldClock
) -> None:
    with transaction(sqlite_database) as connection:
        with pytest.raises(NotFound):
            keys.create(connection, tenant_id="ten_nobody", role=Role.OWNER, name="k")
        with pytest.raises(InvalidParameter):
            keys.create(
                connection,
                tenant_id=None,
                role=Role.OPERATOR,
                name="k",
                expires_at_us=held_clock.now_us,
            )


def test_last_use_is_written_once_a_minute(sqlite_database: Engine, held_clock: HeldClock) -> None:
    issued = issue(sqlite_database)

    def use() -> int | None:
        key = identify(sqlite_database, issued.secret)
        if keys.needs_touch(key):
            with transaction(sqlite_database) as connection:
                keys.touch(connection, key)
        return identify(sqlite_database, issued.secret).last_used_at_us

    first = use()
    assert first == held_clock.now_us
    held_clock.advance(59)
    assert use() == first
    held_clock.advance(1)
    assert use() == held_clock.now_us


def test_the_last_operator_key_cannot_be_revoked(
    sqlite_database: Engine, held_clock: HeldClock
) -> None:
    first = issue(sqlite_database, Role.OPERATOR)
    reviewer = issue(sqlite_database, Role.REVIEWER)
    dying = issue(sqlite_database, Role.OPERATOR, expires_at_us=held_clock.now_us + 1_000_000)
    with transaction(sqlite_database) as connection:
        keys.revoke(connection, reviewer.key.id)
    held_clock.advance(2)
    with transaction(sqlite_database) as connection, pytest.raises(Conflict):
        keys.revoke(connection, first.key.id)
    second = issue(sqlite_database, Role.OPERATOR)
    with transaction(sqlite_database) as connection:
        keys.revoke(connection, first.key.id)
        keys.revoke(connection, dying.key.id)
        with pytest.raises(Conflict):
            keys.revoke(connection, second.key.id)


def test_parallel_first_starts_bootstrap_one_operator_key(database: Engine) -> None:
    def bootstrap(_: int) -> IssuedKey | None:
        try:
            with transaction(database) as connection:
                return keys.bootstrap(connection, "first")
        except Conflict:
            return None

    with ThreadPoolExecutor(6) as pool:
        issued = [key for key in pool.map(bootstrap, range(6)) if key]
    assert len(issued) == 1
    assert identify(database, issued[0].secret).role is Role.OPERATOR


def test_parallel_rotations_and_revocations_leave_no_key_behind_unseen(database: Engine) -> None:
    """Goal: no lost update. Every rotation that succeeded came before the revocation."""
    issued = issue(database)

    def act(number: int) -> IssuedKey | None:
        try:
            with transaction(database) as connection:
                if number == 3:
                    keys.revoke(connection, issued.key.id)
                    return None
                return keys.rotate(connection, issued.key.id, overlap_s=3600)
        except Conflict:
            return None

    with ThreadPoolExecutor(6) as pool:
        successors = [key for key in pool.map(act, range(6)) if key]
    with pytest.raises(RevokedKey):
        identify(database, issued.secret)
    for successor in successors:
        assert identify(database, successor.secret)


def test_listings_are_of_one_tenant_and_pages_do_not_overlap(database: Engine) -> None:
    house, other = make_house(database), make_house(database, "Umbrella")
    with snapshot(database) as connection:
        own = keys.listing(connection, house.tenant_id, limit=10, after=None)
        assert {key.tenant_id for key in own} == {house.tenant_id}
        assert len(own) == 3
        seen: list[str] = []
        after = None
        while page := keys.listing(connection, None, limit=3, after=after):
            seen += [key.id for key in page]
            after = (page[-1].created_at_us, page[-1].id)
    assert len(seen) == len(set(seen)) == 10
    assert set(other.key_ids.values()) <= set(seen)


def test_another_tenants_key_is_not_found(sqlite_database: Engine) -> None:
    house, other = make_house(sqlite_database), make_house(sqlite_database, "Umbrella")
    with snapshot(sqlite_database) as connection:
        for key_id in (house.key_ids[Role.OWNER], house.key_ids[Role.OPERATOR], "key_nobody"):
            with pytest.raises(NotFound):
                keys.owned(connection, other.tenant_id, key_id)
        assert keys.owned(connection, None, house.key_ids[Role.OWNER]).tenant_id == house.tenant_id


def test_a_successor_of_a_key_that_outlives_the_limit_is_kept_within_it(
    sqlite_database: Engine, held_clock: HeldClock
) -> None:
    issued = issue(sqlite_database)
    limit_us = keys.LIFETIME_DAYS_MAX * keys.DAY_US
    with transaction(sqlite_database) as connection:
        connection.execute(update(api_keys).values(expires_at_us=2 * limit_us + 10**15))
        successor = keys.rotate(connection, issued.key.id, overlap_s=0)
    assert successor.key.expires_at_us == successor.key.created_at_us + limit_us

"""API keys: issued once, known afterwards only by their hash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, bindparam, func, insert, or_, select, text, update

from api import key_format, projects, tenants
from api.errors import (
    Conflict,
    ExpiredKey,
    Forbidden,
    InvalidKey,
    InvalidParameter,
    MissingKey,
    NotFound,
    RevokedKey,
    Unauthenticated,
)
from api.key_format import KeyText
from api.roles import SCOPES, Principal, Role, Scope
from api.tables import api_keys
from billing import lineages
from metering import clock
from metering.prepared import Prepared

TOUCH_INTERVAL_US = 60_000_000  # last use is kept to the minute: a write a minute, not one a call
OVERLAP_S_MAX = 30 * 86_400
LIFETIME_DAYS_MAX = 36_500  # so that an expiry, a successor's too, is a date that can be shown
DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Key:
    """A key as the database knows it: everything but the secret."""

    id: str
    tenant_id: str | None
    name: str
    role: Role
    last_four: str
    test_mode: bool
    created_at_us: int
    expires_at_us: int | None
    revoked_at_us: int | None
    last_used_at_us: int | None
    project_id: str | None = None  # what its requests count for

    @property
    def principal(self) -> Principal:
        """Who a request with this key speaks for."""
        return Principal(self.id, self.tenant_id, self.role, self.test_mode)

    def expired(self, now_us: int) -> bool:
        """Whether the key is past its expiry, which is exclusive."""
        return self.expires_at_us is not None and now_us >= self.expires_at_us


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new key with its secret, which exists nowhere else."""

    key: Key
    secret: str

    def __repr__(self) -> str:
        return f"IssuedKey({self.key.id})"


def create(
    connection: Connection,
    *,
    tenant_id: str | None,
    role: Role,
    name: str,
    test_mode: bool = False,
    expires_at_us: int | None = None,
    project_id: str | None = None,
) -> IssuedKey:
    """Issue a key and store its hash.

    Raises InvalidParameter when the role and the tenant don't go together, a test key's role can't
    generate, or the expiry has passed or is over `LIFETIME_DAYS_MAX` away, NotFound for an unknown
    tenant.
    """
    now_us = clock.now_us()
    if role.of_tenant != (tenant_id is not None):
        owner = "a tenant" if role.of_tenant else "the operator, not to a tenant"
        raise InvalidParameter(f"a key of role {role} belongs to {owner}", "role")
    if test_mode and Scope.GENERATE not in SCOPES[role]:
        raise InvalidParameter(f"a key of role {role} generates nothing to test", "test_mode")
    if expires_at_us is not None and expires_at_us <= now_us:
        raise InvalidParameter("the expiry is not in the future", "expires_at")
    if expires_at_us is not None and expires_at_us > now_us + LIFETIME_DAYS_MAX * DAY_US:
        raise InvalidParameter(
            f"the expiry is more than {LIFETIME_DAYS_MAX} days away", "expires_at"
        )
    tenants.check_name(name)
    if tenant_id is not None:
        tenants.require(connection, tenant_id)
    minted = key_format.mint(test_mode=test_mode)
    key = Key(
        id=minted.key_id,
        tenant_id=tenant_id,
        name=name,
        role=role,
        last_four=minted.text[-4:],
        test_mode=test_mode,
        created_at_us=now_us,
        expires_at_us=expires_at_us,
        revoked_at_us=None,
        last_used_at_us=None,
        project_id=project_id,
    )
    connection.execute(
        insert(api_keys).values(
            id=key.id,
            tenant_id=tenant_id,
            name=name,
            role=role.value,
            secret_sha256=minted.sha256,
            last_four=key.last_four,
            test_mode=test_mode,
            created_at_us=now_us,
            expires_at_us=expires_at_us,
            project_id=project_id,
        )
    )
    return IssuedKey(key, minted.text)


def identify(connection: Connection, presented: str | None) -> Key:
    """The living key behind a presented secret. Changes nothing.

    Raises MissingKey, InvalidKey, ExpiredKey or RevokedKey; the last two only to whoever holds
    the whole secret.
    """
    if not presented:
        raise MissingKey("send your key as 'Authorization: Bearer dfk_...'")
    key_text = key_format.read(presented)
    if key_text is None:
        raise InvalidKey("this is not a valid key: check that it was copied whole")
    key = _by_secret(connection, key_text)
    if key is None:
        raise InvalidKey("this is not a valid key: check that it was copied whole")
    if key.revoked_at_us is not None:
        raise RevokedKey("this key was revoked")
    if key.expired(clock.now_us()):
        raise ExpiredKey("this key has expired")
    return key


def authenticate(connection: Connection, presented: str) -> Principal | None:
    """Who a presented secret speaks for; null for one that is wrong, expired or revoked."""
    try:
        return identify(connection, presented).principal
    except Unauthenticated:
        return None


def principal_of(connection: Connection, key_id: str) -> Principal | None:
    """Who a key speaks for, by its id, for sessions that keep no secret; null once it is dead."""
    key = find(connection, key_id)
    if key is None or key.revoked_at_us is not None or key.expired(clock.now_us()):
        return None
    return key.principal


def touch(connection: Connection, key: Key) -> None:
    """Note that the key was used, to the minute."""
    now_us = clock.now_us()
    connection.execute(
        update(api_keys)
        .where(
            api_keys.c.id == key.id,
            or_(
                api_keys.c.last_used_at_us.is_(None),
                api_keys.c.last_used_at_us <= now_us - TOUCH_INTERVAL_US,
            ),
        )
        .values(last_used_at_us=now_us)
    )


def needs_touch(key: Key) -> bool:
    """Whether `touch` would change anything."""
    used_us = key.last_used_at_us
    return used_us is None or used_us <= clock.now_us() - TOUCH_INTERVAL_US


def revoke(connection: Connection, key_id: str) -> Key:
    """End a key at once; a second time changes nothing.

    Raises NotFound, and Conflict for the last living operator key: without one, nobody could
    issue another over HTTP.
    """
    key = _locked(connection, key_id)
    if key.revoked_at_us is not None:
        return key
    if key.role is Role.OPERATOR and living_operator_keys(connection, besides=key_id) == 0:
        raise Conflict("this is the last operator key; create another before revoking it")
    connection.execute(
        update(api_keys).where(api_keys.c.id == key_id).values(revoked_at_us=clock.now_us())
    )
    return _require(connection, key_id)


def rotate(connection: Connection, key_id: str, *, overlap_s: int) -> IssuedKey:
    """Issue a successor with the same rights and lifetime; the old key lives `overlap_s` longer.

    Both count in the same budgets, limits and rate. Raises NotFound, Conflict for a dead key or
    one of an archived project, InvalidParameter for an overlap out of range.
    """
    if not 0 <= overlap_s <= OVERLAP_S_MAX:
        raise InvalidParameter(f"overlap_s must be from 0 to {OVERLAP_S_MAX}", "overlap_s")
    now_us = clock.now_us()
    old = _locked(connection, key_id)
    if old.revoked_at_us is not None or old.expired(now_us):
        raise Conflict("a revoked or expired key can't be rotated; create a new one")
    if old.project_id is not None and old.tenant_id is not None:
        project = projects.require(connection, old.tenant_id, old.project_id)
        if project.archived_at_us is not None:
            raise Conflict("this key's project is archived; put the key into another, or into none")
    lifetime_us = None
    if old.expires_at_us is not None:
        lifetime_us = min(old.expires_at_us - old.created_at_us, LIFETIME_DAYS_MAX * DAY_US)
    successor = create(
        connection,
        tenant_id=old.tenant_id,
        role=old.role,
        name=old.name,
        test_mode=old.test_mode,
        expires_at_us=None if lifetime_us is None else now_us + lifetime_us,
        project_id=old.project_id,
    )
    lineages.succeed(connection, key_id, successor.key.id)
    ends_us = now_us + overlap_s * 1_000_000
    connection.execute(
        update(api_keys)
        .where(api_keys.c.id == key_id)
        .values(
            expires_at_us=ends_us if old.expires_at_us is None else min(ends_us, old.expires_at_us)
        )
    )
    return successor


def bootstrap(connection: Connection, name: str) -> IssuedKey:
    """Issue the first operator key. Raises Conflict while a living one exists.

    When every operator key has died, it works again: whoever reaches the database may.
    """
    if connection.dialect.name == "postgresql":
        # Two first starts at once must not both find the table empty; SQLite has one writer.
        connection.execute(text("LOCK TABLE api_keys IN SHARE ROW EXCLUSIVE MODE"))
    if living_operator_keys(connection):
        raise Conflict("an operator key exists already; it was shown when it was created")
    return create(connection, tenant_id=None, role=Role.OPERATOR, name=name)


def living_operator_keys(connection: Connection, *, besides: str | None = None) -> int:
    """How many operator keys would be accepted now, one left out if named."""
    condition = and_(
        api_keys.c.role == Role.OPERATOR.value,
        api_keys.c.revoked_at_us.is_(None),
        or_(api_keys.c.expires_at_us.is_(None), api_keys.c.expires_at_us > clock.now_us()),
    )
    if besides is not None:
        condition = and_(condition, api_keys.c.id != besides)
    return connection.execute(select(func.count()).where(condition)).scalar_one()


def find(connection: Connection, key_id: str) -> Key | None:
    """A key by its id, dead or alive."""
    row = connection.execute(select(*_COLUMNS).where(api_keys.c.id == key_id)).one_or_none()
    return None if row is None else _from_row(row)


def owned(connection: Connection, tenant_id: str | None, key_id: str) -> Key:
    """A key by its id within one tenant, or any for a null tenant. Raises NotFound."""
    key = _require(connection, key_id)
    if tenant_id is not None and key.tenant_id != tenant_id:
        raise NotFound(f"no key {key_id}")
    return key


def in_reach(connection: Connection, principal: Principal, key_id: str) -> Key:
    """A key that `principal` may change: one of its tenant's, and a test key's are test keys.

    Raises NotFound or Forbidden.
    """
    key = owned(connection, principal.tenant_id, key_id)
    if principal.test_mode and not key.test_mode:
        raise Forbidden("a test key changes test keys only", Scope.MANAGE_KEYS)
    return key


def listing(
    connection: Connection, tenant_id: str | None, *, limit: int, after: tuple[int, str] | None
) -> list[Key]:
    """Keys, newest first: a tenant's, or all for a null tenant. `after` is (created_at_us, id).

    Raises NotFound for a tenant that there is not.
    """
    if tenant_id is not None:
        tenants.require(connection, tenant_id)
    query = select(*_COLUMNS).order_by(api_keys.c.created_at_us.desc(), api_keys.c.id.desc())
    if tenant_id is not None:
        query = query.where(api_keys.c.tenant_id == tenant_id)
    if after is not None:
        created_at_us, key_id = after
        query = query.where(
            or_(
                api_keys.c.created_at_us < created_at_us,
                and_(api_keys.c.created_at_us == created_at_us, api_keys.c.id < key_id),
            )
        )
    return [_from_row(row) for row in connection.execute(query.limit(limit))]


_COLUMNS = tuple(column for column in api_keys.c if column.name != "secret_sha256")


def _from_row(row: Any) -> Key:
    return Key(**{**row._asdict(), "role": Role(row.role)})


_BY_SECRET = Prepared(
    select(*_COLUMNS).where(
        api_keys.c.secret_sha256 == bindparam("sha256"), api_keys.c.id == bindparam("key_id")
    )
)


def _by_secret(connection: Connection, key_text: KeyText) -> Key | None:
    row = _BY_SECRET.row(connection, {"sha256": key_text.sha256, "key_id": key_text.key_id})
    return None if row is None else _from_row(row)


def _require(connection: Connection, key_id: str) -> Key:
    key = find(connection, key_id)
    if key is None:
        raise NotFound(f"no key {key_id}")
    return key


def _locked(connection: Connection, key_id: str) -> Key:
    row = connection.execute(
        select(*_COLUMNS).where(api_keys.c.id == key_id).with_for_update()
    ).one_or_none()
    if row is None:
        raise NotFound(f"no key {key_id}")
    return _from_row(row)

"""Tariff versions: effective-dated, half-open, and never rewriting what was admitted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from billing_cases import STARTED_US, tariff
from billing_world import add_request, add_tenant
from sqlalchemy import Connection, Engine

from billing import catalogue, overrides
from billing.errors import NoTariff, TariffConflict, UnknownTenant
from billing.tariffs import Tariff, shipped
from metering import clock
from metering.database import transaction


@pytest.fixture
def connection(database: Engine) -> Iterator[Connection]:
    with transaction(database) as opened:
        yield opened


def priced(per_million: str) -> Tariff:
    return tariff(input={"per_million": per_million})


def test_a_version_is_in_force_from_its_start_to_its_successors(connection: Connection) -> None:
    add_tenant(connection, pays=priced("1"))
    second = catalogue.publish(connection, priced("2"), 1_000)
    assert (second.id, second.version) == ("test@2", 2)
    for at_us, version in ((0, 1), (999, 1), (1_000, 2), (10**15, 2)):
        assert catalogue.tariff_in_force(connection, "ten_1", at_us).version == version
    assert catalogue.version(connection, "test@1").effective_to_us == 1_000


def test_publishing_the_latest_document_again_changes_nothing(connection: Connection) -> None:
    first = catalogue.publish(connection, priced("1"), 0)
    assert catalogue.publish(connection, priced("1.0"), 5_000) == first
    assert len(catalogue.versions(connection, "test")) == 1


def test_what_is_published_again_for_another_time_is_refused(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever postpones a rise, or brings a cut forward, is not told that it was done."""
    catalogue.publish(connection, priced("1"), 0)
    planned = catalogue.publish(connection, priced("2"), 5_000)
    monkeypatch.setattr(clock, "now_us", lambda: 4_000)
    assert catalogue.publish(connection, priced("2"), 5_000) == planned
    for start in (4_500, 6_000, None):
        with pytest.raises(TariffConflict, match="in force from 5000 on"):
            catalogue.publish(connection, priced("2"), start)
    monkeypatch.setattr(clock, "now_us", lambda: 5_000)
    for start in (None, 6_000):  # it is in force then as it is now
        assert catalogue.publish(connection, priced("2"), start) == planned
    with pytest.raises(TariffConflict):
        catalogue.publish(connection, priced("2"), 4_500)
    assert len(catalogue.versions(connection, "test")) == 2


def test_a_version_comes_after_its_predecessor(connection: Connection) -> None:
    catalogue.publish(connection, priced("1"), 1_000)
    for start in (999, 1_000):
        with pytest.raises(TariffConflict):
            catalogue.publish(connection, priced("2"), start)


def test_a_version_never_reprices_requests_that_were_admitted(connection: Connection) -> None:
    add_tenant(connection, pays=priced("1"))
    admitted = add_request(connection)
    with pytest.raises(TariffConflict, match="admitted"):
        catalogue.publish(connection, priced("2"), admitted.started_at_us)
    catalogue.publish(connection, priced("2"), admitted.started_at_us + 1)
    assert catalogue.version(connection, admitted.tariff_version_id).document == priced("1")


def test_a_tariff_never_changes_its_currency(connection: Connection) -> None:
    catalogue.publish(connection, priced("1"), 0)
    with pytest.raises(TariffConflict, match="USD"):
        catalogue.publish(connection, tariff(input={"per_million": "1"}, currency="EUR"), 5)


def test_a_tenant_pays_what_it_was_assigned_from_then_on(connection: Connection) -> None:
    add_tenant(connection)
    catalogue.install_shipped(connection)
    catalogue.assign(connection, "ten_1", "semantic", 500)
    catalogue.assign(connection, "ten_1", "semantic", 500)
    assert catalogue.tariff_in_force(connection, "ten_1", 499).tariff == "test"
    assert catalogue.tariff_in_force(connection, "ten_1", 500).tariff == "semantic"
    with pytest.raises(TariffConflict):
        catalogue.assign(connection, "ten_1", "energy", 500)


def test_an_assignment_never_reprices_requests_that_were_admitted(connection: Connection) -> None:
    add_tenant(connection)
    add_tenant(connection, "ten_2")
    catalogue.install_shipped(connection)
    admitted_us = add_request(connection).started_at_us
    with pytest.raises(TariffConflict, match="admitted under test@1"):
        catalogue.assign(connection, "ten_1", "semantic", admitted_us)
    with pytest.raises(TariffConflict, match="admitted under test@1"):
        overrides.override(connection, "ten_1", {"input": {"per_million": "9"}}, admitted_us - 1)
    catalogue.assign(connection, "ten_2", "semantic", admitted_us)  # nothing of it ran
    catalogue.assign(connection, "ten_1", "semantic", admitted_us + 1)
    assert catalogue.tariff_in_force(connection, "ten_1", admitted_us).id == "test@1"


def test_a_tenant_that_is_busy_is_assigned_another_tariff_from_now_on(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was admitted since the operator looked at the clock lies before."""
    add_tenant(connection)
    catalogue.install_shipped(connection)
    add_request(connection, "req_1", started_at_us=STARTED_US + 5)
    monkeypatch.setattr(clock, "now_us", lambda: STARTED_US)
    from_us = catalogue.from_now(connection, "ten_1")
    assert from_us == STARTED_US + 6
    catalogue.assign(connection, "ten_1", "semantic", from_us)
    before = catalogue.tariff_in_force(connection, "ten_1", STARTED_US + 5)
    since = catalogue.tariff_in_force(connection, "ten_1", from_us)
    assert (before.tariff, since.tariff) == ("test", "semantic")
    with pytest.raises(UnknownTenant):
        catalogue.from_now(connection, "ten_9")


def test_an_assignment_may_lie_before_one_that_priced_what_came_later(
    connection: Connection,
) -> None:
    add_tenant(connection)
    catalogue.install_shipped(connection)
    catalogue.assign(connection, "ten_1", "semantic", STARTED_US - 10)
    add_request(connection)
    catalogue.assign(connection, "ten_1", "energy", STARTED_US - 20)
    assert catalogue.tariff_in_force(connection, "ten_1", STARTED_US - 11).tariff == "energy"
    assert catalogue.tariff_in_force(connection, "ten_1", STARTED_US).tariff == "semantic"
    with pytest.raises(TariffConflict, match="admitted under semantic@1"):
        catalogue.assign(connection, "ten_1", "test", STARTED_US - 5)


def test_a_tenant_is_only_assigned_what_exists_in_its_currency(connection: Connection) -> None:
    add_tenant(connection)
    catalogue.publish(
        connection, tariff(name="euro", input={"per_million": "1"}, currency="EUR"), 0
    )
    with pytest.raises(NoTariff):
        catalogue.assign(connection, "ten_1", "nothing", 0)
    with pytest.raises(TariffConflict, match="EUR"):
        catalogue.assign(connection, "ten_1", "euro", 9)
    with pytest.raises(UnknownTenant):
        catalogue.assign(connection, "ten_9", "euro", 9)


def test_no_tariff_is_an_error_and_never_a_price_of_zero(connection: Connection) -> None:
    with pytest.raises(NoTariff):
        catalogue.tariff_in_force(connection, "ten_9", 0)
    with pytest.raises(NoTariff):
        catalogue.version(connection, "test@1")
    add_tenant(connection)
    with pytest.raises(NoTariff):
        catalogue.tariff_in_force(connection, "ten_1", -1)


def test_installing_the_shipped_tariffs_leaves_those_that_exist_alone(
    connection: Connection,
) -> None:
    catalogue.publish(connection, tariff(name="token", input={"per_million": "7"}), 10)
    catalogue.install_shipped(connection)
    catalogue.install_shipped(connection)
    assert {found.tariff for found in catalogue.versions(connection)} == set(shipped())
    (token,) = catalogue.versions(connection, "token")
    assert token.effective_from_us == 10

"""A customer's own prices: made from a tariff, its own alone, and beside the list in exports."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from billing_cases import energy, tariff
from billing_world import add_tenant, settlement
from focus_cases import focus_rows, keeps_the_rules
from invoice_world import Month, at, priced
from sqlalchemy import Engine

from billing import catalogue, overrides, tariffs
from billing.errors import InvalidTariff, TariffConflict
from metering.database import snapshot, transaction

NOW_US = at("2026-11-01 00:00")
CHEAPER = {"output": {"per_million": "3"}}


@pytest.fixture
def month(database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Month:
    made = Month(database, settlement(tmp_path), monkeypatch)
    with transaction(database) as connection:
        made.settlement._signer.register(connection)
        add_tenant(connection, "ten_1", credit="1000", pays=priced())
        add_tenant(connection, "ten_2", credit="1000", pays=priced())
    return made


def test_changes_are_merged_into_the_document_it_is_on(month: Month) -> None:
    with transaction(month.database) as connection:
        mine = overrides.override(
            connection, "ten_1", {"output": {"per_million": "3"}, "input": None}, NOW_US
        )
        assert mine.version == 1
        assert catalogue.tariff_in_force(connection, "ten_1", NOW_US) == mine
        assert catalogue.tariff_in_force(connection, "ten_1", NOW_US - 1).id == "test@1"
        assert catalogue.tariff_in_force(connection, "ten_2", NOW_US).id == "test@1"
    assert mine.document.output is not None
    assert (mine.document.output.per_million, mine.document.input) == (3, None)
    assert (mine.document.tenant, mine.document.base) == ("ten_1", "test@1")
    assert tariffs.parse(tariffs.document(mine.document)) == mine.document


def test_changing_them_again_starts_from_the_tariff_they_were_made_from(month: Month) -> None:
    month.now_us = NOW_US
    with transaction(month.database) as connection:
        first = overrides.override(connection, "ten_1", CHEAPER, NOW_US)
        assert overrides.override(connection, "ten_1", CHEAPER, NOW_US + 5) == first
        newer = tariffs.document(priced()) | {"title": "Newer", "input": {"per_million": "9"}}
        catalogue.publish(connection, tariffs.parse(newer), NOW_US + 10)
        still = catalogue.tariff_in_force(connection, "ten_1", NOW_US + 10)
        assert still.id == first.id
        second = overrides.override(connection, "ten_1", CHEAPER, NOW_US + 20)
    assert second.version == 2
    assert second.document.base == "test@2"
    assert second.document.input is not None
    assert second.document.input.per_million == 9


def test_nobody_else_may_be_put_on_them(month: Month) -> None:
    with transaction(month.database) as connection:
        mine = overrides.override(connection, "ten_1", CHEAPER, NOW_US)
        with pytest.raises(TariffConflict, match="another tenant's own"):
            catalogue.assign(connection, "ten_2", mine.tariff, NOW_US)
        theirs = tariffs.document(mine.document) | {"tenant": "ten_2"}
        with pytest.raises(TariffConflict, match="another tenant"):
            catalogue.publish(connection, tariffs.parse(theirs), NOW_US + 1)
        catalogue.assign(connection, "ten_1", "test", NOW_US + 1)  # and so it is over
        assert catalogue.tariff_in_force(connection, "ten_1", NOW_US + 1).id == "test@1"


def test_they_are_not_put_before_the_time_from_which_they_hold(month: Month) -> None:
    with transaction(month.database) as connection:
        overrides.override(connection, "ten_1", CHEAPER, NOW_US + 50)
    with pytest.raises(TariffConflict), transaction(month.database) as connection:
        overrides.override(connection, "ten_1", CHEAPER, NOW_US + 10)
    with snapshot(month.database) as connection:
        assert catalogue.tariff_in_force(connection, "ten_1", NOW_US + 20).id == "test@1"


def test_they_are_not_made_from_another_tenants(month: Month) -> None:
    with transaction(month.database) as connection:
        theirs = overrides.override(connection, "ten_2", CHEAPER, NOW_US)
        with pytest.raises(TariffConflict, match="another tenant's own"):
            overrides.override(connection, "ten_1", {}, NOW_US, base=theirs.tariff)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"currency": "EUR"}, "currency: not a customer's to change"),
        ({"tenant": "ten_2", "name": "x"}, "name: not a customer's to change"),
        ({"output": {"per_million": 3}}, "must be a quoted decimal"),
        ({"colour": "red"}, "unknown field"),
    ],
)
def test_changes_that_make_no_tariff_are_refused(
    month: Month, changes: dict[str, object], fault: str
) -> None:
    with transaction(month.database) as connection, pytest.raises(InvalidTariff, match=fault):
        overrides.override(connection, "ten_1", changes, NOW_US)
    with snapshot(month.database) as connection:
        assert catalogue.tariff_in_force(connection, "ten_1", NOW_US).id == "test@1"


def test_exports_state_the_list_price_beside_the_customers(month: Month) -> None:
    month.now_us = NOW_US + 1
    with transaction(month.database) as connection:
        overrides.override(connection, "ten_1", CHEAPER, NOW_US)
    month.serve("req_1", ended_us=month.now_us, tokens=1_000_000)
    rows = focus_rows(month.database, "ten_1", "2026-11")
    keeps_the_rules(rows)
    output = next(row for row in rows if row["x_Component"] == "output")
    assert (output["ListUnitPrice"], output["ContractedUnitPrice"]) == (Decimal(4), Decimal(3))
    assert (output["ListCost"], output["ContractedCost"], output["BilledCost"]) == (4, 3, 3)
    fed = next(row for row in rows if row["x_Component"] == "input")
    assert fed["ListUnitPrice"] == fed["ContractedUnitPrice"] == 1


def test_exports_state_list_prices_of_the_month_and_of_green_energy_too(
    database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tiers(first: str, rest: str, flat: str = "0") -> list[dict[str, str]]:
        below = {"up_to": "1000", "per_million": first, "flat": "3"}
        return [below, {"per_million": rest, "flat": flat}]

    listed = tariff(
        output={"per_million": "4"},
        energy={
            "per_million": {"estimated": "10"},
            "cap_joules_per_token": "50",
            "green": "0.8",
        },
        period={
            "base": {"model": "flat", "amount": "20"},
            "steps": {
                "model": "graduated",
                "measure": "output_tokens",
                "tiers": tiers("100", "50"),
            },
            "cut": {"model": "volume", "measure": "output_tokens", "tiers": tiers("7", "6")},
            "packs": {
                "model": "package",
                "measure": "requests",
                "size": "1",
                "amount": "5",
            },
            "share": {"model": "percentage", "percent": "3"},
        },
    )
    own = {
        "energy": {"per_million": {"estimated": "5"}, "green": "0.5"},
        "period": {
            "base": {"amount": "10"},
            "steps": {"tiers": tiers("70", "30", "1")},
            # Other tiers: none of the base's prices is of what this one is of.
            "cut": {"tiers": [{"per_million": "5"}]},
            "packs": {"amount": "4"},
            "share": {"percent": "2"},
            "extra": {"model": "flat", "amount": "1"},
        },
    }
    month = Month(database, settlement(tmp_path), monkeypatch)
    with transaction(database) as connection:
        month.settlement._signer.register(connection)
        add_tenant(connection, credit="1000", pays=listed)
        overrides.override(connection, "ten_1", own, NOW_US, base="test")
    joules = energy("estimated", 10_000_000)
    month.now_us = NOW_US + 2
    month.serve("req_1", ended_us=NOW_US + 1, tokens=2000, energy=joules, green=True)
    month.serve("req_2", ended_us=NOW_US + 1, tokens=2000, energy=joules)
    month.now_us = at("2026-12-05 00:00")
    month.close("2026-11")
    rows = focus_rows(database, "ten_1", "2026-11")
    keeps_the_rules(rows)
    prices = {
        row["SkuPriceId"].partition("/")[2]: (row["ListUnitPrice"], row["ContractedUnitPrice"])
        for row in rows
        if row.get("SkuPriceId") and row["ChargeCategory"] == "Usage"
    }
    per_token = Decimal(1).scaleb(-6)
    assert prices == {
        "output/complete/standard": (4, 4),
        "energy/estimated": (10, 5),
        "energy/estimated, green": (8, Decimal("2.5")),
        "period/base/flat": (20, 10),
        "period/steps/tier 1": (100 * per_token, 70 * per_token),
        "period/steps/tier 1, flat": (3, 3),
        "period/steps/tier 2": (50 * per_token, 30 * per_token),
        "period/steps/tier 2, flat": (0, 1),
        "period/cut/tier 1": (5 * per_token, 5 * per_token),
        "period/packs/packages": (5, 4),
        "period/share/all charges": (Decimal("0.03"), Decimal("0.02")),
        "period/extra/flat": (1, 1),
    }

"""Two fleets compared: by hand, and with what is wrong said field by field."""

from __future__ import annotations

from typing import Any

import pytest

from billing.economics import roi
from billing.errors import InvalidEconomics

QUESTION: dict[str, Any] = {
    "before": {
        "gpus": "42",
        "gpu_hour": "2",
        "kw_per_gpu": "0.5",
        "people": "2.5",
        "iteration_days": "3.2",
    },
    "after": {
        "gpus": "18",
        "gpu_hour": "2",
        "kw_per_gpu": "0.5",
        "people": "1.2",
        "iteration_days": "1.1",
    },
    "person_year": "100000",
    "kwh": "0.20",
    "pue": "1.5",
    "one_off": "310788",
    "years": "2",
}


def test_both_years_are_as_computed_by_hand() -> None:
    found = roi.to_wire(roi.answer(roi.parse(QUESTION)))
    # 42 GPUs * 2 * 8760 h; 42 * 0.5 kW * 1.5 * 8760 h, at 0.20; 2.5 people
    assert found["before"] == {
        "machines": "735840",
        "energy_kwh": "275940",
        "electricity": "55188",
        "people": "250000",
        "iterations": "114.0625",
        "total": "1041028",
    }
    assert found["after"]["total"] == "459012"  # 315360 + 23652 + 120000
    assert found["after"]["iterations"] == "331.818182"
    assert found["saving"] == "582016"
    assert found["net"] == "853244"
    assert found["payback_months"] == "6.407824"
    assert found["return_percent"] == "274.542132"


def test_a_change_that_costs_more_is_never_paid_back() -> None:
    swapped = QUESTION | {"before": QUESTION["after"], "after": QUESTION["before"]}
    found = roi.answer(roi.parse(swapped))
    assert found.saving == -582016
    assert found.payback_months is None
    free = roi.answer(roi.parse(QUESTION | {"one_off": "0"}))
    assert (free.payback_months, free.return_percent) == (0, None)


def test_the_largest_figures_that_are_taken_are_answered_exactly() -> None:
    most = {
        "gpus": "1000000",
        "gpu_hour": "1000000000",
        "kw_per_gpu": "1000",
        "people": "1000000",
        "iteration_days": "0.001",
    }
    asked = {
        "before": most,
        "after": most | {"gpus": "0", "people": "0"},
        "person_year": "1000000000",
        "kwh": "1000000000",
        "pue": "10",
        "one_off": "0.000001",
        "years": "50",
    }
    found = roi.to_wire(roi.answer(roi.parse(asked)))
    assert found["before"]["total"] == str(8760 * 10**15 + 8760 * 10**19 + 10**15)
    net = 50 * int(found["saving"])
    assert found["net"] == f"{net - 1}.999999"
    assert found["return_percent"] == str(10**8 * net - 100)


def test_a_fleet_that_draws_no_power_pays_for_none() -> None:
    dark = {**QUESTION["before"], "kw_per_gpu": "0"}
    found = roi.to_wire(roi.answer(roi.parse(QUESTION | {"before": dark})))
    assert (found["before"]["energy_kwh"], found["before"]["electricity"]) == ("0", "0")
    assert found["before"]["total"] == "985840"


def test_what_is_missing_or_no_figure_is_said_for_every_field() -> None:
    wrong = QUESTION | {
        "pue": "0",
        "kwh": 0.2,
        "after": {"gpus": "-1", "iteration_days": "0", "colour": "red"},
    }
    with pytest.raises(InvalidEconomics) as refused:
        roi.parse(wrong)
    faults = refused.value.errors
    for start in ("pue: must be above zero", "kwh: must be a quoted", "after.gpus: must be a"):
        assert any(fault.startswith(start) for fault in faults), start
    for field in ("after.gpu_hour: missing", "after.iteration_days: must be above zero"):
        assert field in faults

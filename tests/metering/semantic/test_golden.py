"""The golden table: what units/1 makes of texts written for it. A change here is a new version."""

from __future__ import annotations

from pathlib import Path

import pytest
from metering_golden import GoldenCase, golden_cases
from metering_passing import assert_passing_is_reading

from metering.events import UnitState
from metering.semantic import SEGMENTER, Segmenter

CASES = [
    case
    for name in ("golden_units.txt", "golden_code.txt")
    for case in golden_cases(Path(__file__).with_name(name))
]


def test_the_table_is_large_enough_to_mean_something() -> None:
    assert len(CASES) >= 190
    assert len({case.title + str(case.is_cut) for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
@pytest.mark.parametrize("chunk_bytes", [1, 10_000])
def test_units_are_those_of_the_table(case: GoldenCase, chunk_bytes: int) -> None:
    segmenter = Segmenter()
    found = []
    for start in range(0, len(case.data), chunk_bytes):
        found += segmenter.feed(case.data[start : start + chunk_bytes])
    found += segmenter.finish(stopped=not case.is_cut)
    assert [
        (
            unit.kind,
            unit.state is UnitState.FRAGMENT,
            case.data[unit.start : unit.end].decode("utf-8", "surrogateescape"),
        )
        for unit in found
    ] == case.units


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_what_is_passed_over_is_as_if_it_had_been_read(case: GoldenCase) -> None:
    assert_passing_is_reading(case.data)


def test_the_version_names_every_grammar() -> None:
    assert SEGMENTER == (
        "units/1+ts-python@0.25.0+ts-javascript@0.25.0+ts-typescript@0.23.2"
        "+ts-sql@0.3.13+ts-bash@0.25.1"
    )

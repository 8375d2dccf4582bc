"""What work costs, fitted from stretches of known work, and kept in versioned files."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import msgspec
import pytest
from energy_cases import BOARD, SUBJECT, a_calibration, observations

from metering.energy import calibration
from metering.energy.calibration import Calibration, Observation
from metering.errors import InvalidCalibration

COSTS_NJ = (900_000, 45_000, 52_000, 30)


def fit(found: list[Observation]) -> Calibration:
    return calibration.fit(found, SUBJECT, BOARD, version=1, fitted_at_us=0)


def test_the_costs_that_made_the_stretches_are_found_again() -> None:
    fitted = fit(observations(*COSTS_NJ))
    assert astuple(fitted.costs) == pytest.approx(COSTS_NJ, rel=0.001)
    assert fitted.error_pct == "0.0"


def test_noise_shows_in_the_error_and_leaves_the_costs_near() -> None:
    noise = (1.02, 0.98, 1.01, 0.99, 1.02, 0.99, 1.0, 0.98)
    fitted = fit(observations(*COSTS_NJ, noise=noise))
    assert astuple(fitted.costs) == pytest.approx(COSTS_NJ, rel=0.35)
    assert 0.2 < float(fitted.error_pct) < 2.0


def test_no_cost_is_below_zero() -> None:
    """Keys read make these stretches cheaper, which no key read can: it costs nothing then."""
    fitted = fit(observations(900_000, 45_000, 52_000, -10))
    assert min(astuple(fitted.costs)) == fitted.costs.kv_read == 0
    assert fitted.costs.fixed > 0


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (observations(*COSTS_NJ)[:7], "too few"),
        (observations(*COSTS_NJ)[:1] * 8, "too alike"),
        ([msgspec.structs.replace(each, prefill_tokens=0) for each in observations(*COSTS_NJ)],
         "too alike"),
        (observations(900_000, 0, 0, 0), "does not depend on their work"),
    ],
)  # fmt: skip
def test_stretches_that_tell_nothing_are_refused(found: list[Observation], why: str) -> None:
    with pytest.raises(InvalidCalibration, match=why):
        fit(found)


def test_the_newest_version_is_used_and_none_is_overwritten(tmp_path: Path) -> None:
    assert calibration.latest(tmp_path, SUBJECT) is None
    for version in (1, 2):
        assert calibration.next_version(tmp_path, SUBJECT) == version
        calibration.store(tmp_path, a_calibration(version))
    assert calibration.latest(tmp_path, SUBJECT) == a_calibration(2)
    with pytest.raises(FileExistsError):
        calibration.store(tmp_path, a_calibration(2))


def test_another_model_device_or_precision_has_its_own(tmp_path: Path) -> None:
    calibration.store(tmp_path, a_calibration())
    for change in ({"checksum": "sha256:01"}, {"device": "cuda:0 sm_90"}, {"precision": "int8"}):
        other = msgspec.structs.replace(SUBJECT, **change)
        assert calibration.latest(tmp_path, other) is None


def test_its_id_is_that_of_its_content() -> None:
    first, second = a_calibration(), a_calibration()
    assert first.id == second.id
    assert first.id.startswith("calibration/1/")
    assert msgspec.structs.replace(first, error_pct="9.9").id != first.id


def test_a_damaged_file_is_an_error_and_not_a_default(tmp_path: Path) -> None:
    path = calibration.store(tmp_path, a_calibration())
    path.write_text(path.read_text()[:-20])
    with pytest.raises(InvalidCalibration, match="cannot be read"):
        calibration.latest(tmp_path, SUBJECT)
    path.write_text(a_calibration(3).text)
    with pytest.raises(InvalidCalibration, match="is no calibration of"):
        calibration.latest(tmp_path, SUBJECT)

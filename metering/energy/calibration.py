"""What work costs in joules on one machine, fitted from measured stretches of known work. Pure,
but for the versioned files that keep it.

A stretch of time took E joules and did so many steps, prompt rows, tree nodes and key reads. The
least squares with no cost below zero gives the coefficients of `affine-shapley/1`, for one model
(by its checksum), device and precision. Costs in a calibration are nanojoules.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.records import EngineInfo
from metering import canonical_json
from metering.energy.attribution import StepCosts
from metering.energy.provenance import Provenance
from metering.errors import InvalidCalibration

SCHEMA = "dflash.energy-calibration/1"
OBSERVATIONS_MIN = 8  # twice as many as there are coefficients
FEATURES = ("steps", "prefill_tokens", "verified_nodes", "kv_read_tokens")


class Subject(msgspec.Struct, frozen=True):
    """What a calibration is of, and holds for."""

    model: str
    checksum: str
    device: str  # "cpu avx2", "cuda:0 sm_90"
    precision: str  # the backend

    @classmethod
    def of(cls, engine: EngineInfo) -> Subject:
        """The model, device and precision of an engine."""
        device = f"{engine.device} {engine.instruction_set}"
        return cls(engine.model, engine.checksum, device, engine.backend)

    @property
    def folder(self) -> str:
        """A name for its files: readable, and its own."""
        digest = hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:8]
        words = re.sub(r"[^\w.]+", "-", f"{self.model} {self.device} {self.precision}")
        return f"{words}-{digest}"


class Observation(msgspec.Struct, frozen=True):
    """A stretch of time: what was done in it, and what it took."""

    steps: int
    prefill_tokens: int
    verified_nodes: int
    kv_read_tokens: int
    energy_uj: int


class Calibration(msgspec.Struct, frozen=True):
    """Fitted costs, in nanojoules, and how they were had."""

    schema: str
    version: int  # 1, 2, 3, ... of its subject
    subject: Subject
    costs: StepCosts
    observations: tuple[Observation, ...]
    error_pct: str  # root mean square of what the fit misses, against the mean stretch
    meter: Provenance
    fitted_at_us: int

    @property
    def id(self) -> str:
        """What receipts call it: its version, and the hash of everything in it."""
        return f"calibration/{self.version}/{canonical_json.sha256(self.text)[:12]}"

    @property
    def text(self) -> str:
        """Its canonical JSON."""
        return canonical_json.encode(self)


def fit(
    observations: Sequence[Observation],
    subject: Subject,
    meter: Provenance,
    *,
    version: int,
    fitted_at_us: int,
) -> Calibration:
    """Fit what a step, a prompt row, a tree node and a key read cost.

    Raises InvalidCalibration for stretches that are too few or too alike to tell the four apart.
    """
    if len(observations) < OBSERVATIONS_MIN:
        raise InvalidCalibration(
            f"{len(observations)} stretches are too few; {OBSERVATIONS_MIN} are needed"
        )
    work = np.array([[getattr(each, name) for name in FEATURES] for each in observations], float)
    energy_nj = np.array([each.energy_uj * 1000.0 for each in observations])
    scales = work.max(axis=0)
    if not scales.all() or np.linalg.matrix_rank(work / scales) < len(FEATURES):
        raise InvalidCalibration("the stretches are too alike to tell the costs of work apart")
    costs = _non_negative(work / scales, energy_nj) / scales
    rounded = StepCosts(*(round(float(cost)) for cost in costs))
    if not any((rounded.prefill_token, rounded.verified_node, rounded.kv_read)):
        raise InvalidCalibration("the energy of these stretches does not depend on their work")
    missed = float(np.sqrt(np.mean((work @ costs - energy_nj) ** 2)) / energy_nj.mean())
    return Calibration(
        schema=SCHEMA,
        version=version,
        subject=subject,
        costs=rounded,
        observations=tuple(observations),
        error_pct=f"{100 * missed:.1f}",
        meter=meter,
        fitted_at_us=fitted_at_us,
    )


def store(home: Path, calibration: Calibration) -> Path:
    """Keep a calibration as a new file; raises FileExistsError where its version is taken."""
    path = _folder(home, calibration.subject) / f"{calibration.version}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x") as file:
        file.write(calibration.text + "\n")
    return path


def latest(home: Path, subject: Subject) -> Calibration | None:
    """The newest calibration of a subject; null without one.

    Raises InvalidCalibration for a file that is damaged, or of something else.
    """
    paths = _versions(home, subject)
    if not paths:
        return None
    version = max(paths)
    try:
        found = msgspec.json.decode(paths[version].read_bytes(), type=Calibration)
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidCalibration(f"{paths[version]} cannot be read: {error}") from error
    if (found.schema, found.subject, found.version) != (SCHEMA, subject, version):
        raise InvalidCalibration(f"{paths[version]} is no calibration of {subject}")
    return found


def next_version(home: Path, subject: Subject) -> int:
    """The version that a new calibration of a subject gets."""
    return max(_versions(home, subject), default=0) + 1


def _folder(home: Path, subject: Subject) -> Path:
    return home / "calibration" / "energy" / subject.folder


def _versions(home: Path, subject: Subject) -> dict[int, Path]:
    paths = _folder(home, subject).glob("*.json")
    return {int(path.stem): path for path in paths if path.stem.isdigit()}


def _non_negative(work: NDArray[np.float64], energy: NDArray[np.float64]) -> NDArray[np.float64]:
    """The least squares without a negative coefficient, by trying every set of those above zero."""
    columns = work.shape[1]
    best, least = np.zeros(columns), math.inf
    for size in range(1, columns + 1):
        for chosen in itertools.combinations(range(columns), size):
            found, *_ = np.linalg.lstsq(work[:, chosen], energy, rcond=None)
            missed = float(np.sum((work[:, chosen] @ found - energy) ** 2))
            if found.min() >= 0 and missed < least:
                best, least = np.zeros(columns), missed
                best[list(chosen)] = found
    return best

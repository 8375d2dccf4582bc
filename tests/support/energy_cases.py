"""Calibrations and recorded traces, for tests of energy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from metering_cases import INFO

from metering.energy.calibration import Calibration, Observation, Subject, fit
from metering.energy.provenance import Provenance
from metering.energy.traces import SCHEMA, TraceHead
from metering.events import EnergyClass

SUBJECT = Subject.of(INFO)
BOARD = Provenance(
    energy_class=EnergyClass.MEASURED,
    source="nvml_total_energy",
    scope="gpu_board",
    devices=("GPU-a",),
    uncertainty_pct=5,
)
# Steps, prompt rows, tree nodes, key reads: alone, together, much and little.
WORK = (
    (1000, 0, 1000, 100_000),
    (1000, 0, 8000, 900_000),
    (500, 0, 500, 4_000_000),
    (400, 19_200, 400, 800_000),
    (100, 4800, 0, 120_000),
    (700, 0, 22_400, 2_000_000),
    (300, 9000, 3000, 70_000),
    (900, 100, 1800, 3_000_000),
)


def observations(
    fixed_nj: int, prefill_nj: int, node_nj: int, kv_nj: int, noise: Sequence[float] = ()
) -> list[Observation]:
    """Stretches that took what these costs say, each times its part of `noise`."""
    found = []
    for place, (steps, prefill, nodes, kv_read) in enumerate(WORK):
        cost_nj = steps * fixed_nj + prefill * prefill_nj + nodes * node_nj + kv_read * kv_nj
        factor = noise[place] if noise else 1.0
        found.append(Observation(steps, prefill, nodes, kv_read, round(cost_nj * factor / 1000)))
    return found


def a_calibration(version: int = 1, subject: Subject = SUBJECT) -> Calibration:
    """A calibration of costs that a small model could have."""
    made = observations(900_000, 45_000, 52_000, 30)
    return fit(made, subject, BOARD, version=version, fitted_at_us=1_700_000_000_000_000)


def a_trace(
    path: Path,
    readings: Iterable[tuple[int, int | None]],
    origins: Sequence[int] = (),
    board: Provenance = BOARD,
) -> Path:
    """A trace of (nanoseconds, microjoules); without energy the source did not answer."""
    lines: list[object] = [TraceHead(SCHEMA, board)]
    for place, (offset_ns, own_uj) in enumerate(readings):
        origin = origins[place] if origins else 0
        lines.append((offset_ns, own_uj, None if own_uj is None else 0, origin))
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return path


def a_steady_trace(path: Path, watts: int, device: str, scope: str = "gpu_board") -> Path:
    """Two seconds of a board that draws the same all the time, and is read every 2 ms."""
    board = msgspec.structs.replace(BOARD, devices=(device,), scope=scope)
    moments = range(0, 2 * 10**9 + 1, 2 * 10**6)
    return a_trace(path, [(at_ns, watts * at_ns // 1000) for at_ns in moments], board=board)

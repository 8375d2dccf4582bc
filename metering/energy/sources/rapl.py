"""RAPL through Linux powercap: the CPU packages' own energy counters.

Only top-level `package-*` zones count: core and uncore are parts of them, psys contains them.
Counters wrap at `max_energy_range_uj`. They cover the whole package, so what other processes
used is told apart by CPU time and reported as external.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from metering import clock
from metering.energy.protocols import Reading
from metering.energy.provenance import Provenance
from metering.energy.sources.process_clock import ProcessClock
from metering.errors import SourceUnavailable
from metering.events import EnergyClass

UNCERTAINTY_PCT = 5
_IDLE_FIELDS = frozenset({"idle", "iowait", "guest", "guest_nice"})  # guest is within user


@dataclass(slots=True)
class _Zone:
    path: Path
    package: str
    range_uj: int
    last_uj: int

    def since_last_uj(self, now_uj: int) -> int:
        """Energy between the last reading and this one, across one wrap."""
        delta_uj = now_uj - self.last_uj
        return delta_uj if delta_uj >= 0 else delta_uj + self.range_uj


class RaplPowercap:
    """Measures the energy of all CPU packages of this machine."""

    at_will = True  # the counter is updated every millisecond or so

    def __init__(self, root: Path, pid: int) -> None:
        """Raises SourceUnavailable, saying what is missing, when the counters can't be read."""
        self._zones = _zones(root)
        self._cpu = ProcessClock(pid)
        self._own_uj = self._external_uj = 0
        self._engine_ns = self._cpu.read_ns()
        self._others_ns = _busy_ns() - self._engine_ns
        packages = ",".join(zone.package for zone in self._zones)
        self.provenance = Provenance(
            energy_class=EnergyClass.MEASURED,
            source="rapl_powercap",
            scope="cpu_package",
            device=f"cpu-packages:{packages}",
            uncertainty_pct=UNCERTAINTY_PCT,
        )

    def read(self) -> Reading:
        """Read all packages; raises SourceUnavailable when one of them can't be read."""
        engine_ns = self._cpu.read_ns()
        # The system counts in ticks of 10 ms: the highest difference so far does not add up
        # the rounding of each reading.
        others_ns = max(self._others_ns, _busy_ns() - engine_ns)
        # All are read before any is believed: a failed read must not lose the others' energy.
        counters_uj = [_read_int(zone.path / "energy_uj") for zone in self._zones]
        delta_uj = 0
        for zone, counter_uj in zip(self._zones, counters_uj, strict=True):
            delta_uj += zone.since_last_uj(counter_uj)
            zone.last_uj = counter_uj
        others, ours = others_ns - self._others_ns, engine_ns - self._engine_ns
        external_uj = delta_uj * others // (others + ours) if others + ours else 0
        self._others_ns, self._engine_ns = others_ns, engine_ns
        self._external_uj += external_uj
        self._own_uj += delta_uj - external_uj
        return Reading(clock.monotonic_ns(), self._own_uj, self._external_uj)

    def close(self) -> None:
        """Nothing is held."""


def _zones(root: Path) -> list[_Zone]:
    found = []
    for path in sorted(root.glob("intel-rapl:*")):
        name = _read_text(path / "name") if path.name.count(":") == 1 else ""
        if name.startswith("package-"):
            range_uj = _read_int(path / "max_energy_range_uj")
            package = name.removeprefix("package-")
            found.append(_Zone(path, package, range_uj, _read_int(path / "energy_uj")))
    if not found:
        raise SourceUnavailable(f"no RAPL package zone under {root}")
    return found


def _read_int(path: Path) -> int:
    try:
        return int(_read_text(path))
    except ValueError as error:
        raise SourceUnavailable(f"{path} holds no number") from error


def _read_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except PermissionError as error:
        raise SourceUnavailable(
            f"{path} may only be read by root since CVE-2020-8694; grant read access to it, or"
            " choose the cpu_time estimate"
        ) from error
    except OSError as error:
        raise SourceUnavailable(f"{path} cannot be read: {error}") from error


def _busy_ns() -> int:
    """CPU time of all processes of this machine."""
    times: dict[str, float] = psutil.cpu_times()._asdict()
    busy_s = sum(seconds for name, seconds in times.items() if name not in _IDLE_FIELDS)
    return round(busy_s * 1e9)

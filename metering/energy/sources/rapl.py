"""RAPL through Linux powercap: the CPU packages' own energy counters.

Only top-level `package-*` zones count: core and uncore are parts of them, psys contains them.
Counters wrap at `max_energy_range_uj`, every quarter of an hour or so under load: after a long
silence nobody knows how often. They cover the whole package, so what other processes used is told
apart by CPU time and reported as external. Boards, memory and fans are not in them.
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
SILENCE_NS_MAX = 60 * 10**9
DEFAULT_PACKAGE_W = 1000.0  # the most that a package may draw that sets no limit
_IDLE_FIELDS = frozenset({"idle", "iowait", "guest", "guest_nice"})  # guest is within user


@dataclass(slots=True)
class _Zone:
    path: Path
    package: str
    range_uj: int
    power_max_w: float
    last_uj: int

    def since_last_uj(self, now_uj: int) -> int:
        """Energy between the last reading and this one, across one wrap."""
        delta_uj = now_uj - self.last_uj
        return delta_uj if delta_uj >= 0 else delta_uj + self.range_uj


class RaplPowercap:
    """Measures the energy of all CPU packages of this machine."""

    at_will = True  # the counter is updated every millisecond or so
    is_counter = True

    def __init__(self, root: Path, pid: int) -> None:
        """Raises SourceUnavailable, saying what is missing, when the counters can't be read."""
        self._zones = _zones(root)
        self._cpu = ProcessClock(pid)
        self._own_uj = self._external_uj = 0
        self._origin = 0
        self._read_ns = clock.monotonic_ns()
        self.power_max_w = sum(zone.power_max_w for zone in self._zones)
        self._engine_ns = self._cpu.read_ns()
        self._others_ns = _busy_ns() - self._engine_ns
        packages = ",".join(zone.package for zone in self._zones)
        self.provenance = Provenance(
            energy_class=EnergyClass.MEASURED,
            source="rapl_powercap",
            scope="cpu_package",
            devices=(f"cpu-packages:{packages}",),
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
        now_ns = clock.monotonic_ns()
        if now_ns - self._read_ns > SILENCE_NS_MAX:
            self._origin += 1
        self._read_ns = now_ns
        delta_uj = 0
        for zone, counter_uj in zip(self._zones, counters_uj, strict=True):
            delta_uj += zone.since_last_uj(counter_uj)
            zone.last_uj = counter_uj
        others, ours = others_ns - self._others_ns, engine_ns - self._engine_ns
        external_uj = delta_uj * others // (others + ours) if others + ours else 0
        self._others_ns, self._engine_ns = others_ns, engine_ns
        self._external_uj += external_uj
        self._own_uj += delta_uj - external_uj
        return Reading(now_ns, self._own_uj, self._external_uj, self._origin)

    def close(self) -> None:
        """Let go of the engine's process."""
        self._cpu.close()


def _zones(root: Path) -> list[_Zone]:
    found = []
    for path in sorted(root.glob("intel-rapl:*")):
        name = _read_text(path / "name") if path.name.count(":") == 1 else ""
        if name.startswith("package-"):
            range_uj = _read_int(path / "max_energy_range_uj")
            package = name.removeprefix("package-")
            energy_uj = _read_int(path / "energy_uj")
            found.append(_Zone(path, package, range_uj, _power_max_w(path), energy_uj))
    if not found:
        raise SourceUnavailable(f"no RAPL package zone under {root}")
    return found


def _power_max_w(zone: Path) -> float:
    """Twice the highest limit that the package states, which it may pass for a while."""
    limits_uw = []
    for path in zone.glob("constraint_*_max_power_uw"):
        try:
            limits_uw.append(int(path.read_text()))
        except (OSError, ValueError):
            continue  # a limit that isn't told
    return 2 * max(limits_uw) / 1e6 if any(limits_uw) else DEFAULT_PACKAGE_W


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

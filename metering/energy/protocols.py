"""What a source of energy readings does; implemented in `metering.energy.sources`."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from metering.energy.provenance import Provenance


class Reading(NamedTuple):
    """A source's totals since an origin of its own, and when they held."""

    at_ns: int  # CLOCK_MONOTONIC
    own_uj: int  # of the engine's device or process
    external_uj: int  # of other processes on the same counter
    origin: int = 0  # totals count from the same origin as long as this is the same


class EnergySource(Protocol):
    """A cumulative energy counter. Totals that fall mean that it was reset: a new epoch."""

    @property
    def provenance(self) -> Provenance:
        """How its figures are had."""

    @property
    def at_will(self) -> bool:
        """Whether it can be read at any moment and is fresh then, at next to no cost."""

    @property
    def is_counter(self) -> bool:
        """Whether the device itself counts: in steps of its own, and it may stop doing so."""

    @property
    def power_max_w(self) -> float | None:
        """What the device can draw at most, own and external; null where nothing says so."""

    def read(self) -> Reading:
        """Read the totals; raises SourceUnavailable when they cannot be had now."""

    def close(self) -> None:
        """Let go of the device."""

"""What the `dflash` command hands to its chapters, so that none of them reads the environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def _no_provider() -> Any:
    """Where no payment provider is configured."""
    return None


def _unrecorded(*_args: object, **_entry: object) -> None:
    """Where there is no gateway above, there is no audit log to write to."""


@dataclass(frozen=True, slots=True)
class CliContext:
    """Where this installation keeps its state; click carries it as `ctx.obj`."""

    home: Path
    database_url: str
    # The gateway's audit log: (connection, *, action, subject, tenant_id=None, **detail).
    record: Callable[..., None] = _unrecorded
    # Opens the payment provider (`billing.payments.provider.Provider`); null where there is none.
    open_provider: Callable[[], Any] = _no_provider

"""Turns of many tenants, of whom one that fails keeps no other waiting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def turns(what: str) -> Iterator[Turns]:
    """Give everybody their turn; raises an ExceptionGroup of what failed when all had theirs."""
    made = Turns()
    yield made
    if made.failed:
        raise ExceptionGroup(f"{what} failed", made.failed)


class Turns:
    """What failed so far, each with a note of whose it was."""

    def __init__(self) -> None:
        self.failed: list[Exception] = []

    @contextmanager
    def of(self, tenant_id: str) -> Iterator[None]:
        """One tenant's turn."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 -- raised when all had their turn
            error.add_note(f"of {tenant_id}")
            self.failed.append(error)

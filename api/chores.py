"""What the gateway does beside its requests: rating reported usage, rolling usage up, and telling.

One thread, one round after another; a round that fails is logged and tried again. Each step is a
transaction of its own and safe beside another gateway's, so nothing here needs a lease.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread

import structlog
from sqlalchemy import Engine as Database

from billing import outside
from billing.settlement import Settlement
from metering import rollups
from metering.database import transaction

log = structlog.get_logger(__name__)

ROUND_S = 2.0


class Chores:
    """The thread of chores. `start` and `close` bracket its life."""

    def __init__(self, database: Database, settlement: Settlement) -> None:
        self._database = database
        self._settlement = settlement
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="chores", daemon=True)

    def start(self) -> None:
        """Begin the rounds."""
        self._thread.start()

    def close(self) -> None:
        """End after the step in hand."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(ROUND_S):
            for step in (self._rate, self._roll_up):
                self._tried(step)

    def _tried(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception:
            # The next round tries again; a thread that died would let things wait unseen.
            log.exception("chore.failed", step=step.__name__)

    def _rate(self) -> None:
        while not self._stopping.is_set():
            done = outside.settle_waiting(self._database, self._settlement)
            if done.unrated:
                log.warning("usage.unrated", events=done.unrated)
            if not done.settled:
                return

    def _roll_up(self) -> None:
        with transaction(self._database) as connection:
            rollups.refresh(connection)

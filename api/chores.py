"""What the gateway does beside its requests: rating reported usage, rolling usage up, erasing,
reminding, telling, and sweeping up what is over.

Round after round, each kind in a thread of its own; a step that fails is logged and tried again in
the next one. Steps are safe beside another process that takes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event, Thread

import structlog
from sqlalchemy import Connection
from sqlalchemy import Engine as Database

from api.webhooks.sending import Sender
from billing import charged_hours, outside, retention, review
from billing.invoices import dunning
from billing.ledger import grants, holds
from billing.settlement import Settlement
from billing.signing import Signer
from metering import clock, rollups
from metering.database import snapshot, transaction

log = structlog.get_logger(__name__)

ROUND_S = 2.0
HOUR_US = 3600 * 10**6


class Chores:
    """A thread that repeats its steps. `start` and `close` bracket its life.

    A step does one bounded piece of work and says whether there may be more at once.
    """

    def __init__(
        self,
        name: str,
        steps: Sequence[Callable[[], bool]],
        every_s: float | None = None,
        *,
        at_end: Callable[[], None] | None = None,
    ) -> None:
        """A round begins `every_s` after the last one ended; null: ROUND_S."""
        self._name = name
        self._steps = steps
        self._every_s = every_s
        self._at_end = at_end
        self._stopping = Event()
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin the rounds."""
        self._thread.start()

    def close(self) -> None:
        """End after the step in hand."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(ROUND_S if self._every_s is None else self._every_s):
            for step in self._steps:
                while self._tried(step) and not self._stopping.is_set():
                    pass
        if self._at_end is not None:
            self._at_end()

    def _tried(self, step: Callable[[], bool]) -> bool:
        try:
            return step()
        except Exception:
            # The next round tries again; a thread that died would let things wait unseen.
            log.exception("chore.failed", chore=self._name)
            return False


def usage_chores(database: Database, settlement: Settlement) -> Chores:
    """Rate what other engines reported, roll usage and charges up, erase what is kept no
    longer, and remind of what is due.
    """

    def rate() -> bool:
        done = outside.settle_waiting(database, settlement)
        if done.unrated:
            log.warning("usage.unrated", events=done.unrated)
        return done.settled > 0

    def roll_up(tenant_id: str) -> int:
        with transaction(database) as connection:
            return rollups.refresh(connection, tenant_id)

    def count_charges(tenant_id: str) -> int:
        return charged_hours.count(database, tenant_id, clock.now_us())

    def next_charged(connection: Connection, after: str) -> str | None:
        return charged_hours.next_due(connection, clock.now_us(), after)

    def next_kept(connection: Connection, after: str) -> str | None:
        return retention.next_due(connection, clock.now_us(), after)

    def erase(tenant_id: str) -> int:
        with transaction(database) as connection:
            return retention.sweep(connection, tenant_id, clock.now_us())

    def forget() -> None:
        with transaction(database) as connection:
            outside.forget_detail(connection, clock.now_us())

    def remind(tenant_id: str) -> int:
        with transaction(database) as connection:
            told = dunning.remind(connection, tenant_id)
        if told.is_news:
            log.info(
                "invoice.reminded",
                tenant_id=tenant_id,
                invoices=told.numbers,
                credit_paused=told.is_paused,
            )
        return 0  # it owes as before

    return Chores(
        "usage",
        [
            rate,
            _in_turn(database, rollups.next_marked, roll_up),
            _in_turn(database, next_charged, count_charges),
            _hourly(_in_turn(database, next_kept, erase)),
            _hourly(once(forget)),
            _hourly(_in_turn(database, dunning.next_due, remind)),
        ],
    )


def webhook_chores(database: Database, *, allow_private: bool) -> Chores:
    """Tell tenants what they want to hear of; slow receivers keep nothing else waiting."""
    sender = Sender(database, allow_private=allow_private)
    return Chores("webhooks", [lambda: sender.round() > 0], at_end=sender.close)


def sweep_chores(
    database: Database, every_s: float, signer: Signer, keeping: Sequence[Callable[[], object]]
) -> Chores:
    """Keep what is in force, then end what is over: holds, grants and reviews.

    Each in transactions of its own, and none before there is something to write.
    """

    def swept(
        due: Callable[[Connection, int, str], str | None],
        work: Callable[[Connection, str, int], int],
    ) -> Callable[[], bool]:
        def next_due(connection: Connection, after: str) -> str | None:
            return due(connection, clock.now_us(), after)

        def of_tenant(tenant_id: str) -> int:
            with transaction(database) as connection:
                return work(connection, tenant_id, clock.now_us())

        return _in_turn(database, next_due, of_tenant)

    def lapse(connection: Connection, tenant_id: str, now_us: int) -> int:
        return review.lapse(connection, tenant_id, now_us, signer)

    return Chores(
        "sweep",
        [
            *(once(keep) for keep in keeping),
            swept(holds.next_due, holds.expire),
            swept(grants.next_due, grants.expire),
            swept(review.next_due, lapse),
        ],
        every_s,
    )


def once(step: Callable[[], object]) -> Callable[[], bool]:
    """A step that does all it has to at once."""

    def stepped() -> bool:
        step()
        return False

    return stepped


def _in_turn(
    database: Database,
    following: Callable[[Connection, str], str | None],
    work: Callable[[str], int],
) -> Callable[[], bool]:
    """The work of one tenant after another, round and round until a round finds none to do.

    A tenant whose work fails keeps no other waiting: the next one's comes at once.
    """
    after, done = "", 0

    def stepped() -> bool:
        nonlocal after, done
        with snapshot(database) as connection:
            tenant_id = following(connection, after)
        if tenant_id is None:
            more, after, done = done > 0, "", 0
            return more
        after = tenant_id
        try:
            done += work(tenant_id)
        except Exception:
            log.exception("chore.failed", tenant_id=tenant_id)
        return True

    return stepped


def _hourly(step: Callable[[], bool]) -> Callable[[], bool]:
    """The step, once an hour until it has no more to do: for what reads a lot."""
    due_us = 0

    def stepped() -> bool:
        nonlocal due_us
        now_us = clock.now_us()
        if now_us < due_us:
            return False
        more = step()
        if not more:
            due_us = now_us + HOUR_US
        return more

    return stepped

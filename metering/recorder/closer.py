"""The thread that ends requests, so that nobody's settlement holds up another's stream."""

from __future__ import annotations

import threading
import time

import structlog
from sqlalchemy import Engine as Database

from metering import clock, queries
from metering.database import snapshot, transaction
from metering.errors import UnknownRequest
from metering.protocols import BlockSink, Settler
from metering.recorder import endings, terminal
from metering.recorder.energy_books import EnergyBooks
from metering.recorder.live import LiveRequest, LiveRequests

log = structlog.get_logger(__name__)

RETRY_NS = 10**8  # doubled after each attempt, up to ...
RETRY_NS_MAX = 30 * 10**9
ATTEMPTS_WAITED = 7  # some 6 s: after so many that failed, nobody waits for the request any more
CANCEL_GRACE_NS = 10 * 10**9  # an engine that doesn't answer a cancellation is not waited for
POLL_S = 0.02  # while a request waits for its energy
IDLE_POLL_S = 1.0
DRAIN_S = 10.0  # on closing


class Closer:
    """Ends what has finished: each in one transaction, tried again until it succeeds."""

    def __init__(
        self, database: Database, live: LiveRequests, settler: Settler, sink: BlockSink
    ) -> None:
        self._database = database
        self._live = live
        self._settler = settler
        self._sink = sink
        self._books: EnergyBooks | None = None
        self._energy_wait_ns = 0
        self._ending = threading.RLock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    def start(self, books: EnergyBooks, energy_wait_s: float) -> None:
        """Begin to end requests, each at most so long after its finish if its energy is late.

        Called again, it goes on with other books.
        """
        self._books = books
        self._energy_wait_ns = round(energy_wait_s * 1e9)
        if not self._thread.is_alive():
            self._thread.start()

    def wake(self) -> None:
        """Something has finished."""
        self._wake.set()

    def close(self) -> None:
        """End what has finished, then stop; what the database still refuses is left open."""
        deadline_s = time.monotonic() + DRAIN_S
        while time.monotonic() < deadline_s and any(live.ending for live in self._live.all()):
            self._wake.set()
            time.sleep(POLL_S)
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def end(self, live: LiveRequest) -> None:
        """End a request whose `ending` is set; a failure is logged and tried again later."""
        with self._ending:
            ending = live.ending
            if ending is None or self._live.get(live.admitted.id) is not live:
                return
            try:
                if self._books is not None:
                    self._books.draw_up(live)
                if live.ended_at_us is None:
                    live.ended_at_us = clock.now_us()
                with transaction(self._database) as connection:
                    summary = terminal.settle(
                        connection, live, ending, live.ended_at_us, self._settler
                    )
            except UnknownRequest:
                log.exception("request.final_already", request_id=live.admitted.id)
                self._live.remove(live)
                # An attempt of which nothing was heard may have ended it: who waits hears of that.
                with snapshot(self._database) as connection:
                    stored = queries.summary(connection, live.admitted.id)
                if stored is None:
                    return
                summary = stored
            except Exception:
                log.exception("request.ending_failed", request_id=live.admitted.id)
                wait_ns = min(RETRY_NS_MAX, RETRY_NS << min(live.retries, 16))
                live.retries += 1
                if live.retries == ATTEMPTS_WAITED:
                    self._sink.defer(live.admitted.id)
                live.retry_at_ns = clock.monotonic_ns() + wait_ns
                return
            self._live.remove(live)
        try:
            self._sink.finish(summary)
        except Exception:
            log.exception("request.finish_undelivered", request_id=live.admitted.id)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            is_waiting = False
            try:
                is_waiting = self._tick()
            except Exception:
                # Whatever it was is tried again; a thread that died would lose it silently.
                log.exception("recorder.tick_failed")
            self._wake.wait(POLL_S if is_waiting else IDLE_POLL_S)

    def _tick(self) -> bool:
        """End what can end; true while something waits for a moment that nobody announces."""
        now_ns = clock.monotonic_ns()
        live = self._live.all()
        for each in live:
            self._end_unanswered(each, now_ns)
            if each.ending and each.retry_at_ns <= now_ns and self._may_end(each, now_ns):
                self.end(each)
        if self._books is not None:
            # Nothing was live after `now_ns`, so no step that began before it can still turn up.
            self._books.tick(now_ns, is_idle=not live)
        return any(each.ending for each in self._live.all())

    def _may_end(self, live: LiveRequest, now_ns: int) -> bool:
        """Whether the request's energy is settled, or has been waited for long enough."""
        waited_ns = now_ns - live.ending_at_ns
        return (
            self._books is None
            or self._books.has_settled(live.charged_until_ns)
            or waited_ns >= self._energy_wait_ns
            or self._books.is_silent(now_ns - self._energy_wait_ns)
        )

    def _end_unanswered(self, live: LiveRequest, now_ns: int) -> None:
        """A request that was cut or cancelled ends, whether or not the engine answers."""
        why, since_ns = live.withheld, live.withheld_at_ns
        if why and since_ns is not None and now_ns - since_ns > CANCEL_GRACE_NS:
            self._live.end(live, endings.withheld(why, live.withheld_detail), now_ns)

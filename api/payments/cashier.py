"""The gateway's side of payments: a provider, if there is one, and a thread that keeps pushing.

The thread is its own: a provider that does not answer must hold up nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event, Thread

import structlog
from sqlalchemy import Engine as Database

from billing.errors import PaymentsDisabled
from billing.payments import meters, outbox, recharging
from billing.payments.provider import Provider

log = structlog.get_logger(__name__)


@dataclass
class Cashier:
    """Pushes the outbox and recharges credit, every so often, until it is closed."""

    database: Database
    provider: Provider | None
    public_url: str
    interval_s: float
    _stopping: Event = field(default_factory=Event)
    _thread: Thread | None = None

    @property
    def required_provider(self) -> Provider:
        """The provider; raises PaymentsDisabled where there is none."""
        if self.provider is None:
            raise PaymentsDisabled("no payment provider is configured here")
        return self.provider

    def start(self) -> None:
        """Begin to push; without a provider, do nothing."""
        if self.provider is not None:
            self._thread = Thread(target=self._run, name="cashier", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop after the request that is under way."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def run_once(self) -> int:
        """Queue what is due, and push; how many rows were sent."""
        recharging.recharge(self.database)
        meters.queue(self.database)
        return outbox.push(self.database, self.required_provider)

    def _run(self) -> None:
        while not self._stopping.wait(self.interval_s):
            try:
                self.run_once()
            except Exception:
                # The next round goes on where this one stopped.
                log.exception("payments.push_failed")

"""The gateway's side of payments: a provider, if there is one, and chores that keep pushing.

Their thread is their own: a provider that does not answer must hold up nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Engine as Database

from api.chores import Chores, once
from billing.errors import PaymentsDisabled
from billing.payments import meters, outbox, recharging
from billing.payments.provider import Provider


@dataclass
class Cashier:
    """Pushes the outbox and recharges credit, every so often, until it is closed."""

    database: Database
    provider: Provider | None
    public_url: str
    interval_s: float
    _chores: Chores | None = None

    @property
    def required_provider(self) -> Provider:
        """The provider; raises PaymentsDisabled where there is none."""
        if self.provider is None:
            raise PaymentsDisabled("no payment provider is configured here")
        return self.provider

    def start(self) -> None:
        """Begin to recharge and push; without a provider, do nothing."""
        if (provider := self.provider) is None:
            return
        steps = (
            lambda: recharging.recharge(self.database),
            lambda: meters.queue(self.database),
            lambda: outbox.push(self.database, provider),
        )
        self._chores = Chores("payments", [once(step) for step in steps], self.interval_s)
        self._chores.start()

    def close(self) -> None:
        """Stop after the request that is under way."""
        if self._chores is not None:
            self._chores.close()

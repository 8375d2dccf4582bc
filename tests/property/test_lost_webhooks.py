"""Webhooks that never come and backups that are restored, at random: what a person books of what is
named makes the books say what Stripe holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from billing_world import add_tenant, balances, books_balance, settlement
from databases import Backup, SqliteFiles, fresh, reopened
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from invoice_world import HOUR_US, Month, priced
from stripe_payments import begin, book
from stripe_process import StripeProcess, running

from billing.differences import Difference
from billing.errors import PaymentConflict
from billing.payments import collection, comparison, outbox, recharging, refusals, top_ups, webhooks
from billing.payments.provider import ProviderEvent
from metering.database import snapshot, transaction

STEPS = [
    "buy",
    "recharge",
    "pay twice",
    "refund there",
    "refund here",
    "refund fails",
    "dispute",
    "dispute ends",
    "deliver",
    "lose",
    "push",
    "back up",
    "restore",
    "a day goes by",
]
ROUNDS_MAX = 6  # of naming and booking: what hides behind another is named once that is booked


@pytest.fixture(scope="module")
def stripe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StripeProcess]:
    with running(tmp_path_factory.mktemp("stripe")) as process:
        yield process


class Unsigned:
    """A provider that takes events as they are: the fake's clock is not that of its signatures."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def event(self, payload: bytes, _signature: str | None) -> ProviderEvent:
        found = json.loads(payload)
        about = found["data"]["object"]
        return ProviderEvent(found["id"], found["type"], about["object"], about["id"], 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class World:
    """A tenant that buys credit, its books, and a Stripe that forgets nothing."""

    def __init__(self, month: Month, stripe: StripeProcess, files: SqliteFiles) -> None:
        self.month = month
        self.stripe = stripe
        self.files = files
        self.backups: list[Backup] = []
        self.heard = 0
        self.numbers = 0
        self.twice: set[str] = set()  # our ids of top-ups that somebody else paid again

    def do(self, step: str, chance: Any) -> None:
        self.numbers += 1
        getattr(self, step.replace(" ", "_"))(chance)

    def any(self, kind: str, chance: Any, **fields: Any) -> dict[str, Any] | None:
        """One of Stripe's objects."""
        found = [
            each
            for each in self.stripe.objects(kind)
            if all(each[name] == value for name, value in fields.items())
        ]
        return chance.choice(found) if found else None

    def buy(self, chance: Any) -> None:
        begin(self.month, self.stripe, 1000 + self.numbers, f"r{self.numbers}")
        self.stripe.act("complete", session=self.stripe.objects("checkout.session")[-1]["id"])

    def recharge(self, _chance: Any) -> None:
        with transaction(self.month.database) as connection:
            recharging.order(connection, "ten_1", below_nano=10**16, amount_minor=500)
        recharging.recharge(self.month.database)

    def pay_twice(self, chance: Any) -> None:
        paid = self.any("payment_intent", chance)
        if paid is not None:
            subject = paid["metadata"]["dflash_id"]
            self.twice.add(subject)
            body = {"customer": paid["customer"], "amount": 700, "currency": "usd"}
            body["description"] = "x"
            self.stripe.provider.do("recharge", subject, body, f"twice-{self.numbers}")

    def refund_there(self, chance: Any) -> None:
        paid = self.any("payment_intent", chance)
        if paid is not None and (left := self.left(paid)):
            amount = chance.choice([left, chance.randint(1, left)])
            self.stripe.act("refund", payment_intent=paid["id"], amount=amount)

    def left(self, paid: dict[str, Any]) -> int:
        """What of a payment was not refunded."""
        return int(paid["amount_received"]) - sum(
            each["amount"]
            for each in self.stripe.objects("refund")
            if each["payment_intent"] == paid["id"] and each["status"] != "failed"
        )

    def refund_here(self, chance: Any) -> None:
        with snapshot(self.month.database) as connection:
            found = top_ups.of_tenant(connection, "ten_1")
        if found:
            try:
                with transaction(self.month.database) as connection:
                    reference = f"ticket-{self.numbers}"
                    top_ups.refund(connection, chance.choice(found).id, 300, reference)
            except PaymentConflict:
                return  # not paid, or spent

    def refund_fails(self, chance: Any) -> None:
        refund = self.any("refund", chance, status="succeeded")
        if refund is not None:
            self.stripe.act("change", id=refund["id"], fields={"status": "failed"})

    def dispute(self, chance: Any) -> None:
        paid = self.any("payment_intent", chance)
        disputed = {each["payment_intent"] for each in self.stripe.objects("dispute")}
        if paid is not None and paid["id"] not in disputed:
            self.stripe.act("dispute", intent=paid["id"])

    def dispute_ends(self, chance: Any) -> None:
        dispute = self.any("dispute", chance, status="needs_response")
        if dispute is not None:
            ending = chance.choice(["won", "lost"])
            self.stripe.act("end_dispute", dispute=dispute["id"], status=ending)

    def deliver(self, chance: Any) -> None:
        events = self.stripe.events()[self.heard :]
        self.heard += len(events)
        chance.shuffle(events)
        provider = Unsigned(self.stripe.provider)
        for event in events:
            webhooks.receive(self.month.database, provider, *event)  # type: ignore[arg-type]

    def lose(self, _chance: Any) -> None:
        self.heard = len(self.stripe.events())

    def push(self, _chance: Any) -> None:
        outbox.push(self.month.database, self.stripe.provider)

    def back_up(self, _chance: Any) -> None:
        self.backups.append(Backup(self.files, self.month.database))

    def restore(self, chance: Any) -> None:
        if self.backups:
            chance.choice(self.backups).restore()

    def a_day_goes_by(self, _chance: Any) -> None:
        self.month.now_us += 25 * HOUR_US
        self.stripe.act("clock", advance_s=25 * 3600)

    def differences(self) -> list[Difference]:
        return comparison.compare(self.month.database, self.stripe.provider).differences

    def settle(self, difference: Difference) -> None:
        """Do what the documentation says of a difference."""
        kinds = {
            "the provider's payment is ours": "payment",
            "a top-up is paid once": "payment",
            "credit bought = provider's payment": "payment",
            "refund booked = provider's": "refund",
            "dispute booked = provider's": "dispute",
        }
        if difference.check in kinds:
            provider_id = difference.subject.split()[-1]
            book(self.month, self.stripe, kinds[difference.check], provider_id)
        else:
            assert difference.check == "the provider takes what it is told"
            with transaction(self.month.database) as connection:
                for row in outbox.open_rows(connection):
                    refusals.drop(connection, row.seq)

    def held(self) -> int:
        """What Stripe holds of this tenant's payments, in cents."""
        back = [each for each in self.stripe.objects("refund") if each["status"] != "failed"]
        back += [each for each in self.stripe.objects("dispute") if each["status"] != "won"]
        received = sum(each["amount_received"] for each in self.stripe.objects("payment_intent"))
        return int(received - sum(each["amount"] for each in back))

    def check(self) -> None:
        self.push(None)
        for _ in range(ROUNDS_MAX):
            found = self.differences()
            for difference in found:
                self.settle(difference)
            if not found:
                break
        assert self.differences() == []
        with snapshot(self.month.database) as connection:
            books_balance(connection)
            clearing = balances(connection, None).get("payment_clearing", 0)
        assert -clearing == self.held() * 10**7
        charged = [
            each["metadata"]["dflash_id"]
            for each in self.stripe.objects("payment_intent")
            if each["metadata"]["dflash_id"] not in self.twice
        ]
        assert len(charged) == len(set(charged))


def test_what_is_named_and_booked_makes_the_books_say_what_stripe_holds(
    sqlite_files: SqliteFiles, tmp_path: Path, stripe: StripeProcess
) -> None:
    @settings(max_examples=25, suppress_health_check=list(HealthCheck))
    @given(
        st.lists(st.sampled_from(STEPS), min_size=4, max_size=30),
        st.randoms(use_true_random=False),
    )
    def holds(steps: list[str], chance: Any) -> None:
        stripe.act("reset")
        with (
            pytest.MonkeyPatch.context() as patch,
            fresh(sqlite_files) as url,
            ExitStack() as cleanup,
        ):
            database = reopened(url)
            cleanup.callback(database.dispose)
            month = Month(database, settlement(tmp_path), patch)
            stripe.act("clock", at_s=month.now_us / 10**6)
            with transaction(database) as connection:
                month.settlement._signer.register(connection)
                add_tenant(connection, credit="5", pays=priced())
                collection.enrol(connection, "ten_1", "pay@acme.example", "USD")
            world = World(month, stripe, sqlite_files)
            cleanup.callback(lambda: [backup.drop() for backup in world.backups])
            world.buy(None)  # whose card is kept
            for step in steps:
                world.do(step, chance)
            world.check()

    holds()

"""Answers that wait for reviewers: what tests of the review queue stand on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from billing_cases import ENGINE, STARTED_US, summary, tariff
from billing_world import FAR_US, add_request, add_tenant, ended, settlement
from sqlalchemy import Connection, Engine, func, select

from billing import review, reviewers
from billing.gate import HoldGate
from billing.ledger import accounts
from billing.ledger.accounts import Account, AccountKind
from billing.review_items import ReviewItem
from billing.settlement import Settlement
from billing.signing import Signer
from billing.tables import accounts as accounts_table
from billing.tables import adjustments
from metering import clock
from metering.database import transaction

FEE_NANO = 10_000_001  # odd, so that it never halves evenly
REVIEWED = tariff(
    input={"per_million": "0.1"},
    output={"per_million": "0.4"},
    review={"fee": "0.010000001"},
)
DOUBT = "request_confidence"


class Clock:
    """A clock that stands until it is moved; `monkeypatch` it over `metering.clock.now_us`."""

    def __init__(self) -> None:
        self.now_us = STARTED_US

    def __call__(self) -> int:
        return self.now_us


class ReviewDesk:
    """Queues answers of tenants through settlement, and gives verdicts on them."""

    def __init__(self, database: Engine, folder: Path, *, second: float = 0.0) -> None:
        self.database = database
        self.settler = Settlement(settlement(folder)._signer, ENGINE, second_opinion_rate=second)
        self.signer: Signer = self.settler._signer
        self._number = 0
        with transaction(database) as connection:
            self.signer.register(connection)

    def tenant(self, tenant_id: str = "ten_1", *, opt_in: bool = True, credit: str = "1") -> None:
        """A tenant that agreed to pay for reviews, unless it did not."""
        with transaction(self.database) as connection:
            add_tenant(connection, tenant_id, opt_in=opt_in, credit=credit, pays=REVIEWED)

    def answer(
        self,
        *units: Any,
        tenant_id: str = "ten_1",
        reason: str | None = DOUBT,
        held: bool = False,
        output: str = "text",
        request: dict[str, Any] | None = None,
        **fields: Any,
    ) -> str:
        """One answer, settled; its request's id."""
        self._number += 1
        request_id = f"req_{self._number}"
        with transaction(self.database) as connection:
            parameters = {"seed": 1} | ({"held": True} if held else {})
            admitted = add_request(
                connection, request_id, tenant_id, parameters=parameters, **(request or {})
            )
            HoldGate().admit(connection, admitted, expires_at_us=FAR_US)
            final = summary(
                *units,
                request_id=request_id,
                review_reason=reason,
                started_at_us=clock.now_us(),
                ended_at_us=clock.now_us(),
                **fields,
            )
            ended(connection, self.settler, final, output=output)
        return request_id

    def claim(self, request_id: str, reviewer: str, **fields: Any) -> int:
        """Claim an answer's item; the token."""
        with transaction(self.database) as connection:
            return review.claim(connection, f"rev_{request_id}", reviewer, **fields)

    def judge(
        self, request_id: str, reviewer: str, verdict: str, token: int | None = None, **fields: Any
    ) -> ReviewItem:
        """Give an opinion, claiming the item first unless a token says that this is done."""
        token = self.claim(request_id, reviewer) if token is None else token
        fields.setdefault("reasons", [] if verdict == "approve" else ["incorrect"])
        if verdict == "edit":
            fields.setdefault("edited_output", "better")
        with transaction(self.database) as connection:
            return review.resolve(
                connection,
                f"rev_{request_id}",
                reviewer,
                token,
                verdict=verdict,
                signer=self.signer,
                **fields,
            )


def due(connection: Connection) -> Counter[str]:
    """What every reviewer is due, in nano."""
    return Counter({each.reviewer_id: each.due_nano for each in reviewers.listing(connection)})


def pool(connection: Connection, tenant_id: str = "ten_1") -> int:
    """What is in a tenant's part of the review pool."""
    return accounts.of(connection, Account(tenant_id, AccountKind.REVIEW_POOL, "USD"))


def pooled(connection: Connection) -> int:
    """What is in all of the review pool."""
    total = connection.scalar(
        select(
            func.coalesce(func.sum(accounts_table.c.credits_nano), 0)
            - func.coalesce(func.sum(accounts_table.c.debits_nano), 0)
        ).where(accounts_table.c.kind == AccountKind.REVIEW_POOL)
    )
    return int(total or 0)


def outcomes(connection: Connection) -> Counter[str]:
    """How many signed outcomes every request has."""
    return Counter(connection.scalars(select(adjustments.c.request_id)))

"""The gate: no token is committed, and none offered, that its request's hold does not cover.

A request starts on a hold for its input, the review fee if its tenant opted in, and the worst case
of its first tokens. Before a block is committed that the hold may not cover, it is raised, ahead by
as many tokens, within the request's `max_cost` and what the tenant's credit affords. So at every
committed moment the hold is at least the charge if the request stopped there.

How far a hold reaches is kept, from its placement on, so that most blocks need no pricing: only
that the hold still stands, which one query says of all requests of a batch. A request with a
`max_joules` is asked about at every block instead, for nobody knows beforehand what its tokens will
take.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from threading import Lock
from typing import Any

from sqlalchemy import Column, Connection, Select, bindparam, select

from billing import catalogue, review_caps
from billing.catalogue import TariffVersion
from billing.errors import (
    BudgetExhausted,
    HoldConflict,
    InsufficientCredit,
)
from billing.ledger import holds
from billing.ledger.holds import Hold, HoldState
from billing.quotes import check_ceiling, if_stopped, next_tokens, tokens_within, worst_case
from billing.tables import holds as holds_table
from metering.events import RequestSummary
from metering.prepared import Prepared
from metering.protocols import Cover
from metering.request_parameters import MAX_ENERGY
from metering.requests import AdmittedRequest
from metering.tables import requests, tenants

LOOKAHEAD_TOKENS = 64
NEARLY = 8  # a hold is raised when less than this part of the lookahead is sure to be covered
REACHES_MAX = 4096  # requests whose reach is kept; one that is forgotten is worked out again


@dataclass(frozen=True, slots=True)
class Reach:
    """A hold of this amount covers any output of up to so many tokens."""

    amount_nano: int
    review: bool  # whether the review fee is within it
    output_tokens: int
    is_utmost: bool = False  # more was wanted, and could not be had


def _standing(*columns: Column[str]) -> Select[*tuple[Any, ...]]:
    return (
        select(
            holds_table.c.request_id,
            holds_table.c.amount_nano,
            holds_table.c.ceiling_nano,
            holds_table.c.state,
            requests.c.max_tokens,
            requests.c.test_mode,
            tenants.c.review_opt_in,
            *columns,
        )
        .join(requests, requests.c.id == holds_table.c.request_id)
        .join(tenants, tenants.c.id == holds_table.c.tenant_id)
        .where(holds_table.c.request_id.in_(bindparam("request_ids", expanding=True)))
    )


# What decides whether a hold covers its request, and what else may end it.
_STANDING = Prepared(_standing(), listed="request_ids")
_LIMITS = Prepared(_standing(requests.c.parameters), listed="request_ids")


class HoldGate:
    """Implements `metering.protocols.BudgetGate`, and admission's half of the same rule.

    Keeps parsed tariff versions, which never change, and what it found holds to reach to, which
    it compares with the hold before it is relied on. May be used from any thread.
    """

    def __init__(self, lookahead_tokens: int = LOOKAHEAD_TOKENS) -> None:
        self._lookahead_tokens = lookahead_tokens
        self._versions: dict[str, TariffVersion] = {}
        self._reaches: dict[str, Reach] = {}  # the oldest first
        self._lock = Lock()

    def admit(
        self,
        connection: Connection,
        admitted: AdmittedRequest,
        *,
        expires_at_us: int,
        credit_nano: int | None = None,
        opted_in: bool | None = None,
    ) -> Hold:
        """Place the first hold of a request whose row is written; a test-mode one holds nothing.

        A caller that has locked the tenant says what it found: its credit, and whether it pays for
        reviews.
        Raises CostCeilingTooLow, InsufficientCredit or BudgetExhausted, in which case nothing was
        changed.
        """
        tariff = self._version(connection, admitted.tariff_version_id)
        if opted_in is None:
            opted_in = review_caps.opts_in(connection, admitted.tenant_id)
        amount, ceiling = 0, admitted.max_cost_nano
        reach: Reach | None = Reach(0, opted_in, admitted.max_tokens)
        if not admitted.test_mode:
            first = min(self._lookahead_tokens, admitted.max_tokens)
            amount = worst_case(tariff.document, admitted.input_tokens, first, review=opted_in)
            reach = Reach(amount, opted_in, first)
            if ceiling is not None and ceiling < amount:
                check_ceiling(
                    tariff.document, ceiling, admitted.input_tokens, first, review=opted_in
                )
                amount, reach = ceiling, None  # how far that goes, the first block asks
        hold = holds.place(
            connection,
            request_id=admitted.id,
            tenant_id=admitted.tenant_id,
            currency=tariff.currency,
            amount_nano=amount,
            ceiling_nano=ceiling,
            expires_at_us=expires_at_us,
            credit_nano=credit_nano,
        )
        if reach is not None and MAX_ENERGY not in admitted.parameters:
            self._keep(admitted.id, reach)
        return hold

    def reach(self, connection: Connection, request_ids: Collection[str]) -> dict[str, int]:
        """Up to how many output tokens each hold covers, whatever they turn out to be.

        Requests of which that isn't known, or whose hold no longer stands, are not in it.
        """
        found = {}
        for row in _STANDING.rows(connection, {"request_ids": list(request_ids)}):
            reach = self._reaches.get(row.request_id)
            if reach is not None and (
                row.test_mode
                or (
                    row.state == HoldState.PENDING
                    and row.amount_nano >= reach.amount_nano
                    and row.review_opt_in == reach.review
                )
            ):
                found[row.request_id] = reach.output_tokens
        return found

    def cover(self, connection: Connection, stopped_here: RequestSummary) -> Cover:
        """Ensure that the hold covers the charge if stopped here, and more where credit affords it.

        Works within the caller's transaction, and changes nothing unless the answer is COVERED. A
        hold that has expired covers nothing more: the answer is CREDIT. A hard budget is the
        tenant's own limit, as `max_cost` and `max_joules` are: the answer is MAX_COST.
        """
        request_id = stopped_here.request_id
        row = _LIMITS.row(connection, {"request_ids": [request_id]})
        if row is None:
            raise HoldConflict(f"{request_id} has no hold")
        max_uj = _max_energy_uj(row.parameters)
        shown_uj = stopped_here.energy.shown_uj
        if max_uj is not None and shown_uj is not None and shown_uj >= max_uj:
            return Cover.MAX_COST
        reach = self._reached(connection, stopped_here, row)
        if isinstance(reach, Cover):
            return reach
        if max_uj is None:
            self._keep(request_id, reach)
        return Cover.COVERED

    def _reached(
        self, connection: Connection, stopped_here: RequestSummary, row: Any
    ) -> Reach | Cover:
        """How far the hold reaches, raised if need be; or whose limit it met."""
        if row.test_mode:
            return Reach(0, row.review_opt_in, row.max_tokens)
        if row.state != HoldState.PENDING:
            return Cover.CREDIT
        request_id, review = stopped_here.request_id, row.review_opt_in
        tariff = self._version(connection, stopped_here.tariff_version_id).document
        needed = if_stopped(tariff, stopped_here, review=review)
        if row.ceiling_nano is not None and needed > row.ceiling_nano:
            return Cover.MAX_COST
        left = max(0, row.max_tokens - stopped_here.output_tokens)
        ahead = min(self._lookahead_tokens, left)
        sure = tokens_within(tariff, stopped_here, row.amount_nano, left, review=review)
        before = self._reaches.get(request_id)
        is_utmost = (
            before is not None and before.is_utmost and before.amount_nano == row.amount_nano
        )
        is_enough = sure >= min(ahead, self._lookahead_tokens // NEARLY)
        if needed <= row.amount_nano and (is_enough or is_utmost):
            so_far = stopped_here.output_tokens + sure
            return Reach(row.amount_nano, review, so_far, is_utmost)
        wanted = max(needed, next_tokens(tariff, stopped_here, ahead, review=review))
        most = wanted if row.ceiling_nano is None else min(wanted, row.ceiling_nano)
        try:
            hold = holds.extend(connection, request_id, most, at_least_nano=needed)
        except (InsufficientCredit, BudgetExhausted, HoldConflict) as error:  # or it expired now
            return Cover.MAX_COST if isinstance(error, BudgetExhausted) else Cover.CREDIT
        sure = tokens_within(tariff, stopped_here, hold.amount_nano, left, review=review)
        so_far = stopped_here.output_tokens + sure
        return Reach(hold.amount_nano, review, so_far, hold.amount_nano < wanted)

    def _keep(self, request_id: str, reach: Reach) -> None:
        with self._lock:
            self._reaches.pop(request_id, None)
            self._reaches[request_id] = reach
            if len(self._reaches) > REACHES_MAX:
                del self._reaches[next(iter(self._reaches))]

    def _version(self, connection: Connection, version_id: str) -> TariffVersion:
        known = self._versions.get(version_id)
        if known is None:
            known = self._versions[version_id] = catalogue.version(connection, version_id)
        return known


def _max_energy_uj(parameters: str) -> int | None:
    if MAX_ENERGY not in parameters:  # which spares reading a long schema
        return None
    found: int | None = json.loads(parameters).get(MAX_ENERGY)
    return found

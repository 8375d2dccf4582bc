"""What the recorder calls and the packages above implement."""

from __future__ import annotations

from typing import Protocol

import msgspec
from sqlalchemy import Connection

from metering.events import RequestSummary


class CommittedBlock(msgspec.Struct, frozen=True):
    """A block that is durable: what a stream may now show."""

    request_id: str
    block_index: int
    token_ids: tuple[int, ...]
    text: str  # the code points that became complete with this block
    pieces: tuple[bytes, ...]
    logprobs: tuple[float, ...]
    units_closed: int  # complete units so far
    geo_mean: str  # of the block, 4 places: exp of its mean log-probability
    joint_prob: str  # of the block, 4 places
    accepted_tokens: int
    drafted_depth: int
    energy_provisional_uj: int | None  # best current figure for the request so far


class Settler(Protocol):
    """Prices a finished request. Implemented by `billing.settlement`."""

    def settle(self, connection: Connection, summary: RequestSummary) -> None:
        """Rate, post, release the hold and write the receipt, within the caller's transaction.

        Called exactly once per request, in the transaction that makes its terminal event durable.
        """


class BudgetGate(Protocol):
    """Says whether a request may go on. Implemented by `billing.holds`."""

    def cover(self, connection: Connection, stopped_here: RequestSummary) -> bool:
        """Ensure the request's hold covers its charge if stopped here, extending it if needed.

        Changes the hold within the caller's transaction. False when neither the request's
        `max_cost` nor the tenant's credit affords it; nothing is changed then.
        """


class BlockSink(Protocol):
    """Hands durable facts to whoever waits for them. Called after commit, never before."""

    def deliver(self, block: CommittedBlock) -> None:
        """Offer a committed block to its stream; returns at once."""

    def finish(self, summary: RequestSummary) -> None:
        """Say that the request is settled and its receipt can be read; returns at once."""


class RequestCanceller(Protocol):
    """Tells the engine to stop a request: the half of `EngineClient` that the recorder needs."""

    def cancel(self, request_id: str) -> None:
        """Stop generating; the engine answers with a finish record. Idempotent."""

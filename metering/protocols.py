"""What the recorder calls and the packages above implement."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Protocol

import msgspec
from sqlalchemy import Connection

from metering.bodies import Likely
from metering.events import EnergySummary, RequestSummary


class CommittedBlock(msgspec.Struct, frozen=True):
    """A block that is durable: what a stream may now show."""

    request_id: str
    block_index: int
    token_ids: tuple[int, ...]
    text: str  # the code points that became complete with this block
    pieces: tuple[bytes, ...]
    logprobs_unats: tuple[int | None, ...]  # raw, micronats; null: not finite
    forced: tuple[int, ...]  # indexes of tokens that a grammar forced
    alternatives: tuple[tuple[Likely, ...], ...]  # the likeliest beside each token, if asked for
    units_closed: int  # complete units so far
    geo_mean: str | None  # of the block, 4 places: exp of its mean log-probability; null: no score
    joint_prob: str | None  # of the block, 4 places
    accepted_tokens: int
    drafted_depth: int


class Settler(Protocol):
    """Prices a finished request. Implemented by `billing.settlement`."""

    def settle(self, connection: Connection, summary: RequestSummary) -> None:
        """Rate, post, release the hold and write the receipt, within the caller's transaction.

        Called exactly once per request, in the transaction that makes its terminal event durable.
        """

    def settle_late(self, connection: Connection, request_id: str, energy: EnergySummary) -> None:
        """State what a settled request took, now that it is known; nothing is charged for it.

        Called at most once per request, for one that was settled before its energy was.
        """


class Cover(Enum):
    """Whether a hold covers a charge and, when it doesn't, whose limit it met.

    Only COVERED is true. A request cut by its own MAX_COST or `max_joules`, or by a hard budget of
    its tenant's, was ended by its tenant, one cut because CREDIT ran out by the operator: they
    price an open fragment differently.
    """

    COVERED = "covered"
    MAX_COST = "max_cost"
    CREDIT = "credit"

    def __bool__(self) -> bool:
        return self is Cover.COVERED


class BudgetGate(Protocol):
    """Says whether a request may go on. Implemented by `billing.gate`."""

    def reach(self, connection: Connection, request_ids: Collection[str]) -> Mapping[str, int]:
        """Up to how many output tokens each hold covers, whatever they turn out to be.

        As the holds are within the caller's transaction. What isn't named has to be asked for
        block by block, of `cover`. Changes nothing.
        """

    def cover(self, connection: Connection, stopped_here: RequestSummary) -> Cover:
        """Ensure the request's hold covers its charge if stopped here, extending it if needed.

        Changes the hold within the caller's transaction. MAX_COST or CREDIT when the request's
        `max_cost` or the tenant's credit does not afford it; nothing is changed then.
        """


class BlockSink(Protocol):
    """Hands durable facts to whoever waits for them. Called after commit, never before."""

    def shows_blocks(self, request_id: str) -> bool:
        """Whether anyone reads the request's blocks as they come; changes nothing."""

    def deliver(self, request_id: str, blocks: Sequence[CommittedBlock]) -> None:
        """Offer consecutive committed blocks of a request to its stream; returns at once."""

    def finish(self, summary: RequestSummary) -> None:
        """Say that the request is settled and its receipt can be read; returns at once."""

    def defer(self, request_id: str) -> None:
        """Say that it has ended and can't be settled for now: do not wait; returns at once."""


class RequestCanceller(Protocol):
    """Tells the engine to stop a request: the half of `EngineClient` that the recorder needs."""

    def cancel(self, request_id: str) -> None:
        """Stop generating; the engine answers with a finish record. Idempotent."""

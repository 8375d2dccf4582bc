"""A request as it stands in the database, for whoever may see it. Reading never bills."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Connection

from api.errors import NotFound
from api.inference.schemas import (
    AlternativeView,
    BlockView,
    ConfidenceView,
    DraftingView,
    GenerationView,
    ReviewView,
    TokenView,
    UsageView,
)
from billing import receipts, review_outcomes
from billing.money import format_nano
from billing.receipt_documents import ratio
from billing.review_outcomes import ReviewOutcome
from metering import queries
from metering.committed_blocks import replay
from metering.events import RequestSummary, UnitState
from metering.protocols import CommittedBlock
from metering.queries import RequestRow


def read(connection: Connection, tenant_id: str | None, request_id: str) -> GenerationView:
    """The request with its receipt, if it has one; raises NotFound across tenants too.

    A null `tenant_id` is an operator, who sees every tenant's.
    """
    row = queries.request(connection, tenant_id, request_id)
    if row is None:
        raise NotFound(f"no generation {request_id}")
    summary = queries.summary(connection, request_id)
    envelope = receipts.receipt(connection, row.tenant_id, request_id)
    document = envelope["receipt"] if envelope else None
    reviewed = review_outcomes.outcome(connection, request_id)
    shown = row.output if reviewed is None or not reviewed.withheld else None
    return GenerationView(
        id=request_id,
        object="generation",
        model=row.model,
        status=row.status,
        finish_reason=row.finish_reason,
        failure=queries.failure(connection, request_id) if row.status == "failed" else None,
        output=shown,
        usage=usage_view(summary) if summary else None,
        confidence=confidence_view(summary) if summary else None,
        drafting=drafting_view(summary) if summary else None,
        logprobs=None if shown is None else _logprobs(connection, row),
        cost=document["total"] if document else None,
        currency=document["currency"] if document else None,
        receipt=envelope,
        adjustments=receipts.adjustments(connection, request_id),
        review=None if reviewed is None else review_view(reviewed),
        seed=row.parameters.get("seed"),
        created_at=iso(row.started_at_us),
        ended_at=iso(row.ended_at_us) if row.ended_at_us is not None else None,
    )


def usage_view(summary: RequestSummary) -> UsageView:
    """Quantities of a finished request."""
    complete = sum(unit.state is UnitState.COMPLETE for unit in summary.units)
    return UsageView(
        input_tokens=summary.input_tokens,
        cached_input_tokens=summary.cached_input_tokens,
        output_tokens=summary.output_tokens,
        forced_tokens=summary.forced_tokens,
        complete_units=complete,
        fragment_units=len(summary.units) - complete,
        information_bits=millionths(summary.information_ubits),
        joules=millionths(summary.energy.shown_uj),
        energy_class=summary.energy.energy_class,
    )


def confidence_view(summary: RequestSummary) -> ConfidenceView | None:
    """The request's score, or null when there is none."""
    score = summary.confidence
    if score is None:
        return None
    return ConfidenceView(
        tokens=score.tokens,
        geo_mean=score.geo_mean,
        min_prob=score.min_prob,
        sum_logprob=score.sum_logprob,
        calibrated=score.calibrated,
        basis=score.basis,
        tier=score.tier,
        calibration=summary.calibration,
    )


def review_view(reviewed: ReviewOutcome) -> ReviewView:
    """What the tenant learns of a review."""
    return ReviewView(
        item_id=reviewed.item_id,
        reason=reviewed.reason,
        state=reviewed.state,
        delivery=reviewed.delivery,
        withheld=reviewed.withheld,
        verdict=reviewed.verdict,
        reasons=list(reviewed.reasons),
        corrected_output=reviewed.corrected_output,
        queued_at=iso(reviewed.queued_at_us),
        due_at=iso(reviewed.due_at_us),
        resolved_at=None if reviewed.resolved_at_us is None else iso(reviewed.resolved_at_us),
    )


def drafting_view(summary: RequestSummary) -> DraftingView:
    """How drafting went for this request."""
    counters = summary.drafting
    return DraftingView(
        steps=counters.steps,
        drafted_nodes=counters.drafted_nodes,
        verified_nodes=counters.verified_nodes,
        accepted_tokens=counters.accepted_tokens,
        draft_hit_rate=ratio(counters.accepted_tokens, counters.drafted_depth),
        mean_accepted_length=ratio(counters.emitted_tokens, counters.steps),
    )


def token_views(block: CommittedBlock) -> list[TokenView]:
    """The tokens of a block whose request asked for log-probabilities."""
    beside = block.alternatives or ((),) * len(block.pieces)
    forced = frozenset(block.forced)
    return [
        TokenView(
            bytes=list(piece),
            logprob=millionths(unats),
            forced=index in forced,
            top=[
                AlternativeView(list(other.piece), millionths(other.logprob_unats))
                for other in likely
            ],
        )
        for index, (piece, unats, likely) in enumerate(
            zip(block.pieces, block.logprobs_unats, beside, strict=True)
        )
    ]


def block_view(block: CommittedBlock, *, logprobs: bool) -> BlockView:
    """A committed block, as a stream shows it."""
    return BlockView(
        index=block.block_index,
        text=block.text,
        tokens=len(block.token_ids),
        joint_prob=block.joint_prob,
        geo_mean=block.geo_mean,
        units_closed=block.units_closed,
        accepted_tokens=block.accepted_tokens,
        drafted_depth=block.drafted_depth,
        logprobs=token_views(block) if logprobs else None,
    )


def millionths(value: int | None) -> str | None:
    """A count of millionths as a plain decimal string; null stays null."""
    return None if value is None else format_nano(value * 1000)


def iso(at_us: int) -> str:
    """Epoch microseconds as RFC 3339 in UTC."""
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat().replace("+00:00", "Z")


def _logprobs(connection: Connection, row: RequestRow) -> list[TokenView] | None:
    """What a request asked to see of its tokens; null if nothing."""
    if row.parameters.get("top_logprobs") is None:
        return None
    return [view for block in replay(connection, row.id) for view in token_views(block)]

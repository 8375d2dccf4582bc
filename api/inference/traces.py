"""How a request was answered, for whoever may see it: prompt, drafts, verification, decisions."""

from __future__ import annotations

from sqlalchemy import Connection

from api.errors import NotFound
from api.inference.generations import millionths
from api.inference.schemas import TraceBlockView, TraceTokenView, TraceView
from billing import review_outcomes
from metering import queries
from metering.committed_blocks import replay
from metering.queries import TraceBlock


def read(connection: Connection, tenant_id: str | None, request_id: str) -> TraceView:
    """The request's steps; raises NotFound across tenants too. A null tenant is an operator."""
    row = queries.request(connection, tenant_id, request_id)
    if row is None:
        raise NotFound(f"no generation {request_id}")
    summary = queries.summary(connection, request_id)
    reviewed = review_outcomes.outcome(connection, request_id)
    traced = queries.trace(connection, request_id)
    blocks = traced.blocks
    is_compacted = summary is not None and len(blocks) < summary.blocks
    # Until it has ended nobody knows whether the answer will be withheld.
    is_shown = row.output is not None and not (reviewed and reviewed.withheld)
    texts = {
        block.block_index: block.text
        for block in (replay(connection, request_id) if is_shown and blocks else ())
    }
    return TraceView(
        id=request_id,
        status=row.status,
        finish_reason=row.finish_reason,
        input_tokens=row.input_tokens,
        cached_input_tokens=None if is_compacted else traced.cached_prompt_tokens,
        first_block_us=blocks[0].ended_us if blocks else None,
        ended_us=None if row.ended_at_us is None else row.ended_at_us - row.started_at_us,
        blocks=None if is_compacted else [_view(each, texts.get(each.index)) for each in blocks],
    )


def _view(block: TraceBlock, text: str | None) -> TraceBlockView:
    return TraceBlockView(
        index=block.index,
        ended_us=block.ended_us,
        step_us=block.step_us,
        prefill_tokens=block.work.prefill_tokens,
        recomputed_tokens=block.work.recomputed_tokens,
        drafted_nodes=block.drafted_nodes,
        drafted_depth=block.drafted_depth,
        verified_nodes=block.work.verified_nodes,
        keys_read=block.work.kv_read_tokens,
        accepted_tokens=block.accepted_tokens,
        cached_tokens=block.cached_tokens,
        anchor=block.anchor,
        withheld_tokens=block.withheld_tokens,
        energy=block.energy,
        text=text,
        tokens=[
            TraceTokenView(
                millionths(token.logprob_unats), millionths(token.entropy_unats), token.forced
            )
            for token in block.tokens
        ],
    )

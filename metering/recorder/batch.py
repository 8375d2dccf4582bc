"""One batch of steps, worked out and written within one transaction.

Nothing of the recorder's state changes here but the requests' meters, which run ahead: a batch
whose transaction fails is taken back, thrown away and worked out again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlalchemy import Connection

from engine.records import FinishReason, FinishRecord, StepRecord, Work
from metering import bodies, clock, event_log, requests
from metering.bodies import BlockBody, BlockRun, UsageEvent
from metering.energy import Claim, PendingStep
from metering.errors import EventConflict
from metering.events import EndedBy, EnergySummary, EventKind, RequestStatus, RequestSummary
from metering.protocols import BudgetGate
from metering.recorder import counters
from metering.recorder.counters import Counts
from metering.recorder.endings import Withheld, short_of
from metering.recorder.live import LiveRequest, LiveRequests
from metering.request_meter import BlockEffect, RequestMeter

NO_WORK = Work()
NEVER = sys.maxsize


class RequestFault(Exception):
    """What went wrong with one request of a batch, so that the others need not share its fate."""

    def __init__(self, request_id: str, cause: Exception) -> None:
        super().__init__(f"{request_id}: {cause}")
        self.request_id = request_id
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a batch reads and never changes."""

    live: LiveRequests
    gate: BudgetGate
    vocab_size: int
    energy_so_far: Callable[[RequestMeter], EnergySummary | None]


class Said(NamedTuple):
    """A block, and which of the batch's steps said it."""

    place: int
    body: BlockBody


@dataclass(slots=True)
class Draft:
    """What a batch makes of one request, until it is durable."""

    live: LiveRequest
    meter: RequestMeter
    blocks_before: int  # that were durable
    withheld: Withheld | None = None
    uncharged_from: int = NEVER  # the first of the batch's steps that it doesn't pay for
    blocks: list[tuple[BlockBody, BlockEffect]] = field(default_factory=list)
    finish: FinishRecord | None = None
    charged_until_ns: int = -1
    replaced_tail: bool = False
    is_ahead: bool = False  # the request's own meter holds what isn't durable


class Batch:
    """Consecutive steps, on their way into the database.

    Whatever they say of one request is worked out at once: its blocks become one event.
    """

    def __init__(self, surroundings: Surroundings, steps: Sequence[StepRecord]) -> None:
        self._around = surroundings
        self._steps = steps
        self._monotonic_to_wall_us = clock.now_us() - clock.monotonic_ns() // 1000
        self.drafts: dict[str, Draft] = {}
        self.counts = Counts()
        self.pending: list[PendingStep] = []
        self._reach: dict[str, int] = {}  # output tokens that are covered without asking

    def write(self, connection: Connection, uncounted: Counts) -> None:
        """Work everything out and write it; `uncounted` are counts that an earlier batch owes.

        Raises RequestFault for what is one request's doing.
        """
        self.work_out(connection)
        self.store(connection, uncounted)

    def work_out(self, connection: Connection) -> None:
        """Fold the steps, and cut what is not covered; only the gate may write by this."""
        said = self._said()
        self._reach = dict(self._around.gate.reach(connection, said.keys())) if said else {}
        for request_id, blocks in said.items():
            self._request(connection, request_id, blocks)
        self._finish()

    def store(self, connection: Connection, uncounted: Counts) -> None:
        """Write what was worked out."""
        emitting = [draft for draft in self.drafts.values() if draft.blocks]
        try:
            event_log.append(connection, [self._event(draft) for draft in emitting])
        except EventConflict as conflict:
            raise RequestFault(conflict.event_id.rsplit("/", 2)[0], conflict) from conflict
        starting = [draft.live.admitted.id for draft in emitting if not draft.live.is_running]
        if starting:
            requests.mark_running(connection, starting)
        counters.add(connection, uncounted + self.counts)

    def take_back(self) -> None:
        """The transaction failed: the requests' meters hold again what is durable."""
        for draft in self.drafts.values():
            if draft.is_ahead:
                draft.live.take_back()

    def write_nothing(self) -> None:
        """Work the batch out without a database: every block of it is withheld already.

        Raises RuntimeError if one isn't.
        """
        for request_id, blocks in self._said().items():
            draft = self._draft(request_id)
            if draft is not None and draft.withheld is None:
                raise RuntimeError(f"blocks of {request_id} are neither stored nor withheld")
            self._count(draft, blocks)
        self._finish()

    def _said(self) -> dict[str, list[Said]]:
        """The batch's blocks by request, in the order in which they came."""
        said: dict[str, list[Said]] = {}
        vocab_size = self._around.vocab_size
        for place, step in enumerate(self._steps):
            works = {entry.request_id: entry.work for entry in step.work} if step.blocks else {}
            for block in step.blocks:
                work = works.get(block.request_id, NO_WORK)
                body = bodies.block_body(step, block, work, vocab_size)
                said.setdefault(block.request_id, []).append(Said(place, body))
        return said

    def _request(self, connection: Connection, request_id: str, blocks: Sequence[Said]) -> None:
        """Commit as much of a request's blocks as its hold covers."""
        draft = self._draft(request_id)
        if draft is not None and draft.withheld is None:
            try:
                for place, body in blocks:
                    if body.block_index < draft.meter.blocks:
                        self._compare(connection, draft, body)
                    elif not self._try(connection, draft, body):
                        self._cut(connection, draft, place, body)
                        break
            except Exception as error:
                raise RequestFault(request_id, error) from error
        self._count(draft, blocks)

    def _compare(self, connection: Connection, draft: Draft, body: BlockBody) -> None:
        """A block that was said before adds nothing; raises EventConflict if it was another."""
        stated = [each for each, _ in draft.blocks]
        if body.block_index < draft.blocks_before:
            stated = bodies.blocks(event_log.of_request(connection, body.request_id))
        if body not in stated:
            raise EventConflict(f"{body.request_id}/{EventKind.BLOCK.value}/{body.block_index}")

    def _cut(self, connection: Connection, draft: Draft, place: int, body: BlockBody) -> None:
        """Commit the longest part of a block that is covered; the request ends there."""
        for kept in range(len(body.token_ids) - 1, 0, -1):
            part = bodies.cut(body, kept, self._around.vocab_size)
            if self._try(connection, draft, part):
                self._show_tail(draft)
                draft.uncharged_from = place + 1
                return
        draft.uncharged_from = place + (not body.token_ids)  # nothing of nothing is all of it

    def _try(self, connection: Connection, draft: Draft, body: BlockBody) -> bool:
        """Commit this much of a block if the hold covers the request with it."""
        output_tokens = draft.meter.output_tokens + len(body.token_ids)
        if output_tokens <= self._reach.get(body.request_id, -1):
            draft.is_ahead = draft.is_ahead or draft.meter is draft.live.meter
            draft.blocks.append((body, draft.meter.fold_block(body)))
            return True
        meter = draft.meter.copy()
        effect = meter.fold_block(body)
        cover = self._around.gate.cover(connection, self._stopped_here(meter))
        if not cover:
            draft.withheld = draft.withheld or short_of(cover)
            return False
        self._reach |= self._around.gate.reach(connection, (body.request_id,))
        draft.meter = meter
        draft.blocks.append((body, effect))
        return True

    def _stopped_here(self, meter: RequestMeter) -> RequestSummary:
        """The request as if its budget ended it here, with the best figure for its energy."""
        end = meter.terminal(RequestStatus.COMPLETED, FinishReason.BUDGET, EndedBy.TENANT)
        return meter.summary(end, clock.now_us(), self._around.energy_so_far(meter))

    def _count(self, draft: Draft | None, blocks: Sequence[Said]) -> None:
        """Count what the engine said of a request, and what of it no event states."""
        tokens = sum(len(body.token_ids) for _, body in blocks)
        committed = 0 if draft is None else sum(len(body.token_ids) for body, _ in draft.blocks)
        counted = self.counts.of(blocks[0].body.engine_epoch)  # a request lives in one process
        counted.blocks += len(blocks)
        counted.tokens += tokens
        counted.withheld_tokens += tokens - committed
        if draft is None:
            self.counts.unknown_records += len(blocks)

    def _finish(self) -> None:
        """With all blocks worked out: who ended, and who pays for which step."""
        through: dict[str, int] = {}  # the last block that the engine said of each request
        for place, step in enumerate(self._steps):
            self.counts.of(step.engine_epoch).steps += 1
            for block in step.blocks:
                through[block.request_id] = block.block_index
            for finish in step.finishes:
                draft = self._draft(finish.request_id)
                if draft is None:
                    self.counts.unknown_records += 1
                elif draft.finish is None:
                    draft.finish = finish
                    self._show_tail(draft)
            self._claim(place, step, through)

    def _show_tail(self, draft: Draft) -> None:
        """With the last block of a batch known as the request's last, show what it cut through."""
        if not (draft.blocks and draft.meter.has_tail) or draft.replaced_tail:
            return
        body, effect = draft.blocks[-1]
        text = effect.text + draft.meter.replace_tail()
        draft.blocks[-1] = (body, effect._replace(text=text))
        draft.replaced_tail = True

    def _claim(self, place: int, step: StepRecord, through: dict[str, int]) -> None:
        works = {entry.request_id: entry.work for entry in step.work}
        leaders = {rider: entry.request_id for entry in step.work for rider in entry.shared_with}
        claims = []
        for request_id, work in (works | dict.fromkeys(leaders, NO_WORK)).items():
            draft = self._draft(request_id)
            charged, last = False, -1
            if draft is not None:
                charged = place < draft.uncharged_from
                last = max(through.get(request_id, -1), draft.blocks_before - 1)
                last = min(last, draft.meter.blocks - 1)
                if charged:
                    draft.charged_until_ns = step.end_ns
            claims.append(Claim(request_id, work, charged, last, leaders.get(request_id)))
        self.pending.append(PendingStep(step.start_ns, step.end_ns, claims))

    def _draft(self, request_id: str) -> Draft | None:
        """The batch's own view of a request; null for one that isn't live."""
        draft = self.drafts.get(request_id)
        if draft is None:
            live = self._around.live.get(request_id)
            if live is None:
                return None
            draft = self.drafts[request_id] = Draft(live, live.meter, live.meter.blocks)
            # Whatever comes after its end is as if withheld: the meter is closed.
            draft.withheld = live.withheld or (Withheld.FAULT if live.ending is not None else None)
            if draft.withheld is not None:
                draft.uncharged_from = 0
        return draft

    def _event(self, draft: Draft) -> UsageEvent:
        run = BlockRun(tuple(body for body, _ in draft.blocks))
        event_time_us = self._monotonic_to_wall_us + run.blocks[-1].end_ns // 1000
        return bodies.state(run, draft.live.admitted.tenant_id, event_time_us)

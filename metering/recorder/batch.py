"""One batch of steps, worked out and written within one transaction.

Nothing of the recorder's state changes here but the requests' meters, which run ahead: a batch
whose transaction fails is taken back, thrown away and worked out again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

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

Said: TypeAlias = tuple[int, BlockBody]  # which of the batch's steps said it, and what


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
    is_shown: Callable[[str], bool]  # whether a request's blocks are read as they come
    vocab_size: int
    energy_so_far: Callable[[RequestMeter], EnergySummary | None]


@dataclass(slots=True)
class Draft:
    """What a batch makes of one request, until it is durable."""

    live: LiveRequest
    meter: RequestMeter
    blocks_before: int  # that were durable
    is_shown: bool  # block by block, as they come
    withheld: Withheld | None = None
    uncharged_from: int = NEVER  # the first of the batch's steps that it doesn't pay for
    blocks: list[BlockBody] = field(default_factory=list)
    effects: list[BlockEffect] = field(default_factory=list)  # of each, where they are shown
    finish: FinishRecord | None = None
    charged_until_ns: int = -1
    replaced_tail: bool = False
    is_ahead: bool = False  # the request's own meter holds what isn't durable

    def fold(self, bodies: Sequence[BlockBody]) -> None:
        """Take blocks that are covered; several at once only where they are not shown."""
        # Before the fold, which may fail half-way.
        self.is_ahead = self.is_ahead or self.meter is self.live.meter
        self.take(self.meter, bodies, self.meter.fold_blocks(bodies))

    def take(self, meter: RequestMeter, bodies: Sequence[BlockBody], effect: BlockEffect) -> None:
        """Take blocks that `meter` was folded with; `effect` is of the only one, if shown."""
        self.meter = meter
        self.blocks += bodies
        if self.is_shown:
            self.effects.append(effect)


class Batch:
    """Consecutive steps, on their way into the database.

    Whatever they say of one request is worked out at once: its blocks become one event.
    """

    def __init__(self, surroundings: Surroundings, steps: Sequence[StepRecord]) -> None:
        self._around = surroundings
        self._steps = steps
        self._works = [_works(step) for step in steps]
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
        for place, (step, (works, _)) in enumerate(zip(self._steps, self._works, strict=True)):
            for block in step.blocks:
                work = works.get(block.request_id, NO_WORK)
                body = bodies.block_body(step, block, work, vocab_size)
                said.setdefault(block.request_id, []).append((place, body))
        return said

    def _request(self, connection: Connection, request_id: str, blocks: Sequence[Said]) -> None:
        """Commit as much of a request's blocks as its hold covers."""
        draft = self._draft(request_id)
        if draft is not None and draft.withheld is None:
            try:
                self._commit(connection, draft, blocks)
            except Exception as error:
                raise RequestFault(request_id, error) from error
        self._count(draft, blocks)

    def _take_covered(self, draft: Draft, blocks: Sequence[Said]) -> int:
        """Commit at once what comes first, is new and is covered for certain; how many blocks.

        Those of a request that is shown are committed one by one, each with what it adds.
        """
        if draft.is_shown:
            return 0
        covered: list[BlockBody] = []
        left = self._reach.get(draft.live.admitted.id, -1) - draft.meter.output_tokens
        for index, (_, body) in enumerate(blocks, start=draft.meter.blocks):
            left -= len(body.token_ids)
            if left < 0 or body.block_index != index:
                break
            covered.append(body)
        if covered:
            draft.fold(covered)
        return len(covered)

    def _commit(self, connection: Connection, draft: Draft, blocks: Sequence[Said]) -> None:
        at = 0
        while at < len(blocks):
            covered = self._take_covered(draft, blocks[at:])
            at += covered
            if covered:
                continue
            place, body = blocks[at]
            if body.block_index < draft.meter.blocks:
                self._compare(connection, draft, body)
            elif not self._try(connection, draft, body):
                self._cut(connection, draft, place, body)
                break
            at += 1

    def _compare(self, connection: Connection, draft: Draft, body: BlockBody) -> None:
        """A block that was said before adds nothing; raises EventConflict if it was another."""
        stated = draft.blocks
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
            draft.fold((body,))
            return True
        meter = draft.meter.copy()
        effect = meter.fold_block(body)
        cover = self._around.gate.cover(connection, self._stopped_here(meter))
        if not cover:
            draft.withheld = draft.withheld or short_of(cover)
            return False
        self._reach |= self._around.gate.reach(connection, (body.request_id,))
        draft.take(meter, (body,), effect)
        return True

    def _stopped_here(self, meter: RequestMeter) -> RequestSummary:
        """The request as if its budget ended it here, with the best figure for its energy."""
        end = meter.terminal(RequestStatus.COMPLETED, FinishReason.BUDGET, EndedBy.TENANT)
        return meter.summary(end, clock.now_us(), self._around.energy_so_far(meter))

    def _count(self, draft: Draft | None, blocks: Sequence[Said]) -> None:
        """Count what the engine said of a request, and what of it no event states."""
        tokens = sum(len(body.token_ids) for _, body in blocks)
        committed = 0 if draft is None else sum(len(body.token_ids) for body in draft.blocks)
        counted = self.counts.of(blocks[0][1].engine_epoch)  # a request lives in one process
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
        text = draft.meter.replace_tail()
        if draft.effects:
            last = draft.effects[-1]
            draft.effects[-1] = last._replace(text=last.text + text)
        draft.replaced_tail = True

    def _claim(self, place: int, step: StepRecord, through: dict[str, int]) -> None:
        works, leaders = self._works[place]
        claims = []
        for request_id, work in works.items():
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
            is_shown = self._around.is_shown(request_id)
            draft = Draft(live, live.meter, live.meter.blocks, is_shown)
            self.drafts[request_id] = draft
            # Whatever comes after its end is as if withheld: the meter is closed.
            draft.withheld = live.withheld or (Withheld.FAULT if live.ending is not None else None)
            if draft.withheld is not None:
                draft.uncharged_from = 0
        return draft

    def _event(self, draft: Draft) -> UsageEvent:
        run = BlockRun(tuple(draft.blocks))
        event_time_us = self._monotonic_to_wall_us + run.blocks[-1].end_ns // 1000
        return bodies.state(run, draft.live.admitted.tenant_id, event_time_us)


def _works(step: StepRecord) -> tuple[dict[str, Work], dict[str, str]]:
    """What each request did in a step, and with whose work those rode that did none."""
    works = {entry.request_id: entry.work for entry in step.work}
    leaders = {rider: entry.request_id for entry in step.work for rider in entry.shared_with}
    return (works | dict.fromkeys(leaders, NO_WORK) if leaders else works), leaders

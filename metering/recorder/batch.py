"""One batch of steps, worked out and written within one transaction.

Nothing of the recorder's state changes here but the requests' meters, which run ahead: a batch
whose transaction fails is taken back, thrown away and worked out again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from engine.records import BlockRecord, FinishReason, FinishRecord, StepRecord, Work
from metering import bodies, clock, event_log, requests
from metering.bodies import BlockBody, UsageEvent
from metering.energy import Claim, PendingStep
from metering.errors import EventConflict
from metering.events import EndedBy, EnergySummary, RequestStatus, RequestSummary
from metering.protocols import BudgetGate, Cover
from metering.recorder import counters
from metering.recorder.counters import Counts
from metering.recorder.endings import Withheld, short_of
from metering.recorder.live import LiveRequest, LiveRequests
from metering.request_meter import BlockEffect, RequestMeter

NO_WORK = Work()


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


@dataclass(slots=True)
class Draft:
    """What a batch makes of one request, until it is durable."""

    live: LiveRequest
    meter: RequestMeter
    blocks: list[tuple[BlockBody, BlockEffect]] = field(default_factory=list)
    withheld: Withheld | None = None
    finish: FinishRecord | None = None
    charged_until_ns: int = -1
    replaced_tail: bool = False
    is_ahead: bool = False  # the request's own meter holds what isn't durable


class Batch:
    """Consecutive steps, on their way into the database."""

    def __init__(self, surroundings: Surroundings, steps: Sequence[StepRecord]) -> None:
        self._around = surroundings
        self._steps = steps
        self._events: list[UsageEvent] = []
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
        emitting = {block.request_id for step in self._steps for block in step.blocks}
        self._reach = dict(self._around.gate.reach(connection, emitting)) if emitting else {}
        for step in self._steps:
            self._step(connection, step)

    def store(self, connection: Connection, uncounted: Counts) -> None:
        """Write what was worked out."""
        try:
            event_log.append(connection, self._events)
        except EventConflict as conflict:
            raise RequestFault(conflict.event_id.rsplit("/", 2)[0], conflict) from conflict
        starting = [
            request_id
            for request_id, draft in self.drafts.items()
            if draft.blocks and not draft.live.is_running
        ]
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
        for step in self._steps:
            self._step(None, step)

    def _step(self, connection: Connection | None, step: StepRecord) -> None:
        works = {entry.request_id: entry.work for entry in step.work}
        leaders = {rider: entry.request_id for entry in step.work for rider in entry.shared_with}
        withheld_before = {
            request_id
            for request_id in (*works, *leaders)
            if (draft := self._draft(request_id)) is None or draft.withheld is not None
        }
        counted = self.counts.of(step.engine_epoch)
        counted.steps += 1
        emptied = set()
        for block in step.blocks:
            counted.blocks += 1
            counted.tokens += len(block.token_ids)
            body = bodies.block_body(
                step, block, works.get(block.request_id, NO_WORK), self._around.vocab_size
            )
            committed = self._block(connection, block, body)
            counted.withheld_tokens += len(block.token_ids) - committed
            if block.token_ids and not committed:
                emptied.add(block.request_id)
        for finish in step.finishes:
            draft = self._draft(finish.request_id)
            if draft is None:
                self.counts.unknown_records += 1
            elif draft.finish is None:
                draft.finish = finish
                self._show_tail(draft)
        self._claim(step, works, leaders, withheld_before | emptied)

    def _block(self, connection: Connection | None, block: BlockRecord, body: BlockBody) -> int:
        """Commit as much of a block as its hold covers; returns the number of tokens."""
        draft = self._draft(block.request_id)
        if draft is None:
            self.counts.unknown_records += 1
            return 0
        if draft.withheld is not None:
            return 0
        if connection is None:
            raise RuntimeError(f"a block of {block.request_id} is neither stored nor withheld")
        if block.block_index < draft.meter.blocks:
            # Said before: the log finds out whether it said the same, and nothing is added.
            self._events.append(self._event(draft, body))
            return 0
        try:
            return self._commit(connection, draft, body)
        except RequestFault:
            raise
        except Exception as error:
            raise RequestFault(block.request_id, error) from error

    def _commit(self, connection: Connection, draft: Draft, body: BlockBody) -> int:
        """Commit a block, or the longest part of it that is covered, which ends the request."""
        tokens = len(body.token_ids)
        cover = self._try(connection, draft, body)
        if cover is Cover.COVERED:
            return tokens
        draft.withheld = short_of(cover)
        for kept in range(tokens - 1, 0, -1):
            part = bodies.cut(body, kept, self._around.vocab_size)
            if self._try(connection, draft, part):
                self._show_tail(draft)
                return kept
        return 0

    def _try(self, connection: Connection, draft: Draft, body: BlockBody) -> Cover:
        """Commit this much of a block if the hold covers the request with it."""
        output_tokens = draft.meter.drafting.emitted_tokens + len(body.token_ids)
        reaches = output_tokens <= self._reach.get(body.request_id, -1)
        draft.is_ahead = draft.is_ahead or (reaches and draft.meter is draft.live.meter)
        meter = draft.meter if reaches else draft.meter.copy()
        effect = meter.fold_block(body)
        cover = Cover.COVERED
        if not reaches:
            cover = self._around.gate.cover(connection, self._stopped_here(meter))
        if cover and not reaches:
            self._reach |= self._around.gate.reach(connection, (body.request_id,))
        if cover:
            draft.meter = meter
            draft.blocks.append((body, effect))
            self._events.append(self._event(draft, body))
        return cover

    def _stopped_here(self, meter: RequestMeter) -> RequestSummary:
        """The request as if its budget ended it here, with the best figure for its energy."""
        end = meter.terminal(RequestStatus.COMPLETED, FinishReason.BUDGET, EndedBy.TENANT)
        return meter.summary(end, clock.now_us(), self._around.energy_so_far(meter))

    def _show_tail(self, draft: Draft) -> None:
        """With the last block of a batch known as the request's last, show what it cut through."""
        if not (draft.blocks and draft.meter.has_tail) or draft.replaced_tail:
            return
        body, effect = draft.blocks[-1]
        text = effect.text + draft.meter.replace_tail()
        draft.blocks[-1] = (body, effect._replace(text=text))
        draft.replaced_tail = True

    def _claim(
        self,
        step: StepRecord,
        works: dict[str, Work],
        leaders: dict[str, str],
        uncharged: set[str],
    ) -> None:
        claims = []
        for request_id, work in (works | dict.fromkeys(leaders, NO_WORK)).items():
            draft = self._draft(request_id)
            charged = draft is not None and request_id not in uncharged
            through = -1 if draft is None else draft.meter.blocks - 1
            claims.append(Claim(request_id, work, charged, through, leaders.get(request_id)))
            if draft is not None and charged:
                draft.charged_until_ns = step.end_ns
        self.pending.append(PendingStep(step.start_ns, step.end_ns, claims))

    def _draft(self, request_id: str) -> Draft | None:
        """The batch's own view of a request; null for one that isn't live."""
        draft = self.drafts.get(request_id)
        if draft is None:
            live = self._around.live.get(request_id)
            if live is None:
                return None
            # Whatever comes after its end is as if withheld: the meter is closed.
            withheld = live.withheld or (Withheld.FAULT if live.ending is not None else None)
            draft = self.drafts[request_id] = Draft(live, live.meter, withheld=withheld)
        return draft

    def _event(self, draft: Draft, body: BlockBody) -> UsageEvent:
        event_time_us = self._monotonic_to_wall_us + body.end_ns // 1000
        return bodies.state(body, draft.live.admitted.tenant_id, event_time_us)

"""The decode loop: every call of `step` is one forward pass, from plan to commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import structlog
import torch
from torch import Tensor

from engine.cache.experts import ExpertCache
from engine.cache.page_table import PageTable
from engine.cache.pages import PageLeak, PagePool
from engine.config import EngineConfig
from engine.draft.drafter import Draft, Drafter
from engine.draft.foresight import Foresight
from engine.errors import EngineOverloaded, InvalidRequest
from engine.grammar.grammars import GrammarFailed
from engine.graph.acceptance import clip
from engine.loop.cost import StepCost
from engine.loop.degradation import Window
from engine.loop.emission import Emission
from engine.loop.flights import Flight, Flights, Rider, identity
from engine.loop.outcome import Outcome
from engine.loop.proposing import Proposed, Proposer
from engine.loop.protocols import StepDecoder, Vocabulary
from engine.loop.rows import Part, parts_of, step_rows
from engine.loop.shaping import Shaping
from engine.loop.tally import Tally
from engine.loop.verification import LogitsProbe, verify
from engine.model.statistics import RawStatistics
from engine.processors import LogitsProcessor, ProcessorFailed, runs_undrafted
from engine.records import (
    DraftCounters,
    EngineStats,
    FinishReason,
    RequestWork,
    StepRecord,
    Work,
)
from engine.requests import GenerationRequest
from engine.scheduler.admission import Limits
from engine.scheduler.plan import Turn
from engine.scheduler.scheduler import Scheduler
from engine.scheduler.sequence import Sequence as LiveSequence

log = structlog.get_logger(__name__)

# Failures in our own wording, which may be shown; any other could hold others' data.
KNOWN = (ProcessorFailed, GrammarFailed, ArithmeticError)

PAGE_SIZE = 16


class DecodeLoop:
    """Runs requests on one decoder. Not thread-safe: one thread calls everything.

    A request leaves it with exactly one finish record, in the record of some step.
    """

    def __init__(
        self,
        decoder: StepDecoder,
        vocabulary: Vocabulary,
        limits: Limits,
        config: EngineConfig,
        *,
        engine_epoch: str = "local",
        cost: StepCost | None = None,
        foresight: Foresight | None = None,
        probe: LogitsProbe | None = None,
        on_failure: Callable[[str, Exception], None] | None = None,
        experts: ExpertCache[Any] | None = None,
    ) -> None:
        """`on_failure` hears why a request ended as ERROR; without it, the log does.

        `experts` are the decoder's, where it has some: what they count is in the statistics.
        """
        self.limits = limits
        self.pool = PagePool(decoder.storage.slots // PAGE_SIZE, PAGE_SIZE)
        # What is taken must fit alone, or it would preempt itself for ever.
        assert limits.kv_tokens <= self.pool.page_count * PAGE_SIZE
        self.drafter = Drafter(config, foresight)
        self.scheduler = Scheduler(config, self.pool)
        self._tally = Tally()
        self._decoder = decoder
        self._vocabulary = vocabulary
        self._config = config
        self._engine_epoch = engine_epoch
        self._probe = probe
        self._experts = experts
        self._on_failure = on_failure or _log_failure
        self._cost = cost or StepCost()
        self._profiled = cost.curve if cost else ()
        self._flights = Flights()
        self._proposer = Proposer(config, self.drafter, self.scheduler, self._flights, self._cost)
        self._arrivals = 0
        self._step_index = 0

    @property
    def counters(self) -> DraftCounters:
        """Drafting totals of all blocks so far but those that followed another request's."""
        return self._tally.counters

    @property
    def busy(self) -> bool:
        """Whether any request is live, so that `step` has something to do."""
        return bool(self._flights.riders)

    def submit(
        self, request: GenerationRequest, processors: Sequence[LogitsProcessor] = ()
    ) -> None:
        """Queue a request. Raises InvalidRequest, PromptTooLong or EngineOverloaded."""
        self.limits.check(request)
        flights = self._flights
        if flights.rider(request.request_id):
            raise InvalidRequest(f"request {request.request_id} is live already", "request_id")
        if flights.riders >= self._config.max_live:
            raise EngineOverloaded(f"{flights.riders} requests are running or waiting already")
        shaping = Shaping.of(request, self.limits)
        vocabulary = self._vocabulary
        rider = Rider(request, Emission(request, vocabulary.piece, vocabulary.eos_ids))
        same = identity(request, processors) if self._config.single_flight else None
        if flights.join(same, rider):
            return
        sequence = LiveSequence(request, PageTable(self.pool, request.tenant_id), self._arrivals)
        self.scheduler.submit(sequence)
        self._arrivals += 1
        may_draft = self._config.draft and request.draft and not runs_undrafted(processors)
        flights.add(Flight(sequence, [rider], tuple(processors), may_draft, same, shaping))

    def cancel(self, request_id: str) -> None:
        """End a request at the next step. Does nothing if it isn't live."""
        if rider := self._flights.rider(request_id):
            rider.cancelled = True

    def step(self) -> StepRecord | None:
        """Run one step: end what is over, plan, draft, verify, commit. Null if nothing is live."""
        if not self.busy:
            return None
        start_ns = time.monotonic_ns()
        outcome = Outcome()
        self._end_the_overdue(start_ns, outcome)
        plan = self.scheduler.plan()
        self._move(plan.copies)
        if plan.turns:
            proposed = self._proposer.propose(plan, self._step_index)
            spent_ms = (time.monotonic_ns() - start_ns) / 1e6
            parts = parts_of(plan, proposed.trees, proposed.held)
            self._compute(parts, proposed, outcome, spent_ms)
        for flight in list(self._flights.unheard):  # somebody joined it, and it had no part
            self._speak(flight, outcome, computed=False)
        record = StepRecord(
            engine_epoch=self._engine_epoch,
            step_index=self._step_index,
            start_ns=start_ns,
            end_ns=time.monotonic_ns(),
            work=tuple(outcome.work),
            blocks=tuple(outcome.blocks),
            finishes=tuple(outcome.finishes),
        )
        self._step_index += 1
        self._tally.take(record)
        return record

    def abandon(self, reason: FinishReason, detail: str | None = None) -> StepRecord:
        """End everything without computing, and return the record that says so.

        Touches neither pages nor queues, which a failure may have left in any state: the loop can't
        be used afterwards.
        """
        now_ns = time.monotonic_ns()
        riders = self._flights.clear()
        finishes = tuple(rider.emission.finish(reason, detail) for rider in riders)
        return StepRecord(
            engine_epoch=self._engine_epoch,
            step_index=self._step_index,
            start_ns=now_ns,
            end_ns=now_ns,
            finishes=finishes,
        )

    def check(self) -> None:
        """Raise PageLeak unless the books of pages and prefixes balance; for when it is idle."""
        self.pool.check()
        if not self.busy and self.pool.used:
            raise PageLeak(f"{self.pool.used} pages are used, and nothing runs")

    def stats(self) -> EngineStats:
        """Return a snapshot of queues, pages and counters."""
        degradation = self._proposer.degradation
        judged = degradation.judged
        return EngineStats(
            running=self.scheduler.running,
            waiting=self.scheduler.waiting,
            draft_enabled=self._config.draft and degradation.drafting,
            counters=self.counters,
            pages_free=self.pool.free,
            pages_used=self.pool.used,
            pages_cached=self.pool.cached,
            draft_cache_tokens=self.drafter.shared.tokens,
            emitted_tokens_per_s=self._tally.tokens_per_s,
            following=self._flights.following,
            caches=self._tally.caches_of(self.pool, self.drafter.shared, self._experts),
            draft_state=degradation.state.value,
            draft_alert=degradation.alert,
            window_hit_rate=judged.hit_rate if judged else None,
            window_speedup=judged.speedup if judged else None,
            step_cost_ms=self._profiled,
        )

    def _end_the_overdue(self, now_ns: int, outcome: Outcome) -> None:
        for rider, reason in self._flights.overdue(now_ns):
            self._finish(rider, reason, outcome)
        for flight in list(self._flights.unheard):
            for rider in list(flight.riders):
                if rider.ended:  # it joined when all that it wants had been drawn
                    self._tell(rider, outcome, computed=False, follows=True)

    def _flight(self, turn: Turn) -> Flight:
        flight = self._flights.of(turn.sequence)
        assert flight is not None
        return flight

    def _compute(
        self,
        parts: list[Part],
        proposed: Proposed,
        outcome: Outcome,
        spent_ms: float,
    ) -> None:
        """Run the verifier over all parts, then commit each; a failure ends whom it concerns.

        `spent_ms` is what planning and drafting took.
        """
        outcome.work += [self._flight(part.turn).work(part.work) for part in parts]
        rows = step_rows(parts)
        began = time.perf_counter()
        try:
            raw = self._decoder.forward(rows)
            statistics = self._decoder.statistics(raw)  # before the logits leave their device
            logits = raw.cpu()
        except Exception as error:  # noqa: BLE001 -- whatever it is, nobody may be left hanging
            for part in parts:
                self._fail(part.turn, error, outcome)
            return
        first = 0
        for part in parts:
            last = first + part.nodes + 1 if part.tree else first
            own = (logits[first:last], statistics[first:last])
            first = last
            try:
                self._commit(part, proposed.drafts.get(part.turn.sequence), own, outcome)
            except Exception as error:  # noqa: BLE001 -- one request's failure is not the others'
                self._fail(part.turn, error, outcome)
        self._move(outcome.moves)
        verify_ms = (time.perf_counter() - began) * 1e3
        if len(rows.logit_rows) == len(rows.token_ids):  # prefill has no head to pay for
            self._cost.observe(len(rows.token_ids), verify_ms)
        if all(part.tree and part.turn.rows == 1 for part in parts):  # nothing but decoding
            self._proposer.learn(
                proposed, len(parts), outcome.drawn, outcome.drafted, spent_ms + verify_ms
            )

    def _move(self, moves: Sequence[tuple[int, int]]) -> None:
        """Copy keys and values between slots, all at once."""
        if moves:
            with torch.inference_mode():  # as the storage was written
                src_slots, dst_slots = np.array(moves, np.int64).T.copy()
                self._decoder.storage.move(torch.from_numpy(src_slots), torch.from_numpy(dst_slots))

    def _commit(
        self,
        part: Part,
        draft: Draft | None,
        verifier: tuple[Tensor, list[RawStatistics]],
        outcome: Outcome,
    ) -> None:
        """Take over one request's part of a step: its tokens, its keys, its block, its end."""
        sequence = part.turn.sequence
        flight = self._flight(part.turn)
        if part.tree is None:
            sequence.advance(sequence.computed + part.turn.rows)
            return
        verified = verify(
            sequence.request,
            sequence.tokens,
            part.tree,
            *verifier,
            hear=flight.take,
            processors=flight.processors,
            shaping=flight.shaping,
            probe=self._probe,
        )
        walked, leader = verified.walked, flight.leader
        root = len(sequence.tokens) - 1
        # The accepted path's keys lie where its nodes were scored: close the ranks.
        slots = sequence.table.slots(root, root + len(part.tree))
        outcome.moves += [
            (int(slots[node]), int(slots[depth]))
            for depth, node in enumerate(walked.nodes)
            if node != depth
        ]
        sequence.advance(root + len(walked.nodes), walked.tokens)
        heard = walked.first(leader.emission.uncounted)
        clipped = clip(part.tree, heard, ended=leader.ended)
        leader.emission.count(clipped, len(part.tree))
        outcome.drawn += len(walked.tokens)
        if draft:
            outcome.drafted.add(Window(1, clipped.depth, heard.accepted))
        if draft and flight.session and self._proposer.degradation.drafting:
            flight.session.observe(draft, walked, verified.entropies)
            flight.tell(drafted=True)
        self._speak(flight, outcome)

    def _speak(self, flight: Flight, outcome: Outcome, *, computed: bool = True) -> None:
        """Tell every rider what was decided, and end those whose text has ended."""
        self._flights.unheard.pop(flight, None)
        first, *others = flight.riders
        self._tell(first, outcome, computed=computed)
        for rider in others:
            self._tell(rider, outcome, computed=computed, follows=True)

    def _tell(
        self, rider: Rider, outcome: Outcome, *, computed: bool, follows: bool = False
    ) -> None:
        prompt_length = len(rider.request.prompt_ids)
        found = prompt_length if follows else rider.flight.sequence.found
        if block := rider.emission.block(found):
            outcome.blocks.append(block)
            if not computed:  # a block has its work, be it none: what it took is known then
                outcome.work.append(RequestWork(block.request_id, Work()))
            if block.block_index == 0:
                self._tally.begun(prompt_length)
        if rider.emission.reason is not None:
            self._finish(rider, rider.emission.reason, outcome)

    def _fail(self, turn: Turn, error: Exception, outcome: Outcome) -> None:
        """End all who ride on a sequence that failed: their tokens would have been the same."""
        flight = self._flights.of(turn.sequence)
        if flight is None:
            return
        detail = str(error) if isinstance(error, KNOWN) else "the engine failed in a decoding step"
        for rider in list(flight.riders):
            self._on_failure(rider.request.request_id, error)
            self._finish(rider, FinishReason.ERROR, outcome, detail)

    def _finish(
        self, rider: Rider, reason: FinishReason, outcome: Outcome, detail: str | None = None
    ) -> None:
        flight = rider.flight
        if self._flights.leave(rider):
            self.scheduler.remove(flight.sequence)
            if flight.may_draft and self._proposer.degradation.drafting:
                flight.told_session(self.drafter)  # others may say the same
        outcome.finishes.append(rider.emission.finish(reason, detail))


def _log_failure(request_id: str, error: Exception) -> None:
    if isinstance(error, KNOWN):
        log.warning("request.failed", request_id=request_id, reason=str(error))
    else:
        log.error("request.failed", request_id=request_id, exc_info=error)

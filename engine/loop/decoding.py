"""The decode loop: every call of `step` is one forward pass, from plan to commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import structlog
import torch
from torch import Tensor

from engine.cache.page_table import PageTable
from engine.cache.pages import PagePool
from engine.config import EngineConfig
from engine.draft.drafter import Draft, Drafter, DraftSession
from engine.draft.foresight import Foresight, Outlook, Prospect
from engine.errors import InvalidRequest
from engine.grammar.grammars import GrammarFailed
from engine.graph.acceptance import clip
from engine.graph.tree import bare
from engine.loop.cost import StepCost
from engine.loop.degradation import Degradation, Window
from engine.loop.emission import Emission
from engine.loop.live import Live, Outcome
from engine.loop.protocols import StepDecoder, Vocabulary
from engine.loop.rows import Part, step_rows
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
)
from engine.requests import GenerationRequest
from engine.scheduler.admission import Limits
from engine.scheduler.plan import Plan, Turn
from engine.scheduler.scheduler import Scheduler
from engine.scheduler.sequence import Sequence as LiveSequence

log = structlog.get_logger(__name__)

PAGE_SIZE = 16
_RECENT = 32  # tokens of context shown to the draft layer


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
    ) -> None:
        """`on_failure` hears why a request ended as ERROR; without it, the log does."""
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
        self._on_failure = on_failure or _log_failure
        self._cost = cost or StepCost()
        self._degradation = Degradation(config.degrade_policy)
        self._live: dict[str, Live] = {}
        self._arrivals = 0
        self._step_index = 0

    @property
    def counters(self) -> DraftCounters:
        """Drafting totals of all requests so far."""
        return self._tally.counters

    @property
    def busy(self) -> bool:
        """Whether any request is live, so that `step` has something to do."""
        return bool(self._live)

    def submit(
        self, request: GenerationRequest, processors: Sequence[LogitsProcessor] = ()
    ) -> None:
        """Queue a request. Raises InvalidRequest, PromptTooLong or EngineOverloaded."""
        self.limits.check(request)
        if request.request_id in self._live:
            raise InvalidRequest(f"request {request.request_id} is live already", "request_id")
        shaping = Shaping.of(request, self.limits)
        sequence = LiveSequence(request, PageTable(self.pool, request.tenant_id), self._arrivals)
        self.scheduler.submit(sequence)
        self._arrivals += 1
        vocabulary = self._vocabulary
        self._live[request.request_id] = Live(
            sequence,
            Emission(request, vocabulary.piece, vocabulary.eos_ids),
            tuple(processors),
            may_draft=self._config.draft and request.draft and not runs_undrafted(processors),
            shaping=shaping,
        )

    def cancel(self, request_id: str) -> None:
        """End a request at the next step. Does nothing if it isn't live."""
        if live := self._live.get(request_id):
            live.cancelled = True

    def step(self) -> StepRecord | None:
        """Run one step: end what is over, plan, draft, verify, commit. Null if nothing is live."""
        if not self._live:
            return None
        start_ns = time.monotonic_ns()
        outcome = Outcome()
        self._end_the_overdue(start_ns, outcome)
        plan = self.scheduler.plan()
        if plan.turns:
            drafts = self._draft(plan)
            spent_ms = (time.monotonic_ns() - start_ns) / 1e6
            self._compute(self._parts(plan, drafts), drafts, outcome, spent_ms)
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
        finishes = tuple(live.emission.finish(reason, detail) for live in self._live.values())
        self._live.clear()
        return StepRecord(
            engine_epoch=self._engine_epoch,
            step_index=self._step_index,
            start_ns=now_ns,
            end_ns=now_ns,
            finishes=finishes,
        )

    def stats(self) -> EngineStats:
        """Return a snapshot of queues, pages and counters."""
        degradation = self._degradation
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
            draft_state=degradation.state.value,
            draft_alert=degradation.alert,
            window_hit_rate=judged.hit_rate if judged else None,
            window_speedup=judged.speedup if judged else None,
            step_cost_ms=self._cost.curve,
        )

    def _end_the_overdue(self, now_ns: int, outcome: Outcome) -> None:
        for live in list(self._live.values()):
            deadline_ns = live.sequence.request.deadline_ns
            if live.cancelled:
                self._finish(live, FinishReason.CANCELLED, outcome)
            elif deadline_ns is not None and now_ns >= deadline_ns:
                self._finish(live, FinishReason.DEADLINE, outcome)

    def _draft(self, plan: Plan) -> dict[LiveSequence, Draft]:
        """Draft for up to `verifier_batch_size` requests, as far as it pays and pages allow."""
        rows, spare = sum(turn.rows for turn in plan.turns), plan.spare_rows
        draws = sum(turn.draws for turn in plan.turns)
        most = min(self._config.node_budget - 1, spare)
        if not (self._config.draft and self._degradation.drafting):
            return {}
        if not self._cost.nodes_worth(rows, draws, [1.0] * most):  # not even certain ones
            return {}
        least = self._cost.least_probability(rows, draws, most)
        offers: list[tuple[Turn, Draft]] = []
        outlooks = self._outlooks(plan)
        for turn in plan.drafters():
            if len(offers) == self._config.verifier_batch_size:
                break
            sequence, live = turn.sequence, self._live[turn.sequence.request_id]
            if not live.may_draft:
                continue
            sequence.drafted_at = self._step_index
            if draft := self._session(live).propose(
                sequence.tokens[-_RECENT:],
                depth_limit=sequence.remaining - 1,
                node_budget=most + 1,
                least_probability=least,
                certain=live.shaping.certain() if live.shaping else (),
                outlooks=outlooks.get(sequence, ()),
            ):
                offers.append((turn, draft))
        trees = [draft.tree for _, draft in offers]
        drafts: dict[LiveSequence, Draft] = {}
        for index, count in self._cost.chosen_nodes(rows, draws, trees, spare).items():
            turn, draft = offers[index]
            if granted := self.scheduler.grant(turn, count):
                drafts[turn.sequence] = draft.pruned(granted + 1)
        return drafts

    def _outlooks(self, plan: Plan) -> dict[LiveSequence, list[Outlook]]:
        """Ask the learned sources about the texts that may be drafted on, all at once."""
        able = [turn for turn in plan.drafters() if self._live[turn.sequence.request_id].may_draft]
        chosen = able[: self._config.verifier_batch_size if plan.spare_rows else 0]
        prospects = []
        for turn in chosen:
            tokens, root = turn.sequence.tokens, turn.sequence.computed
            window = turn.sequence.table.slots(0, root) if turn.rows == 1 else None
            prospects.append(Prospect(tokens[-_RECENT:], window))
        found = self.drafter.foresight.outlooks(prospects, self._config.draft_block_size)
        return dict(zip((turn.sequence for turn in chosen), found, strict=True))

    def _session(self, live: Live) -> DraftSession:
        """Return the request's session, told of everything; opens it with the first draft."""
        if live.session is None:
            request = live.sequence.request
            live.session = self.drafter.open(request.tenant_id, request.prompt_ids)
            live.told = len(request.prompt_ids)
        self._tell(live, live.session, drafted=False)
        return live.session

    def _tell(self, live: Live, session: DraftSession, *, drafted: bool) -> None:
        """Tell a session what was drawn since it was last told; nothing, usually, or one step's."""
        tokens = live.sequence.tokens
        if live.told < len(tokens):
            session.extend(tokens[live.told :], drafted=drafted)
            live.told = len(tokens)

    def _parts(self, plan: Plan, drafts: dict[LiveSequence, Draft]) -> list[Part]:
        parts = []
        for turn in plan.turns:
            tree = None
            if turn.draws:
                draft = drafts.get(turn.sequence)
                tree = draft.tree if draft else bare(turn.sequence.tokens[-1])
            parts.append(Part(turn, tree))
        return parts

    def _compute(
        self,
        parts: list[Part],
        drafts: dict[LiveSequence, Draft],
        outcome: Outcome,
        spent_ms: float,
    ) -> None:
        """Run the verifier over all parts, then commit each; a failure ends whom it concerns.

        `spent_ms` is what drafting took.
        """
        outcome.work += [RequestWork(part.turn.sequence.request_id, part.work) for part in parts]
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
        verify_ms = (time.perf_counter() - began) * 1e3
        if len(rows.logit_rows) == len(rows.token_ids):  # prefill has no head to pay for
            self._cost.observe(len(rows.token_ids), verify_ms)
        first = 0
        for part in parts:
            last = first + part.nodes + 1 if part.tree else first
            own = (logits[first:last], statistics[first:last])
            first = last
            try:
                self._commit(part, drafts.get(part.turn.sequence), own, outcome)
            except Exception as error:  # noqa: BLE001 -- one request's failure is not the others'
                self._fail(part.turn, error, outcome)
        if outcome.moves:
            with torch.inference_mode():  # as the storage was written
                src_slots, dst_slots = torch.tensor(outcome.moves).unbind(1)
                self._decoder.storage.move(src_slots, dst_slots)
        if all(part.tree and part.turn.rows == 1 for part in parts):  # nothing but decoding
            plain_ms = self._cost.time_ms(len(parts)) * outcome.drawn / len(parts)
            outcome.drafted.plain_ms, outcome.drafted.spent_ms = plain_ms, spent_ms + verify_ms
            self._degradation.take(outcome.drafted)

    def _commit(
        self,
        part: Part,
        draft: Draft | None,
        verifier: tuple[Tensor, list[RawStatistics]],
        outcome: Outcome,
    ) -> None:
        """Take over one request's part of a step: its tokens, its keys, its block, its end."""
        sequence = part.turn.sequence
        live = self._live[sequence.request_id]
        if part.tree is None:
            sequence.advance(sequence.computed + part.turn.rows)
            return
        verified = verify(
            sequence.request,
            sequence.tokens,
            part.tree,
            *verifier,
            emission=live.emission,
            processors=live.processors,
            shaping=live.shaping,
            probe=self._probe,
        )
        walked, ended = verified.walked, live.emission.reason is not None
        root = len(sequence.tokens) - 1
        # The accepted path's keys lie where its nodes were scored: close the ranks.
        slots = sequence.table.slots(root, root + len(part.tree))
        outcome.moves += [
            (int(slots[node]), int(slots[depth]))
            for depth, node in enumerate(walked.nodes)
            if node != depth
        ]
        sequence.advance(root + len(walked.nodes), walked.tokens)
        clipped = clip(part.tree, walked, ended=ended)
        live.emission.count(clipped, len(part.tree))
        outcome.drawn += len(walked.tokens)
        if draft:
            outcome.drafted.add(Window(1, clipped.depth, walked.accepted))
        if live.session and self._degradation.drafting:
            if draft:
                live.session.observe(draft, walked, verified.entropies)
            self._tell(live, live.session, drafted=draft is not None)
        if block := live.emission.block():
            outcome.blocks.append(block)
        if live.emission.reason is not None:
            self._finish(live, live.emission.reason, outcome)

    def _fail(self, turn: Turn, error: Exception, outcome: Outcome) -> None:
        live = self._live.get(turn.sequence.request_id)
        if live is None:
            return
        self._on_failure(turn.sequence.request_id, error)
        # Only what is our own wording may be shown; anything else could hold others' data.
        known = isinstance(error, ProcessorFailed | GrammarFailed | ArithmeticError)
        detail = str(error) if known else "the engine failed in a decoding step"
        self._finish(live, FinishReason.ERROR, outcome, detail)

    def _finish(
        self, live: Live, reason: FinishReason, outcome: Outcome, detail: str | None = None
    ) -> None:
        self.scheduler.remove(live.sequence)
        del self._live[live.sequence.request_id]
        outcome.finishes.append(live.emission.finish(reason, detail))


def _log_failure(request_id: str, error: Exception) -> None:
    log.error("request.failed", request_id=request_id, exc_info=error)

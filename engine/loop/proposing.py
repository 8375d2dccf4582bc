"""Asking for drafts where they pay: who is asked, how many nodes each gets, what came of it.

`verifier_batch_size` full drafts share one verification. Whose candidates are likeliest gets their
nodes, be they one request's or all requests': sixteen that are sure of two tokens each are as many
nodes as four that are sure of eight.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from engine.config import EngineConfig
from engine.draft.drafter import Draft, Drafter
from engine.graph.tree import TokenTree
from engine.loop.cost import StepCost
from engine.loop.degradation import Degradation, DegradePolicy, Window
from engine.loop.flights import Flight, Flights
from engine.loop.pacing import Pacing
from engine.loop.prospects import RECENT, outlooks_of
from engine.scheduler.plan import Plan, Turn
from engine.scheduler.scheduler import Scheduler
from engine.scheduler.sequence import Sequence as LiveSequence

_SURE = 0.8  # where a text's own past says as much, the learned sources are not asked


@dataclass(frozen=True, slots=True)
class Proposed:
    """What a step verifies beyond its plan."""

    drafts: Mapping[LiveSequence, Draft] = field(default_factory=dict)
    held: Set[LiveSequence] = frozenset()  # who sits this step out
    asked_for: int = 0  # requests that the step draws for, if any was asked for a draft
    is_trial: bool = True  # of asking all of them; not where only what was said before is drafted

    @property
    def trees(self) -> dict[LiveSequence, TokenTree]:
        """The drafts' trees."""
        return {sequence: draft.tree for sequence, draft in self.drafts.items()}


class Proposer:
    """Decides about drafts, step by step."""

    def __init__(
        self,
        config: EngineConfig,
        drafter: Drafter,
        scheduler: Scheduler,
        flights: Flights,
        cost: StepCost,
    ) -> None:
        self.degradation = Degradation(config.degrade_policy)
        self._judges = config.degrade_policy == DegradePolicy.SPEEDUP
        self._config = config
        self._drafter = drafter
        self._scheduler = scheduler
        self._flights = flights
        self._cost = cost

    def propose(self, plan: Plan, step_index: int) -> Proposed:
        """Draft for the plan's requests as far as it pays, rows suffice and pages allow."""
        config, cost = self._config, self._cost
        rows, spare = sum(turn.rows for turn in plan.turns), plan.spare_rows
        draws = sum(turn.draws for turn in plan.turns)
        each = min(config.node_budget - 1, spare)
        together = min(config.verifier_batch_size * (config.node_budget - 1), spare)
        if not (each and config.draft and self.degradation.drafting):
            return Proposed()
        pays = not self._judges or cost.worth_asking(draws)
        able = [turn for turn in plan.drafters() if self._flight(turn).may_draft]
        if not pays:  # but what was said before is likely to be said again, whatever the load
            able = [turn for turn in able if self._flight(turn).recalls(self._drafter)]
        # not even certain nodes may be worth a row
        if not able or not cost.nodes_worth(rows, draws, [1.0] * together):
            return Proposed()
        for turn in plan.turns:  # what one said, another may be drafted
            self._flight(turn).tell(drafted=False)
        least = cost.least_probability(rows, draws, together)
        pacing = Pacing()
        learned = config.verifier_batch_size if pays else 0
        offers = self._offers(able, each, least, pacing, step_index, learned=learned)
        trees = [draft.tree for _, draft in offers]
        drafts: dict[LiveSequence, Draft] = {}
        for index, count in cost.chosen_nodes(rows, draws, trees, together).items():
            turn, draft = offers[index]
            if granted := self._scheduler.grant(turn, count):
                drafts[turn.sequence] = draft.pruned(granted + 1)
        return Proposed(drafts, pacing.held, draws, is_trial=pays)

    def learn(
        self, proposed: Proposed, draws: int, drawn: int, window: Window, spent_ms: float
    ) -> None:
        """Learn what a step that did nothing but decode took, all in all, to draw `drawn` tokens.

        It drew for `draws` requests; `window` has what was drafted and accepted.
        """
        draws = proposed.asked_for or draws  # who was held back would have drawn, too
        window.plain_ms = self._cost.time_ms(draws) * drawn / draws
        window.spent_ms = spent_ms
        self.degradation.take(window)
        if proposed.asked_for and proposed.is_trial:
            self._cost.observe_asking(draws, window.plain_ms, spent_ms)

    def _offers(
        self,
        able: list[Turn],
        each: int,
        least: float,
        pacing: Pacing,
        step_index: int,
        *,
        learned: int,
    ) -> list[tuple[Turn, Draft]]:
        """Return the drafts to choose from; the learned sources are asked for `learned` in turn."""
        sessions = {turn.sequence: self._flight(turn).told_session(self._drafter) for turn in able}
        found = {
            turn.sequence: sessions[turn.sequence].evidence(
                turn.sequence.tokens[-RECENT:], turn.sequence.remaining - 1
            )
            for turn in able
        }
        unsure = [turn for turn in able if found[turn.sequence].best < _SURE]
        asked = unsure[:learned]
        for turn in asked:
            turn.sequence.drafted_at = step_index
        # an opinion may prove too low by half
        outlooks = outlooks_of(
            self._drafter.foresight, asked, self._config.draft_block_size, least / 2
        )
        offers = []
        for turn in able:
            sequence, shaping = turn.sequence, self._flight(turn).shaping
            session, recent = sessions[sequence], sequence.tokens[-RECENT:]
            draft = session.propose(
                recent,
                depth_limit=sequence.remaining - 1,
                node_budget=each + 1,
                least_probability=least,
                certain=shaping.certain() if shaping else (),
                evidence=found[sequence],
                outlooks=outlooks.get(sequence, ()),
            )
            if not pacing.waits(turn, session, recent, draft) and draft is not None:
                offers.append((turn, draft))
        return offers

    def _flight(self, turn: Turn) -> Flight:
        flight = self._flights.of(turn.sequence)
        assert flight is not None
        return flight

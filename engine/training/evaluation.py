"""What a head is worth in the real loop: the same prompts with it and without, draft by draft.

Trees are filled to a fixed number of nodes, whatever a row costs here, so that the figures do not
depend on how fast or how busy the machine is. Every arm must emit the same tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from engine.completions import complete, failed
from engine.config import EngineConfig
from engine.draft.foresight import Foresight
from engine.draft.proposals import Source
from engine.draft.reliability import Reliability, ReliabilityBin
from engine.errors import EngineError
from engine.loop.cost import StepCost
from engine.opening import OpenModel
from engine.records import FinishReason, StepRecord
from engine.requests import GenerationRequest

NODE_BUDGETS = (4, 8)
CONCURRENCY = 4


class ArmEvaluation(msgspec.Struct, frozen=True):
    """One set of sources at one node budget."""

    arm: str
    node_budget: int
    steps: int
    emitted_tokens: int
    mean_accepted_length: float  # emitted tokens per block
    mean_drafted_depth: float
    acceptance_by_depth: tuple[float, ...]  # of blocks drafted at least so deep, accepted so far
    node_efficiency: float  # accepted tokens per verified node
    reliability_error: float | None
    reliability: dict[str, tuple[ReliabilityBin, ...]]  # by sources, "all" among them


class Evaluation(msgspec.Struct, frozen=True):
    """All arms on the same prompts."""

    prompts: int
    identical: bool  # whether all arms emitted the same tokens
    arms: tuple[ArmEvaluation, ...]


class _FreeRows(StepCost):
    """Every row is worth its while; the node budget alone decides."""

    def nodes_worth(self, rows: int, tokens: float, probabilities: Sequence[float]) -> int:
        """All of them are."""
        return len(probabilities)

    def least_probability(self, rows: int, tokens: float, most: int) -> float:
        """Nothing is too unlikely."""
        return 0.0


def arms_of(foresight: Foresight) -> dict[str, Foresight]:
    """Return the combinations of a foresight's sources that are worth comparing."""
    arms = {"suffixes": Foresight()}
    if foresight.phrases is not None:
        arms["phrases"] = Foresight(phrases=foresight.phrases)
    if foresight.head is not None:
        arms["head"] = Foresight(head=foresight.head)
    if len(arms) == 3:
        arms["both"] = foresight
    return arms


def evaluate(
    model: OpenModel,
    config: EngineConfig,
    arms: Mapping[str, Foresight],
    requests: Sequence[GenerationRequest],
) -> Evaluation:
    """Run every arm at every budget. Raises EngineError where a request fails."""
    said: set[tuple[tuple[str, tuple[int, ...]], ...]] = set()
    results = []
    for budget in NODE_BUDGETS:
        for arm, foresight in arms.items():
            own = msgspec.structs.replace(
                config,
                node_budget=budget,
                verifier_batch_size=CONCURRENCY,
                degrade_policy="never",
            )
            result, tokens = _run(arm, replace(model, foresight=foresight), own, requests)
            results.append(result)
            said.add(tokens)
    return Evaluation(len(requests), len(said) == 1, tuple(results))


def _run(
    arm: str, model: OpenModel, config: EngineConfig, requests: Sequence[GenerationRequest]
) -> tuple[ArmEvaluation, tuple[tuple[str, tuple[int, ...]], ...]]:
    loop = model.loop(config, cost=_FreeRows())
    reliability = loop.drafter.reliability = Reliability()
    steps: list[StepRecord] = []
    said = {}
    for completion in complete(
        loop, requests, concurrency=config.verifier_batch_size, observe=steps.append
    ):
        if completion.finish_reason is FinishReason.ERROR:
            raise failed(completion)
        said[completion.request_id] = completion.token_ids
    blocks = [block for step in steps for block in step.blocks]
    if not blocks:
        raise EngineError("nothing was emitted, so nothing can be evaluated")
    counters = loop.counters
    by_depth = []
    for depth in range(1, config.draft_block_size + 1):
        deep = [block for block in blocks if block.drafted_depth >= depth]
        if deep:
            by_depth.append(sum(block.accepted_tokens >= depth for block in deep) / len(deep))
    tables = {"all": reliability.table()}
    tables |= {_named(origins): reliability.table(origins) for origins in reliability.origins}
    return (
        ArmEvaluation(
            arm=arm,
            node_budget=config.node_budget,
            steps=counters.steps,
            emitted_tokens=counters.emitted_tokens,
            mean_accepted_length=counters.emitted_tokens / counters.steps,
            mean_drafted_depth=counters.drafted_depth / counters.steps,
            acceptance_by_depth=tuple(by_depth),
            node_efficiency=counters.accepted_tokens / counters.verified_nodes,
            reliability_error=reliability.error,
            reliability=tables,
        ),
        tuple(sorted(said.items())),
    )


def _named(origins: int) -> str:
    return "+".join(source.name.lower() for source in Source if source & origins)

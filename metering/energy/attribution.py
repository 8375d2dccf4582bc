"""How the energy of one step is split among the requests in it, by a named policy. Pure.

Whatever the policy, the shares are scaled to what was metered and rounded to whole microjoules by
largest remainder, so they sum to it exactly. A policy only says what each request's work weighs:

- `affine-shapley/1`: a step costs a + the sum of what each request's own work costs. For such an
  affine game the Shapley value has a closed form, an equal share of the fixed cost a plus one's
  own part: O(n), no sampling.
- `token-weighted/1`: by rows computed, whatever kind they are.
- `time-weighted/1`: by time in the batch, which is the step's for each request in it.

Requests that rode on one another's work are one player: the work was done once, and its share is
divided equally among those of them that are charged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from engine.records import Work

OVERHEAD = ""  # not a request's id
NO_WEIGHTS = "none"  # of a policy that has none
DEFAULT_WEIGHTS = "default"  # nobody has measured what work costs here
CONFIGURED_WEIGHTS = "configured"  # the operator says so


class Claim(msgspec.Struct, frozen=True, gc=False):
    """What one request did in a step. Work that nobody pays for is the operator's overhead."""

    request_id: str
    work: Work
    charged: bool
    through_block: int  # last committed block of the request after this step; -1 before any
    rode_with: str | None = None  # the request whose work it shared, having none of its own


class Weight(msgspec.Struct, frozen=True, gc=False):
    """What one player's work in a step weighs; only ratios within the step matter."""

    own: int
    recomputed: int  # done again after a preemption: the scheduler's choice, nobody's bill


class Policy(Protocol):
    """Says what work weighs. Frozen: its method and weights are printed on receipts."""

    @property
    def method(self) -> str:
        """Its name and version."""

    @property
    def weights(self) -> str:
        """Where its coefficients come from: "none", "default", "configured", or a calibration."""

    def weigh(self, works: Sequence[Work]) -> list[Weight]:
        """Weigh the work of each player of a step; none of them did nothing at all."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Relative costs of a step's parts, as whole numbers; only their ratios matter."""

    fixed: int
    prefill_token: int
    verified_node: int
    kv_read: int

    def own(self, work: Work) -> int:
        """The cost of a request's own work, recomputation apart."""
        return (
            self.prefill_token * work.prefill_tokens
            + self.verified_node * work.verified_nodes
            + self.kv_read * work.kv_read_tokens
        )

    def recomputed(self, work: Work) -> int:
        """The cost of work done again after a preemption."""
        return (
            self.prefill_token * work.recomputed_tokens + self.kv_read * work.recomputed_kv_tokens
        )


# A small dense model on a CPU, roughly. Receipts that rest on them say "default".
DEFAULT_COSTS = StepCosts(fixed=80_000, prefill_token=4_000, verified_node=4_000, kv_read=1)


@dataclass(frozen=True, slots=True)
class AffineShapley:
    """An equal share of the step's fixed cost, and one's own work."""

    costs: StepCosts = DEFAULT_COSTS
    weights: str = DEFAULT_WEIGHTS
    method: str = "affine-shapley/1"

    def weigh(self, works: Sequence[Work]) -> list[Weight]:
        """Weigh in costs, times the number of players, which keeps the equal share whole."""
        costs, players = self.costs, len(works)
        return [
            Weight(costs.fixed + costs.own(work) * players, costs.recomputed(work) * players)
            if work.prefill_tokens or work.verified_nodes or work.kv_read_tokens
            # Who only did over what it had done before bears its fixed share as overhead too.
            else Weight(0, costs.fixed + costs.recomputed(work) * players)
            for work in works
        ]


@dataclass(frozen=True, slots=True)
class TokenWeighted:
    """By rows computed: a prompt's token weighs what a node of a tree does."""

    weights: str = NO_WEIGHTS
    method: str = "token-weighted/1"

    def weigh(self, works: Sequence[Work]) -> list[Weight]:
        """Weigh in rows."""
        return [Weight(_rows(work), work.recomputed_tokens) for work in works]


@dataclass(frozen=True, slots=True)
class TimeWeighted:
    """By time: each request in a step was in it for as long as it took."""

    weights: str = NO_WEIGHTS
    method: str = "time-weighted/1"

    def weigh(self, works: Sequence[Work]) -> list[Weight]:
        """Weigh all players alike, each divided by how much of its work was done before."""
        parts = [(_rows(work), work.recomputed_tokens) for work in works]
        whole = math.lcm(*(own + again for own, again in parts if own and again))
        return [
            Weight(whole * own // (own + again), whole * again // (own + again))
            if own + again
            else Weight(whole, 0)  # it only read keys
            for own, again in parts
        ]


DEFAULT_POLICY: Policy = AffineShapley()
POLICIES = ("affine-shapley/1", "token-weighted/1", "time-weighted/1")


def policy_named(method: str, costs: StepCosts, weights: str) -> Policy:
    """The policy of that name; costs and their origin go to the one that has any."""
    policies: dict[str, Policy] = {
        "affine-shapley/1": AffineShapley(costs, weights),
        "token-weighted/1": TokenWeighted(),
        "time-weighted/1": TimeWeighted(),
    }
    return policies[method]


def split(energy_uj: int, claims: Sequence[Claim], policy: Policy) -> dict[str, int]:
    """Shares of a step's energy by request id, and OVERHEAD's; they sum to it exactly.

    Recomputation and work that is charged to nobody go to OVERHEAD, as does a step in which
    nothing was computed.
    """
    if len(claims) == 1 and _takes_all(claims[0], policy):
        return {claims[0].request_id: energy_uj}
    payers: dict[str, list[str]] = {}
    working = []
    for claim in claims:
        if claim.charged:
            payers.setdefault(claim.rode_with or claim.request_id, []).append(claim.request_id)
        if _is_work(claim.work):
            working.append(claim)
    weights = {OVERHEAD: 0}
    weighed = policy.weigh([claim.work for claim in working])
    for claim, weight in zip(working, weighed, strict=True):
        payer = claim.request_id if claim.request_id in payers else OVERHEAD
        weights[payer] = weights.get(payer, 0) + weight.own
        weights[OVERHEAD] += weight.recomputed
    divided: dict[str, int] = {}
    for name, share in apportion(energy_uj, weights).items():
        named = payers.get(name, (OVERHEAD,))
        if len(named) == 1:
            divided[named[0]] = share
        else:
            divided |= apportion(share, dict.fromkeys(named, 1))
    return divided


def apportion(total: int, weights: Mapping[str, int]) -> dict[str, int]:
    """Split a whole number by weights, by largest remainder; ties go to the lesser key.

    Without any weight everything goes to OVERHEAD.
    """
    weight = sum(weights.values())
    if not weight:
        return {OVERHEAD: total}
    shares = {key: total * part // weight for key, part in weights.items() if part}
    left = total - sum(shares.values())
    if left:
        by_remainder = sorted(shares, key=lambda key: (-(total * weights[key] % weight), key))
        for key in by_remainder[:left]:
            shares[key] += 1
    return shares


def _takes_all(alone: Claim, policy: Policy) -> bool:
    """Whether nothing is left to divide: who is alone in a step bears what isn't overhead."""
    if not (alone.charged and _is_work(alone.work)) or alone.rode_with is not None:
        return False
    [weight] = policy.weigh((alone.work,))
    return weight.own > 0 and not weight.recomputed


def _is_work(work: Work) -> bool:
    return bool(
        work.prefill_tokens or work.verified_nodes or work.kv_read_tokens or work.recomputed_tokens
    )


def _rows(work: Work) -> int:
    return work.prefill_tokens + work.verified_nodes

"""How the energy of one step is split among the requests in it: `affine-shapley/1`. Pure.

A step costs a + sum of what each request's own work costs. For such an affine game the Shapley
value has a closed form: an equal share of the fixed cost a, plus one's own part; O(n), no
sampling. The shares are scaled to what was metered and rounded to whole microjoules by largest
remainder, so they sum to it exactly.

Requests that rode on one another's work are one player: the work was done once, and its share is
divided equally among those of them that are charged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.records import Work
from metering.energy.settings import EnergySettings

METHOD = "affine-shapley/1"
OVERHEAD = ""  # not a request's id


class Claim(NamedTuple):
    """What one request did in a step. Work that nobody pays for is the operator's overhead."""

    request_id: str
    work: Work
    charged: bool
    through_block: int  # last committed block of the request after this step; -1 before any
    rode_with: str | None = None  # the request whose work it shared, having none of its own


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Relative costs of a step's parts, as whole numbers; only their ratios matter."""

    fixed: int
    prefill_token: int
    verified_node: int
    kv_read: int

    @classmethod
    def of(cls, settings: EnergySettings) -> StepCosts:
        """The costs that are configured."""
        return cls(
            settings.step_fixed_cost,
            settings.prefill_token_cost,
            settings.verified_node_cost,
            settings.kv_read_cost,
        )

    def own(self, work: Work) -> int:
        """The cost of a request's own work, recomputation apart."""
        return (
            self.prefill_token * work.prefill_tokens
            + self.verified_node * work.verified_nodes
            + self.kv_read * work.kv_read_tokens
        )

    def recomputed(self, work: Work) -> int:
        """The cost of work done again after a preemption: the scheduler's choice, nobody's bill."""
        return self.prefill_token * work.recomputed_tokens


DEFAULT_COSTS = StepCosts.of(EnergySettings())


def split(energy_uj: int, claims: Sequence[Claim], costs: StepCosts) -> dict[str, int]:
    """Shares of a step's energy by request id, and OVERHEAD's; they sum to it exactly.

    The fixed cost is shared equally by the requests that worked. Recomputation and work that is
    charged to nobody go to OVERHEAD, as does a step in which nothing was computed.
    """
    payers: dict[str, list[str]] = {}
    for claim in claims:
        if claim.charged:
            payers.setdefault(claim.rode_with or claim.request_id, []).append(claim.request_id)
    working = [claim for claim in claims if costs.own(claim.work) or costs.recomputed(claim.work)]
    weights = {OVERHEAD: 0}
    for claim in working:
        # Weights times the number of players, which keeps the equal share whole.
        own = costs.own(claim.work) * len(working)
        recomputed = costs.recomputed(claim.work) * len(working)
        payer = claim.request_id if own and claim.request_id in payers else OVERHEAD
        weights[payer] = weights.get(payer, 0) + costs.fixed + own
        weights[OVERHEAD] += recomputed
    divided: dict[str, int] = {}
    for name, share in apportion(energy_uj, weights).items():
        divided |= apportion(share, dict.fromkeys(payers.get(name, [OVERHEAD]), 1))
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
    by_remainder = sorted(shares, key=lambda key: (-(total * weights[key] % weight), key))
    for key in by_remainder[:left]:
        shares[key] += 1
    return shares

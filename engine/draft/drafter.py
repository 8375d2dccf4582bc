"""The draft layer of one engine: opens a session for each request that wants drafts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import ne
from typing import NamedTuple

from engine.config import EngineConfig
from engine.draft.calibration import Calibration
from engine.draft.foresight import Foresight, Outlook
from engine.draft.proposals import Proposal, Source
from engine.draft.reliability import Reliability
from engine.draft.shared import ORDER, PUBLIC, Scope, SharedDrafts
from engine.draft.suffixes import Suffixes
from engine.graph.acceptance import Walk
from engine.graph.lattice import Lattice, LatticeBuilder
from engine.graph.rollback import NOTHING, Policy, Remainder, remainder
from engine.graph.tree import TokenTree, unroll

_TENANTS = 1024  # whose calibration is kept
_WIDTH = 2  # continuations asked of each source
_WIDER = 4  # after a rejection where the verifier was unsure
_DEPTH_PER_MATCH = 2  # tokens ventured per token of agreement
_RECALLED = 12  # tokens of agreement: the next is likely the same, four times in five at first
_RECYCLED_EVIDENCE = 2  # a recycled candidate's match length: its own context was accepted


class Place(NamedTuple):
    """Requests at one place are drafted the same continuations."""

    scope: Scope
    recent: tuple[int, ...]


class Evidence(NamedTuple):
    """What a request's own text and those of its scope say about its next block."""

    proposals: tuple[Proposal, ...]
    weights: tuple[list[float], ...]  # parallel to the proposals, one for each token
    depth_limit: int

    @property
    def best(self) -> float:
        """How likely the likeliest next token is; 0 if there is none."""
        return max((weights[0] for weights in self.weights), default=0.0)


@dataclass(frozen=True, slots=True)
class Draft:
    """What one block is drafted as."""

    lattice: Lattice
    tree: TokenTree
    proposals: tuple[Proposal, ...]
    outlooks: tuple[Outlook, ...] = ()

    def drawn_from(self, source: Source) -> bool:
        """Whether a source proposed any of it."""
        return any(proposal.source is source for proposal in self.proposals)

    def pruned(self, node_budget: int) -> Draft:
        """Return the draft with its first `node_budget` nodes only, the likeliest ones."""
        if node_budget >= len(self.tree):
            return self
        tree = unroll(self.lattice, self.tree.tokens[0], node_budget)
        return Draft(self.lattice, tree, self.proposals, self.outlooks)


class Drafter:
    """What all sessions share: the draft cache, the calibrations, the parameters."""

    def __init__(self, config: EngineConfig, foresight: Foresight | None = None) -> None:
        self.foresight = foresight or Foresight()
        self.reliability: Reliability | None = None  # told of every verified lattice, when set
        self.block_size = config.draft_block_size
        self.policy = Policy(config.rollback)
        self.entropy_threshold = config.entropy_threshold
        self.tree_width = config.tree_width
        self.shared = SharedDrafts(config.draft_cache_tokens)
        self._calibrations: OrderedDict[str, Calibration] = OrderedDict()

    def open(
        self, tenant_id: str, prompt: Sequence[int], draft_scope: str = "tenant"
    ) -> DraftSession:
        """Start drafting for one request; see `engine.requests.DRAFT_SCOPES`."""
        calibration = self._calibrations.setdefault(tenant_id, Calibration())
        self._calibrations.move_to_end(tenant_id)
        while len(self._calibrations) > _TENANTS:
            self._calibrations.popitem(last=False)
        return DraftSession(self, _scope(tenant_id, draft_scope), prompt, calibration)

    def recalls(self, tenant_id: str, draft_scope: str, recent: Sequence[int]) -> bool:
        """Whether a text that ends so was said before, so that it is likely to go on as it did.

        Takes microseconds, opens no session and changes nothing.
        """
        return self.shared.recalls(_scope(tenant_id, draft_scope), recent, _RECALLED)


def _scope(tenant_id: str, draft_scope: str) -> Scope:
    return PUBLIC if draft_scope == "public" else Scope(tenant_id)


class DraftSession:
    """One request's drafting: its own text, its document, what its last block left behind."""

    def __init__(
        self, drafter: Drafter, scope: Scope, prompt: Sequence[int], calibration: Calibration
    ) -> None:
        self._drafter = drafter
        self._calibration = calibration
        self._suffixes = Suffixes(prompt)
        self._document = drafter.shared.open(scope, prompt)
        self._remainder: Remainder = NOTHING

    def evidence(self, recent: Sequence[int], depth_limit: int) -> Evidence:
        """Look for what followed `recent`, the last tokens of the text, before."""
        depth_limit, width = min(depth_limit, self._drafter.block_size), _WIDTH
        if self._remainder.widen:
            depth_limit, width = max(1, depth_limit // 2), _WIDER
        proposals = self._proposals(recent, depth_limit, width)
        weights = tuple(self._calibration.weights(proposal) for proposal in proposals)
        return Evidence(tuple(proposals), weights, depth_limit)

    def propose(
        self,
        recent: Sequence[int],
        *,
        depth_limit: int,
        node_budget: int,
        least_probability: float,
        certain: Sequence[int] = (),
        evidence: Evidence | None = None,
        outlooks: Sequence[Outlook] = (),
    ) -> Draft | None:
        """Draft the block after `recent`, the last tokens of the text; null if nothing is likely.

        `certain` must follow: candidates that begin otherwise are left out. `evidence` is looked
        for unless it is given; `outlooks` are what the learned sources, which know nothing of what
        is certain, foresee where nothing is. At most `depth_limit` deep and `node_budget` nodes,
        the root among them.
        """
        evidence = evidence or self.evidence(recent, depth_limit)
        builder = LatticeBuilder(evidence.depth_limit)
        builder.add(certain, [1.0] * len(certain), Source.SCHEMA)
        outlooks = () if certain else tuple(outlooks)
        for proposal, weights in zip(evidence.proposals, evidence.weights, strict=True):
            if any(map(ne, proposal.tokens, certain)):
                continue
            builder.add(proposal.tokens, weights, proposal.source)
        for source, edges in outlooks:
            for edge in edges:
                weight = self._calibration.weight(source, edge)
                builder.add_edge(edge.depth, edge.previous, edge.token, weight, source)
        if builder.likeliest_first < least_probability:
            return None
        lattice = builder.build(self._drafter.tree_width)
        tree = unroll(lattice, recent[-1], node_budget, least_probability)
        return Draft(lattice, tree, evidence.proposals, outlooks) if len(tree) > 1 else None

    def place(self, recent: Sequence[int]) -> Place | None:
        """Say where in which text the request stands; null where nobody could follow it there."""
        document = self._document
        if not document.kept or len(recent) < ORDER:
            return None
        return Place(document.scope, tuple(recent))

    def observe(self, draft: Draft, walked: Walk, entropies: Sequence[float]) -> None:
        """Learn from a verified draft: calibrate its sources, and keep what competes again."""
        for proposal in draft.proposals:
            self._calibration.observe(proposal, walked.tokens)
        if self._drafter.reliability is not None:
            self._drafter.reliability.observe(draft.lattice, walked.tokens)
        for source, edges in draft.outlooks:
            self._calibration.observe_edges(source, edges, walked.tokens)
        self._remainder = remainder(
            draft.lattice,
            draft.tree,
            walked,
            entropies,
            policy=self._drafter.policy,
            entropy_threshold=self._drafter.entropy_threshold,
            block_size=self._drafter.block_size,
        )

    def extend(self, tokens: Sequence[int], *, drafted: bool) -> None:
        """Take over what a step emitted; a step without a draft leaves nothing to recycle."""
        self._suffixes.extend(tokens)
        self._drafter.shared.append(self._document, tokens)
        if not drafted:
            self._remainder = NOTHING

    def _proposals(self, recent: Sequence[int], depth_limit: int, width: int) -> list[Proposal]:
        proposals = []
        shared = self._drafter.shared.continuations(self._document, recent, width, depth_limit)
        for source, found in (
            (Source.SUFFIX, self._suffixes.continuations(width, depth_limit)),
            (Source.SHARED, shared),
        ):
            for rank, (match_length, tokens) in enumerate(found):
                ventured = tokens[: _DEPTH_PER_MATCH * match_length]
                proposals.append(Proposal(source, rank, match_length, ventured))
        if self._remainder.tokens:
            tokens = self._remainder.tokens[:depth_limit]
            proposals.append(Proposal(Source.RECYCLED, 0, _RECYCLED_EVIDENCE, tokens))
        return proposals

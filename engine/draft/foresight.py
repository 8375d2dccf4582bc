"""What was learned beforehand about a model, as sources of candidates: phrases and a block head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import structlog
from numpy.typing import NDArray

from engine.draft.head.block_head import BlockHead
from engine.draft.phrases import Phrases
from engine.draft.proposals import Foreseen, Source

log = structlog.get_logger(__name__)

# Share of a step. Beside the model that comes with a head, drafts of 0.12 did not pay.
_DEAREST = 1 / 16


class Outlook(NamedTuple):
    """What one source foresees behind one text."""

    source: Source
    edges: Sequence[Foreseen]


class Prospect(NamedTuple):
    """A text that is about to be drafted on."""

    recent: Sequence[int]  # its last tokens, the root among them
    window: NDArray[np.int64] | None  # slots of the tokens before the root; null: not computed yet


@dataclass(frozen=True, slots=True)
class Foresight:
    """The learned sources of one loaded model; either may be missing."""

    phrases: Phrases | None = None
    head: BlockHead | None = None

    def affordable(self, step_ms: float) -> Foresight:
        """Return the same without a block head whose draft takes too much of a step of one row."""
        draft_ms = 0.0 if self.head is None else self.head.draft_ms()
        if draft_ms <= _DEAREST * step_ms:
            return self
        log.info("draft.head_left_out", draft_ms=round(draft_ms, 3), step_ms=round(step_ms, 3))
        return Foresight(self.phrases)

    def outlooks(
        self, prospects: Sequence[Prospect], depth_limit: int, floor: float = 0.0
    ) -> list[list[Outlook]]:
        """Return what each source foresees behind each text; the head takes all in one pass.

        The phrases go on from what the head foresees, so its edges come first. Paths less likely
        than `floor` need not be found.
        """
        found: list[list[Outlook]] = [[] for _ in prospects]
        if self.head is not None:
            ready = [at for at, prospect in enumerate(prospects) if prospect.window is not None]
            roots = [prospects[at].recent[-1] for at in ready]
            windows = [window for _, window in prospects if window is not None]
            if ready:
                drafts = self.head.foresee(roots, windows, depth_limit)
                for at, edges in zip(ready, drafts, strict=True):
                    found[at].append(Outlook(Source.HEAD, edges))
        if self.phrases is not None:
            for outlooks, prospect in zip(found, prospects, strict=True):
                others = outlooks[0].edges if outlooks else ()
                edges = self.phrases.foresee(prospect.recent, depth_limit, others, floor)
                outlooks.append(Outlook(Source.PHRASES, edges))
        return found

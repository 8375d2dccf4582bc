"""What the learned sources are asked about: the texts that may be drafted on in a step."""

from __future__ import annotations

from collections.abc import Sequence

from engine.draft.foresight import Foresight, Outlook, Prospect
from engine.scheduler.plan import Turn
from engine.scheduler.sequence import Sequence as LiveSequence

RECENT = 32  # tokens of context shown to the draft layer


def outlooks_of(
    foresight: Foresight, turns: Sequence[Turn], depth_limit: int, floor: float
) -> dict[LiveSequence, list[Outlook]]:
    """Ask the learned sources about several texts, all at once.

    Paths less likely than `floor` need not be found.
    """
    prospects = []
    for turn in turns:
        tokens, root = turn.sequence.tokens, turn.sequence.computed
        window = turn.sequence.table.slots(0, root) if turn.rows == 1 else None
        prospects.append(Prospect(tokens[-RECENT:], window))
    found = foresight.outlooks(prospects, depth_limit, floor)
    return dict(zip((turn.sequence for turn in turns), found, strict=True))

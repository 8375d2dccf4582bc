"""Variants of our own engine that can run beside it: each is a line of this table, or a head file.

A head file is written `NAME=FILE`, so that heads can be compared with each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from engine.config import EngineConfig


@dataclass(frozen=True, slots=True)
class Variant:
    """What a variant changes."""

    summary: str
    changes: dict[str, Any] = field(default_factory=dict)  # of EngineConfig
    warm: bool = False  # the same prompts have been answered before, for the same tenant

    def config(self, config: EngineConfig) -> EngineConfig:
        """Return `config` with the variant's changes."""
        return msgspec.structs.replace(config, **self.changes)


OURS = ""  # the engine as it is configured, every cache cold
VARIANTS: dict[str, Variant] = {
    OURS: Variant("as configured, caches cold"),
    "verifier-only": Variant("no drafts", {"draft": False}),
    "anchor": Variant("rejected candidates compete again", {"draft": True, "rollback": "anchor"}),
    "restart": Variant("rejected candidates are dropped", {"draft": True, "rollback": "restart"}),
    "tree": Variant("several candidates per node", {"draft": True, "tree_width": 8}),
    "chain": Variant("one candidate per node", {"draft": True, "tree_width": 1}),
    "headless": Variant("no learned sources", {"draft_head": "none"}),
    "undegraded": Variant("drafts even where they do not pay", {"degrade_policy": "never"}),
    "warm": Variant("the same prompts were answered before", {"draft": True}, warm=True),
}

NAMED = tuple(name for name in VARIANTS if name != OURS)


def chosen_variants(text: str, others: Iterable[str]) -> list[str]:
    """Return the variants that a comma-separated text asks for, each once.

    `others` are the names of other arms. Raises ValueError, saying what is wrong.
    """
    specs = list(dict.fromkeys(spec.strip() for spec in text.split(",") if spec.strip()))
    for spec in specs:
        _, given, file = spec.partition("=")
        if given and not Path(file).is_file():
            raise ValueError(f"there is no head file {file}")
        if not given and spec not in NAMED:
            raise ValueError(f"{spec}: there is {', '.join(NAMED)}, and NAME=FILE")
    taken = [*others, *map(arm_name, specs)]
    if "" in taken or len(set(taken)) < len(taken):
        raise ValueError("every head needs a name of its own")
    return specs


def variant(spec: str) -> Variant:
    """Return the variant of a name, or the one with the head of `NAME=FILE`. Raises KeyError."""
    _, given, file = spec.partition("=")
    if given:
        return Variant(f"drafts with the head {file}", {"draft": True, "draft_head": file})
    return VARIANTS[spec]


def arm_name(spec: str) -> str:
    """Return what a variant is called in tables."""
    return spec.partition("=")[0]

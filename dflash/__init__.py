"""The front door: `DFlashModel`, `DFlashLogitsProcessor` and the `dflash` command.

The two names are imported on use, so that a command that needs no model loads no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.generation import DFlashModel
    from engine.processors import DFlashLogitsProcessor

__all__ = ["DFlashLogitsProcessor", "DFlashModel"]


def __getattr__(name: str) -> object:
    """Import one of the public names."""
    if name == "DFlashModel":
        from engine.generation import DFlashModel  # noqa: PLC0415 -- see the module's docstring

        return DFlashModel
    if name == "DFlashLogitsProcessor":
        from engine.processors import DFlashLogitsProcessor  # noqa: PLC0415

        return DFlashLogitsProcessor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

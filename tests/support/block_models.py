"""Tiny models in blocks, and steps to run on them."""

from __future__ import annotations

from pathlib import Path

import torch
from tiny_models import TinyShape, write_tiny_gguf

from engine.dfm.conversion import convert_gguf
from engine.model.block_decoder import BlockDecoder
from engine.model.rows import Segment, StepRows

# Head dims of one and more scale groups, of 32, 16 and 8; widths of one and more 32-groups.
SHAPES = {
    "grouped heads of 64": TinyShape(hidden=192, intermediate=96, heads=3, kv_heads=1),
    "heads of 8, biases, own head": TinyShape(biases=True, tied_embeddings=False, seed=3),
    "heads of 16": TinyShape(hidden=64, heads=4, kv_heads=4, seed=1),
    "five heads of 96": TinyShape(layers=1, hidden=480, heads=5, kv_heads=1, seed=2),
}


def write_block_dfm(path: Path, shape: TinyShape, quant_type: str = "q4") -> Path:
    """Write a random model of this shape, its weights rounded to blocks."""
    return convert_gguf(
        write_tiny_gguf(path.with_suffix(".gguf"), shape), path, quant_type=quant_type
    )


def prefill(
    decoder: BlockDecoder, tokens: list[int], chunk: int, first_slot: int = 0
) -> torch.Tensor:
    """Compute a prompt in chunks; return the logits of every row [len(tokens), vocab]."""
    logits = []
    for start in range(0, len(tokens), chunk):
        step = chunk_of(tokens, start, min(chunk, len(tokens) - start), first_slot)
        logits.append(decoder.forward(step).clone())
    return torch.cat(logits)


def chunk_of(tokens: list[int], start: int, count: int, first_slot: int = 0) -> StepRows:
    """Return `count` rows of a prompt, behind those before them."""
    positions = torch.arange(start, start + count)
    tail = torch.where(torch.tril(torch.ones(count, count)) > 0, first_slot + positions, -1)
    return StepRows(
        token_ids=torch.tensor(tokens[start : start + count]),
        positions=positions,
        slots=first_slot + positions,
        segments=(Segment(first_slot + torch.arange(start), tail),),
        logit_rows=torch.arange(count),
    )

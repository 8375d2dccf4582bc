"""Compiles the GPU's kernels without a GPU: `python triton_ahead.py 80 89 90` prints one JSON.

Run in a process of its own, because Triton interprets kernels in the tests'. Arguments are given
as a launch would: by type, and whole numbers by value, since Triton compiles in what it finds
out about them.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.kernels.triton import attention, linear, norm, statistics

Argument = str | int
NAMED = re.compile(r"(mma\.sync|wgmma\.mma_async)[\w.]*?\.(m\d+n\d+k\d+)")


def projection(
    kernel: Any, weights: list[Argument], sizes: list[int], outputs: int, **meant: object
) -> tuple[Any, list[Argument], dict[str, Any]]:
    """One launch of a projection."""
    options = linear.linear_options(outputs) | {"HAS_BIAS": False, "DOT": tl.bfloat16}
    return kernel, ["*fp32", *weights, "*fp32", "*fp32", *sizes], options | meant


def attending(heads: int, kv_heads: int, dim: int, kept: str) -> tuple[Any, list[Argument], Any]:
    """One launch of the attention, on 16,385 slots."""
    options = attention.attention_options(heads, kv_heads, dim)
    dot = tl.bfloat16 if kept == "bf16" else tl.float32
    strides = [(heads + 2 * kv_heads) * dim, kv_heads * 16_385 * dim, 16_385 * dim, dim]
    types = ["*fp32", f"*{kept}", "*fp32", "*i32", "*i32", "*i32", *strides]
    return attention.tree_attention_kernel, types, options | {"DOT": dot}


# SmolLM2's shapes; one key-value head for all, at its widest; single precision
LAUNCHES = {
    "norm": (norm.rms_norm_kernel, ["*fp32"] * 3 + [576, "fp32"], norm.norm_options(576)),
    "statistics": (
        statistics.node_statistics_kernel,
        ["*fp32", "*i64", "*i64", "*fp32", "*fp64", "*fp64", 49_152, 7],
        statistics.statistics_options(8, 7),
    ),
    "bf16": projection(
        linear.dense_linear_kernel, ["*bf16"], [1, 576, 1536], 1536, DEPTH=linear.DEPTH
    ),
    "int8": projection(
        *(linear.grouped_linear_kernel, ["*i8", "*fp16", "*fp16"], [1, 18, 1536], 1536),
        FOUR_BITS=False,
    ),
    "int4": projection(
        *(linear.grouped_linear_kernel, ["*u8", "*fp16", "*fp16"], [1, 18, 49_152], 49_152),
        FOUR_BITS=True,
    ),
    "attention 9/3 x 64": attending(9, 3, 64, "bf16"),
    "attention 32/1 x 512": attending(32, 1, 512, "bf16"),
    "attention 2/1 x 32, fp32": attending(2, 1, 32, "fp32"),
}


def compiled(
    kernel: Any, arguments: list[Argument], options: dict[str, Any], capability: int
) -> dict[str, Any]:
    """Compile one launch for one target, down to machine code, and say what came of it."""
    launch = {"num_warps": options["num_warps"], "num_stages": options.get("num_stages", 3)}
    constants: dict[str, Any] = {
        name: value for name, value in options.items() if name in kernel.arg_names
    }
    fixed = {
        kernel.arg_names[index] for index in (p.num for p in kernel.params if p.do_not_specialize)
    }
    given = iter(arguments)
    signature, facts = {}, {}
    for index, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        argument = next(given)
        if argument == 1 and name not in fixed:
            signature[name], constants[name] = "constexpr", 1
            continue
        if isinstance(argument, int):
            signature[name] = "i32" if argument < 2**31 else "i64"
            divisible = argument % 16 == 0 and name not in fixed
        else:
            signature[name] = argument
            divisible = argument.startswith("*")
        if divisible:
            facts[index,] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, facts)
    result = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=launch)
    ptx = result.asm["ptx"]
    return {
        "target": re.findall(r"^\.target (\w+)", ptx, re.MULTILINE),
        "shared_bytes": result.metadata.shared,
        "products": sorted({f"{kind} {shape}" for kind, shape in NAMED.findall(ptx)}),
        "copies_ahead": "cp.async" in ptx,
        "machine_code_bytes": len(result.asm["cubin"]),
    }


if __name__ == "__main__":
    print(
        json.dumps(
            {
                capability: {
                    name: compiled(*launch, int(capability)) for name, launch in LAUNCHES.items()
                }
                for capability in sys.argv[1:]
            }
        )
    )

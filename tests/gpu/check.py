"""Checks the GPU's kernels where there is a GPU, and times them; prints one JSON object.

    PYTHONPATH=.:tests/support python tests/gpu/check.py --model MODEL.dfm

Without a model it decodes with a random one of SmolLM2's shape. With TRITON_INTERPRET=1 it is a
dry run: the same logic in Triton's interpreter, on tiny shapes, times null.

Every kernel is held to its twin, and to the bits of each row computed alone; then a model decodes
with every backend: drafted and together must draw from the same bits as plain and alone. The exit
status is 0 only if all of it held.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
import triton
from engine_schedules import Heard, NoCost, loop_on, run_alone
from kernel_cases import attention_case, random_children
from packed_steps import Request, Rows, int64
from real_prompts import TEXTS
from tiny_models import TinyShape, write_tiny_dfm
from torch import Tensor

from engine.config import EngineConfig
from engine.kernels.cpu.linear import block_matrix
from engine.kernels.triton import (
    attention,
    attention_reference,
    linear,
    linear_reference,
    norm,
    norm_reference,
    statistics,
    statistics_reference,
)
from engine.kernels.triton.running import interpreted
from engine.model.rows import StepRows
from engine.opening import OpenModel, open_model
from engine.requests import GenerationRequest, SamplingParams

DRY_RUN = interpreted()
# a product of bfloat16 rows is off by about 2^-9; the interpreter computes in float32
TOLERANCE = 1e-4 if DRY_RUN else 1e-2


@dataclass(frozen=True)
class Sizes:
    """How large everything is."""

    device: str
    matrices: tuple[tuple[int, int], ...]  # outputs, inputs
    row_counts: tuple[int, ...]
    heads: tuple[tuple[int, int, int], ...]  # heads, kv heads, dim
    requests: int
    context: int
    vocabulary: int
    shape: TinyShape
    kv_tokens: int
    prompts: int
    new_tokens: int
    backends: tuple[str, ...]


ON_A_GPU = Sizes(
    device="cuda:0",
    matrices=((960, 576), (3072, 576), (576, 1536), (49_152, 576), (28_672, 4096), (4096, 14_336)),
    row_counts=(1, 8, 16, 33, 64),
    heads=((9, 3, 64), (32, 8, 128), (64, 1, 512)),
    requests=8,
    context=1000,
    vocabulary=49_152,
    shape=TinyShape(30, 576, 1536, 9, 3, 8192, vocab_size=49_152),  # SmolLM2-135M's
    kv_tokens=16_384,
    prompts=len(TEXTS),
    new_tokens=48,
    backends=("fp32", "bf16", "int8", "int4"),
)
DRY = Sizes(
    device="cpu",
    matrices=((40, 64),),
    row_counts=(1, 17),
    heads=((4, 2, 16),),
    requests=2,
    context=80,
    vocabulary=5000,
    shape=TinyShape(layers=1, seed=3),
    kv_tokens=512,
    prompts=1,
    new_tokens=6,
    backends=("int4",),
)


@dataclass
class Report:
    """What was found."""

    kernels: list[dict[str, Any]]
    models: list[dict[str, Any]]

    @property
    def ok(self) -> bool:
        """Whether everything held."""
        return all(entry["ok"] for entry in (*self.kernels, *self.models))


def microseconds(function: Callable[[], object]) -> float | None:
    """Return the median time of a call on the GPU; null in a dry run."""
    if DRY_RUN:
        return None
    return 1e3 * float(triton.testing.do_bench(function, return_mode="median"))


def kernel_entry(
    name: str,
    found: Tensor,
    expected: Tensor,
    *,
    same_alone: bool,
    call: Callable[[], object],
    moved_bytes: int,
) -> dict[str, Any]:
    """Compare one result with the twin's, and time the kernel."""
    error = float((found - expected).double().norm() / expected.double().norm())
    taken = microseconds(call)
    return {
        "kernel": name,
        "relative_error": error,
        "same_alone": same_alone,
        "ok": error < TOLERANCE and same_alone,
        "us": taken,
        "gb_per_s": None if taken is None else moved_bytes / taken / 1e3,
    }


def linear_entries(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Check projections of every format at every row count."""
    generator = torch.Generator().manual_seed(1)
    for outputs, inputs in sizes.matrices:
        weight = torch.randn(outputs, inputs, generator=generator)
        rows = torch.randn(max(sizes.row_counts), inputs, generator=generator).to(sizes.device)
        bias = torch.randn(outputs, generator=generator).to(sizes.device)
        kept: dict[str, Any] = {"bf16": weight.to(sizes.device, torch.bfloat16)}
        for bits in (8, 4):
            blocks = block_matrix(weight, bits=bits).blocks
            kept[f"int{bits}"] = linear_reference.grouped_weights(
                blocks, torch.device(sizes.device)
            )
        for name, weights in kept.items():
            kind = "dense_linear" if name == "bf16" else "grouped_linear"
            function, twin = getattr(linear, kind), getattr(linear_reference, kind)
            parts = (weights,) if name == "bf16" else weights
            size = sum(part.numel() * part.element_size() for part in parts if part is not None)
            alone = torch.cat([function(row[None], weights, bias) for row in rows[:17]])
            for count in sizes.row_counts:
                some = rows[:count]
                found = function(some, weights, bias)
                both = min(count, len(alone))
                yield kernel_entry(
                    f"{name} {outputs} x {inputs}, {count} rows",
                    found,
                    twin(some, weights, bias),
                    same_alone=torch.equal(found[:both], alone[:both]),
                    call=partial(function, some, weights, bias),
                    moved_bytes=size + 4 * count * (inputs + outputs),
                )


def attention_entries(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Check attention over random trees, in both precisions of keys and values."""
    for heads, kv_heads, dim in sizes.heads:
        for dtype in (torch.bfloat16, torch.float32):
            case = attention_case(
                7,
                heads=heads,
                kv_heads=kv_heads,
                dim=dim,
                requests=sizes.requests,
                longest=sizes.context,
                dtype=dtype,
                device=sizes.device,
            )
            plan, mixed = case.plan(), torch.zeros_like(case.queries)
            twin = torch.zeros_like(mixed)
            arguments = (plan, case.pool, case.queries)
            attention.tree_attention(*arguments, mixed, heads=heads)
            attention_reference.tree_attention(*arguments, twin, heads=heads)
            same = True
            for row in range(0, len(mixed), 5):
                own = case.alone(row)
                result = torch.zeros_like(own.queries)
                attention.tree_attention(own.plan(), own.pool, own.queries, result, heads=heads)
                same = same and torch.equal(result[0], mixed[row])
            yield kernel_entry(
                f"attention {heads}/{kv_heads} x {dim}, {dtype}, {len(mixed)} rows",
                mixed,
                twin,
                same_alone=same,
                call=partial(attention.tree_attention, *arguments, twin, heads=heads),
                moved_bytes=2 * kv_heads * dim * len(plan.keys) * case.pool.element_size(),
            )


def row_entries(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Check the kernels of single rows: node statistics and norms."""
    generator = torch.Generator().manual_seed(2)
    count = max(sizes.row_counts)
    logits = 4 * torch.randn(count, sizes.vocabulary, generator=generator).to(sizes.device)
    children = random_children(count, 7, sizes.vocabulary, 3).to(sizes.device)
    found = statistics.node_statistics(logits, children, 8)
    twin = statistics_reference.node_statistics(logits, children, 8)
    alone = statistics.node_statistics(logits[:1], children[:1], 8)
    assert torch.equal(found.top_ids, twin.top_ids)
    for name in ("log_sum_exp", "entropy", "child_logprobs"):
        own, other = getattr(found, name), getattr(twin, name)
        assert torch.equal(own.isnan(), other.isnan())
        yield kernel_entry(
            f"statistics: {name}, {count} rows of {sizes.vocabulary}",
            own.nan_to_num(),
            other.nan_to_num(),
            same_alone=torch.equal(own[:1].nan_to_num(), getattr(alone, name).nan_to_num()),
            call=lambda: statistics.node_statistics(logits, children, 8),
            moved_bytes=logits.numel() * 4,
        )
    rows = torch.randn(count, 576, generator=generator).to(sizes.device)
    weight = torch.randn(576, generator=generator).to(sizes.device)
    normed = norm.rms_norm(rows, weight, 1e-5)
    yield kernel_entry(
        f"norm, {count} rows",
        normed,
        norm_reference.rms_norm(rows, weight, 1e-5),
        same_alone=torch.equal(normed[:1], norm.rms_norm(rows[:1], weight, 1e-5)),
        call=lambda: norm.rms_norm(rows, weight, 1e-5),
        moved_bytes=rows.numel() * 8,
    )


def model_entry(path: Path, backend: str, sizes: Sizes) -> dict[str, Any]:
    """Decode alone, together, and together with drafts: the same bits each time."""
    config = EngineConfig(
        backend=backend, device=sizes.device, kv_tokens=sizes.kv_tokens, threads=1, draft=False
    )
    model = open_model(path, config)
    requests = [
        GenerationRequest(
            request_id=f"{index}/{sampling.temperature}",
            tenant_id="tenant",
            prompt_ids=tuple(model.tokenizer.encode(text)),
            max_tokens=sizes.new_tokens,
            sampling=sampling,
            ignore_eos=True,
        )
        for index, text in enumerate(sorted(TEXTS, key=len)[: sizes.prompts])
        for sampling in (SamplingParams(), SamplingParams(temperature=0.8, top_p=0.95, seed=5))
    ]
    alone = run_alone(lambda heard: loop(model, config, heard), requests)
    together, seconds = decoded(model, requests, config)
    drafted, seconds_drafted = decoded(
        model, requests, EngineConfig(max_running=16, verifier_batch_size=16)
    )
    tokens = sum(map(len, alone.tokens.values()))
    same = {
        "together": (together.logits, together.tokens) == (alone.logits, alone.tokens),
        "drafted": (drafted.logits, drafted.tokens) == (alone.logits, alone.tokens),
    }
    return {
        "backend": backend,
        "device": model.info.device,
        "instruction_set": model.info.instruction_set,
        "same_bits": same,
        "batch_invariant": model.decoder.batch_invariant,
        "tokens": tokens,
        "tokens_per_s_together": None if DRY_RUN else tokens / seconds,
        "tokens_per_s_drafted": None if DRY_RUN else tokens / seconds_drafted,
        "steps_together": len(together.steps),
        "steps_drafted": len(drafted.steps),
        "step_ms_by_rows": step_ms(model, sizes),
        "ok": all(same.values()) and model.decoder.batch_invariant and tokens > 0,
    }


def loop(model: OpenModel, config: EngineConfig, heard: Heard) -> Any:
    """Return a loop that is overheard, and that drafts whatever it costs."""
    vocabulary = model.tokenizer.vocab_size
    return loop_on(model.decoder, model.tokenizer, vocabulary, config, heard, cost=NoCost())


def decoded(
    model: OpenModel, requests: list[GenerationRequest], config: EngineConfig
) -> tuple[Heard, float]:
    """Decode all requests at once; return what was heard, and the seconds it took."""
    heard = Heard()
    running = loop(model, config, heard)
    for request in requests:
        running.submit(request)
    began = time.perf_counter()
    while running.busy:
        heard.take(running.step())
    return heard, time.perf_counter() - began


def step_ms(model: OpenModel, sizes: Sizes) -> dict[int, float | None]:
    """Time steps that continue one request behind a context, by their rows."""
    context = sizes.kv_tokens // 4
    times: dict[int, float | None] = {}
    for count in sizes.row_counts:
        tokens, slots = [5] * count, list(range(context, context + count))
        rows = Rows(Request([], list(range(context))), tokens, list(range(-1, count - 1)), slots)
        step = StepRows(
            *(int64(tokens), int64(slots), int64(slots)),
            *((rows.segment(),), torch.arange(count)),
        )
        taken = []
        for _ in range(1 if DRY_RUN else 15):
            began = time.perf_counter()
            model.decoder.forward(step).cpu()  # waits for the GPU
            taken.append(1e3 * (time.perf_counter() - began))
        times[count] = None if DRY_RUN else median(taken)
    return times


@click.command()
@click.option("--model", type=click.Path(exists=True, path_type=Path), help="A .dfm.")
def check(model: Path | None) -> None:
    """Check and time the GPU's kernels."""
    sizes = DRY if DRY_RUN else ON_A_GPU
    report = Report(
        kernels=[*linear_entries(sizes), *attention_entries(sizes), *row_entries(sizes)],
        models=[],
    )
    with tempfile.TemporaryDirectory() as folder:
        path = model or write_tiny_dfm(Path(folder) / "random.dfm", sizes.shape)
        report.models += [model_entry(path, backend, sizes) for backend in sizes.backends]
    document = {
        "ok": report.ok,
        "dry_run": DRY_RUN,
        "device": "cpu" if DRY_RUN else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "model": "random" if model is None else model.name,
        "kernels": report.kernels,
        "models": report.models,
    }
    click.echo(json.dumps(document))
    sys.exit(0 if report.ok else 1)


if __name__ == "__main__":
    check()

"""A comparison as tables in the terminal, and as a chart in a file."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from engine.bench.comparison import Comparison
from engine.bench.statistics import Figures
from engine.errors import EngineError

if TYPE_CHECKING:
    from engine.bench.roofline import Roofline

COLUMNS: dict[str, Callable[[Figures], str]] = {
    "decode tok/s": lambda row: _shown(row.decode_tokens_per_s, 1),
    "all tok/s": lambda row: _shown(row.tokens_per_s, 1),
    "first token ms": lambda row: _shown(row.first_token_ms, 0),
    "prefill tok/s": lambda row: _shown(row.prefill_tokens_per_s, 0),
    "step ms": lambda row: _shown(row.step_ms, 1),
    "p95": lambda row: _shown(row.step_ms_p95, 1),
    "length": lambda row: _shown(row.mean_accepted_length, 2),
    "depth": lambda row: _shown(row.mean_depth, 2),
    "per node": lambda row: _shown(row.node_efficiency, 2),
    "rejected": lambda row: _shown(row.rejection_rate, 2),
    "head ms": lambda row: _shown(row.head_ms, 2),
    "MiB": lambda row: _shown(row.peak_memory_bytes / 2**20, 0),
}


def show(comparison: Comparison, console: Console) -> None:
    """Print the figures of every arm, then the ratios."""
    for concurrency in dict.fromkeys(row.concurrency for row in comparison.results):
        rows = [row for row in comparison.results if row.concurrency == concurrency]
        console.print(_figures(f"concurrency {concurrency}", rows))
    console.print(_ratios(comparison))
    for arm, share in comparison.agreement.items():
        console.print(f"{arm}: {share:.0%} of our tokens before the first that differs")
    same = "the same tokens" if comparison.identical else "DIFFERENT TOKENS"
    console.print(f"{comparison.rounds} rounds; all arms of ours said {same}")


def show_roofline(found: Roofline, console: Console) -> None:
    """Print the machine, and each step part by part."""
    machine = found.machine
    console.print(
        f"copy {machine.copy_gb_per_s:.1f} GB/s in memory, {machine.cached_gb_per_s:.1f} GB/s on a "
        f"working set of the weights' size; {machine.int8_giga_macs_per_s:.0f} G 8-bit "
        "multiply-adds/s"
    )
    for step in found.steps:
        table = Table(
            title=f"{step.rows} rows behind {step.context} tokens: "
            f"{step.measured_us / 1e3:.2f} ms, bound {step.bound_us / 1e3:.2f} ms",
            title_justify="left",
        )
        for name in ("part", "MB", "M multiply-adds", "bound us", "took us", "of the bound"):
            table.add_column(name, justify="left" if name == "part" else "right")
        for part in step.parts:
            table.add_row(
                part.name,
                _shown(part.bytes / 1e6, 2),
                _shown(part.macs / 1e6, 1),
                _shown(part.bound_us, 0),
                _shown(part.measured_us, 0),
                "-" if part.share is None else f"{part.share:.0%}",
            )
        table.add_row("all other", "", "", "", _shown(step.other_us, 0), "")
        console.print(table)


def draw(comparison: Comparison, path: Path) -> None:
    """Write a chart: decode tokens/s of every arm, by concurrency and by category.

    The file's extension says the format. Raises EngineError when matplotlib is absent.
    """
    try:
        figure_module: Any = importlib.import_module("matplotlib.figure")
    except ModuleNotFoundError as error:
        raise EngineError("a chart needs matplotlib: install dflash-gateway[bench]") from error
    figure = figure_module.Figure(figsize=(11, 7), layout="constrained")
    overall, categories = figure.subplots(2, 1)
    rows = [row for row in comparison.results if row.decode_tokens_per_s is not None]
    total = [row for row in rows if row.category is None]
    _bars(overall, total, [str(row.concurrency) for row in total])
    overall.set_xlabel("concurrency")
    least = min((row.concurrency for row in rows), default=1)
    named = [row for row in rows if row.category is not None and row.concurrency == least]
    _bars(categories, named, [str(row.category) for row in named])
    categories.set_xlabel(f"category, at concurrency {least}")
    for axes in (overall, categories):
        axes.set_ylabel("decode tokens/s")
        axes.spines[["top", "right"]].set_visible(False)
    overall.legend(frameon=False, ncols=4)
    figure.savefig(path)


def _bars(axes: Any, rows: Sequence[Figures], labels: Sequence[str]) -> None:
    """Draw a group of bars per label, a bar per arm; whiskers reach from the slowest round."""
    groups, arms = list(dict.fromkeys(labels)), list(dict.fromkeys(row.arm for row in rows))
    width = 0.8 / max(1, len(arms))
    for turn, arm in enumerate(arms):
        own = [
            (groups.index(x), row) for x, row in zip(labels, rows, strict=True) if row.arm == arm
        ]
        heights = [row.decode_tokens_per_s or 0.0 for _, row in own]
        below = [
            h - (row.decode_tokens_per_s_min or h) for h, (_, row) in zip(heights, own, strict=True)
        ]
        above = [
            (row.decode_tokens_per_s_max or h) - h for h, (_, row) in zip(heights, own, strict=True)
        ]
        places = [group + (turn - (len(arms) - 1) / 2) * width for group, _ in own]
        axes.bar(places, heights, width, label=arm, yerr=[below, above], error_kw={"lw": 0.8})
    axes.set_xticks(range(len(groups)), groups)


def _figures(title: str, rows: Sequence[Figures]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("category")
    table.add_column("arm")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    categories = list(dict.fromkeys(row.category for row in rows))
    for category in categories[-1:] if len(categories) == 2 else categories:  # one is all
        for row in rows:
            if row.category == category:
                table.add_row(
                    category or "all", row.arm, *(shown(row) for shown in COLUMNS.values())
                )
        table.add_section()
    return table


def _ratios(comparison: Comparison) -> Table:
    concurrencies = list(dict.fromkeys(row.concurrency for row in comparison.results))
    table = Table(title="ours to theirs, by concurrency", title_justify="left")
    table.add_column("arm")
    for kind in ("decode", "prefill"):
        for concurrency in concurrencies:
            table.add_column(f"{kind} {concurrency}", justify="right")
    table.add_column("by category")
    for arm in comparison.ratios:
        cells = [
            _shown(ratios[arm].get(str(concurrency)), 2)
            for ratios in (comparison.ratios, comparison.prefill_ratios)
            for concurrency in concurrencies
        ]
        single = comparison.ratios_by_category[arm]
        words = [
            f"{category} {value:.2f}"
            for by_category in single.values()
            for category, value in by_category.items()
        ]
        table.add_row(arm, *cells, ", ".join(words) or "-")
    return table


def _shown(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"

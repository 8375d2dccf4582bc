"""An answer and its receipt, laid out for a terminal. Pure: what it shows is what was signed."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from metering.semantic import Segmenter
from metering.unit_painting import painted
from metering.wording import counted

NOTHING = "-"


def render(prompt: str, answer: dict[str, Any]) -> RenderableType:
    """Lay out a prompt, its answer, and the receipt that came with it."""
    envelope = answer["receipt"]
    receipt = envelope["receipt"]
    return Group(
        Panel(Text(prompt), title="prompt", title_align="left", border_style="dim"),
        Panel(_answer(answer["output"] or "", receipt), title="answer", title_align="left"),
        Panel(
            Group(_facts(receipt), Padding(_lines(receipt), (1, 0)), _signature(envelope)),
            title=f"receipt {receipt['request_id']}",
            title_align="left",
            border_style="green",
        ),
    )


def _answer(output: str, receipt: dict[str, Any]) -> Text:
    """The answer with its semantic units marked, found again from the text alone."""
    segmenter = Segmenter()
    data = output.encode()
    units = segmenter.feed(data) + segmenter.finish(stopped=receipt["finish_reason"] == "stop")
    return painted(data, units)


def _facts(receipt: dict[str, Any]) -> Table:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column()
    for name, value in (
        ("model", _model(receipt)),
        ("output", _output(receipt)),
        ("units", _units(receipt["units"])),
        ("confidence", _confidence(receipt["confidence"])),
        ("information", _quantity(receipt["information_bits"], "bits")),
        ("energy", _energy(receipt["energy"])),
        *((("green", _green(green)),) if (green := receipt.get("green")) else ()),
        ("drafting", _drafting(receipt["drafting"])),
        ("tariff", f"{receipt['tariff']['name']} version {receipt['tariff']['version']}"),
        ("review", _review(receipt["review"])),
    ):
        facts.add_row(name, Text(value))
    return facts


def _lines(receipt: dict[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_footer=True)
    table.add_column("line", footer="total")
    table.add_column("detail", style="dim")
    for heading in ("quantity", "unit price"):
        table.add_column(heading, justify="right")
    table.add_column(
        receipt["currency"], justify="right", footer=Text(receipt["total"], style="bold")
    )
    for line in receipt["lines"]:
        # Fewer than were emitted: a block in which no draft was accepted costs nothing by itself.
        detail = "accepted drafts" if line["component"] == "blocks" else line["detail"]
        quantity = counted(line["quantity"], line["unit"])
        cells = (line["component"], detail, quantity, line["unit_price"], line["amount"])
        table.add_row(*map(Text, cells))
    return table


def _signature(envelope: dict[str, Any]) -> Text:
    signature = envelope["signature"]
    return Text.assemble(
        ("verified", "bold green"),
        f"  {signature['alg']}, key {signature['kid']}, sha256 {envelope['sha256'][:16]}...",
    )


def _model(receipt: dict[str, Any]) -> str:
    engine = receipt["engine"]
    if engine is None:
        return str(receipt["model"]["name"])
    threads = engine["thread_count"]
    return (
        f"{receipt['model']['name']} on {engine['device']}, {engine['backend']},"
        f" {engine['instruction_set']}, {counted(threads, 'threads')}"
    )


def _output(receipt: dict[str, Any]) -> str:
    output = receipt["output"]
    return (
        f"{counted(output['output_tokens'], 'tokens')} in {counted(output['blocks'], 'blocks')},"
        f" {counted(output['input_tokens'], 'tokens')} in, finished by {receipt['finish_reason']}"
    )


def _units(units: dict[str, Any]) -> str:
    kinds: dict[str, int] = {}
    for group in units["groups"]:
        kinds[group["kind"]] = kinds.get(group["kind"], 0) + group["count"]
    named = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    counted = f"{units['complete']} complete, {units['fragment']} open"
    return f"{counted} ({named})" if named else counted


def _confidence(confidence: dict[str, Any] | None) -> str:
    if confidence is None:
        return "no score"
    return (
        f"{confidence['geo_mean']} per token, least {confidence['min_prob']}:"
        f" tier {confidence['tier']}, by {confidence['basis']}"
    )


def _energy(energy: dict[str, Any]) -> str:
    if energy["joules"] is None:
        return str(energy["class"])
    spread = f" ±{energy['uncertainty_pct']} %" if energy["uncertainty_pct"] is not None else ""
    return f"{energy['joules']} J{spread}, {energy['class']} ({energy['source']})"


def _green(green: dict[str, Any]) -> str:
    off = "" if green["discount"] is None else f", {green['discount']} off"
    return f"ran on {green['replica']}: {green['reason'].replace('_', ' ')}{off}"


def _drafting(drafting: dict[str, Any]) -> str:
    return (
        f"{counted(drafting['accepted_tokens'], 'tokens')} accepted in"
        f" {counted(drafting['steps'], 'steps')},"
        f" hit rate {drafting['draft_hit_rate'] or NOTHING},"
        f" {drafting['mean_accepted_length'] or NOTHING} tokens a step"
    )


def _review(review: dict[str, Any] | None) -> str:
    if review is None:
        return "none"
    return f"queued for {review['reason']}, paid by the {review['paid_by']}"


def _quantity(value: str | None, unit: str) -> str:
    return NOTHING if value is None else f"{value} {unit}"

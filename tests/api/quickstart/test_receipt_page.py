"""What a terminal shows of a receipt is what was signed."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from api.quickstart.receipt_page import render

SAMPLE = Path(__file__).parents[2] / "wheel" / "receipt.json"


@pytest.fixture
def envelope() -> dict[str, Any]:
    return dict(json.loads(SAMPLE.read_text()))


def shown(envelope: dict[str, Any], output: str | None = "def f(): ...") -> str:
    console = Console(width=120, file=StringIO(), record=True)
    console.print(render("a prompt", {"output": output, "receipt": envelope}))
    return console.export_text()


def test_the_total_and_every_line_are_shown(envelope: dict[str, Any]) -> None:
    page = shown(envelope)
    receipt = envelope["receipt"]
    assert receipt["total"] in page
    for line in receipt["lines"]:
        assert line["component"] in page
        assert line["amount"] in page


def test_how_the_joules_were_had_stands_beside_them(envelope: dict[str, Any]) -> None:
    energy = envelope["receipt"]["energy"]
    assert f"{energy['joules']} J" in shown(envelope)
    assert energy["class"] in shown(envelope)


def test_joules_that_are_unavailable_are_not_zero(envelope: dict[str, Any]) -> None:
    envelope["receipt"]["energy"] |= {"class": "unavailable", "joules": None}
    page = shown(envelope)
    assert "unavailable" in page
    assert " J" not in page


def test_what_is_missing_is_left_open(envelope: dict[str, Any]) -> None:
    envelope["receipt"] |= {
        "confidence": None,
        "information_bits": None,
        "engine": None,
        "review": {"reason": "missing_score", "fee": "0", "paid_by": "operator"},
    }
    envelope["receipt"]["drafting"]["draft_hit_rate"] = None
    page = shown(envelope, output=None)
    assert "no score" in page
    assert "queued for missing_score, paid by the operator" in page


def test_an_answer_with_markup_is_shown_as_it_is(envelope: dict[str, Any]) -> None:
    assert "x[bold]y[/bold]" in shown(envelope, output="x[bold]y[/bold]")

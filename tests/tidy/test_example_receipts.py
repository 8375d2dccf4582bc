"""The receipts that the docs show: signed, whole, and in today's form.

That a gateway of today writes the same fields is held where one is run: tests/flow.
"""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from click.testing import CliRunner
from example_receipts import FOLDER, KEYS, example

from billing.receipt_documents import SALTED_SCHEMA
from dflash.cli import cli

EXAMPLES = {
    "measured": ("measured", "nvml_total_energy", "gpu_board"),
    "estimated": ("estimated", "cpu_time", "process"),
}


def test_every_receipt_of_the_docs_is_checked_here() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == {*EXAMPLES, KEYS.stem}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_receipt_verifies_with_the_text_that_it_was_given_for(name: str) -> None:
    file = str(FOLDER / f"{name}.json")
    done = CliRunner().invoke(cli, ["receipt", "verify", file, "--keys", str(KEYS)])
    assert done.exit_code == 0, done.output
    assert "not checked" not in done.output


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_receipt_adds_up_and_says_how_its_joules_were_had(name: str) -> None:
    answer = example(name)
    receipt = answer["receipt"]["receipt"]
    assert receipt["schema"] == SALTED_SCHEMA
    total = sum(Decimal(line["amount"]) for line in receipt["lines"])
    assert total == Decimal(receipt["total"]) == Decimal(answer["cost"])
    energy = receipt["energy"]
    assert (energy["class"], energy["source"], energy["scope"]) == EXAMPLES[name]
    [line] = [line for line in receipt["lines"] if line["component"] == "energy"]
    assert line["detail"].startswith(energy["class"])
    assert 0 < Decimal(line["quantity"]) <= Decimal(energy["joules"])


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_receipt_names_no_machine(name: str) -> None:
    assert "/" not in json.dumps(example(name)["receipt"]["receipt"]["engine"])

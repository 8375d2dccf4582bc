"""Asks a gateway what a program can judge, judges the answers, and writes the verdicts.

    export PYTHONPATH=.:tests/support
    python tests/oracle/verdicts.py ask humaneval --problems humaneval.jsonl --out answers.jsonl
    python tests/oracle/verdicts.py judge humaneval-tests --problems humaneval.jsonl \
        --answers answers.jsonl --out verdicts.jsonl
    dflash calibrate labels verdicts.jsonl --judge humaneval-tests

A suite is `capitals`, `humaneval` (whose problems come in a file), `sums` or `tables`. HumanEval's
answers are judged by running its tests (`humaneval-tests`) or by whether they are Python at all
(`humaneval-parses`), the others by what is known: tables line by line, the rest as a whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import httpx
from oracle_tasks import (
    Task,
    capital_is_right,
    capitals,
    humaneval,
    parses,
    passes,
    problems,
    product_is_right,
    sum_is_right,
    sums,
    tables,
)

from metering.events import UnitState
from metering.semantic import Segmenter

SUITES = {"capitals": capitals, "humaneval": humaneval, "sums": sums, "tables": tables}
JUDGES = ("capitals", "humaneval-tests", "humaneval-parses", "sums", "tables")
AT_ONCE = 8
ANSWER_MAX_S = 300


@click.group()
def verdicts() -> None:
    """Verdicts that need nobody's opinion."""


@verdicts.command()
@click.argument("suite", type=click.Choice(sorted(SUITES)))
@click.option("--problems", "path", type=click.Path(path_type=Path), default=Path(os.devnull))
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--url", default="http://127.0.0.1:8000", show_default=True)
@click.option("--key", envvar="GATEWAY_KEY", required=True, help="[default: $GATEWAY_KEY]")
def ask(suite: str, path: Path, out: Path, url: str, key: str) -> None:
    """Put a suite's questions to a gateway and keep the answers with their receipts' facts."""
    headers = {"authorization": f"Bearer {key}"}
    with (
        httpx.Client(base_url=url, headers=headers, timeout=ANSWER_MAX_S) as client,
        ThreadPoolExecutor(AT_ONCE) as pool,
        out.open("w") as file,
    ):
        for answer in pool.map(lambda task: _answer(client, task), SUITES[suite](path)):
            file.write(json.dumps(answer) + "\n")
            file.flush()


def _answer(client: httpx.Client, task: Task) -> dict[str, Any]:
    reply = client.post(
        "/generate",
        json={
            "messages": [{"role": "user", "content": task.prompt}],
            "temperature": task.temperature,
            "seed": task.seed,
            "max_tokens": task.max_tokens,
        },
    )
    generation = reply.raise_for_status().json()
    return {
        "task": task.id,
        "group": task.group,
        "request_id": generation["id"],
        "output": generation["output"],
        "output_sha256": generation["receipt"]["receipt"]["output"]["sha256"],
        "stopped": generation["finish_reason"] == "stop",
    }


@verdicts.command()
@click.argument("judge", type=click.Choice(JUDGES))
@click.option("--problems", "path", type=click.Path(path_type=Path), default=Path(os.devnull))
@click.option("--answers", type=click.Path(path_type=Path), required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True)
def judge(judge: str, path: Path, answers: Path, out: Path) -> None:
    """Judge kept answers, and write a line for each verdict."""
    asked = {each["task_id"]: each for each in problems(path)}
    lines = [
        json.dumps({"request_id": answer["request_id"], "group": answer["group"], **verdict})
        for answer in map(json.loads, answers.read_text().splitlines())
        for verdict in _judged(judge, answer, asked)
    ]
    out.write_text("".join(f"{line}\n" for line in lines))


def _judged(
    judge: str, answer: dict[str, Any], asked: dict[str, dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    output = answer["output"]
    if judge == "tables":
        raw = output.encode()
        segmenter = Segmenter()
        units = [*segmenter.feed(raw), *segmenter.finish(stopped=answer["stopped"])]
        for index, unit in enumerate(units):
            right = product_is_right(raw[unit.start : unit.end].decode(errors="replace"))
            if right is not None and unit.state is UnitState.COMPLETE:
                yield {"unit": index, "verdict": _word(right)}
        return
    if judge == "sums":
        right = sum_is_right(answer["task"], output)
    elif judge == "capitals":
        right = capital_is_right(answer["task"], output)
    else:
        rule = passes if judge == "humaneval-tests" else parses
        right = rule(asked[answer["group"]], output)
    yield {"output_sha256": answer["output_sha256"], "verdict": _word(right)}


def _word(right: bool) -> str:
    return "approve" if right else "reject"


if __name__ == "__main__":
    verdicts()

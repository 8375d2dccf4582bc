"""Verdicts of programs: what is run apart is kept apart, and right is told from wrong."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import oracle_sandbox
import pytest
from click.testing import CliRunner
from oracle_sandbox import runs
from oracle_tasks import humaneval, product_is_right, sum_is_right, sums, tables

PROBLEM = {
    "task_id": "HumanEval/0",
    "prompt": 'from typing import List\n\n\ndef total(some: List[int]) -> int:\n    """Add."""\n',
    "entry_point": "total",
    "test": "def check(candidate):\n    assert candidate([1, 2]) == 3\n",
}
RIGHT = "Here:\n```python\ndef total(some: List[int]) -> int:\n    return sum(some)\n```\nDone."
WRONG = "```python\ndef total(some: List[int]) -> int:\n    return 0\n```"
NO_PYTHON = "```python\ndef total(some) return\n```"

apart = pytest.mark.skipif(
    not oracle_sandbox.available(), reason="needs user and network namespaces"
)


@apart
def test_a_program_runs_to_its_end_or_is_ended() -> None:
    assert runs("open('mine', 'w').write('x' * 1000); import re, math")
    for hostile in (
        "while True: pass",
        "bytearray(1 << 30)",
        "open('large', 'wb').write(b'x' * (2 << 20))",
        "import socket; socket.create_connection(('127.0.0.1', 9), 1)",
        "assert False",
        "raise SystemExit(0)",
    ):
        assert not runs(hostile, cpu_s=1), hostile


@apart
def test_there_is_no_network_at_all() -> None:
    up = "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()"
    down = f"{up}; socket.create_connection(s.getsockname(), 1)"
    assert runs(up)
    assert not runs(down), "not even the loopback device is up"


@apart
def test_answers_are_judged_and_the_verdicts_name_what_they_are_about(tmp_path: Path) -> None:
    problems, answers, out = (tmp_path / name for name in ("p.jsonl", "a.jsonl", "v.jsonl"))
    problems.write_text(json.dumps(PROBLEM) + "\n")
    program = runpy.run_path(str(Path(__file__).with_name("verdicts.py")))["verdicts"]

    def judged(judge: str, *said: tuple[str, str]) -> list[dict[str, object]]:
        rows = [
            {
                "task": task,
                "group": PROBLEM["task_id"],
                "request_id": f"req_{number}",
                "output": text,
                "output_sha256": "ab",
                "stopped": True,
            }
            for number, (task, text) in enumerate(said)
        ]
        answers.write_text("".join(json.dumps(row) + "\n" for row in rows))
        files = ("--problems", problems, "--answers", answers, "--out", out)
        done = CliRunner().invoke(program, ["judge", judge, *map(str, files)])
        assert done.exit_code == 0, done.output
        return [json.loads(line) for line in out.read_text().splitlines()]

    code = [("x", text) for text in (RIGHT, WRONG, NO_PYTHON)]
    about = {"group": "HumanEval/0", "output_sha256": "ab"}
    assert judged("humaneval-tests", *code) == [
        {"request_id": "req_0", "verdict": "approve", **about},
        {"request_id": "req_1", "verdict": "reject", **about},
        {"request_id": "req_2", "verdict": "reject", **about},
    ]
    words = [each["verdict"] for each in judged("humaneval-parses", *code)]
    assert words == ["approve", "approve", "reject"]
    assert [each["verdict"] for each in judged("sums", ("2 - 7", "It is -5."))] == ["approve"]
    table = "Here it is.\n\n- 3 x 1 = 3\n- 3 x 2 = 7\n- and so on"
    assert judged("tables", ("x", table)) == [
        {"request_id": "req_0", "group": "HumanEval/0", "unit": 1, "verdict": "approve"},
        {"request_id": "req_0", "group": "HumanEval/0", "unit": 2, "verdict": "reject"},
    ]


def test_questions_are_the_same_every_time_and_repeats_share_a_group(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps(PROBLEM) + "\n")
    for suite in (humaneval, sums, tables):
        tasks = list(suite(path))
        assert tasks == list(suite(path))
        assert len({task.id for task in tasks}) == len(tasks)
    assert {task.group for task in humaneval(path)} == {"HumanEval/0"}
    assert len({task.group for task in sums(path)}) == 1000


@pytest.mark.parametrize(
    ("task", "output", "right"),
    [
        ("2 + 3", "2 + 3 = 5", True),
        ("2 * 3", "5 or 6", True),
        ("999 * 2", "1,998.", True),
        ("2 + 3", "five", False),
    ],
)
def test_a_sum_is_right_by_the_last_number_that_is_said(
    task: str, output: str, right: bool
) -> None:
    assert sum_is_right(task, output) is right


def test_a_line_states_one_product_or_none() -> None:
    assert product_is_right("- 12 x 3 = 36") is True
    assert product_is_right("12 × 3 = 37") is False
    assert product_is_right("3 x 1 = 3, 3 x 2 = 6") is None
    assert product_is_right("of 12") is None

"""Questions whose answers a program can judge: what to ask, and whether an answer is right."""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from oracle_capitals import CAPITALS
from oracle_sandbox import runs

CODE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:\n```|\Z)", re.DOTALL)
PRODUCT_TEXT = re.compile(r"(\d+)\s*(?:x|X|\*|×|times)\s*(\d+)\s*(?:=|is)\s*(\d+)")
NUMBER = re.compile(r"-?\d+")
TEMPERATURES = (0.2, 0.4, 0.6, 0.8)
SEEDS = (0, 1)  # at each temperature
TABLES = range(2, 122)
SUMS = 1000


@dataclass(frozen=True, slots=True)
class Task:
    """One question as it is put. Those of one `group` ask the same thing, and err together."""

    id: str
    group: str
    prompt: str
    temperature: float
    seed: int
    max_tokens: int


def humaneval(path: Path) -> Iterator[Task]:
    """Every problem eight times: twice at each of four temperatures."""
    asked = problems(path)
    for seed, temperature in product(SEEDS, TEMPERATURES):
        for problem in asked:
            yield Task(
                id=f"{problem['task_id']}@{temperature}/{seed}",
                group=problem["task_id"],
                prompt="Complete this Python function. Answer with the whole function in one "
                f"Python code block.\n\n```python\n{problem['prompt']}```",
                temperature=temperature,
                seed=seed,
                max_tokens=256,
            )


def sums(_path: Path) -> Iterator[Task]:
    """Additions, subtractions and products of numbers of one to three digits."""
    drawn = random.Random(7)
    asked: set[str] = set()
    while len(asked) < SUMS:
        left, right = (drawn.randrange(10 ** drawn.randint(1, 3)) for _ in "ab")
        text = f"{left} {drawn.choice('+-*')} {right}"
        if text in asked:
            continue
        asked.add(text)
        yield Task(
            id=text,
            group=text,
            prompt=f"What is {text}? Answer with the number only.",
            temperature=0.0,
            seed=0,
            max_tokens=24,
        )


def capitals(_path: Path) -> Iterator[Task]:
    """Every country's capital."""
    for country in CAPITALS:
        yield Task(
            id=country,
            group=country,
            prompt=f"What is the capital of {country}? Answer in one short sentence.",
            temperature=0.0,
            seed=0,
            max_tokens=32,
        )


def tables(_path: Path) -> Iterator[Task]:
    """Multiplication tables, a line of which is right or wrong by itself."""
    for factor in TABLES:
        yield Task(
            id=f"table of {factor}",
            group=f"table of {factor}",
            prompt=f"Write the multiplication table of {factor} from 1 to 8, one product on each "
            f"line, like this:\n\n- {factor} x 1 = {factor}",
            temperature=0.0,
            seed=0,
            max_tokens=120,
        )


def problems(path: Path) -> list[dict[str, Any]]:
    """HumanEval's problems, in the file's order."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def passes(problem: dict[str, Any], output: str) -> bool:
    """Whether the answer's function passes the problem's own tests, run apart."""
    code = code_of(output)
    return parses(problem, output) and runs(
        f"{imports(problem)}\n{code}\n{problem['test']}\ncheck({problem['entry_point']})\n"
    )


def parses(problem: dict[str, Any], output: str) -> bool:
    """Whether the answer's code is Python and defines the function that was asked for."""
    try:
        module = ast.parse(code_of(output))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(
        isinstance(node, ast.FunctionDef) and node.name == problem["entry_point"]
        for node in module.body
    )


def imports(problem: dict[str, Any]) -> str:
    """What the problem's prompt has before the function: an answer may leave it out."""
    before, _, _ = problem["prompt"].partition(f"def {problem['entry_point']}(")
    return str(before)


def code_of(output: str) -> str:
    """The first block of code, or the whole where there is none."""
    found = CODE.search(output)
    return found[1] if found else output


def sum_is_right(task: str, output: str) -> bool:
    """Whether the last number of the answer is the result."""
    left, sign, right = task.split()
    result = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[sign](int(left), int(right))
    found = NUMBER.findall(output.replace(",", ""))
    return bool(found) and int(found[-1]) == result


def capital_is_right(country: str, output: str) -> bool:
    """Whether the answer's first sentence names the capital, and not only the country."""
    said, _, _ = output.replace("St.", "St").partition(". ")
    told = said.replace(country, "", 1) if country in CAPITALS[country] else said
    return any(name.replace("St.", "St") in told for name in CAPITALS[country])


def product_is_right(line: str) -> bool | None:
    """Whether a line's one product is true; null for a line that states none, or several."""
    found = PRODUCT_TEXT.findall(line.replace(",", ""))
    if len(found) != 1:
        return None
    left, right, result = map(int, found[0])
    return left * right == result

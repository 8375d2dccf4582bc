"""Prompts from a JSON Lines file, or from the tasks that come with the package. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import EngineError
from engine.tokenizer import Tokenizer


class InvalidPrompts(EngineError):
    """A prompts file that can't be read; the message names the line."""


class Prompt(msgspec.Struct, frozen=True):
    """What to continue: raw text, or a conversation for the model's chat template."""

    id: str
    prompt: str | None = None
    messages: tuple[dict[str, str], ...] | None = None

    def encoded(self, tokenizer: Tokenizer) -> list[int]:
        """Return the prompt's token ids. Raises InvalidRequest."""
        if self.messages is not None:
            return tokenizer.encode_chat(self.messages)
        return tokenizer.encode(self.prompt or "")


def read_prompts(path: Path) -> list[Prompt]:
    """Read one `{"id", "prompt"}` or `{"id", "messages"}` a line; `task_id` will do for `id`.

    Other fields are data about the prompt and are left alone. Raises InvalidPrompts.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidPrompts(f"{path}: {error}") from error
    prompts = list(_parsed(path, lines))
    if not prompts:
        raise InvalidPrompts(f"{path}: no prompts in it")
    return prompts


def _parsed(path: Path, lines: list[str]) -> Iterator[Prompt]:
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            prompt = _prompt(msgspec.json.decode(line))
        except (msgspec.DecodeError, ValueError) as error:
            raise InvalidPrompts(f"{path}:{number}: {error}") from error
        if prompt.id in seen:
            raise InvalidPrompts(
                f"{path}:{number}: the id {prompt.id!r} was used in line {seen[prompt.id]}"
            )
        seen[prompt.id] = number
        yield prompt


def _prompt(document: Any) -> Prompt:
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    identifier = document.get("id", document.get("task_id"))
    if not isinstance(identifier, str | int) or isinstance(identifier, bool):
        raise ValueError("`id` must be a string or a number")
    if ("prompt" in document) == ("messages" in document):
        raise ValueError("exactly one of `prompt` and `messages` is needed")
    fields = {name: document[name] for name in ("prompt", "messages") if name in document}
    return msgspec.convert({"id": str(identifier), **fields}, Prompt)


TASKS: dict[str, tuple[str, ...]] = {
    "code-gen": (
        "Write a Python function that returns the n-th Fibonacci number without recursion.",
        "Write a Python class for a bank account with deposit, withdraw and transfer methods.",
        "Write a Python function that merges two sorted lists into one sorted list.",
        "Write a Python function that counts the words of a text and returns the ten commonest.",
        "Write a Python dataclass for a point in the plane, with distance and rotation methods.",
        "Write a Python function that checks whether the brackets of a string are balanced.",
        "Write a Python script that reads a CSV file and prints the mean of each numeric column.",
        "Write a Python function that finds all prime numbers up to n with a sieve.",
    ),
    "chat": (
        "What should I look for when I buy a second-hand bicycle?",
        "Explain to a ten-year-old why the sky is blue.",
        "Suggest a simple dinner for four people who do not eat meat.",
        "How do I ask my neighbour politely to turn the music down?",
        "What is the difference between weather and climate?",
        "Give me three reasons to learn a second language.",
        "How does a refrigerator keep food cold?",
        "Plan a rainy afternoon with two small children.",
    ),
    "rewrite": (
        "Repeat this list in alphabetical order: pear, apple, fig, quince, cherry, plum, lemon.",
        "Rewrite in the past tense: Every morning she walks to the river and feeds the ducks.",
        'Turn into JSON with keys name, age, city: "Ines is 31 and lives in Porto."',
        "Correct the spelling: Yesterday I recieved a leter from my freind in Amsterdamm.",
        "Rename the variable x to total in: x = 0; x = x + price; x = x + tax; print(x)",
        "Shorten to one sentence: The meeting was long. It was also dull. Nobody agreed.",
        "Make a Markdown table of: tea 2.50, coffee 3.10, cocoa 3.40, water 1.00.",
        "Write out as a numbered list: wake up, wash, eat breakfast, pack the bag, leave.",
    ),
}


def task_prompts(task: str) -> list[Prompt]:
    """Return the prompts of a task that comes with the package."""
    return [
        Prompt(id=f"{task}/{index}", messages=({"role": "user", "content": text},))
        for index, text in enumerate(TASKS[task])
    ]

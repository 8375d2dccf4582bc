"""Prompts from a JSON Lines file, or from the tasks that come with the package. Torch-free.

Lines of HumanEval and of Spec-Bench are understood as they are published: the former are raw
text to continue, of the latter the first turn is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from engine.errors import EngineError
from engine.tokenizer import Tokenizer

Turns = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


class InvalidPrompts(EngineError):
    """A prompts file that can't be read; the message names the line."""


# Spec-Bench's own names, and those of the MT-Bench questions in it, to the categories shown.
SPEC_BENCH_CATEGORIES = {
    "math_reasoning": "maths",
    "qa": "chat",
    "rag": "rag",
    "summarization": "summarisation",
    "translation": "translation",
    **dict.fromkeys(
        ("coding", "extraction", "humanities", "math", "reasoning", "roleplay", "stem", "writing"),
        "chat",
    ),
}


class Prompt(msgspec.Struct, frozen=True):
    """What to continue: raw text, or a conversation for the model's chat template."""

    id: str
    prompt: str | None = None
    messages: tuple[dict[str, str], ...] | None = None
    category: str | None = None  # what the bench counts it under

    def encoded(self, tokenizer: Tokenizer) -> list[int]:
        """Return the prompt's token ids. Raises InvalidRequest."""
        if self.messages is not None:
            return tokenizer.encode_chat(self.messages)
        return tokenizer.encode(self.prompt or "")

    def asked(self) -> Prompt:
        """Return the prompt as a question: raw text as what a user says."""
        if self.prompt is None:
            return self
        messages = ({"role": "user", "content": self.prompt},)
        return msgspec.structs.replace(self, prompt=None, messages=messages)


def read_text(path: Path) -> str:
    """Read a file of text that a command was given. Raises InvalidPrompts where it is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidPrompts(f"{path}: {error}") from error


def read_prompts(path: Path) -> list[Prompt]:
    """Read one `{"id", "prompt"}` or `{"id", "messages"}` a line, perhaps with a `category`.

    For `id`, `task_id` or `question_id` will do, and for `messages` Spec-Bench's `turns`. Other
    fields are data about the prompt and are left alone. Raises InvalidPrompts.
    """
    prompts = list(_parsed(path, read_text(path).splitlines()))
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
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
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
    named = [document[name] for name in ("id", "task_id", "question_id") if name in document]
    if not named or not isinstance(named[0], str | int) or isinstance(named[0], bool):
        raise ValueError("`id` must be a string or a number")
    contents = [name for name in ("prompt", "messages", "turns") if name in document]
    if len(contents) != 1:
        raise ValueError("exactly one of `prompt` and `messages` is needed")
    category = document.get("category")
    if contents == ["turns"]:
        turns = msgspec.convert(document["turns"], Turns)
        fields = {"messages": ({"role": "user", "content": turns[0]},)}
        category = SPEC_BENCH_CATEGORIES.get(str(category), category)
    else:
        fields = {contents[0]: document[contents[0]]}
        if category is None and "entry_point" in document:
            category = "code"  # HumanEval
    return msgspec.convert({"id": str(named[0]), "category": category, **fields}, Prompt)


def selected(prompts: Sequence[Prompt], limit: int | None) -> dict[str, list[Prompt]]:
    """Group prompts by category, at most `limit` of each, spread evenly over the file.

    Those without a category are counted as "other". Changes nothing.
    """
    groups: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.category or "other", []).append(prompt)
    return {
        category: [group[index * len(group) // count] for index in range(count)]
        for category, group in groups.items()
        if (count := min(limit or len(group), len(group)))
    }


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
        Prompt(
            id=f"{task}/{index}",
            messages=({"role": "user", "content": text},),
            category="code" if task == "code-gen" else task,
        )
        for index, text in enumerate(TASKS[task])
    ]

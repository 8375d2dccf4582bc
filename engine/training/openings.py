"""How a conversation begins, so that the model goes on and asks the question itself. Torch-free.

A chat template is taken apart by rendering two messages that differ: what their encodings share at
the front comes before a user's words, what they share at the end comes after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import InvalidRequest
from engine.tokenizer import Tokenizer

# A few words each, so that all kinds of work come up; the model samples everything after them.
# The empty one lets it choose.
QUESTIONS = (
    *("", "", "", "", "What", "How", "Why", "Can you", "Explain", "Describe", "Tell me about"),
    *("Write a Python function", "Write a Python function that", "Write a Python class"),
    *("Write a program", "Write a function", "Complete the following Python code:\n\ndef"),
    *("Fix the bug in this code:\n\n", "What does this code do?\n\n", "Write an SQL query"),
    *("Write a", "Write a short story", "Write an email", "Compose", "Imagine", "Give me", "List"),
    *("Summarize the following text:\n\n", "Summarize this article in two sentences:\n\n"),
    *("Rewrite", "Correct the grammar of:", "Translate the following sentence into French:"),
    *("Translate from German to English:", "Translate into Spanish:"),
    *("Solve", "Calculate", "If", "A train", "How many", "Find the"),
    *("Answer the question from the context.\n\nContext:", "Read the passage.\n\nPassage:"),
    *("Who", "When", "Where", "Is it", "What is the difference between", "Suggest", "Plan"),
)
TEXTS = (
    *("def ", "import ", "from ", "class ", "#", "#!/usr/bin/env python", "SELECT ", "function "),
    *("from typing import List\n\n\ndef ", "\n\ndef ", "import math\n\ndef "),
    *("The ", "In ", "A ", "Once upon a time", "It ", "#", "Q: ", "1. ", "{"),
)


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands before and after a user's words in a conversation of one turn."""

    before: tuple[int, ...]
    after: tuple[int, ...]


def chat_frame(tokenizer: Tokenizer) -> Frame | None:
    """Return the frame of the model's chat template; null where there is none."""
    try:
        one, other = (
            tokenizer.encode_chat([{"role": "user", "content": content}])
            for content in ("A b", "Zq 7")
        )
    except InvalidRequest:
        return None
    front = _agreeing(one, other)
    back = _agreeing(one[::-1], other[::-1])
    return Frame(tuple(one[:front]), tuple(one[len(one) - back :]))


def _agreeing(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))

"""The quickstart as its own first customer: one streamed request over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from api.quickstart.server import QuickstartFailed

SILENCE_MAX_S = 60.0  # a stream that is alive says so more often
MAX_TOKENS = 160


@dataclass(frozen=True, slots=True)
class Answer:
    """The finished generation, and the published keys to verify its receipt with."""

    generation: dict[str, Any]
    keys: dict[str, Any]


def ask(url: str, key: str, question: str, tick: Callable[[int], None]) -> Answer:
    """Ask and wait for the receipt; `tick` hears the tokens so far.

    Raises QuickstartFailed for a refusal, a silence, or an end that is not a completion.
    """
    order = {
        "messages": [{"role": "user", "content": question}],
        "max_tokens": MAX_TOKENS,
        "stream": True,
    }
    headers = {"authorization": f"Bearer {key}"}
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=SILENCE_MAX_S) as client:
            with client.stream("POST", "/generate", json=order) as response:
                if response.is_error:
                    response.read()
                    raise QuickstartFailed(f"/generate was refused: {response.text}")
                generation = _last(_events(response), tick)
            keys: dict[str, Any] = client.get("/receipt-keys").raise_for_status().json()
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise QuickstartFailed(f"the gateway did not answer: {reason}") from error
    if generation is None or generation["status"] != "completed" or not generation["receipt"]:
        ended = "in mid-stream" if generation is None else f"as {generation['status']}"
        raise QuickstartFailed(f"the request ended {ended}")
    return Answer(generation, keys)


def _last(
    events: Iterator[tuple[str, dict[str, Any]]], tick: Callable[[int], None]
) -> dict[str, Any] | None:
    tokens = 0
    for name, data in events:
        if name == "receipt":
            return data
        tokens += data["tokens"]
        tick(tokens)
    return None


def _events(response: httpx.Response) -> Iterator[tuple[str, dict[str, Any]]]:
    name = ""
    for line in response.iter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)

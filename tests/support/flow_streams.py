"""Reading server-sent events in flow tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx


def events(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    """Yield (event, decoded data) pairs; comments are skipped."""
    name = "message"
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data = line.removeprefix("data: ")
            yield name, None if data == "[DONE]" else json.loads(data)
            name = "message"

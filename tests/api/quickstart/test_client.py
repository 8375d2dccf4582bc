"""The quickstart's request ends with a receipt, or says what went wrong instead."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from api.quickstart import client
from api.quickstart.client import ask
from api.quickstart.server import QuickstartFailed

DONE = {"status": "completed", "receipt": {"receipt": {}}}
BLOCKS = [("block", {"tokens": 3}), ("block", {"tokens": 2})]


@contextmanager
def gateway(events: list[tuple[str, Any]], status: int = 200) -> Iterator[str]:
    """A loopback server that answers any request with these events."""
    body = "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self._reply(f": keepalive\n\n{body}", "text/event-stream")

        def do_GET(self) -> None:
            self._reply('{"keys": []}', "application/json")

        def _reply(self, text: str, kind: str) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_blocks_are_counted_and_the_receipt_ends_the_answer() -> None:
    heard: list[int] = []
    with gateway([*BLOCKS, ("receipt", DONE)]) as url:
        answer = ask(url, "key", "question", heard.append)
    assert heard == [3, 5]
    assert answer.generation == DONE
    assert answer.keys == {"keys": []}


@pytest.mark.parametrize(
    ("events", "status", "message"),
    [
        (BLOCKS, 200, "ended in mid-stream"),
        ([("receipt", {"status": "failed", "receipt": None})], 200, "ended as failed"),
        ([("receipt", {"status": "completed", "receipt": None})], 200, "ended as completed"),
        (BLOCKS, 402, "was refused"),
    ],
)
def test_any_other_end_is_named(events: list[Any], status: int, message: str) -> None:
    with gateway(events, status) as url, pytest.raises(QuickstartFailed, match=message):
        ask(url, "key", "question", lambda _tokens: None)


def test_a_gateway_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SILENCE_MAX_S", 2.0)
    with pytest.raises(QuickstartFailed, match="did not answer"):
        ask("http://127.0.0.1:1", "key", "question", lambda _tokens: None)

"""A body that does not arrive is given up, over a real connection; one that does is not."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from browser_pages import serving
from litestar import Litestar, Request, post

from api.arrival import ArrivalDeadline
from api.error_reports import exception_handlers


@post("/size", status_code=200)
async def size(request: Request[Any, Any, Any]) -> str:
    return str(len(await request.body()))


@contextmanager
def waiting(seconds: float) -> Iterator[int]:
    """Serve with this much patience; gives the port."""
    app = Litestar(
        [size],
        middleware=[ArrivalDeadline(seconds)],
        exception_handlers=exception_handlers,
        openapi_config=None,
        logging_config=None,
    )
    with serving(app) as url:
        yield urlsplit(url).port or 0


def answer(port: int, length: int, *parts: bytes, pause_s: float = 0.0) -> bytes:
    """Send a body in parts; return all that comes until the server hangs up, or a whole answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        head = f"POST /size HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n"
        connection.sendall(f"{head}Connection: close\r\n\r\n".encode())
        for part in parts:
            time.sleep(pause_s)
            connection.sendall(part)
        heard = b""
        while more := connection.recv(4096):
            heard += more
        return heard


@pytest.mark.parametrize("parts", [(), (b"abc",)])
def test_a_body_that_never_ends_is_a_408_and_the_connection_is_closed(
    parts: tuple[bytes, ...],
) -> None:
    with waiting(0.2) as port:
        heard = answer(port, 10, *parts)
    assert heard.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"body_timeout"' in heard


def test_a_body_in_pieces_that_arrives_in_time_is_read_whole() -> None:
    with waiting(30) as port:
        heard = answer(port, 6, b"abc", b"def", pause_s=0.05)
    assert heard.startswith(b"HTTP/1.1 200 ")
    assert heard.endswith(b"6")

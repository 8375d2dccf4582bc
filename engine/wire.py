"""What the gateway's process and the engine's process say to each other.

Two sockets: *control* carries commands down and answers up, *steps* carries step records up, so
that a slow observer never delays an answer. A message is four bytes of length, big-endian, and
msgpack.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from threading import Lock

import msgspec

from engine import errors
from engine.config import EngineConfig
from engine.records import EngineInfo, EngineStats, StepRecord
from engine.requests import GenerationRequest


class Start(msgspec.Struct, frozen=True, tag=True):
    """Load this model; the first command."""

    model_path: str
    config: EngineConfig


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Take a request; answered."""

    sequence: int
    request: GenerationRequest


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Stop a request; not answered."""

    request_id: str


class Stats(msgspec.Struct, frozen=True, tag=True):
    """Answer with a snapshot."""

    sequence: int


class Close(msgspec.Struct, frozen=True, tag=True):
    """End everything and exit."""


class Failure(msgspec.Struct, frozen=True, tag=True):
    """An EngineError, by the name of its class."""

    name: str
    message: str
    parameter: str | None = None

    @classmethod
    def of(cls, error: errors.EngineError) -> Failure:
        """Describe an error."""
        return cls(type(error).__name__, str(error), getattr(error, "parameter", None))

    def error(self) -> errors.EngineError:
        """Return the error described."""
        kind = getattr(errors, self.name, errors.EngineError)
        if issubclass(kind, errors.InvalidRequest):
            return kind(self.message, self.parameter)
        assert issubclass(kind, errors.EngineError)
        return kind(self.message)


class Started(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded; the first answer, unless it is a Failure."""

    engine_epoch: str
    info: EngineInfo


class Answer(msgspec.Struct, frozen=True, tag=True):
    """To the command of the same sequence number."""

    sequence: int
    failure: Failure | None = None
    stats: EngineStats | None = None


class Steps(msgspec.Struct, frozen=True, tag=True):
    """Consecutive step records."""

    steps: tuple[StepRecord, ...]


Command = Start | Submit | Cancel | Stats | Close
Reply = Started | Failure | Answer | Steps

_commands = msgspec.msgpack.Decoder(Command)
_replies = msgspec.msgpack.Decoder(Reply)
_encoder = msgspec.msgpack.Encoder()


class Channel:
    """One end of a socket that carries messages. `send` may be called from any thread."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._sending = Lock()

    def send(self, message: Command | Reply) -> None:
        """Send one message, waiting while the other end is slow. Raises OSError if it is gone."""
        body = _encoder.encode(message)
        with self._sending:
            self._end.sendall(len(body).to_bytes(4, "big") + body)

    def receive_command(self) -> Command | None:
        """Return the next command; null when the other end is gone."""
        body = self._receive()
        return None if body is None else _commands.decode(body)

    def receive_reply(self) -> Reply | None:
        """Return the next reply; null when the other end is gone."""
        body = self._receive()
        return None if body is None else _replies.decode(body)

    def close(self) -> None:
        """Close this end; whoever waits on either end is released."""
        with suppress(OSError):  # where the other end went first
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    def _receive(self) -> bytes | None:
        length = self._exactly(4)
        return None if length is None else self._exactly(int.from_bytes(length, "big"))

    def _exactly(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            try:
                part = self._end.recv(min(count - len(data), 1 << 20))
            except OSError:
                return None
            if not part:
                return None
            data += part
        return bytes(data)

"""The engine's own process: `python -m engine.worker CONTROL_FD STEPS_FD`.

Started by `engine.process`, never by hand. It lives as long as its control socket: when the
gateway goes away, however it goes, so does the engine.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from collections.abc import Sequence

import structlog

from engine import wire
from engine.errors import EngineError
from engine.records import StepRecord
from engine.service import EngineService

EXIT_FAILED = 70  # the engine can't go on and should be replaced


class StepSender:
    """The observer at this end: sends steps to the gateway's process."""

    def __init__(self, steps: wire.Channel) -> None:
        self._steps = steps

    def on_steps(self, steps: Sequence[StepRecord]) -> None:
        """Send a batch, waiting while the gateway is behind."""
        try:
            self._steps.send(wire.Steps(tuple(steps)))
        except OSError:
            os._exit(0)  # the gateway is gone: nobody is left to tell


def serve(control: wire.Channel, steps: wire.Channel) -> int:
    """Carry out commands until the gateway closes or goes away; returns the exit status."""
    start = control.receive_command()
    if not isinstance(start, wire.Start):
        return 0
    service = EngineService(
        start.model_path,
        start.config,
        StepSender(steps),
        on_failure=lambda: os._exit(EXIT_FAILED),
    )
    try:
        service.start()
    except EngineError as error:
        control.send(wire.Failure.of(error))
        return 0
    gc.freeze()  # or each full collection walks all that was loaded, for tens of milliseconds
    control.send(wire.Started(service.engine_epoch, service.info))
    while True:
        match control.receive_command():
            case wire.Submit(sequence, request):
                failure = None
                try:
                    service.submit(request)
                except EngineError as error:
                    failure = wire.Failure.of(error)
                control.send(wire.Answer(sequence, failure))
            case wire.Cancel(request_id):
                service.cancel(request_id)
            case wire.Stats(sequence):
                control.send(wire.Answer(sequence, stats=service.stats()))
            case wire.Close():
                service.close()
                return 0
            case _:  # the gateway is gone
                os._exit(0)


def write_log() -> None:
    """Log as the gateway does: JSON lines on stderr, with no values of local variables in them.

    Locals would be tenants' tokens, and laying them out would hold up every other request.
    """
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def main() -> None:
    """Run the worker on the sockets that were inherited."""
    write_log()
    # Ctrl-C at a terminal reaches the whole group: the gateway decides when the engine stops.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control, steps = (wire.Channel(socket.socket(fileno=int(fd))) for fd in sys.argv[1:3])
    try:
        sys.exit(serve(control, steps))
    except OSError:
        os._exit(0)  # the gateway went away in the middle of an answer


if __name__ == "__main__":
    main()

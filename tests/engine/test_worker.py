"""What the engine's own process writes of its faults."""

from __future__ import annotations

import json

import pytest
import structlog

from engine.worker import write_log


def test_a_fault_is_one_line_without_the_values_that_led_to_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_log()
    try:
        try:
            secret = "what a tenant said"
            raise ValueError(len(secret))
        except ValueError as error:
            structlog.get_logger("engine").error("request.failed", exc_info=error)
    finally:
        structlog.reset_defaults()
    written = capsys.readouterr()
    (line,) = written.err.splitlines()
    entry = json.loads(line)
    assert (entry["event"], entry["level"], written.out) == ("request.failed", "error", "")
    assert "ValueError: 18" in entry["exception"]
    assert "what a tenant said" not in entry["exception"]

"""The verdict of a stress run: what fails it, and what does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tiny_models import write_tiny_dfm

from engine.bench.records import Ask
from engine.bench.stress import JITTER_MAX, Verdict, stress
from engine.config import EngineConfig
from engine.opening import OpenModel, open_model

GOOD = Verdict(
    requests=9,
    tokens=90,
    seconds=1.0,
    tokens_per_s=90.0,
    errors=0,
    garbled=0,
    not_utf8=0,
    gap_ms_median=2.0,
    gap_ms_p99=3.0,
    gap_ms_max=9.0,
    faults=(),
)


@pytest.mark.parametrize(
    ("changes", "passed"),
    [
        ({}, True),
        ({"errors": 1}, False),
        ({"garbled": 1}, False),
        ({"not_utf8": 3}, True),
        ({"gap_ms_p99": 2.0 * JITTER_MAX + 0.1}, False),
        ({"gap_ms_median": None, "gap_ms_p99": None}, True),
    ],
)
def test_errors_garbled_answers_and_an_uneven_pace_fail_it(
    changes: dict[str, object], passed: bool
) -> None:
    assert msgspec.structs.replace(GOOD, **changes).passed is passed


class Garbling:
    """A decoder whose logits are wrong in every step of more than a few rows."""

    def __init__(self, model: OpenModel) -> None:
        self._decoder = model.decoder

    def __getattr__(self, name: str) -> object:
        return getattr(self._decoder, name)

    def forward(self, step: object) -> object:
        logits = self._decoder.forward(step)
        return -logits if len(step.logit_rows) > 2 else logits


def test_an_answer_that_load_changes_is_garbled(tmp_path: Path) -> None:
    config = EngineConfig(threads=1, kv_tokens=1024)
    model = open_model(write_tiny_dfm(tmp_path / "tiny.dfm"), config)
    asks = [Ask(str(index), "code", tuple(range(5 + index, 15))) for index in range(3)]

    def run(of: OpenModel) -> Verdict:
        return stress(of, config, asks, concurrency=3, duration_s=0.0, max_tokens=6)

    assert run(model).garbled == 0
    broken = replace(model, decoder=Garbling(model))
    found = run(broken)
    assert found.garbled > 0
    assert not found.passed
    assert "parts from plain decoding at token" in found.faults[0]

"""Comparing a request's summary with its row and with what its events state. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from billing.differences import Figure
from billing.request_evidence import Evidence
from engine.records import DraftCounters
from metering import bodies, content_hash
from metering import requests as request_rows
from metering.bodies import BlockBody, EnergyBody, TerminalBody
from metering.energy import by_choice
from metering.events import EnergyClass, EnergySummary, RequestSummary


def check(evidence: Evidence) -> Iterator[Figure]:
    """Every figure of a final request's summary, as it ought to be and as it is."""
    summary = evidence.summary
    assert summary is not None
    blocks, tokens, accepted = evidence.stated_blocks()
    yield "summary output tokens = events", tokens, summary.output_tokens
    yield "summary blocks = events", blocks, summary.blocks
    yield "summary accepted tokens = events", accepted, summary.drafting.accepted_tokens
    if evidence.compaction is None:
        yield "summary counts = events", _counted(bodies.blocks(evidence.events)), _counts(summary)
    request = evidence.request
    yield "summary status = request", request.status, summary.status
    yield "summary finish reason = request", request.finish_reason, summary.finish_reason
    admitted = (request.model, request.input_tokens, request.started_at_us, request.ended_at_us)
    yield (
        "summary model, input and times = request",
        admitted,
        (*(summary.model, summary.input_tokens, summary.started_at_us, summary.ended_at_us),),
    )
    yield "summary calibration = request", request.calibration, summary.calibration
    yield "summary green = request", by_choice(json.loads(request.parameters)), summary.green
    if request.output is not None:
        text = content_hash.of_text(request.content_salt, request.output)
        yield "summary output hash = output", text, summary.output_sha256
    row = request_rows.summary_row(summary)
    stored = {name: getattr(evidence.summarised, name) for name in row}
    yield "summary's columns = summary", _but_body(row), _but_body(stored)
    for terminal in evidence.events:
        if isinstance(terminal, TerminalBody):
            yield "terminal tokens = events", tokens, terminal.tokens
            yield "terminal blocks = events", blocks, terminal.blocks
            yield "summary output hash = events", terminal.output_sha256, summary.output_sha256
    if summary.energy.energy_class is not EnergyClass.UNAVAILABLE:
        joules = [event for event in evidence.events if isinstance(event, EnergyBody)]
        settled = sum(event.energy_uj or 0 for event in joules)
        yield "summary energy = events", settled, summary.energy.energy_uj
        is_named = bool(summary.energy.devices)  # those of earlier versions name no device
        stated = _provenance(summary.energy, is_named=is_named)
        had = {_provenance(event, is_named=is_named) for event in joules[-1:]} or {stated}
        yield "summary energy provenance = events", had, {stated}
        classes = {event.energy_class for event in joules} or {summary.energy.energy_class}
        yield "summary energy class = events", classes, {summary.energy.energy_class}


def _counted(blocks: Sequence[BlockBody]) -> dict[str, object]:
    """What blocks add up to, as a summary has it."""
    bits = [block.information_ubits for block in blocks]
    return {
        "drafting": DraftCounters(
            steps=len(blocks),
            emitted_tokens=sum(len(block.token_ids) for block in blocks),
            drafted_nodes=sum(block.drafted_nodes for block in blocks),
            drafted_depth=sum(block.drafted_depth for block in blocks),
            verified_nodes=sum(block.verified_nodes for block in blocks),
            accepted_tokens=sum(block.accepted_tokens for block in blocks),
            cached_tokens=sum(block.cached_tokens for block in blocks),
        ),
        "forced_tokens": sum(len(block.forced) for block in blocks),
        "verified_blocks": sum(block.accepted_tokens > 0 for block in blocks),
        "cached_input_tokens": sum(block.cached_prompt_tokens for block in blocks),
        "information_ubits": None if None in bits else sum(filter(None, bits)),
    }


def _counts(summary: RequestSummary) -> dict[str, object]:
    return {
        "drafting": summary.drafting,
        "forced_tokens": summary.forced_tokens,
        "verified_blocks": summary.verified_blocks,
        "cached_input_tokens": summary.cached_input_tokens,
        "information_ubits": summary.information_ubits,
    }


def _provenance(energy: EnergyBody | EnergySummary, *, is_named: bool) -> tuple[object, ...]:
    """How energy was had; the device of an event is those of a summary in one, if it names any."""
    devices = energy.devices if isinstance(energy, EnergySummary) else energy.device.split("+")
    return (
        *(energy.energy_class, energy.source, energy.scope, energy.method, energy.weights),
        *(energy.uncertainty_pct, energy.update_period_us, tuple(devices) if is_named else ()),
    )


def _but_body(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "body"}

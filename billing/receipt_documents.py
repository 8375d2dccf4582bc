"""What a receipt and an adjustment say, as JSON values. Pure.

Amounts, scores, joules and bits are decimal strings, so that nothing depends on how a float
prints; counts are integers. What the tenant may not know is not here: no prompt, no text, no key,
and joules only as they are shown to it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from billing.catalogue import TariffVersion
from billing.money import format_nano, plain
from billing.rating import Line, green_discount_nano
from billing.tariffs import Tariff
from engine.records import DraftCounters, EngineInfo
from metering import content_hash
from metering.events import EnergySummary, RequestSummary, UnitState
from metering.request_parameters import PLACEMENT, is_content

# Of the second, hashes of content begin with the request's salt, which stands beside the receipt.
RECEIPT_SCHEMA, SALTED_SCHEMA = "dflash.receipt/1", "dflash.receipt/2"
RECEIPT_SCHEMAS = (RECEIPT_SCHEMA, SALTED_SCHEMA)
ADJUSTMENT_SCHEMA = "dflash.adjustment/1"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ReviewTerms:
    """That the output goes to a human, why, and at whose cost."""

    reason: str
    fee_nano: int
    paid_by: str  # "tenant" or "operator"
    delivery: str = "now"  # or "held": until the verdict


def receipt_document(
    summary: RequestSummary,
    tariff: TariffVersion,
    lines: Sequence[Line],
    *,
    engine: EngineInfo | None,
    review: ReviewTerms | None,
    parameters: Mapping[str, Any],
    salt: str | None,
    test_mode: bool,
    issued_at_us: int,
) -> dict[str, Any]:
    """The receipt of a settled request. `engine` is null when none had been started yet.

    `parameters` and the `salt` are those it was admitted with.
    """
    return {
        "schema": RECEIPT_SCHEMA if salt is None else SALTED_SCHEMA,
        "request_id": summary.request_id,
        "tenant_id": summary.tenant_id,
        "test_mode": test_mode,
        "status": summary.status.value,
        "finish_reason": summary.finish_reason,
        "ended_by": summary.ended_by.value,
        "started_at": iso(summary.started_at_us),
        "ended_at": iso(summary.ended_at_us),
        "issued_at": iso(issued_at_us),
        "model": {
            "name": summary.model,
            "checksum": engine.checksum if engine else None,
            "architecture": engine.architecture if engine else None,
        },
        "engine": _engine(engine),
        "parameters": {
            name: _parameter(name, value, salt)
            for name, value in parameters.items()
            if name != PLACEMENT
        },
        "output": {
            "sha256": summary.output_sha256,
            "input_tokens": summary.input_tokens,
            "cached_input_tokens": summary.cached_input_tokens,
            "output_tokens": summary.output_tokens,
            "forced_tokens": summary.forced_tokens,
            "unattached_tokens": summary.unattached_tokens,
            "blocks": summary.blocks,
            "verified_blocks": summary.verified_blocks,
        },
        "units": _units(summary),
        "confidence": _confidence(summary),
        "information_bits": millionths(summary.information_ubits),
        "energy": energy_document(summary.energy),
        "green": _green(parameters.get(PLACEMENT), summary, tariff.document, lines),
        "drafting": _drafting(summary.drafting),
        "tariff": {
            "id": tariff.id,
            "name": tariff.tariff,
            "version": tariff.version,
            "sha256": tariff.document_sha256,
        },
        "review": None
        if review is None
        else {
            "reason": review.reason,
            "fee": format_nano(review.fee_nano),
            "paid_by": review.paid_by,
            "delivery": review.delivery,
        },
        "lines": [
            {
                "component": line.component.value,
                "detail": line.detail,
                "quantity": plain(line.quantity),
                "unit": line.unit,
                "unit_price": plain(line.unit_price),
                "amount": format_nano(line.amount_nano),
            }
            for line in lines
        ],
        "total": format_nano(sum(line.amount_nano for line in lines)),
        "currency": tariff.currency,
    }


def adjustment_document(
    *,
    adjustment_id: str,
    request_id: str,
    tenant_id: str,
    receipt_sha256: str,
    reason: str,
    amount_nano: int,
    currency: str,
    review: dict[str, Any] | None,
    energy: dict[str, Any] | None,
    note: str | None,
    issued_at_us: int,
) -> dict[str, Any]:
    """What became known after a receipt; a negative amount was given back to the tenant."""
    return {
        "schema": ADJUSTMENT_SCHEMA,
        "id": adjustment_id,
        "request_id": request_id,
        "tenant_id": tenant_id,
        "receipt_sha256": receipt_sha256,
        "reason": reason,
        "review": review,
        "energy": energy,
        "note": note,
        "amount": format_nano(amount_nano),
        "currency": currency,
        "issued_at": iso(issued_at_us),
    }


def energy_document(energy: EnergySummary) -> dict[str, Any]:
    """Joules as the tenant is shown them, and all that says how far to trust them."""
    return {
        "class": energy.energy_class.value,
        "joules": millionths(energy.shown_uj),
        "source": energy.source,
        "scope": energy.scope,
        "method": energy.method,
        "weights": energy.weights,
        "devices": list(energy.devices),
        "update_period_us": energy.update_period_us,
        "uncertainty_pct": energy.uncertainty_pct,
    }


def millionths(value: int | None) -> str | None:
    """Microjoules or microbits as a decimal string of joules or bits; null stays null."""
    return None if value is None else format_nano(value * 1000)


def iso(at_us: int) -> str:
    """Epoch microseconds as RFC 3339 in UTC, always with six places."""
    return f"{EPOCH + timedelta(microseconds=at_us):%Y-%m-%dT%H:%M:%S.%fZ}"


def epoch_us(text: str) -> int:
    """The inverse of `iso`; raises ValueError."""
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(microseconds=1)


def _engine(engine: EngineInfo | None) -> dict[str, Any] | None:
    if engine is None:
        return None
    return {
        "backend": engine.backend,
        "device": engine.device,
        "instruction_set": engine.instruction_set,
        "thread_count": engine.thread_count,
        "batch_invariant": engine.batch_invariant,
        "rope_scaling_factor": f"{engine.rope_scaling_factor:g}",
    }


def _green(
    choice: Mapping[str, Any] | None,
    summary: RequestSummary,
    tariff: Tariff,
    lines: Sequence[Line],
) -> dict[str, Any] | None:
    """What came of asking for green energy; null for a request that did not."""
    if choice is None:
        return None
    multiplier = tariff.energy.green if tariff.energy and summary.green else None
    discount = green_discount_nano(lines, summary, tariff)
    return {
        **choice,
        "multiplier": None if multiplier is None else plain(multiplier),
        "discount": None if discount is None else format_nano(discount),
    }


def _parameter(name: str, value: Any, salt: str | None) -> Any:
    """A flag or a number as it stands; what may be content by its JSON's hash."""
    if value is None or isinstance(value, int):  # most are; a flag is one, too
        return value
    if isinstance(value, float):
        return plain(Decimal(repr(value)))
    if is_content(name, value):
        text = json.dumps(value, sort_keys=True, separators=(",", ":"))
        return {"sha256": content_hash.of_text(salt, text)}
    return None


def _units(summary: RequestSummary) -> dict[str, Any]:
    counts: Counter[tuple[str, str, str]] = Counter()
    tokens: Counter[tuple[str, str, str]] = Counter()
    for unit in summary.units:
        group = (unit.kind, unit.state.value, unit.tier.value if unit.tier else "unscored")
        counts[group] += 1
        tokens[group] += unit.tokens
    complete = sum(unit.state is UnitState.COMPLETE for unit in summary.units)
    return {
        "segmenter": summary.segmenter,
        "complete": complete,
        "fragment": len(summary.units) - complete,
        "groups": [
            {
                "kind": kind,
                "state": state,
                "tier": tier,
                "count": counts[kind, state, tier],
                "tokens": tokens[kind, state, tier],
            }
            for kind, state, tier in sorted(counts)
        ],
    }


def _confidence(summary: RequestSummary) -> dict[str, Any] | None:
    score = summary.confidence
    if score is None:
        return None
    return {
        "tokens": score.tokens,
        "sum_logprob": score.sum_logprob,
        "geo_mean": score.geo_mean,
        "min_prob": score.min_prob,
        "calibrated": score.calibrated,
        "basis": score.basis,
        "tier": score.tier.value,
        "calibration": summary.calibration,
    }


def _drafting(counters: DraftCounters) -> dict[str, Any]:
    return {
        "steps": counters.steps,
        "drafted_nodes": counters.drafted_nodes,
        "drafted_depth": counters.drafted_depth,
        "verified_nodes": counters.verified_nodes,
        "accepted_tokens": counters.accepted_tokens,
        "cached_tokens": counters.cached_tokens,
        "draft_hit_rate": ratio(counters.accepted_tokens, counters.drafted_depth),
        "mean_accepted_length": ratio(counters.emitted_tokens, counters.steps),
    }


def ratio(part: int, whole: int) -> str | None:
    """A rate of counts to four places; null where there is nothing to be a part of."""
    if not whole:
        return None
    return str((Decimal(part) / Decimal(whole)).quantize(Decimal("0.0001")))

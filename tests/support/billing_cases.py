"""Request summaries and tariffs to price: by hand for examples, drawn for properties."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Any

import msgspec
from hypothesis import strategies as st

from billing.tariffs import Tariff, parse
from engine.records import DraftCounters, EngineInfo
from metering.events import (
    ConfidenceSummary,
    ConfidenceTier,
    EndedBy,
    EnergyClass,
    EnergySummary,
    RequestStatus,
    RequestSummary,
    UnitState,
    UnitSummary,
)

STARTED_US = 1_790_000_000_000_000

ENGINE = EngineInfo(
    model="tiny",
    checksum="sha256:" + "ab" * 32,
    architecture="llama",
    vocab_size=49152,
    context_length=2048,
    backend="fp32",
    batch_invariant=True,
    device="cpu",
    instruction_set="AVX2",
    thread_count=2,
    pid=4242,
)


def tariff(**fields: Any) -> Tariff:
    """A tariff of the given components; without any, 100 nano a prompt and 400 an output token."""
    if not fields:
        fields = {"input": {"per_million": "0.1"}, "output": {"per_million": "0.4"}}
    head = {"schema": "dflash.tariff/1", "name": "test", "title": "Test", "currency": "USD"}
    return parse({**head, **fields})


def unit(
    tokens: int,
    state: str = "complete",
    tier: str | None = "standard",
    *,
    kind: str = "sentence",
    index: int = 0,
) -> UnitSummary:
    """A unit of so many tokens, four bytes each."""
    return UnitSummary(
        index=index,
        kind=kind,
        state=UnitState(state),
        byte_start=4 * index,
        byte_end=4 * (index + tokens),
        tokens=tokens,
        sum_logprob=None if tier is None else "-0.100000",
        geo_mean=None if tier is None else "0.9900",
        min_prob=None if tier is None else "0.9000",
        tier=None if tier is None else ConfidenceTier(tier),
    )


def energy(kind: str = "estimated", uj: int | None = 12_345_678) -> EnergySummary:
    """A share of the meter; what is shown is floored to 0.1 J."""
    shown = None if uj is None else uj - uj % 100_000
    return EnergySummary(
        *(EnergyClass(kind), uj, shown, "cpu_time", "process", "affine-shapley/1", 30),
        devices=("cpu",),
    )


def summary(*units: UnitSummary, **fields: Any) -> RequestSummary:
    """A completed request of these units; without any text, one complete unit of ten tokens."""
    chosen = units or (() if "unattached_tokens" in fields else (unit(10),))
    placed = tuple(msgspec.structs.replace(each, index=i) for i, each in enumerate(chosen))
    unattached = fields.pop("unattached_tokens", 0)
    tokens = fields.pop("output_tokens", sum(each.tokens for each in placed) + unattached)
    blocks = fields.get("blocks", max(1, tokens // 2) if tokens else 0)
    verified = fields.get("verified_blocks", min(tokens // 3, blocks))
    confidence = ConfidenceSummary(
        tokens, "-1.000000", "0.9600", "0.5000", None, "geo_mean", ConfidenceTier.STANDARD
    )
    defaults: dict[str, Any] = {
        "request_id": "req_1",
        "tenant_id": "ten_1",
        "model": "tiny",
        "tariff_version_id": "test@1",
        "status": RequestStatus.COMPLETED,
        "finish_reason": "stop",
        "ended_by": EndedBy.MODEL,
        "input_tokens": 20,
        "output_tokens": tokens,
        "unattached_tokens": unattached,
        "blocks": blocks,
        "verified_blocks": verified,
        "output_sha256": "cd" * 32,
        "segmenter": "units/1+ts-python@0.25.0",
        "units": placed if tokens else (),
        "confidence": confidence if tokens else None,
        "information_ubits": 7_500_000 if tokens else 0,
        "energy": energy(),
        "drafting": DraftCounters(
            steps=blocks,
            emitted_tokens=tokens,
            drafted_nodes=tokens,
            drafted_depth=tokens,
            verified_nodes=tokens + 3 if blocks else 0,
            accepted_tokens=max(tokens // 2, verified) if verified else 0,
            cached_tokens=0,
        ),
        "review_reason": None,
        "started_at_us": STARTED_US,
        "ended_at_us": STARTED_US + 1_500_000,
    }
    return RequestSummary(**(defaults | fields))


def nothing_emitted(**fields: Any) -> RequestSummary:
    """A request that ended before its first token."""
    return summary(**({"unattached_tokens": 0, "information_ubits": 0} | fields))


tiers = st.sampled_from([*ConfidenceTier, None])


@st.composite
def summaries(
    draw: st.DrawFn,
    *,
    input_tokens: int | None = None,
    output_tokens: int | None = None,
    kinds: Collection[EnergyClass] = tuple(EnergyClass),
) -> RequestSummary:
    """Any summary that does not contradict itself, with these token counts if given."""
    if input_tokens is None:
        input_tokens = draw(st.integers(0, 5_000))
    if output_tokens is None:
        output_tokens = draw(st.integers(0, 400))
    cuts = sorted(draw(st.lists(st.integers(0, output_tokens), max_size=12)))
    bounds = [0, *cuts]
    units = tuple(
        unit(end - start, draw(st.sampled_from(UnitState)), draw(tiers))
        for start, end in itertools.pairwise(bounds)
    )
    blocks = draw(st.integers(min(1, output_tokens), output_tokens))
    kind = draw(st.sampled_from(sorted(kinds)))
    joules = energy(kind, None if kind is EnergyClass.UNAVAILABLE else draw(st.integers(0, 10**13)))
    return summary(
        *units,
        unattached_tokens=output_tokens - bounds[-1],
        status=draw(st.sampled_from(RequestStatus)),
        ended_by=draw(st.sampled_from(EndedBy)),
        input_tokens=input_tokens,
        blocks=blocks,
        verified_blocks=draw(st.integers(0, blocks)),
        information_ubits=draw(st.none() | st.integers(0, 16_000_000 * output_tokens)),
        energy=joules,
        green=draw(st.booleans()),
    )


def _decimals(high: int, places: int) -> st.SearchStrategy[str]:
    return st.decimals(0, high, places=places, allow_nan=False).map(lambda value: f"{value:f}")


prices = _decimals(100, 12)
multipliers = _decimals(3, 6)
fees = _decimals(1, 9)
caps = st.decimals("0.000001", 50, places=6, allow_nan=False).map(lambda value: f"{value:f}")


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


@st.composite
def tariffs(draw: st.DrawFn) -> Tariff:
    """Any valid tariff."""
    components = draw(
        _some(
            input=st.fixed_dictionaries({"per_million": prices}),
            output=st.fixed_dictionaries(
                {"per_million": prices},
                optional={
                    "units": _some(complete=multipliers, fragment=multipliers),
                    "tiers": _some(standard=multipliers, reduced=multipliers, review=multipliers),
                },
            ),
            review=st.fixed_dictionaries({"fee": fees}),
            energy=st.fixed_dictionaries(
                {
                    "per_million": _some(measured=prices, estimated=prices, reported=prices).filter(
                        bool
                    ),
                    "cap_joules_per_token": caps,
                },
                optional={"green": _decimals(1, 6)},
            ),
            information=st.fixed_dictionaries({"per_million": prices, "cap_bits_per_token": caps}),
            blocks=st.fixed_dictionaries({"per_million": prices}),
        )
    )
    bounds = sorted(draw(st.tuples(_decimals(1, 9), _decimals(1, 9))), key=float)
    request = {"fee": draw(fees)}
    if draw(st.booleans()):
        request["minimum"] = bounds[0]
    if draw(st.booleans()):
        request["maximum"] = bounds[1]
    return tariff(**components, request=request)

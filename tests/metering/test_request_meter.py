"""The fold of one request: tokens to units, scores, bits, drafting, and what a summary says."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from metering_cases import VOCAB_SIZE, admitted_request, block, step

from engine.records import BlockRecord, DraftCounters, FinishReason, Work
from metering import bodies
from metering.bodies import BlockBody, EnergyBody
from metering.events import (
    ConfidenceTier,
    EndedBy,
    EnergyClass,
    RequestStatus,
    RequestSummary,
    UnitState,
)
from metering.request_meter import RequestMeter
from metering.review_rule import ReviewRule
from metering.semantic import SEGMENTER

# Words, code points in parts, no bytes, a NUL, what is no UTF-8; and scores that miss.
WORDS = st.sampled_from(
    ["One. ", "two", "\n", "好", "", "\0", b"\xe5\xa5", b"\xbd", b"\xff", "# h\n"]
)
LOGPROBS = st.sampled_from([-0.01, -0.5, -3.0, 0.0, math.nan])


@st.composite
def blocks_in_order(draw: Any) -> list[BlockRecord]:
    """Some blocks of one request, of any tokens, a few of them forced."""
    records = []
    for index in range(draw(st.integers(0, 8))):
        words = draw(st.lists(WORDS, max_size=4))
        logprobs = [draw(LOGPROBS) for _ in words]
        forced = [place for place in range(len(words)) if draw(st.booleans())]
        records.append(block(index, *words, logprobs=logprobs, forced=forced))
    return records


def bodies_of(*blocks: BlockRecord) -> list[BlockBody]:
    return [bodies.block_body(step(0), each, Work(), VOCAB_SIZE) for each in blocks]


def meter_of(*blocks: BlockRecord, rule: ReviewRule | None = None) -> RequestMeter:
    meter = RequestMeter(admitted_request(), rule or ReviewRule(0.0))
    for body in bodies_of(*blocks):
        meter.fold(body)
    return meter


def summary_of(meter: RequestMeter, reason: FinishReason = FinishReason.STOP) -> RequestSummary:
    end = meter.terminal(RequestStatus.COMPLETED, reason, EndedBy.MODEL)
    return meter.summary(end, 2_000_000)


def energy(
    index: int, energy_uj: int | None, through_block: int, source: str = "cpu_time"
) -> EnergyBody:
    return EnergyBody(
        request_id="req_1",
        index=index,
        through_block=through_block,
        energy_uj=energy_uj,
        energy_class=EnergyClass.ESTIMATED,
        source=source,
        scope="process",
        method="affine-shapley/1",
        uncertainty_pct=40,
        device="pid:1",
        epoch="e/0",
        start_ns=0,
        end_ns=1,
    )


def unit_tokens(summary: RequestSummary) -> list[tuple[str, int]]:
    return [(unit.kind, unit.tokens) for unit in summary.units]


def test_a_token_belongs_to_the_unit_that_holds_its_last_byte() -> None:
    meter = meter_of(block(0, "One", ". T", "wo", ". ", "Three"))
    assert unit_tokens(summary_of(meter)) == [("sentence", 1), ("sentence", 3), ("sentence", 1)]


def test_an_eos_belongs_to_the_last_unit() -> None:
    summary = summary_of(meter_of(block(0, "Done.", "")))
    assert unit_tokens(summary) == [("sentence", 2)]
    assert summary.unattached_tokens == 0


def test_an_eos_after_no_text_belongs_to_no_unit() -> None:
    summary = summary_of(meter_of(block(0, "")))
    assert summary.units == ()
    assert (summary.output_tokens, summary.unattached_tokens) == (1, 1)
    assert summary.confidence is not None


def test_a_token_of_no_bytes_before_the_text_belongs_to_the_first_unit() -> None:
    assert unit_tokens(summary_of(meter_of(block(0, "", "Hi. ", "Yo")))) == [
        ("sentence", 2),
        ("sentence", 1),
    ]


def test_one_token_may_close_two_brackets_and_one_of_them_has_no_score() -> None:
    summary = summary_of(meter_of(block(0, '{"a": {"b": ', "1", "}}")))
    assert unit_tokens(summary) == [("member", 2), ("bracket", 0), ("bracket", 1)]
    empty = summary.units[1]
    assert (empty.sum_logprob, empty.geo_mean, empty.min_prob, empty.tier) == (None,) * 4
    assert summary.review_reason is None


def test_the_tokens_of_a_split_code_point_belong_to_its_unit() -> None:
    meter = meter_of(block(0, "One. ", b"\xe5", b"\xa5", b"\xbd", "!"))
    assert unit_tokens(summary_of(meter)) == [("sentence", 1), ("sentence", 4)]


def test_forced_tokens_count_as_tokens_and_not_in_any_score() -> None:
    """Given a schema that left only the value open, unsure of what it dictated."""
    parts = [
        block(0, '{"a": {"b": ', "1", logprobs=(-5.0, -0.05), forced=[0]),
        block(1, "}}", "", logprobs=(-9.0, -9.0), forced=[0, 1]),
    ]
    meter = meter_of(*parts)
    summary = summary_of(meter)
    assert (summary.output_tokens, summary.forced_tokens) == (4, 3)
    assert unit_tokens(summary) == [("member", 2), ("bracket", 0), ("bracket", 2)]
    member, _, bracket = summary.units
    assert (member.sum_logprob, member.tier) == ("-0.050000", ConfidenceTier.STANDARD)
    assert (bracket.geo_mean, bracket.tier) == (None, None)
    assert summary.confidence is not None
    assert (summary.confidence.tokens, summary.confidence.geo_mean) == (1, "0.9512")
    assert summary.review_reason is None
    cut = bodies.cut(bodies.block_body(step(0), parts[1], Work(), VOCAB_SIZE), 1, VOCAB_SIZE)
    assert cut.forced == (0,)


def test_an_output_that_was_forced_throughout_has_no_score_and_misses_none() -> None:
    summary = summary_of(meter_of(block(0, '"yes"', "", forced=[0, 1])))
    assert summary.confidence is None
    assert summary.review_reason is None
    assert summary.information_ubits is not None


def test_scores_of_units_and_request_are_sums_over_tokens() -> None:
    meter = meter_of(
        block(0, "One. ", "Two", logprobs=(-0.05, -1.0)), block(1, ".", "", logprobs=(-0.5, 0.0))
    )
    summary = summary_of(meter)
    first, second = summary.units
    assert (first.sum_logprob, first.geo_mean, first.tier) == (
        "-0.050000",
        "0.9512",
        ConfidenceTier.STANDARD,
    )
    assert (second.sum_logprob, second.geo_mean, second.min_prob, second.tier) == (
        "-1.500000",
        "0.6065",
        "0.3679",
        ConfidenceTier.REVIEW,
    )
    score = summary.confidence
    assert score is not None
    assert (score.tokens, score.sum_logprob, score.geo_mean, score.min_prob) == (
        4,
        "-1.550000",
        "0.6788",
        "0.3679",
    )
    assert (score.basis, score.calibrated) == ("geo_mean", None)


def test_a_score_that_is_missing_leaves_the_request_without_one() -> None:
    meter = meter_of(block(0, "One. ", "Two. ", "Three", logprobs=(-0.1, math.nan, -0.1)))
    summary = summary_of(meter)
    assert summary.confidence is None
    assert summary.information_ubits is None
    assert summary.review_reason == "missing_score"
    assert [unit.tier for unit in summary.units] == [
        ConfidenceTier.REDUCED,
        None,
        ConfidenceTier.REDUCED,
    ]


@pytest.mark.parametrize("logprob", [math.inf, -math.inf, math.nan, 0.5])
def test_what_is_no_logprob_counts_as_missing(logprob: float) -> None:
    assert summary_of(meter_of(block(0, "a", logprob=logprob))).confidence is None


def test_a_rounding_error_above_zero_is_certainty() -> None:
    summary = summary_of(meter_of(block(0, "a", logprob=1e-7)))
    assert summary.confidence is not None
    assert summary.confidence.geo_mean == "1.0000"


def test_information_is_clipped_at_the_vocabulary() -> None:
    meter = meter_of(block(0, "a", "b", logprobs=(math.log(0.25), -1000.0)))
    # A micronat is the resolution: ln 4 is 1.386294 nats, and 1.999999 bits.
    assert summary_of(meter).information_ubits == 1_999_999 + 15_584_963


def test_the_models_end_completes_the_last_unit_and_a_cut_does_not() -> None:
    meter = meter_of(block(0, "- one\n- two"))
    stopped, cut = summary_of(meter), summary_of(meter, FinishReason.LENGTH)
    assert [unit.state for unit in stopped.units] == [UnitState.COMPLETE] * 2
    assert [unit.state for unit in cut.units] == [UnitState.COMPLETE, UnitState.FRAGMENT]


def test_a_summary_does_not_disturb_the_meter() -> None:
    undisturbed = meter_of(block(0, "One. Tw"), block(1, "o. ", "```py\nx = ("), block(2, "1)\n"))
    meter = meter_of(block(0, "One. Tw"))
    summary_of(meter)
    for each in (block(1, "o. ", "```py\nx = ("), block(2, "1)\n")):
        meter.fold(bodies.block_body(step(0), each, Work(), VOCAB_SIZE))
        summary_of(meter, FinishReason.LENGTH)
        meter.copy().replace_tail()
    assert summary_of(meter) == summary_of(undisturbed)


def test_drafting_counters_add_up() -> None:
    meter = meter_of(
        block(0, "a", accepted=0, drafted=0), block(1, "b", "c", "d", accepted=2, drafted=4)
    )
    summary = summary_of(meter)
    assert summary.drafting == DraftCounters(
        steps=2,
        emitted_tokens=4,
        drafted_nodes=4,
        drafted_depth=4,
        verified_nodes=6,
        accepted_tokens=2,
        cached_tokens=0,
    )
    assert (summary.blocks, summary.verified_blocks) == (2, 1)


def test_energy_counts_when_it_covers_every_block() -> None:
    meter = meter_of(block(0, "a"), block(1, "b"))
    assert summary_of(meter).energy.energy_uj is None
    meter.fold(energy(0, 150_000, through_block=0))
    assert summary_of(meter).energy.energy_class is EnergyClass.UNAVAILABLE
    assert meter.settled_uj == 150_000
    meter.fold(energy(1, 100_001, through_block=1))
    settled = summary_of(meter).energy
    assert (settled.energy_uj, settled.shown_uj) == (250_001, 200_000)


def test_energy_that_is_partly_unknown_is_no_figure() -> None:
    meter = meter_of(block(0, "a"))
    meter.fold(energy(0, None, through_block=0))
    meter.fold(energy(1, 5, through_block=0))
    assert summary_of(meter).energy.energy_uj is None
    assert meter.settled_uj is None


def test_energy_that_was_had_in_two_ways_is_no_sum() -> None:
    meter = meter_of(block(0, "a"))
    meter.fold(energy(0, 5, through_block=0))
    meter.fold(energy(1, 7, through_block=0, source="rapl"))
    assert meter.energy.energy_uj is None
    meter.fold(energy(2, 7, through_block=0, source="rapl"))
    assert meter.energy.energy_uj is None


def test_energy_of_nothing_is_a_figure_and_not_null() -> None:
    meter = meter_of(block(0, "a"))
    meter.fold(energy(0, 0, through_block=0))
    assert summary_of(meter).energy.energy_uj == 0


def test_what_identifies_the_request_is_in_its_summary() -> None:
    summary = summary_of(meter_of(block(0, "é")))
    assert (summary.request_id, summary.tenant_id, summary.model) == ("req_1", "acme", "tiny")
    assert (summary.tariff_version_id, summary.input_tokens) == ("token/1", 5)
    assert (summary.started_at_us, summary.ended_at_us) == (1_000_000, 2_000_000)
    assert summary.segmenter == SEGMENTER
    assert summary.output_sha256 == (
        "4a99557e4033c3539de2eb65472017cad5f9557f7a0625a09f1c3f6e2ba69c4c"
    )


def test_a_summary_survives_its_json() -> None:
    summary = summary_of(meter_of(block(0, "One. ", "Two", ""), block(1, "x", accepted=1)))
    assert msgspec.json.decode(msgspec.json.encode(summary), type=RequestSummary) == summary


def test_blocks_come_in_order() -> None:
    with pytest.raises(ValueError, match="follows 0 blocks"):
        meter_of(block(1, "a"))


def test_a_unit_that_grows_over_many_blocks_has_the_score_of_all_its_tokens() -> None:
    summary = summary_of(
        meter_of(*(block(index, "word ", logprobs=(-index / 1000,)) for index in range(300)))
    )
    assert unit_tokens(summary) == [("sentence", 300)]
    assert summary.confidence is not None
    assert summary.units[0].sum_logprob == summary.confidence.sum_logprob == "-44.850000"


def test_one_block_that_is_missing_among_several_leaves_all_of_them_untaken() -> None:
    meter = meter_of(block(0, "a"))
    ahead = [bodies_of(block(index, "b"))[0] for index in (1, 3)]
    with pytest.raises(ValueError, match="block 3 of req_1 follows 2 blocks"):
        meter.fold_blocks(ahead)
    assert (meter.blocks, meter.output) == (1, "a")


@given(blocks_in_order(), st.lists(st.integers(0, 8), max_size=4))
def test_blocks_that_are_taken_at_once_come_to_what_they_do_one_by_one(
    records: list[BlockRecord], places: list[int]
) -> None:
    stated = bodies_of(*records)
    one_by_one, at_once = meter_of(), meter_of()
    effects = [one_by_one.fold_block(body) for body in stated]
    bounds = sorted({min(place, len(stated)) for place in places} | {0, len(stated)})
    for low, high in pairwise(bounds):
        added = at_once.fold_blocks(stated[low:high])
        assert added.text == "".join(effect.text for effect in effects[low:high])
        assert added.units_closed == effects[high - 1].units_closed
    assert summary_of(at_once) == summary_of(one_by_one)
    assert at_once.output == one_by_one.output
    assert at_once.has_tail == one_by_one.has_tail

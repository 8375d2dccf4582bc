"""Every field of a real answer is held against its receipt, or is known to be in none."""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from example_receipts import example

from api.inference.generations import drafting_view
from api.inference.schemas import GenerationView
from billing.errors import InvalidReceipt, ReceiptFault
from billing.receipt_documents import ratio
from billing.verification import compare_answer
from engine.records import DraftCounters

# What no receipt says; `receipt` and `adjustments` are checked by their own signatures.
UNSAID = {
    *("object", "failure", "logprobs", "receipt", "adjustments"),
    *("review.item_id", "review.state", "review.withheld", "review.verdict", "review.reasons"),
    *("review.corrected_output", "review.queued_at", "review.due_at", "review.resolved_at"),
}


def fields(view: type[msgspec.Struct], before: str = "") -> Iterator[str]:
    """The paths of all fields of a view."""
    for name, kind in get_type_hints(view).items():
        kinds = get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
        inner = [each for each in kinds if isinstance(each, type) and is_view(each)]
        if inner:
            yield from fields(inner[0], f"{before}{name}.")
        else:
            yield before + name


def is_view(kind: type) -> bool:
    return not get_args(kind) and issubclass(kind, msgspec.Struct)


PATHS = sorted(fields(GenerationView))


@pytest.fixture
def answer() -> dict[str, Any]:
    found: dict[str, Any] = example("estimated")
    signed = {"reason": "audit", "fee": "0", "paid_by": "operator", "delivery": "now"}
    found["receipt"]["receipt"]["review"] = signed
    found["review"] = {"reason": "audit", "delivery": "now"}
    return found


def test_what_is_unsaid_is_a_field() -> None:
    assert set(PATHS) >= UNSAID
    assert {"cost", "usage.joules", "drafting.draft_hit_rate"} <= set(PATHS)


@pytest.mark.parametrize("path", [path for path in PATHS if path not in UNSAID])
def test_an_altered_field_is_named(answer: dict[str, Any], path: str) -> None:
    assert compare_answer(answer) == ()
    altered = copy.deepcopy(answer)
    *parents, name = path.split(".")
    place = altered
    for parent in parents:
        place = place[parent]
    was = place[name]
    place[name] = was + 1 if isinstance(was, int) else f"{was}1"
    if name in {"created_at", "ended_at"}:
        place[name] = was.replace("08:08", "08:09")
    with pytest.raises(InvalidReceipt) as refusal:
        compare_answer(altered)
    assert refusal.value.reason is ReceiptFault.ANSWER_DIFFERS
    assert parents[:1] == ["confidence"] or path == "output" or path in str(refusal.value)


@pytest.mark.parametrize("name", ["created_at", "ended_at"])
def test_a_moment_may_be_written_shorter_and_must_be_one(answer: dict[str, Any], name: str) -> None:
    signed = {"created_at": "started_at"}.get(name, name)
    answer["receipt"]["receipt"][signed] = "2026-11-30T08:08:38.000000Z"
    assert compare_answer(answer | {name: "2026-11-30T08:08:38Z"}) == ()
    with pytest.raises(InvalidReceipt):
        compare_answer(answer | {name: "then"})


def test_an_answers_rates_are_rounded_as_its_receipts() -> None:
    counters = DraftCounters(steps=160, emitted_tokens=161, drafted_depth=160, accepted_tokens=1)
    view = drafting_view(drafted(counters))
    assert view.draft_hit_rate == ratio(1, 160) == "0.0062"
    assert view.mean_accepted_length == ratio(161, 160) == "1.0062"


def drafted(counters: DraftCounters) -> Any:
    return types.SimpleNamespace(drafting=counters)

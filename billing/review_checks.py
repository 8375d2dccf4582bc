"""Comparing a request's review with what was signed of it, its opinions and its fee. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from billing import review_endings, review_items, review_opinions, reviewers
from billing.differences import Figure
from billing.ledger.accounts import Account, AccountKind
from billing.money import format_nano, split
from billing.request_evidence import Evidence, OneRow
from billing.review_items import ReviewItem, ReviewState
from billing.review_opinions import Opinion
from billing.review_orders import CERTAIN_PPM
from metering.review_rule import AUDIT


def check(evidence: Evidence) -> Iterator[Figure]:
    """The figures of one request's review, and that without one nothing of it was signed."""
    signed = [row for row in evidence.adjustments if json.loads(row.document).get("review")]
    if evidence.review is None:
        yield "outcomes signed = ended review", [], [row.id for row in signed]
        return
    item = review_items.from_row(evidence.review._mapping)
    given = [review_opinions.from_row(row) for row in evidence.opinions]
    ended = [] if item.is_open else [f"{item.request_id}/{item.rule_version}"]
    yield "outcomes signed = ended review", ended, [row.id for row in signed]
    numbers = [row.number for row in evidence.opinions]
    yield "review's opinions = those given", list(range(1, item.opinions + 1)), numbers
    yield from _queued(evidence, item)
    yield from _fee(evidence, item, given)
    if not item.is_open:
        yield from _verdict(item, given)
        for row in signed:
            yield from _outcome(evidence, item, row)


def _queued(evidence: Evidence, item: ReviewItem) -> Iterator[Figure]:
    """What it was queued with: by the request, the summary and the receipt."""
    request, summary, receipt = evidence.request, evidence.summary, evidence.receipt
    own = (f"rev_{request.id}", review_endings.RULE_VERSION, request.tenant_id)
    yield "review is of the request", own, (item.id, item.rule_version, item.tenant_id)
    if summary is not None:
        score = summary.confidence
        scored = (None, None) if score is None else (score.geo_mean, score.calibrated)
        expected = (*scored, summary.calibration)
        actual = (item.geo_mean, item.calibrated, item.calibration)
        yield "review's score = summary", expected, actual
        if item.inclusion_ppm is not None:
            drawn = summary.audit_ppm is not None
            likely = summary.audit_ppm if item.reason == AUDIT else CERTAIN_PPM
            yield "review's draw = summary", (likely, drawn), (item.inclusion_ppm, item.sampled)
    if receipt is not None:
        yield "review's currency = receipt", receipt.currency, item.currency
        terms = json.loads(receipt.document)["review"] or {}
        stored = {
            "reason": item.reason,
            "fee": format_nano(item.fee_nano),
            "paid_by": item.paid_by,
            "delivery": item.delivery.value,
        }
        # Receipts of earlier versions say less.
        said = {name: terms[name] for name in stored.keys() & terms.keys()}
        yield "review's terms = receipt", said, {name: stored[name] for name in said}


def _fee(evidence: Evidence, item: ReviewItem, given: Sequence[Opinion]) -> Iterator[Figure]:
    """Who paid it, and whose due it became."""
    payers = {
        "operator" if row.debit_kind == AccountKind.EARNINGS else "tenant"
        for row in evidence.transfers
        if row.kind == "review_fee" and row.credit_kind == AccountKind.REVIEW_POOL
    }
    yield "review's payer = fee transfer", payers or {item.paid_by}, {item.paid_by}
    due: Counter[str] = Counter()
    for row in evidence.transfers:
        if row.credit_kind == AccountKind.REVIEWER_PAYABLE:
            due[row.credit_account_id] += row.amount_nano
    # Before reviewers had accounts of their own, they had one together.
    if item.state is not ReviewState.RESOLVED or set(due) == {_together(item.currency)}:
        return
    shares = zip(given, split(item.fee_nano, [1] * len(given)) if given else [], strict=True)
    owed = {reviewers.account(each.reviewer_id, item.currency).id: nano for each, nano in shares}
    yield (
        "reviewers' shares = opinions",
        {name: nano for name, nano in owed.items() if nano},
        dict(due),
    )


def _together(currency: str) -> str:
    return Account(None, AccountKind.REVIEWER_PAYABLE, currency).id


def _verdict(item: ReviewItem, given: Sequence[Opinion]) -> Iterator[Figure]:
    """An ended review is as the opinion that decided; without any it lapsed."""
    decided = review_opinions.decisive(given, item.opinions_wanted)
    stands = decided or review_opinions.standing(given)
    expected: tuple[Any, ...] = (ReviewState.LAPSED, None, (), None, None, None)
    if stands is not None:
        expected = (
            *(ReviewState.RESOLVED, stands.verdict, stands.reasons),
            *(stands.note, stands.edited_output, stands.reviewer_id),
        )
    actual = (
        *(item.state, item.verdict, item.reasons),
        *(item.note, item.edited_output, item.resolved_by),
    )
    yield "review's verdict = deciding opinion", expected, actual


def _outcome(evidence: Evidence, item: ReviewItem, adjustment: OneRow) -> Iterator[Figure]:
    document = json.loads(adjustment.document)
    reason = review_endings.REASONS[item.verdict] if item.verdict else review_endings.LAPSED
    yield "signed outcome's reason = review", reason, document["reason"]
    stored = review_endings.outcome_document(item, evidence.request.content_salt)
    if evidence.request.prompt is None:
        # With the content went the correction, and what its hash begins with.
        del stored["edited_output_sha256"]
        yield "an erased request has no correction", None, item.edited_output
    # Outcomes of earlier versions say less.
    said = {name: document["review"][name] for name in stored.keys() & document["review"].keys()}
    yield "signed outcome = review", {name: stored[name] for name in said}, said

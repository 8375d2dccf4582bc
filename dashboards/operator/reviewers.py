"""Reviewers: what each of them found, earned and was paid, and booking a payment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from litestar import Response, get, post
from litestar.response import Redirect

from billing import reviewers
from billing.errors import InvalidAmount, InvalidPayout
from billing.invoices.minor_units import stated
from billing.money import parse_nano
from billing.review_items import Verdict
from billing.reviewers import ReviewerAccount
from dashboards.injected import AForm, AHost, AViewer
from dashboards.rendering import page, url
from dashboards.sessions import PageRequest, notify
from metering.database import snapshot, transaction

PAYOUTS_SHOWN = 50


@dataclass(frozen=True, slots=True)
class ReviewerView:
    """A reviewer's account in one currency, with the opinions given in all of them."""

    account: ReviewerAccount
    verdicts: Mapping[Verdict, int]


@get("/reviewers", sync_to_thread=True)
def show_reviewers(request: PageRequest, host: AHost, operator: AViewer) -> Response[str]:
    """Every reviewer who ever earned a fee, and the latest payouts."""
    with snapshot(host.database) as connection:
        accounts = reviewers.listing(connection)
        verdicts = reviewers.verdicts(connection)
        payouts = reviewers.payouts(connection, None, PAYOUTS_SHOWN)
    return page(
        request,
        "operator/reviewers.html",
        views=[ReviewerView(each, verdicts.get(each.reviewer_id, {})) for each in accounts],
        payouts=payouts,
    )


@post("/reviewers/payouts", sync_to_thread=True)
def book_payout(request: PageRequest, host: AHost, operator: AViewer, form: AForm) -> Redirect:
    """Book that a reviewer was paid all that the page showed to be due. Once per reference."""
    reviewer_id, currency = form.get("reviewer_id", ""), form.get("currency", "")
    try:
        with transaction(host.database) as connection:
            payout, is_news = reviewers.pay_out(
                connection,
                reviewer_id,
                currency,
                reference=form.get("reference", "").strip(),
                # What the page showed: what has become due since was not paid.
                amount_nano=parse_nano(form.get("amount", "")),
            )
            if is_news:
                host.audit(
                    connection,
                    actor=operator.key_id,
                    action="review.paid_out",
                    subject=reviewer_id,
                    payout=payout.id,
                    amount_nano=payout.amount_nano,
                    currency=currency,
                )
    except (InvalidAmount, InvalidPayout) as error:
        text = str(error)
        notify(request, f"{text[:1].upper()}{text[1:]}.", failed=True)
    else:
        paid = "".join(stated(payout.amount_nano, currency))
        notify(request, f"{paid} {currency} are booked as paid.")
    return Redirect(url("/reviewers"))


HANDLERS = (show_reviewers, book_payout)

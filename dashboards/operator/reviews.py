"""The review queue: what waits, one item with everything a verdict needs, and the verdict.

A form carries the claim's token from when its page was made, so a verdict given after somebody
else took the item over is refused, and nothing moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from litestar import Response, get, post
from litestar.exceptions import NotFoundException
from litestar.params import FromQuery, QueryParameter
from litestar.response import Redirect
from sqlalchemy import Connection

from billing import (
    lineages,
    review,
    review_opinions,
    review_queries,
    review_standing,
    review_texts,
)
from billing.errors import InvalidVerdict, ReviewConflict, ReviewItemNotFound
from billing.redaction import Redacted
from billing.review_items import OPEN_STATES, Reason, ReviewItem, ReviewState, Verdict
from dashboards import cursors
from dashboards.billing.output import cut
from dashboards.injected import AForm, AHost, AViewer, PathId
from dashboards.rendering import page, url
from dashboards.sessions import PageRequest, notify
from metering import clock
from metering import queries as metering_queries
from metering.database import snapshot, transaction
from metering.events import RequestSummary, UnitSummary

PAGE_SIZE = 25
NOTE_LENGTH_MAX = 4000
DONE = {Verdict.APPROVE: "approved", Verdict.EDIT: "corrected", Verdict.REJECT: "rejected"}


@dataclass(frozen=True, slots=True)
class ItemView:
    """A review item as of now: its age, the time left, and whether a claim on it still runs."""

    item: ReviewItem
    now_us: int

    @property
    def open(self) -> bool:
        """Whether a verdict may still be given."""
        return self.item.state in OPEN_STATES

    @property
    def age_us(self) -> int:
        """How long it has waited, or did wait until it was final."""
        return (self.item.resolved_at_us or self.now_us) - self.item.queued_at_us

    @property
    def left_us(self) -> int:
        """Until its time runs out; negative once it has."""
        return self.item.due_at_us - self.now_us

    @property
    def holder(self) -> str | None:
        """The key whose claim still runs."""
        expires_us = self.item.claim_expires_at_us
        runs = expires_us is not None and expires_us > self.now_us
        return self.item.claimed_by if runs and self.item.state is ReviewState.CLAIMED else None

    @property
    def verdict(self) -> str | None:
        """The verdict in the past tense."""
        return None if self.item.verdict is None else DONE[self.item.verdict]


@get("/reviews", sync_to_thread=True)
def show_queue(
    request: PageRequest,
    host: AHost,
    reviewer: AViewer,
    chosen: Annotated[str, QueryParameter(name="state")] = ReviewState.QUEUED.value,
    cursor: FromQuery[str | None] = None,
) -> Response[str]:
    """Items in one state, the open ones oldest first, and where the fees are."""
    try:
        state = ReviewState(chosen)
    except ValueError:
        raise NotFoundException("There is no such state of a review.") from None
    after = cursors.decode(cursor, cursors.TimedPosition)
    position = (after.at_us, after.id) if after else None
    now_us = clock.now_us()
    with snapshot(host.database) as connection:
        found = review.items(connection, state, PAGE_SIZE + 1, position)
        backlog = review_queries.backlog(connection, now_us)
        pool = review_queries.funds(connection)
        standing = review_standing.standing(connection, now_us)
    shown = found[:PAGE_SIZE]
    more = len(found) > PAGE_SIZE
    following = cursors.encode((shown[-1].queued_at_us, shown[-1].id)) if more else ""
    first_url = url(f"/reviews?state={state}")
    return page(
        request,
        "operator/reviews.html",
        state=state.value,
        states=[each.value for each in ReviewState],
        views=[ItemView(item, now_us) for item in shown],
        backlog=backlog,
        pool=pool,
        standing=standing,
        cursor=cursor,
        first_url=first_url,
        next_url=f"{first_url}&cursor={following}" if more else None,
    )


@get("/reviews/{item_id:str}", sync_to_thread=True)
def show_item(
    request: PageRequest,
    host: AHost,
    reviewer: AViewer,
    item_id: PathId,
) -> Response[str]:
    """One item: prompt, answer, unit by unit, and what has become of its fee."""
    now_us = clock.now_us()
    with snapshot(host.database) as connection:
        item = _item(connection, item_id)
        texts = review_texts.texts(connection, item)
        summary = metering_queries.summary(connection, item.request_id)
        movements = review_queries.movements(connection, item.request_id)
        opinions = review_opinions.shown(connection, item)
        me = lineages.of_key(connection, reviewer.key_id)
    output = texts.output
    view = ItemView(item, now_us)
    return page(
        request,
        "operator/review.html",
        view=view,
        item=item,
        mine=view.holder == me,
        movements=movements,
        opinions=opinions,
        reasons=tuple(Reason),
        prompt_text=_prompt_text(texts.prompt),
        output_text=None if output is None else output.text,
        edited_text=texts.edited_output,
        hidden=len(texts.redaction.originals),
        pieces=None if output is None else cut(output.text, _moved(summary, output)),
    )


@post("/reviews/{item_id:str}/claim", sync_to_thread=True)
def take_claim(
    request: PageRequest,
    host: AHost,
    reviewer: AViewer,
    form: AForm,
    item_id: PathId,
) -> Redirect:
    """Claim an item for the length of a lease, or say why that can't be."""
    try:
        with transaction(host.database) as connection:
            item = _item(connection, item_id)
            token = review.claim(connection, item_id, lineages.of_key(connection, reviewer.key_id))
            host.audit(
                connection,
                actor=reviewer.key_id,
                action="review.claimed",
                tenant_id=item.tenant_id,
                subject=item_id,
                token=token,
            )
    except ReviewConflict as error:
        notify(request, _sentence(error), failed=True)
    else:
        minutes = review.LEASE_US // 60_000_000
        notify(request, f"The item is yours for {minutes} minutes.")
    return Redirect(url(f"/reviews/{item_id}"))


@post("/reviews/{item_id:str}/verdict", sync_to_thread=True)
def give_verdict(
    request: PageRequest,
    host: AHost,
    reviewer: AViewer,
    form: AForm,
    item_id: PathId,
) -> Redirect:
    """Give an opinion on a claimed item; where it decides, the fee moves with it."""
    back = Redirect(url(f"/reviews/{item_id}"))
    verdict = form.get("verdict", "")
    token = form.get("claim_token", "")
    note = _lines(form.get("note", "")).strip() or None
    if not token.isascii() or not token.isdigit() or len(token) > 9:
        notify(request, "The claim's token is missing. Load the page again.", failed=True)
        return back
    if note is not None and len(note) > NOTE_LENGTH_MAX:
        notify(request, f"A note has at most {NOTE_LENGTH_MAX} characters.", failed=True)
        return back
    edited = _lines(form.get("edited_output", "")) if verdict == Verdict.EDIT else None
    try:
        with transaction(host.database) as connection:
            item = review.resolve(
                connection,
                item_id,
                lineages.of_key(connection, reviewer.key_id),
                int(token),
                verdict=verdict,
                reasons=[each for each in Reason if form.get(f"reason_{each}")]
                if verdict != Verdict.APPROVE
                else [],
                note=note,
                edited_output=review_texts.corrected(
                    connection, _item(connection, item_id), edited
                ),
                second_opinion=bool(form.get("second_opinion")),
                signer=host.signer,
            )
            host.audit(
                connection,
                actor=reviewer.key_id,
                action="review.resolved",
                tenant_id=item.tenant_id,
                subject=item_id,
                verdict=verdict,
                decided=item.state is ReviewState.RESOLVED,
            )
    except (ReviewConflict, InvalidVerdict) as error:
        notify(request, _sentence(error), failed=True)
    else:
        notify(request, _said(item, Verdict(verdict)))
    return back


def _item(connection: Connection, item_id: str) -> ReviewItem:
    try:
        return review.item(connection, item_id)
    except ReviewItemNotFound:
        raise NotFoundException("There is no review with this id.") from None


def _said(item: ReviewItem, given: Verdict) -> str:
    if item.state is not ReviewState.RESOLVED or item.verdict is None:
        return f"You found it to be {DONE[given]}. Another reviewer is asked before it is decided."
    return f"The answer was {DONE[item.verdict]}; the outcome is signed."


def _moved(summary: RequestSummary | None, output: Redacted) -> list[UnitSummary]:
    """The units' bounds in the text that a reviewer sees."""
    return [
        msgspec.structs.replace(
            unit,
            byte_start=output.moved(unit.byte_start),
            byte_end=output.moved(unit.byte_end),
        )
        for unit in (summary.units if summary else ())
    ]


def _prompt_text(prompt: Mapping[str, Any] | None) -> str | None:
    """What was sent, as text: a prompt as it is, a conversation turn by turn; null once erased."""
    if prompt is None:
        return None
    if "messages" in prompt:
        return "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in prompt["messages"])
    return str(prompt["prompt"])


def _lines(text: str) -> str:
    """A form's text with plain line ends: browsers send CRLF."""
    return text.replace("\r\n", "\n")


def _sentence(error: Exception) -> str:
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."


HANDLERS = (show_queue, show_item, take_claim, give_verdict)

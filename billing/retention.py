"""How long content is kept, and erasing it: prompts, outputs, reviewers' texts and token ids go.

So do the parameters that may tell content. Receipts, summaries, lines and ledger stay, with the
hashes of what was said, whose salt goes. Blocks hold the answer token by token, so an erased
request's are compacted into what they came to. The engine's caches are scoped by the number of
erasures: what was computed before one is never found again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from billing import charged_hours
from billing.charged_hours import HOUR_US
from billing.errors import InvalidRetention, UnknownRequest
from billing.ledger.accounts import lock_tenant
from billing.ledger.balances import currency_of
from billing.retention_tables import compactions, erasures, retention_policies
from billing.review_items import OPEN_STATES
from billing.review_tables import review_opinions
from billing.rows import insert_once
from billing.tables import review_items
from metering import bodies, clock, event_log
from metering.events import FINAL_STATUSES, EventKind
from metering.ingestion.outside import ROUTE as OUTSIDE
from metering.prepared import Prepared
from metering.request_parameters import without_content
from metering.requests import CHOICES_MAX, choice_ids
from metering.tables import request_summaries, requests, usage_events

DAY_US = 86_400 * 10**6
DAYS_MAX = 36_500
BATCH = 100
_FINAL = [status.value for status in FINAL_STATUSES]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which requests of a tenant to erase; all that are final where nothing is named."""

    request_id: str | None = None  # with every choice of its order
    end_user: str | None = None
    ended_before_us: int | None = None


def keep(connection: Connection, tenant_id: str, content_days: int | None) -> None:
    """Keep a tenant's content for so many days after each answer; null: until it is erased.

    Raises InvalidRetention.
    """
    if content_days is not None and not 0 <= content_days <= DAYS_MAX:
        raise InvalidRetention(f"content is kept from 0 to {DAYS_MAX} days")
    row = {
        "tenant_id": tenant_id,
        "content_days": content_days,
        "changed_at_us": clock.now_us(),
    }
    if not insert_once(connection, retention_policies, row):
        connection.execute(
            update(retention_policies)
            .where(retention_policies.c.tenant_id == tenant_id)
            .values(content_days=content_days, changed_at_us=row["changed_at_us"])
        )


def kept_days(connection: Connection, tenant_id: str) -> int | None:
    """For how many days a tenant's content is kept; null: until it is erased."""
    return connection.scalar(
        select(retention_policies.c.content_days).where(retention_policies.c.tenant_id == tenant_id)
    )


_ERASURES = Prepared(
    select(func.count()).select_from(erasures).where(erasures.c.tenant_id == bindparam("tenant_id"))
)


def cache_scope(connection: Connection, tenant_id: str) -> str:
    """Under what name the engine caches for a tenant: another one after each erasure."""
    count = _ERASURES.value(connection, {"tenant_id": tenant_id})
    return f"{tenant_id}/{count}" if count else tenant_id


def is_erased(connection: Connection, request_id: str) -> bool:
    """Whether content of a request, or of a choice of it, was there once and is no more."""
    gone = select(requests.c.id).where(
        _of_order(request_id),
        requests.c.status.in_(_FINAL),
        requests.c.prompt.is_(None),
        requests.c.output.is_(None),
    )
    return connection.scalar(gone.limit(1)) is not None


def erase(connection: Connection, tenant_id: str, chosen: Chosen) -> int:
    """Erase the content of final requests, and say how many there were.

    Erasing again changes nothing. With an end user, who it was is erased as well. Raises
    UnknownRequest for a request that the tenant never sent.
    """
    if chosen.request_id is not None:
        known = select(requests.c.id).where(
            requests.c.tenant_id == tenant_id, _of_order(chosen.request_id)
        )
        if connection.scalar(known.limit(1)) is None:
            raise UnknownRequest(f"no request {chosen.request_id}")
    found = _erasable(tenant_id, chosen)
    ids = list(connection.scalars(select(requests.c.id).where(found).order_by(requests.c.id)))
    _erase(connection, tenant_id, ids, "asked", forget_user=chosen.end_user is not None)
    return len(ids)


def next_due(connection: Connection, now_us: int, after: str = "") -> str | None:
    """The first tenant after another, by their ids, with content kept too long; null at the end."""
    policy = retention_policies.c
    limited = select(policy.tenant_id).where(policy.content_days.is_not(None))
    later = limited.where(policy.tenant_id > after).order_by(policy.tenant_id)
    for tenant_id in connection.scalars(later).all():
        if _kept_too_long(connection, tenant_id, now_us, 1):
            return str(tenant_id)
    return None


def sweep(connection: Connection, tenant_id: str, now_us: int) -> int:
    """Erase a batch of what a tenant keeps no longer; how many requests that was."""
    ids = _kept_too_long(connection, tenant_id, now_us, BATCH)
    _erase(connection, tenant_id, ids, "retention", forget_user=False)
    return len(ids)


def _kept_too_long(
    connection: Connection, tenant_id: str, now_us: int, limit: int
) -> Sequence[str]:
    policy = retention_policies.c
    days = connection.scalar(select(policy.content_days).where(policy.tenant_id == tenant_id))
    if days is None:
        return ()
    found = _erasable(tenant_id, Chosen(ended_before_us=now_us - days * DAY_US))
    oldest = select(requests.c.id).where(found).order_by(requests.c.ended_at_us)
    return connection.scalars(oldest.limit(limit)).all()


def _erasable(tenant_id: str, chosen: Chosen) -> ColumnElement[bool]:
    """Final requests with content; one that waits for a reviewer keeps it until the verdict."""
    waiting = select(review_items.c.request_id).where(
        review_items.c.tenant_id == tenant_id, review_items.c.state.in_(OPEN_STATES)
    )
    conditions: list[ColumnElement[bool]] = [
        requests.c.tenant_id == tenant_id,
        requests.c.status.in_(_FINAL),
        requests.c.route != OUTSIDE,
        or_(requests.c.prompt.is_not(None), requests.c.output.is_not(None)),
        requests.c.id.not_in(waiting),
    ]
    if chosen.request_id is not None:
        conditions.append(_of_order(chosen.request_id))
    if chosen.end_user is not None:
        conditions.append(requests.c.end_user == chosen.end_user)
    if chosen.ended_before_us is not None:
        conditions.append(requests.c.ended_at_us <= chosen.ended_before_us)
    return and_(*conditions)


def _of_order(request_id: str) -> ColumnElement[bool]:
    """A request with all choices of its order: they have one prompt."""
    return requests.c.id.in_(choice_ids(request_id.partition(".")[0], CHOICES_MAX))


def _erase(
    connection: Connection,
    tenant_id: str,
    ids: Sequence[str],
    reason: str,
    *,
    forget_user: bool,
) -> None:
    if not ids:
        return
    for start in range(0, len(ids), BATCH):
        some = ids[start : start + BATCH]
        _compact(connection, tenant_id, some)
        gone: dict[str, Any] = {"prompt": None, "output": None, "content_salt": None}
        if forget_user:
            gone["end_user"] = None
        connection.execute(update(requests).where(requests.c.id.in_(some)).values(**gone))
        _clear_parameters(connection, some)
        if forget_user:
            _forget_hours(connection, tenant_id, some)
        connection.execute(
            update(review_items)
            .where(review_items.c.request_id.in_(some))
            .values(note=None, edited_output=None)
        )
        reviewed = select(review_items.c.id).where(review_items.c.request_id.in_(some))
        connection.execute(
            update(review_opinions)
            .where(review_opinions.c.item_id.in_(reviewed))
            .values(note=None, edited_output=None)
        )
    connection.execute(
        insert(erasures).values(
            tenant_id=tenant_id,
            reason=reason,
            requests=len(ids),
            erased_at_us=clock.now_us(),
        )
    )


def _clear_parameters(connection: Connection, ids: Sequence[str]) -> None:
    rows = connection.execute(
        select(requests.c.id, requests.c.parameters).where(requests.c.id.in_(ids))
    )
    cleared = []
    for request_id, text in rows:
        parameters = json.loads(text)
        left = without_content(parameters)
        if left != parameters:
            cleared.append({"request_id": request_id, "left": json.dumps(left)})
    if cleared:
        connection.execute(
            update(requests)
            .where(requests.c.id == bindparam("request_id"))
            .values(parameters=bindparam("left")),
            cleared,
        )


def _forget_hours(connection: Connection, tenant_id: str, ids: Sequence[str]) -> None:
    """What was spent in an hour is kept by end user, too."""
    lock_tenant(connection, tenant_id, currency_of(connection, tenant_id))
    hour = requests.c.ended_at_us - requests.c.ended_at_us % HOUR_US
    for at_us in connection.scalars(select(hour).where(requests.c.id.in_(ids)).distinct()).all():
        charged_hours.forget(connection, tenant_id, at_us)


def _compact(connection: Connection, tenant_id: str, ids: Iterable[str]) -> None:
    """Put what blocks came to in their place, if that is what their summary says."""
    now = clock.now_us()
    for request_id in ids:
        blocks = bodies.blocks(event_log.of_request(connection, request_id))
        summary = connection.execute(
            select(
                request_summaries.c.blocks,
                request_summaries.c.output_tokens,
                request_summaries.c.accepted_tokens,
            ).where(request_summaries.c.request_id == request_id)
        ).one_or_none()
        stated = (
            len(blocks),
            sum(len(block.token_ids) for block in blocks),
            sum(block.accepted_tokens for block in blocks),
        )
        if summary is None or stated != tuple(summary):
            # What would be compared later is wrong already: keep the evidence.
            continue
        written = insert_once(
            connection,
            compactions,
            {
                "request_id": request_id,
                "tenant_id": tenant_id,
                "blocks": stated[0],
                "tokens": stated[1],
                "accepted_tokens": stated[2],
                "compacted_at_us": now,
            },
        )
        if written:
            connection.execute(
                delete(usage_events).where(
                    usage_events.c.request_id == request_id,
                    usage_events.c.kind == EventKind.BLOCK.value,
                )
            )

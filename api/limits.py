"""What a tenant or a key may do at once and in a minute: counted in the database, so that it holds
across processes.

Requests, tokens and joules are those of the last 60 seconds, exactly; what live requests may still
write counts as tokens. Everything is counted from requests and their summaries under the tenant's
lock, so parallel admissions can't pass a limit together and no counter can leak.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from sqlalchemy import Connection, RowMapping, Select, bindparam, delete, func, or_, select, update

from api.errors import InvalidParameter, RateLimited
from api.limit_tables import limits
from billing import lineages
from billing.rows import insert_once
from metering import clock
from metering.energy.provenance import SHOWN_STEP_UJ
from metering.ingestion.outside import ROUTE as OUTSIDE
from metering.prepared import Prepared
from metering.requests import LIVE_STATUSES, AdmittedRequest
from metering.tables import request_summaries, requests

WINDOW_US = 60_000_000
TENANT = "tenant"
AnyQuery: TypeAlias = Select[*tuple[Any, ...]]
_LIVE = [status.value for status in LIVE_STATUSES]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one subject may do; null is no limit of this kind."""

    subject: str  # a key's id, for all keys of its lineage together, or "tenant"
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    joules_per_minute: int | None = None
    concurrency: int | None = None


def put(connection: Connection, tenant_id: str, wanted: Limits) -> Limits:
    """Replace the limits of the tenant, or of a key's lineage.

    Whether the key is this tenant's is for the caller to check.
    """
    values = {
        "requests_per_minute": wanted.requests_per_minute,
        "tokens_per_minute": wanted.tokens_per_minute,
        "joules_per_minute": wanted.joules_per_minute,
        "concurrency": wanted.concurrency,
    }
    if any(value is not None and value < 1 for value in values.values()):
        raise InvalidParameter("a limit is at least 1; null is none")
    now = clock.now_us()
    subject = _lineage(connection, wanted.subject)
    row = {"tenant_id": tenant_id, "subject": subject, "changed_at_us": now, **values}
    if not insert_once(connection, limits, row):
        connection.execute(
            update(limits)
            .where(limits.c.tenant_id == tenant_id, limits.c.subject == subject)
            .values(changed_at_us=now, **values)
        )
    # What was put on a successor before its lineage was known is replaced too.
    connection.execute(
        delete(limits).where(
            limits.c.tenant_id == tenant_id,
            limits.c.subject != subject,
            lineages.lineage_of(limits.c.subject) == subject,
        )
    )
    return _shown(connection, wanted)


def listing(connection: Connection, tenant_id: str) -> list[Limits]:
    """Every subject's limits, the tenant's own among them; a lineage's under its newest key."""
    rows = connection.execute(
        select(limits).where(limits.c.tenant_id == tenant_id).order_by(limits.c.subject)
    )
    return [_shown(connection, _limits(row)) for row in rows.mappings()]


_APPLYING = Prepared(
    select(limits)
    .where(
        limits.c.tenant_id == bindparam("tenant_id"),
        or_(
            limits.c.subject == TENANT,
            lineages.lineage_of(limits.c.subject) == bindparam("lineage_id"),
        ),
    )
    .order_by(limits.c.subject != TENANT)
)


def applying(connection: Connection, tenant_id: str, lineage_id: str) -> list[Limits]:
    """The limits that a request of a lineage's keys is under: the tenant's, then its own."""
    rows = _APPLYING.rows(connection, {"tenant_id": tenant_id, "lineage_id": lineage_id})
    found = [_limits(row._asdict()) for row in rows]
    return [each if each.subject == TENANT else replace(each, subject=lineage_id) for each in found]


def check_order(found: list[Limits], *, choices: int, input_tokens: int, max_tokens: int) -> None:
    """Raise InvalidParameter for an order that no minute would ever let through as a whole.

    Each choice is a request with `max_tokens` of its own; the prompt counts once.
    """
    wanted = input_tokens + choices * max_tokens
    for each in found:
        for allowed, per in (
            (each.concurrency, "at once"),
            (each.requests_per_minute, "a minute"),
        ):
            if allowed is not None:
                check_choices(choices, allowed, per)
        if each.tokens_per_minute is not None and wanted > each.tokens_per_minute:
            asked = "max_tokens" if choices == 1 else f"max_tokens for each of {choices} choices"
            raise InvalidParameter(
                f"prompt and {asked} come to {wanted} tokens; {each.tokens_per_minute} a minute "
                "are allowed",
                "max_tokens",
            )


def check_choices(choices: int, allowed: int, per: str) -> None:
    """Raise InvalidParameter for more choices than a limit on requests ever lets through."""
    if choices > allowed:
        raise InvalidParameter(
            f"n is {choices}, and each choice is a request; {allowed} {per} are allowed", "n"
        )


def check(connection: Connection, found: list[Limits], asked: AdmittedRequest) -> None:
    """Let a request pass every limit or raise RateLimited, changing nothing.

    The caller holds the tenant's lock, has not stored the request yet, and has asked `check_order`
    about all of its order.
    """
    for each in found:
        _concurrency(connection, each, asked)
        _requests(connection, each, asked)
        _tokens(connection, each, asked)
        _joules(connection, each, asked)


def _concurrency(connection: Connection, limit: Limits, asked: AdmittedRequest) -> None:
    if limit.concurrency is None:
        return
    live = connection.scalar(
        _of(select(func.count()), limit, asked).where(requests.c.status.in_(_LIVE))
    )
    if int(live or 0) >= limit.concurrency:
        raise RateLimited(limit.concurrency, 1, unit="concurrent-requests")


def _requests(connection: Connection, limit: Limits, asked: AdmittedRequest) -> None:
    if limit.requests_per_minute is None:
        return
    started = _of(select(requests.c.started_at_us), limit, asked).where(
        requests.c.started_at_us > asked.started_at_us - WINDOW_US,
        requests.c.started_at_us <= asked.started_at_us + WINDOW_US,
    )
    newest = started.order_by(requests.c.started_at_us.desc()).limit(limit.requests_per_minute)
    moments = list(connection.scalars(newest))
    if len(moments) >= limit.requests_per_minute:
        wait_us = moments[-1] + WINDOW_US - asked.started_at_us
        raise RateLimited(limit.requests_per_minute, _seconds(wait_us))


def _tokens(connection: Connection, limit: Limits, asked: AdmittedRequest) -> None:
    if limit.tokens_per_minute is None:
        return
    wanted = asked.input_tokens + asked.max_tokens
    reserved = connection.scalar(
        _of(select(func.sum(requests.c.input_tokens + requests.c.max_tokens)), limit, asked).where(
            requests.c.status.in_(_LIVE)
        )
    )
    summary = request_summaries.c
    ended = connection.execute(
        _ended(
            select(summary.ended_at_us, summary.input_tokens + summary.output_tokens), limit, asked
        )
    )
    _refuse(
        limit.tokens_per_minute,
        int(reserved or 0) + wanted,
        [(at_us, int(tokens)) for at_us, tokens in ended],
        asked.started_at_us,
        unit="tokens",
    )


def _joules(connection: Connection, limit: Limits, asked: AdmittedRequest) -> None:
    """Joules are known only afterwards: the next request waits until the minute has room again."""
    if limit.joules_per_minute is None:
        return
    summary = request_summaries.c
    shown_uj = summary.energy_uj - summary.energy_uj % SHOWN_STEP_UJ  # as each receipt floors it
    ended = connection.execute(
        _ended(select(summary.ended_at_us, shown_uj), limit, asked).where(
            summary.energy_uj.is_not(None)
        )
    )
    _refuse(
        limit.joules_per_minute * 10**6,
        1,
        [(at_us, int(energy)) for at_us, energy in ended],
        asked.started_at_us,
        unit="joules",
        shown=limit.joules_per_minute,
    )


def _refuse(
    allowed: int,
    wanted: int,
    ended: list[tuple[int, int]],
    now_us: int,
    *,
    unit: str,
    shown: int | None = None,
) -> None:
    """Raise where what is wanted and what ended in the window, oldest first, pass the limit."""
    over = sum(amount for _, amount in ended) + wanted - allowed
    if over <= 0:
        return
    wait_us = 1
    for at_us, amount in ended:
        over -= amount
        wait_us = at_us + WINDOW_US - now_us
        if over <= 0:
            break
    raise RateLimited(allowed if shown is None else shown, _seconds(wait_us), unit=unit)


def _lineage(connection: Connection, subject: str) -> str:
    return subject if subject == TENANT else lineages.of_key(connection, subject)


def _shown(connection: Connection, found: Limits) -> Limits:
    if found.subject == TENANT:
        return found
    return replace(found, subject=lineages.newest(connection, found.subject))


def _counted(query: AnyQuery, limit: Limits) -> AnyQuery:
    if limit.subject == TENANT:
        return query
    return query.where(requests.c.key_id.in_(lineages.members(limit.subject)))


def _of(query: AnyQuery, limit: Limits, asked: AdmittedRequest) -> AnyQuery:
    query = query.where(requests.c.tenant_id == asked.tenant_id, requests.c.route != OUTSIDE)
    return _counted(query, limit)


def _ended(query: AnyQuery, limit: Limits, asked: AdmittedRequest) -> AnyQuery:
    summary = request_summaries.c
    query = query.where(
        summary.tenant_id == asked.tenant_id,
        summary.ended_at_us > asked.started_at_us - WINDOW_US,
        # A clock that was set back must not hold anybody up until it has caught up.
        summary.ended_at_us <= asked.started_at_us + WINDOW_US,
    ).order_by(summary.ended_at_us)
    # What other engines report was not let in here, so it is none of these limits' business.
    query = query.join(requests, requests.c.id == summary.request_id).where(
        requests.c.route != OUTSIDE
    )
    return _counted(query, limit)


def _seconds(wait_us: int) -> int:
    return max(1, math.ceil(wait_us / 1_000_000))


def _limits(row: RowMapping) -> Limits:
    return Limits(
        subject=row["subject"],
        requests_per_minute=row["requests_per_minute"],
        tokens_per_minute=row["tokens_per_minute"],
        joules_per_minute=row["joules_per_minute"],
        concurrency=row["concurrency"],
    )

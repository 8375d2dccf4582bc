"""CloudEvents 1.0 as other engines send them: what is taken, and why the rest is not. Pure.

`subject` names the tenant, `data` says what was used. Joules are decimal strings: what is priced
must not depend on how a float prints. A missing measure is null; zero is zero.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

PAST_DAYS_MAX = 400
FUTURE_S_MAX = 300
TAGS_MAX = 16
# What is beyond belief of one request would let the sums of many pass an int64.
COUNT_MAX = 10**8

Text = Annotated[str, Meta(min_length=1, max_length=200)]
ProjectId = Annotated[str, Meta(min_length=1, max_length=64)]
Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Joules = Annotated[str, Meta(pattern=r"^[0-9]{1,7}(\.[0-9]{1,6})?(?!\n)$")]
_ID = re.compile(r"[\x21-\x7e]{1,128}")


class ReportedUsage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """What one request used, as its engine reports it."""

    model: Text
    input_tokens: Count
    output_tokens: Count
    energy_joules: Joules | None = None
    end_user: Text | None = None
    project_id: ProjectId | None = None
    tags: dict[Text, Text] | None = None

    @property
    def energy_uj(self) -> int | None:
        """The reported energy in microjoules; null where none was reported."""
        return None if self.energy_joules is None else int(Decimal(self.energy_joules) * 10**6)


class Moment(int):
    """A time of RFC 3339, in microseconds since 1970."""

    __slots__ = ()


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """The attributes that matter here; extensions are let pass."""

    specversion: Literal["1.0"]
    id: str
    source: str
    type: Literal["dev.dflash.usage.reported.v1"]
    subject: str
    time: Moment
    data: ReportedUsage


class OutsideEvent(msgspec.Struct, frozen=True, gc=False):
    """One well-formed event. `body` is all that it states, in its one spelling."""

    tenant_id: str
    source: str
    id: str
    event_time_us: int
    body: str
    body_sha256: str


class Rejection(msgspec.Struct, frozen=True, gc=False):
    """An event that is not taken, and why. The id is null where none could be read."""

    id: str | None
    reason: str


# What is finer than a microsecond is cut: rounded up, it could belong to the next month.
_FINER = re.compile(r"(?<=\.\d{6})\d+")
_LEAP_SECOND = re.compile(r"(?<=:59:)60(\.\d+)?")
# DEL and the C1 controls, which JSON does not escape, and what ends a line or turns it round.
_TURNING = re.compile(r"[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_AT = Annotated[datetime, Meta(tz=True)]


def _moment(_wanted: type, value: object) -> Moment:
    """Read a time; a leap second is the last microsecond of its day. Raises ValueError."""
    text = str(value)
    cut = _LEAP_SECOND.sub("59.999999", _FINER.sub("", text))
    try:
        at = msgspec.convert(cut, _AT).astimezone(UTC)
    except (msgspec.ValidationError, OverflowError) as error:
        raise ValueError(str(error)) from None
    if _LEAP_SECOND.search(text) and (at.hour, at.minute) != (23, 59):
        raise ValueError("leap seconds are at the end of a day only")
    return Moment(int(at.timestamp()) * 10**6 + at.microsecond)


_READER = msgspec.json.Decoder(Envelope, dec_hook=_moment)


class _IdOnly(msgspec.Struct):
    id: str | None = None


def read(
    raw: bytes,
    *,
    source: str,
    tenant_ids: frozenset[str],
    now_us: int,
    projects: Collection[tuple[str, str]] = (),
) -> OutsideEvent | Rejection:
    """Read one event of a key's source, for one of its tenants; `projects` are (tenant, project).

    No other project is taken: what an event counts for is looked for under its project's name.
    """
    try:
        envelope = _READER.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Rejection(_id_of(raw), str(error))
    time_us = int(envelope.time)
    fault = _fault(envelope, time_us, source, tenant_ids=tenant_ids, now_us=now_us)
    project_id = envelope.data.project_id
    if not fault and project_id is not None and (envelope.subject, project_id) not in projects:
        fault = "this tenant has no such project"
    if fault:
        return Rejection(envelope.id[:128], fault)
    encoded = _BODIES.encode(_Body(envelope.data, time_us))
    body = encoded.decode()
    if _has_control(body):
        return Rejection(envelope.id, "a text has control characters")
    sha256 = hashlib.sha256(encoded).hexdigest()
    return OutsideEvent(envelope.subject, source, envelope.id, time_us, body, sha256)


def usage_of(body: str) -> ReportedUsage:
    """What a stored body says was used."""
    return msgspec.json.decode(body, type=_Body).data


def without_user(body: str, end_user: str) -> str | None:
    """A stored body that no longer says who it was; null where it was not this end user."""
    stated = msgspec.json.decode(body)
    if stated["data"].get("end_user") != end_user:
        return None
    return _BODIES.encode(stated | {"data": stated["data"] | {"end_user": None}}).decode()


class _Body(msgspec.Struct, frozen=True, gc=False):
    data: ReportedUsage
    time_us: int


_BODIES = msgspec.json.Encoder(order="sorted")  # as `canonical_json` spells it


def _fault(
    envelope: Envelope, time_us: int, source: str, *, tenant_ids: frozenset[str], now_us: int
) -> str | None:
    fault = None
    if not _ID.fullmatch(envelope.id):
        fault = "an id has 1 to 128 printable ASCII characters, no spaces"
    elif envelope.source != source:
        fault = f"this key reports for the source {source!r}"
    elif envelope.subject not in tenant_ids:
        fault = "this key reports for no such tenant"
    elif time_us > now_us + FUTURE_S_MAX * 10**6:
        fault = f"its time is over {FUTURE_S_MAX} s ahead"
    elif time_us < now_us - PAST_DAYS_MAX * 86_400 * 10**6:
        fault = f"its time is over {PAST_DAYS_MAX} days ago"
    elif len(envelope.data.tags or ()) > TAGS_MAX:
        fault = f"more than {TAGS_MAX} tags"
    return fault


def _has_control(body: str) -> bool:
    """Whether a text in canonical JSON has any: most are what else is escaped there.

    A pattern on every text would say the same, and take as long as all the rest.
    """
    if "\\" in body:
        body = body.replace("\\\\", "").replace('\\"', "")
    return "\\" in body or (not body.isprintable() and _TURNING.search(body) is not None)


def _id_of(raw: bytes) -> str | None:
    try:
        found = msgspec.json.decode(raw, type=_IdOnly).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return None if found is None else found[:128]

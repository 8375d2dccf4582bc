"""How a request ends: in one of the final statuses, for a reason, by somebody's decision. Pure."""

from __future__ import annotations

from enum import Enum, auto

import msgspec

from engine.records import FinishReason
from metering.events import EndedBy, RequestStatus
from metering.protocols import Cover

STOPPED = "the gateway stopped while this request ran"


class Withheld(Enum):
    """Why nothing more of a request is committed, whatever the engine still emits."""

    CANCELLED = auto()  # the client went away
    MAX_COST = auto()  # the request's own limit
    CREDIT = auto()  # the tenant's
    STOPPED = auto()  # we go on with it no longer
    FAULT = auto()  # ours


class Ending(msgspec.Struct, frozen=True):
    """The end of a request, before it is stated."""

    status: RequestStatus
    reason: FinishReason
    ended_by: EndedBy
    detail: str | None = None


_WITHHELD = {
    Withheld.CANCELLED: (RequestStatus.CANCELLED, FinishReason.CANCELLED, EndedBy.TENANT),
    Withheld.MAX_COST: (RequestStatus.COMPLETED, FinishReason.BUDGET, EndedBy.TENANT),
    Withheld.CREDIT: (RequestStatus.COMPLETED, FinishReason.BUDGET, EndedBy.OPERATOR),
    Withheld.STOPPED: (RequestStatus.FAILED, FinishReason.ERROR, EndedBy.OPERATOR),
    Withheld.FAULT: (RequestStatus.FAILED, FinishReason.ERROR, EndedBy.OPERATOR),
}
_FINISHED = {
    FinishReason.STOP: (RequestStatus.COMPLETED, EndedBy.MODEL),
    FinishReason.LENGTH: (RequestStatus.COMPLETED, EndedBy.TENANT),
    FinishReason.BUDGET: (RequestStatus.COMPLETED, EndedBy.TENANT),
    FinishReason.DEADLINE: (RequestStatus.COMPLETED, EndedBy.TENANT),
    FinishReason.ERROR: (RequestStatus.FAILED, EndedBy.OPERATOR),
}


def withheld(why: Withheld, detail: str | None = None) -> Ending:
    """The end of a request of which blocks were withheld, whatever the engine says of it."""
    return Ending(*_WITHHELD[why], detail)


def finished(reason: FinishReason, detail: str | None = None) -> Ending:
    """The end of a request of which every block was committed.

    One that the engine cancelled unasked was cut off by its closing.
    """
    if reason is FinishReason.CANCELLED:
        return withheld(Withheld.STOPPED, STOPPED)
    status, ended_by = _FINISHED[reason]
    return Ending(status, reason, ended_by, detail)


def refused(detail: str) -> Ending:
    """The end of a request that the engine did not take."""
    return Ending(RequestStatus.REFUSED, FinishReason.ERROR, EndedBy.OPERATOR, detail)


def orphaned() -> Ending:
    """The end of a request that a crash left behind."""
    return withheld(Withheld.STOPPED, STOPPED)


def short_of(cover: Cover) -> Withheld:
    """Why a request is cut, by what its hold could not cover."""
    return Withheld.CREDIT if cover is Cover.CREDIT else Withheld.MAX_COST

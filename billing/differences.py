"""A difference between two figures that should be one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from billing.errors import BillingError

# What reading a stored value raises that is not what it was written as.
UNREADABLE = (
    ArithmeticError,
    AttributeError,
    BillingError,
    LookupError,
    TypeError,
    ValueError,
    msgspec.MsgspecError,
)
# What is compared, what it should be and what it is.
Figure = tuple[str, object, object]


@dataclass(frozen=True, slots=True)
class Difference:
    """Two figures that should be one. `check` is stable; `subject` says where."""

    check: str
    subject: str
    expected: str
    actual: str


def as_far_as_readable(subject: str, differences: Iterable[Difference]) -> Iterator[Difference]:
    """The differences up to where what is stored can't be read, which is one, too."""
    try:
        yield from differences
    except UNREADABLE as error:
        yield unreadable(subject, why(error))


def unreadable(subject: str, fault: str) -> Difference:
    """The difference that something stored can't be read."""
    return Difference("what is stored can be read", subject, "read", fault)


def why(error: Exception) -> str:
    """What is wrong with what can't be read."""
    return f"{type(error).__name__}: {error}"

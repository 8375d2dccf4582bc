"""Two fleets side by side: what each costs a year, and when changing pays. Pure.

Every input is the user's; there are no defaults to be mistaken for findings. The formulae are in
`docs/economics.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from typing import Annotated, Any

import msgspec

from billing.errors import InvalidEconomics
from billing.tariff_documents import Limits, read

HOURS_PER_YEAR = 8760
DAYS_PER_YEAR = 365
# Room for the largest figures that are taken, written with their places.
_WIDE = Context(prec=80)

Count = Annotated[Decimal, Limits(places=3, high=10**6)]
Price = Annotated[Decimal, Limits(places=6, high=10**9)]
Days = Annotated[Decimal, Limits(places=3, high=3650, above_zero=True)]


class Fleet(msgspec.Struct, frozen=True):
    """What runs, and who runs it."""

    gpus: Count
    gpu_hour: Price  # what one costs an hour, rented or written off, power apart
    kw_per_gpu: Annotated[Decimal, Limits(places=6, high=1000)]  # drawn on average, hosts included
    people: Count
    iteration_days: Days  # from an idea to a model in service


class Question(msgspec.Struct, frozen=True):
    """Both fleets, and what is the same for them."""

    before: Fleet
    after: Fleet
    person_year: Price  # what one person costs a year
    kwh: Price
    pue: Annotated[Decimal, Limits(places=3, high=10, above_zero=True)]  # of the building
    one_off: Price  # what the change itself costs
    years: Annotated[Decimal, Limits(places=2, high=50, above_zero=True)]


@dataclass(frozen=True, slots=True)
class Yearly:
    """What one fleet costs and does a year."""

    machines: Decimal
    energy_kwh: Decimal
    electricity: Decimal
    people: Decimal
    iterations: Decimal

    @property
    def total(self) -> Decimal:
        """All three costs."""
        return self.machines + self.electricity + self.people


@dataclass(frozen=True, slots=True)
class Answer:
    """What changing saves. Null where it never pays, or nothing is spent on it."""

    before: Yearly
    after: Yearly
    saving: Decimal  # a year; negative costs more
    net: Decimal  # over the years asked for, the change itself paid
    payback_months: Decimal | None
    return_percent: Decimal | None  # net, of what the change costs


def parse(document: Any) -> Question:
    """Read a question, decimals as quoted text; raises InvalidEconomics with every fault."""
    errors: list[str] = []
    question = read(Question, document, "", errors)
    if errors:
        raise InvalidEconomics(errors)
    assert isinstance(question, Question)
    return question


def answer(question: Question) -> Answer:
    """Compute both years and compare them."""
    with localcontext(_WIDE):
        return _answer(question)


def _answer(question: Question) -> Answer:
    before, after = _year(question, question.before), _year(question, question.after)
    saving = before.total - after.total
    net = saving * question.years - question.one_off
    return Answer(
        before=before,
        after=after,
        saving=saving,
        net=net,
        payback_months=12 * question.one_off / saving if saving > 0 else None,
        return_percent=100 * net / question.one_off if question.one_off else None,
    )


def to_wire(found: Answer) -> Mapping[str, Any]:
    """The answer as JSON values: decimals as text of at most six places."""
    with localcontext(_WIDE):
        return _written(found)


def _written(found: Answer) -> Mapping[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(found, builtin_types=(Decimal,))
    for name, fleet in (("before", found.before), ("after", found.after)):
        fields[name]["total"] = fleet.total
    return {name: _text(value) for name, value in fields.items()}


def _year(question: Question, fleet: Fleet) -> Yearly:
    energy = fleet.gpus * fleet.kw_per_gpu * question.pue * HOURS_PER_YEAR
    return Yearly(
        machines=fleet.gpus * fleet.gpu_hour * HOURS_PER_YEAR,
        energy_kwh=energy,
        electricity=energy * question.kwh,
        people=fleet.people * question.person_year,
        iterations=DAYS_PER_YEAR / fleet.iteration_days,
    )


def _text(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _text(each) for name, each in value.items()}
    if isinstance(value, Decimal):
        text = format(round(value, 6), "f")
        return text.rstrip("0").rstrip(".") if "." in text else text
    return value

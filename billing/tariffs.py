"""Tariffs: what a request costs, as a document. Schema `dflash.tariff/1`, YAML or JSON.

Prices are quoted decimal strings, because a float in a document is already another number.
`per_million` is the price of a million of the component's unit; every multiplier defaults to 1 and
every component may be left out. The meaning of each field is in `docs/tariffs.md`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Annotated, Any

import msgspec
import rfc8785
import yaml

from billing.currencies import CODES
from billing.errors import InvalidTariff
from billing.money import plain
from billing.period_terms import PeriodPrice, contradictions, retired
from billing.tariff_documents import Limits, Text, load, read

SCHEMA = "dflash.tariff/1"

Price = Annotated[Decimal, Limits(places=12, high=10**6)]
Fee = Annotated[Decimal, Limits(places=9, high=10**6)]  # moved as it is, so a whole nano
Multiplier = Annotated[Decimal, Limits(places=6, high=100)]
Share = Annotated[Decimal, Limits(places=6, high=1)]
Cap = Annotated[Decimal, Limits(places=6, high=10**6, above_zero=True)]
ONE = Decimal(1)


class Input(msgspec.Struct, frozen=True):
    """Price of the prompt's tokens."""

    per_million: Price


class UnitMultipliers(msgspec.Struct, frozen=True):
    """By a semantic unit's state. Tokens of no unit, and what we cut short, are priced at 1."""

    complete: Multiplier = ONE
    fragment: Multiplier = ONE


class TierMultipliers(msgspec.Struct, frozen=True):
    """By a unit's confidence tier."""

    standard: Multiplier = ONE
    reduced: Multiplier = ONE
    review: Multiplier = ONE


class Output(msgspec.Struct, frozen=True):
    """Price of the generated tokens."""

    per_million: Price
    units: UnitMultipliers = UnitMultipliers()
    tiers: TierMultipliers = TierMultipliers()


class Review(msgspec.Struct, frozen=True):
    """What a human's review of one output costs."""

    fee: Fee


class JoulePrices(msgspec.Struct, frozen=True):
    """By energy class; a class without a price is never charged for."""

    measured: Price | None = None
    estimated: Price | None = None
    reported: Price | None = None


class Energy(msgspec.Struct, frozen=True):
    """Price of the request's share of the meter, up to so many joules per token, prompt included.

    The cap keeps a request's price bounded before it runs. `green` multiplies the price for a
    request that asked to run where a token takes the least, and did; without it, nothing does.
    """

    per_million: JoulePrices
    cap_joules_per_token: Cap
    green: Share | None = None


class Information(msgspec.Struct, frozen=True):
    """Price of the output's information bits, up to so many per output token."""

    per_million: Price
    cap_bits_per_token: Cap


class Blocks(msgspec.Struct, frozen=True):
    """Price of the blocks in which the verifier accepted drafted tokens."""

    per_million: Price


class Request(msgspec.Struct, frozen=True):
    """A flat fee, and bounds on the request's price; the review fee stands outside the bounds."""

    fee: Fee = Decimal(0)
    minimum: Fee | None = None
    maximum: Fee | None = None


class Tariff(msgspec.Struct, frozen=True):
    """One validated tariff document.

    With a `tenant` it is that tenant's own, and no other may be put on it; `base` is the version
    that it was made from, whose prices are its list prices.
    """

    schema: Annotated[str, Text(SCHEMA.replace(".", r"\."), f"the string {SCHEMA!r}")]
    name: Annotated[str, Text(r"[a-z][a-z0-9-]{0,47}", "lower-case letters, digits and dashes")]
    title: Annotated[str, Text(r".{1,100}", "1 to 100 characters on one line")]
    currency: Annotated[str, Text(r"[A-Z]{3}", "an ISO 4217 code such as 'USD'")]
    input: Input | None = None
    output: Output | None = None
    review: Review | None = None
    energy: Energy | None = None
    information: Information | None = None
    blocks: Blocks | None = None
    request: Request | None = None
    period: dict[str, PeriodPrice] | None = None  # by name: lines of the period's invoice
    tenant: Annotated[str, Text(r"[A-Za-z0-9_.:-]{1,64}", "a tenant's id")] | None = None
    base: Annotated[str, Text(r"[a-z][a-z0-9-]{0,47}@[0-9]{1,9}", "a version's id")] | None = None


def parse(document: Mapping[str, Any] | str | bytes, *, is_published: bool = False) -> Tariff:
    """Validate a tariff: a mapping, or YAML or JSON text.

    One that is published already may say what a new one may not. Raises InvalidTariff with
    every fault, each beginning with the path of the field it is in.
    """
    content = load(document) if isinstance(document, str | bytes) else document
    errors: list[str] = []
    tariff = read(Tariff, content, "", errors)
    if not errors:
        assert isinstance(tariff, Tariff)
        errors += _contradictions(tariff)
        if not is_published:
            errors += _outdated(tariff)
        if not errors:
            return tariff
    raise InvalidTariff(errors)


def document(tariff: Tariff) -> dict[str, Any]:
    """The tariff as plain JSON values, decimals as strings; `parse` gives the same tariff back."""
    fields = msgspec.to_builtins(tariff, builtin_types=(Decimal,))
    return {key: _written(value) for key, value in fields.items() if value is not None}


def canonical(tariff: Tariff) -> str:
    """The one text (RFC 8785) that stands for this tariff: what is stored, and hashed."""
    return rfc8785.dumps(document(tariff)).decode()


def document_sha256(tariff: Tariff) -> str:
    """Hex SHA-256 of the canonical text."""
    return hashlib.sha256(canonical(tariff).encode()).hexdigest()


@cache
def shipped() -> dict[str, Tariff]:
    """The tariffs that come with the gateway, by name."""
    folder = files("billing") / "shipped"
    texts = [path.read_text() for path in folder.iterdir() if path.name.endswith(".yaml")]
    tariffs = {tariff.name: tariff for tariff in map(parse, texts)}
    return dict(sorted(tariffs.items()))


def to_yaml(tariff: Tariff) -> str:
    """The tariff as a document to edit and publish again."""
    return yaml.safe_dump(document(tariff), sort_keys=False, allow_unicode=True)


def _outdated(tariff: Tariff) -> list[str]:
    """What is read of a published tariff, and taken from nobody any more."""
    errors = []
    if not tariff.title.isprintable():
        errors.append("title: must be 1 to 100 printable characters on one line")
    if tariff.currency not in CODES:
        errors.append(f"currency: {tariff.currency} is no currency of ISO 4217")
    for name, price in (tariff.period or {}).items():
        errors += retired(name, price)
    return errors


def _contradictions(tariff: Tariff) -> list[str]:
    errors = []
    components = (tariff.input, tariff.output, tariff.energy, tariff.information, tariff.blocks)
    if all(part is None for part in (*components, tariff.request)) and not tariff.period:
        errors.append("nothing is priced: give at least one component")
    if tariff.energy is not None and tariff.energy.per_million == JoulePrices():
        errors.append("energy.per_million: price at least one energy class")
    bounds = tariff.request
    if (
        bounds is not None
        and bounds.minimum is not None
        and bounds.maximum is not None
        and bounds.minimum > bounds.maximum
    ):
        errors.append("request.minimum: above request.maximum")
    for name, price in (tariff.period or {}).items():
        errors += contradictions(name, price)
    return errors


def _written(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _written(part) for key, part in value.items() if part is not None}
    if isinstance(value, list | tuple):
        return [_written(part) for part in value]
    return plain(value) if isinstance(value, Decimal) else value

"""Tariff documents: what is taken, and how precisely the rest is refused."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from billing_cases import tariff, tariffs
from hypothesis import given
from hypothesis import strategies as st

from billing import tariffs as documents
from billing.errors import InvalidTariff
from billing.tariffs import Tariff, canonical, document, parse, shipped, to_yaml

HEAD = "schema: dflash.tariff/1\nname: a\ntitle: A\ncurrency: USD\n"


def faults(text: str) -> tuple[str, ...]:
    with pytest.raises(InvalidTariff) as refusal:
        parse(text)
    return refusal.value.errors


def test_the_five_shipped_tariffs_are_valid_and_in_dollars() -> None:
    assert list(shipped()) == ["composite", "confidence", "energy", "semantic", "token"]
    assert {tariff.currency for tariff in shipped().values()} == {"USD"}


def test_shipped_tariffs_steer_as_the_design_says() -> None:
    for name in ("semantic", "composite"):
        output = shipped()[name].output
        assert output is not None
        assert output.units.complete < 1 < output.units.fragment
    for name in ("confidence", "composite"):
        output = shipped()[name].output
        assert output is not None
        assert output.tiers.standard > output.tiers.reduced > output.tiers.review
        assert shipped()[name].review is not None
    for name in ("energy", "composite"):
        joules = shipped()[name].energy
        assert joules is not None
        assert joules.per_million.reported is None


@given(tariffs())
def test_a_document_survives_yaml_json_and_its_canonical_text(terms: Tariff) -> None:
    assert parse(to_yaml(terms)) == terms
    assert parse(json.dumps(document(terms))) == terms
    assert parse(canonical(terms)) == terms
    assert canonical(parse(canonical(terms))) == canonical(terms)


def test_how_a_decimal_is_written_does_not_change_the_tariff() -> None:
    one = tariff(input={"per_million": "0.10"})
    other = tariff(input={"per_million": "0.1"})
    assert documents.document_sha256(one) == documents.document_sha256(other)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("input: {per_million: 0.1}", "input.per_million: must be a quoted decimal"),
        ("input: {per_million: 1}", "input.per_million: must be a quoted decimal"),
        ("input: {per_million: true}", "the boolean True"),
        ("input: {per_million: null}", "input.per_million: must be a quoted decimal"),
        ("input: {per_million: '-1'}", "input.per_million: must be a non-negative plain decimal"),
        ("input: {per_million: 'NaN'}", "input.per_million: must be a non-negative plain decimal"),
        ("input: {per_million: '1e3'}", "input.per_million: must be a non-negative plain decimal"),
        ("input: {per_million: '1000001'}", "input.per_million: at most 1000000"),
        ("input: {per_million: '0.0000000000001'}", "input.per_million: at most 12 decimal places"),
        ("input: {}", "input.per_million: missing"),
        ("input: 3", "input: must be a mapping, not the number 3"),
        ("inputs: {per_million: '1'}", "inputs: unknown field; known here: schema, name"),
        ("output: {per_million: '1', tiers: {low: '1'}}", "output.tiers.low: unknown field"),
        ("output: {per_million: '1', units: {fragment: '101'}}", "output.units.fragment: at most"),
        ("review: {fee: '0.0000000001'}", "review.fee: at most 9 decimal places"),
        (
            "energy: {per_million: {measured: '1'}}",
            "energy.cap_joules_per_token: missing",
        ),
        (
            "energy: {per_million: {measured: '1'}, cap_joules_per_token: '0'}",
            "energy.cap_joules_per_token: must be above zero",
        ),
        (
            "energy: {per_million: {}, cap_joules_per_token: '1'}",
            "energy.per_million: price at least one energy class",
        ),
        (
            "energy: {per_million: {unavailable: '1'}, cap_joules_per_token: '1'}",
            "energy.per_million.unavailable: unknown field",
        ),
        (
            "energy: {per_million: {measured: '1'}, cap_joules_per_token: '1', green: '1.1'}",
            "energy.green: at most 1",
        ),
        ("request: {minimum: '2', maximum: '1'}", "request.minimum: above request.maximum"),
        ("", "nothing is priced"),
        ("input: {per_million: '1'}\ninput: {per_million: '2'}", "input: given twice"),
    ],
)
def test_a_fault_is_named_with_its_place(text: str, fault: str) -> None:
    found = faults(HEAD + text)
    assert len(found) == 1
    assert fault in found[0]


@pytest.mark.parametrize("title", ["x\ud800y", "x\0y", "\x1b[2J", "a\u202eb", "a\x9bb"])
def test_a_title_that_cannot_be_shown_is_refused_and_read_where_it_was_published(
    title: str,
) -> None:
    stated = document(tariff()) | {"title": title}
    with pytest.raises(InvalidTariff, match="title: must be 1 to 100 printable"):
        parse(stated)
    assert parse(stated, is_published=True).title == title


@pytest.mark.parametrize("key", ["\ud800", "\x1b[2J"])
def test_a_field_that_cannot_be_shown_is_named_so_that_it_can(key: str) -> None:
    base = document(tariff())
    for stated in (base | {key: 1}, base | {"period": {key: {}}}):
        with pytest.raises(InvalidTariff) as refusal:
            parse(stated)
        assert all(map(str.isprintable, refusal.value.errors))


def test_a_currency_that_nobody_pays_in_is_refused_and_read_where_it_was_published() -> None:
    for code in ("ZZZ", "XAU", "XXX", "DEM"):
        stated = document(tariff()) | {"currency": code}
        with pytest.raises(InvalidTariff, match=f"currency: {code} is no currency of ISO 4217"):
            parse(stated)
        assert parse(stated, is_published=True).currency == code


def test_every_fault_is_named_at_once() -> None:
    assert faults("schema: dflash.tariff/2\nname: Größe\ncurrency: usd\ninput: {x: 1}") == (
        "schema: must be the string 'dflash.tariff/1', not 'dflash.tariff/2'",
        "name: must be lower-case letters, digits and dashes, not 'Größe'",
        "title: missing",
        "currency: must be an ISO 4217 code such as 'USD', not 'usd'",
        "input.x: unknown field; known here: per_million",
        "input.per_million: missing",
    )


@pytest.mark.parametrize("text", ["", "[]", "3", "null", "just words", "[", "a: b: c", "\t"])
def test_text_that_is_no_document_is_refused(text: str) -> None:
    (fault,) = faults(text)
    assert fault.startswith(("document: must be a mapping, not ", "not YAML or JSON: "))


def test_yaml_never_builds_objects() -> None:
    assert "not YAML" in faults("!!python/object/apply:os.getcwd []")[0]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: b\nx: 2026-13-45", "line 2: not a valid timestamp: '2026-13-45'"),
        ('a: !!int "z"', "line 1: not a valid int: 'z'"),
        ('a: !!int ""', "line 1: not a valid int: ''"),
        ("a: !!float zz", "line 1: not a valid float: 'zz'"),
        ("a: !!bool zz", "line 1: not a valid bool: 'zz'"),
        ("a: !!timestamp x", "line 1: not a valid timestamp: 'x'"),
        ("- " * 3000 + "a", "not a tariff: nested too deeply"),
    ],
)
def test_a_value_that_is_not_what_its_tag_says_is_refused_with_its_line(
    text: str, fault: str
) -> None:
    assert faults(text) == (fault,)


def test_a_number_of_any_length_is_refused() -> None:
    huge = "0x" + "f" * 5000
    for field in ("title", "input"):
        assert "a number of 20000 bits" in " ".join(faults(f"{field}: {huge}"))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    )
)
def test_no_document_breaks_the_reader(content: object) -> None:
    with pytest.raises(InvalidTariff):
        parse(json.dumps(content))


def test_prices_are_exact_decimals() -> None:
    terms = tariff(input={"per_million": "0.1"})
    assert terms.input is not None
    assert terms.input.per_million == Decimal("0.1")

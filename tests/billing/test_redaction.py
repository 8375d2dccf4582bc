"""What reviewers do not see, and that a correction has it again."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from billing.redaction import Redaction

TELLING = [
    ("write to ann.lee+x@mail.example.org, please", "write to [email 1], please"),
    ("card 4111 1111 1111 1111.", "card [card 1]."),
    ("call +49 (30) 1234-567 now", "call [phone 1] now"),
    ("call 030 1234567", "call [phone 1]"),
    ("IBAN DE89 3704 0044 0532 0130 00 it is", "IBAN [iban 1] it is"),
    ("from 192.168.0.17:80", "from [address 1]:80"),
    ("key sk-abcdefghijklmnopqrstuv ends", "key [secret 1] ends"),
    ("token github_pat_11ABCDEFG0abcdefghijkl.", "token [secret 1]."),
    ("AIza" + "x" * 35 + " of a map", "[secret 1] of a map"),
    ("Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJlLW9mLWl0", "Bearer [secret 1]"),
    (
        "my -----BEGIN RSA PRIVATE KEY-----\nMIIB+/=\n-----END RSA PRIVATE KEY-----\nis",
        "my [secret 1]\nis",
    ),
    ("call (555) 867-5309 or 555-867-5309", "call [phone 1] or [phone 2]"),
    ("a@b.cc and a@b.cc and c@d.ee", "[email 1] and [email 1] and [email 2]"),
]
HARMLESS = [
    "version 1.2.3 of 2026-11-30",
    "4111 1111 1111 1112 has no check digit",
    "300.400.1.1 is nobody's",
    "def f(x): return x @ y",
    "12345678901234567890123",
    "3.141592653589793",
    "the year 2024, 17 of 45",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "eyJhbGciOiJub25lIn0.txt",
]


@pytest.mark.parametrize(("text", "shown"), TELLING)
def test_what_points_at_a_person_is_hidden(text: str, shown: str) -> None:
    redaction = Redaction()
    assert redaction.redact(text).text == shown
    assert redaction.restore(shown) == text


@pytest.mark.parametrize("text", HARMLESS)
def test_what_points_at_nobody_stays(text: str) -> None:
    assert Redaction().redact(text).text == text


def test_one_item_has_one_mark_for_one_text_and_a_stranger_mark_stays() -> None:
    redaction = Redaction()
    assert redaction.redact("from a@b.cc").text == "from [email 1]"
    assert redaction.redact("to a@b.cc, c@d.ee").text == "to [email 1], [email 2]"
    assert redaction.restore("[email 2], [email 3]") == "c@d.ee, [email 3]"


pieces = st.lists(
    st.sampled_from(
        ["a@b.cc", "4111111111111111", "+4930123456", " ", "é", "日本", ". ", "x", "\n"]
    )
)


@given(pieces)
@example(["é", "a@b.cc", "日本", "a@b.cc"])
def test_nothing_is_lost_and_bounds_move_with_the_text(parts: list[str]) -> None:
    text = "".join(parts)
    redaction = Redaction()
    shown = redaction.redact(text)
    assert redaction.restore(shown.text) == text
    raw, seen = text.encode(), shown.text.encode()
    moved = [shown.moved(at) for at in range(len(raw) + 1)]
    assert moved == sorted(moved)
    assert (moved[0], moved[-1]) == (0, len(seen))
    for at, byte in enumerate(raw):  # a byte that is shown is the same byte there
        if moved[at + 1] == moved[at] + 1 and shown.text == text:
            assert seen[moved[at]] == byte


@pytest.mark.parametrize(
    "text",
    [
        "a@" * 30_000,
        "1 " * 30_000,
        "+1" * 30_000,
        "a." * 30_000,
        "[" * 60_000,
        "eyJ-" * 15_000,
        "-eyJaaaaaaaa.eyJ" * 4_000,
        "-----BEGIN PRIVATE KEY-----" * 2_200,
    ],
)
def test_hostile_text_costs_no_more_than_its_length(text: str) -> None:
    redaction = Redaction()
    assert redaction.restore(redaction.redact(text).text) == text

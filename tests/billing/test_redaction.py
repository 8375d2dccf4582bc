"""What reviewers do not see, and that a correction has it again."""

from __future__ import annotations

from ipaddress import IPv6Address

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
    ("call 555.867.5309. Or 555 867 5309", "call [phone 1]. Or [phone 2]"),
    ("call (030) 12 34 56, 0171/2345678", "call [phone 1], [phone 2]"),
    ("call 01 23 45 67 89 or +49.30.1234567x", "call [phone 1] or [phone 2]x"),
    ("Tel.+4930123456", "Tel.[phone 1]"),
    ("+1 4111 1111 1111 1111", "[phone 1]"),  # a card and a call: all that they cover
    ("card 4111 1111 1111 1111 123", "card [card 1] 123"),
    ("4111111111111111 12/27 cvv 123", "[card 1] 12/27 cvv 123"),
    ("id 12 4111 1111 1111 1111", "id 12 [card 1]"),
    ("4111.1111.1111.1111 and 4111111111111111.5", "[card 1] and [card 2].5"),
    ("3782 822463 10005 12/27", "[card 1] 12/27"),
    ("card4111111111111111, 4111111111111111123", "card[card 1], [card 2]"),
    ("4111111111111111\n5500005555555559 0000", "[card 1]\n[card 2] 0000"),
    ("of de89 3704 0044 0532 0130 00.", "of [iban 1]."),
    ("IBANDE89370400440532013000x", "IBAN[iban 1]x"),
    ("DE00 3704 0044 0532 0130 00", "[iban 1]"),  # mistyped, and told by its form
    ("from 192.168.0.17. And [2001:db8::1]:443", "from [address 1]. And [[address 2]]:443"),
    ("IP:2001:db8:0:0:0:0:0:1, fe80::1%eth0", "IP:[address 1], [address 2]"),
    ("at 00:1a:2B:3c:4d:5e", "at [address 1]"),
    (
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,AB\n\n"
        "MIIEbody\n-----END RSA PRIVATE KEY-----",
        "[secret 1]",
    ),
    (
        "a -----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: 1\n\nlQOYbody\n=abcd\n"
        "-----END PGP PRIVATE KEY BLOCK----- b",
        "a [secret 1] b",
    ),
    (
        "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nComment: a-b\nP2/56wAA\n"
        "---- END SSH2 ENCRYPTED PRIVATE KEY ----",
        "[secret 1]",
    ),
    # Cut off, and only named.
    ("-----BEGIN EC PRIVATE KEY-----\nA: b-c\n\nMHcCAQEEIIrYSSNQFaA2Hw\nf1du", "[secret 1]"),
    ("a line of -----BEGIN PRIVATE KEY----- opens a-key", "a line of [secret 1] opens a-key"),
    ("a@b.cc and a@b.cc and c@d.ee", "[email 1] and [email 1] and [email 2]"),
]
HARMLESS = [
    "version 1.2.3 of 2026-11-30",
    "4111 1111 1111 1112 has no check digit",
    "300.400.1.1 is nobody's",
    "def f(x): return x @ y",
    "12345678901234567890123",
    "0.4111111111111111 of 3.14159265358979323846",
    "the years 2001 2002 2003 2004 2005 2006 2007",
    "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16",
    "de12 this that them some more",
    "a[1::2], std::add::be, ::1 at 12:34:56",
    "on 01.02.2026 at 12.30",
    "1.2.3.4.5",
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


def test_a_text_that_looks_like_a_mark_is_none() -> None:
    for text, shown in (
        ("Write [email 1] to bob@corp.example.", "Write [email 1] to [email 2]."),
        ("bob@corp.example, [email 1], [email 2]", "[email 3], [email 1], [email 2]"),
    ):
        redaction = Redaction()
        assert redaction.redact(text).text == shown
        assert redaction.restore(shown) == text
    # What stands in the answer is no mark of the prompt either.
    prompt, output = "ask bob@corp.example", "I asked [email 1]"
    redaction = Redaction(prompt, output)
    assert redaction.redact(prompt).text == "ask [email 2]"
    assert redaction.restore(redaction.redact(output).text) == output


KEY = "-----BEGIN PGP PRIVATE KEY BLOCK-----\nA: b-c\n\nlQOY\n-----END PGP PRIVATE KEY BLOCK-----"
HIDDEN = [
    *("a@b.cc", "4111111111111111", "3782 822463 10005", "5500.0055.5555.5559", "+4930123456"),
    *("(030) 12 34 56", "555.867.5309", "de89 3704 0044 0532 0130 00", "GB29NWBK60161331926819"),
    *("192.168.0.17", "2001:db8::1", "sk-abcdefghijklmnopqrstuv", KEY),
]
pieces = st.lists(
    st.sampled_from(
        [
            *HIDDEN,
            " ",
            "é",
            "日本",
            ". ",
            "x",
            "\n",
            "[",
            "[email 1]",
            "[card 2]",
            "123",
            "12/27",
            "-",
        ]
    )
)


@given(pieces)
@example(["[card 2]", "a@b.cc", "[email 1]"])
def test_what_was_found_is_hidden_and_comes_back(parts: list[str]) -> None:
    text = "".join(parts)
    redaction = Redaction(text)
    shown = redaction.redact(text).text
    assert redaction.restore(shown) == text
    assert not set(redaction.originals) & {part for part in parts if part.startswith("[")}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(HIDDEN), st.sampled_from([" ", "\n", ", ", ". ", " 123 ", " 12/27 "])
        )
    )
)
def test_nothing_telling_is_shown_whatever_stands_beside_it(parts: list[tuple[str, str]]) -> None:
    text = "".join(telling + between for telling, between in parts)
    shown = Redaction().redact(text).text
    assert [telling for telling, _ in parts if telling in shown] == []


def with_luhn(digits: str) -> str:
    """A number with the check digit that ISO/IEC 7812 asks for."""
    summed = sum(
        sum(divmod(2 * int(digit), 10)) if index % 2 == 0 else int(digit)
        for index, digit in enumerate(reversed(digits))
    )
    return digits + str(-summed % 10)


def grouped(digits: str, sizes: list[int], between: str) -> str:
    rest = iter(digits)
    return between.join(
        "".join(part for _, part in zip(range(n), rest, strict=False)) for n in sizes
    )


@given(
    st.sampled_from(["4", "51", "55", "2221", "60", "62", "65"]),
    st.integers(0, 10**15 - 1),
    st.sampled_from([[16], [4, 4, 4, 4], [8, 8]]),
    st.sampled_from([" ", "-", "  ", "\u00a0", " - "]),
    st.sampled_from(["", "12 ", "id ", "7, ", "card"]),
    st.sampled_from(["", " 123", " 1234", " 12/27", "-12-27", ".", "x", ".5"]),
)
def test_every_card_is_hidden_in_the_groups_it_is_written_in(
    issuer: str, number: int, sizes: list[int], between: str, before: str, behind: str
) -> None:
    card = grouped(with_luhn(issuer + f"{number:015}"[len(issuer) :]), sizes, between)
    assert card not in Redaction().redact(before + card + behind).text


@given(
    st.sampled_from([("DE", 18), ("GB", 18), ("NL", 14), ("FR", 23), ("NO", 11), ("MT", 27)]),
    st.integers(0, 10**27 - 1),
    st.booleans(),
    st.sampled_from(["", " "]),
    st.sampled_from(["", "iban", "IBAN:", "to "]),
    st.sampled_from(["", ".", "x", " now"]),
)
def test_every_bank_account_is_hidden_however_it_is_spelled(
    country: tuple[str, int], number: int, lower: bool, between: str, before: str, behind: str
) -> None:
    name, length = country
    bank = "abcd"[: length % 5].upper() + f"{number:027}"
    bank = bank[:length]
    check = 98 - int("".join(str(int(each, 36)) for each in f"{bank}{name}00")) % 97
    spelled = f"{name}{check:02}{bank}"
    parts = [spelled[at : at + 4] for at in range(0, len(spelled), 4)]
    account = between.join(parts).lower() if lower else between.join(parts)
    assert account not in Redaction().redact(before + account + behind).text


@given(st.integers(0, 2**125 - 1), st.booleans(), st.sampled_from(["", " ", "[", "ip:", "from "]))
def test_every_global_network_address_is_hidden(low: int, whole: bool, before: str) -> None:
    address = IPv6Address((1 << 125) + low)  # 2000::/3
    spelled = address.exploded if whole else address.compressed
    shown = Redaction().redact(f"{before}{spelled}/64, {spelled.upper()}.").text
    assert spelled not in shown
    assert spelled.upper() not in shown


@given(
    st.sampled_from(["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED ", "PGP "]),
    st.lists(st.sampled_from(["Proc-Type: 4,ENCRYPTED", "", "MIIE+/=", "a-b: c--d", "=abc"])),
)
def test_a_private_key_is_hidden_to_its_last_line(label: str, lines: list[str]) -> None:
    block = " BLOCK" if label == "PGP " else ""
    begin, end = (f"-----{word} {label}PRIVATE KEY{block}-----" for word in ("BEGIN", "END"))
    text = "\n".join(["so:", begin, *lines, end, "it is"])
    assert Redaction().redact(text).text == "so:\n[secret 1]\nit is"


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
        "-----BEGIN PRIVATE KEY-----\nA: b\n" * 2_000,
        "4111 " * 12_000,
        "4111111111111112" * 4_000,
        "de12 1111 " * 6_000,
        "011-11-11-" * 6_000,
        "2001:" * 12_000,
        "::" * 30_000,
        "[email 1]" * 7_000,
    ],
)
def test_hostile_text_costs_no_more_than_its_length(text: str) -> None:
    redaction = Redaction()
    assert redaction.restore(redaction.redact(text).text) == text

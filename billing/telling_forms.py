"""The forms by which a text is known to point at a person, or to be a secret. Pure.

Everything of such a form is found, however forms overlap or are glued to other text. Names and
street addresses have no form that could be told from other words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import AddressValueError, IPv6Address, ip_network

from billing.bank_accounts import accounts
from billing.card_numbers import cards

_KINDS = ("email", "secret", "iban", "card", "address", "phone")  # of two alike, the first names it
# Every repetition is bounded or can only be read in one way, so that no text costs more than its
# length.
_DIGIT_BEFORE = r"(?<!\d)(?<!\d\.)"
_DIGIT_AFTER = r"(?!\.?\d)"
_KEY_LINE = r"(?:[A-Z0-9]{2,12} ){0,4}PRIVATE KEY(?: BLOCK)? ?-{4,5}"
_BETWEEN = r"[\s\"'>|,;\\]*+"  # lines of a key, quoted as they may be
Span = tuple[int, int]
_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("email", re.compile(r"[\w.%+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,5}")),
    ("secret", re.compile(r"\b(?:sk|pk|rk|ghp|gho|dfl|xox[abp])[-_][A-Za-z0-9_-]{16,200}")),
    ("secret", re.compile(r"\b(?:github_pat|glpat|hf|npm|whsec)[-_][A-Za-z0-9_-]{16,200}")),
    ("secret", re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[A-Za-z0-9_-]{35}")),
    ("secret", re.compile(r"\beyJ[\w-]{8,500}\.eyJ[\w-]{8,4000}\.[\w-]{16,2000}")),
    (
        # With its headers; where its last line is missing, as far as what follows is like a key.
        "secret",
        re.compile(
            rf"-{{4,5}} ?BEGIN {_KEY_LINE}(?:(?>[^-]*(?:-(?!---)[^-]*)*)-{{4,5}} ?END {_KEY_LINE}"
            rf"|(?:{_BETWEEN}(?:[A-Za-z0-9+/=]{{16,}}|[A-Za-z][A-Za-z-]{{0,30}}:[^\n]{{0,200}}\n))*"
            rf"(?:{_BETWEEN}[A-Za-z0-9+/=]{{1,76}}\s*\Z)?)"
        ),
    ),
    (
        "address",
        re.compile(
            rf"{_DIGIT_BEFORE}(?:(?:25[0-5]|2[0-4]\d|[01]?\d?\d)\.){{3}}"
            rf"(?:25[0-5]|2[0-4]\d|[01]?\d?\d){_DIGIT_AFTER}"
        ),
    ),
    ("address", re.compile(r"(?<![\w:-])[0-9A-Fa-f]{2}(?:[:-][0-9A-Fa-f]{2}){5}(?![\w:-])")),
    ("phone", re.compile(r"(?<![\w+＋])[+＋]\d{1,3}(?:[ ()./-]{0,2}\d){6,14}(?!\d)")),
    (
        "phone",
        re.compile(
            r"(?<!\w)(?<!\d\.)(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}(?!\w)"
            rf"{_DIGIT_AFTER}"
        ),
    ),
    (
        # From a trunk prefix on: (030) 12 34 56, 0171/2345678, 01 23 45 67 89.
        "phone",
        re.compile(
            r"(?<!\w)(?<!\d\.)(?=(?:[ ()./-]{0,2}\d){8,15})(?:"
            r"(?:\(0\d{1,4}\)[ ./-]{0,2}|0\d{2,4}[ ./-])\d{2,8}(?:[ .-]\d{2,5}){0,4}"
            rf"|0[1-9](?:[ .-]\d{{2}}){{4}})(?!\w){_DIGIT_AFTER}"
        ),
    ),
)
_IPV6 = re.compile(
    r"(?<!\w)(?:[0-9A-Fa-f]{1,4}|(?<!:):)(?::[0-9A-Fa-f]{0,4}){2,8}(?:\.\d{1,3}){0,3}"
    r"(?!\w)(?:%[\w.-]{1,16})?"
)
# With fewer than three groups `::` stands in programs too; then only what begins as these do.
_ROUTED = tuple(map(ip_network, ("2000::/3", "fc00::/7", "fe80::/10")))


def spans(text: str) -> Iterator[tuple[str, int, int]]:
    """What is of such a form, as (kind, start, end), in order.

    Of forms that overlap, all that they cover is one span; the first names it.
    """
    found = [
        (start, end, kind)
        for kind, places in (
            *((kind, _matches(pattern, text)) for kind, pattern in _PATTERNS),
            ("iban", accounts(text)),
            ("card", cards(text)),
            ("address", _ipv6_addresses(text)),
        )
        for start, end in places
    ]
    found.sort(key=lambda each: (each[0], -each[1], _KINDS.index(each[2])))
    current: tuple[str, int, int] | None = None
    for start, end, kind in found:
        if current is not None and start < current[2]:
            current = (current[0], current[1], max(end, current[2]))
            continue
        if current is not None:
            yield current
        current = (kind, start, end)
    if current is not None:
        yield current


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[Span]:
    return (match.span() for match in pattern.finditer(text))


def _ipv6_addresses(text: str) -> Iterator[Span]:
    for match in _IPV6.finditer(text):
        written = match[0].removesuffix(":") if match[0][-2:] != "::" else match[0]
        try:
            address = IPv6Address(written)
        except AddressValueError:
            continue
        groups = [each for each in written.partition("%")[0].split(":") if each]
        if len(groups) > 2 or any(address in network for network in _ROUTED):
            yield match.start(), match.start() + len(written)

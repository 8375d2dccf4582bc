"""Where a webhook may go: a public address, resolved once and called exactly there.

A tenant chooses the URL, so a name that points into our own network, now or a moment later, must
not get us to call it. Every address of the name has to be public, and the connection goes to the
address that was checked, under the name that was given.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from api.errors import InvalidParameter

URL_CHARS_MAX = 2000
PORTS = {"https": 443, "http": 80}


class ForbiddenAddress(Exception):
    """A host that does not resolve, or to an address that a tenant may not have us call."""


@dataclass(frozen=True, slots=True)
class Target:
    """A checked place to call: the URL with its host replaced by the address, and the name."""

    url: str
    host: str  # the `Host` header
    server_name: str  # what the certificate has to be for


def check_url(url: str, *, allow_private: bool) -> None:
    """Refuse a URL that no endpoint may have, whatever it resolves to. Raises InvalidParameter."""
    parts = _split(url)
    schemes = {"https", "http"} if allow_private else {"https"}
    faults = (
        (len(url) > URL_CHARS_MAX, f"a URL has at most {URL_CHARS_MAX} characters"),
        (parts is None, "this is no URL"),
        (parts is not None and parts.scheme not in schemes, "a webhook is called by https"),
        (parts is not None and not parts.hostname, "a URL needs a host"),
        (parts is not None and "@" in parts.netloc, "a URL here holds no user or password"),
        (parts is not None and bool(parts.fragment), "a URL here has no fragment"),
        (not url.isascii() or not url.isprintable() or " " in url, "a URL is printable ASCII"),
    )
    for is_fault, message in faults:
        if is_fault:
            raise InvalidParameter(message, "url")


def resolve(url: str, *, allow_private: bool) -> Target:
    """Look the host up once and choose an address. Raises ForbiddenAddress."""
    parts = _split(url)
    if parts is None or not parts.hostname:
        raise ForbiddenAddress("this is no URL")
    port = parts.port or PORTS[parts.scheme]
    try:
        found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ForbiddenAddress(f"{parts.hostname} does not resolve") from None
    addresses = [ipaddress.ip_address(info[4][0]) for info in found]
    if not addresses:
        raise ForbiddenAddress(f"{parts.hostname} does not resolve")
    if not allow_private and not all(map(is_public, addresses)):
        raise ForbiddenAddress(f"{parts.hostname} is not a public address")
    chosen = addresses[0]
    literal = f"[{chosen}]" if chosen.version == 6 else str(chosen)
    pinned = parts._replace(netloc=f"{literal}:{port}").geturl()
    return Target(pinned, parts.netloc, parts.hostname)


def is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether an address is one of the public internet, and nothing that leads elsewhere.

    By IANA's registries of special-purpose addresses (RFC 6890). Of IPv6 that is what is allotted
    as global unicast, less what tunnels or translates; only the mapped form of an IPv4 address,
    which the system itself makes, is taken for that address.
    """
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _SPECIAL_4)
    if address.ipv4_mapped is not None:
        return is_public(address.ipv4_mapped)
    is_isatap = int(address) >> 32 & 0xFDFFFFFF == 0x5EFE  # an interface that hides an IPv4 address
    special = is_isatap or any(address in network for network in _SPECIAL_6)
    return address in _GLOBAL_6 and not special


_SPECIAL_4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",  # once the way to 6to4
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/3",  # multicast, and what is reserved
        ),
    )
)
_GLOBAL_6 = ipaddress.IPv6Network("2000::/3")
_SPECIAL_6 = tuple(
    map(
        ipaddress.IPv6Network,
        (
            "2001::/23",  # protocols' own, Teredo among them
            "2001:db8::/32",
            "2002::/16",  # 6to4
            "3fff::/20",
        ),
    )
)


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        # A port that is no number is found only when it is read.
        return parts if parts.port != 0 else None
    except ValueError:
        return None

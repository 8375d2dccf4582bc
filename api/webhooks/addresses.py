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
    """Whether an address is one of the public internet, also where it hides another inside."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is not None:
            return is_public(inner)
        if address.teredo is not None or address in _NAT64:
            return False
    return address.is_global and not address.is_multicast


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        # A port that is no number is found only when it is read.
        return parts if parts.port != 0 else None
    except ValueError:
        return None

"""Which addresses a webhook may be sent to: none that leads into somebody's own network."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.webhooks.addresses import is_public

# IANA's special-purpose registries, and what else is not a host of the public internet.
SPECIAL = [
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24",
    "192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24",
    "224.0.0.0/4 240.0.0.0/4 255.255.255.255/32",
    "::/128 ::1/128 ::/96 ::ffff:0:0:0/96 64:ff9b::/96 64:ff9b:1::/48 100::/64 100:0:0:1::/64",
    "2001::/32 2001:2::/48 2001:10::/28 2001:db8::/32 2002::/16 3fff::/20 5f00::/16",
    "fc00::/7 fe80::/10 fec0::/10 ff00::/8",
]
NETWORKS = [ip_network(each) for line in SPECIAL for each in line.split()]
# How an IPv4 address is written into one of IPv6: what stands before it, and behind.
EMBEDDINGS = [
    ("::", 0),
    ("::ffff:0:0", 0),
    ("::ffff:0:0:0", 0),
    ("64:ff9b::", 0),
    ("64:ff9b:1::", 0),
    ("2002::", 80),
    ("2001::", 0),
    ("2606:4700::5efe:0:0", 0),
    ("2606:4700::200:5efe:0:0", 0),
]


@given(st.sampled_from(NETWORKS), st.integers(min_value=0))
def test_no_address_of_a_special_purpose_is_public(network: IPv6Network, place: int) -> None:
    assert not is_public(network[place % network.num_addresses])
    assert not is_public(network[-1])


@given(st.sampled_from(EMBEDDINGS), st.integers(0, 2**32 - 1))
def test_an_address_is_never_more_public_than_the_one_it_hides(
    embedding: tuple[str, int], inner: int
) -> None:
    prefix, shift = embedding
    outer = IPv6Address(int(IPv6Address(prefix)) | inner << shift)
    assert is_public(IPv4Address(inner)) or not is_public(outer)


@pytest.mark.parametrize(
    "text", ["fec0::1", "64:ff9b:1::7f00:1", "::7f00:1", "::ffff:0:127.0.0.1", "fe80::1%1"]
)
def test_what_reaches_this_machine_in_disguise_is_refused(text: str) -> None:
    assert not is_public(ip_address(text))


@pytest.mark.parametrize(
    "text",
    ["8.8.8.8", "1.1.1.1", "::ffff:8.8.8.8", "2606:4700::1111", "2a00::1"],
)
def test_hosts_of_the_public_internet_are_public(text: str) -> None:
    assert is_public(ip_address(text))

"""Which addresses are public: a table, with the same verdict on every Python version."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencode_a2a.domain.ports import Refused
from opencode_a2a.outbound.egress import Address, Egress

# The first and the last address of each block that is not public, and where it matters one inside.
NOT_PUBLIC = {
    "this network": "0.0.0.0 0.255.255.255",
    "private": "10.0.0.0 10.255.255.255 172.16.0.0 172.31.255.255 192.168.0.0 192.168.255.255",
    "carrier-grade NAT": "100.64.0.0 100.127.255.255",
    "loopback": "127.0.0.0 127.0.0.1 127.255.255.255 ::1",
    "link-local": "169.254.0.0 169.254.169.254 169.254.255.255 fe80:: fe80::1%eth0 febf::ffff",
    "protocol assignments": "192.0.0.0 192.0.0.9 192.0.0.170 192.0.0.255 2001:1::1 2001:1ff::1",
    "documentation": "192.0.2.1 198.51.100.255 203.0.113.0 2001:db8:: 2001:db8:ffff::1 3fff::1 "
    "3fff:fff:ffff::1",
    "benchmarks": "198.18.0.0 198.19.255.255 2001:2::1",
    "multicast": "224.0.0.0 224.0.0.251 232.1.1.1 239.255.255.255 ff00:: ff02::1 ff05::2 ff0e::1 "
    "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
    "reserved, broadcast": "240.0.0.0 255.255.255.254 255.255.255.255",
    "unspecified": "::",
    "unique local": "fc00:: fc00::1 fd00::1 fdff:ffff::1",
    "site-local": "fec0:: fec0::1 feff:ffff::1",
    "discard only": "100:: 100::ffff:ffff:ffff:ffff 100:0:0:1::1",
    "segment routing": "5f00:: 5f00::1",
    "ORCHID": "2001:10::1 2001:1f::1 2001:20::1 2001:2f::1 2001:30::1",
    "outside of global unicast": "200::1 1000::1 4000::1 8000::1 c000::1 e000::1",
    "IPv4-mapped private": "::ffff:0.0.0.0 ::ffff:10.0.0.1 ::ffff:127.0.0.1 ::ffff:169.254.169.254 "
    "::ffff:100.64.0.1 ::ffff:224.0.0.1",
    "IPv4-compatible": "::127.0.0.1 ::10.0.0.1 ::169.254.169.254 ::1.1.1.1",
    "IPv4-translated": "::ffff:0:127.0.0.1 ::ffff:0:10.0.0.1 ::ffff:0:a9fe:a9fe ::ffff:0:1.1.1.1",
    "NAT64": "64:ff9b:: 64:ff9b::127.0.0.1 64:ff9b::10.0.0.1 64:ff9b::a9fe:a9fe 64:ff9b::1.1.1.1",
    "local NAT64": "64:ff9b:1:: 64:ff9b:1::10.0.0.1 64:ff9b:1:ffff::1 64:ff9b:1::1.1.1.1",
    "6to4": "2002:: 2002:7f00:1:: 2002:a00:1::1 2002:a9fe:a9fe::1 2002:101:101::1 192.88.99.1",
    "Teredo": "2001:: 2001:0:4136:e378:8000:63bf:80ff:fffe 2001:0:a00:1::1 2001:0:101:101::1",
}
PUBLIC = (
    "1.0.0.0 1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 "
    "128.0.0.0 169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 192.0.1.0 192.0.3.0 "
    "192.88.98.255 192.88.100.0 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 "
    "223.255.255.255 2000::1 2001:200::1 2001:4860:4860::8888 2001:db7:ffff::1 2001:db9::1 "
    "2003::1 2606:4700::1111 2a00:1450::1 3ffe::1 3fff:1000::1 ::ffff:1.1.1.1 ::ffff:8.8.8.8"
)


@pytest.mark.parametrize("block", NOT_PUBLIC)
def test_an_address_that_is_not_public_is_refused(block: str) -> None:
    for address in NOT_PUBLIC[block].split():
        with pytest.raises(Refused, match="A2A_CLIENT_ALLOW_PRIVATE_HOSTS"):
            Egress().check_address(ip_address(address))
        Egress(allow_private=True).check_address(ip_address(address))


@pytest.mark.parametrize("address", PUBLIC.split())
def test_a_public_address_is_allowed(address: str) -> None:
    Egress().check_address(ip_address(address))


def refused(address: Address) -> bool:
    try:
        Egress().check_address(address)
    except Refused:
        return True
    return False


@given(st.ip_addresses())
def test_what_python_takes_for_private_or_special_is_never_allowed(address: Address) -> None:
    special = (
        address.is_private
        or address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_reserved
        or address.is_unspecified
    )
    mapped = isinstance(address, IPv6Address) and address.ipv4_mapped is not None
    if special and not mapped:
        assert refused(address)


@given(st.ip_addresses(v=4))
def test_a_mapped_address_is_judged_as_the_one_it_stands_for(address: IPv4Address) -> None:
    assert refused(IPv6Address(f"::ffff:{address}")) == refused(address)

"""To which addresses this service may connect when a caller names them."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from ..domain.addresses import is_loopback
from ..domain.ports import Refused

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Our own tables: `is_global` of the standard library answers differently from one Python version to
# the next, and takes multicast for public.
_NOT_PUBLIC_V4 = tuple(
    ipaddress.IPv4Network(block)
    for block in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local; metadata services of clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved; broadcast
    )
)
# Everything outside of it is loopback, private, link-local, site-local, multicast or reserved, or
# carries an IPv4 address to a translator (NAT64, IPv4-translated, IPv4-compatible), which may have
# a way into a private network.
_GLOBAL_UNICAST_V6 = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC_V6 = tuple(
    ipaddress.IPv6Network(block)
    for block in (
        "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: carries an IPv4 address to a relay
        "3fff::/20",  # documentation
    )
)


@dataclass(frozen=True, slots=True)
class Egress:
    allowed_hosts: frozenset[str] = frozenset()  # none named means any public host
    allow_private: bool = False
    named_hosts: frozenset[str] = frozenset()  # by a person or the operator: may be private
    own_ports: frozenset[int] = frozenset()  # of this machine, where we and our OpenCode listen
    hosts_setting: str = "A2A_CLIENT_ALLOWED_HOSTS"  # what a refusal names
    private_setting: str = "A2A_CLIENT_ALLOW_PRIVATE_HOSTS"

    def check_host(self, host: str | None) -> None:
        if not host:
            raise Refused("the URL names no host")
        if self.is_named(host):
            return
        if self.allowed_hosts and host.lower() not in self.allowed_hosts:
            raise Refused(f"{host} is not among {self.hosts_setting}")
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            if host.replace(".", "").isdigit():  # 127.1: the connection takes it for an address
                raise Refused(f"{host} is neither a name nor an address") from None
            return  # a name: its addresses are checked when it is resolved
        self.check_address(address)

    def is_named(self, host: str) -> bool:
        """Whether the policy does not apply; one name of this machine stands for the others."""
        return host.lower() in self.named_hosts or (
            is_loopback(host) and any(map(is_loopback, self.named_hosts))
        )

    def check_own(self, address: Address, port: int) -> None:
        """Whatever name it has: who calls itself through itself would never end."""
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        here = mapped or address
        if port in self.own_ports and (here.is_loopback or here.is_unspecified):
            raise Refused("it is this service, or its OpenCode")

    def check_address(self, address: Address) -> None:
        if not self.allow_private and not is_public(address):
            raise Refused(f"the host is not on the public network ({self.private_setting})")


def is_public(address: Address) -> bool:
    """Whether an address is that of a host on the public network, reached without a translator."""
    if isinstance(address, ipaddress.IPv6Address):
        if (mapped := address.ipv4_mapped) is None:
            return address in _GLOBAL_UNICAST_V6 and not _within(address, _NOT_PUBLIC_V6)
        address = mapped  # the system connects to it by IPv4
    return not _within(address, _NOT_PUBLIC_V4)


def _within(
    address: Address, blocks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]
) -> bool:
    return any(address in block for block in blocks)

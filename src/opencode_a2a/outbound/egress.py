"""Where this service may connect to when a stranger names the address."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from ..domain.ports import Refused

CARRIERS = tuple(ipaddress.ip_network(f"{prefix}::/96") for prefix in ("", "64:ff9b"))  # of IPv4

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Egress:
    allowed_hosts: frozenset[str] = frozenset()  # none named means any public host
    allow_private: bool = False

    def check_host(self, host: str | None) -> None:
        if not host:
            raise Refused("the URL names no host")
        if self.allowed_hosts and host.lower() not in self.allowed_hosts:
            raise Refused(f"{host} is not among A2A_CLIENT_ALLOWED_HOSTS")
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            if host.replace(".", "").isdigit():  # 127.1: the connection takes it for an address
                raise Refused(f"{host} is neither a name nor an address") from None
            return  # a name: its addresses are checked when it is resolved
        self.check_address(address)

    def check_address(self, address: Address) -> None:
        if not self.allow_private and not _destination(address).is_global:
            raise Refused("the host is not on the public network (A2A_CLIENT_ALLOW_PRIVATE_HOSTS)")


def _destination(address: Address) -> Address:
    """Where an address leads: some IPv6 ones only carry an IPv4 one through a gateway."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if any(address in prefix for prefix in CARRIERS):
        return ipaddress.IPv4Address(address.packed[-4:])
    return address.ipv4_mapped or address.sixtofour or address

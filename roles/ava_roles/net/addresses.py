"""Which addresses may be connected to: public ones, and none of this machine's own.

`ipaddress.is_global` alone says yes to embedded private addresses (::127.0.0.1, 6to4, NAT64, ISATAP), to
multicast and to cloud metadata addresses, so the ranges are listed here, and IPv6 forms that carry an IPv4
address are judged by that one.
"""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

_CLOSED = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "168.63.129.16/32",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",
        "::/96",
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/23",
        "2001:db8::/32",
        "2002::/16",
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",
        "fe80::/9",
        "ff00::/8",
    )
)
_NAT64 = ip_network("64:ff9b::/96")
_GLOBAL_UNICAST = ip_network("2000::/3")
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)  # the third quarter of such an address; the last one is an IPv4 address


def is_public(text: str) -> bool:
    """Tell whether an address (not a name) may be connected to.

    Args:
        text: An IPv4 or IPv6 address as a resolver returns it; anything else is not public.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv6Address):
        carried = _judged(address)
        if carried is None:
            return False
        address = carried
    if not address.is_global or address.is_multicast:
        return False
    if any(address in net for net in _CLOSED if net.version == address.version):
        return False
    return not is_own(address)


def is_own(address: IPv4Address | IPv6Address) -> bool:
    """Tell whether an address is one of this machine's own, which no list can know.

    Only an address of this machine can be bound to. Where the system lets any address be bound, none is
    public: that fails closed.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def _judged(address: IPv6Address) -> IPv4Address | IPv6Address | None:
    """Return the address to judge (the IPv4 one that it carries, or itself); None when it is closed."""
    if address.scope_id:
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    if address not in _GLOBAL_UNICAST or (int(address) >> 32) & 0xFFFF_FFFF in _ISATAP:
        return None
    return address

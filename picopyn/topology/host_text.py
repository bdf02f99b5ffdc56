"""One text for one address: IPv6 addresses may be written in many ways, and are compared as text.

*Source*: RFC 4291 section 2.2 (the forms), RFC 5952 (the one that `str` of `ipaddress` gives).
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, ip_address


@lru_cache(maxsize=4096)
def canonical(host: str) -> str:
    """A host as it is compared: an address in its one form, an IPv4 address inside of IPv6 by itself; a name stays."""
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        address = ip_address(bare)
    except ValueError:
        return host
    inside = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(inside or address)


def same_place(one: tuple[str, int], other: tuple[str, int]) -> bool:
    """Whether two pairs of host and port are the same address, as far as their texts tell."""
    return one[1] == other[1] and canonical(one[0]) == canonical(other[0])

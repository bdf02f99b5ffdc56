"""Which host and port to dial for an advertised address, if any.

This file decides what is no address for a client; it resolves no name and dials nothing.

*Source*: Picodata, `doc/dev/change_pgproto_advertise.md`: before the advertise option existed the listen
address was stored, which can be `0.0.0.0`.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
from typing import TypeAlias

#: Turns an advertised (host, port) into the one to dial from here.
AddressMap: TypeAlias = Callable[[str, int], tuple[str, int]]

_NOWHERE = ("", 0)


def split_address(address: str) -> tuple[str, int] | None:
    """`host:port`, `[v6]:port` or `v6:port` → host without brackets and port; None when it is no address."""
    host, colon, port = address.strip().rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        return None
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return host, int(port)


def is_wildcard(host: str) -> bool:
    """Whether this host means "every interface": somewhere to listen, nowhere to dial."""
    if host in ("", "*"):
        return True
    literal = host.partition("%")[0]
    if literal.strip("0:."):  # all zeros look like that; nearly no address does
        return False
    try:
        return ip_address(literal).is_unspecified
    except ValueError:
        return False


class AddressReader:
    """Gives each instance an address of its own, first come, first served.

    Attributes:
        remarks: One sentence for every address that could not be used.
    """

    def __init__(self, seen_host: str | None = None, address_map: AddressMap | None = None) -> None:
        """See `discovery.instance_events` for the arguments."""
        self._seen_host = seen_host
        self._address_map = address_map
        self._owners: dict[tuple[str, int], str] = {}
        self.remarks: list[str] = []

    def take(self, name: str, address: str, asked: bool) -> tuple[str, int]:
        """Host and port to dial for an instance; `("", 0)` if there is no usable address.

        Args:
            name: Name of the instance, for remarks.
            address: The address it advertises.
            asked: Whether it is the instance that `seen_host` was dialled for.
        """
        target = self._target(name, address, asked)
        if target is None:
            return _NOWHERE
        owner = self._owners.setdefault(target, name)
        if owner != name:
            self.remarks.append(f"instance {name}: its address {address} is that of instance {owner}")
            return _NOWHERE
        return target

    def _target(self, name: str, address: str, asked: bool) -> tuple[str, int] | None:
        advertised = split_address(address)
        if advertised is None:
            self.remarks.append(f"instance {name}: {address!r} is no host:port")
            return None
        host, port = self._mapped(name, *advertised)
        if is_wildcard(host) and asked and self._seen_host:
            host = self._seen_host
        if is_wildcard(host):
            self.remarks.append(f"instance {name}: it advertises {address}, which nobody can dial")
            return None
        return host, port

    def _mapped(self, name: str, host: str, port: int) -> tuple[str, int]:
        if self._address_map is None:
            return host, port
        try:
            mapped_host, mapped_port = self._address_map(host, port)
            return str(mapped_host), int(mapped_port)
        except Exception as error:
            self.remarks.append(f"instance {name}: address_map raised {type(error).__name__}")
            return host, port

"""Proxies in front of servers, so that the way to one can be disturbed while the server itself is well.

What a proxy swallowed or holds back is never followed by what was sent later: connections that lost something are reset
when the way is free again, as a network would do it.
"""

from __future__ import annotations

from collections.abc import Mapping

from picopyn.cli.chaos.schedule import Act
from picopyn.testing import FaultProxy

#: How much later everything arrives on a slow way, in each direction (seconds).
_SLOW = 0.05


class Fronts:
    """One proxy for each server. Owner: a field; closed by `close`.

    Args:
        addresses: Host and port by name of the server.
    """

    def __init__(self, addresses: Mapping[str, tuple[str, int]]) -> None:
        self._names = {address: name for name, address in addresses.items()}
        self._proxies = {name: FaultProxy(*address).start() for name, address in addresses.items()}

    def close(self) -> None:
        """End all of them."""
        for proxy in self._proxies.values():
            proxy.close()

    @property
    def hosts(self) -> str:
        """`host:port` of all, as connection strings list them."""
        return ",".join(f"{proxy.host}:{proxy.port}" for proxy in self._proxies.values())

    def dialled(self, host: str, port: int) -> tuple[str, int]:
        """What to dial instead of a server's own address; servers without a proxy are dialled themselves."""
        name = self._names.get((host, port))
        return (host, port) if name is None else (self._proxies[name].host, self._proxies[name].port)

    def disturb(self, name: str, act: Act) -> None:
        """Let something happen on the way to a server."""
        proxy = self._proxies[name]
        if act is Act.MUTE:
            proxy.mute()
        elif act is Act.HOLD:
            proxy.freeze()
        elif act is Act.SLOW:
            proxy.delay(_SLOW)
        elif act is Act.REFUSE:
            proxy.refuse()
            proxy.cut()  # or nobody would notice
        else:
            proxy.cut()

    def free(self, name: str, act: Act) -> None:
        """End what `disturb` began."""
        proxy = self._proxies[name]
        if act in (Act.MUTE, Act.SLOW):
            proxy.cut()
        proxy.let_pass()
        if act in (Act.MUTE, Act.SLOW):
            proxy.cut()  # those that came between

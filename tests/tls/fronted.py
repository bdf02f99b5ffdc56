"""An embedded cluster whose instances all stand behind a TLS of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from picopyn.asynchronous import Pool
from picopyn.testing import FaultProxy, PicodataCluster, TlsFront

#: Makes the front of an instance from its number (from 0) and its loopback address.
MakeFront = Callable[[int, str], TlsFront]


class Fronted:
    """A proxy with TLS for each instance, on loopback addresses of their own: 127.0.0.11, 127.0.0.12, ….

    Args:
        cluster: Its instances know nothing of the proxies, as behind a NAT.
        front: Makes the front of each.
        pool_class: What pools are made of.
    """

    def __init__(self, cluster: PicodataCluster, front: MakeFront, pool_class: Any = Pool) -> None:
        self.cluster = cluster
        self._pool_class = pool_class
        self._front = front
        self._running = ExitStack()
        self.proxies: dict[str, FaultProxy] = {}
        self._places: dict[tuple[str, int], tuple[str, int]] = {}

    def __enter__(self) -> Self:
        for number, (name, instance) in enumerate(self.cluster.instances.items()):
            listen = f"127.0.0.{11 + number}"
            proxy = FaultProxy(instance.host, instance.port, listen=listen, tls=self._front(number, listen))
            self.proxies[name] = self._running.enter_context(proxy)
            self._places[instance.host, instance.port] = (listen, proxy.port)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()

    def front(self, name: str) -> TlsFront:
        """The front of an instance."""
        front = self.proxies[name].front
        assert front is not None
        return front

    @property
    def openings(self) -> dict[str, set[str]]:
        """What clients began with, by instance, without the questions for TLS."""
        return {name: set(self.front(name).openings) - {"SSLRequest"} for name in self.proxies}

    def pool(self, *, seeds: list[str] | None = None, **settings: Any) -> Any:
        """A pool that finds the instances through the proxies, seeds by name of instance or as `host:port`."""
        named = [self._seed(seed) for seed in (seeds or list(self.proxies))]
        dsn = f"postgresql://admin:{self.cluster.password()}@{','.join(named)}/"
        return self._pool_class(dsn, address_map=lambda host, port: self._places[host, port], **settings)

    def _seed(self, seed: str) -> str:
        proxy = self.proxies.get(seed)
        return seed if proxy is None else f"{proxy.host}:{proxy.port}"


def names_by_address(names: Mapping[str, str]) -> Callable[[str, int], str | None]:
    """For `ssl_server_name`: dialled host → name."""
    return lambda host, port: names.get(host)

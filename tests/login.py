"""How to log in to servers: a connection string whose hosts can be exchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

Address = tuple[str, int]
T = TypeVar("T")


class Login:
    """A URI; whatever it says beside its hosts holds for all servers.

    Args:
        dsn: The URI.
        port: That of a host without one.
    """

    def __init__(self, dsn: str, port: int = 5432) -> None:
        scheme, _, rest = dsn.partition("://")
        user, at, hosts = rest.rpartition("@")
        hosts, slash, tail = hosts.partition("/")
        self._before, self._after = f"{scheme}://{user}{at}", slash + tail
        self.hosts = [_address(text, port) for text in hosts.split(",")]
        parts: SplitResult = urlsplit(f"{self._before}host{self._after}")
        self.user, self.password = unquote(parts.username or ""), unquote(parts.password or "")
        self.database = parts.path.lstrip("/")

    def at(self, places: Iterable[Address]) -> str:
        """The same for these hosts and ports."""
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in places)
        return f"{self._before}{hosts}{self._after}"


def with_words(dsn: str, words: str) -> str:
    """A URI with more of its `word=value` pairs."""
    return f"{dsn}{'&' if '?' in dsn else '?'}{words}"


def _address(text: str, port: int) -> Address:
    host, colon, number = text.rpartition(":")
    if not colon or text.endswith("]"):
        return text.strip("[]"), port
    return host.strip("[]"), int(number)


def apart(step: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of its own, away from the test's."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, step).result()

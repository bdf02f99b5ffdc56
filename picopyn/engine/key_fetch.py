"""Rows by many keys: one statement per owner, or several where it owns many, all owners at once, results merged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from picopyn.engine import failures
from picopyn.engine.bulk_rows import Chunk, Machinery
from picopyn.engine.crew import Crew
from picopyn.engine.request import make_request
from picopyn.errors import FetchIncomplete, UsageError
from picopyn.routing.key_texts import KeyText, read_key_text
from picopyn.routing.plan import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """What the caller wants of the rows.

    Attributes:
        order_by: Names of the result's columns that are the key: rows come in the order of the keys; empty: in none.
        timeout: Limit for all of it (seconds), or None.
        own_timeout: Whether the caller named that limit.
        role: Which member of a replicaset may answer.
        idempotent: Whether the statement may be sent twice; None: as the server has it for the text.
    """

    order_by: tuple[str, ...] = ()
    timeout: float | None = None
    own_timeout: bool = False
    role: Role = Role.LEADER
    idempotent: bool | None = None


class KeyFetch:
    """One such call.

    Args:
        machinery: What it works with.
        query: The text with one key.
        keys: The keys: values, or tuples of as many values as the key has columns. Each is asked for once.
        others: The arguments behind those of the key.
        options: What the caller wants.
    """

    def __init__(
        self,
        machinery: Machinery,
        query: str,
        keys: Iterable[Any],
        others: tuple[Any, ...],
        options: FetchOptions,
    ) -> None:
        self._machinery = machinery
        self._runtime = machinery.cluster.runtime
        self._crew = Crew(self._runtime, machinery.executor)
        self._lock = self._runtime.lock()
        self._query = query
        self._positions = positions_of(keys)
        self._keys = list(self._positions)
        self._others = others
        self._options = options
        self._rows: list[Any] = []
        self._failed: list[tuple[Chunk, Exception]] = []
        self._done = 0

    async def run(self) -> list[Any]:
        """Fetch the rows.

        Raises:
            UsageError: A text or keys that do not fit.
            FetchIncomplete: Some owners did not answer; it has the rows of the others.
            Exception: No owner answered: why the first one did not.
        """
        if not self._keys:
            return []
        width = len(self._keys[0])
        if self._options.order_by and len(self._options.order_by) != width:
            raise UsageError(f"order_by= has {len(self._options.order_by)} columns, a key has {width}")
        text = read_key_text(self._query, width)
        if text.others != len(self._others):
            raise UsageError(f"the text has {text.others} parameters behind its key, {len(self._others)} are given")
        deadline = None if self._options.timeout is None else self._runtime.now() + self._options.timeout
        try:
            await self._machinery.executor.learned(self._query, deadline)
            rows = [(*key, *self._others) for key in self._keys]
            chunks = self._machinery.sorter(self._query).sort(range(len(rows)), rows, text.most)
            for owner in dict.fromkeys(chunk.owner for chunk in chunks):
                mine = [chunk for chunk in chunks if chunk.owner == owner]
                self._crew.start(self._work(text, mine, deadline), "picopyn fetch by keys")
            await self._crew.until(lambda: not self._crew.running)
        except BaseException:
            await self._crew.abandon()
            raise
        return self._result()

    async def _work(self, text: KeyText, chunks: Sequence[Chunk], deadline: float | None) -> None:
        """Ask one owner for the rows of its keys."""
        options, now = self._options, self._runtime.now
        for chunk in chunks:
            query, args = text.text(text.size(len(chunk.rows))), text.arguments(chunk.rows)
            request = make_request("fetch", query, args, options.role, options.idempotent)
            request.place, request.word = chunk.place, "fetch_by_keys"
            if deadline is not None:
                request.limit(max(deadline - now(), 0.001), now(), own=options.own_timeout)
                request.timeout = options.timeout
            try:
                rows = await self._crew.call(request)
            except Exception as error:
                with self._lock:
                    self._failed.append((chunk, error))
            else:
                with self._lock:
                    self._done += 1
                    self._rows += rows

    def _result(self) -> list[Any]:
        rows = self._ordered()
        if not self._failed:
            return rows
        first = self._failed[0][1]
        if not self._done:
            raise first
        failed = {
            position: error
            for chunk, error in self._failed
            for number in chunk.positions()
            for position in self._positions[self._keys[number]]
        }
        given = sum(map(len, self._positions.values()))
        text = f"{len(failed)} of {given} keys got no answer: {failures.in_short(first)}"
        raise FetchIncomplete(f"fetch_by_keys() is incomplete, {text}", rows, failed) from first

    def _ordered(self) -> list[Any]:
        columns = self._options.order_by
        if not columns or not self._rows:
            return self._rows
        missing = [column for column in columns if column not in self._rows[0].keys()]  # noqa: SIM118 - a record
        if missing:
            raise UsageError(f"order_by= names {missing[0]!r}, which is no column of the result")
        kinds = [type(self._rows[0][column]) for column in columns]
        place = {tuple(map(_as_kind, kinds, key)): number for number, key in enumerate(self._keys)}
        last = len(place)
        return sorted(self._rows, key=lambda row: place.get(tuple(row[column] for column in columns), last))


def _as_kind(kind: type, value: Any) -> Any:
    """A key as the server gives it back: asyncpg takes texts for UUIDs and decimals, too."""
    if isinstance(value, str):
        with suppress(ValueError, ArithmeticError):
            if issubclass(kind, UUID):
                return UUID(value)
            if issubclass(kind, Decimal):
                return Decimal(value)
    return value


def positions_of(keys: Iterable[Any]) -> dict[tuple[Any, ...], list[int]]:
    """Keys as tuples, each once in the order of their first mention, and where each stands in what was given.

    Raises:
        UsageError: They are no keys, or not all of one width.
    """
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        raise UsageError(f"fetch_by_keys() takes keys one after the other, not {type(keys).__name__}")
    found = [tuple(key) if isinstance(key, tuple | list) else (key,) for key in keys]
    for position, key in enumerate(found):
        if len(key) != len(found[0]) or not key:
            raise UsageError(f"key {position} has {len(key)} values, {len(found[0]) or 'some'} are expected")
    positions: dict[tuple[Any, ...], list[int]] = {}
    try:
        for position, key in enumerate(found):
            positions.setdefault(key, []).append(position)
    except TypeError:
        raise UsageError("a key has a value that cannot be compared by its hash") from None
    return positions

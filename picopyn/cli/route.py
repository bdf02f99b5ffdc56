"""`picopyn route`: where a statement would go, and why, printed for people.

This file decides how arguments on the command line become values, and the exit code. Nothing is executed at the server.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import asyncpg

from picopyn.asynchronous import Pool
from picopyn.errors import PicopynError
from picopyn.routing.explanation import RouteExplanation

#: Written for an argument that is NULL.
NULL: Final = "NULL"


class BadArgument(Exception):  # noqa: N818 - it is what the user gave
    """An argument that is no value of its parameter's type."""


def run(dsn: str, sql: str, arguments: Sequence[str]) -> int:
    """Print where a call would go.

    Args:
        dsn: Connection string.
        sql: The statement.
        arguments: Its arguments as texts; `NULL` stands for NULL.

    Returns:
        The exit code, see [`picopyn.cli.main`][].
    """
    logging.getLogger("picopyn").addHandler(logging.NullHandler())
    try:
        print(told(asyncio.run(_explain(dsn, sql, arguments))))
    except (PicopynError, BadArgument, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        print(f"picopyn route: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


async def _explain(dsn: str, sql: str, arguments: Sequence[str]) -> RouteExplanation:
    async with Pool(dsn, min_size=0, topology_update_interval=None) as pool:
        known = await pool.explain_route(sql)
        if known.kind is None:  # perhaps because the server refuses the text: it says why, and still executes nothing
            async with pool.acquire() as connection:
                await connection.prepare(sql)
        if not known.parameter_types and not arguments:
            return known
        return await pool.explain_route(sql, *values(arguments, known.parameter_types))


def values(arguments: Sequence[str], types: Sequence[int]) -> list[Any]:
    """The arguments as values of the parameters' types.

    Args:
        arguments: As written.
        types: Type OIDs, as the server told; empty: not known, then every argument stays a text.

    Raises:
        BadArgument: Too many or too few, or one that is no value of its type.
    """
    if not types:
        return [None if text == NULL else text for text in arguments]
    if len(arguments) != len(types):
        raise BadArgument(f"the statement has {len(types)} parameters, {len(arguments)} arguments were given")
    return [_value(place, text, oid) for place, (text, oid) in enumerate(zip(arguments, types, strict=True), 1)]


def _value(place: int, text: str, oid: int) -> Any:
    if text == NULL:
        return None
    name, convert = _TYPES.get(oid, ("text", str))
    try:
        return convert(text)
    except (ValueError, ArithmeticError):
        raise BadArgument(f"argument {place} is not of type {name}") from None


def told(explanation: RouteExplanation) -> str:
    """The explanation, one fact a line."""
    kind = explanation.kind
    facts = {
        "route": f"{kind.name.lower().replace('_', ' ')}: {kind.value}" if kind is not None else "not known",
        "key": " or ".join(_key(numbers) for numbers in explanation.key_parameters),
        "tier": explanation.tier or "",
        "bucket": ", ".join(map(str, explanation.buckets)),
        "owner": explanation.owner or "",
        "goes to": ", ".join(explanation.candidates),
        "waits for": explanation.wait.value if explanation.wait is not None else "",
        "direct": "yes" if explanation.direct else "no",
        "because": explanation.reason,
        "evidence": f"{explanation.evidence:.0f} bits" if explanation.evidence else "",
        "map": f"version {explanation.map_version}, {explanation.map_age:.1f} s old",
    }
    return "\n".join(f"{name + ':':<11}{fact}" for name, fact in facts.items() if fact)


def _key(numbers: Sequence[int]) -> str:
    return "(" + ", ".join(f"${number}" if number else "literal" for number in numbers) + ")"


def _bool(text: str) -> bool:
    words = {"true": True, "t": True, "false": False, "f": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


_TYPES: Final[Mapping[int, tuple[str, Callable[[str], Any]]]] = {
    16: ("boolean", _bool),
    **dict.fromkeys((20, 21, 23), ("integer", int)),
    701: ("double", float),
    1184: ("datetime", _moment),
    1700: ("decimal", Decimal),
    2950: ("uuid", UUID),
}

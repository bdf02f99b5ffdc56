"""What makes the keys of a table: its key is read from the catalogue, else learned, else told by the caller.

A double is hashed in one of several forms, which no catalogue tells: a key with one is learned in any case.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from picopyn.dialects.base import Dialect, TableKey
from picopyn.engine.executor import Executor
from picopyn.engine.place import count_of
from picopyn.engine.request import make_request
from picopyn.errors import NotSupported, UsageError
from picopyn.routing.plan import Role
from picopyn.routing.route import RouteKind
from picopyn.routing.sharding import OIDS, ShardingKeyFactory
from picopyn.topology import TopologySnapshot

#: More columns cannot be asked about at once.
MOST_COLUMNS = 64


async def make_factory(
    executor: Executor,
    dialect: Dialect,
    snapshot: TopologySnapshot,
    table: str,
    tier: str | None,
    columns: Mapping[str, str | int] | None,
) -> ShardingKeyFactory:
    """Make the keys' factory of one table; see `Pool.sharding_key_factory`."""
    if not isinstance(table, str) or not table:
        raise UsageError("sharding_key_factory() takes the name of a table, as the server keeps it")
    if tier is not None and not isinstance(tier, str):
        raise UsageError(f"tier= takes a name, not {type(tier).__name__}")
    if dialect.table_keys is None:
        raise NotSupported(f"tables of {dialect.name} have no sharding key")
    if columns is not None:
        _check_columns(columns)
        told = TableKey(count_of(tier, snapshot)[0], tuple((name, _oid(name, kind)) for name, kind in columns.items()))
        return await _finished(executor, dialect, table, told)
    key = await _read(executor, dialect, table) or await _learn(executor, dialect, table, None)
    if not key.columns:
        raise UsageError(f"table {table!r} is on every node; its rows have no owner")
    if tier not in (None, key.tier):
        raise UsageError(f"table {table!r} is in tier {key.tier!r}, not {tier!r}")
    return await _finished(executor, dialect, table, key)


async def _finished(executor: Executor, dialect: Dialect, table: str, key: TableKey) -> ShardingKeyFactory:
    """The factory, once it is known in which form each column is hashed."""
    key_hash = dialect.key_hash
    if not key.forms and any("" not in key_hash.forms(oid) for _, oid in key.columns):
        key = await _learn(executor, dialect, table, key.columns)
    return ShardingKeyFactory(table, key.tier, key.columns, key.forms, key_hash)


async def _read(executor: Executor, dialect: Dialect, table: str) -> TableKey | None:
    """What the catalogue says; None when it may not be read, or says what is not understood."""
    assert dialect.table_keys is not None
    try:
        rows = await _fetch(executor, dialect.table_keys.QUESTION, (table,))
    except Exception as error:
        if getattr(error, "sqlstate", None) is None:
            raise
        return None
    if not rows:
        raise UsageError(f"there is no table {table!r}; unquoted names are kept in small letters")
    return dialect.table_keys.read_key(rows[0])


async def _learn(
    executor: Executor, dialect: Dialect, table: str, columns: tuple[tuple[str, int], ...] | None
) -> TableKey:
    """Learn which columns form the key, and how each is hashed.

    Raises:
        UsageError: It cannot be learned.
    """
    words = dialect.table_keys
    assert words is not None
    if columns is None:
        rows = await _fetch(executor, words.columns_question(table), ())
        columns = words.read_columns(rows)[:MOST_COLUMNS]
    metadata = await executor.learned(words.select_by(table, columns)) if columns else None
    route = None if metadata is None else metadata.route
    if route is None or route.tier is None or route.kind is not RouteKind.KEYED:
        why = "the server said nothing" if route is None else route.reason or route.kind.value
        raise UsageError(
            f"the key of table {table!r} could not be learned ({why}); "
            "tell it with columns={name: type} in the order of the key, and tier="
        )
    parts = route.keys[0]
    names = tuple((columns[part.parameter][0], part.oid) for part in parts)
    return TableKey(route.tier, names, tuple(part.form for part in parts))


def _check_columns(columns: object) -> None:
    if not isinstance(columns, Mapping) or not columns or not all(isinstance(name, str) for name in columns):
        raise UsageError('columns= takes the columns of the key with their types, like {"id": "int"}')


def _oid(name: str, kind: str | int) -> int:
    oid = OIDS.get(kind.lower()) if isinstance(kind, str) else kind
    if type(oid) is not int or oid not in OIDS.values():
        raise UsageError(f"column {name!r} of a key cannot be of type {kind!r}; known are {', '.join(OIDS)}")
    return oid


async def _fetch(executor: Executor, query: str, args: tuple[Any, ...]) -> Any:
    request = make_request("fetch", query, args, Role.LEADER)
    await executor.run(request)
    return request.answer

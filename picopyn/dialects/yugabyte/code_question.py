"""The question by which a server is asked for the hash code of a call, to compare it with the one computed here.

*Source*: yugabyte-smart-drivers.md section 7.2: `yb_hash_code` takes the key's columns in order, each with its type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from picopyn.dialects.yugabyte import key_hash
from picopyn.dialects.yugabyte.hash_code import HASH_CODES
from picopyn.dialects.yugabyte.key_hash import YUGABYTE_KEY_HASH
from picopyn.routing.route import KeyPart, RouteKind, StatementRoute
from picopyn.routing.sharding import compile_key

#: Types as SQL names them.
_NAMES: Final[Mapping[int, str]] = {
    key_hash.BOOL: "boolean",
    key_hash.BYTEA: "bytea",
    key_hash.CHAR: '"char"',
    key_hash.NAME: "name",
    key_hash.INT8: "bigint",
    key_hash.INT2: "smallint",
    key_hash.INT4: "integer",
    key_hash.TEXT: "text",
    key_hash.OID: "oid",
    key_hash.XID: "xid",
    key_hash.FLOAT4: "real",
    key_hash.FLOAT8: "double precision",
    key_hash.BPCHAR: "bpchar",
    key_hash.VARCHAR: "varchar",
    key_hash.DATE: "date",
    key_hash.TIME: "time",
    key_hash.TIMESTAMP: "timestamp",
    key_hash.TIMESTAMPTZ: "timestamptz",
    key_hash.UUID_OID: "uuid",
    key_hash.PG_LSN: "pg_lsn",
}


def code_question(route: StatementRoute, args: Sequence[Any]) -> tuple[str, tuple[Any, ...], int] | None:
    """What to ask about a call.

    Returns:
        The text, its arguments, and the code that the answer must be; None where there is nothing to compare.
    """
    if route.kind is not RouteKind.KEYED:
        return None
    parts = route.keys[0]
    code = compile_key(parts, YUGABYTE_KEY_HASH, HASH_CODES)(args)
    if code is None:
        return None
    columns = ", ".join(f"${number}::{_NAMES[part.oid]}" for number, part in enumerate(parts, 1))
    return f"SELECT yb_hash_code({columns})", tuple(_value(part, args) for part in parts), code


def _value(part: KeyPart, args: Sequence[Any]) -> Any:
    if part.literal is None:
        return args[part.parameter]
    return _DECODERS[part.oid](part.literal)


def _integer(encoded: bytes) -> int:
    return int.from_bytes(encoded, "big", signed=True)


#: How the constants that a statement may have are read back.
_DECODERS: Final[Mapping[int, Callable[[bytes], Any]]] = {
    key_hash.BOOL: lambda encoded: encoded != b"\0",
    key_hash.UUID_OID: lambda encoded: UUID(bytes=encoded),
    **dict.fromkeys(key_hash.INTEGERS, _integer),
    **dict.fromkeys(key_hash.TEXTS, bytes.decode),
}

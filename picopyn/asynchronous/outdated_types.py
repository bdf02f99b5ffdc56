"""Parameters whose types have changed at the server: an argument that a kept statement refuses may fit a new one.

asyncpg encodes arguments with the types that a statement had when it was prepared. After an `ALTER TABLE … TYPE` it
refuses the new values for as long as it keeps the statement, and nothing is sent that would tell it. So a refusal costs
the statement: it is prepared once more, and what is refused then is wrong.

It leans on asyncpg's internals (`PreparedStatementState`, what closes a statement that has left the cache), guarded by
`tests/sync/test_contract.py` and `tests/postgres/test_short_way.py`.
"""

from __future__ import annotations

from typing import Any

from asyncpg.exceptions import DataError


def is_refusal(error: BaseException) -> bool:
    """Whether asyncpg refused an argument, before anything was sent; the server's errors have a severity."""
    return isinstance(error, DataError) and getattr(error, "severity", None) is None


def give_up(connection: Any, statement: Any) -> bool:
    """Forget a kept statement; its end at the server is told with the next one that is prepared.

    Args:
        connection: asyncpg's connection.
        statement: The statement, as it lies in the connection's cache.

    Returns:
        Whether it was done; not when somebody holds the statement.
    """
    if statement.refs:
        return False
    statement.mark_closed()  # so the cache drops it
    connection._maybe_gc_stmt(statement)
    return True

"""One connection to one node: asyncpg's connection, with notices that arrive in time.

What leans on asyncpg's internals stands in this file, guarded by `tests/asynchronous/test_connection.py`: the hook for
server messages, the statement cache, the count of requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import asyncpg

from picopyn.asynchronous.buffered import put_in_front
from picopyn.asynchronous.last_byte import seconds_since_last_byte


class Connection(asyncpg.Connection):
    """A connection with asyncpg's whole surface: `fetch`, `fetchrow`, `fetchval`, `execute`, `prepare`, `close`, ….

    Two things differ. A notice is delivered to `on_notice` synchronously, before the request that caused it completes
    (asyncpg schedules its log listeners for later, which would be too late for statement metadata). And
    `forget_statements` makes every statement be prepared again.

    Attributes:
        on_notice: Called with the text of every notice of the server, or None.
        endpoint: (host, port) that was dialled.
    """

    __slots__ = ("endpoint", "on_notice")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.on_notice: Callable[[str], None] | None = None
        self.endpoint: tuple[str, int] = ("", 0)

    def _process_log_message(self, fields: dict[str, str], last_query: str | None) -> None:
        if self.on_notice is not None:
            self.on_notice(fields.get("M", ""))
        super()._process_log_message(fields, last_query)

    def read_into_kept_buffer(self) -> bool:
        """Read replies into a buffer that is kept, where the event loop would make a new one for each.

        Returns:
            Whether it does from now on.
        """
        return put_in_front(getattr(self, "_transport", None), getattr(self, "_protocol", None))

    def requests(self) -> int:
        """How many requests were made on it so far; a further one means that the one before has ended."""
        protocol = getattr(self, "_protocol", None)
        return -1 if protocol is None else int(protocol.queries_count)

    def silence(self) -> float | None:
        """Seconds since the last byte came from the server, as the kernel knows; None where it does not tell."""
        transport = getattr(self, "_transport", None)
        return None if transport is None or self.is_closed() else seconds_since_last_byte(transport)

    def forget_statements(self) -> None:
        """Prepare every statement again at its next use; those at the server are closed with the next one."""
        self._drop_local_statement_cache()

"""How many rows of one `executemany` the server has acknowledged, counted in its answers as they arrive.

asyncpg throws these answers away. They tell which rows took effect when the call fails, where each row does by itself
(Picodata): everything acknowledged did, the next one failed, and after an error the server executes nothing more.

*Source*: `picodata-protocol.md` section 8 (pipelined messages; after an error the server skips to Sync, what was
executed stays); PostgreSQL's documentation, "Message Formats" (a byte that names the kind, a length of four bytes that
counts itself, the rest).
"""

from __future__ import annotations

import re
from typing import Final

_COMPLETE: Final = ord("C")
_BOUND: Final = b"2\x00\x00\x00\x04"
#: asyncpg sends a ROLLBACK after rows that it could not encode; that answer is none of a row.
_NOT_OF_A_ROW: Final = b"ROLLBACK\x00"


class RowAcks:
    """Counts acknowledged rows. Owned by one call.

    Attributes:
        began: Rows that were acknowledged when the last attempt began.
        before: Rows acknowledged in earlier attempts of the call; after a failure, in that one too.
        acknowledged: Rows acknowledged in this one.
        affected: Rows of the table that all of them together changed, as the server counts.
    """

    __slots__ = ("_rest", "_same", "_unit", "_worth", "acknowledged", "affected", "before", "began")

    def __init__(self) -> None:
        self.began = 0
        self.before = 0
        self.acknowledged = 0
        self.affected = 0
        self._worth = 0
        self._rest = b""
        self._unit = b"-"
        self._same: re.Pattern[bytes] | None = None

    @property
    def total(self) -> int:
        """Rows acknowledged in all."""
        return self.before + self.acknowledged

    def begin_again(self) -> int:
        """A new attempt follows, with the rows that are left.

        Returns:
            How many rows the one before has acknowledged.
        """
        done, self.acknowledged, self._rest = self.acknowledged, 0, b""
        self.began, self.before = self.before, self.before + done
        return done

    def feed(self, data: bytes) -> None:
        """Take note of some bytes from the server; they may end anywhere."""
        if self._rest:
            data = self._rest + data
        at, end = 0, len(data)
        while at + 5 <= end:
            if data.startswith(self._unit, at) and self._same is not None:  # mostly one answer is like the other
                run = self._same.match(data, at)
                assert run is not None
                count = (run.end() - at) // len(self._unit)
                self.acknowledged += count
                self.affected += count * self._worth
                at = run.end()
                continue
            after = at + 1 + int.from_bytes(data[at + 1 : at + 5], "big")
            if after > end:
                break
            if data[at] == _COMPLETE:
                self._completed(data, at, after)
            at = after
        self._rest = data[at:]

    def _completed(self, data: bytes, at: int, after: int) -> None:
        if data[at + 5 : after] == _NOT_OF_A_ROW:
            return
        self.acknowledged += 1
        number = data[at + 5 : after - 1].rpartition(b" ")[2]
        worth = int(number) if number.isdigit() else 0
        self.affected += worth
        if data[max(at - 5, 0) : at] == _BOUND:
            self._unit, self._worth = data[at - 5 : after], worth
            self._same = re.compile(b"(?:" + re.escape(self._unit) + b")+")

"""What a client says, with the names of YugabyteDB's own settings as a PostgreSQL takes them.

PostgreSQL refuses a setting that it does not know, but keeps any whose name has a dot. So a dot stands in place of the
first `_`: the name stays as long as it was, and no message changes its length. The start-up packet is changed as a
whole; later messages are, unless a name is torn apart between two pieces of a very long one.

*Source*: PostgreSQL documentation, "Customized Options".
"""

from __future__ import annotations

from typing import Final

#: Settings of YugabyteDB that are understood.
_NAMES: Final = (b"yb_read_from_followers", b"yb_follower_read_staleness_ms")


class OwnSettings:
    """Changes the names in what one client says."""

    def __init__(self) -> None:
        self._held = b""
        self._started = False

    def __call__(self, data: bytes) -> bytes:
        """A piece of what the client says → what the server gets; a start-up packet that is not whole is held back."""
        if not self._started:
            data, self._held = self._held + data, b""
            if len(data) < 4 or len(data) < int.from_bytes(data[:4], "big"):
                self._held = data
                return b""
            self._started = data[4:6] == b"\0\3"  # not a request for encryption, after which a packet follows
        for name in _NAMES:
            data = data.replace(name, name.replace(b"_", b".", 1))
        return data

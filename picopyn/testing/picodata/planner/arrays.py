"""Arrays on the wire, in both formats, as Picodata 26.2 speaks them: one dimension, built-in element types.

Knows no element type: those are read and written by whoever calls. *Source*: `picodata-protocol.md` section 7 (type
OIDs, no nested arrays), `picodata-recorded.md` section 7 (`{1,2}` with OID 1016); PostgreSQL's `array_send`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

#: Type OID of an array → type OID of its elements.
ELEMENTS = {
    1000: 16, 1005: 21, 1007: 23, 1009: 25, 1015: 1043, 1016: 20, 1022: 701, 1185: 1184, 1231: 1700, 2951: 2950,
}  # fmt: skip

_ELEMENT = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([^",{}\s][^",{}]*?))\s*(,|$)')
_PLAIN = re.compile(r"[^\s\"\\{},]+")


def from_text(text: str, read: Callable[[str], Any]) -> list[Any]:
    """`{1,NULL,"a b"}` as a list.

    Raises:
        ValueError: It is not an array of one dimension.
    """
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError(text)
    body, at, found = text[1:-1], 0, []
    while at < len(body):
        element = _ELEMENT.match(body, at)
        if element is None:
            raise ValueError(text)
        at = element.end()
        if element[1] is not None:
            found.append(read(re.sub(r"\\(.)", r"\1", element[1])))
        else:
            found.append(None if element[2].upper() == "NULL" else read(element[2]))
    return found


def from_binary(data: bytes, read: Callable[[bytes], Any]) -> list[Any]:
    """The binary form as a list.

    Raises:
        ValueError: It has more than one dimension.
        struct.error: It is cut off.
    """
    dimensions, _, _ = struct.unpack_from(">iiI", data)
    if dimensions == 0:
        return []
    if dimensions != 1:
        raise ValueError("nested arrays")
    (count,) = struct.unpack_from(">i", data, 12)
    at, found = 20, []
    for _ in range(count):
        (size,) = struct.unpack_from(">i", data, at)
        at += 4
        found.append(None if size < 0 else read(data[at : at + size]))
        at += max(size, 0)
    return found


def to_text(values: Sequence[Any], write: Callable[[Any], str]) -> str:
    """The text form."""
    return "{" + ",".join("NULL" if value is None else _quoted(write(value)) for value in values) + "}"


def to_binary(oid: int, values: Sequence[Any], write: Callable[[Any], bytes]) -> bytes:
    """The binary form; `oid` is that of the elements."""
    if not values:
        return struct.pack(">iiI", 0, 0, oid)
    head = struct.pack(">iiIii", 1, int(any(value is None for value in values)), oid, len(values), 1)
    parts = [struct.pack(">i", -1) if value is None else _sized(write(value)) for value in values]
    return b"".join([head, *parts])


def _sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _quoted(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.upper() != "NULL":
        return text
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'

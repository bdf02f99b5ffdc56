"""Which values asyncpg certainly refuses as a parameter of a type, without asking it.

It encodes a value only when it is about to send it. Whoever has to know before looks here: at the types that may be
part of a key. Where there is any doubt (another type, a value whose outcome hangs on something else), nothing is
refused: asyncpg has the last word. Values are never told, only their types.

*Source*: asyncpg 0.32 `pgproto/codecs/*.pyx`; compared with what it does by `tests/routing/test_argument_types.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from operator import index
from struct import pack
from typing import Any, Final


def is_refused(oid: int, value: Any) -> bool:
    """Whether asyncpg refuses a value, as long as nobody has given the type a codec of his own.

    Args:
        oid: Type OID of the parameter.
        value: The argument; None is NULL, which is never refused.
    """
    check = _CHECKS.get(oid)
    if check is None or value is None:
        return False
    try:
        return check(value)
    except Exception:  # whatever its conversion raises, asyncpg would get to see
        return True


def _is_no_bool(value: Any) -> bool:
    return not isinstance(value, bool)


def _is_no_int(bits: int, value: Any) -> bool:
    """`int(value)` where the type has `__int__`, which cuts fractions off; else what stands for an integer."""
    if hasattr(type(value), "__int__"):
        value = int(value)
    return not -(2 ** (bits - 1)) <= index(value) < 2 ** (bits - 1)


def _is_no_text(value: Any) -> bool:
    str.encode(value)  # raises for what is none, and for half a surrogate pair
    return False


def _is_no_double(value: Any) -> bool:
    pack(">d", value)  # raises
    return False


def _is_no_moment(value: Any) -> bool:
    """A day, or a moment that has a place in UTC; the last and the first one stand for infinities."""
    if isinstance(value, datetime) and value not in (datetime.max, datetime.min):
        value.astimezone(UTC)  # raises
    return not isinstance(value, date)


def _is_no_number(value: Any) -> bool:
    Decimal(value)  # raises
    return False


def _is_no_uuid(value: Any) -> bool:
    """A plain text of 32 hexadecimal digits, with hyphens; else what has bytes, however many."""
    if type(value) is not str:
        memoryview(value.bytes)  # raises
        return False
    digits = value.replace("-", "")
    return len(value) > 36 or len(digits) != 32 or len(bytes.fromhex(digits)) != 16


_CHECKS: Final[Mapping[int, Callable[[Any], bool]]] = {
    16: _is_no_bool,
    **{oid: partial(_is_no_int, bits) for oid, bits in ((21, 16), (23, 32), (20, 64))},
    **dict.fromkeys((25, 1043), _is_no_text),
    701: _is_no_double,
    1184: _is_no_moment,
    1700: _is_no_number,
    2950: _is_no_uuid,
}

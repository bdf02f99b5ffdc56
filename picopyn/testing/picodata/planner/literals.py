"""Values out of texts, and casts of values: the conversions Picodata does while planning.

*Source*: `Value::cast` in Picodata's `ir/value.rs` and what EXPLAIN showed (texts become uuids, datetimes and
booleans while planning; a cast of a text to a number stays in the plan).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from uuid import UUID

from picopyn.testing.picodata.planner.statement import Value

_TRUE = frozenset({"t", "true", "y", "yes", "on", "1"})
_FALSE = frozenset({"f", "false", "n", "no", "off", "0"})
_INT64 = range(-(2**63), 2**63)


def parse_bool(text: str) -> bool | None:
    """A boolean in one of PostgreSQL's spellings, or None."""
    word = text.strip().lower()
    if word in _TRUE:
        return True
    return False if word in _FALSE else None


def parse_int(text: str) -> int | None:
    """A 64-bit integer, or None."""
    try:
        number = int(text)
    except ValueError:
        return None
    return number if number in _INT64 and "_" not in text else None


def parse_decimal(text: str) -> Decimal | None:
    """A finite decimal with its scale as written (a positive exponent becomes zeros), or None."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    if not number.is_finite() or "_" in text:
        return None
    return plain_decimal(number)


def plain_decimal(number: Decimal) -> Decimal:
    """The same number without a positive exponent."""
    _, _, exponent = number.as_tuple()
    return Decimal(f"{number:f}") if isinstance(exponent, int) and exponent > 0 else number


def parse_double(text: str) -> float | None:
    """A double, or None."""
    try:
        return float(text) if "_" not in text else None
    except ValueError:
        return None


def parse_uuid(text: str) -> UUID | None:
    """A UUID, or None."""
    try:
        return UUID(text)
    except ValueError:
        return None


def parse_datetime(text: str) -> datetime | None:
    """A datetime that names its offset, or a bare date (midnight UTC); None for anything else.

    *Source*: recorded: `2023-07-07 12:34:56` is refused, `2023-07-07` taken.
    """
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    if moment.tzinfo is not None:
        return moment
    return moment.replace(tzinfo=UTC) if len(text.strip()) <= 10 else None


PARSERS: dict[str, Callable[[str], Value]] = {
    "bool": parse_bool,
    "int": parse_int,
    "decimal": parse_decimal,
    "double": parse_double,
    "uuid": parse_uuid,
    "datetime": parse_datetime,
    "text": str,
}


def double_parameter(value: float) -> Value:
    """What a bound double becomes: NaN is NULL, a number without fraction an integer (saturated), else a
    double.

    *Source*: `picodata-recorded.md` section 2.
    """
    if math.isnan(value):
        return None
    subnormal = value != 0 and abs(value) < 2.2250738585072014e-308
    if math.isinf(value) or subnormal or abs(math.fmod(value, 1.0)) >= 2.0**-52:
        return value
    return max(_INT64.start, min(_INT64.stop - 1, int(value)))


def cast_value(value: Value, target: str) -> tuple[bool, Value]:
    """Cast a value while planning.

    Returns:
        (True, the new value), or (False, None) when the cast stays in the plan.
    """
    if value is None:
        return True, None
    if isinstance(value, str):
        return _cast_text(value, target)
    if type_of(value) == target:
        return True, value
    if isinstance(value, bool | UUID | datetime) or target not in ("int", "decimal", "double"):
        return False, None
    return _cast_number(value, target)


def _cast_text(text: str, target: str) -> tuple[bool, Value]:
    if target == "text":
        return True, text
    if target not in ("bool", "uuid", "datetime"):
        return False, None
    value = PARSERS[target](text)
    return value is not None, value


def _cast_number(value: int | float | Decimal, target: str) -> tuple[bool, Value]:
    if target == "double":
        return True, float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return False, None
    if target == "decimal":
        return True, Decimal(str(value)) if not isinstance(value, Decimal) else value
    whole = math.floor(value) if isinstance(value, Decimal) else math.trunc(value)
    return whole in _INT64, whole if whole in _INT64 else None


def type_of(value: Value) -> str:
    """Planner type of a value."""
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "bool"
    for kind, name in ((int, "int"), (str, "text"), (float, "double"), (Decimal, "decimal"), (UUID, "uuid")):
        if isinstance(value, kind):
            return name
    return "datetime"

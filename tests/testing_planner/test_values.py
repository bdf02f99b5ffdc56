"""Values on the wire, in text and binary, in Picodata's spelling."""

from __future__ import annotations

import math
import struct
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as some

from picopyn.testing.picodata.planner import ServerError
from picopyn.testing.picodata.planner.values import decode_parameter, encode_value

_ID = UUID("9035910e-8342-4460-8c25-25e5f10d9876")
_NOON = datetime(2023, 7, 7, 12, 34, 56, 500000, tzinfo=timezone(timedelta(hours=3)))


@pytest.mark.parametrize(
    ("oid", "text", "value"),
    [
        (20, "-5", -5),
        (21, "7", 7),
        (25, "é", "é"),
        (16, "yes", True),
        (16, "f", False),
        (701, "1.0", 1),
        (701, "inf", math.inf),
        (701, "NaN", None),
        (1700, "1.50", Decimal("1.50")),
        (1700, "1e10", Decimal("10000000000")),
        (2950, str(_ID), _ID),
        (1184, "2023-07-07 12:34:56.5+03:00", _NOON),
        (1184, "2023-07-07T12:34:56Z", datetime(2023, 7, 7, 12, 34, 56, tzinfo=UTC)),
        (1184, "2023-07-07", datetime(2023, 7, 7, tzinfo=UTC)),
    ],
)
def test_a_text_parameter_becomes_a_value(oid: int, text: str, value: Any) -> None:
    """Decimals keep their scale, datetimes their offset; doubles follow the rule of bound doubles."""
    found = decode_parameter(oid, 0, text.encode(), 1)
    assert found == value
    assert type(found) is type(value)
    if isinstance(value, datetime) and isinstance(found, datetime):
        assert found.utcoffset() == value.utcoffset()


@pytest.mark.parametrize(
    ("oid", "text", "name"),
    [
        (20, "abc", "int8"),
        (20, "9223372036854775808", "int8"),
        (21, "70000", "int2"),
        (2950, "x", "uuid"),
        (1184, "2023-07-07 12:34:56", "timestamptz"),
        (16, "maybe", "bool"),
        (1700, "NaN", "numeric"),
    ],
)
def test_a_bad_text_is_refused_by_name_and_number(oid: int, text: str, name: str) -> None:
    """22P02 with the recorded words."""
    with pytest.raises(ServerError) as caught:
        decode_parameter(oid, 0, text.encode(), 3)
    assert caught.value.sqlstate == "22P02"
    assert caught.value.message == f"failed to bind parameter $3: decoding error: '{text}' is not a valid {name}"


@pytest.mark.parametrize(
    ("oid", "data"),
    [
        (20, b"\0\0"),
        (1700, struct.pack(">hhHH", 0, 0, 0xC000, 0)),
        (1184, struct.pack(">q", 2**62)),
        (25, b"\xff"),
    ],
)
def test_bad_binary_data_is_refused(oid: int, data: bytes) -> None:
    """22P03: wrong length, NaN, a moment out of range, no UTF-8."""
    with pytest.raises(ServerError, match=r"decoding error: binary data is not a valid") as caught:
        decode_parameter(oid, 1, data, 1)
    assert caught.value.sqlstate == "22P03"


@pytest.mark.parametrize(
    ("oid", "value", "text"),
    [
        (20, 5, b"5"),
        (16, True, b"t"),
        (701, 1.0, b"1.0"),
        (701, 1.5, b"1.5"),
        (701, math.inf, b"inf"),
        (701, math.nan, None),
        (1700, Decimal("1.50"), b"1.50"),
        (1700, 3, b"3"),
        (2950, _ID, str(_ID).encode()),
        (1184, _NOON, b"2023-07-07 12:34:56.500000+03"),
        (1184, "2023-07-07T09:34:56.500000|180", b"2023-07-07 12:34:56.500000+03"),
        (1184, "2023-07-07T12:34:56.000000|0", b"2023-07-07 12:34:56+00"),
        (1184, "2023-07-07T12:34:56.000000|-210", b"2023-07-07 09:04:56-03:30"),
        (114, '["Online", 1]', b'["Online",1]'),
        (114, {"a": "é"}, '{"a":"é"}'.encode()),
        (705, None, None),
    ],
)
def test_results_are_spelled_as_picodata_spells_them(oid: int, value: Any, text: bytes | None) -> None:
    """Doubles keep a fraction, datetimes the offset they were given with, JSON has no blanks."""
    assert encode_value(oid, 0, value) == text


_VALUES = {
    20: some.integers(-(2**63), 2**63 - 1),
    25: some.text(),
    16: some.booleans(),
    2950: some.uuids(),
    1700: some.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**15), max_value=10**15),
    1184: some.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(2200, 1, 1), timezones=some.just(UTC)),
}


@given(
    some.sampled_from(sorted(_VALUES)).flatmap(lambda oid: some.tuples(some.just(oid), _VALUES[oid])),
    some.sampled_from((0, 1)),
)
def test_what_is_sent_in_either_format_comes_back(pair: tuple[int, Any], format: int) -> None:
    """Encoding and decoding are inverse, scales included."""
    oid, value = pair
    data = encode_value(oid, format, value)
    found = decode_parameter(oid, format, data, 1)
    assert found == value
    if isinstance(value, Decimal):
        assert str(found) == str(value) or not value

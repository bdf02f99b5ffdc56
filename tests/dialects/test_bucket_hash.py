"""The bucket of a key: recorded vectors, asyncpg's coercions, and values that cannot be computed."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picopyn.dialects.base import KeyHash
from picopyn.dialects.picodata.bucket_hash import DOUBLE_FORMS, PICODATA_KEY_HASH
from tests.dialects import slow_hash
from tests.dialects.sent_bytes import SentBytes

RECORDED = json.loads((Path(__file__).parents[1] / "recorded" / "bucket-vectors.json").read_text())
OIDS = (16, 20, 21, 23, 25, 701, 1043, 1184, 1700, 2950)
READERS = {
    "bool": lambda text: text == "true",
    "int": int,
    "text": str,
    "double": float,
    "decimal": Decimal,
    "datetime": datetime.fromisoformat,
    "uuid": uuid.UUID,
}


def read(value: str) -> Any:
    """A value as the recorded file writes it."""
    kind, _, literal = value.partition(":")
    return None if kind == "null" else READERS[kind](literal)


def encoded(oids: list[int], values: list[Any], double_form: str) -> bytes:
    """A whole key, with this form for its doubles."""
    parts = [
        PICODATA_KEY_HASH.encoder(oid, double_form if oid == 701 else "")(value)
        for oid, value in zip(oids, values, strict=True)
    ]
    assert None not in parts
    return b"".join(part for part in parts if part is not None)


def test_the_hash_fits_what_a_dialect_promises() -> None:
    """`PICODATA_KEY_HASH` is a `KeyHash`."""
    promised: KeyHash = PICODATA_KEY_HASH
    assert promised.forms(20) == ("",)
    assert promised.forms(701) == DOUBLE_FORMS
    assert promised.forms(114) == ()


@pytest.mark.parametrize("vector", RECORDED["vectors"], ids=lambda v: "-".join(map(str, v["types"])))
def test_recorded_keys_land_in_the_recorded_bucket(vector: dict[str, Any]) -> None:
    """Every key that a real server stored is given the bucket the server gave it."""
    values = [read(value) for value in vector["values"]]
    older = encoded(vector["types"], values, "bound-older")
    newer = encoded(vector["types"], values, "bound-26.1")
    count = vector.get("bucket_count", 3000)
    assert PICODATA_KEY_HASH.bucket(older, count) == vector["bucket_id"]
    assert PICODATA_KEY_HASH.bucket(newer, count) == vector.get("bucket_id_26_1", vector["bucket_id"])
    assert older.hex() == vector.get("hash_input_hex", older.hex())


@pytest.mark.parametrize("row", RECORDED["published"], ids=lambda row: str(row.get("values", row.get("note"))))
def test_published_keys_land_in_the_published_bucket(row: dict[str, Any]) -> None:
    """The buckets in Picodata's own public tests are ours."""
    if "bucket_ids" in row:
        found = {PICODATA_KEY_HASH.bucket(encoded([20], [number], ""), 3000) for number in range(1, 17)}
        assert found == set(row["bucket_ids"])
    else:
        key = encoded(row["types"], [read(value) for value in row["values"]], "bound-older")
        assert PICODATA_KEY_HASH.bucket(key, 3000) == row["bucket_id"]


@pytest.mark.parametrize(
    ("form", "number", "bucket"),
    [
        ("bound-older", 1.0, 1934),
        ("bound-26.1", 1.0, 1934),
        ("cast-older", 1.0, 2099),
        ("cast-26.1", 1.0, 1934),
        ("cast-older", 1.5, 632),
        ("cast-26.1", 1.5, 510),
        ("cast-older", 0.1, 2673),
        ("cast-26.1", 0.1, 210),
        ("bound-26.1", 1e300, 246),
        ("bound-26.1", -1e300, 413),
    ],
)
def test_a_double_has_four_forms(form: str, number: float, bucket: int) -> None:
    """A cast and the server's release each change how a double is hashed."""
    key = PICODATA_KEY_HASH.encoder(701, form)(number)
    assert key is not None
    assert PICODATA_KEY_HASH.bucket(key, 3000) == bucket


# ── what asyncpg sends ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def sent_bytes() -> Iterator[SentBytes]:
    """A recording server with an asyncpg connection."""
    server = SentBytes()
    yield server
    server.close()


class Text(str):
    """A subclass that lies about its content."""

    def encode(self, *args: Any, **kwargs: Any) -> bytes:
        """Not what is sent."""
        return b"lie"


class Whole(int):
    """A subclass with a conversion of its own."""

    def __int__(self) -> int:
        return 77


class Index:
    """As a numpy integer: `__index__` and `__int__`."""

    def __index__(self) -> int:
        return 5

    __int__ = __index__


class OnlyIndex:
    """An integer for C code only."""

    def __index__(self) -> int:
        return 300


class Number:
    """As a numpy float: `__float__`."""

    def __float__(self) -> float:
        return 2.5


class Fraction(float):
    """A subclass that lies about its content."""

    def __float__(self) -> float:
        return -1.0


class Sixteen:
    """Something with the bytes of a uuid."""

    bytes = bytearray(range(16))


class Fifteen:
    """Something with too few bytes."""

    bytes = b"123456789012345"


class Raises:
    """Every conversion fails."""

    def __index__(self) -> int:
        raise RuntimeError("no")

    __int__ = __float__ = __str__ = __index__  # type: ignore[assignment]

    @property
    def bytes(self) -> bytes:
        """None at all."""
        raise RuntimeError("no")


class Zone(datetime):
    """A subclass."""


EAST = timezone(timedelta(hours=5, minutes=30))
HEX = "0123456789abcdef0123456789ABCDEF"
NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 5, 127, 128, 255, 256, 32767, 32768, -32, -33, -128, -129, -32768, -32769, 65535, 65536),
    *(2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1),
    *(2**64 - 1, 2**64, 10**27, 10**28 - 1, 10**28, 10**400, True, False),
    *(0.0, -0.0, 1.0, 1.9, -1.9, 0.1, 2.0**-52, 2.0**-53, 3.0 + 2.0**-51, 1e-17, 5e-324, 2.0**-1022, 1e16),
    *(2.0**52 + 0.5, 2.0**63, -(2.0**63), 2.0**64, 1e300, -1e300, math.inf, -math.inf, math.nan),
    *map(Decimal, ("0", "-0", "0.00", "-0.00", "1", "1.0", "1.00", "-1.50", "1E+2", "0E+2", "-0E+3", "1E+27")),
    *map(Decimal, ("1E+28", "1E-28", "1E-29", "0E-28", "0E-29", "0E+28", "0E+40", "1E+500", "NaN", "sNaN")),
    *map(Decimal, ("Infinity", "-Infinity", "9" * 28, "9" * 29, "0." + "9" * 28, "123456789012.3456789012")),
    *(Whole(3), Index(), OnlyIndex(), Number(), Fraction(4.5), Raises(), (0, (1, 2, 5), -1)),
)
TEXTS: tuple[Any, ...] = (
    *(
        "",
        "a",
        "Москва",
        "日本",
        "🙂",
        "nul\0nul",
        "\ud800",
        "x\udfff",
        "1",
        "1.50",
        " 1.50 ",
        "1e3",
        "NaN",
        "true",
    ),
    *(HEX, str(uuid.UUID(HEX)), HEX[:31], HEX + "0", HEX + "----", HEX + "-----", "-" + HEX, HEX[:30] + "  "),
    *(
        HEX[:31] + "é",
        HEX[:30] + "é",
        HEX[:16] + " " + HEX[16:],
        "{" + HEX + "}",
        "urn:uuid:" + HEX,
        "g" * 32,
    ),
    *(Text("kek"), Text(HEX), b"bytes", bytearray(16)),
)
OTHERS: tuple[Any, ...] = (
    *(None, uuid.UUID(HEX), uuid.UUID(int=0), Sixteen(), Fifteen(), object(), [], {}, int, Ellipsis),
    *(datetime(2023, 7, 7, 12, 34, 56), datetime(2023, 7, 7, 12, 34, 56, tzinfo=UTC)),
    *(datetime(2023, 7, 7, 12, 34, 56, 500_000, EAST), datetime(1900, 1, 1, 0, 0, 0, 1, UTC)),
    *(
        datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
        datetime(1970, 1, 1, tzinfo=UTC),
        Zone(2001, 2, 3, tzinfo=EAST),
    ),
    *(datetime.max, datetime.min, datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)),
    *(
        datetime.max.replace(tzinfo=timezone(-timedelta(hours=1))),
        datetime(9999, 12, 31, tzinfo=UTC),
        date(2023, 7, 7),
    ),
)


def computed(oid: int, form: str, value: Any) -> bytes | None:
    """What the driver says."""
    return PICODATA_KEY_HASH.encoder(oid, form)(value)


def expected(sent: SentBytes, oid: int, form: str, value: Any) -> bytes | None:
    """What a server would hash, or None where asyncpg or the server refuses the value."""
    try:
        return slow_hash.hashed(oid, sent.of(oid, value), form)
    except (asyncpg.DataError, slow_hash.Refused):
        return None


@pytest.mark.parametrize("oid", OIDS)
@pytest.mark.parametrize("values", [NUMBERS, TEXTS, OTHERS], ids=["numbers", "texts", "others"])
def test_what_asyncpg_sends_is_what_is_hashed(sent_bytes: SentBytes, oid: int, values: tuple[Any, ...]) -> None:
    """The coercions of asyncpg are part of the key: arguments are hashed as sent, or not computable."""
    for value in values:
        for form in PICODATA_KEY_HASH.forms(oid):
            if oid == 1184 and type(value) is date:
                assert computed(oid, form, value) is None, "its offset depends on the moment of sending"
            else:
                assert computed(oid, form, value) == expected(sent_bytes, oid, form, value), (
                    form,
                    repr(value),
                )


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**63) - 2, 2**64 + 2),
    st.floats(),
    st.text(st.characters(exclude_categories=())),
    st.decimals(),
    st.decimals(-(10**14), 10**14, places=6),
    st.datetimes(timezones=st.none() | st.timezones()),
    st.uuids(),
    st.binary(max_size=20),
    st.tuples(st.integers(0, 1), st.lists(st.integers(0, 9)).map(tuple), st.integers(-40, 40)),
)


@given(oid=st.sampled_from(OIDS), value=ANYTHING, data=st.data())
@settings(max_examples=400, deadline=None)
def test_any_argument_is_hashed_as_sent(sent_bytes: SentBytes, oid: int, value: Any, data: st.DataObject) -> None:
    """For every type and value, the bytes hashed are those a server makes of what it gets."""
    form = data.draw(st.sampled_from(PICODATA_KEY_HASH.forms(oid)))
    assert computed(oid, form, value) == expected(sent_bytes, oid, form, value)


@given(
    oid=st.sampled_from((*OIDS, 0, 114, 700, -1)),
    form=st.sampled_from(("", "nonsense", *DOUBLE_FORMS)),
    value=ANYTHING,
)
def test_no_argument_makes_an_encoder_raise(oid: int, form: str, value: Any) -> None:
    """That a key cannot be computed is a value; the same argument always gives the same answer."""
    first = computed(oid, form, value)
    assert first is None or isinstance(first, bytes)
    assert computed(oid, form, value) == first


@given(message=st.binary(max_size=40), count=st.integers(1, 70_000))
def test_the_bucket_is_murmur3_with_seed_13(message: bytes, count: int) -> None:
    """Bucket = murmur3 (x86, 32 bit, seed 13) of the key modulo the tier's count, plus 1."""
    assert PICODATA_KEY_HASH.bucket(message, count) == slow_hash.bucket(message, count)


def test_objects_that_fail_in_every_way_are_not_computable() -> None:
    """An exception in an argument's own conversion never leaves an encoder."""

    class Hostile:
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("eq")

        __hash__ = None  # type: ignore[assignment]

    for oid in OIDS:
        for form in PICODATA_KEY_HASH.forms(oid):
            for value in (Hostile(), Raises(), "\ud800", 10**5000, float("nan"), type):
                answer = computed(oid, form, value)
                assert answer is None or isinstance(answer, bytes)

"""The embedded cluster's own bucket hash gives the buckets a real server gave."""

from __future__ import annotations

import math
from typing import Any

import mmh3
import pytest
from hypothesis import given
from hypothesis import strategies as some

from picopyn.testing.picodata.planner.hash import bucket_of, hash_input, murmur3_32
from picopyn.testing.picodata.planner.literals import double_parameter
from tests.testing_planner.recorded import load, vector_value

VECTORS = load("bucket-vectors.json")


def _key(row: dict[str, Any]) -> list[Any]:
    values = [vector_value(text) for text in row["values"]]
    return [double_parameter(value) if isinstance(value, float) else value for value in values]


def test_every_recorded_row_lies_in_the_bucket_of_its_key() -> None:
    """710 rows of every type, composite keys and NULLs: the bucket read back from a real server."""
    wrong = [r for r in VECTORS["vectors"] if bucket_of(_key(r), r.get("bucket_count", 3000)) != r["bucket_id"]]
    assert not wrong


def test_the_newer_form_of_doubles_differs_only_where_the_rule_says() -> None:
    """26.1 and later hash integral doubles as integers and the others without a type byte."""
    for row in VECTORS["vectors"]:
        expected = row.get("bucket_id_26_1", row["bucket_id"])
        assert bucket_of(_key(row), row.get("bucket_count", 3000), "26.1") == expected


def test_published_keys_have_their_published_buckets() -> None:
    """Values that appear in Picodata's own tests."""
    for row in VECTORS["published"]:
        if "bucket_id" in row:
            assert bucket_of([vector_value(text) for text in row["values"]], 3000) == row["bucket_id"]


def test_the_bytes_hashed_are_the_recorded_bytes() -> None:
    """Where the recording gives the input of the hash, it is this one."""
    for row in VECTORS["vectors"]:
        if "hash_input_hex" in row:
            assert b"".join(map(hash_input, _key(row))).hex() == row["hash_input_hex"]


@given(some.binary(max_size=64))
def test_the_hash_is_murmur3(data: bytes) -> None:
    """An independent implementation of MurmurHash3 agrees on arbitrary input."""
    assert murmur3_32(data) == mmh3.hash(data, 13, signed=False)


@pytest.mark.parametrize(
    ("value", "becomes"),
    [
        (math.nan, None),
        (1.0, 1),
        (-0.0, 0),
        (1e300, 2**63 - 1),
        (-1e300, -(2**63)),
        (1e-17, 0),
        (1.5, 1.5),
        (math.inf, math.inf),
        (5e-324, 5e-324),
    ],
)
def test_a_bound_double_without_fraction_is_an_integer(value: float, becomes: object) -> None:
    """NaN is NULL; no fraction makes an integer, saturated to 64 bits; the rest stays a double."""
    result = double_parameter(value)
    assert result == becomes
    assert type(result) is type(becomes)

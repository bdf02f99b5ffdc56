"""The key functions that calls go through, in Python and in C: the same buckets as the plain way, for every value."""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from enum import IntEnum
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picopyn.dialects.picodata import bucket_hash
from picopyn.dialects.picodata.bucket_hash import PICODATA_KEY_HASH
from picopyn.dialects.picodata.quick_keys import KeyFunction
from tests.dialects import slow_hash
from tests.dialects.test_bucket_hash import RECORDED, read


class Word(str):
    """A text that is more than one."""


class Number(IntEnum):
    """An integer that is more than one."""

    ONE = 1


@pytest.fixture(scope="module", params=["quick_keys", "_quick_keys"])
def functions(request: pytest.FixtureRequest) -> ModuleType:
    """The functions in Python, and those in C, which must be there where they could be compiled."""
    try:
        return importlib.import_module(f"picopyn.dialects.picodata.{request.param}")
    except ImportError:
        if can_compile():
            pytest.fail("the functions in C could be compiled, but were not; `pip install -v .` says why")
        pytest.skip("there is no C compiler, or there are no headers of Python")


def can_compile() -> bool:
    """Whether the functions in C could be there: a compiler works, and finds Python's headers."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return False
    command = [compiler, "-I", sysconfig.get_path("include"), "-x", "c", "-c", "-o", os.devnull, "-"]
    return subprocess.run(command, input=b"#include <Python.h>\n", capture_output=True, timeout=60).returncode == 0


def plain(oid: int, position: int, count: int) -> KeyFunction:
    """A key by the encoder of its type."""
    encode = PICODATA_KEY_HASH.encoder(oid)

    def key(args: Sequence[Any]) -> int | None:
        encoded = encode(args[position]) if position < len(args) else None
        return None if encoded in (None, encode(None)) else PICODATA_KEY_HASH.bucket(encoded, count)

    return key


def keys(functions: ModuleType, position: int, count: int) -> list[tuple[KeyFunction, KeyFunction]]:
    """Both functions, each with the plain one for what it leaves to that."""
    both = (functions.int_key, plain(20, position, count)), (functions.text_key, plain(25, position, count))
    return [(make(position, count, otherwise), otherwise) for make, otherwise in both]


integers = st.integers() | st.integers(0, 64).flatmap(lambda bits: st.integers(-(2**bits) - 2, 2**bits + 2))
texts = st.text() | st.text(st.characters(codec=None, categories=["Cs", "Lu", "Lo"])) | st.builds(Word, st.text())
others = st.none() | st.booleans() | st.floats() | st.binary() | st.just(Number.ONE) | st.just(())


def test_integers_of_every_width_have_the_bucket_of_the_plain_way(functions: ModuleType) -> None:
    """On both sides of each power of two, where the bytes of an integer become longer."""
    (quick, otherwise), _ = keys(functions, 0, 2**31)
    for number in (sign * 2**bits + near for bits in range(71) for sign in (1, -1) for near in range(-3, 4)):
        assert quick((number,)) == otherwise((number,)), number


@given(
    before=st.integers(0, 3),
    value=integers | texts | others,
    count=st.integers(1, 2**31) | st.just(3000),
    as_list=st.booleans(),
)
def test_every_value_has_the_bucket_of_the_plain_way(
    functions: ModuleType, before: int, value: Any, count: int, as_list: bool
) -> None:
    """Whatever its type is, wherever it stands; and none where there is no such argument."""
    args: Any = (*("x" * before), value)
    args = list(args) if as_list else args
    for quick, otherwise in keys(functions, before, count):
        assert quick(args) == otherwise(args)
        assert quick(args[:-1]) is None


@pytest.mark.parametrize(("kind", "at"), [(int, 0), (str, 1)])
def test_recorded_keys_land_in_the_recorded_bucket(functions: ModuleType, kind: type, at: int) -> None:
    """Integers and texts that a real server stored, as far as they are keys by themselves."""
    compared = 0
    for vector in RECORDED["vectors"]:
        values = [read(value) for value in vector["values"]]
        if [type(value) for value in values] == [kind]:
            quick, _ = keys(functions, 0, vector.get("bucket_count", 3000))[at]
            assert quick(values) == quick(tuple(values)) == vector["bucket_id"]
            compared += 1
    assert compared > 20


def test_texts_of_every_length_are_hashed_to_their_end(functions: ModuleType) -> None:
    """Four bytes are taken at a time, and up to three are left."""
    (_, _), (text, _) = keys(functions, 0, 2**31)
    whole = "".join(map(chr, range(1, 128))) + "é€😀" * 20
    for size in range(len(whole)):
        assert text((whole[:size],)) == slow_hash.bucket(whole[:size].encode(), 2**31)


def test_what_is_raised_otherwise_comes_out(functions: ModuleType) -> None:
    """An error of the function for the rest is not swallowed."""

    def refuse(_args: Sequence[Any]) -> int | None:
        raise IndexError("not me")

    for make in (functions.int_key, functions.text_key):
        with pytest.raises(IndexError, match="not me"):
            make(0, 3000, refuse)((None,))


def test_what_cannot_be_sent_is_no_error(functions: ModuleType) -> None:
    """Half a surrogate pair, and an integer that is too large, have no bucket, whatever is asked otherwise."""
    for make, value in ((functions.text_key, "\ud800"), (functions.int_key, 2**80), (functions.int_key, -(2**80))):
        assert make(0, 3000, lambda _args: None)((value,)) is None


def test_nothing_is_kept_of_a_call(functions: ModuleType) -> None:
    """No reference to an argument or a result stays, whichever way it goes; and a function goes when it is dropped."""
    values = [12_345_678, 2**70, "a text", "half \ud800", b"neither", Number.ONE]
    rest = plain(20, 0, 3000)
    made = [make(0, 3000, rest) for make in (functions.int_key, functions.text_key)]
    before = [sys.getrefcount(value) for value in values]
    for _ in range(100):
        assert [None in [key((value,)) for value in values] for key in made] == [True, True]
    assert [sys.getrefcount(value) for value in values] == before
    held = sys.getrefcount(rest)
    made.clear()
    gc.collect()
    assert sys.getrefcount(rest) == held - 2


def test_the_functions_in_c_are_used_where_there_are_some() -> None:
    """And refuse to be made from what would have no bucket."""
    compiled = pytest.importorskip(
        "picopyn.dialects.picodata._quick_keys", reason="there is no C compiler, or there are no headers of Python"
    )
    assert (bucket_hash.int_key, bucket_hash.text_key) == (compiled.int_key, compiled.text_key)
    made = [PICODATA_KEY_HASH.fast_key(oid, 0, 3000, len) for oid in (20, 25, 1043, 2950)]
    assert [type(key) for key in made] == [type(len)] * 4
    assert [key is len for key in made] == [False, False, False, True]
    for wrong in ((-1, 3000, len), (0, 0, len), (0, -5, len), (0, 3000, None)):
        with pytest.raises(ValueError, match="position from 0"):
            compiled.int_key(*wrong)
    for wrong in ((2**80, 3000, len), (0, 2**80, len)):
        with pytest.raises(OverflowError):
            compiled.text_key(*wrong)
    with pytest.raises(TypeError):
        compiled.int_key(0)

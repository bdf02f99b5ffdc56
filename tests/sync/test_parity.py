"""The two facades have the same names, parameters, defaults and errors, and share decisions rather than lines."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from picopyn import asynchronous, sync
from picopyn.asynchronous.acquired import AcquiredConnection, Acquiring
from picopyn.asynchronous.transaction import PoolTransaction
from picopyn.sync import acquired

PACKAGE = Path(sync.__file__).parent.parent

PAIRS = [
    (asynchronous.Pool, sync.Pool),
    (Acquiring, acquired.Acquiring),
    (PoolTransaction, acquired.PoolTransaction),
]

#: How many statements on end count as the same.
RUN = 3

#: So many statements may be the same in the smallest module, too.
SOME = 5

#: What one facade has and the other has not → why.
ALLOWED = {
    "Acquiring.take": "there is nothing to await: who wants no `with` block says so",
}

#: How special methods of coroutines are called where nothing is awaited.
SPECIAL = {"__aenter__": "__enter__", "__aexit__": "__exit__"}


def public(cls: type) -> dict[str, Any]:
    """Names of a class that users use."""
    return {
        SPECIAL.get(name, name): member
        for name, member in inspect.getmembers(cls)
        if name in SPECIAL or not name.startswith("_") or name in ("__enter__", "__exit__")
    }


def shape(member: Any) -> list[tuple[str, Any, Any]]:
    """Parameters with kinds and defaults."""
    if not callable(member):
        return []
    parameters = inspect.signature(member).parameters.values()
    return [(parameter.name, parameter.kind, parameter.default) for parameter in parameters]


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda cls: cls.__name__)
def test_names_parameters_and_defaults_are_the_same(one: type, other: type) -> None:
    """What is only in one of them stands in the list above, with its reason."""
    mine, theirs = public(one), public(other)
    differences = {f"{one.__name__}.{name}" for name in mine.keys() ^ theirs.keys()}
    assert differences - ALLOWED.keys() == set()
    assert {name: shape(mine[name]) for name in mine.keys() & theirs.keys()} == {
        name: shape(theirs[name]) for name in mine.keys() & theirs.keys()
    }


def test_documented_errors_are_the_same() -> None:
    """What an asynchronous call says it raises, its twin raises too, whether it says so or points to it."""
    for name, member in public(asynchronous.Pool).items():
        said = _raised(member)
        twin = public(sync.Pool)[name]
        text = inspect.getdoc(twin) or ""
        refers = "asynchronous pool" in text or "as for `execute`" in text
        said = [error for error in said if f"{name}: {error}" not in ALLOWED]
        assert refers or said == _raised(twin), name


def _raised(member: Any) -> list[str]:
    text = (inspect.getdoc(member) or "").partition("Raises:")[2]
    return re.findall(r"^    (\w[\w.]*):", text, re.MULTILINE)


def test_a_held_connection_has_the_same_methods() -> None:
    """Whatever the guarded asynchronous connection has, the blocking one passes on, or has itself, in the same form."""
    blocking = {**public(sync.Connection), **public(acquired.AcquiredConnection)}
    own = public(AcquiredConnection)
    assert own.keys() - blocking.keys() == set()
    assert {name: shape(member) for name, member in own.items()} == {name: shape(blocking[name]) for name in own}


def test_the_facades_share_decisions_not_lines() -> None:
    """Statements, docstrings aside, that stand in both rooms, three or more on end: fewer than three in a hundred."""
    blocking, shared = _shared("asynchronous")
    assert sum(map(len, shared.values())) / sum(map(len, blocking.values())) < 0.03, shared
    # pages of the same are no file's most part, however small the file is
    assert {name for name, lines in shared.items() if len(lines) > max(SOME, len(blocking[name]) / 4)} == set()


def test_nothing_of_the_engine_is_repeated() -> None:
    """What it decides, it decides alone: not three statements on end stand here as they stand there."""
    _, shared = _shared("engine")
    assert shared == {}


def _shared(room: str) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The statements of each module of the facade for threads, and those of them that also stand in another room."""
    runs = {tuple(lines[at : at + RUN]) for lines in _statements(room).values() for at in range(len(lines) - RUN + 1)}
    blocking, shared = _statements("sync"), {}
    for name, lines in blocking.items():
        starts = [at for at in range(len(lines) - RUN + 1) if tuple(lines[at : at + RUN]) in runs]
        found = sorted({at + further for at in starts for further in range(RUN)})
        if found:
            shared[name] = [lines[at] for at in found]
    return blocking, shared


def _statements(room: str) -> dict[str, list[str]]:
    """The statements of each module, without imports, docstrings and the heads of functions and classes."""
    return {
        path.name: [
            ast.unparse(node).partition("\n")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.stmt) and not isinstance(node, _NO_STATEMENT) and not _is_text(node)
        ]
        for path in sorted((PACKAGE / room).rglob("*.py"))
    }


_NO_STATEMENT = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Pass)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)

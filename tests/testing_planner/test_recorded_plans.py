"""The planner names the buckets a real Picodata named, whatever tables, columns and literals are called: those of
26.1.6 in full, those of 25.6 and 26.2 where they differ.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from picopyn.testing.picodata.planner import Catalog, NotModelled, ServerError, Value, prepare
from picopyn.testing.picodata.planner.accent import ACCENTS
from picopyn.testing.picodata.planner.hash import bucket_of
from picopyn.testing.picodata.planner.lexer import Token, tokens_of
from picopyn.testing.picodata.planner.literals import PARSERS
from tests.testing_planner.recorded import bound, catalog_of, load

PLANS = load("picodata-plans.json")
STATEMENTS: list[dict[str, Any]] = PLANS["statements"]
CATALOG = catalog_of(PLANS["schema"])

#: Recorded statements the planner does not answer as recorded, with the reason; at most one in ten may be
#: here.
NOT_AS_RECORDED: dict[str, str] = {}

#: The same for the other versions.
NOT_AS_OTHERS: dict[str, dict[str, str]] = {
    "26.2": {
        "SELECT * FROM o JOIN o2 ON true WHERE o.id = 1 AND o2.oid = 1": "26.2 looks through a join without equation"
    },
}

#: Other names for everything the schema names; some need quotes, some are keywords elsewhere.
_RENAMED = {
    "o": "orders_2", "c": "Carts", "d": "amount", "u": "u u", "ts": "moments", "bo": "flags", "g": "glossary",
    "Q t": "plain", "dd": "доубле", "o2": "o", "id": "k1", "v": "value", "n": "Number", "a": "left_part",
    "b": "right-part", "k": "the key", "x": "y", "f": "f1", "w": "W", "oid": "order_id", "Id": "ID",
}  # fmt: skip


def _answer(sql: str, row: dict[str, Any], catalog: Catalog, values: list[Value] | None = None) -> dict[str, Any]:
    parameters = row.get("params", [])
    values = bound(parameters) if values is None else values
    try:
        statement = prepare(f"EXPLAIN {sql}", catalog, [p["oid"] for p in parameters])
        line = statement.explain_lines(values)[-1]
    except ServerError as error:
        return {"error": f"{error.sqlstate} {error.message}"}
    found: dict[str, Any] = {"buckets": line.removeprefix("buckets "), "tier": statement.tier}
    if parameters:
        found["parameter_oids"] = list(statement.parameter_oids)
    return found


def _expected(row: dict[str, Any], version: str = "26.1") -> dict[str, Any]:
    found = {name: row[name] for name in ("error", "buckets", "tier", "parameter_oids") if name in row}
    other = row.get(f"on_{version.replace('.', '_')}")
    if other is None:
        return found
    return {**found, "buckets": other} if other.startswith(("=", "<=")) else {"error": other}


@pytest.mark.parametrize("row", STATEMENTS, ids=lambda row: row["sql"])
def test_a_recorded_statement_gets_its_recorded_plan(row: dict[str, Any]) -> None:
    """Buckets, tier, parameter types or refusal of each of the 200 recorded statements."""
    if row["sql"] in NOT_AS_RECORDED:
        pytest.skip(NOT_AS_RECORDED[row["sql"]])
    assert _answer(row["sql"], row, CATALOG) == _expected(row)


@pytest.mark.parametrize("version", ["25.6", "26.2"])
def test_another_version_gives_its_own_recorded_plans(version: str) -> None:
    """Of the 200 recorded statements, 25.6 and 26.2 answer some otherwise; all answers of either are compared."""
    catalog = replace(CATALOG, accent=ACCENTS[version])
    different = {
        row["sql"]: (answer, _expected(row, version))
        for row in STATEMENTS
        if (answer := _answer(row["sql"], row, catalog)) != _expected(row, version)
    }
    assert different.keys() == NOT_AS_OTHERS.get(version, {}).keys(), different


def test_hardly_any_recorded_statement_is_left_out() -> None:
    """Nine of ten recorded statements must be answered as recorded."""
    assert len(NOT_AS_RECORDED) <= len(STATEMENTS) / 10


def _rewritten(sql: str, change: Any) -> str:
    parts, done = [], 0
    for token, after in zip(tokens := tokens_of(sql), [*tokens[1:], tokens[-1]], strict=True):
        parts.append(sql[done : token.position])
        raw = sql[token.position : after.position].rstrip()
        parts.append(change(token, raw))
        done = token.position + len(raw)
    return "".join(parts)


def _renamed(token: Token, raw: str) -> str:
    if token.kind in ("word", "quoted") and token.text in _RENAMED:
        return '"' + _RENAMED[token.text] + '"'
    return raw


@pytest.mark.parametrize("row", STATEMENTS, ids=lambda row: row["sql"])
def test_names_do_not_matter(row: dict[str, Any]) -> None:
    """With every table and column renamed, each statement has the same buckets."""
    catalog = catalog_of([_rewritten(text, _renamed) for text in PLANS["schema"]])
    answer = _answer(_rewritten(row["sql"], _renamed), row, catalog)
    expected = _expected(row)
    if "error" in expected:
        assert answer.get("error", "")[:40].split('"')[0] == expected["error"][:40].split('"')[0]
    else:
        assert answer == expected


def _other_value(value: Value) -> Value:
    """Another value of the same type; neighbours stay apart, equal values stay equal."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return f"{value}'é" if value else "other"
    if isinstance(value, int):
        return 7000 + 13 * (value % 10_000)
    return value


def _with_other_literals(token: Token, raw: str) -> str:
    if token.kind == "number" and raw.isdigit() and len(raw) < 10:
        return str(_other_value(int(raw)))
    if token.kind == "string" and PARSERS["uuid"](token.text) is None and PARSERS["datetime"](token.text) is None:
        if token.text.isdigit():
            return f"'{_other_value(int(token.text))}'"
        other = str(_other_value(token.text)).replace("'", "''")
        return f"'{other}'"
    return raw


def _candidates(row: dict[str, Any]) -> list[Value]:
    """Every value that stands in the text or is bound: what a key can be made of."""
    found: list[Value] = [*bound(row.get("params", [])), True, False]
    for token in tokens_of(row["sql"]):
        if token.kind == "number" and token.text.isdigit() and len(token.text) < 10:
            found.append(int(token.text))
        if token.kind == "string":
            found += [token.text, *([int(token.text)] if token.text.isdigit() else [])]
    return list({(type(value), value): value for value in found if value is not None}.values())


def _explained(row: dict[str, Any]) -> dict[int, tuple[Value, ...]] | None:
    """For each recorded bucket, the one key that hashes to it."""
    numbers = row["buckets"].rpartition("[")[2].rstrip("]")
    if "[" not in row["buckets"] or not numbers or "-" in numbers:
        return None
    keys: dict[int, set[tuple[Value, ...]]] = {int(number): set() for number in numbers.split(",")}
    for length in (1, 2):
        for key in product(_candidates(row), repeat=length):
            bucket = bucket_of(key, 3000)
            if bucket in keys:
                keys[bucket].add(key)
    if any(len(found) != 1 for found in keys.values()):
        return None
    return {bucket: next(iter(found)) for bucket, found in keys.items()}


_ANSWERED = [row for row in STATEMENTS if "buckets" in row and "OPTION" not in row["sql"] and "LIMIT" not in row["sql"]]
_KEYED = [row for row in _ANSWERED if row["buckets"][0] in "=<" and _explained(row)]


@pytest.mark.parametrize("row", _KEYED, ids=lambda row: row["sql"])
def test_other_literals_and_parameters_give_the_buckets_of_the_other_keys(row: dict[str, Any]) -> None:
    """With other values, the buckets are those of the keys in which the values were replaced."""
    explained = _explained(row)
    assert explained is not None
    expected = sorted({bucket_of([_other_value(v) for v in key], 3000) for key in explained.values()})
    values = [_other_value(value) for value in bound(row.get("params", []))]
    answer = _answer(_rewritten(row["sql"], _with_other_literals), row, CATALOG, values)
    sign = row["buckets"].split()[0]
    assert answer["buckets"] == f"{sign} [{','.join(map(str, expected))}]"


def test_most_keyed_plans_are_checked_with_other_values() -> None:
    """The check above covers the recorded keys of integers and texts."""
    assert len(_KEYED) >= 80


def test_what_is_not_modelled_is_not_answered() -> None:
    """A statement outside the model is refused by name, never answered by guess."""
    with pytest.raises(NotModelled, match="not modelled by the embedded cluster: UPDATE … FROM"):
        prepare("UPDATE o SET v = 'a' FROM ts WHERE id = 1", CATALOG)

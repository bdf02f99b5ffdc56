"""The key of a table, read from recorded answers of three versions of the server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from picopyn.dialects.base import TableKey
from picopyn.dialects.picodata import table_keys

CONVERSATIONS = json.loads(
    (Path(__file__).parents[1] / "recorded" / "picodata-conversations.json").read_text(encoding="utf-8")
)


def exchanges(node: Any) -> list[dict[str, Any]]:
    """Every recorded exchange."""
    if isinstance(node, dict):
        return [node] if "do" in node else [found for below in node.values() for found in exchanges(below)]
    return [found for below in node for found in exchanges(below)] if isinstance(node, list) else []


def answers(question: str) -> list[list[list[Any]]]:
    """The rows of every recorded answer to a question, whatever the version."""
    return [
        [message[1] for message in messages if message[0] == "D"]
        for exchange in exchanges(CONVERSATIONS)
        if exchange["do"] == question
        for key, messages in exchange.items()
        if key.startswith("answer") and isinstance(messages, list)
    ]


def test_the_catalogue_tells_columns_and_tier() -> None:
    """In the order of the key; the bucket's own column is none of it."""
    rows = answers("SELECT name, distribution, format FROM _pico_table WHERE name = 't2'")
    assert rows
    for answer in rows:
        assert table_keys.read_key(answer[0][1:]) == TableKey("default", (("b", 25), ("c", 20)))


def test_explain_names_the_columns_in_every_layout() -> None:
    """With quotes, and since 26.2 without."""
    found = answers("EXPLAIN SELECT * FROM t1")
    assert len(found) >= 2
    for rows in found:
        assert table_keys.read_columns(rows) == (("id", 20), ("name", 25))


@pytest.mark.parametrize(
    ("row", "key"),
    [
        (('{"Global":null}', "[]"), TableKey("", ())),
        (({"Global": None}, []), TableKey("", ())),
        (('{"ShardedByField":["f","default"]}', "[]"), None),
        (("no json", "[]"), None),
        ((None, None), None),
        (('{"ShardedImplicitly":[["a"],"murmur3","t"]}', '[{"name":"a","field_type":"map"}]'), None),
    ],
)
def test_what_is_not_understood_is_no_key(row: tuple[Any, Any], key: TableKey | None) -> None:
    """Then it is learned instead; a table on every node has a key without columns."""
    assert table_keys.read_key(row) == key


def test_names_are_quoted() -> None:
    """Whatever they contain."""
    assert table_keys.columns_question('a"b') == 'EXPLAIN SELECT * FROM "a""b"'
    assert table_keys.select_by("t", (("A", 20), ("b c", 25))) == 'SELECT 1 FROM "t" WHERE "A" = $1 AND "b c" = $2'
    assert table_keys.read_columns([]) == table_keys.read_columns([["nothing"], [None]]) == ()

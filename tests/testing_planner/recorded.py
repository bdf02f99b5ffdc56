"""The recorded files as Python values, and a catalog made by their own schema statements."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from picopyn.testing.picodata.planner import Catalog, Value, prepare
from picopyn.testing.picodata.planner import statement as st
from picopyn.testing.picodata.planner.literals import plain_decimal
from picopyn.testing.picodata.planner.values import decode_parameter

RECORDED = Path(__file__).parent.parent / "recorded"


def load(name: str) -> Any:
    """One recorded file."""
    return json.loads((RECORDED / name).read_text())


def catalog_of(schema: Sequence[str], catalog: Catalog | None = None) -> Catalog:
    """The catalog after these CREATE TABLE statements."""
    catalog = catalog or Catalog()
    for text in schema:
        ddl = prepare(text, catalog).ddl
        assert isinstance(ddl, st.CreateTable)
        catalog = catalog.with_table(ddl.table)
    return catalog


def bound(parameters: Sequence[dict[str, Any]]) -> list[Value]:
    """Recorded parameters (oid, text) as bound values."""
    return [
        decode_parameter(p["oid"], 0, None if p["text"] is None else p["text"].encode(), number)
        for number, p in enumerate(parameters, 1)
    ]


def vector_value(text: str) -> Value:
    """One value of `bucket-vectors.json`: `null` or `kind:literal`."""
    if text == "null":
        return None
    kind, _, literal = text.partition(":")
    if kind == "bool":
        return literal == "true"
    if kind == "decimal":
        return plain_decimal(Decimal(literal))
    makers: dict[str, Any] = {"int": int, "double": float, "text": str, "uuid": UUID}
    return datetime.fromisoformat(literal) if kind == "datetime" else makers[kind](literal)

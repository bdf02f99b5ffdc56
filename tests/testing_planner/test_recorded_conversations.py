"""What the planner says at Parse and Describe equals what a real Picodata said: types, columns, tags, notices,
refusals, plans; 26.1.6 in full, 25.6 and 26.2 where they differ.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from picopyn.testing.picodata.planner import Catalog, ServerError, Statement, prepare
from picopyn.testing.picodata.planner import statement as st
from picopyn.testing.picodata.planner.accent import ACCENTS
from picopyn.testing.picodata.planner.values import decode_parameter
from tests.testing_planner.recorded import load

_PLACE = "parsing error: <position and expectation>"
_SECTIONS = ("setup", "simple", "extended+metadata", "extended binary", "bare user")
_VERSIONS = ("25.6", "26.1", "26.2")
_ROWS: list[dict[str, Any]] = [
    row
    for row in load("picodata-conversations.json")["conversations"]
    if row["section"].startswith(_SECTIONS) and row["do"] != "hand-shake"
]
#: Refusals that come later than planning: from rows, instances, users or Bind.
_LATER = re.compile(
    r"Duplicate key|FieldType|AccessDenied|division by zero|_pico_bucket: tier|Error on replicaset|"
    r"already exists|does not exist|too short|neither role|bind message|not a valid|plan tree top is None|"
    r"storage schema version"
)


def _applied(catalog: Catalog, statement: Statement) -> Catalog:
    ddl = statement.ddl
    if isinstance(ddl, st.CreateTable) and ddl.table.name not in catalog.tables:
        return catalog.with_table(ddl.table)
    if isinstance(ddl, st.DropTable):
        return catalog.without_table(ddl.name)
    if isinstance(ddl, st.AddColumn):
        table = catalog.tables[ddl.table]
        return catalog.with_table(replace(table, columns=(*table.columns, ddl.column)))
    return catalog


def _rows(version: str) -> list[dict[str, Any]]:
    """What a version answered; only what differs from 26.1 counts again."""
    other = f"answer_{version.replace('.', '_')}"
    return [
        {**row, "answer": row.get(other, row["answer"]), "judged": other in row or version == "26.1"} for row in _ROWS
    ]


def _with_catalogs(version: str) -> list[tuple[dict[str, Any], Catalog]]:
    catalog, found = Catalog(accent=ACCENTS[version]), []
    for row in _rows(version):
        found.append((row, catalog))
        if all(answer[0] != "E" for answer in row["answer"]):
            catalog = _applied(catalog, prepare(row["do"], catalog, row.get("oids", ())))
    return [(row, catalog) for row, catalog in found if row["judged"]]


def _prepared_or_refused(row: dict[str, Any], catalog: Catalog) -> Statement | ServerError:
    try:
        return prepare(row["do"], catalog, row.get("oids", ()))
    except ServerError as refused:
        return refused


def _said(row: dict[str, Any], letter: str) -> Any:
    return next((answer[1] for answer in row["answer"] if answer[0] == letter and len(answer) > 1), None)


_BY_VERSION = [(version, *case) for version in _VERSIONS for case in _with_catalogs(version)]
_CASES = [(row, catalog) for _, row, catalog in _BY_VERSION]
_IDS = [f"{version} {number} {row['do']}" for number, (version, row, _) in enumerate(_BY_VERSION)]


@pytest.mark.parametrize(("row", "catalog"), _CASES, ids=_IDS)
def test_a_recorded_text_is_prepared_as_recorded(row: dict[str, Any], catalog: Catalog) -> None:
    """Each recorded text: refused with the recorded words, or described as recorded."""
    error = _said(row, "E")
    statement = _prepared_or_refused(row, catalog)
    if isinstance(statement, ServerError):
        text = re.sub(r"parsing error:.*", _PLACE, statement.message, flags=re.DOTALL)
        assert (statement.sqlstate, text) == (error["C"], error["M"])
        return
    if error is not None:
        assert _LATER.search(error["M"])
    _check_description(row, statement)
    if statement.kind == "explain" and error is None:
        _check_plan(row, statement)


def _check_description(row: dict[str, Any], statement: Statement) -> None:
    columns, types, tag, notice = (_said(row, letter) for letter in "TtCN")
    if columns is not None:
        assert [list(column) for column in statement.columns or ()] == columns
    elif "n" in [answer[0] for answer in row["answer"]]:
        assert statement.columns is None
    if types is not None:
        assert list(statement.parameter_oids) == types
    if tag is not None:
        assert tag == statement.tag or re.fullmatch(re.escape(statement.tag) + r" \d+", tag)
    if notice is not None:
        said = json.loads(notice["M"])
        assert (statement.tier, [list(pair) for pair in statement.dk_meta]) == (said["tier"], said["dk_meta"])


def _check_plan(row: dict[str, Any], statement: Statement) -> None:
    """Not only the buckets: the common forms are printed line by line as recorded."""
    texts = zip(statement.parameter_oids, row.get("params", []), strict=True)
    values = [decode_parameter(oid, 0, text.encode(), number) for number, (oid, text) in enumerate(texts, 1)]
    assert statement.explain_lines(values) == [answer[1][0] for answer in row["answer"] if answer[0] == "D"]

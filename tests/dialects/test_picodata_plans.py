"""Plans as objects, in the layouts of 25.6, 26.1 and 26.2: everything recorded, and what nobody has seen yet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picopyn.dialects.picodata import PicodataDialect
from picopyn.query_plan import QueryPlan

RECORDED = Path(__file__).parents[1] / "recorded"
CONVERSATIONS = json.loads((RECORDED / "picodata-conversations.json").read_text())["conversations"]
STATEMENTS = json.loads((RECORDED / "picodata-plans.json").read_text())["statements"]
RULE = "─" * 70

#: (version, text, rows) of every recorded EXPLAIN that was answered.
EXPLAINS: list[tuple[str, str, list[list[str]]]] = [
    (version, row["do"], [answer[1] for answer in row[name] if answer[0] == "D"])
    for version, name in (("26.1", "answer"), ("25.6", "answer_25_6"), ("26.2", "answer_26_2"))
    for row in CONVERSATIONS
    if str(row["do"]).startswith("EXPLAIN") and any(answer[0] == "D" for answer in row.get(name, ()))
]


def read(*lines: str) -> QueryPlan:
    """A plan of these rows."""
    return PicodataDialect().read_plan([(line,) for line in lines])


def boxed(*plan: str, buckets: str = "buckets = any") -> tuple[str, ...]:
    """The same in the layout of 26.2."""
    heads = [(RULE, f" # {name}".ljust(70), RULE, "") for name in ("Logical plan", "Buckets")]
    return (*heads[0], *plan, "", *heads[1], buckets)


@pytest.mark.parametrize(("version", "text", "rows"), EXPLAINS, ids=[f"{v} {t}" for v, t, _ in EXPLAINS])
def test_every_recorded_plan_is_understood_line_by_line(version: str, text: str, rows: list[list[str]]) -> None:
    """One tree, no unknown step, each line of the tree once, the buckets; whatever the version."""
    plan = PicodataDialect().read_plan(rows)
    assert plan.bucket_scope is not None
    assert plan.find("unknown") == ()
    assert plan.sections == {}
    assert plan.text == "\n".join(row[0] for row in rows)
    if "(BUCKETS)" in text:
        assert plan.roots == ()
        return
    assert len(plan.roots) == 1
    steps = [node.text for node in plan.walk()]
    shown = [row[0].strip() for row in rows]
    assert steps == [line for line in shown if line in steps]
    assert plan.options == ({} if version == "26.2" else {"sql_vdbe_opcode_max": "45000", "sql_motion_row_max": "5000"})


def test_a_plan_reads_the_same_in_both_layouts() -> None:
    """An UPDATE as 26.1 and 26.2 print it: kinds, tables, motions."""
    older = next(rows for version, text, rows in EXPLAINS if version == "26.1" and "UPDATE" in text)
    newer = next(rows for version, text, rows in EXPLAINS if version == "26.2" and "UPDATE" in text)
    for rows in (older, newer):
        plan = PicodataDialect().read_plan(rows)
        assert [node.kind for node in plan.walk() if node.kind != "set"] == [
            "update", "motion", "projection", "selection", "scan",
        ]  # fmt: skip
        assert plan.tables == ("t1",)
        assert plan.find("motion")[0].attributes == {"policy": "local", "program": "ReshardIfNeeded"}
        assert (plan.bucket_scope, plan.bucket_ranges, plan.bucket_count) == ("exact", ((219, 219),), 1)


@pytest.mark.parametrize("version", ["buckets", "on_25_6", "on_26_2"])
def test_the_buckets_of_every_recorded_statement_are_read(version: str) -> None:
    """Exactly these, at most these, any, unknown, none; in either layout."""
    for row in STATEMENTS:
        line = row.get(version, row.get("buckets"))
        if line is None or not line.startswith(("=", "<=")):
            continue
        tree = ("projection (1::int -> col_1)",)
        rows = boxed(*tree, buckets=f"buckets {line}") if version == "on_26_2" else (*tree, f"buckets {line}")
        plan = read(*rows)
        sign, _, what = line.partition(" ")
        if what in ("any", "unknown"):
            assert (plan.bucket_scope, plan.bucket_ranges) == (what, ())
            continue
        assert plan.bucket_scope == ("exact" if sign == "=" else "at_most")
        numbers = [n for item in what.strip("[]").split(",") if item for n in item.split("-")]
        assert sorted({str(n) for pair in plan.bucket_ranges for n in pair}) == sorted(set(numbers))


def test_motions_subqueries_and_joins_are_read() -> None:
    """Policies with brackets, a CTE, a query inside a condition, a left join, quoted names."""
    plan = read(
        'projection ("a"."id"::int -> "id")',
        '    selection "a"."id"::int in ROW($0)',
        '        left join on "a"."id"::int = "b"."id"::int',
        '            scan "Q ""t" -> "a"',
        '            motion [policy: segment([ref("x")]), program: ReshardIfNeeded]',
        "                scan cte b($1)",
        "subquery $0:",
        "motion [policy: full, program: ReshardIfNeeded]",
        "    scan",
        '        projection ("g"."id"::int -> "id")',
        '            scan "g"',
        "subquery $1:",
        'scan "c"',
        "execution options:",
        "    sql_motion_row_max = 7",
        "buckets <= [1-3000]",
    )
    assert len(plan.roots) == 1
    assert plan.tables == ('Q "t', "g", "c")
    assert [node.attributes["policy"] for node in plan.find("motion")] == ['segment([ref("x")])', "full"]
    assert plan.find("scan cte")[0].attributes == {"alias": "b", "subquery": "$1"}
    assert list(plan.subqueries) == ["$0", "$1"]
    assert plan.roots[0].children[0].children[0].kind == "left join"
    assert plan.options == {"sql_motion_row_max": "7"}
    assert (plan.bucket_scope, plan.bucket_ranges) == ("at_most", ((1, 3000),))


def test_what_is_not_known_is_kept_as_text() -> None:
    """A step, a part and an option that no version has had yet."""
    older = read("teleport (fast)", '    scan "t"', "execution options:", "    an odd line", "buckets = [1]")
    assert [(node.kind, node.text) for node in older.walk()] == [("unknown", "teleport (fast)"), ("scan", 'scan "t"')]
    assert older.sections == {"execution options:": "    an odd line"}
    assert str(older.roots[0]) == 'teleport (fast)\n  scan "t"'
    newer = read(RULE, " # Weather", RULE, "", "sunny", *boxed("scan t"))
    assert newer.sections["Weather"] == "sunny"
    assert newer.bucket_scope == "any"
    nothing = read()
    assert (nothing.roots, nothing.bucket_scope, nothing.text) == ((), None, "")
    assert read("buckets of rain").bucket_scope is None


def test_the_users_own_text_is_not_taken_for_the_servers() -> None:
    """A literal with line breaks may look like any line of a plan; the buckets are still the server's."""
    bait = "'\nexecution options:\n    x = 1\nbuckets = [7]'::string"
    plan = read(f"selection {bait}", '    scan "t"', "execution options:", "    y = 2", "buckets = [9]")
    assert (plan.bucket_ranges, plan.options) == (((9, 9),), {"y": "2"})


def test_very_deep_plans_are_read_too() -> None:
    """Nobody plans that deep, but a literal may look like it."""
    plan = read(*(" " * depth + "scan" for depth in range(3000)), "buckets = any")
    assert len(plan.find("scan")) == 3000


@given(st.lists(st.text(max_size=40), max_size=12), st.booleans())
def test_any_text_can_be_read(lines: list[str], in_boxes: bool) -> None:
    """Whatever the server writes: no error, and nothing is lost from `text`."""
    plan = read(*(boxed(*lines) if in_boxes else lines))
    assert all(line in plan.text for line in lines)
    assert str(plan) == plan.text
    list(plan.walk())

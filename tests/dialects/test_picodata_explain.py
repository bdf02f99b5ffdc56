"""The EXPLAIN reader on every recorded EXPLAIN, in all three layouts, and on text that imitates an answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picopyn.dialects.base import BucketAnswer, BucketScope
from picopyn.dialects.picodata import PicodataDialect
from picopyn.dialects.picodata.explain import read_buckets

RECORDED = Path(__file__).parents[1] / "recorded"
RULE = "─" * 70
SIGNS = {
    BucketScope.EXACT: "= [{}]",
    BucketScope.AT_MOST: "<= [{}]",
    BucketScope.ANY: "= any",
    BucketScope.UNKNOWN: "= unknown",
}


def written(answer: BucketAnswer) -> str:
    """The answer as the server writes it."""
    ranges = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in answer.ranges)
    return "buckets " + SIGNS[answer.scope].format(ranges)


def old_layout(plan: list[str], buckets: str) -> list[list[str]]:
    """An EXPLAIN of 25.6 and 26.1."""
    options = ["execution options:", "    sql_vdbe_opcode_max = 45000", "    sql_motion_row_max = 5000"]
    return [[line] for line in (*plan, *options, buckets)]


def new_layout(plan: list[str], buckets: str) -> list[list[str]]:
    """An EXPLAIN of 26.2."""
    head = [RULE, " # Logical plan" + " " * 55, RULE, ""]
    tail = ["", RULE, " # Buckets" + " " * 60, RULE, "", buckets]
    return [[line] for line in (*head, *plan, *tail)]


def recorded_explains() -> Iterator[tuple[str, list[list[Any]]]]:
    """(statement and version, rows) of every recorded EXPLAIN that was answered."""
    for exchange in json.loads((RECORDED / "picodata-conversations.json").read_text())["conversations"]:
        for version in ("answer", "answer_25_6", "answer_26_2"):
            answer = exchange.get(version, [])
            tags = [m[1] for m in answer if isinstance(m, list) and m[0] == "C"]
            if any(tag.startswith("EXPLAIN") for tag in tags):
                yield f"{exchange['do']} {version}", [m[1] for m in answer if m[0] == "D"]


def recorded_buckets() -> list[str]:
    """The distinct texts behind the word "buckets" in the recorded plans."""
    statements = json.loads((RECORDED / "picodata-plans.json").read_text())["statements"]
    texts = {s[k] for s in statements for k in ("buckets", "on_25_6", "on_26_2") if k in s}
    return sorted(text for text in texts if text.startswith(("=", "<=")))


@pytest.mark.parametrize(("name", "rows"), list(recorded_explains()))
def test_recorded_explains_are_read(name: str, rows: list[list[Any]]) -> None:
    """Every EXPLAIN that was recorded is read, and says what its own line of buckets says."""
    said = PicodataDialect().read_bucket_answer(rows)
    assert said is not None
    assert written(said) == next(row[0] for row in reversed(rows) if row[0].startswith("buckets"))


def test_there_are_recorded_explains_of_every_version() -> None:
    """The recording was found, and holds all three layouts."""
    names = [name for name, _ in recorded_explains()]
    assert len(names) > 30
    assert {name.rsplit(" ", 1)[1] for name in names} == {"answer", "answer_25_6", "answer_26_2"}


@pytest.mark.parametrize("text", recorded_buckets())
@pytest.mark.parametrize("layout", [old_layout, new_layout, lambda plan, buckets: [[buckets]]])
def test_recorded_bucket_texts_are_read(text: str, layout: Any) -> None:
    """Whatever a server said about buckets is understood in each layout, `EXPLAIN (BUCKETS)` included."""
    said = read_buckets(layout(['scan "t"'], f"buckets {text}"))
    assert said is not None
    assert written(said) == f"buckets {text}"


@pytest.mark.parametrize(
    ("text", "scope", "ranges"),
    [
        ("= [1934]", BucketScope.EXACT, ((1934, 1934),)),
        ("= [1410,1934,1958]", BucketScope.EXACT, ((1410, 1410), (1934, 1934), (1958, 1958))),
        ("= [1-3000]", BucketScope.EXACT, ((1, 3000),)),
        ("<= [1-5,9]", BucketScope.AT_MOST, ((1, 5), (9, 9))),
        ("= []", BucketScope.EXACT, ()),
        ("= any", BucketScope.ANY, ()),
        ("= unknown", BucketScope.UNKNOWN, ()),
    ],
)
def test_what_the_texts_mean(text: str, scope: BucketScope, ranges: tuple[tuple[int, int], ...]) -> None:
    """`=` names exactly these buckets, `<=` at most these; ranges are inclusive."""
    assert read_buckets([[f"buckets {text}"]]) == BucketAnswer(scope, ranges)


@pytest.mark.parametrize(
    "text",
    [
        "= [0]",
        "= [5,4]",
        "= [5,5]",
        "= [9-3]",
        "= [1-3,2]",
        "= [a]",
        "= [1,]",
        "= [",
        "= none",
        "> [1]",
        "= [1] and more",
        "",
    ],
)
def test_what_makes_no_sense_is_not_read(text: str) -> None:
    """A line that is no list of buckets gives no answer rather than a wrong one."""
    assert read_buckets([[f"buckets {text}"]]) is None


@pytest.mark.parametrize("rows", [[], [[]], [[None]], [[""]], [["scan t"]], [[7]], [[RULE]], [[RULE], ["x"]]])
def test_answers_without_the_line_are_not_read(rows: list[list[Any]]) -> None:
    """An EXPLAIN without a line of buckets gives no answer."""
    assert read_buckets(rows) is None


fakes = st.sampled_from(
    ["buckets = [5]", "buckets = any", RULE, " # Buckets", "# Buckets   ", "", "buckets <= [1-3000]"]
)
plans = st.lists(fakes | st.text(max_size=12), max_size=12)
answers = st.sampled_from(
    [
        BucketAnswer(BucketScope.EXACT, ((1934, 1934),)),
        BucketAnswer(BucketScope.AT_MOST, ((1, 3000),)),
        BucketAnswer(BucketScope.UNKNOWN),
    ]
)


@given(plans, answers, st.booleans())
def test_a_literal_that_imitates_the_answer_is_not_taken_for_it(
    literal: list[str], answer: BucketAnswer, one_row: bool
) -> None:
    """Plan lines show literals, line breaks included; a copy of an answer inside one changes nothing."""
    plan = ["projection ('a", *literal, "b'::string -> col_1)"]
    if one_row:
        plan = ["\n".join(plan)]
    assert read_buckets(old_layout(plan, written(answer))) == answer
    assert read_buckets(new_layout(plan, written(answer))) == answer


def test_a_literal_alone_is_no_answer() -> None:
    """Where the server named no buckets, a literal that does is not believed."""
    plan = [["projection ('"], ["buckets = [5]"], ["'::string -> col_1)"], ["execution options:"]]
    assert read_buckets(plan) is None
    assert read_buckets([[RULE], [" # Logical plan"], [RULE], *plan]) is None


def test_the_question_is_the_explain_of_the_text() -> None:
    """The question has the same parameters as the statement."""
    assert PicodataDialect().bucket_question("SELECT $1") == "EXPLAIN SELECT $1"

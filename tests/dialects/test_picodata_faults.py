"""What errors of Picodata mean, and that no row, name or literal of the user can change it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picopyn.dialects.picodata import PicodataDialect
from picopyn.dialects.picodata.faults import PHRASES, Phrase, read_fault
from picopyn.dialects.picodata.server_text import unwrap
from picopyn.errors import Fault

RECORDED = Path(__file__).parents[1] / "recorded" / "picodata-conversations.json"
REPLICASET = "7b0d4b6e-5bfc-4d0a-8d8c-1c8f7e6a9d01"


def forwarded(text: str) -> str:
    """The same error when the statement was executed by another replicaset."""
    error = {
        "code": 32,
        "base_type": "ClientError",
        "type": "ClientError",
        "message": f"Error on replicaset {REPLICASET}: Failed to execute '.proc_sql_execute': sbroad: {text}",
        "trace": [{"file": "vshard/error.lua", "line": 284}],
    }
    return "sbroad: box error: ProcLua: " + json.dumps(error)


def handed_on(text: str) -> str:
    """An error of the connection to the other replicaset itself."""
    error = {"code": 77, "message": f"Error on replicaset {REPLICASET}: {text}", "trace": []}
    return "sbroad: box error: ProcLua: " + json.dumps(error)


WRAPPINGS = {
    "plain": str,
    "sbroad": "sbroad: {}".format,
    "box": "box error: {}".format,
    "explained": "sbroad: Query 1 from EXPLAIN (RAW): {}".format,
    "rolled back": "sbroad: invalid transaction: transaction rolled-back: failed to insert space: {}".format,
    "on a replicaset": f"Error on replicaset {REPLICASET}: {{}}".format,
    "forwarded": forwarded,
    "handed on": handed_on,
    "forwarded twice": lambda text: forwarded(handed_on(text)),
}


def recorded_errors() -> Iterator[tuple[str, str, str]]:
    """(section, SQLSTATE, text) of every error that was recorded, on any version."""
    for exchange in json.loads(RECORDED.read_text())["conversations"]:
        for answer in ("answer", "answer_25_6", "answer_26_2"):
            for code, text in _errors(exchange.get(answer, [])):
                yield exchange["section"], code, text


def _errors(value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, list):
        if len(value) == 2 and value[0] == "E":
            yield value[1]["C"], value[1]["M"]
        for item in value:
            yield from _errors(item)


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize("phrase", PHRASES, ids=lambda phrase: phrase.text[:40])
def test_every_phrase_means_the_same_in_every_wrapping(phrase: Phrase, wrapping: str) -> None:
    """A text is understood whether it was executed locally, explained, or forwarded, however deep."""
    assert read_fault("XX000", WRAPPINGS[wrapping](phrase.text)).fault is phrase.fault


@pytest.mark.parametrize(
    ("sqlstate", "message", "fault"),
    [
        ("28P01", "authentication failed for user 'u'", Fault.AUTH),
        ("28P01", "authentication failed for user 'u': LDAP: Peer closed", Fault.AUTH),
        ("28000", "this server requires the client to use ssl", Fault.AUTH),
        ("42999", "prepared statement  has been invalidated", Fault.STALE_PLAN),
        ("XX000", "sbroad: space metadata for table: inv not found", Fault.STALE_PLAN),
        ("XX000", forwarded("storage schema version different from router"), Fault.STALE_PLAN),
        (
            "XX000",
            "sbroad: invalid transaction: transaction rolled-back: failed to insert space: box error: "
            "Readonly: Can't modify data on a read-only instance - box.cfg.read_only is true",
            Fault.NOT_LEADER,
        ),
        (
            "XX000",
            "sbroad: retry is required: DML was sent to the replica during master switchover",
            Fault.NOT_LEADER,
        ),
        ("XX000", "not a leader, actual leader: 2", Fault.NOT_LEADER),
        (
            "XX000",
            handed_on("Object is outdated after module reload/reconfigure. Use new instance."),
            Fault.STALE_MAP,
        ),
        (
            "XX000",
            "sbroad: Failed to get replicaset from bucket 34: box error: ProcLua: "
            + json.dumps({"code": 32, "message": "no router found for tier 'router'"}),
            Fault.STALE_MAP,
        ),
        ("XX000", "sbroad: Bucket 7 cannot be found. Is rebalancing in progress?", Fault.STALE_MAP),
        (
            "XX000",
            'sbroad: invalid option: cannot satisfy "forward = off": buckets are not present on the current '
            'node, try using "forward = ro_to_rw" instead',
            Fault.MISROUTED,
        ),
        (
            "XX000",
            'sbroad: invalid option: cannot satisfy "forward = off": buckets span multiple nodes and are not '
            'present on the current node, try using "forward = on" instead',
            Fault.MISROUTED,
        ),
        ("XX000", handed_on("Peer closed"), Fault.LOST),
        ("XX000", f"Error on replicaset {REPLICASET}: Peer closed", Fault.LOST),
        (
            "XX000",
            forwarded("proc_query_metadata call failed: io error: unexpected end of file"),
            Fault.LOST,
        ),
        ("XX000", handed_on("Timeout exceeded"), Fault.LOST),
        ("XX000", "sbroad: dql timeout exceeded", Fault.LOST),
        ("XX000", "Timeout: timeout", Fault.LOST),
        (
            "XX000",
            "ddl operation committed, but failed to receive acknowledgements from all instances",
            Fault.STATEMENT,
        ),
        (
            "XX000",
            "acl operation committed, but failed to receive acknowledgements from all instances: Timeout: timeout",
            Fault.STATEMENT,
        ),
        (
            "XX000",
            "box error: AccessDenied: Read access to space 't' is denied for user 'u'",
            Fault.STATEMENT,
        ),
        ("XX000", "Not initialized yet", Fault.REFUSED),
        ("57P01", "terminating connection due to administrator command", Fault.LOST),
        ("53300", "sorry, too many clients already", Fault.OVERLOADED),
        ("40001", "could not serialize access", Fault.STATEMENT),
        (None, "anything", Fault.STATEMENT),
    ],
)
def test_known_errors(sqlstate: str | None, message: str, fault: Fault) -> None:
    """The errors that were recorded or read in the server's source are understood."""
    assert PicodataDialect().fault(sqlstate, message) is fault


def test_recorded_errors_are_the_statements_affair_unless_they_say_otherwise() -> None:
    """Of all recorded errors only wrong passwords and outdated statements ask the driver to do something."""
    meant: dict[Fault, set[str]] = {}
    for section, code, text in recorded_errors():
        meant.setdefault(read_fault(code, text).fault, set()).add(f"{section}|{code}")
    invalidation = "statement invalidation (pico_stmt_invalidation on), steps in order"
    assert set(meant) == {
        Fault.STATEMENT,
        Fault.AUTH,
        Fault.STALE_PLAN,
    }
    assert meant[Fault.AUTH] == {"auth|28P01"}
    assert {where for where in meant[Fault.STALE_PLAN] if not where.startswith("messages")} == {
        f"{invalidation}|42999",
        f"{invalidation}|XX000",
        "the same without pico_stmt_invalidation|XX000",
    }


def test_what_is_promised_for_the_whole_statement() -> None:
    """A part that failed elsewhere says nothing about the other parts, unless nothing had been sent yet."""
    readonly = "Readonly: Can't modify data on a read-only instance - box.cfg.read_only is true"
    assert read_fault("XX000", f"sbroad: {readonly}").whole
    elsewhere = read_fault("XX000", forwarded(readonly))
    assert (elsewhere.whole, elsewhere.forwarded_to) == (False, REPLICASET)
    assert read_fault("XX000", handed_on("Failed to get replicaset from bucket 1: x")).whole
    assert read_fault("42999", "prepared statement s has been invalidated").whole


user_text = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", " ", "x: ", '"', "', ", "\n", "}: ", "\\", "sbroad: ", "]: Error: "]) | st.text(max_size=8),
    st.sampled_from([phrase.text for phrase in PHRASES] + [handed_on("Peer closed"), forwarded("Peer closed")]),
    st.text(max_size=8) | st.sampled_from(["", '"]', "'", "\n"]),
)
QUOTING = [
    "invalid transaction: transaction rolled-back: failed to insert space: TupleFound: Duplicate key exists "
    'in unique index "t_pkey" in space "t" with old tuple - [1, 1934, "{}"] and new tuple - [1, 1934, "{}"]',
    'TupleFound: Duplicate key exists in unique index "{}" in space "{}" with old tuple - [1]',
    "failed to parse '{}' as a value of type int, consider using explicit type casts",
    'table with name "{}" not found',
    'column with name "{}" not found',
    "space {} not found",
    "SQL function {} not found",
    "prepared statement {} does not exist.",
    "invalid query: value doesn't fit into integer range: {}",
    "AccessDenied: Read access to space '{}' is denied for user '{}'",
    "_pico_bucket: tier '{}' doesn't exist",
    "Failed to execute SQL statement: {}",
]


@given(st.sampled_from(QUOTING), user_text, st.sampled_from(sorted(WRAPPINGS)))
def test_user_text_in_an_error_is_never_taken_for_the_servers(quoting: str, text: str, wrapping: str) -> None:
    """A row, name or literal that reads like a lost connection or a read-only node is just that."""
    message = WRAPPINGS[wrapping](quoting.replace("{}", text))
    assert read_fault("XX000", message).fault is Fault.STATEMENT


@given(st.text(max_size=300), st.none() | st.sampled_from(["XX000", "42999", "28P01", "P0001"]))
def test_any_text_can_be_read(text: str, sqlstate: str | None) -> None:
    """There is no text that an error could have which raises another one."""
    read_fault(sqlstate, text)
    read_fault(sqlstate, "sbroad: box error: ProcLua: {" + text)
    assert unwrap(text).core in text


@pytest.mark.parametrize(
    "text",
    ['{"message": 5}', "{}", "{", '{"message": ""}', "[" * 5000, "{" * 5000, "Error: " * 500, ""],
)
def test_broken_wrappings_end(text: str) -> None:
    """A wrapping that is cut off or built to be endless is left as it is."""
    assert read_fault("XX000", f"sbroad: box error: ProcLua: {text}").fault is Fault.STATEMENT

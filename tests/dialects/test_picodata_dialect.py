"""The dialect as a value: options, notices, the leader question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picopyn.dialects.base import Capability, Dialect, Purpose, StatementNotice
from picopyn.dialects.picodata import PicodataDialect
from picopyn.dialects.picodata.leader_question import LeaderAnswer, LeaderReply, classify, read_leader_reply

RECORDED = Path(__file__).parents[1] / "recorded" / "picodata-conversations.json"
LIMIT = "Reached a limit on max executed vdbe opcodes. Limit: 1"


def wrapped(text: str) -> str:
    """An error of the replicaset `rs-2`."""
    message = f"Error on replicaset rs-2: Failed to execute '.proc_sql_execute': sbroad: {text}"
    return "sbroad: box error: ProcLua: " + json.dumps({"code": 32, "message": message})


def test_it_is_a_dialect() -> None:
    """The value fits the protocol that the rooms above ask."""
    dialect: Dialect = PicodataDialect()
    assert (dialect.name, dialect.default_port) == ("picodata", 4327)
    assert dialect.capabilities == {
        Capability.SHARDED,
        Capability.FORWARDING_NEEDS_EVERY_LEADER,
        Capability.SELECTS_HAVE_NO_EFFECT,
        Capability.STRICT_CONNECTIONS,
    }


def test_it_knows_the_hash() -> None:
    """Keys are hashed as Picodata does."""
    pytest.importorskip("picopyn.dialects.picodata.bucket_hash")
    key_hash = PicodataDialect().key_hash
    assert key_hash.bucket(key_hash.encoder(20)(1) or b"", 3000) == 1934


@pytest.mark.parametrize(
    ("purpose", "options"),
    [
        (Purpose.PLAIN, {"pico_stmt_invalidation": "true"}),
        (Purpose.REPLICA_READ, {"options": "read_preference=any", "pico_stmt_invalidation": "true"}),
        (Purpose.METADATA, {"pico_query_metadata": "true", "pico_stmt_invalidation": "true"}),
        (Purpose.LEADER_QUESTION, {"options": "sql_vdbe_opcode_max=1"}),
        (Purpose.TOPOLOGY, {}),
        (Purpose.TOPOLOGY_NEWS, {"picodata_catalog_cdc": "1"}),
    ],
)
def test_startup_options(purpose: Purpose, options: dict[str, str]) -> None:
    """Each purpose has its options; none at all when start-up options are switched off."""
    assert dict(PicodataDialect().startup_options(purpose)) == options
    assert dict(PicodataDialect(startup=False).startup_options(purpose)) == {}


def test_user_connections_do_not_ask_for_notices() -> None:
    """Only the metadata connection pays for statement metadata."""
    asking = [p for p in Purpose if "pico_query_metadata" in PicodataDialect().startup_options(p)]
    assert asking == [Purpose.METADATA]


def recorded_notices() -> list[str]:
    """The text of every notice that was recorded."""
    exchanges = json.loads(RECORDED.read_text())["conversations"]
    answers = [m for e in exchanges for m in e["answer"] if isinstance(m, list) and m[0] == "N"]
    return [m[1]["M"] for m in answers if m[1]["M"].startswith("{")]


def test_recorded_notices_are_read() -> None:
    """Every notice that was recorded is read as it stands there."""
    assert len(recorded_notices()) > 40
    for text in recorded_notices():
        said = json.loads(text)
        meta = tuple((number, oid) for number, oid in said["dk_meta"])
        assert PicodataDialect().parse_notice(text) == StatementNotice(said["query"], said["tier"], meta)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a notice",
        "{}",
        "[]",
        '{"type":"PreparedStatementMetadata"}',
        '{"type":"Other","query":"q","tier":null,"dk_meta":[]}',
        '{"type":"PreparedStatementMetadata","query":"q","tier":3,"dk_meta":[]}',
        '{"type":"PreparedStatementMetadata","query":"q","tier":null,"dk_meta":[[0,20]]}',
        '{"type":"PreparedStatementMetadata","query":"q","tier":null,"dk_meta":[[1]]}',
        '{"type":"PreparedStatementMetadata","query":"q","tier":null,"dk_meta":["x"]}',
        '{"type":"PreparedStatementMetadata","query":"q","tier":null,"dk_meta":[]',
    ],
)
def test_other_notices_are_not_read(text: str) -> None:
    """A notice that is none, or that is broken, is no metadata and no error."""
    assert PicodataDialect().parse_notice(text) is None


def test_notices_of_newer_servers_may_say_more() -> None:
    """Unknown keys are left alone; a missing `dk_meta` means none."""
    text = '{"query":"q","type":"PreparedStatementMetadata","tier":"hot","columns":[1]}'
    assert PicodataDialect().parse_notice(text) == StatementNotice("q", "hot", ())


@given(st.text(max_size=80))
def test_any_notice_can_be_looked_at(text: str) -> None:
    """No text of a notice raises in the callback that receives it."""
    PicodataDialect().parse_notice(text)
    PicodataDialect().parse_notice("{" + text)


@pytest.mark.parametrize(
    ("message", "reply"),
    [
        (f"sbroad: {LIMIT}", LeaderReply(LeaderAnswer.LEADER)),
        (f"sbroad: Query 1 from EXPLAIN (RAW): {LIMIT}", LeaderReply(LeaderAnswer.LEADER)),
        (wrapped(LIMIT), LeaderReply(LeaderAnswer.NOT_LEADER, "rs-2")),
        (
            wrapped("storage schema version different from router"),
            LeaderReply(LeaderAnswer.NO_ANSWER, "rs-2"),
        ),
        (
            "box error: AccessDenied: Read access to space 't' is denied for user 'u'",
            LeaderReply(LeaderAnswer.NO_ANSWER),
        ),
        (f"sbroad: failed to parse '{LIMIT}' as a value", LeaderReply(LeaderAnswer.NO_ANSWER)),
        (
            f"sbroad: failed to parse 'Error on replicaset rs-2: {LIMIT}' as a value",
            LeaderReply(LeaderAnswer.NO_ANSWER),
        ),
        (None, LeaderReply(LeaderAnswer.NO_ANSWER)),
    ],
)
def test_leader_question(message: str | None, reply: LeaderReply) -> None:
    """A step executed here means leader, one executed elsewhere means not; nothing else is an answer."""
    assert read_leader_reply(message) == reply
    assert classify(None if message is None else RuntimeError(message)) is reply.answer


def test_recorded_answers_to_the_leader_question() -> None:
    """The recorded scan that ran into the limit had been handed on."""
    exchanges: list[dict[str, Any]] = json.loads(RECORDED.read_text())["conversations"]
    answers = [e["answer"][0][1]["M"] for e in exchanges if "VDBE_OPCODE_MAX = 1)" in str(e["do"])]
    assert [read_leader_reply(text).answer for text in answers] == [LeaderAnswer.NOT_LEADER]

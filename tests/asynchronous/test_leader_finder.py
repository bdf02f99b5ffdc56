"""Who leads a replicaset, found by asking: whom, for how long, and what counts."""

from __future__ import annotations

import asyncio

import pytest

from picopyn.asynchronous.leader_finder import LeaderFinder, LeaderMemory
from picopyn.testing.scripted_connection import Hang, ScriptedConnection
from picopyn.topology import EventInstance, Node
from tests.asynchronous.catalog import ServerError
from tests.asynchronous.jump_loop import jumping, settle

SQL = "SELECT * FROM t WHERE id = $1"
LIMIT = "Reached a limit on max executed vdbe opcodes. Limit: 1"
LOCAL = ServerError(f"sbroad: {LIMIT}")
FORWARDED = ServerError(
    'sbroad: box error: ProcLua: {"code":32,"base_type":"ClientError","type":"ClientError","message":"Error on '
    "replicaset 11111111-2222-3333-4444-555555555555: Failed to execute '.proc_sql_execute': sbroad: "
    f'{LIMIT}","trace":[]}}'
)
NODES = tuple(Node(f"i{n}", f"r1_{n}", f"10.0.0.{n}", 4327) for n in (1, 2, 3))


class Rig:
    """A finder over one scripted connection per node."""

    def __init__(self, **answers) -> None:
        self.connections = {
            node.uuid: ScriptedConnection().when(SQL, answers.get(node.uuid, FORWARDED)) for node in NODES
        }
        self.opened: list[str] = []
        self.question = (SQL, (42,))
        self.finder = LeaderFinder(self.connect, lambda replicaset: self.question)

    async def connect(self, node):
        """Open the connection of a node."""
        self.opened.append(node.uuid)
        await asyncio.sleep(0)
        connection = self.connections[node.uuid]
        if isinstance(connection, BaseException):
            raise connection
        return connection


def test_the_recorded_errors_are_what_the_dialect_reads():
    """The two texts of this file are the two answers there are."""
    from picopyn.dialects.picodata.leader_question import LeaderAnswer, read_leader_reply

    assert read_leader_reply(str(LOCAL)).answer is LeaderAnswer.LEADER
    assert read_leader_reply(str(FORWARDED)).answer is LeaderAnswer.NOT_LEADER


@jumping
async def test_the_instance_that_executed_the_question_itself_leads():
    """All instances are asked with the keyed SELECT and its arguments; connections are closed after the answer."""
    rig = Rig(i2=LOCAL)
    assert await rig.finder.find("r1", NODES) == "i2"
    assert sorted(rig.opened) == ["i1", "i2", "i3"]
    assert rig.connections["i2"].asked[0].args == (42,)
    assert all(connection.is_closed() for connection in rig.connections.values())


@jumping
async def test_nobody_leads_when_everybody_forwarded():
    """A switch under way, or a server that executes nothing locally."""
    assert await Rig().finder.find("r1", NODES) is None


@jumping
async def test_two_leaders_are_none():
    """An instance that was demoted may not know it yet: contradicting answers are no answer."""
    assert await Rig(i1=LOCAL, i3=LOCAL).finder.find("r1", NODES) is None


@jumping
async def test_a_statement_that_succeeds_or_fails_otherwise_tells_nothing():
    """Only the two recorded errors are answers."""
    rig = Rig(i1=[], i2=ServerError("box error: AccessDenied"), i3=LOCAL)
    assert await rig.finder.find("r1", NODES) == "i3"


@jumping
async def test_a_frozen_instance_does_not_delay_the_answer_of_another():
    """The leader's own answer is enough; nobody waits for the rest."""
    rig = Rig(i1=Hang(), i2=LOCAL)
    begun = asyncio.get_running_loop().time()
    assert await rig.finder.find("r1", NODES) == "i2"
    assert asyncio.get_running_loop().time() == begun
    assert rig.connections["i1"].is_closed()


@jumping
async def test_each_instance_has_one_second():
    """Silence is no answer, and costs a second in all, not a second each."""
    rig = Rig(i1=Hang(), i2=Hang(), i3=Hang())
    begun = asyncio.get_running_loop().time()
    assert await rig.finder.find("r1", NODES) is None
    assert asyncio.get_running_loop().time() - begun == pytest.approx(1.0)
    assert all(connection.is_closed() for connection in rig.connections.values())


@jumping
async def test_an_instance_that_cannot_be_reached_does_not_answer():
    """Refused connections and missing ones are no answers."""
    rig = Rig(i3=LOCAL)
    rig.connections["i1"] = OSError("refused")
    rig.connections["i2"] = None
    assert await rig.finder.find("r1", NODES) == "i3"


@jumping
async def test_without_a_statement_nobody_is_asked():
    """Until a keyed SELECT is learned there is nothing to ask with."""
    rig = Rig(i1=LOCAL)
    rig.question = None
    assert await rig.finder.find("r1", NODES) is None
    assert rig.opened == []


@jumping
async def test_never_more_than_one_question_per_replicaset_at_a_time():
    """A second caller shares the answer; another replicaset is asked beside it."""
    rig = Rig(i1=Hang(LOCAL))
    first = asyncio.create_task(rig.finder.find("r1", NODES))
    second = asyncio.create_task(rig.finder.find("r1", NODES))
    await settle()
    assert sorted(rig.opened) == ["i1", "i2", "i3"]
    rig.connections["i1"]._script["fetch", SQL][0].release()
    assert await first == await second == "i1"


@jumping
async def test_a_cancelled_caller_leaves_the_question_to_the_others():
    """The answer belongs to the replicaset."""
    hang = Hang(LOCAL)
    rig = Rig(i1=hang)
    first = asyncio.create_task(rig.finder.find("r1", NODES))
    second = asyncio.create_task(rig.finder.find("r1", NODES))
    await settle()
    first.cancel()
    await settle()
    hang.release()
    assert await second == "i1"


@jumping
async def test_close_ends_the_questions_under_way():
    """Whoever waits gets no answer; connections are dropped."""
    rig = Rig(i1=Hang(), i2=Hang(), i3=Hang())
    call = asyncio.create_task(rig.finder.find("r1", NODES))
    await settle()
    await rig.finder.close()
    assert await call is None
    assert all(connection.is_closed() for connection in rig.connections.values())


def _member(uuid, online=True, incarnation=1, replicaset="r1"):
    return EventInstance(
        uuid, uuid, replicaset, host="h", port=1, online=online, incarnation=incarnation, version="26.1.6"
    )


def test_a_restarted_leader_is_not_believed_any_more():
    """Its incarnation changed: it may have come back as a replica."""
    memory = LeaderMemory()
    memory.observe([_member("i1"), _member("i2")], 0.0)
    memory.answered("r1", "i1", 0.0)
    assert memory.observe([_member("i1"), _member("i2")], 1.0) == {}
    due = memory.observe([_member("i1", incarnation=2), _member("i2")], 2.0)
    assert [node.uuid for node in due["r1"]] == ["i1", "i2"]
    assert memory.leaders == {}


def test_a_change_beside_the_leader_only_makes_it_asked_about():
    """A replica that went does not unseat the leader while nobody says otherwise."""
    memory = LeaderMemory()
    memory.observe([_member("i1"), _member("i2")], 0.0)
    memory.answered("r1", "i1", 0.0)
    assert "r1" in memory.observe([_member("i1"), _member("i2", online=False)], 1.0)
    memory.answered("r1", None, 1.0)
    assert memory.leaders == {"r1": "i1"}


def test_replicasets_that_are_gone_are_forgotten():
    """The memory is as long as the list of replicasets."""
    memory = LeaderMemory()
    memory.observe([_member("i1"), _member("i2", replicaset="r2")], 0.0)
    memory.answered("r2", "i2", 0.0)
    memory.observe([_member("i1")], 1.0)
    assert memory.replicasets == ("r1",)
    assert memory.leaders == {}

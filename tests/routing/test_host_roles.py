"""Who leads a group of hosts, from what they say about themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picopyn.routing.host_facts import HostFacts
from picopyn.routing.host_roles import GROUP, Roles, assign, events, warning
from picopyn.topology import Topology
from tests.routing.hosts import host, primary, snapshot, standby, table

READ_ONLY = HostFacts(in_recovery=False, read_only=True, timeline=1, written=5)
MUTE = HostFacts()


@pytest.mark.parametrize(
    ("facts", "leader", "rivals"),
    [
        pytest.param({"a": primary(), "b": standby()}, "a", (), id="one primary"),
        pytest.param({"a": standby(), "b": standby()}, None, (), id="the primary is missing"),
        pytest.param({"a": READ_ONLY, "b": primary()}, "b", (), id="a primary that refuses writes is none"),
        pytest.param({"a": READ_ONLY, "b": standby()}, None, (), id="nobody takes writes"),
        pytest.param({"a": primary(1), "b": primary(2)}, "b", ("a",), id="the newest timeline wins"),
        pytest.param({"a": primary(3), "b": primary(2), "c": standby()}, "a", ("b",), id="wherever it stands"),
        pytest.param(
            {"a": primary(1, 5), "b": primary(1, 9), "c": standby()}, "b", ("a",), id="then the longest log wins"
        ),
        pytest.param({"a": primary(), "b": primary(), "c": standby()}, "a", ("b",), id="then the first that is named"),
        pytest.param(
            {"a": primary(None, 5), "b": primary(2, 1), "c": standby()}, "a", ("b",), id="an unknown timeline: no order"
        ),
        pytest.param({"a": MUTE, "b": standby()}, "a", (), id="a host that tells nothing may take writes"),
        pytest.param({}, None, (), id="nobody has answered"),
    ],
)
def test_who_leads(facts: dict[str, HostFacts], leader: str | None, rivals: tuple[str, ...]) -> None:
    """All of them answer."""
    roles = assign(facts, facts, Roles())
    assert (roles.leader, roles.rivals, roles.equals) == (leader, rivals, False)


def test_hosts_that_all_take_writes_are_equals_until_something_tells_them_apart() -> None:
    """A fixed list of servers has no primary; once there was a standby, two writable hosts are one too many."""
    both = {"a": primary(), "b": primary()}
    assert assign(both, both, Roles()).equals
    for telling in (standby(), READ_ONLY, primary(2)):
        differ = assign({"a": primary(), "b": telling}, "ab", Roles())
        assert differ.differ
        assert assign(both, both, differ).leader == differ.leader or telling == primary(2)
        assert not assign(both, both, differ).equals


def test_a_silent_primary_leads_until_somebody_newer_does() -> None:
    """Its silence alone moves nothing; the host that is promoted has a newer timeline, and no rival answers."""
    before = assign({"a": primary(1), "b": standby()}, "ab", Roles())
    silent = assign({"a": primary(1), "b": standby()}, "b", before)
    promoted = assign({"a": primary(1), "b": primary(2)}, "b", silent)
    back = assign({"a": primary(1), "b": primary(2)}, "ab", promoted)
    assert [roles.leader for roles in (before, silent, promoted, back)] == ["a", "a", "b", "b"]
    assert [roles.rivals for roles in (promoted, back)] == [(), ("a",)]


def test_a_leader_on_the_same_timeline_stays_the_leader() -> None:
    """A rival with a longer log does not take over from one that answers; from a silent one it does."""
    before = Roles("a", (), differ=True)
    facts = {"a": primary(1, 5), "b": primary(1, 9)}
    assert assign(facts, "ab", before).leader == "a"
    assert assign(facts, "b", before).leader == "b"


def test_two_primaries_are_told_in_one_sentence() -> None:
    """It names who is used, who is not, and what to do."""
    facts = {"a": primary(1), "b": primary(2)}
    hosts = {letter: host(letter) for letter in "ab"}
    text = warning(assign(facts, "ab", Roles()), hosts, facts)
    assert text is not None
    assert "b (timeline 2) is used as the primary" in text
    assert "nothing is written to a (timeline 1)" in text
    assert warning(assign(facts, "b", Roles()), hosts, facts) is None
    equals = {"a": primary(), "b": primary()}
    assert warning(assign(equals, "ab", Roles()), hosts, equals) is None


def test_the_topology_shows_one_replicaset_with_its_leader() -> None:
    """A host that has not answered is a node without a role."""
    shown = snapshot(table(a=primary(), b=standby(), c=None), "abc")
    assert [node.uuid for node in shown.nodes()] == ["a", "b", "c"]
    assert [node.uuid for node in shown.nodes(role="leader")] == ["a"]
    assert [node.uuid for node in shown.nodes(role="replica")] == ["b"]
    assert [node.current_state for node in shown.nodes()] == ["primary", "standby", "unknown"]


@pytest.mark.parametrize("facts", [{"a": primary(), "b": primary()}, {"a": None, "b": None}])
def test_equals_and_unknown_hosts_have_no_roles(facts: dict[str, HostFacts | None]) -> None:
    """Neither leaders nor replicas."""
    shown = snapshot(table(**facts), "ab")
    assert shown.nodes(role="leader") == shown.nodes(role="replica") == ()
    assert not shown.leader_known(GROUP)


def test_a_missing_primary_is_known_to_be_missing() -> None:
    """Calls wait for it, instead of being sent anywhere."""
    shown = snapshot(table(a=standby(), b=standby()), "ab")
    assert (shown.leader(GROUP), shown.leader_known(GROUP)) == (None, True)


FACTS = st.builds(
    HostFacts,
    in_recovery=st.sampled_from([None, True, False]),
    read_only=st.sampled_from([None, True, False]),
    timeline=st.sampled_from([None, 1, 2, 3]),
    written=st.sampled_from([None, 1, 2]),
)
GROUPS = st.dictionaries(st.sampled_from("abcde"), FACTS)


@given(st.lists(st.tuples(GROUPS, st.sets(st.sampled_from("abcde")))))
def test_laws_of_roles(history: list[tuple[dict[str, HostFacts], set[str]]]) -> None:
    """A leader takes writes, and is of the newest timeline of those that do; deciding again changes nothing."""
    roles = Roles()
    for facts, answering in history:
        roles = assign(facts, answering, roles)
        writable = {uuid: said for uuid, said in facts.items() if said.writable}
        assert (roles.leader is None) == (roles.equals or not writable)
        assert set(roles.rivals) <= (writable.keys() & answering) - {roles.leader}
        assert not (roles.equals and roles.differ)
        timelines = [said.timeline for said in writable.values()]
        if roles.leader is not None and None not in timelines:
            assert writable[roles.leader].timeline == max(timelines, key=lambda timeline: timeline or 0)
        assert assign(facts, answering, roles) == roles


@given(GROUPS)
def test_the_events_of_a_group_are_a_whole_batch(facts: dict[str, HostFacts]) -> None:
    """Applied twice they change nothing, and the snapshot's leader is the one that was decided."""
    roles = assign(facts, facts, Roles())
    topology = Topology()
    batch = events([host(letter) for letter in "abcde"], facts, roles)
    topology.apply(batch, reset=True)
    assert topology.apply(batch, reset=True).empty
    leader = topology.snapshot.leader(GROUP)
    assert (leader.uuid if leader else None) == roles.leader
    assert len(topology.snapshot.all_nodes()) == 5
    assert replace(roles) == roles

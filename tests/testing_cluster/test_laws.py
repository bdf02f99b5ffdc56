"""The decision table of the embedded cluster: where a statement executes and what it waits for."""

from dataclasses import replace

import pytest

from picopyn.testing.picodata.laws import Kind, Life, Need, Place, Scene, decide

MASTERS = {"default_1": "default_1_1", "default_2": "default_2_1"}
ALIVE = dict.fromkeys(["default_1_1", "default_1_2", "default_2_1", "default_2_2"], Life.ALIVE)


def scene(at: str, *, tier: str = "default", masters: dict[str, str] | None = None, **life: Life) -> Scene:
    """What the instance `at` sees, with these lives."""
    home = at.rpartition("_")[0]
    return Scene(at, home, tier, masters or MASTERS, {**ALIVE, **life})


def keyed(replicaset: str, *, reads: bool = False, preference: str = "leader") -> Need:
    """A keyed statement of one replicaset."""
    return Need(Kind.SHARDED, "default", frozenset({replicaset}), reads, preference)


SCAN = Need(Kind.SHARDED, "default", frozenset(MASTERS), reads=True)


def test_the_owners_leader_executes_at_once_with_another_leader_dead() -> None:
    """A keyed statement at its owner's leader waits for nobody."""
    verdict = decide(scene("default_1_1", default_2_1=Life.DEAD), keyed("default_1"))
    assert verdict.place is Place.OWNER
    assert not verdict.hangs


@pytest.mark.parametrize("at", ["default_1_2", "default_2_2"])
def test_anywhere_else_a_keyed_statement_waits_for_every_leader(at: str) -> None:
    """Also at a replica of its owner, and also when its own owner's leader lives."""
    verdict = decide(scene(at, default_2_1=Life.DEAD), keyed("default_1"))
    assert verdict.place is Place.FORWARDED
    assert verdict.waits_connected == {"default_2_1"}


@pytest.mark.parametrize("life", [Life.DEAD, Life.SILENT])
def test_a_statement_for_a_dead_leaders_bucket_hangs_everywhere(life: Life) -> None:
    """There is no one to execute it."""
    for at in ALIVE:
        if at != "default_2_1":
            assert decide(scene(at, default_2_1=life), keyed("default_2")).waits_connected == {"default_2_1"}


@pytest.mark.parametrize("preference", ["any", "replica"])
def test_a_replica_answers_reads_that_allow_it_with_its_leader_dead(preference: str) -> None:
    """A keyed SELECT at the owner's replica, on a connection with read_preference."""
    need = keyed("default_2", reads=True, preference=preference)
    verdict = decide(scene("default_2_2", default_2_1=Life.DEAD), need)
    assert verdict.place is Place.REPLICA
    assert not verdict.hangs


def test_read_preference_does_not_help_elsewhere_nor_for_writes() -> None:
    """Another leader forwards the read and hangs; a write is never executed at a replica."""
    dead = {"default_2_1": Life.DEAD}
    assert decide(scene("default_1_1", **dead), keyed("default_2", reads=True, preference="any")).hangs
    assert decide(scene("default_2_2", **dead), keyed("default_2", preference="any")).hangs


def test_the_leader_itself_executes_reads_that_allow_replicas() -> None:
    """`any` at the owner's leader is local."""
    verdict = decide(scene("default_1_1"), keyed("default_1", reads=True, preference="any"))
    assert verdict.place is Place.OWNER


def test_a_read_for_replicas_only_is_refused_at_the_leader() -> None:
    """Recorded on 26.1.6: READ_PREFERENCE = replica at the owner's leader is forwarded and refused."""
    verdict = decide(scene("default_1_1"), keyed("default_1", reads=True, preference="replica"))
    assert verdict.place is Place.FORWARDED
    assert verdict.no_replica


def test_statements_without_sharded_data_run_at_any_instance() -> None:
    """Constants, system tables, global tables."""
    dead = {"default_1_1": Life.DEAD, "default_2_1": Life.FROZEN}
    assert decide(scene("default_2_2", **dead), Need(Kind.ANYWHERE)).place is Place.HERE


def test_a_schema_change_waits_for_every_leader() -> None:
    """CREATE TABLE hangs while one is dead."""
    verdict = decide(scene("default_1_1", default_2_1=Life.DEAD), Need(Kind.SCHEMA))
    assert verdict.place is Place.EVERYWHERE
    assert verdict.waits_connected == {"default_2_1"}


def test_a_frozen_leader_only_stops_its_own_replicaset() -> None:
    """Nobody waits for connections: they live."""
    frozen = {"default_2_1": Life.FROZEN}
    assert not decide(scene("default_1_2", **frozen), keyed("default_1")).hangs
    for need in (keyed("default_2"), SCAN):
        verdict = decide(scene("default_1_1", **frozen), need)
        assert verdict.waits_answer == {"default_2_1"}
        assert not verdict.waits_connected


def test_a_scan_is_forwarded_even_at_a_leader() -> None:
    """More than one replicaset is concerned."""
    assert decide(scene("default_1_1"), SCAN).place is Place.FORWARDED


def test_a_scan_of_a_tier_with_one_replicaset_is_local_at_its_leader() -> None:
    """The one replicaset concerned is its own."""
    need = Need(Kind.SHARDED, "default", frozenset({"default_1"}), reads=True)
    verdict = decide(scene("default_1_1", masters={"default_1": "default_1_1"}), need)
    assert verdict.place is Place.OWNER


def test_an_instance_of_another_tier_never_executes_locally() -> None:
    """It forwards to the table's tier."""
    need = Need(Kind.SHARDED, "storage", frozenset({"storage_1"}))
    at = Scene("router_1_1", "router_1", "router", {"storage_1": "storage_1_1"}, {"storage_1_1": Life.ALIVE})
    assert decide(at, need).place is Place.FORWARDED


def test_an_older_server_executes_nothing_by_itself() -> None:
    """25.6: with one leader dead, not even the owner's leader answers."""
    at = replace(scene("default_1_1", default_2_1=Life.DEAD), executes_locally=False)
    verdict = decide(at, keyed("default_1"))
    assert (verdict.place, verdict.waits_connected) == (Place.FORWARDED, {"default_2_1"})


@pytest.mark.parametrize("at", ["default_1_2", "default_2_1", "default_2_2"])
@pytest.mark.parametrize("reads", [True, False])
def test_forward_off_refuses_at_once_anywhere_but_at_the_owners_leader(at: str, reads: bool) -> None:
    """Recorded on 26.2: refused instead of hanging, with a leader dead; also at a replica that may read."""
    need = replace(keyed("default_1", reads=reads, preference="any"), forward="off")
    verdict = decide(scene(at, default_2_1=Life.DEAD), need)
    assert (verdict.refused, verdict.hangs) == ("elsewhere", False)
    assert decide(scene("default_1_1", default_2_1=Life.DEAD), need).place is Place.OWNER


def test_forward_between_replicas_only_refuses_what_spans_replicasets() -> None:
    """Recorded on 26.2: `ro_to_rw` takes every one-bucket statement at every instance, and no scan."""
    assert decide(scene("default_1_1"), replace(SCAN, forward="ro_to_rw")).refused == "spread"
    assert decide(scene("default_1_1"), replace(SCAN, forward="off")).refused == "spread"
    for at in ("default_1_1", "default_1_2", "default_2_1"):
        assert not decide(scene(at), replace(keyed("default_1"), forward="ro_to_rw")).refused


def test_forward_does_not_concern_what_has_no_buckets() -> None:
    """Global tables, system tables and EXPLAIN work with any value."""
    assert not decide(scene("default_2_2"), Need(Kind.ANYWHERE, forward="off")).refused

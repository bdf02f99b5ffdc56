"""Plays the scenario files of `tests/spec/topology`: what is given, batches in phases, what holds after each.

A file is `{"title", "given": [events], "phases": [{"batch" | "events", "now", "raises", "expect"}]}`.
Events are JSON as `picopyn.topology.Event` decodes it; the keys of `expect` are questions of `QUESTIONS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from picopyn.topology import Event, EventBatch, Topology, TopologyDiff, TopologySnapshot

SCENARIOS = sorted((Path(__file__).parents[1] / "spec" / "topology").glob("*.json"))

#: What a scenario may ask: (snapshot, diff, argument of the question) → answer as JSON.
QUESTIONS: dict[str, Callable[[TopologySnapshot, TopologyDiff, Any], Any]] = {
    "owners": lambda s, d, asked: {
        tier: {bucket: s.owner(tier, int(bucket)) for bucket in buckets} for tier, buckets in asked.items()
    },
    "ranges": lambda s, d, asked: {tier: _ranges(s, tier) for tier in asked},
    "states": lambda s, d, asked: {
        tier: {b: shards.state(int(b)) for b in buckets}
        for tier, buckets in asked.items()
        if (shards := s.shard_map(tier)) is not None
    },
    "unowned": lambda s, d, asked: {t: m.unowned for t in asked if (m := s.shard_map(t)) is not None},
    "bucket_counts": lambda s, d, asked: {tier: s.bucket_count(tier) for tier in asked},
    "tiers": lambda s, d, asked: list(s.tiers),
    "leaders": lambda s, d, asked: {rs: n.uuid if (n := s.leader(rs)) is not None else None for rs in asked},
    "leader_known": lambda s, d, asked: {rs: s.leader_known(rs) for rs in asked},
    "nodes": lambda s, d, asked: {role: [node.uuid for node in s.nodes(role)] for role in asked},
    "addresses": lambda s, d, asked: {uuid: n.address for uuid in asked if (n := s.node(uuid)) is not None},
    "members": lambda s, d, asked: {rs: [node.uuid for node in s.members(rs)] for rs in asked},
    "version": lambda s, d, asked: s.version,
    "refreshed_at": lambda s, d, asked: s.refreshed_at,
    "changed": lambda s, d, asked: not d.empty,
    "diff_leaders": lambda s, d, asked: {rs: list(change) for rs, change in d.leaders.items()},
    "diff_buckets": lambda s, d, asked: dict(d.buckets_moved),
    "diff_nodes": lambda s, d, asked: {
        "added": [n.uuid for n in d.nodes_added],
        "removed": [n.uuid for n in d.nodes_removed],
        "moved": [new.uuid for _, new in d.nodes_moved],
        "changed": [new.uuid for _, new in d.nodes_changed],
    },
    "diff_tiers": lambda s, d, asked: [list(d.tiers_added), list(d.tiers_removed)],
}


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    """Every scenario file holds, phase by phase."""
    scenario = json.loads(path.read_text())
    topology = Topology()
    topology.apply(msgspec.convert(scenario.get("given", []), tuple[Event, ...]))
    for number, phase in enumerate(scenario["phases"], 1):
        _play(topology, phase, f"{scenario['title']}: phase {number}")


def test_there_are_scenarios() -> None:
    """The runner finds its files."""
    assert len(SCENARIOS) >= 10


def _play(topology: Topology, phase: dict[str, Any], where: str) -> None:
    before = topology.snapshot
    batch = (
        msgspec.convert(phase["batch"], EventBatch)
        if "batch" in phase
        else EventBatch(msgspec.convert(phase.get("events", []), tuple[Event, ...]))
    )
    diff = TopologyDiff()
    if "raises" in phase:
        with pytest.raises(ValueError, match=phase["raises"]):
            topology.apply(batch, now=phase.get("now", 0.0))
        assert topology.snapshot is before, where
    else:
        diff = topology.apply(batch, now=phase.get("now", 0.0))
    for question, expected in phase.get("expect", {}).items():
        assert QUESTIONS[question](topology.snapshot, diff, expected) == expected, f"{where}: {question}"


def _ranges(snapshot: TopologySnapshot, tier: str) -> list[list[Any]]:
    shards = snapshot.shard_map(tier)
    return [] if shards is None else [[r.first, r.last, r.replicaset_uuid] for r in shards.ranges()]

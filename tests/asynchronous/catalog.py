"""The catalogue of a small cluster as a scripted connection answers it, in the server's own shapes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import asyncpg

from picopyn.dialects.picodata import PicodataDialect, discovery
from picopyn.testing.scripted_connection import Answer, ScriptedConnection, table

#: The class asyncpg raises for XX000, the SQLSTATE Picodata uses for nearly everything.
ServerError = asyncpg.exceptions.InternalServerError


def denied(name: str) -> ServerError:
    """What the server says to a user without the privilege."""
    return ServerError(f"box error: AccessDenied: Read access to space '{name}' is denied for user 'u'")


@dataclass
class Cluster:
    """Two replicasets of two instances in one tier, unless a test changes it.

    Attributes:
        leaders: Name of the leader by replicaset name.
        states: State by instance name.
        tiers: Number of buckets by tier.
        ranges: (first, last, replicaset name) by tier.
        version: Version of every instance.
    """

    leaders: dict[str, str] = field(default_factory=lambda: {"r1": "r1_1", "r2": "r2_1"})
    states: dict[str, str] = field(default_factory=lambda: dict.fromkeys(("r1_1", "r1_2", "r2_1", "r2_2"), "Online"))
    tiers: dict[str, int] = field(default_factory=lambda: {"default": 3000})
    ranges: dict[str, list[tuple[int, int, str]]] = field(
        default_factory=lambda: {"default": [(1, 1500, "r1"), (1501, 3000, "r2")]}
    )
    version: str = "26.1.6"
    tier_of: dict[str, str] = field(default_factory=dict)

    def answer(self, connection: ScriptedConnection) -> ScriptedConnection:
        """Let a connection answer as this cluster is at the moment of each question."""
        connection.when(discovery.REPLICASETS, lambda: self.replicaset_rows())
        connection.when(discovery.INSTANCES, lambda: self.instance_rows())
        connection.when(discovery.TIERS, lambda: table("name bucket_count", *self.tiers.items()))
        connection.when(discovery.BUCKETS, self.bucket_rows)
        connection.when(PicodataDialect().probe_question, table("QUERY PLAN", ('projection (1::int -> "col_1")',)))
        return connection

    def replicaset_rows(self) -> Answer:
        """Rows of `_pico_replicaset`."""
        return table(
            "name uuid current_master_name target_master_name tier state current_config_version",
            *(
                (name, f"uuid-{name}", leader, leader, self.tier_of.get(name, "default"), "ready", 1)
                for name, leader in self.leaders.items()
            ),
        )

    def instance_rows(self) -> Answer:
        """Rows of the join of `_pico_instance` and `_pico_peer_address`."""
        return table(
            "name uuid replicaset_name replicaset_uuid tier current_state target_state failure_domain "
            "picodata_version address",
            *(self._instance(number, name, state) for number, (name, state) in enumerate(self.states.items())),
        )

    def bucket_rows(self, tier: str) -> Answer:
        """The one value of `_pico_bucket(tier)`, as text: JSON is not decoded by asyncpg."""
        if tier not in self.ranges:
            return ServerError(f"sbroad: _pico_bucket: tier '{tier}' doesn't exist")
        runs = [
            {
                "tier_name": tier,
                "bucket_id_start": first,
                "bucket_id_end": last,
                "state": "active",
                "current_replicaset_uuid": f"uuid-{owner}",
                "target_replicaset_uuid": f"uuid-{owner}",
            }
            for first, last, owner in self.ranges[tier]
        ]
        return table("col_1", (json.dumps(runs),))

    def _instance(self, number: int, name: str, state: str) -> tuple[object, ...]:
        replicaset = name.rsplit("_", 1)[0]
        told = json.dumps([state, 1])
        tier = self.tier_of.get(replicaset, "default")
        return (
            name,
            f"uuid-{name}",
            replicaset,
            f"uuid-{replicaset}",
            tier,
            told,
            told,
            "{}",
            self.version,
            f"10.0.0.{number + 1}:4327",
        )

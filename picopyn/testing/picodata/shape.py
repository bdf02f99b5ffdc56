"""What an embedded cluster is started with. Pure; travels to the server process as JSON.

Decides which settings there are, their defaults, and which are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from picopyn.testing.picodata.planner.accent import ACCENTS


@dataclass(frozen=True, slots=True)
class TierShape:
    """One tier at the start; `replication` instances per replicaset, `bucket_count` 0: no sharded data."""

    replicasets: int = 1
    replication: int = 1
    bucket_count: int = 3000


@dataclass(frozen=True, slots=True)
class UserShape:
    """One user at the start; `method` is `"md5"` or `"scram-sha256"`."""

    name: str
    password: str
    method: str = "md5"


@dataclass(frozen=True, slots=True)
class Shape:
    """A cluster's start. All times in seconds.

    Attributes:
        tiers: By name, in order; the first is the default tier.
        users: Besides `admin`.
        admin_password: Password of `admin`.
        version: Which Picodata's accent is spoken.
        listen: Addresses the instances listen on, taken in turn.
        auto_offline_timeout: From the loss of an instance until the cluster declares it Offline.
        offline_delay: From target state Offline to current state Offline and the new master.
        stop_delay: From an orderly stop to Offline and the new master.
        switch_delay: How long a planned switch refuses writes.
        restart_silence: How long a restarted instance accepts connections and says nothing.
        return_delay: From target state Online to current state Online when an instance comes back.
        join_delay: How long a new instance is Online and cannot route yet.
        view_lag: From the move of a bucket until `_pico_bucket()` shows it.
        statement_timeout: A statement's own limit.
        concurrency: Statements an instance runs at a time.
        double_form: `"older"` or `"26.1"`: how doubles in a key are hashed.
        topology_notices: Whether clients that ask for it (`picodata_catalog_cdc`) are told of changes of the topology,
            as Picodata plans it; no real server does that yet.
    """

    tiers: Mapping[str, TierShape] = field(default_factory=lambda: {"default": TierShape()})
    users: Sequence[UserShape] = ()
    admin_password: str = "T0psecret"
    version: str = "26.1"
    listen: Sequence[str] = ("127.0.0.1",)
    auto_offline_timeout: float = 30.0
    offline_delay: float = 0.1
    stop_delay: float = 0.2
    switch_delay: float = 0.1
    restart_silence: float = 0.2
    return_delay: float = 0.1
    join_delay: float = 0.0
    view_lag: float = 0.0
    statement_timeout: float = 360.0
    concurrency: int = 50
    double_form: str = "older"
    topology_notices: bool = False

    def problems(self) -> list[str]:
        """What is wrong with it, one sentence each."""
        found = []
        if self.version not in ACCENTS:
            found.append(f"version {self.version!r} is not modelled, only {', '.join(ACCENTS)}")
        if not self.tiers:
            found.append("at least one tier is needed")
        for name, tier in self.tiers.items():
            if tier.replicasets < 1 or tier.replication < 1 or tier.bucket_count < 0:
                found.append(f"tier {name!r}: at least one replicaset of one instance, bucket_count at least 0")
        for name in ("auto_offline_timeout", "statement_timeout", "concurrency"):
            if getattr(self, name) <= 0:
                found.append(f"{name} must be positive")
        if self.double_form not in ("older", "26.1"):
            found.append(f"double_form {self.double_form!r} is neither 'older' nor '26.1'")
        return found

    def to_json(self) -> str:
        """One line for the server process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Shape:
        """The reverse of `to_json`."""
        values: dict[str, Any] = json.loads(text)
        values["tiers"] = {name: TierShape(**tier) for name, tier in values["tiers"].items()}
        values["users"] = tuple(UserShape(**user) for user in values["users"])
        return cls(**values)

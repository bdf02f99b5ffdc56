"""The embedded cluster's state: who exists, who leads, who owns which bucket, which tables and users there
are.

Decides how a fresh cluster looks. Must not know sockets or statements' texts. The governor and the control
room change it; everything runs on one event loop, so a change is one uninterrupted step.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from picopyn.testing.picodata.laws import Life, Scene
from picopyn.testing.picodata.model import Address, BucketMap, Instance, Replicaset, Standing, Tier
from picopyn.testing.picodata.planner.accent import ACCENTS, Accent
from picopyn.testing.picodata.planner.catalog import Catalog
from picopyn.testing.picodata.shape import Shape
from picopyn.testing.picodata.users import ADMIN, Users
from picopyn.testing.picodata.views import Views
from picopyn.testing.picodata.watch import Watch


@dataclass
class Settings:
    """What ALTER SYSTEM changes."""

    auto_offline_timeout: float
    motion_row_max: int = 5000
    vdbe_opcode_max: int = 45000


@dataclass
class Cluster:
    """Everything the instances agree on. Owner: the server process.

    Attributes:
        table_ids: Number of each table, as `_pico_table.id`.
    """

    shape: Shape
    settings: Settings
    catalog: Catalog
    uuid: str = field(default_factory=lambda: str(uuid.uuid4()))
    instances: dict[str, Instance] = field(default_factory=dict)
    replicasets: dict[str, Replicaset] = field(default_factory=dict)
    tiers: dict[str, Tier] = field(default_factory=dict)
    buckets: dict[str, BucketMap] = field(default_factory=dict)
    users: Users = field(default_factory=Users)
    views: Views = field(default_factory=Views)
    watch: Watch = field(default_factory=Watch)
    table_ids: dict[str, int] = field(default_factory=dict)

    @property
    def accent(self) -> Accent:
        """The version whose answers are given."""
        return self.catalog.accent

    def members(self, replicaset: str) -> list[Instance]:
        """Instances of a replicaset that are not expelled, by name."""
        found = [item for item in self.instances.values() if item.replicaset == replicaset]
        return [item for item in found if item.current.variant != "Expelled"]

    def of_tier(self, tier: str | None) -> Iterable[Replicaset]:
        """Replicasets of a tier (None: of all) that are not expelled."""
        return (item for item in self.replicasets.values() if tier in (None, item.tier) and item.state != "expelled")

    def scene(self, at: Instance, tier: str | None) -> Scene:
        """Who is who for a statement on tables of this tier (None: of every tier) at this instance."""
        masters = {item.name: item.current_master for item in self.of_tier(tier)}
        life = {name: self.instances[name].life for name in masters.values()}
        return Scene(at.name, at.replicaset, at.tier, masters, life, not self.accent.before_26_1)

    def life(self, name: str) -> Life:
        """What the process of an instance does."""
        return self.instances[name].life

    def table_id(self, name: str) -> int:
        """Number of a table; given out on first use."""
        return self.table_ids.setdefault(name, 1025 + len(self.table_ids))


def found(shape: Shape) -> Cluster:
    """A new cluster in the given shape; ports are still 0."""
    counts = {name: tier.bucket_count for name, tier in shape.tiers.items()}
    catalog = Catalog(
        tiers=counts,
        default_tier=next(iter(shape.tiers)),
        double_form=shape.double_form,
        keeps_offsets=True,
        accent=ACCENTS[shape.version],
    )
    cluster = Cluster(shape, Settings(shape.auto_offline_timeout), catalog)
    cluster.users.create(ADMIN, shape.admin_password)
    for user in shape.users:
        cluster.users.create(user.name, user.password, user.method)
    for name, tier in shape.tiers.items():
        cluster.tiers[name] = Tier(name, tier.replication, tier.bucket_count)
        names = [_new_replicaset(cluster, name, tier.replication) for _ in range(tier.replicasets)]
        cluster.buckets[name] = BucketMap(tier.bucket_count, names)
    return cluster


def _new_replicaset(cluster: Cluster, tier: str, size: int) -> str:
    name = add_replicaset(cluster, tier)
    for _ in range(size):
        add_instance(cluster, name)
    return name


def add_replicaset(cluster: Cluster, tier: str) -> str:
    """A further, empty replicaset of a tier; gives its name."""
    number = 1 + sum(item.tier == tier for item in cluster.replicasets.values())
    name = f"{tier}_{number}"
    cluster.replicasets[name] = Replicaset(name, str(uuid.uuid4()), tier, "", "")
    return name


def add_instance(cluster: Cluster, replicaset: str) -> Instance:
    """A further instance of a replicaset; the first one leads."""
    home = cluster.replicasets[replicaset]
    number = 1 + sum(item.replicaset == replicaset for item in cluster.instances.values())
    raft_id = 1 + len(cluster.instances)
    listen = cluster.shape.listen[(raft_id - 1) % len(cluster.shape.listen)]
    reason = "join" if cluster.instances else "boot"
    name = f"{replicaset}_{number}"
    address, now = Address(listen), datetime.now(UTC)
    instance = Instance(name, str(uuid.uuid4()), raft_id, replicaset, home.tier, address, now, reason=reason)
    cluster.instances[name] = instance
    if not home.current_master:
        home.current_master = home.target_master = name
    return instance


def set_target(instance: Instance, variant: str, reason: str) -> None:
    """Change the target state; going Online is a new incarnation."""
    incarnation = instance.target.incarnation + (variant == "Online")
    instance.target = Standing(variant, incarnation)
    instance.reason = reason
    instance.changed = datetime.now(UTC)


def set_current(instance: Instance) -> None:
    """The current state follows the target state."""
    instance.current = instance.target


def random_nonce() -> str:
    """Printable characters for a SCRAM exchange."""
    return os.urandom(18).hex()

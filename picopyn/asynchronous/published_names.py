"""What the published picopyn 3 calls things that have another name here; both pools have them."""

from __future__ import annotations

from typing import Any

from picopyn.errors import UsageError
from picopyn.routing.sharding import ShardingKey


class PublishedNames:
    """Other names of a pool's methods, with the arguments of picopyn 3."""

    acquire: Any
    sharding_key_factory: Any

    def acquire_by_sharding_key(self, key: ShardingKey, timeout: float | None = None) -> Any:
        """`acquire(key=…)`, as picopyn 3 calls it."""
        if key is None:
            raise UsageError("acquire_by_sharding_key() needs a key")
        return self.acquire(key=key, timeout=timeout)

    def acquire_by_tier_and_bucket_id(self, tier: str, bucket_id: int, timeout: float | None = None) -> Any:
        """`acquire(tier=…, bucket=…)`, as picopyn 3 calls it."""
        if tier is None or bucket_id is None:
            raise UsageError("acquire_by_tier_and_bucket_id() needs a tier and a bucket")
        return self.acquire(tier=tier, bucket=bucket_id, timeout=timeout)

    def acquire_by_instance_uuid(self, uuid: str, timeout: float | None = None) -> Any:
        """`acquire(node=…)`, as picopyn 3 calls it."""
        if not uuid:
            raise UsageError("acquire_by_instance_uuid() needs the uuid of an instance")
        return self.acquire(node=uuid, timeout=timeout)

    def create_sharding_key_factory(self, table_name: str) -> Any:
        """`sharding_key_factory(…)`, as picopyn 3 calls it."""
        return self.sharding_key_factory(table_name)

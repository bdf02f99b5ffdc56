"""What each instance's `_pico_bucket()` answers: a copy of the map of its own, which may lag or fail.

Decides when a view follows the truth. Must not know how a view is shown.

*Source*: `picodata-recorded.md` section 4 (views lag per instance), `picodata-protocol.md` section 2 (one
unresolvable bucket fails the whole call).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from picopyn.testing.picodata.model import BucketMap, Range


@dataclass(slots=True)
class View:
    """One instance's view of one tier: its ranges, and the bucket it cannot find (None: all found)."""

    ranges: tuple[Range, ...] = ()
    lost: int | None = None


@dataclass
class Views:
    """All views. Owner: `cluster.Cluster`.

    Attributes:
        lag: Seconds by instance; instances not named have `default_lag`.
    """

    default_lag: float = 0.0
    lag: dict[str, float] = field(default_factory=dict)
    _views: dict[tuple[str, str], View] = field(default_factory=dict)

    def of(self, instance: str, tier: str) -> View:
        """One view; empty at first."""
        return self._views.setdefault((instance, tier), View())

    def lag_of(self, instance: str) -> float:
        """How long this instance's view stays behind."""
        return self.lag.get(instance, self.default_lag)

    def follow(self, instance: str, tier: str, truth: BucketMap) -> None:
        """Catch up with the truth."""
        self.of(instance, tier).ranges = truth.ranges()

    def current(self, instances: list[str], buckets: Mapping[str, BucketMap]) -> bool:
        """Whether all these instances see the truth in every tier."""
        truth = {tier: bucket_map.ranges() for tier, bucket_map in buckets.items()}
        return all(self.of(name, tier).ranges == ranges for name in instances for tier, ranges in truth.items())

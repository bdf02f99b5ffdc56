"""Settings of the published picopyn 3 that there are no more, and what does now what they did.

Whoever comes from there gets these words instead of "unknown setting"; the whole list is `docs/from-picopyn-3.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_EJECTION: Final = "nodes that cannot be reached are left out by themselves"
_OWN_POOLS: Final = "each node has its own pool"

#: Setting → why it is gone, and what to say instead.
GONE: Final[Mapping[str, str]] = {
    "forbidden_tiers": "statements on a tier's tables go to that tier; drain() keeps a pool off the nodes of another",
    "enable_discovery": "nodes are always discovered",
    "instance_role": "say role=",
    "routing_acquire_timeout": "a call waits for its owner, for acquire_timeout",
    "balance_strategy": _OWN_POOLS,
    "rebalance_pool_divisor": _OWN_POOLS,
    "instance_ejection_failure_threshold": _EJECTION,
    "instance_ejection_failure_window": _EJECTION,
    "instance_ejection_duration": _EJECTION,
}

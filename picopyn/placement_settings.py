"""The settings about places of a YugabyteDB: which words there are, what they need, which contradict each other.

A part of [`settings`][picopyn.settings]; it knows no server. Names, values, defaults and limits are those of the smart
drivers, so that a connection string of theirs means the same here; what they let pass silently is refused.

*Source*: `yugabyte-smart-drivers.md` section 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from picopyn.role_settings import reads_from_followers
from picopyn.topology_keys import is_keys, read_topology_keys

if TYPE_CHECKING:
    from picopyn.settings import PoolSettings


class BalanceMode(Enum):
    """What `load_balance` means."""

    OFF = "off"
    ANY = "any"
    ONLY_PRIMARY = "only-primary"
    ONLY_RR = "only-rr"
    PREFER_PRIMARY = "prefer-primary"
    PREFER_RR = "prefer-rr"

    @property
    def prefers(self) -> bool:
        """Whether it says what comes first, and forbids nothing."""
        return self in (BalanceMode.PREFER_PRIMARY, BalanceMode.PREFER_RR)

    @property
    def excludes(self) -> bool:
        """Whether it forbids nodes of the other type."""
        return self in (BalanceMode.ONLY_PRIMARY, BalanceMode.ONLY_RR)


#: Words of `load_balance` → what they mean; those of libpq's `load_balance_hosts` among them.
_MODES: Final[Mapping[str, BalanceMode]] = {
    **{mode.value: mode for mode in BalanceMode},
    "true": BalanceMode.ANY,
    "on": BalanceMode.ANY,
    "1": BalanceMode.ANY,
    "random": BalanceMode.ANY,
    "false": BalanceMode.OFF,
    "0": BalanceMode.OFF,
    "disable": BalanceMode.OFF,
}
#: How npgsql writes them → how everybody else does.
_NPGSQL: Final = {mode.value.replace("-", ""): mode.value for mode in BalanceMode if "-" in mode.value}
_WORDS_FOR_PEOPLE: Final = "true (or any), false, only-primary, only-rr, prefer-primary, prefer-rr"

#: Longest `yb_servers_refresh_interval` and `failed_host_reconnect_delay_secs` (seconds).
LONGEST_INTERVAL: Final = 600
LONGEST_DELAY: Final = 60
#: How far behind reads from followers must be at least (milliseconds): twice the raft heartbeat of 500 ms, with which a
#: server refuses anything less.
#:
#: *Source*: `yugabyte-smart-drivers.md` section 7.6.
LEAST_STALENESS: Final = 1000
_LARGEST: Final = 2**31 - 1
_NEEDS_LIST: Final = "needs servers that the pool lists itself, without topology_source"
#: The smart drivers' 0, "before every connect", means as often as a pool may look at its cluster (seconds).
SHORTEST_INTERVAL: Final = 1.0

#: Names of other drivers → our own.
ALIASES: Final[Mapping[str, str]] = {
    "load_balance_hosts": "load_balance",
    "failed_host_ttl_seconds": "failed_host_reconnect_delay_secs",
    "socket_timeout": "command_timeout",
}

#: Settings of this file that mean something on YugabyteDB only → what they are when nobody set them.
ONLY_HERE: Final[Mapping[str, Any]] = {
    "topology_keys": None,
    "fallback_to_topology_keys_only": False,
    "yb_servers_refresh_interval": 10,
    "failed_host_reconnect_delay_secs": 5,
    "rebalance_batch": 2,
    "tablet_leaders": None,
    "yb_follower_read_staleness_ms": 30_000,
}


def balance_mode(value: Any) -> BalanceMode | None:
    """What a value of `load_balance` means, in any case of letters; None when it means nothing."""
    if isinstance(value, bool):
        return BalanceMode.ANY if value else BalanceMode.OFF
    return _MODES.get(value.lower()) if isinstance(value, str) else None


def _mode_word(text: str) -> bool | str:
    """A word of a connection string as the value of the setting; one that means nothing stays."""
    mode = balance_mode(text)
    if mode is None:
        return text
    return mode is BalanceMode.ANY if mode in (BalanceMode.OFF, BalanceMode.ANY) else mode.value


def words_about_places(
    whole: Callable[[str], Any], switch: Callable[[str], Any]
) -> dict[str, tuple[str, Callable[[str], Any]]]:
    """Words of a connection string → (setting, how its text becomes a value).

    Args:
        whole: Reads a whole number; what is none stays text.
        switch: Reads a truth value; what is none stays text.
    """
    return {
        "load_balance": ("load_balance", _mode_word),
        "topology_keys": ("topology_keys", str),
        "fallback_to_topology_keys_only": ("fallback_to_topology_keys_only", switch),
        "yb_servers_refresh_interval": ("yb_servers_refresh_interval", whole),
        "failed_host_reconnect_delay_secs": ("failed_host_reconnect_delay_secs", whole),
        "rebalance_batch": ("rebalance_batch", whole),
        "yb_follower_read_staleness_ms": ("yb_follower_read_staleness_ms", whole),
    }


def placement_problems(settings: PoolSettings) -> list[str]:
    """Every problem of the settings about places."""
    wrong = list(_wrong_values(settings))
    return wrong or list(_contradictions(settings))


def set_for_places(settings: PoolSettings) -> list[str]:
    """The settings of this file that were set, and that mean nothing but on YugabyteDB; for messages."""
    mode = balance_mode(settings.load_balance)
    said = [] if mode in (BalanceMode.OFF, BalanceMode.ANY) else ["load_balance"]
    return said + [name for name, default in ONLY_HERE.items() if getattr(settings, name) != default]


def _wrong_values(settings: PoolSettings) -> Iterator[str]:
    if balance_mode(settings.load_balance) is None:
        yield f"load_balance must be one of {_WORDS_FOR_PEOPLE}, not {settings.load_balance!r}{_hint(settings)}"
    keys = settings.topology_keys
    if keys is not None and not is_keys(keys):
        yield f"topology_keys must be a text like 'cloud.region.zone:1,cloud.region.*:2', or such texts, not {keys!r}"
    elif keys is not None:
        read, problems = read_topology_keys(keys)
        yield from problems
        if not (read or problems):
            yield f"topology_keys names no place: {keys!r}; leave it out to use all"
    if not isinstance(settings.fallback_to_topology_keys_only, bool):
        value = settings.fallback_to_topology_keys_only
        yield f"fallback_to_topology_keys_only must be a bool, not {value!r}"
    if not isinstance(settings.tablet_leaders, bool | None):
        yield f"tablet_leaders must be a bool or None, not {settings.tablet_leaders!r}"
    limits = {
        "yb_servers_refresh_interval": (0, LONGEST_INTERVAL),
        "failed_host_reconnect_delay_secs": (0, LONGEST_DELAY),
        "rebalance_batch": (1, None),
        "yb_follower_read_staleness_ms": (LEAST_STALENESS, _LARGEST),
    }
    for name, (least, most) in limits.items():
        value = getattr(settings, name)
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or value < least
            or (most is not None and value > most)
        ):
            wanted = f"from {least} to {most}" if most is not None else f"of at least {least}"
            yield f"{name} must be a whole number {wanted}, not {value!r}"


def goes_to_leaders(settings: PoolSettings) -> bool:
    """Whether calls go to the leaders of tablets, where there are any.

    Who did not ask for balancing wants the first host that works, and no other; unless he asks for leaders by name.
    """
    if settings.tablet_leaders is None:
        return balance_mode(settings.load_balance) is not BalanceMode.OFF
    return settings.tablet_leaders


def _hint(settings: PoolSettings) -> str:
    value = settings.load_balance
    word = value.lower().replace("_", "-") if isinstance(value, str) else ""
    meant = _NPGSQL.get(word.replace("-", ""))
    return f" (here it is written {meant})" if meant else ""


def _contradictions(settings: PoolSettings) -> Iterator[str]:
    dialect = settings.dialect if isinstance(settings.dialect, str) else getattr(settings.dialect, "name", "")
    mode, keys = balance_mode(settings.load_balance), read_topology_keys(settings.topology_keys)[0]
    if dialect in ("picodata", "postgres"):
        yield from (f"{name} is for YugabyteDB, not for dialect {dialect!r}" for name in set_for_places(settings))
        return
    if keys and mode is BalanceMode.OFF:
        yield "topology_keys choose among the nodes of the cluster; that needs load_balance=true or another mode"
    if settings.tablet_leaders and find_spec("sqlglot") is None:
        yield "tablet_leaders=True needs the extra picopyn[yugabyte]"
    if settings.tablet_leaders and mode is BalanceMode.ONLY_RR:
        yield "tablet_leaders=True: read replicas lead no tablet, and load_balance=only-rr allows nothing else"
    if settings.topology_source is not None:
        yield from (f"{name} {_NEEDS_LIST}" for name in _wishes(mode, keys))
    if settings.fallback_to_topology_keys_only and not keys:
        yield "fallback_to_topology_keys_only needs topology_keys"
    elif settings.fallback_to_topology_keys_only and mode is not None and mode.prefers:
        yield f"fallback_to_topology_keys_only forbids what load_balance={mode.value} allows; use one of them"
    if dialect == "yugabyte":
        yield from problems_on_yugabyte(settings)


def _wishes(mode: BalanceMode | None, keys: Sequence[object]) -> Iterator[str]:
    """The settings that choose among listed servers."""
    if keys:
        yield "topology_keys"
    if mode not in (BalanceMode.OFF, BalanceMode.ANY):
        yield "load_balance"


def problems_on_yugabyte(settings: PoolSettings) -> Iterator[str]:
    """What was set for other kinds of servers, and would be ignored by a YugabyteDB."""
    if reads_from_followers(settings) and settings.topology_source is not None:
        yield f"role={settings.role!r} {_NEEDS_LIST}"
    if settings.topology_update_interval not in (None, 5.0):
        yield "on YugabyteDB topology_update_interval is called yb_servers_refresh_interval"
    about_hosts = {
        "staleness (yb_follower_read_staleness_ms)": settings.staleness is not None,
        "fallback_master": settings.fallback_master,
        "master_as_replica_weight": settings.master_as_replica_weight != 0,
        "balancer_policy": settings.balancer_policy != "greedy",
    }
    yield from (f"{name} is for plain PostgreSQL, not for YugabyteDB" for name, is_set in about_hosts.items() if is_set)

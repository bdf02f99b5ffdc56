"""The settings about places: the smart drivers' names and values, in a connection string and as keywords."""

from __future__ import annotations

from typing import Any

import pytest

from picopyn.asynchronous.static_source import StaticTopologySource
from picopyn.errors import ConfigError
from picopyn.placement_settings import BalanceMode, balance_mode
from picopyn.settings import PoolSettings
from picopyn.staleness import StalenessPolicy

#: A list of nodes of one's own.
OWN_SOURCE = StaticTopologySource([])


def of(dsn: str = "", **options: Any) -> PoolSettings:
    return PoolSettings.from_dsn(f"postgresql://h?{dsn}" if dsn else "postgresql://h", **options)


def problems(dsn: str = "", **options: Any) -> list[str]:
    with pytest.raises(ConfigError) as told:
        of(dsn, **options)
    return list(told.value.problems)


@pytest.mark.parametrize(
    ("value", "mode"),
    [
        (True, BalanceMode.ANY),
        (False, BalanceMode.OFF),
        ("true", BalanceMode.ANY),
        ("ANY", BalanceMode.ANY),
        ("off", BalanceMode.OFF),
        ("only-primary", BalanceMode.ONLY_PRIMARY),
        ("Only-RR", BalanceMode.ONLY_RR),
        ("prefer-primary", BalanceMode.PREFER_PRIMARY),
        ("prefer-rr", BalanceMode.PREFER_RR),
        ("only_primary", None),
        ("OnlyPrimary", None),
        ("sometimes", None),
        ("", None),
        (1, None),
        (None, None),
    ],
)
def test_six_modes_and_booleans(value: Any, mode: BalanceMode | None) -> None:
    """In any case of letters; what other drivers write otherwise is refused with what it is called here."""
    assert balance_mode(value) is mode
    if mode is None:
        assert len(problems(load_balance=value)) == 1
    else:
        assert of(load_balance=value).load_balance == value


def test_what_npgsql_and_eysql_write_is_told_how_to_write_it() -> None:
    """In the message."""
    assert "here it is written only-rr" in problems(load_balance="OnlyRR")[0]
    assert "here it is written prefer-primary" in problems(load_balance="prefer_primary")[0]


@pytest.mark.parametrize(
    ("dsn", "options"),
    [
        ("load_balance=true", {"load_balance": True}),
        ("load-balance=Prefer-RR", {"load_balance": "prefer-rr"}),
        ("load_balance_hosts=random", {"load_balance": True}),
        ("load_balance_hosts=disable", {}),
        ("load_balance=any&topology-keys=a.b.c:1,a.b.*:2", {"load_balance": True, "topology_keys": "a.b.c:1,a.b.*:2"}),
        ("yb-servers-refresh-interval=0", {"yb_servers_refresh_interval": 0}),
        ("failed-host-reconnect-delay-secs=60", {"failed_host_reconnect_delay_secs": 60}),
        ("failed_host_ttl_seconds=7", {"failed_host_reconnect_delay_secs": 7}),
        ("rebalance_batch=5", {"rebalance_batch": 5}),
        ("yb-follower-read-staleness-ms=5000&role=replica", {"yb_follower_read_staleness_ms": 5000, "role": "replica"}),
        ("socket_timeout=3", {"command_timeout": 3.0}),
        ("statement_timeout=5s", {"statement_timeout": 5.0}),
        (
            "load_balance=true&topology_keys=a.b.c&fallback-to-topology-keys-only=true",
            {"load_balance": True, "topology_keys": "a.b.c", "fallback_to_topology_keys_only": True},
        ),
    ],
)
def test_words_and_keywords_say_the_same(dsn: str, options: dict[str, Any]) -> None:
    """With dashes or underscores."""
    assert of(dsn) == of(**options)


def test_aliases_are_keywords_too() -> None:
    """And what contradicts itself by two names is told."""
    assert of(socket_timeout=3).command_timeout == 3
    assert of(failed_host_ttl_seconds=7).failed_host_reconnect_delay_secs == 7
    assert of("load_balance=true&load_balance_hosts=random").load_balance is True
    assert len(problems("load_balance=true&load_balance_hosts=disable")) == 1
    assert len(problems(socket_timeout=3, command_timeout=4)) == 1
    assert of(socket_timeout=float("2.5"), command_timeout=float("2.5")).command_timeout == 2.5
    assert problems(socket_timeout=0)[0].startswith("socket_timeout must be")
    assert problems("socket_timeout=0")[0].startswith("socket_timeout must be")
    assert problems(failed_host_ttl_seconds=61)[0].startswith("failed_host_ttl_seconds must be")


def test_defaults_are_those_of_the_smart_drivers_but_for_the_interval() -> None:
    """Off; 5 s; the list of servers is read every 10 s, for it costs no caller anything."""
    settings = of()
    assert settings.load_balance is False
    assert settings.failed_host_reconnect_delay_secs == 5
    assert settings.yb_servers_refresh_interval == 10
    assert settings.after_connect_timeout == 60


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"yb_servers_refresh_interval": 601}, 1),
        ({"yb_servers_refresh_interval": -1}, 1),
        ({"yb_servers_refresh_interval": 1.5}, 1),
        ({"yb_servers_refresh_interval": True}, 1),
        ({"failed_host_reconnect_delay_secs": 61}, 1),
        ({"failed_host_reconnect_delay_secs": None}, 1),
        ({"rebalance_batch": 0}, 1),
        ({"fallback_to_topology_keys_only": "yes"}, 1),
        ({"topology_keys": 5, "load_balance": True}, 1),
        ({"topology_keys": [("a", "b", "c")], "load_balance": True}, 1),
        ({"topology_keys": "a.b:1,a.b.c:0,a.b.c:11,a.b.c:", "load_balance": True}, 4),
        ({"load_balance": "x", "topology_keys": "x", "rebalance_batch": -1}, 3),
        ({"topology_keys": "a.b.c"}, 1),
        ({"fallback_to_topology_keys_only": True}, 1),
        ({"fallback_to_topology_keys_only": True, "topology_keys": "a.b.c", "load_balance": "prefer-rr"}, 1),
        ({"dialect": "picodata", "load_balance": "only-rr", "rebalance_batch": 3}, 2),
        ({"dialect": "postgres", "topology_keys": "a.b.c", "load_balance": True}, 1),
        ({"dialect": "yugabyte", "topology_update_interval": 3}, 1),
        ({"topology_keys": ",", "load_balance": True}, 1),
        ({"topology_keys": "", "load_balance": True}, 1),
        ({"topology_keys": [], "load_balance": True}, 1),
        ({"tablet_leaders": True, "load_balance": "only-rr"}, 1),
        ({"topology_source": OWN_SOURCE, "load_balance": "only-rr", "topology_keys": "a.b.c"}, 2),
        ({"topology_source": OWN_SOURCE, "dialect": "yugabyte", "role": "replica"}, 1),
        ({"dialect": "picodata", "yb_follower_read_staleness_ms": 5000}, 1),
        ({"dialect": "postgres", "yb_follower_read_staleness_ms": 5000, "role": "replica"}, 1),
        *(({"yb_follower_read_staleness_ms": value}, 1) for value in (999, 2**31, 30.0, "30s", True, None)),
        ({"dialect": "yugabyte", "staleness": StalenessPolicy(max_lag=1), "role": "any"}, 1),
        ({"dialect": "yugabyte", "balancer_policy": "round_robin"}, 1),
    ],
)
def test_every_problem_is_told(options: dict[str, Any], count: int) -> None:
    """All at once, each by its name."""
    assert len(problems(**options)) == count


def test_keys_may_be_texts_of_one_key_each() -> None:
    """And balancing means nothing special to the other servers, which balance anyway."""
    assert of(load_balance=True, topology_keys=["a.b.c:1", "a.b.*:2"]).topology_keys == ["a.b.c:1", "a.b.*:2"]
    assert of(dialect="picodata", load_balance=True).load_balance is True
    assert of(dialect="yugabyte", topology_update_interval=None).topology_update_interval is None

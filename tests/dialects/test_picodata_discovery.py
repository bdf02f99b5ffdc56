"""What the rows of Picodata's system tables say, and what must not be believed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picopyn.dialects.picodata import discovery
from picopyn.dialects.picodata.addresses import is_wildcard, split_address
from picopyn.dialects.picodata.discovery import (
    Denial,
    bucket_event,
    bucket_table_events,
    grant_hint,
    instance_events,
    read_denial,
    read_instances,
    replicaset_events,
    replicasets_without_leaders,
    says_no_such_tier,
    tier_events,
    tiers_without_counts,
)
from picopyn.topology import BucketRange, EventReplicaset, EventTier, Topology
from tests.steps import python_steps

ONLINE = '["Online",1]'


def row(
    name: str,
    address: str | None = None,
    *,
    current: Any = ONLINE,
    target: Any = ONLINE,
    domain: Any = "{}",
    tier: str = "default",
) -> tuple[Any, ...]:
    """A row of `INSTANCES`; instance `a1` belongs to replicaset `a`."""
    rs = name[0]
    host = address if address is not None else f"{name}:4327"
    return (name, f"uuid-{name}", rs, f"uuid-{rs}", tier, current, target, domain, "26.1.6", host)


CLUSTER = [row("a1"), row("a2"), row("b1"), row("b2")]


def addresses(rows: list[tuple[Any, ...]], **options: Any) -> dict[str, str]:
    """Address by instance name, as a snapshot gives it."""
    topology = Topology()
    topology.apply(instance_events(read_instances(rows), **options).events)
    return {node.name: node.address for node in topology.snapshot.all_nodes()}


def test_instances_become_events() -> None:
    """One event per instance, with what the columns say."""
    (event,) = instance_events(read_instances([row("a1", domain='{"DC":"1"}')])).events
    assert (event.uuid, event.name, event.replicaset_uuid, event.tier) == (
        "uuid-a1",
        "a1",
        "uuid-a",
        "default",
    )
    assert (event.host, event.port, event.online, event.incarnation) == ("a1", 4327, True, 1)
    assert (event.current_state, event.target_state, event.version) == ("Online", "Online", "26.1.6")
    assert event.failure_domain == {"DC": "1"}


@pytest.mark.parametrize(
    ("state", "word", "incarnation"),
    [
        ('["Online",1]', "Online", 1),
        (["Online", 7], "Online", 7),
        (("Offline", 0), "Offline", 0),
        ('"Online"', "Online", None),
        ("Online", "Online", None),
        (b'["Online",2]', "Online", 2),
        ('["Online"]', "Online", None),
        (None, "", None),
        ("[]", "", None),
        ("5", "", None),
        ('[{"x":1},1]', "", None),
    ],
)
def test_states_are_understood_in_every_form(state: Any, word: str, incarnation: int | None) -> None:
    """JSON as text, decoded, or only the word; anything else is not Online, and no error."""
    (instance,) = read_instances([row("a1", current=state, target=state)])
    assert (instance.current_state, instance.target_state, instance.incarnation) == (word, word, incarnation)
    assert instance.online is (word == "Online")


@pytest.mark.parametrize(
    ("current", "target", "online"),
    [
        ('["Online",1]', '["Online",1]', True),
        ('["Online",1]', '["Offline",1]', False),
        ('["Offline",1]', '["Online",2]', False),
        ('["Offline",1]', '["Offline",1]', False),
    ],
)
def test_online_means_current_and_target(current: str, target: str, online: bool) -> None:
    """An instance on its way down or up takes no calls."""
    (instance,) = read_instances([row("a1", current=current, target=target)])
    assert instance.online is online
    assert instance.incarnation == (2 if '"Online",2' in target else 1)


def test_expelled_instances_are_gone() -> None:
    """An expelled instance keeps its row and address, but is no node, and another may use the address."""
    rows = [
        row("a1"),
        row("a2", "x:1", current='["Expelled",3]', target='["Expelled",3]'),
        row("a3", "x:1"),
    ]
    reading = instance_events(read_instances(rows))
    assert [event.name for event in reading.events] == ["a1", "a3"]
    assert addresses(rows) == {"a1": "a1:4327", "a3": "x:1"}
    assert reading.remarks == ()


@pytest.mark.parametrize(
    ("domain", "zones"),
    [
        ('{"DC":"1","RACK":2}', {"DC": "1", "RACK": "2"}),
        ({"DC": "1"}, {"DC": "1"}),
        (None, {}),
        ("[]", {}),
        ("x", {}),
    ],
)
def test_failure_domains(domain: Any, zones: dict[str, str]) -> None:
    """Zones are text by text; what is no object is none."""
    (instance,) = read_instances([row("a1", domain=domain)])
    assert instance.failure_domain == zones


def test_rows_without_identity_are_left_out() -> None:
    """A row without uuid cannot be told from others; one with NULLs elsewhere is kept."""
    nulls = ("a1", "uuid-a1", None, None, None, ONLINE, ONLINE, None, None, None)
    assert [i.uuid for i in read_instances([(None,) * 10, nulls])] == ["uuid-a1"]
    assert addresses([nulls]) == {"a1": ""}


@pytest.mark.parametrize(
    ("address", "split"),
    [
        ("h:4327", ("h", 4327)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[::1]:4327", ("::1", 4327)),
        ("fe80::2:4327", ("fe80::2", 4327)),
        (" h:4327 ", ("h", 4327)),
        (":4327", ("", 4327)),
        ("h", None),
        ("h:", None),
        ("h:0", None),
        ("h:65536", None),
        ("h:pg", None),
        ("h:٣", None),
        ("h:-1", None),
        ("", None),
    ],
)
def test_addresses_are_split(address: str, split: tuple[str, int] | None) -> None:
    """IPv6 hosts lose their brackets; what has no port is no address."""
    assert split_address(address) == split


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "*", "0:0:0:0:0:0:0:0", "::%eth0"])
def test_wildcards_are_recognised(host: str) -> None:
    """Listening on every interface is no place to dial."""
    assert is_wildcard(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "zero", "0.0.0.0.example"])
def test_other_hosts_are_no_wildcards(host: str) -> None:
    """Loopback and names are dialled as they are."""
    assert not is_wildcard(host)


def test_wildcard_addresses_are_not_dialled() -> None:
    """`0.0.0.0` and `::` are remarked on and not used; the node is known all the same."""
    rows = [row("a1", "0.0.0.0:4327"), row("a2", "[::]:4327"), row("b1")]
    assert addresses(rows) == {"a1": "", "a2": "", "b1": "b1:4327"}
    remarks = instance_events(read_instances(rows)).remarks
    assert len(remarks) == 2
    assert "a1" in remarks[0]
    assert "0.0.0.0:4327" in remarks[0]


def test_the_asked_instance_is_where_it_was_dialled() -> None:
    """The host of the seed stands in for the wildcard of the instance that answered, and for no other."""
    rows = [row("a1", "0.0.0.0:4327"), row("a2", "0.0.0.0:4328"), row("b1")]
    seen = addresses(rows, asked_uuid="uuid-a1", seen_host="seed")
    assert seen == {"a1": "seed:4327", "a2": "", "b1": "b1:4327"}
    assert addresses(rows[2:], asked_uuid="uuid-b1", seen_host="seed") == {"b1": "b1:4327"}


def test_an_address_map_has_the_first_word() -> None:
    """It sees what is advertised, wildcards included, and may give each instance another host and port."""
    asked: list[tuple[str, int]] = []

    def address_map(host: str, port: int) -> tuple[str, int]:
        asked.append((host, port))
        return ("nat", port + 1000)

    rows = [row("a1", "0.0.0.0:1"), row("a2", "[fe80::2]:2")]
    assert addresses(rows, address_map=address_map) == {"a1": "nat:1001", "a2": "nat:1002"}
    assert asked == [("0.0.0.0", 1), ("fe80::2", 2)]


def test_an_address_map_that_fails_is_remarked_on() -> None:
    """The advertised address is used then."""

    def address_map(host: str, port: int) -> tuple[str, int]:
        raise KeyError(host)

    reading = instance_events(read_instances([row("a1")]), address_map=address_map)
    assert reading.events[0].host == "a1"
    assert reading.remarks == ("instance a1: address_map raised KeyError",)


def test_an_address_belongs_to_one_instance() -> None:
    """Of two instances with one address the Online one has it, then the one that answered, then by name."""
    down = '["Offline",1]'
    rows = [row("a1", "x:1", current=down, target=down), row("a2", "x:1"), row("b1", "y:1"), row("b2", "y:1")]
    assert addresses(rows) == {"a1": "", "a2": "x:1", "b1": "y:1", "b2": ""}
    assert addresses(rows, asked_uuid="uuid-b2") == {"a1": "", "a2": "x:1", "b1": "", "b2": "y:1"}


def test_an_instance_that_is_listed_twice_is_one() -> None:
    """Several rows of one instance are one event, with an address if any row has one."""
    assert addresses([row("a1", ""), row("a1", "x:1"), row("a1", "y:1")]) == {"a1": "x:1"}


def replicaset(current: str | None, target: str | None, version: Any = 4, state: str = "ready") -> EventReplicaset:
    """The event of replicaset `a` with these masters."""
    rows = [("a", "uuid-a", current, target, "default", state, version)]
    gone = row("a9", current='["Expelled",1]', target='["Expelled",1]')
    return replicaset_events(rows, read_instances([*CLUSTER, gone]))[0]


@pytest.mark.parametrize(
    ("current", "target", "leader", "known"),
    [
        ("a1", "a1", "uuid-a1", True),
        ("a1", "a2", None, True),
        (None, None, None, True),
        (None, "a1", None, True),
        ("", "", None, True),
        ("a9", "a9", None, True),
        ("never-seen", "never-seen", None, False),
    ],
)
def test_who_leads(current: str | None, target: str | None, leader: str | None, known: bool) -> None:
    """A leader is sure only where current and target master agree on an instance that is there."""
    event = replicaset(current, target)
    assert (event.leader_uuid, event.leader_known) == (leader, known)
    assert (event.name, event.tier, event.config_version) == ("a", "default", 4)


def test_replicasets_with_gaps() -> None:
    """A missing version is no version; expelled replicasets and rows without uuid are left out."""
    assert replicaset("a1", "a1", None).config_version is None
    rows = [
        ("x", "uuid-x", None, None, "default", "expelled", 1),
        ("y", None, None, None, "default", "ready", 1),
        ("z", "uuid-z", None, None, None, "not-ready", 0),
    ]
    assert [e.uuid for e in replicaset_events(rows, ())] == ["uuid-z"]


def test_what_a_bare_user_knows() -> None:
    """Instances name their replicasets and tiers; leaders and bucket counts are not known."""
    instances = read_instances([*CLUSTER, row("r1", tier="router")])
    assert replicasets_without_leaders(instances) == (
        EventReplicaset("uuid-a", "a", "default", leader_known=False),
        EventReplicaset("uuid-b", "b", "default", leader_known=False),
        EventReplicaset("uuid-r", "r", "router", leader_known=False),
    )
    assert tiers_without_counts(instances) == (EventTier("default"), EventTier("router"))


def test_tiers() -> None:
    """A tier without sharded rows has 0 buckets; an unknown count stays unknown."""
    assert tier_events([("default", 3000), ("arbiter", 0), ("new", None), (None, 3)]) == (
        EventTier("default", 3000),
        EventTier("arbiter", 0),
        EventTier("new", None),
    )


def buckets(first: int, last: int, uuid: str | None = "uuid-a", **more: Any) -> dict[str, Any]:
    """An object of the array that `_pico_bucket()` returns."""
    return {
        "tier_name": "default",
        "bucket_id_start": first,
        "bucket_id_end": last,
        "state": "active",
        "current_replicaset_uuid": uuid,
        "target_replicaset_uuid": uuid,
        **more,
    }


@pytest.mark.parametrize(
    "encode",
    [json.dumps, lambda v: v, lambda v: json.dumps(v).encode(), lambda v: [json.dumps(x) for x in v]],
)
def test_bucket_maps_are_read(encode: Any) -> None:
    """A map is complete, decoded or not."""
    event = bucket_event("default", encode([buckets(1, 1500), buckets(1501, 3000, "uuid-b", state="sending")]))
    assert event.complete
    assert event.tier == "default"
    assert event.ranges == (BucketRange(1, 1500, "uuid-a"), BucketRange(1501, 3000, "uuid-b", "sending"))


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "[]",
        "",
        "nonsense",
        5,
        "{}",
        [{}],
        [None],
        [buckets(1, 10), buckets(10, 20)],
        [buckets(0, 10)],
        [buckets(1, 10, None)],
        [buckets(1, 3001)],
        [buckets(1, 10) | {"bucket_id_end": "10"}],
    ],
)
def test_bucket_maps_that_cannot_be_are_refused_alone(answer: Any) -> None:
    """A map that cannot be read raises by itself, so that the rest of a poll can still be applied."""
    with pytest.raises(ValueError, match="default"):
        bucket_event("default", answer, 3000)


def test_a_long_map_is_read_without_a_step_per_range() -> None:
    """As the server writes it, with whatever else it says."""
    ranges = [
        {
            "bucket_id_start": n,
            "target_replicaset_uuid": "r9",
            "tier_name": "default",
            "state": "active",
            "current_replicaset_uuid": f"r{n % 7}",
            "bucket_id_end": n,
        }
        for n in range(1, 3001)
    ]
    answer = json.dumps(ranges)
    assert python_steps(lambda: bucket_event("default", answer, 3000)) < 100
    event = bucket_event("default", answer, 3000)
    assert event == bucket_event("default", ranges, 3000)
    assert event.ranges[:2] == (BucketRange(1, 1, "r1"), BucketRange(2, 2, "r2"))


def test_maps_of_the_bucket_table() -> None:
    """The table names replicasets; a tier that cannot be understood is left to the function."""
    rows = [
        ("hot", 1, 50, "active", "a", "b"),
        ("hot", 51, 100, "sent", "b", None),
        ("odd", 1, 10, "active", "never-seen", None),
        ("low", 1, 200, "active", "a", None),
    ]
    maps = bucket_table_events(rows, read_instances(CLUSTER), {"low": 100})
    assert set(maps) == {"hot"}
    assert maps["hot"].ranges == (BucketRange(1, 50, "uuid-a"), BucketRange(51, 100, "uuid-b", "sent"))
    assert bucket_table_events([], ()) == {}


def test_denied_tables_are_named_with_the_grant_that_would_help() -> None:
    """The hint is one line an administrator can run, each grant once, names quoted where they must be."""
    replicasets = read_denial(
        "box error: AccessDenied: Read access to space '_pico_replicaset' is denied for user 'App'"
    )
    tiers = read_denial("sbroad: AccessDenied: Read access to space '_pico_tier' is denied for user 'app'")
    assert replicasets == Denial("_pico_replicaset", "App")
    assert tiers == Denial("_pico_tier", "app")
    assert grant_hint([replicasets, tiers, tiers]) == (
        'GRANT READ ON TABLE _pico_replicaset TO "App"; GRANT READ ON TABLE _pico_tier TO app'
    )
    assert grant_hint([Denial("_pico_tier")]) == "GRANT READ ON TABLE _pico_tier TO your_user"
    assert grant_hint([]) == ""


@pytest.mark.parametrize(
    "message",
    [
        "sbroad: table with name \"x' Read access to space 'y' is denied for user 'z'\" not found",
        "Timeout: timeout",
        "",
    ],
)
def test_other_errors_are_no_denials(message: str) -> None:
    """Only an error that begins like a denial is one."""
    assert read_denial(message) is None


def test_tiers_without_buckets_are_recognised() -> None:
    """The function does not know a tier without buckets; a map that is being moved is another matter."""
    assert says_no_such_tier("sbroad: _pico_bucket: tier 'arbiter' doesn't exist")
    assert says_no_such_tier("sbroad: Query 1 from EXPLAIN (RAW): _pico_bucket: tier 'a' doesn't exist")
    assert not says_no_such_tier("sbroad: _pico_bucket: Bucket 3 cannot be found. Is rebalancing in progress?")


def test_questions_name_their_columns() -> None:
    """No question asks for all columns, as servers add some; addresses are those for PostgreSQL clients."""
    questions = [
        discovery.INSTANCES,
        discovery.REPLICASETS,
        discovery.TIERS,
        discovery.BUCKETS,
        discovery.BUCKET_TABLE,
        discovery.ASKED_INSTANCE,
    ]
    assert not [q for q in questions if "*" in q]
    assert "connection_type = 'pgproto'" in discovery.INSTANCES


@given(st.lists(st.tuples(*[st.none() | st.text(max_size=6) | st.integers()] * 2), max_size=4))
def test_a_whole_poll_makes_a_topology(domains: list[tuple[Any, Any]]) -> None:
    """Whatever JSON columns hold, the events of a poll fit together into one batch."""
    rows = [row(f"a{n}", current=c, domain=d) for n, (c, d) in enumerate(domains)]
    instances = read_instances([*rows, *CLUSTER])
    topology = Topology()
    topology.apply(
        (
            *replicaset_events([("a", "uuid-a", "a1", "a1", "default", "ready", 1)], instances),
            *instance_events(instances).events,
            *tier_events([("default", 3000)]),
            bucket_event("default", [buckets(1, 3000)], 3000),
        ),
        reset=True,
    )
    assert topology.snapshot.owner("default", 1) == "uuid-a"

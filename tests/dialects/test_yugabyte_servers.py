"""What a YugabyteDB's servers say about each other: rows, addresses, seeds, faults."""

from __future__ import annotations

from typing import Any

import pytest

from picopyn.dialects.base import Capability, Purpose
from picopyn.dialects.postgres import PostgresDialect
from picopyn.dialects.yugabyte import YugabyteDialect
from picopyn.dialects.yugabyte.addresses import AddressChoice, choose, names
from picopyn.dialects.yugabyte.listing import AddressBook
from picopyn.dialects.yugabyte.servers import Server, read_servers
from picopyn.errors import Fault
from picopyn.routing.host_roles import Host

ROW: dict[str, Any] = {
    "host": "10.0.0.1",
    "port": 5433,
    "num_connections": 0,
    "node_type": "primary",
    "cloud": "aws",
    "region": "west",
    "zone": "a",
    "public_ip": "",
}


def host(name: str, port: int = 5433) -> Host:
    return Host.at(name, port, f"{name}:{port}")


def test_rows_of_every_release() -> None:
    """By the names of columns; the address is the identity where there is no other."""
    [old] = read_servers([ROW])
    assert (old.host, old.port, old.node_type, old.zone, old.universe) == ("10.0.0.1", 5433, "primary", "a", "")
    assert old.uuid == read_servers([dict(ROW, zone="b")])[0].uuid
    [new] = read_servers([dict(ROW, uuid="u", universe_uuid="x", node_type="read_replica", public_ip="[2001:db8::1]")])
    assert new == Server("10.0.0.1", 5433, "read_replica", "aws", "west", "a", "2001:db8::1", "u", "x")


def test_rows_that_make_no_sense() -> None:
    """An unknown type counts as primary, NULL as empty; a row that cannot be dialled is left out, not the list."""
    without = [dict(ROW, host="", public_ip=None), *(dict(ROW, port=port) for port in (0, 65536, None))]
    [row] = read_servers([dict(ROW, node_type="weird", cloud=None), *without])
    assert (row.node_type, row.cloud) == ("primary", "")
    with pytest.raises(KeyError):
        read_servers([{"host": "a"}])


PRIVATE, PUBLIC = Server("10.0.0.1", 1, public_ip="1.1.1.1"), Server("10.0.0.2", 1, public_ip="1.1.1.2")


@pytest.mark.parametrize(
    ("answered_at", "servers", "expected"),
    [
        ("10.0.0.1", [PRIVATE, PUBLIC], (False, True)),
        ("10.0.0.2", [PRIVATE, PUBLIC], (False, True)),
        ("1.1.1.2", [PRIVATE, PUBLIC], (True, True)),
        ("1.1.1.1", [PRIVATE, Server("10.0.0.2", 1)], (True, True)),
        ("9.9.9.9", [PRIVATE, PUBLIC], (True, False)),
        ("9.9.9.9", [PRIVATE, Server("10.0.0.2", 1)], (False, False)),
        ("9.9.9.9", [Server("10.0.0.1", 1, public_ip="10.0.0.1"), PUBLIC], (False, True)),
        (None, [PRIVATE, PUBLIC], (True, False)),
        ("10.0.0.7", [Server("inside", 1, public_ip="1.1.1.1")], (False, True)),
        ("1.1.1.7", [Server("inside", 1, public_ip="outside")], (True, True)),
        ("9.9.9.9", [Server("10.0.0.1", 1, public_ip="nowhere")], (False, False)),
        ("9.9.9.9", [], (False, False)),
    ],
)
def test_which_address_is_dialled(answered_at: str | None, servers: list[Server], expected: tuple[bool, bool]) -> None:
    """The first row in which the answering address stands decides for all; behind a load balancer it is guessed."""
    book = {"inside": "10.0.0.7", "outside": "1.1.1.7", "nowhere": None}
    assert choose(answered_at, servers, book) == AddressChoice(*expected)


def test_a_server_without_a_public_address_is_dialled_at_its_private_one() -> None:
    """Also where the others are not; and names of both kinds are to be looked up."""
    assert AddressChoice(public=True).host(Server("10.0.0.1", 1)) == "10.0.0.1"
    assert AddressChoice(public=True).host(PRIVATE) == "1.1.1.1"
    assert names([PRIVATE, Server("a", 1)]) == {"10.0.0.1", "1.1.1.1", "a"}


@pytest.mark.parametrize(
    "wrong", [None, "ab", ("h",), ("", 1), ("h", 0), ("h", "1"), (5, 1), ("h", 1, 1), KeyError("x")]
)
def test_a_function_for_addresses_that_fails_costs_no_other_server_its_address(wrong: Any) -> None:
    """Such as one that looks up what it knows, when a node has joined; that one is dialled as it is listed."""

    def address_map(host: str, port: int) -> Any:
        if host == "10.0.0.2" and isinstance(wrong, Exception):
            raise wrong
        return wrong if host == "10.0.0.2" else ("127.0.0.1", 7)

    listing = AddressBook(address_map).list(
        [Server("10.0.0.1", 1, uuid="a"), Server("10.0.0.2", 2, uuid="b")], [], None
    )
    assert [(event.host, event.port) for event in listing.servers] == [("127.0.0.1", 7), ("10.0.0.2", 2)]
    [remark] = listing.remarks
    assert "address_map" in remark
    assert "10.0.0.2:2" in remark


def test_a_decision_stands_and_a_guess_does_not() -> None:
    """What the first list settled, later ones do not change."""
    book = AddressBook()
    assert book.list([PRIVATE], [], "9.9.9.9").servers[0].host == "1.1.1.1"
    assert book.list([PRIVATE], [], "10.0.0.1").servers[0].host == "10.0.0.1"
    assert book.list([PRIVATE], [], "1.1.1.1").servers[0].host == "10.0.0.1"


def test_seeds_are_found_among_the_servers_by_any_name() -> None:
    """By private and public address, by a name with that address; two ports of one host are two servers."""
    servers = [
        Server("10.0.0.1", 1, public_ip="1.1.1.1", uuid="a"),
        Server("10.0.0.1", 2, uuid="b"),
        Server("10.0.0.2", 1, uuid="c"),
    ]
    book = AddressBook()
    book.addresses = {"db": "10.0.0.2", "lb": "9.9.9.9"}
    hosts = [host("lb", 1), host("db", 1), host("1.1.1.1", 1), host("10.0.0.1", 2)]
    listing = book.list(servers, hosts, "10.0.0.1")
    assert listing.seeds == (hosts[0].uuid, "c", "a", "b")
    assert [event.host for event in listing.extra] == ["lb"]
    assert [event.uuid for event in listing.servers] == ["a", "b", "c"]


def test_ipv6_addresses_are_the_same_however_they_are_written() -> None:
    """In the list, in the connection string, and as the system gives the address that answered."""
    [row] = read_servers([dict(ROW, host="2001:DB8:0:0::1", public_ip="[2001:db8:0::0:2]", uuid="a")])
    assert (row.host, row.public_ip) == ("2001:db8::1", "2001:db8::2")
    for answered_at, public in (("2001:db8:0:0:0:0:0:1", False), ("2001:0db8::2", True)):
        assert choose(answered_at, [row], {}) == AddressChoice(public=public, settled=True)
    inside = read_servers([dict(ROW, host="::ffff:10.0.0.1", public_ip="1.1.1.1")])
    assert choose("10.0.0.1", inside, {}) == choose("::FFFF:10.0.0.1", inside, {}) == AddressChoice(settled=True)
    assert choose("2001:db8::7", [Server("db", 1, public_ip="1.1.1.1")], {"db": "2001:DB8::0007"}).settled
    seeds = [host("2001:0DB8::0001"), host("2001:db8::2")]
    assert AddressBook().list([row], seeds, None).seeds == ("a",)


def test_a_map_has_the_last_word() -> None:
    """For tunnels; the seed is still found by what the list says, and by what is dialled."""
    book = AddressBook(lambda host, port: ("localhost", port + 1))
    for seed in (host("10.0.0.1", 1), host("localhost", 2)):
        listing = book.list([Server("10.0.0.1", 1, uuid="a")], [seed], None)
        assert (listing.servers[0].host, listing.servers[0].port) == ("localhost", 2)
        assert (listing.seeds, listing.extra) == (("a",), ())


def test_the_dialect_is_postgresql_with_other_words() -> None:
    """Its port, its capabilities; start-up options only for reads from followers."""
    dialect, plain = YugabyteDialect(), PostgresDialect()
    assert (dialect.name, dialect.default_port) == ("yugabyte", 5433)
    own = {Capability.LISTED_SERVERS, Capability.TABLETS}
    assert dialect.capabilities ^ plain.capabilities == {*own, Capability.DISCARD}
    following = {"yb_read_from_followers": "on", "default_transaction_read_only": "on"}
    for purpose in Purpose:
        assert dialect.startup_options(purpose) == (following if purpose is Purpose.REPLICA_READ else {})


@pytest.mark.parametrize(
    ("sqlstate", "expected"),
    [
        ("25006", Fault.STATEMENT),
        ("40001", Fault.CONFLICT),
        ("40P01", Fault.CONFLICT),
        ("XX000", Fault.STATEMENT),
        ("57P01", Fault.LOST),
        ("57P03", Fault.REFUSED),
        ("53300", Fault.OVERLOADED),
        ("28P01", Fault.AUTH),
        (None, Fault.STATEMENT),
    ],
)
def test_what_errors_mean(sqlstate: str | None, expected: Fault) -> None:
    """Every node takes writes, so nothing is "not the leader"; else as at PostgreSQL."""
    assert YugabyteDialect().fault(sqlstate, "") is expected


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Query error: Restart read required at: { read: { physical: 1 } }", Fault.CONFLICT),
        ("Catalog Version Mismatch: A DDL occurred while processing this query. Try again.", Fault.CONFLICT),
        ("schema version mismatch for table 000033: expected 3, got 2", Fault.CONFLICT),
        ("Timed out: Perform RPC timed out after 0.068s", Fault.STATEMENT),
    ],
)
def test_conflicts_that_are_told_as_internal_errors(message: str, expected: Fault) -> None:
    """By their texts; what timed out inside may have happened."""
    assert YugabyteDialect().fault("XX000", message) is expected
    assert YugabyteDialect().fault("22000", message) is Fault.STATEMENT

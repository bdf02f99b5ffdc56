"""Which hosts stand behind the names of a connection string."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import pytest

from picopyn.asynchronous.host_names import HostNames
from picopyn.dsn import Endpoint


class Phonebook:
    """Addresses by name; a name without any cannot be looked up."""

    def __init__(self, **numbers: Sequence[str]) -> None:
        self.numbers = numbers
        self.asked: list[tuple[str, int]] = []
        self.names: dict[tuple[str, int], str] = {}

    async def look_up(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        if not self.numbers.get(host):
            raise socket.gaierror("no such name")
        return self.numbers[host]

    def of(self, *endpoints: Endpoint) -> HostNames:
        return HostNames(endpoints, self.names, self.look_up)


def places(names: HostNames) -> list[str]:
    return [f"{host.host}:{host.port}" for host in names.hosts]


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        ([], ["db:1"]),
        (["10.0.0.1"], ["db:1"]),
        (["10.0.0.1", "10.0.0.1"], ["db:1"]),
        (["10.0.0.1", "::1"], ["db:1"]),
        (["10.0.0.2", "10.0.0.1"], ["10.0.0.1:1", "10.0.0.2:1"]),
        (["fd::2", "fd::1", "10.0.0.1"], ["fd::1:1", "fd::2:1"]),
        (["fd::2", "fd::1", "10.0.0.1", "10.0.0.2"], ["10.0.0.1:1", "10.0.0.2:1"]),
    ],
)
async def test_a_name_with_several_addresses_is_several_hosts(addresses: list[str], expected: list[str]) -> None:
    """An IPv4 and an IPv6 address are one server; a name with one address is looked up by whoever dials it."""
    names = Phonebook(db=addresses).of(Endpoint("db", 1))
    assert places(names) == ["db:1"]
    assert await names.look_up() is (expected != ["db:1"])
    assert places(names) == expected


async def test_addresses_and_sockets_are_not_looked_up() -> None:
    """There is nothing to find out."""
    book = Phonebook()
    names = book.of(Endpoint("10.0.0.1", 1), Endpoint("::1", 1), Endpoint("fe80::1%lo", 1), Endpoint("/run/pg", 1))
    assert not names.change
    assert not await names.look_up()
    assert book.asked == []


async def test_a_name_that_changes_is_followed() -> None:
    """New addresses count at once; one that is missing once may be back at the next look-up."""
    book = Phonebook(db=["10.0.0.1", "10.0.0.2"])
    names = book.of(Endpoint("db", 1), Endpoint("10.0.0.2", 1))
    assert names.change
    seen = []
    for addresses in (["10.0.0.1", "10.0.0.2"], ["10.0.0.1", "10.0.0.3"], [], ["10.0.0.3", "10.0.0.4"]):
        book.numbers["db"] = addresses
        await names.look_up()
        seen.append([host.host[-1] for host in names.hosts])
    assert seen == [["1", "2"], ["1", "2", "3"], ["1", "2", "3"], ["1", "3", "4", "2"]]
    await names.look_up()
    assert [host.host[-1] for host in names.hosts] == ["3", "4", "2"]
    assert book.names["10.0.0.4", 1] == "db"


async def test_hosts_keep_their_identity() -> None:
    """It is that of the address, however it was found."""
    book = Phonebook(db=["10.0.0.1", "10.0.0.2"])
    names = book.of(Endpoint("db", 1))
    await names.look_up()
    assert names.hosts == Phonebook().of(Endpoint("10.0.0.1", 1), Endpoint("10.0.0.2", 1)).hosts

"""One text for one address."""

from __future__ import annotations

import pytest

from picopyn.topology.host_text import canonical, same_place


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::FFFF:10.0.0.1", "10.0.0.1"),
        ("[2001:DB8:0::0001]", "2001:db8::1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("010.0.0.1", "010.0.0.1"),
        ("Db.Example", "Db.Example"),
        ("[no address]", "[no address]"),
        ("/run/postgresql", "/run/postgresql"),
        ("", ""),
    ],
)
def test_addresses_have_one_form_and_names_stay(written: str, expected: str) -> None:
    """What is an address of IPv4 inside of IPv6 is one of IPv4; what a system would not take for one is a name."""
    assert canonical(written) == canonical(canonical(written)) == expected


def test_places_are_compared_by_that() -> None:
    """The port counts."""
    assert same_place(("[::0:1]", 1), ("::1", 1))
    assert not same_place(("::1", 1), ("::1", 2))

"""Reading what YugabyteDB says about tablets: releases, masks, names, and rows that make no sense."""

from __future__ import annotations

from typing import Any

import pytest

from picopyn.dialects.yugabyte.tablets import (
    KeyColumn,
    TableFacts,
    read_table,
    read_tablets,
    tablet_map,
    tablets_question,
)

OLD = ("tablet_id", "oid", "db_name", "relname", "start_hash_code", "end_hash_code", "leader", "replicas")
NEW = (*OLD, "start_range", "end_range", "tablet_attrs", "tablet_state")

ORDERS = TableFacts(16384, 16384, "public", "orders", ("id", "v"), (KeyColumn("id", 23),))


def row(oid: Any = 16384, start: Any = 0, end: Any = 65536, leader: Any = "n1:5433", **more: Any) -> dict[str, Any]:
    facts = {"oid": oid, "start_hash_code": start, "end_hash_code": end, "leader": leader}
    return {"tablet_id": f"{oid} {start} {end}", "relname": "orders", **facts, **more}


def owner(*rows: dict[str, Any], table: TableFacts = ORDERS, code: int = 5) -> str | None:
    return tablet_map([table], read_tablets(rows)).owner(table.space, code)


def test_only_columns_that_the_release_has_are_asked_for() -> None:
    """Dropped tables' tablets can linger; newer releases tell which."""
    old, new = tablets_question(OLD), tablets_question(NEW)
    assert old is not None
    assert new is not None
    assert "tablet_state" not in old
    assert "tablet_state = 'RUNNING'" in new
    assert tablets_question(()) is None
    assert tablets_question(name for name in OLD if name != "leader") is None


@pytest.mark.parametrize(
    "nonsense",
    [
        row(start=None, end=None),
        row(start=-1),
        row(end=65537),
        row(start=10, end=10),
        row(start="0"),
        row(oid=None),
        row(leader=None),
        row(leader=""),
        row(leader="n1"),
        row(leader=":5433"),
        row(leader="n1:x"),
    ],
)
def test_rows_that_make_no_sense_say_nothing(nonsense: dict[str, Any]) -> None:
    """Ranges of range-sharded tables, of no width, outside the space; leaders that are away."""
    assert owner(nonsense) is None
    assert owner(nonsense, row(start=0, end=20)) == "n1:5433"


def test_an_address_is_cut_at_its_last_colon() -> None:
    """IPv6 comes with and without brackets."""
    assert owner(row(leader="[::1]:5433")) == "::1:5433"
    assert owner(row(leader="::1:5433")) == "::1:5433"
    assert owner(row(leader="[2001:DB8:0::1]:5433")) == "2001:db8::1:5433"


def test_who_holds_a_copy_is_told_in_one_order() -> None:
    """However the release lists them; where it does not, nobody is known."""
    rows = [row(end=10, replicas="n2:5433,[0:0::1]:5433,n1:5433"), row(start=10, replicas=None), row(start=20)]
    found = tablet_map([ORDERS], read_tablets(rows))
    assert [found.holders("public.orders", code) for code in (0, 15, 30)] == ["::1:5433,n1:5433,n2:5433", "", ""]
    assert "replicas" not in (tablets_question(name for name in OLD if name != "replicas") or "replicas")


def test_a_name_that_is_shown_must_be_right() -> None:
    """Older views find names by joining on them, so that a name in two schemas doubles rows; masked ones are taken."""
    assert owner(row(relname="invoices")) is None
    assert owner(row(relname="<insufficient privilege>")) == "n1:5433"
    assert owner(row(), row(relname="invoices", leader="n2:5433")) == "n1:5433"


def test_rows_name_the_table_or_its_storage() -> None:
    """Older releases give the number of the storage, which a rewrite changes; the OID counts where both are there."""
    rewritten = TableFacts(16384, 20000, "public", "orders", ("id",), ORDERS.key)
    assert owner(row(oid=20000), table=rewritten) == "n1:5433"
    assert owner(row(oid=20000, leader="old:1"), row(oid=16384), table=rewritten) == "n1:5433"
    assert owner(row(oid=20000)) is None


def test_tables_without_hash_columns_have_no_map() -> None:
    """Range-sharded and colocated ones."""
    plain = TableFacts(16384, 16384, "public", "orders", ("id",))
    assert tablet_map([plain], read_tablets([row()])).spaces == {}


def column(name: str, place: int | None, /, **more: Any) -> dict[str, Any]:
    facts = {"oid": 1, "file": 2, "schema": "s", "name": "t", "plain": True, "hashed": 2, "colocated": False}
    return {**facts, "column": name, "type": 23, "place": place, "bytewise": True, **more}


def test_the_hash_columns_are_the_first_of_the_primary_key() -> None:
    """In the order of the key, not of the table."""
    rows = [column("a", 3), column("b", 1, type=25, bytewise=False), column("c", None), column("d", 2)]
    found = read_table(rows)
    assert found == TableFacts(1, 2, "s", "t", ("a", "b", "c", "d"), (KeyColumn("b", 25, False), KeyColumn("d", 23)))
    assert found.space == "s.t"
    assert read_table([]) is None


@pytest.mark.parametrize(
    "more", [{"plain": False}, {"colocated": True}, {"hashed": 0}, {"hashed": None}, {"place": None}, {"hashed": 3}]
)
def test_a_table_that_is_no_place_of_its_own_has_no_key(more: dict[str, Any]) -> None:
    """Views, partitioned and colocated tables, and those without a hash key."""
    found = read_table([column("a", 1, **more), column("b", 2, **more)])
    assert found is not None
    assert found.key == ()

"""Types whose meaning is the same on every server, so that none has to be asked about them.

asyncpg knows the built-in types, but looks the arrays of them up in `pg_catalog` once per connection. Their OIDs never
change, so here they are; that spares PostgreSQL a query, and Picodata, which has no `pg_catalog`, an error.

*Source*: PostgreSQL, `src/include/catalog/pg_type.dat` (`array_type_oid`); OIDs below 10 000 are fixed for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

#: OID of the array → (name of the element's type, its OID).
# fmt: off
_ARRAYS: Final[Mapping[int, tuple[str, int]]] = {
    143: ("xml", 142), 199: ("json", 114), 271: ("xid8", 5069), 629: ("line", 628), 651: ("cidr", 650),
    719: ("circle", 718), 775: ("macaddr8", 774), 791: ("money", 790), 1000: ("bool", 16), 1001: ("bytea", 17),
    1002: ("char", 18), 1003: ("name", 19), 1005: ("int2", 21), 1007: ("int4", 23), 1008: ("regproc", 24),
    1010: ("tid", 27), 1011: ("xid", 28), 1012: ("cid", 29), 1014: ("bpchar", 1042), 1015: ("varchar", 1043),
    1016: ("int8", 20), 1017: ("point", 600), 1018: ("lseg", 601), 1019: ("path", 602), 1020: ("box", 603),
    1021: ("float4", 700), 1022: ("float8", 701), 1027: ("polygon", 604), 1040: ("macaddr", 829),
    1041: ("inet", 869), 1115: ("timestamp", 1114), 1182: ("date", 1082), 1183: ("time", 1083),
    1185: ("timestamptz", 1184), 1187: ("interval", 1186), 1231: ("numeric", 1700), 1270: ("timetz", 1266),
    1561: ("bit", 1560), 1563: ("varbit", 1562), 2951: ("uuid", 2950), 3643: ("tsvector", 3614),
    3645: ("tsquery", 3615), 3807: ("jsonb", 3802), 4073: ("jsonpath", 4072),
}
# fmt: on

#: What a row about an array says besides its names and numbers, in the form of asyncpg's own look-up.
_ARRAY: Final[Mapping[str, Any]] = {
    "ns": "pg_catalog",
    "kind": b"b",
    "basetype": None,
    "basetype_name": None,
    "range_subtype": None,
    "range_subtype_name": None,
    "attrtypoids": None,
    "attrnames": None,
}


def known_arrays(oids: Iterable[int]) -> list[dict[str, Any]]:
    """What asyncpg would find in `pg_catalog` about those of these types that are arrays of built-in ones."""
    return [_row(oid, *_ARRAYS[oid]) for oid in oids if oid in _ARRAYS]


def _row(oid: int, element: str, element_oid: int) -> dict[str, Any]:
    return {
        **_ARRAY,
        "oid": oid,
        "name": f"_{element}",
        "elemtype": element_oid,
        "elemtype_name": element,
        "elemdelim": b";" if element == "box" else b",",
    }

"""The types of a statement's parameters: declared by the client, or found from where they stand.

A statement is bound twice: the first round collects what each place wants, the second works with the result;
what no place decides is text. *Source*: `picodata-protocol.md` section 7, the recorded ParameterDescriptions.
"""

from __future__ import annotations

from collections.abc import Sequence

from picopyn.testing.picodata.planner.accent import DEFAULT, Accent
from picopyn.testing.picodata.planner.catalog import TYPE_OIDS
from picopyn.testing.picodata.planner.errors import ServerError, sbroad

#: Parameter OIDs a client may declare, as planner types.
ACCEPTED_OIDS = {
    20: "int",
    23: "int",
    21: "int",
    25: "text",
    1043: "text",
    16: "bool",
    701: "double",
    1700: "decimal",
} | {
    2950: "uuid",
    1184: "datetime",
}

#: The same for arrays, from 26.2 on. *Source*: `picodata-protocol.md` section 7; recorded: OID 1016.
ARRAY_OIDS = {
    1000: "bool[]", 1005: "int[]", 1007: "int[]", 1009: "text[]", 1015: "text[]", 1016: "int[]",
    1022: "double[]", 1185: "datetime[]", 1231: "decimal[]", 2951: "uuid[]",
}  # fmt: skip

_UNSPECIFIED = (0, 705)

#: Names PostgreSQL gives to type OIDs that Picodata knows and refuses as parameters.
_REFUSED_OIDS = {
    17: "bytea", 18: "char", 19: "name", 26: "oid", 114: "json", 142: "xml", 199: "_json", 600: "point",
    650: "cidr", 700: "float4", 790: "money", 829: "macaddr", 869: "inet", 1000: "_bool",
    1001: "_bytea", 1005: "_int2", 1007: "_int4", 1009: "_text", 1015: "_varchar", 1016: "_int8",
    1021: "_float4", 1022: "_float8", 1042: "bpchar", 1082: "date", 1083: "time", 1114: "timestamp",
    1115: "_timestamp", 1182: "_date", 1183: "_time", 1185: "_timestamptz", 1186: "interval",
    1231: "_numeric", 1266: "timetz", 1560: "bit", 1562: "varbit", 2951: "_uuid", 3802: "jsonb",
    3807: "_jsonb", 3904: "int4range", 3908: "tsrange", 3910: "tstzrange", 3912: "daterange",
    3926: "int8range",
}  # fmt: skip


def refused_oid(oid: int) -> ServerError:
    """What Parse answers to a parameter type it does not take."""
    name = _REFUSED_OIDS.get(oid)
    what = f"{name} parameters" if name else f"parameter oid {oid}"
    return ServerError("0A000", f"feature is not supported: {what}")


class Parameters:
    """What is known about the parameters of one statement while it is bound."""

    def __init__(self, declared: Sequence[int] = (), accent: Accent = DEFAULT) -> None:
        self.accent = accent
        self._accepted = {**ACCEPTED_OIDS, **ARRAY_OIDS} if accent.since_26_2 else ACCEPTED_OIDS
        self.declared: dict[int, int] = {}
        for number, oid in enumerate(declared, 1):
            if oid in _UNSPECIFIED:
                continue
            if oid not in self._accepted:
                raise refused_oid(oid)
            self.declared[number] = oid
        self.wanted: dict[int, str] = {}
        self.casts: dict[int, str] = {}
        self.seen: set[int] = set()
        self.final = False

    def meet(self, number: int) -> None:
        """Note that the parameter occurs."""
        self.seen.add(number)

    def type_of(self, number: int) -> str:
        """Its type as far as it is known; `"unknown"` in the first round if nothing decides."""
        if number in self.declared:
            return self._accepted[self.declared[number]]
        known = self.wanted.get(number) or self.casts.get(number)
        return known or ("text" if self.final else "unknown")

    def want(self, number: int, kind: str) -> None:
        """A place takes only this type.

        Raises:
            ServerError: Another place wants another type.
        """
        if number in self.declared or kind in ("unknown", "row", "json"):
            return
        before = self.wanted.setdefault(number, kind)
        if before != kind:
            raise sbroad(
                f"inconsistent types {before} and {kind} deduced for parameter ${number}, consider using "
                f"transitive type casts through a common type, e.g. ${number}::{before}::{kind} and "
                f"${number}::{before}"
            )

    def cast(self, number: int, kind: str) -> None:
        """The parameter is written with a cast, which decides if nothing else does."""
        self.casts.setdefault(number, kind)

    def oids(self) -> tuple[int, ...]:
        """What ParameterDescription says."""
        count = max([*self.seen, *self.declared], default=0)
        return tuple(self.declared.get(n) or TYPE_OIDS[self.type_of(n)] for n in range(1, count + 1))

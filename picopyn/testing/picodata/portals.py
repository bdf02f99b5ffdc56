"""What one session has prepared and bound: statements, portals, and how a result is written. Pure.

Decides names, formats and how many rows an Execute sends. Must not know a socket or where statements run.

*Source*: `picodata-protocol.md` section 8 (extended protocol), recorded section "messages".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from picopyn.testing.picodata import wire
from picopyn.testing.picodata.planner.errors import ServerError, internal, parameter_count
from picopyn.testing.picodata.planner.statement import Statement
from picopyn.testing.picodata.planner.values import decode_parameter, encode_value

_COUNTED = frozenset({"select", "insert", "update", "delete", "explain", "do"})


@dataclass(frozen=True, slots=True)
class Result:
    """What an executed statement gave: its rows (empty for a write) and the number its tag shows."""

    rows: Sequence[Sequence[Any]]
    count: int


def tag(statement: Statement, result: Result) -> str:
    """The command tag; only statements that touch rows carry a number."""
    return f"{statement.tag} {result.count}" if statement.kind in _COUNTED else statement.tag


@dataclass(slots=True)
class Portal:
    """A bound statement. `result` is None until it ran; `sent` counts the rows already sent."""

    statement_name: str
    statement: Statement
    values: tuple[Any, ...]
    formats: tuple[int, ...]
    result: Result | None = None
    sent: int = 0
    done: bool = False

    def send(self, limit: int) -> list[bytes]:
        """The messages of one Execute, after the statement ran."""
        assert self.result is not None
        rows = self.result.rows
        end = min(len(rows), self.sent + limit) if limit > 0 else len(rows)
        out = encode_rows(self.statement, rows[self.sent : end], self.formats)
        self.sent = end
        if end < len(rows):
            return [*out, wire.PORTAL_SUSPENDED]
        self.done = True
        return [*out, wire.command_complete(tag(self.statement, self.result))]


def encode_rows(statement: Statement, rows: Sequence[Sequence[Any]], formats: Sequence[int]) -> list[bytes]:
    """DataRow messages."""
    if not rows or statement.columns is None:
        return []
    oids = [oid for _, oid in statement.columns]
    return [wire.data_row(list(map(encode_value, oids, formats, row))) for row in rows]


def spread(codes: Sequence[int], items: int) -> tuple[int, ...]:
    """Format codes for so many items: none means text, one counts for all.

    Raises:
        ServerError: 08P01, neither none nor one nor one for each.
    """
    if len(codes) == items:
        return tuple(codes)
    if len(codes) > 1:
        raise ServerError("08P01", f"protocol violation: got {len(codes)} format codes for {items} items")
    return tuple(codes or (0,)) * items


@dataclass
class Desk:
    """Statements and portals of one session.

    Args:
        client: Number of the session, named in some errors.
    """

    client: int
    statements: dict[str, Statement] = field(default_factory=dict)
    portals: dict[str, Portal] = field(default_factory=dict)

    def check_free(self, name: str) -> None:
        """A named statement cannot be replaced.

        Raises:
            ServerError: 42P05.
        """
        if name and name in self.statements:
            raise ServerError("42P05", f"Statement '{name}' for client {self.client} already exists")

    def statement(self, name: str) -> Statement:
        """The prepared statement of that name.

        Raises:
            ServerError: There is none.
        """
        found = self.statements.get(name)
        if found is None:
            raise internal(f"Couldn't find statement '{name}'.")
        return found

    def portal(self, name: str) -> Portal:
        """The portal of that name.

        Raises:
            ServerError: There is none.
        """
        found = self.portals.get(name)
        if found is None:
            raise internal(f"Couldn't find portal '{name}'.")
        return found

    def bind(self, message: wire.Bind, statement: Statement) -> None:
        """Make a portal.

        Raises:
            ServerError: Name taken, wrong number of values or formats, or a value that cannot be read.
        """
        if message.portal and message.portal in self.portals:
            raise ServerError("42P03", f"Portal '{message.portal}' for client {self.client} already exists")
        values = read_values(message, statement)
        formats = spread(message.result_formats, len(statement.columns or ()))
        self.portals[message.portal] = Portal(message.statement, statement, values, formats)

    def close(self, kind: str, name: str) -> None:
        """Forget a statement with its portals, or a portal; unknown names are fine."""
        if kind == "P":
            self.portals.pop(name, None)
            return
        self.statements.pop(name, None)
        for key in [key for key, portal in self.portals.items() if portal.statement_name == name]:
            del self.portals[key]

    def deallocate(self, name: str | None) -> None:
        """Forget one statement, or all of them.

        Raises:
            ServerError: There is no such statement.
        """
        if name is None:
            self.statements.clear()
            self.portals.clear()
        elif name in self.statements:
            self.close("S", name)
        else:
            raise internal(f"prepared statement {name} does not exist.")


def read_values(message: wire.Bind, statement: Statement) -> tuple[Any, ...]:
    """The values of a Bind, typed by the statement's parameters.

    Raises:
        ServerError: Their number is wrong, or one cannot be read.
    """
    oids = statement.parameter_oids
    if len(message.values) != len(oids):
        raise parameter_count(len(message.values), message.statement, len(oids))
    codes = spread(message.formats, len(oids))
    return tuple(
        decode_parameter(oid, code, raw, number)
        for number, (oid, code, raw) in enumerate(zip(oids, codes, message.values, strict=True), 1)
    )

"""The start-up packet: which keys count, which values close the door. Pure.

Decides what a client asked for, or that it is turned away without a word. Must not know users or passwords.

*Source*: `picodata-protocol.md` section 3, `picodata-recorded.md` section 5 (bad values), recorded section
"startup".
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from picopyn.testing.picodata.planner.accent import DEFAULT, Accent

_SMART = ("pico_query_metadata", "pico_stmt_invalidation", "picodata_catalog_cdc")


class TurnedAway(Exception):  # noqa: N818 - it is what happened
    """The server closes the socket without a message; the text is for the server's own log only."""


@dataclass(frozen=True, slots=True)
class StartUp:
    """What a connection asked for.

    Attributes:
        user: Who wants in.
        query_metadata: Whether each Parse is answered with a metadata notice.
        stmt_invalidation: Whether a stale statement fails at Bind with 42999.
        read_preference: `"leader"`, `"replica"` or `"any"`; None when the connection says nothing.
        forward: `"on"`, `"ro_to_rw"` or `"off"`: whether statements may be sent on to other instances (26.2).
        sql_motion_row_max: Row limit of this connection, or None.
        sql_vdbe_opcode_max: Opcode limit of this connection, or None.
        catalog_cdc: Version of the planned topology notices that the client reads, as it was written, or None.
    """

    user: str
    query_metadata: bool = False
    stmt_invalidation: bool = False
    read_preference: str | None = None
    sql_motion_row_max: int | None = None
    sql_vdbe_opcode_max: int | None = None
    forward: str | None = None
    catalog_cdc: str | None = None


def read_start_up(body: bytes, accent: Accent = DEFAULT) -> StartUp:
    """Read the keys and values that follow the protocol number.

    Raises:
        TurnedAway: No user, or a value Picodata does not take.
    """
    keys = _pairs(body)
    if "user" not in keys:
        raise TurnedAway("parameter 'user' is missing")
    asked = StartUp(keys["user"])
    if "options" in keys:
        for name, value in _options(keys["options"]).items():
            asked = (
                replace(asked, forward=_forward(value))
                if name == "forward" and accent.since_26_2
                else _apply(asked, name, value)
            )
    for name in _SMART:
        if name in keys:
            asked = _apply(asked, name, keys[name])
    return asked


def _pairs(body: bytes) -> dict[str, str]:
    try:
        words = body.decode().split("\0")
    except UnicodeDecodeError:
        raise TurnedAway("not UTF-8") from None
    return {name: value for name, value in zip(words[::2], words[1::2], strict=False) if name}


def _options(text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for piece in text.split(","):
        name, equals, value = piece.partition("=")
        if not equals:
            raise TurnedAway(f"option without value: {name}")
        options[name] = value
    return options


def _apply(asked: StartUp, name: str, value: str) -> StartUp:
    match name:
        case "pico_query_metadata":
            return replace(asked, query_metadata=_switch(name, value))
        case "pico_stmt_invalidation":
            return replace(asked, stmt_invalidation=_switch(name, value))
        case "sql_motion_row_max":
            return replace(asked, sql_motion_row_max=_number(name, value))
        case "sql_vdbe_opcode_max":
            return replace(asked, sql_vdbe_opcode_max=_number(name, value))
        case "read_preference":
            return replace(asked, read_preference=_preference(value))
        case "picodata_catalog_cdc":  # whether anybody heeds it is another matter
            return replace(asked, catalog_cdc=value)
    return asked


def _forward(value: str) -> str:
    """Case matters, and anything else closes the door (recorded on 26.2); older servers ignore the option."""
    if value not in ("on", "off", "ro_to_rw"):
        raise TurnedAway(f"unknown forward value: '{value}'")
    return value


def _preference(value: str) -> str:
    if value.lower() not in ("leader", "replica", "any"):
        raise TurnedAway(f"unknown read_preference value: '{value}'")
    return value.lower()


def _switch(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise TurnedAway(f"error parsing value for option {name}: {value}")
    return value == "true"


def _number(name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and int(value) < 1 << 63):
        raise TurnedAway(f"value for option {name} should be a non-negative integer: {value}")
    return int(value)

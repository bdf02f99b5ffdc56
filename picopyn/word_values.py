"""How the texts of a connection string become values; a part of [`settings`][picopyn.settings].

A text that cannot be what it should stays as it is, so that whoever checks the value can tell it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from picopyn.tls import TLS_VERSIONS


def whole_or_text(text: str) -> Any:
    """A whole number; what is none stays text, and is told as such."""
    try:
        return int(text)
    except ValueError:
        return text


def seconds_or_text(text: str) -> Any:
    """A number of seconds; `off` for none."""
    if text.lower() in ("off", "none"):
        return None
    try:
        return float(text)
    except ValueError:
        return text


def keepalive(number: Callable[[str], Any]) -> Callable[[str], Any]:
    """As libpq has it, 0 stands for the system's own setting."""
    return lambda text: None if text == "0" else number(text)


def milliseconds_or_text(text: str) -> Any:
    """As libpq has it, a count of milliseconds."""
    try:
        return float(text) / 1000 or None
    except ValueError:
        return text


def switch(text: str) -> Any:
    """A truth value; what is none stays text."""
    return {"1": True, "on": True, "true": True, "0": False, "off": False, "false": False}.get(text.lower(), text)


def ssl_mode(text: str) -> str:
    """JDBC writes `ssl=true` for `sslmode=require`."""
    return {"true": "require", "false": "disable"}.get(text.lower(), text)


def tls_version(text: str) -> str:
    """`tlsv1.3` is `TLSv1.3`, as libpq has it."""
    return next((version for version in TLS_VERSIONS if version.lower() == text.lower()), text)

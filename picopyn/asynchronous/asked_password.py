"""A password that a function gives: it is asked for each new connection, and what it gives has to be a text."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from picopyn.errors import ConfigError


def ask_for_password(give: Callable[[], Any]) -> Any:
    """What the function gives, or an awaitable of that; None, where no password is wanted, is left to asyncpg.

    Args:
        give: The function, or coroutine function.

    Raises:
        ConfigError: It gave something else than a text; its type is named, not its value.
    """
    given = give()
    return _awaited(given) if inspect.isawaitable(given) else _checked(given)


async def _awaited(given: Awaitable[Any]) -> str | None:
    return _checked(await given)


def _checked(given: object) -> str | None:
    if given is None or isinstance(given, str):
        return given
    raise ConfigError(f"password: the function that was given must give a text, but it gave {type(given).__name__}")

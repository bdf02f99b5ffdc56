"""What the handler of a signal raises: it may fall between any two steps of ours, and says nothing about them.

Ctrl-C is no `Exception`, and nobody here takes it for an error. A handler may raise anything, though, and where it is a
`TimeoutError` or another `OSError` its type tells nothing. Its traceback does: a handler is called with the number of
the signal and the frame that it interrupts, and that frame stands before its own.

*Source*: Python documentation, `signal.signal`: "The handler is called with two arguments: the signal number and the
current stack frame".
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from itertools import pairwise
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn

from picopyn.errors import led_to

#: The mark of errors that are known to come from a handler.
_INTERRUPTION: Final = "picopyn_interruption"
#: Functions of these kinds do nothing when they are called, so none of them is a handler.
_BEGUN_LATER: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def mark(error: BaseException) -> None:
    """Note that an error comes from a handler."""
    error.__dict__[_INTERRUPTION] = True


def is_interruption(error: BaseException) -> bool:
    """Whether an error interrupts, whatever its type: nobody knows what it fell into."""
    if not isinstance(error, Exception) or _INTERRUPTION in error.__dict__:
        return True
    return getattr(error, "sqlstate", None) is None and _has_left_a_handler(error)


def interruption_in(error: BaseException) -> BaseException | None:
    """What a handler has raised among an error and those that led to it, or None.

    What is raised while an interruption is on its way out hides it. What the caller is just handling is not looked at:
    it came before.
    """
    above = set(_above(sys._getframe(1)))

    def came_before(other: BaseException) -> bool:
        trace = other.__traceback__
        return other is not error and trace is not None and trace.tb_frame in above

    return next(filter(_has_left_a_handler, led_to(error, came_before)), None)


def raise_as_it_was(interruption: BaseException) -> NoReturn:
    """Raise it in the place of an error that it led to; it does not get that for its context, which would be a ring."""
    mark(interruption)
    context = interruption.__context__
    try:
        raise interruption
    finally:
        interruption.__context__ = context


def _has_left_a_handler(error: BaseException) -> bool:
    """Whether its traceback shows the call of a handler."""
    frames: list[FrameType] = []
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        if frames and _interrupts(trace.tb_frame, frames):
            return True
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    return False


def _interrupts(frame: FrameType, frames: list[FrameType]) -> bool:
    """Whether a function was called with a number and then one of these frames."""
    code = frame.f_code
    takes_more = code.co_flags & inspect.CO_VARARGS
    if code.co_flags & _BEGUN_LATER or (code.co_argcount < 2 and not takes_more):
        return False
    values = frame.f_locals
    given: list[Any] = [values.get(name) for name in code.co_varnames[: code.co_argcount]]
    if takes_more:
        given += values.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount], ())
    return any(
        isinstance(number, int) and any(where is interrupted for interrupted in frames)
        for number, where in pairwise(given)
    )


def _above(frame: FrameType) -> Iterator[FrameType]:
    """The frames that called this one."""
    above = frame.f_back
    while above is not None:
        yield above
        above = above.f_back

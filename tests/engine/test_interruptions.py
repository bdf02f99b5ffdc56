"""What a signal's handler raises is known by its traceback, whatever its type and whatever hides it."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from picopyn.engine.interruptions import interruption_in, is_interruption, mark, raise_as_it_was


class Late(TimeoutError):  # noqa: N818 - names the event
    """What the handlers here raise."""


def plain(number: int, frame: object) -> None:
    raise Late


def of_anything(*_: object) -> None:
    raise Late


def by_another(number: int, frame: object) -> None:
    of_anything()


def with_more(why: str, number: int, frame: object) -> None:
    raise Late(why)


class Called:
    """A handler that is an object, or its method."""

    def __call__(self, number: int, frame: object) -> None:
        raise Late

    def method(self, number: int, frame: object) -> None:
        raise Late


HANDLERS = [plain, of_anything, by_another, functools.partial(with_more, "late"), Called(), Called().method]


@pytest.fixture
def come() -> Iterator[Callable[[Any], None]]:
    """Lets a signal come to a handler."""
    former = signal.getsignal(signal.SIGUSR1)

    def come(handler: Any) -> None:
        signal.signal(signal.SIGUSR1, handler)
        signal.raise_signal(signal.SIGUSR1)

    yield come
    signal.signal(signal.SIGUSR1, former)


@pytest.mark.parametrize("handler", HANDLERS)
def test_the_call_of_a_handler_is_seen(handler: Any, come: Callable[[Any], None]) -> None:
    """A function, a method, an object, with whatever names of its arguments."""
    with pytest.raises(Late) as raised:
        come(handler)
    assert is_interruption(raised.value)
    assert interruption_in(raised.value) is raised.value


def test_other_errors_are_none() -> None:
    """Also where a frame is handed on, or a number."""

    def look(frame: object, number: int) -> None:
        raise Late

    def count(number: int, other: object) -> None:
        raise Late

    for call in (lambda: look(_here(), 1), lambda: count(1, 2), lambda: of_anything(), lambda: int("x")):
        with pytest.raises((Late, ValueError)) as raised:
            call()
        assert not is_interruption(raised.value)
        assert interruption_in(raised.value) is None
    error = Late()
    assert not is_interruption(error)
    mark(error)
    assert is_interruption(error)
    assert is_interruption(KeyboardInterrupt())


def _here() -> object:
    return sys._getframe(1)


def hidden(come: Callable[[Any], None], *, by_cause: bool) -> None:
    try:
        come(plain)
    except Late as error:
        if by_cause:
            raise ValueError from error
        raise ValueError  # noqa: B904 - what hides it says nothing


@pytest.mark.parametrize("by_cause", [True, False])
def test_what_hides_it_is_looked_behind(by_cause: bool, come: Callable[[Any], None]) -> None:
    """It is raised in its place, and its context stays what it was."""

    def call() -> None:
        try:
            hidden(come, by_cause=by_cause)
        except ValueError as error:
            found = interruption_in(error)
            assert found is not None
            raise_as_it_was(found)

    with pytest.raises(Late) as raised:
        call()
    assert raised.value.__context__ is None
    assert is_interruption(raised.value)


def test_what_the_caller_is_handling_came_before(come: Callable[[Any], None]) -> None:
    """He was interrupted then, and calls again because of that; this call was not."""

    def call() -> BaseException | None:
        try:
            raise ValueError
        except ValueError as error:
            contexts.append(error.__context__)
            return interruption_in(error)

    contexts: list[BaseException | None] = []
    try:
        come(plain)
    except Late:
        assert call() is None
    assert [type(context) for context in contexts] == [Late]

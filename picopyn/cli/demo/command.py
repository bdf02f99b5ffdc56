"""`picopyn demo` as a command: what it needs before it can start, and how it ends.

This file decides the exit code of everything that is not a promise. It must not import what may be missing.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import signal
import sys
from collections.abc import Iterator
from types import FrameType

#: What to do when something is not installed.
_ADVICE = "install it with: pip install 'picopyn[testing,cli]'"


def run(*, quick: bool, threads: bool = False) -> int:
    """Play the demo.

    Args:
        quick: Shorter acts.
        threads: The callers are threads, and the pool is `picopyn.sync.Pool`.

    Returns:
        The exit code, see [`picopyn.cli.main`][].
    """
    try:
        importlib.import_module("picopyn.cli.demo.play")
    except ModuleNotFoundError as error:
        return _refuse(f"the package {error.name!r} is missing; {_ADVICE}")
    return _play(quick, threads)


def _play(quick: bool, threads: bool) -> int:
    from picopyn.cli.demo.play import play
    from picopyn.cli.demo.stage import QUICK, Pace
    from picopyn.testing import ClusterError, PostgresNotFound
    from picopyn.testing.postgres_binaries import find_postgres

    logging.getLogger("picopyn").addHandler(logging.NullHandler())
    try:
        find_postgres()
        with _terminated_like_interrupted():
            return play(QUICK if quick else Pace(), threads=threads)
    except PostgresNotFound as error:
        return _refuse(str(error))
    except ClusterError as error:
        *_, last = ["", *str(error).strip().splitlines()]
        return _refuse(f"the embedded cluster gave up: {last}")
    except KeyboardInterrupt:
        print("\npicopyn demo: stopped before its end; nothing is left behind", file=sys.stderr)
        return 130


def _refuse(reason: str) -> int:
    print(f"picopyn demo cannot run: {reason}", file=sys.stderr)
    return 2


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

"""`picopyn demo` as a command: what it needs before it can start, and how it ends.

This file decides the exit code of everything that is not a promise. It must not import what may be missing.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import random
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

#: What to do when something is not installed. Not by the name `picopyn`: the index has an older driver under it.
_ADVICE = "install picopyn with its extras testing and cli, from a clone: pip install '.[testing,cli]'"


def run(*, quick: bool, threads: bool = False, chaos: bool = False, seed: int | None = None) -> int:
    """Play the demo.

    Args:
        quick: Shorter acts.
        threads: The callers are threads, and the pool is `picopyn.sync.Pool`.
        chaos: Random disturbances instead of the acts.
        seed: Which ones; None: others each time.

    Returns:
        The exit code, see [`picopyn.cli.main`][].
    """
    try:
        importlib.import_module("picopyn.cli.demo.chaos" if chaos else "picopyn.cli.demo.play")
    except ModuleNotFoundError as error:
        return _refuse(f"the package {error.name!r} is missing; {_ADVICE}")
    if not chaos:
        return _start(lambda: _acts(quick, threads))
    chosen = random.randrange(1_000_000) if seed is None else seed
    return _start(lambda: _chaos(chosen, quick, threads))


def _acts(quick: bool, threads: bool) -> int:
    from picopyn.cli.demo.play import play
    from picopyn.cli.demo.stage import QUICK, Pace

    return play(QUICK if quick else Pace(), threads=threads)


def _chaos(seed: int, quick: bool, threads: bool) -> int:
    from picopyn.cli.demo.chaos import play

    return play(seed, quick=quick, threads=threads)


def _start(play: Callable[[], int]) -> int:
    from picopyn.testing import ClusterError, PostgresFailed, PostgresNotFound
    from picopyn.testing.postgres_binaries import find_postgres

    logging.getLogger("picopyn").addHandler(logging.NullHandler())
    try:
        find_postgres()
        with _terminated_like_interrupted():
            return play()
    except PostgresNotFound as error:
        return _refuse(str(error))
    except (ClusterError, PostgresFailed) as error:
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

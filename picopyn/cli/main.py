"""The command `picopyn`: which words it takes, and which exit codes it gives.

This file decides the command line. It must not know what a command does: each one is imported when it is asked for, so
that `picopyn --version` works without the extra packages of the others.

| exit code | meaning |
|---|---|
| 0 | done, and every promise was kept |
| 1 | a promise was broken |
| 2 | it could not start: wrong arguments, a text that the server refuses, or packages are missing |
| 130 | stopped by Ctrl-C or SIGTERM |
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from picopyn import __version__

_DEMO = """
Starts a cluster of four instances on this machine, puts load on it, moves buckets under that load, kills a leader, and
checks in the end that every acknowledged row is there. Takes about 25 seconds; nothing else on the machine is touched.
With --chaos: kills, freezes, cuts off, switches, adds, expels and rebalances in random order, on a Picodata cluster and
on a PostgreSQL primary with replicas, and checks the history of all calls: nothing lost, doubled or stale.
"""


_ROUTE = """
Learns from the server where a statement belongs and prints it: the key, the bucket, its owner, the node. Nothing is
executed. Arguments are read as the types the server names.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Without the program's name; None: those of the process.

    Returns:
        The exit code.
    """
    parser = _parser()
    asked = parser.parse_args(arguments)
    if asked.command == "route":
        from picopyn.cli import route

        return route.run(asked.dsn, asked.sql, asked.arguments)
    if asked.seed is not None and not asked.chaos:
        parser.error("--seed belongs to --chaos: the acts of the demo are always the same")
    from picopyn.cli.demo import command

    return command.run(quick=asked.quick, threads=asked.sync, chaos=asked.chaos, seed=asked.seed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="picopyn", description="A Python driver for PostgreSQL-speaking clusters.")
    parser.add_argument("--version", action="version", version=f"picopyn {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    demo = commands.add_parser("demo", help="see it work on a cluster of its own", description=_DEMO)
    demo.add_argument("--quick", action="store_true", help="shorter acts, for tests (about 10 seconds)")
    demo.add_argument("--sync", action="store_true", help="the same with threads and picopyn.sync.Pool")
    demo.add_argument("--chaos", action="store_true", help="random disturbances instead, of two kinds of clusters")
    demo.add_argument("--seed", type=int, metavar="N", help="with --chaos: the disturbances that a run with N had")
    route = commands.add_parser("route", help="say where a statement would go", description=_ROUTE)
    route.add_argument("dsn", help="connection string")
    route.add_argument("sql", help="the statement, with $1, $2, … for its arguments")
    route.add_argument(
        "arguments", nargs="*", help="its arguments, in order; NULL for NULL; after -- if one begins with -"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())

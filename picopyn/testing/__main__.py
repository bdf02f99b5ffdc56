"""`python -m picopyn.testing picodata`: start a cluster for play and print its URI.

Decides the command line only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from picopyn.testing.picodata.picodata_cluster import play


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m picopyn.testing", description="Clusters for play.")
    kinds = parser.add_subparsers(dest="kind", required=True)
    picodata = kinds.add_parser("picodata", help="a Picodata-shaped cluster; ends with Ctrl-C or Ctrl-D")
    picodata.add_argument("--replicasets", type=int, default=2, help="number of replicasets (default 2)")
    picodata.add_argument("--replication", type=int, default=2, help="instances in each (default 2)")
    picodata.add_argument("--bucket-count", type=int, default=3000, help="number of buckets (default 3000)")
    picodata.add_argument(
        "--auto-offline-timeout",
        type=float,
        default=3.0,
        help="seconds until a lost instance is demoted (default 3)",
    )
    settings = vars(parser.parse_args(arguments))
    settings.pop("kind")
    return play(**settings)


if __name__ == "__main__":
    sys.exit(main())

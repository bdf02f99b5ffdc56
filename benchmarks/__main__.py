"""Compare picopyn with its peers on a plain PostgreSQL, and print ratios to a bare connection.

    python -m benchmarks                       the comparison
    python -m benchmarks --everything          also the gate, the layers, the manual's page: 15 minutes
    python -m benchmarks --size tiny           does it run at all
    python -m benchmarks --only "50 tasks"     some situations
    python -m benchmarks --only thread         those of `picopyn.sync`

Results go to benchmarks/results and the page to docs; those of tiny and partial runs go to build/benchmarks.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import gate, hot_path, report, results, tables
from benchmarks.comparing import compare
from benchmarks.plans import EVERYBODY, SIZES

_BUILD = Path(__file__).parent.parent / "build" / "benchmarks"

#: What the gate and the layers are given for each size.
_GATE = {
    "tiny": ["--processes", "2", "--rounds", "3", "--seconds", "0.02", "--patience", "2"],
    "standard": [],
    "full": ["--processes", "36", "--rounds", "40", "--seconds", "0.05", "--patience", "300"],
}
_LAYERS = {"tiny": ["--calls", "200", "--repeats", "3"], "standard": [], "full": ["--repeats", "200"]}


def main(words: list[str] | None = None) -> int:
    """Parse the command line, measure, print, save."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=list(SIZES), default="standard")
    parser.add_argument("--everything", action="store_true", help="also the gate, the layers and the page")
    parser.add_argument("--nodes", type=int, choices=(1, 2), default=1, help="nodes the topology tells of")
    parser.add_argument("--only", default="", metavar="TEXT", help="only situations whose title has this text")
    parser.add_argument("--without", action="append", default=[], choices=EVERYBODY, help="leave out a client")
    parser.add_argument("--patience", type=float, metavar="S", help="seconds that repeated blocks may cost")
    parser.add_argument("--into", type=Path, metavar="DIRECTORY", help="where results go")
    options = parser.parse_args(words)
    partial = options.size == "tiny" or options.only or options.without
    into = options.into or (_BUILD if partial else results.RESULTS)
    run = compare(options.size, options.nodes, options.only, tuple(options.without), options.patience)
    results.save(run, into / results.COMPARISON)
    print(tables.everything(run))
    if options.everything:
        gate.main([*_GATE[options.size], "--save", str(into / results.GATE)])
        hot_path.main([*_LAYERS[options.size], "--save", str(into / results.LAYERS)])
        report.write(into, report.DOCS if into == results.RESULTS else into)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

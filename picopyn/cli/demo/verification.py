"""The end: is every acknowledged row there, once, as acknowledged?

It reads what is stored through the cluster itself, not through the driver that is shown.
"""

from __future__ import annotations

from collections.abc import Iterator

from picopyn.cli.demo.ledger import Audit, Key
from picopyn.cli.demo.promises import Promise
from picopyn.cli.demo.tables import TABLES
from picopyn.testing import PicodataCluster


def stored(cluster: PicodataCluster) -> Iterator[tuple[Key, str]]:
    """Key and state of every row of every table."""
    for table in TABLES:
        for *key, state in cluster.execute(table.everything):
            yield (table.name, tuple(key)), state


def promise(audit: Audit) -> Promise:
    """The promise about the books, and how it turned out."""
    evidence = f"{audit.there} rows"
    if not audit.sound:
        wrong = {
            "lost": audit.lost,
            "twice": audit.twice,
            "differing": audit.differing,
            "back after their deletion": audit.back,
        }
        named = (f"{len(keys)} {how} ({keys[0][0]} {keys[0][1]} …)" for how, keys in wrong.items() if keys)
        evidence += ", " + ", ".join(named)
    if audit.unknown:
        evidence += f"; {audit.unknown} unknown, {audit.happened} of them happened"
    return Promise("every acknowledged row is there exactly once", audit.sound, evidence)

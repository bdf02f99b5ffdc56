"""The manual keeps its word: every Python block compiles, and those marked `<!-- run -->` run.

The blocks of a page run in order, in one namespace, against an embedded cluster with a table `orders`; those of the
page about PostgreSQL against such a server. The connection string of the examples stands for theirs.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import asyncpg
import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLE_DSN = "postgresql://app:secret@n1:4327,n2:4327/"
#: The page about plain PostgreSQL, and the connection string that stands for such a server there.
POSTGRESQL_PAGE = "docs/postgresql.md"
POSTGRESQL_DSN = "postgresql://app:secret@db1:5432,db2:5432/orders"
FENCE = re.compile(r"(?P<mark><!-- run -->\n)?```python\n(?P<source>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One Python block of a page."""

    page: Path
    line: int
    source: str
    runs: bool

    def code(self, dsn: str = EXAMPLE_DSN) -> CodeType:
        """The block compiled, `await` allowed outside functions; line numbers are those of the page."""
        source = "\n" * (self.line - 1) + self.source.replace(EXAMPLE_DSN, dsn).replace(POSTGRESQL_DSN, dsn)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        return compile(source, str(self.page), "exec", flags=flags, dont_inherit=True)


def blocks(page: Path) -> list[Block]:
    """The Python blocks of a page in order."""
    text = page.read_text("utf-8")
    return [
        Block(page, text.count("\n", 0, match.start("source")) + 1, match["source"], bool(match["mark"]))
        for match in FENCE.finditer(text)
    ]


def name(page: Path) -> str:
    """How a page is called in the report."""
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name)
def test_every_block_compiles(page: Path) -> None:
    """A block that is not run is at least Python."""
    for block in blocks(page):
        assert block.code()


def test_no_mark_is_lost() -> None:
    """A mark that does not stand right before a Python block would silently run nothing."""
    for page in PAGES:
        marks = page.read_text("utf-8").count("<!-- run -->")
        assert (name(page), marks) == (name(page), sum(block.runs for block in blocks(page)))


def test_the_manual_is_run() -> None:
    """The pages a newcomer reads first have blocks that run."""
    running = {name(page) for page in PAGES if any(block.runs for block in blocks(page))}
    assert {
        "README.md",
        "docs/quick-start.md",
        "docs/concepts.md",
        "docs/testing.md",
        "docs/errors.md",
        POSTGRESQL_PAGE,
    } <= running


RUN_PAGES = [page for page in PAGES if any(block.runs for block in blocks(page))]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """The cluster behind the examples."""
    pytest.importorskip("picopyn.asynchronous.pool")
    from picopyn.testing import PicodataCluster

    with PicodataCluster(replicasets=2, replication=2) as running:
        yield running


@pytest.fixture
def orders(cluster: Any) -> Iterator[str]:
    """The table of the examples; gives the connection string."""
    cluster.execute("CREATE TABLE orders (id INT PRIMARY KEY, region TEXT) DISTRIBUTED BY (id)")
    yield cluster.dsn
    cluster.execute("DROP TABLE orders")


@pytest.mark.cluster
@pytest.mark.parametrize("page", [p for p in RUN_PAGES if name(p) != POSTGRESQL_PAGE], ids=name)
async def test_the_marked_blocks_of_a_page_run(page: Path, orders: str) -> None:
    """As they stand on the page, in order."""
    await run(page, orders)


async def test_the_marked_blocks_about_postgresql_run() -> None:
    """On a real server of that kind."""
    from picopyn.testing import PostgresServer

    with PostgresServer(port=0) as server:
        admin = await asyncpg.connect(server.dsn)
        await admin.execute("CREATE TABLE orders (id int PRIMARY KEY, region text)")
        await admin.close()
        await run(ROOT / POSTGRESQL_PAGE, server.dsn)


async def run(page: Path, orders: str) -> None:
    """Run the marked blocks of a page in one namespace."""
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page):
        if not block.runs:
            continue
        code = block.code(orders)
        if code.co_flags & inspect.CO_COROUTINE:
            await eval(code, namespace)
        else:  # it may start a loop of its own
            await asyncio.to_thread(exec, code, namespace)

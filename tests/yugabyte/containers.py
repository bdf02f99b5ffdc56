"""A real YugabyteDB for the tests that can use one: three containers in three zones.

*Source*: YugabyteDB documentation, reference of `yugabyted`: `start` with `--join`, `--advertise_address`,
`--cloud_location`, `--fault_tolerance` and `--background`; YSQL listens at port 5433, its first user is `yugabyte`.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import asyncpg

IMAGE = "yugabytedb/yugabyte:latest"
ZONES = ("zone-a", "zone-b", "zone-c")
PORT = 5433

_START = "bin/yugabyted start --background=false --advertise_address=$(hostname -i) --fault_tolerance=zone"

#: A node is there after half a minute; the first start of a machine takes longer (seconds).
PATIENCE = 300.0


def _docker(*words: str) -> str:
    return subprocess.run(
        ["docker", *words], check=True, capture_output=True, text=True, timeout=PATIENCE
    ).stdout.strip()


def are_possible() -> bool:
    """Whether Docker answers and has the image; a test run does not fetch a gigabyte by itself."""
    if shutil.which("docker") is None:
        return False
    with suppress(subprocess.SubprocessError):
        return bool(_docker("image", "ls", "--quiet", IMAGE))
    return False


@contextmanager
def three_zones() -> Iterator[str]:
    """Start three nodes, and remove them afterwards; yields the connection string of all three."""
    network = f"picopyn-{uuid.uuid4().hex[:8]}"
    nodes: list[str] = []
    _docker("network", "create", network)
    try:
        for zone in ZONES:
            start = f"{_START} --cloud_location=cloud.region.{zone}"
            join = f" --join={_address(nodes[0])}" if nodes else ""
            nodes.append(_docker("run", "--detach", "--network", network, IMAGE, "sh", "-c", start + join))
            _wait_for(_address(nodes[-1]), len(nodes))
        yield f"postgresql://yugabyte@{','.join(f'{_address(node)}:{PORT}' for node in nodes)}/yugabyte"
    finally:
        for node in nodes:
            _docker("rm", "--force", "--volumes", node)
        _docker("network", "rm", network)


def _address(node: str) -> str:
    return _docker("inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", node)


def _wait_for(address: str, count: int) -> None:
    """Wait until a node serves, and lists so many."""

    async def listed() -> int:
        connection = await asyncpg.connect(host=address, port=PORT, user="yugabyte", database="yugabyte", timeout=10)
        try:
            return len(await connection.fetch("SELECT host FROM yb_servers()"))
        finally:
            await connection.close()

    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        with suppress(OSError, TimeoutError, asyncpg.PostgresError):
            if asyncio.run(listed()) >= count:
                return
        time.sleep(1.0)
    raise TimeoutError(f"the node at {address} did not list {count} servers within {PATIENCE:g} s")

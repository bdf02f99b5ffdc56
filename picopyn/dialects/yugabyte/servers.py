"""What servers are asked about each other, and how their rows are read.

Columns are named by what the answer has, for each release adds some: `uuid` and `universe_uuid` may be missing.
`num_connections` is always 0 and says nothing.

*Source*: `yugabyte-smart-drivers.md` section 1.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from picopyn.routing.placement import PRIMARY, READ_REPLICA
from picopyn.topology.host_text import canonical

#: The question.
SERVERS: Final = "SELECT * FROM yb_servers()"

#: SQLSTATE of a server without that function: a plain PostgreSQL, or one from before 2.7.2.
NO_SUCH_FUNCTION: Final = "42883"


@dataclass(frozen=True, slots=True)
class Server:
    """One row.

    Attributes:
        host: Private address or name, as the cluster knows it.
        port: Port of YSQL.
        node_type: `PRIMARY` or `READ_REPLICA`.
        cloud: Where it lies.
        region: Where it lies.
        zone: Where it lies.
        public_ip: Public address or name; empty without one.
        uuid: Identity; that of its address where the release tells none.
        universe: Identity of the cluster; empty where the release tells none.
    """

    host: str
    port: int
    node_type: str = PRIMARY
    cloud: str = ""
    region: str = ""
    zone: str = ""
    public_ip: str = ""
    uuid: str = ""
    universe: str = ""


def read_servers(rows: Iterable[Mapping[str, Any]]) -> list[Server]:
    """Read an answer; rows without an address or a port that could be dialled are left out.

    Raises:
        KeyError: A column that every release has is missing.
    """
    return [_server(row) for row in rows if (row["host"] or row["public_ip"]) and is_port(row["port"])]


def is_port(port: Any) -> bool:
    """Whether something can be dialled as a port."""
    return isinstance(port, int) and 1 <= port <= 65535


def _server(row: Mapping[str, Any]) -> Server:
    host, port = _host(row["host"]), row["port"]
    return Server(
        host=host,
        port=port,
        node_type=READ_REPLICA if row["node_type"] == READ_REPLICA else PRIMARY,
        cloud=row["cloud"] or "",
        region=row["region"] or "",
        zone=row["zone"] or "",
        public_ip=_host(row["public_ip"]),
        uuid=row.get("uuid") or str(uuid5(NAMESPACE_URL, f"postgresql://{host}:{port}")),
        universe=row.get("universe_uuid") or "",
    )


def _host(text: str | None) -> str:
    """A name, or an address as addresses are compared."""
    return canonical((text or "").strip())

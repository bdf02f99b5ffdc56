"""The result of a run as values that go to JSON and come back unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from benchmarks import estimates
from benchmarks.estimates import Interval
from benchmarks.machine import Machine
from benchmarks.plans import MAPPED_FROM, Situation, Size

FORMAT = 1
RESULTS = Path(__file__).parent / "results"
COMPARISON, GATE, LAYERS = "comparison.json", "gate.json", "hot_path.json"


class Measured(msgspec.Struct, frozen=True):
    """One client in one situation; times in microseconds, values of each round in order (None: no clean block).

    Attributes:
        client: Its name.
        throughput: Calls per second of each round.
        cpu: Client CPU per call of each round.
        server_cpu: Server CPU per call, median.
        p50: Median duration of a call, over all rounds.
        p99: 99th percentile of it.
        busy: Share of its core that the client used, median.
        server_busy: Share of one core that the server used, median.
        faults: Page faults per call, median.
        repeated: Blocks thrown away for foreign load.
        disturbed: Too few blocks were clean, so unclean ones are among the rounds.
        note: What a reader has to know.
        versions: Versions of what it is made of.
        counted: How its calls were routed.
    """

    client: str
    throughput: tuple[float | None, ...]
    cpu: tuple[float | None, ...]
    server_cpu: float | None
    p50: float
    p99: float
    busy: float
    server_busy: float | None
    faults: float | None
    repeated: int
    disturbed: bool
    note: str
    versions: dict[str, str]
    counted: dict[str, int]

    @property
    def malloc(self) -> str:
        """The state its malloc was in: `mapped`, `kept`, or `?` where nobody says."""
        if self.faults is None:
            return "?"
        return "mapped" if self.faults >= MAPPED_FROM else "kept"

    @property
    def blocks(self) -> int:
        """How many rounds have a value."""
        return sum(value is not None for value in self.throughput)

    @property
    def median_throughput(self) -> float:
        """Median of the rounds."""
        return estimates.median([value for value in self.throughput if value is not None])

    @property
    def median_cpu(self) -> float:
        """Median of the rounds."""
        return estimates.median([value for value in self.cpu if value is not None])


class Table(msgspec.Struct, frozen=True):
    """All clients in one situation."""

    situation: Situation
    measured: tuple[Measured, ...]
    missing: dict[str, str] = {}

    def of(self, client: str) -> Measured | None:
        """One client's numbers."""
        return next((measured for measured in self.measured if measured.client == client), None)

    def ratio(self, ours: str, theirs: str | None = None) -> Interval | None:
        """Throughput of one client over that of another (None: bare connections), within the rounds."""
        one, other = self.of(ours), self.of(theirs or self.situation.base)
        return None if one is None or other is None else estimates.ratio(one.throughput, other.throughput)

    def added_cpu(self, ours: str, theirs: str | None = None) -> Interval | None:
        """Client CPU per call that one client needs more than another (None: bare connections), within the rounds."""
        one, other = self.of(ours), self.of(theirs or self.situation.base)
        return None if one is None or other is None else estimates.difference(one.cpu, other.cpu)

    def cpu_ratio(self, ours: str, theirs: str | None = None) -> Interval | None:
        """The same as a ratio."""
        one, other = self.of(ours), self.of(theirs or self.situation.base)
        return None if one is None or other is None else estimates.ratio(one.cpu, other.cpu)


class Run(msgspec.Struct, frozen=True):
    """One run of the comparison.

    Attributes:
        made: Day (UTC).
        size_name: Which of the sizes it was.
        size: What that meant.
        machine: Where.
        server: Version of the server.
        nodes: Nodes the topology told of.
        sees_foreign: Whether the load of others could be seen.
        stolen: Share of the run that the host of the virtual machine took.
        took: Seconds.
        left_out: Clients that could not take part, with the reason.
        tables: What was measured.
    """

    made: str
    size_name: str
    size: Size
    machine: Machine
    server: str
    nodes: int
    sees_foreign: bool
    stolen: float | None
    took: float
    left_out: dict[str, str]
    tables: tuple[Table, ...]
    format: int = FORMAT

    def table(self, **wanted: Any) -> Table | None:
        """The first table whose situation has these values; malloc is `natural` unless said otherwise."""
        wanted = {"malloc": "natural", **wanted}
        for table in self.tables:
            if all(getattr(table.situation, name) == value for name, value in wanted.items()):
                return table
        return None


class GateLine(msgspec.Struct, frozen=True):
    """What was measured for one limit: CPU added per call (microseconds), median per process."""

    title: str
    limit: float
    processes: tuple[float, ...]
    interval: Interval
    verdict: str


class Gate(msgspec.Struct, frozen=True):
    """One run of the gate."""

    made: str
    machine: Machine
    blocks: int
    seconds: float
    repeated: int
    disturbed: bool
    lines: tuple[GateLine, ...]
    format: int = FORMAT


class Layers(msgspec.Struct, frozen=True):
    """One run of the hot path's dissection: microseconds per call, by layer."""

    made: str
    machine: Machine
    layers: dict[str, float]
    format: int = FORMAT


def save(value: Run | Gate | Layers, path: Path) -> None:
    """Write a value as JSON, a line for each client."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = msgspec.json.encode(value).decode()
    for mark in ('{"client"', '{"situation"', '{"title"'):
        text = text.replace(mark, "\n" + mark)
    path.write_text(text + "\n", "utf-8")


def load_run(path: Path) -> Run:
    """Read the result of a comparison."""
    return msgspec.json.decode(path.read_bytes(), type=Run)


def load_gate(path: Path) -> Gate:
    """Read the result of the gate."""
    return msgspec.json.decode(path.read_bytes(), type=Gate)


def load_layers(path: Path) -> Layers:
    """Read a dissection."""
    return msgspec.json.decode(path.read_bytes(), type=Layers)

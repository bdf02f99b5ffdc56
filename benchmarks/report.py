"""Turn saved results into `docs/performance.md` and its picture.

python -m benchmarks.report [--results DIRECTORY] [--docs DIRECTORY]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import results, tables
from benchmarks.aims import aims
from benchmarks.bars import Bar, Panel, svg
from benchmarks.machine import Machine
from benchmarks.plans import BARE, OURS, OURS_ROUTED
from benchmarks.results import Gate, Layers, Run, Table

_TEMPLATE = Path(__file__).parent / "performance.template.md"
DOCS = Path(__file__).parent.parent / "docs"


def page(run: Run, gate: Gate | None, layers: Layers | None) -> str:
    """The page."""
    text = _TEMPLATE.read_text("utf-8")
    parts = {
        "warnings": "\n\n".join(tables.warnings(run) + _gate_warnings(gate)),
        "aims": _aims(run, gate),
        "machine": _machine(run, gate, layers),
        "layers": _layers(layers),
        "tables": _tables([table for table in run.tables if not table.situation.threaded]),
        "threads": _tables([table for table in run.tables if table.situation.threaded]),
        "foreign": f"{run.size.foreign:.0%}",
        "nodes": f"The topology has {run.nodes} node{'s' * (run.nodes > 1)} here.",
    }
    for name, part in parts.items():
        text = text.replace(f"<<{name}>>", part)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text


def picture(run: Run) -> str:
    """Bars of throughput: sequential and 50 tasks, on both loops."""
    panels = []
    for tasks in (1, 50):
        for loop in ("uvloop", "asyncio"):
            table = run.table(loop=loop, operation="read", tasks=tasks)
            if table is not None:
                panels.append(Panel(f"{'sequential' if tasks == 1 else f'{tasks} tasks'}, {loop}", _bars(table)))
    return svg(panels, f"fetchrow by key: throughput relative to a bare asyncpg connection; {run.made}")


def _bars(table: Table) -> list[Bar]:
    bars = []
    for measured in table.measured:
        value = 1.0 if measured.client == BARE else getattr(table.ratio(measured.client), "middle", 0.0)
        kind = {BARE: "base", OURS: "ours", OURS_ROUTED: "ours"}.get(measured.client, "peer")
        bars.append(Bar(tables.NAMES.get(measured.client, measured.client), value, kind))
    return bars


def _tables(found: list[Table]) -> str:
    return "\n\n".join(f"### {_heading(table)}\n\n{tables.markdown(table)}" for table in found) or "(not run)"


def _heading(table: Table) -> str:
    title = table.situation.title
    return title[0].upper() + title[1:] if title.startswith("execute") else title


def _aims(run: Run, gate: Gate | None) -> str:
    lines = ["| aim | where | measured | |", "| --- | --- | --- | --- |"]
    lines += [f"| {aim.what} | {aim.where} | {aim.measured} | {aim.verdict} |" for aim in aims(run, gate)]
    return "\n".join(lines)


def _gate_warnings(gate: Gate | None) -> list[str]:
    if gate is None:
        return ["The gate was not run."]
    return ["**The gate was measured beside other work.**"] if gate.disturbed else []


def _machine(run: Run, gate: Gate | None, layers: Layers | None) -> str:
    machine: Machine = run.machine
    versions: dict[str, dict[str, str]] = {
        measured.client: measured.versions for table in run.tables for measured in table.measured
    }
    rows = {
        "processor": f"{machine.cpu}, {machine.cores} cores" + (", virtual machine" if machine.virtual else ""),
        "memory": "?" if machine.memory_gib is None else f"{machine.memory_gib:g} GiB",
        "system": f"{machine.system} {machine.kernel}, {machine.libc}",
        "Python": machine.python + (" (built with profile-guided optimisation)" if machine.optimized_python else ""),
        "picopyn's keys": {True: "in C", False: "in Python", None: ""}[machine.keys_in_c],
        "server": run.server,
        "here": _named(versions.get(OURS_ROUTED, {})),
        "beside picopyn 3.2.0": _named(next((v for c, v in versions.items() if c.startswith("picopyn 3.2.0")), {})),
        "comparison": f"{run.made}, size {run.size_name}, {run.took / 60:.0f} min",
        "gate": "" if gate is None else _gate_run(gate),
        "layers": "" if layers is None else layers.made,
    }
    return "\n".join(["| | |", "| --- | --- |", *[f"| {name} | {value} |" for name, value in rows.items() if value]])


def _gate_run(gate: Gate) -> str:
    processes = max((len(line.processes) for line in gate.lines), default=0)
    return f"{gate.made}, {processes} processes for each situation, {gate.blocks} rounds, blocks of {gate.seconds:g} s"


def _named(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))


def _layers(layers: Layers | None) -> str:
    if layers is None:
        return "(not run)"
    rows = [f"| {name} | {value:.2f} |" for name, value in layers.layers.items()]
    return "\n".join(["| layer | µs |", "| --- | ---: |", *rows])


def main(words: list[str] | None = None) -> int:
    """Parse the command line, read, write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=results.RESULTS)
    parser.add_argument("--docs", type=Path, default=DOCS)
    options = parser.parse_args(words)
    write(options.results, options.docs)
    return 0


def write(saved: Path, docs: Path) -> None:
    """Make the page and its picture from the results in a directory."""
    gate, layers = saved / results.GATE, saved / results.LAYERS
    run = results.load_run(saved / results.COMPARISON)
    text = page(
        run,
        results.load_gate(gate) if gate.exists() else None,
        results.load_layers(layers) if layers.exists() else None,
    )
    docs.mkdir(parents=True, exist_ok=True)
    (docs / "performance.md").write_text(text, "utf-8")
    (docs / "performance.svg").write_text(picture(run), "utf-8")


if __name__ == "__main__":
    raise SystemExit(main())

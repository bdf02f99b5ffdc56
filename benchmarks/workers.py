"""One measured process, seen from outside: start it, let it run blocks, end it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks import environment, plans
from benchmarks.plans import Situation
from benchmarks.server import BenchServer

_SCRIPT = str(Path(__file__).parent / "worker")
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR", "VIRTUAL_ENV")

#: Longest time to open, to answer beyond the length of a block, and to end (seconds).
_OPENING, _ANSWERING, _ENDING = 60.0, 90.0, 5.0


class WorkerFailed(Exception):  # noqa: N818 - it is what happened
    """A worker did not open, did not answer or ended; the message is the last line it left."""


class Worker:
    """A process that holds one client or several.

    Args:
        clients: Their names.
        situation: Loop, operation, malloc.
        server: Whom they call.
        connections: How many each has.
        core: The core it is bound to; None: any.

    Attributes:
        hello: What it said when its clients were open.
    """

    def __init__(
        self, clients: Sequence[str], situation: Situation, server: BenchServer, connections: int, core: int | None
    ) -> None:
        published = any(name.startswith(plans.PUBLISHED) for name in clients)
        command, more = environment.published_command() if published else environment.this_command()
        command += [_SCRIPT, "--loop", situation.loop, "--operation", situation.operation, "--dsn", server.dsn]
        command += ["--hosts", ",".join(server.hosts), "--port", str(server.port), "--size", str(connections)]
        command += [part for name in clients for part in ("--client", name)]
        command += [] if core is None else ["--core", str(core)]
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**kept, **more, **plans.MALLOC[situation.malloc]},
            bufsize=0,
        )
        self._rest = b""
        self.hello: dict[str, Any] = {}

    def wait_open(self) -> Worker:
        """Wait until its clients are open.

        Raises:
            WorkerFailed: They are not.
        """
        self.hello = self._answer(_OPENING)
        return self

    def block(self, client: int, tasks: int, seconds: float, pids: Sequence[int], **more: Any) -> dict[str, Any]:
        """Run one block; see `worker/measuring.py` for what comes back.

        Raises:
            WorkerFailed: It did not answer.
        """
        order = {"client": client, "tasks": tasks, "seconds": seconds, "pids": list(pids), **more}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
        except OSError as error:
            raise WorkerFailed(self._last_words()) from error
        return self._answer(seconds + _ANSWERING)

    def close(self) -> None:
        """End it: politely, and soon by force."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self, patience: float) -> dict[str, Any]:
        pipe = self._process.stdout
        assert pipe is not None
        pieces = [self._rest]
        while b"\n" not in pieces[-1]:
            ready, _, _ = select.select([pipe], [], [], patience)
            data = os.read(pipe.fileno(), 1 << 20) if ready else b""
            if not data:
                raise WorkerFailed(self._last_words() if ready else "no answer in time")
            pieces.append(data)
        line, _, self._rest = b"".join(pieces).partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = [line for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else "it ended without a word"

"""The processes of PostgreSQL servers that outlive nobody: one run of a server, and the place where several of them run.

Decides how a whole server is ended, killed, frozen, and how all that is left behind is cleaned up. Must not know what a
server is configured to do.

Two kinds of small shells stand between the caller and the servers. The watchdog of a run holds the read end of a pipe
whose other end only the caller has; when it closes, the watchdog ends the server. The guard of the place reads a pipe
whose other end the caller, every watchdog and every program that works there have; when all are gone, it removes the
place. So nothing is left when the caller is killed, and nothing is removed under a living server.

Every child of PostgreSQL's first process makes a session of its own, so no process group holds them all; they are found
in `/proc` while the first process stands still and can make no new ones. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from picopyn.testing.postgres_binaries import PostgresBinaries, PostgresFailed, environment, run_program

_WATCHDOG = """
exec 3<&0
"$@" </dev/null >>"$PICOPYN_LOG" 2>&1 3<&- &
server=$!
{ read -r forever <&3; kill -CONT $server; kill -QUIT $server; } >/dev/null &
reader=$!
wait $server
kill $reader
"""
_GUARD = """
place=$(mktemp -d "$1") && echo "$place" && exec >/dev/null
read -r forever
rm -rf "$place"
"""
_POLL = 0.002
_IPC_RMID = 0
_GONE = ("", "Z", "X")
_STOPPED = ("T", *_GONE)


class Workplace:
    """A directory for servers, removed when the last one of those who work there is gone.

    Owner: whoever makes it; ends with `close`, or with the process of its owner.

    Attributes:
        directory: Belongs to the user who runs the servers.
        binaries: The programs that run there.
    """

    def __init__(self, binaries: PostgresBinaries) -> None:
        self.binaries = binaries
        self._runs: list[ServerRun] = []
        self._stack = contextlib.ExitStack()
        pattern = str(Path(tempfile.gettempdir()) / "pcp-XXXXXX")
        read_end, self._until_gone = os.pipe()
        try:
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "picopyn-guard", pattern],
                stdin=read_end,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=environment(),
                start_new_session=True,
                text=True,
                **dict(binaries.identity),
            )
        finally:
            os.close(read_end)
        assert self._guard.stdout is not None
        with self._guard.stdout as printed:
            self.directory = Path(printed.readline().strip())
        if not self.directory.name:
            self.close()
            raise PostgresFailed(f"no directory could be made like {pattern}")

    def make_directory(self, name: str) -> Path:
        """A directory of mode 0700 in this place, for the servers' user."""
        path = self.directory / name
        path.mkdir(mode=0o700)
        identity = dict(self.binaries.identity)
        if identity:
            os.chown(path, identity["user"], identity["group"])
        return path

    def run(self, *command: str) -> str:
        """Run a program as the servers' user to its end; gives what it printed.

        Raises:
            PostgresFailed: It ended with an error.
        """
        return run_program(command, dict(self.binaries.identity), pass_fds=(self._until_gone,))

    def launch(self, data: Path, log: Path, options: Sequence[str]) -> ServerRun:
        """Start a server on a data directory; returns before it answers."""
        command = [str(self.binaries.directory / "postgres"), "-D", str(data), *options]
        run = ServerRun(command, data, log, dict(self.binaries.identity), self._until_gone)
        self._runs = [*(old for old in self._runs if not old.ended), run]
        return run

    def keep(self, resource: Any) -> None:
        """Close something together with the place."""
        self._stack.callback(resource.close)

    def close(self) -> None:
        """End every server at once and remove the directory."""
        for run in self._runs:
            run.begin_end()
        for run in self._runs:
            run.await_end(timeout=10)
        self._runs = []
        self._stack.close()
        if self._until_gone >= 0:
            os.close(self._until_gone)
            self._until_gone = -1
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guard.wait(timeout=10)


class ServerRun:
    """One run of a server, with all its processes. Owner: the workplace.

    Attributes:
        frozen: Whether it was frozen and not thawed since.
    """

    def __init__(self, command: Sequence[str], data: Path, log: Path, identity: dict[str, Any], until_gone: int) -> None:
        self._lock_file = data / "postmaster.pid"
        self.frozen = False
        self._watchdog: subprocess.Popen[bytes] = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "picopyn-postgres", *command],
            stdin=subprocess.PIPE,
            stdout=until_gone,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={**environment(), "PICOPYN_LOG": str(log)},
            start_new_session=True,
            **identity,
        )

    @property
    def ended(self) -> bool:
        """Whether the server's first process is gone."""
        return self._watchdog.poll() is not None

    def reload(self) -> None:
        """Have it read its configuration again."""
        os.kill(self._pid(), signal.SIGHUP)

    def stop(self, timeout: float) -> None:
        """Have it end in an orderly way: sessions are told, everything is written and sent to replicas.

        Raises:
            PostgresFailed: It has not ended in time.
        """
        os.kill(self._pid(), signal.SIGINT)
        if not self.await_end(timeout):
            raise PostgresFailed(f"the server has not ended within {timeout:g} s")

    def kill(self) -> None:
        """End all its processes with SIGKILL; returns when they are gone, with the shared memory they leave."""
        pid, segment = self._pid(), self._segment()
        children = _halt(pid)
        for each in [*children, pid]:
            _signal(each, signal.SIGKILL)
        self.await_end(timeout=10)
        for each in children:
            _await_state(each, _GONE)
        if segment is not None:
            ctypes.CDLL(None).shmctl(segment, _IPC_RMID, None)
        self._lock_file.unlink(missing_ok=True)

    def freeze(self) -> None:
        """Stop all its processes with SIGSTOP; returns when they stand still."""
        children = _halt(self._pid())
        for each in children:
            _signal(each, signal.SIGSTOP)
        for each in children:
            _await_state(each, _STOPPED)
        self.frozen = True

    def thaw(self) -> None:
        """Let all its processes go on."""
        pid = self._pid()
        for each in [*_children(pid), pid]:
            _signal(each, signal.SIGCONT)
        self.frozen = False

    def begin_end(self) -> None:
        """Have it end at once, without a word to anybody."""
        if self.frozen and not self.ended:
            self.thaw()
        if self._watchdog.stdin is not None:
            with contextlib.suppress(OSError):
                self._watchdog.stdin.close()

    def await_end(self, timeout: float) -> bool:
        """Wait at most so many seconds for its end; gives whether it came."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._watchdog.wait(timeout)
            if self._watchdog.stdin is not None:
                self._watchdog.stdin.close()
        return self.ended

    def _pid(self) -> int:
        return int(self._lock_lines()[0])

    def _segment(self) -> int | None:
        """Number of its System V shared memory. *Source*: `src/include/utils/pidfile.h`."""
        lines = self._lock_lines()
        return int(lines[6].split()[1]) if len(lines) > 6 else None

    def _lock_lines(self) -> list[str]:
        try:
            return self._lock_file.read_text().splitlines()
        except FileNotFoundError:
            raise PostgresFailed("the server does not run") from None


def _halt(pid: int) -> list[int]:
    """Stop a server's first process, so that it makes no further ones; gives those it has."""
    _signal(pid, signal.SIGSTOP)
    _await_state(pid, _STOPPED)
    return _children(pid)


def _children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _await_state(pid: int, wanted: Sequence[str], timeout: float = 10.0) -> None:
    deadline = time.monotonic() + timeout
    while _state(pid) not in wanted:
        if time.monotonic() > deadline:
            raise PostgresFailed(f"process {pid} is still in state {_state(pid)}")
        time.sleep(_POLL)


def _state(pid: int) -> str:
    """Letter of a process's state; `""` when there is none. *Source*: proc(5), `/proc/pid/stat`."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""

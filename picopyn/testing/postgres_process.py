"""The processes of PostgreSQL servers that outlive nobody: one run of a server, and the place where several run.

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
{
    read -r forever <&3
    kill -QUIT $server
    kill -CONT $(cat /proc/$server/task/$server/children) $server
} >/dev/null &
reader=$!
wait $server
kill $reader
"""
_GUARD = """
place=$(mktemp -d "$1") && echo "$place" && exec >/dev/null
read -r forever
rm -rf "$place"
"""
_MEMORY = Path("/dev/shm")
_ROOM = 2 << 30
_POLL = 0.002
_IPC_RMID = 0
_SEGMENT, _STATUS = 6, 7
"""Lines of `postmaster.pid`, counted from 0. *Source*: `src/include/utils/pidfile.h`."""
_GONE = ("", "Z", "X")
_STOPPED = ("T", *_GONE)


class Workplace:
    """A directory for servers, removed when the last one of those who work there is gone. It lies in memory where
    there is room, since making a server's thousand files is most of the work of starting it; or where `TMPDIR` says.

    Owner: whoever makes it; ends with `close`, or with the process of its owner.

    Attributes:
        directory: Belongs to the user who runs the servers.
        binaries: The programs that run there.
    """

    def __init__(self, binaries: PostgresBinaries) -> None:
        self.binaries = binaries
        self._runs: list[ServerRun] = []
        self._stack = contextlib.ExitStack()
        pattern = str(_where() / "pcp-XXXXXX")
        read_end, self._until_gone = os.pipe()
        try:
            self._guard = _start_shell(_GUARD, [pattern], binaries, stdin=read_end, stdout=subprocess.PIPE)
        finally:
            os.close(read_end)
        assert self._guard.stdout is not None
        with self._guard.stdout as printed:
            self.directory = Path(printed.readline().decode().strip())
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
        self._runs = [run for run in self._runs if not run.await_end(timeout=0)]
        self._runs.append(ServerRun(self.binaries, data, log, options, self._until_gone))
        return self._runs[-1]

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


def _where() -> Path:
    try:
        room = os.statvfs(_MEMORY)
    except OSError:
        return Path(tempfile.gettempdir())
    in_memory = "TMPDIR" not in os.environ and room.f_bavail * room.f_frsize >= _ROOM
    return _MEMORY if in_memory and os.access(_MEMORY, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


class ServerRun:
    """One run of a server, with all its processes. Owner: the workplace.

    Attributes:
        frozen: Whether it was frozen and not thawed since.
    """

    def __init__(
        self, binaries: PostgresBinaries, data: Path, log: Path, options: Sequence[str], until_gone: int
    ) -> None:
        self._lock_file = data / "postmaster.pid"
        self.frozen = False
        command = [str(binaries.directory / "postgres"), "-D", str(data), *options]
        self._watchdog = _start_shell(
            _WATCHDOG, command, binaries, stdin=subprocess.PIPE, stdout=until_gone, PICOPYN_LOG=str(log)
        )

    @property
    def ended(self) -> bool:
        """Whether the server's first process is gone."""
        return self._watchdog.poll() is not None

    @property
    def ready(self) -> bool:
        """Whether it lets clients in."""
        lines = self._lock_lines()
        return len(lines) > _STATUS and lines[_STATUS].strip() == "ready" and not self.ended

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
        pid = self._pid()
        children = _halt(pid)
        for each in [*children, pid]:
            _signal(each, signal.SIGKILL)
        for each in children:
            _await_state(each, _GONE)
        self.await_end(timeout=10)

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
        """Wait at most so many seconds for its end, and clean up what it left; gives whether it came."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._watchdog.wait(timeout)
            if self._watchdog.stdin is not None:
                self._watchdog.stdin.close()
            self._clean()
        return self.ended

    def _clean(self) -> None:
        """A server that was killed leaves System V shared memory and the file that names it."""
        lines = self._lock_lines()
        if len(lines) > _SEGMENT:
            ctypes.CDLL(None).shmctl(int(lines[_SEGMENT].split()[1]), _IPC_RMID, None)
        self._lock_file.unlink(missing_ok=True)

    def _pid(self) -> int:
        lines = self._lock_lines()
        if not lines:
            raise PostgresFailed("the server does not run")
        return int(lines[0])

    def _lock_lines(self) -> list[str]:
        try:
            return self._lock_file.read_text().splitlines()
        except FileNotFoundError:
            return []


def _start_shell(
    script: str, arguments: Sequence[str], binaries: PostgresBinaries, *, stdin: int, stdout: int, **variables: str
) -> subprocess.Popen[bytes]:
    """In a session of its own, so that no signal of a terminal reaches it."""
    identity = dict(binaries.identity)
    return subprocess.Popen(
        ["/bin/sh", "-c", script, "picopyn-postgres", *arguments],
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env=environment() | variables,
        start_new_session=True,
        user=identity.get("user"),
        group=identity.get("group"),
        extra_groups=identity.get("extra_groups"),
    )


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

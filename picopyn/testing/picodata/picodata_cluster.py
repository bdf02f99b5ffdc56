"""`PicodataCluster`: a Picodata-shaped cluster on this machine, as a synchronous object.

Decides nothing about the cluster itself: it starts the server process, sends it orders and gives their
answers. It may be used from several threads, and also while an asyncio loop runs in the calling thread (each
order takes a moment on a local socket).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Any, cast
from urllib.parse import quote
from uuid import UUID

from picopyn.testing.picodata.shape import Shape, TierShape, UserShape

_START_TIMEOUT = 60.0


class ClusterError(RuntimeError):
    """The embedded cluster could not start, or an order makes no sense to it.

    Attributes:
        sqlstate: Of the server's error, when an SQL text was refused.
    """

    def __init__(self, message: str, sqlstate: str | None = None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance of the cluster, as it was when asked for."""

    name: str
    uuid: str
    host: str
    port: int
    replicaset: str
    tier: str

    @property
    def address(self) -> str:
        """`host:port`, an IPv6 host in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Counters:
    """What one instance did since its start or the last reset; mappings count by kind (`"select"`,
    `"insert"`, …).

    Attributes:
        direct_by_kind: Executed there as the leader of the owner.
        forwarded_by_kind: Executed through other instances.
        replica_by_kind: Read there as a replica of the owner.
        here_by_kind: Executed there without sharded data.
        refused_by_kind: Answered with an error.
        hanging: Statements that wait there right now, for another instance or for a slot.
    """

    direct_by_kind: Mapping[str, int] = field(default_factory=dict)
    forwarded_by_kind: Mapping[str, int] = field(default_factory=dict)
    replica_by_kind: Mapping[str, int] = field(default_factory=dict)
    here_by_kind: Mapping[str, int] = field(default_factory=dict)
    refused_by_kind: Mapping[str, int] = field(default_factory=dict)
    hanging: int = 0

    @property
    def direct(self) -> int:
        """All kinds together."""
        return sum(self.direct_by_kind.values())

    @property
    def forwarded(self) -> int:
        """All kinds together."""
        return sum(self.forwarded_by_kind.values())

    @property
    def replica(self) -> int:
        """All kinds together."""
        return sum(self.replica_by_kind.values())

    @property
    def refused(self) -> int:
        """All kinds together."""
        return sum(self.refused_by_kind.values())


class PicodataCluster:
    """A cluster of its own process. Owner: whoever starts it; ends with `with`, `stop`, the interpreter, or
    its starter's death.

    Args:
        replicasets: Of the one tier `default`, when `tiers` is left out.
        replication: Instances per replicaset of that tier.
        bucket_count: Of that tier.
        tiers: By name, in order; the first is the default one. Values are `TierShape` or mappings with its
            fields.
        users: `{name: password}` or `UserShape`s; without any privilege at first.
        auto_offline_timeout: Seconds until a lost instance is declared Offline (a real cluster's default is
            30).
        version: Whose accent is spoken: `"25.6"`, `"26.1"` or `"26.2"`.
        **more: Further fields of `Shape`.

    Raises:
        ValueError: Settings that cannot work, all of them in one message.
    """

    def __init__(
        self,
        *,
        replicasets: int = 2,
        replication: int = 2,
        bucket_count: int = 3000,
        tiers: Mapping[str, TierShape | Mapping[str, int]] | None = None,
        users: Mapping[str, str] | Iterable[UserShape] = (),
        auto_offline_timeout: float = 3.0,
        version: str = "26.1",
        **more: Any,
    ) -> None:
        asked = tiers or {"default": TierShape(replicasets, replication, bucket_count)}
        shapes = {name: tier if isinstance(tier, TierShape) else TierShape(**tier) for name, tier in asked.items()}
        people = _people(users)
        self._shape = Shape(
            tiers=shapes, users=people, auto_offline_timeout=auto_offline_timeout, version=version, **more
        )
        problems = self._shape.problems()
        if problems:
            raise ValueError("; ".join(problems))
        self._passwords = {
            "admin": self._shape.admin_password,
            **{user.name: user.password for user in people},
        }
        self._process: subprocess.Popen[str] | None = None
        self._directory: Path | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None

    # life

    def start(self) -> PicodataCluster:
        """Start the process; returns when every instance answers.

        Raises:
            ClusterError: It did not start; the message says how its process ended, and holds the end of its log.
        """
        if self._process is not None:
            return self
        directory = Path(tempfile.mkdtemp(prefix="pcc-"))
        self._directory = directory
        log = os.open(directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "picopyn.testing.picodata.process", str(directory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=_environment(),
                start_new_session=True,
            )
        finally:
            os.close(log)
        self._finalizer = weakref.finalize(self, _end, self._process, directory)
        try:
            self._await_ready(self._process, directory)
        except BaseException:
            self.shutdown()
            raise
        return self

    def _await_ready(self, process: subprocess.Popen[str], directory: Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(self._shape.to_json() + "\n")
            process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], _START_TIMEOUT)
        if not ready or not process.stdout.readline():
            reason = _end_of(process) if ready else f"it said nothing for {_START_TIMEOUT:g} s"
            raise ClusterError(f"the embedded cluster did not start: {reason}; its log: {_tail(directory / 'log')}")

    def shutdown(self) -> None:
        """End the cluster and its storage; does nothing when it is not running."""
        if self._finalizer is not None:
            self._finalizer()
        self._process = None

    def __enter__(self) -> PicodataCluster:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    # addresses

    @property
    def instances(self) -> dict[str, Instance]:
        """All instances by name, expelled and dead ones too."""
        found = self._order("describe")["instances"]
        return {name: Instance(**values) for name, values in found.items()}

    @property
    def replicasets(self) -> dict[str, str]:
        """Uuid of every replicaset by name."""
        return dict(self._order("describe")["replicasets"])

    def leaders(self) -> dict[str, str]:
        """Replicaset to the name of its current master."""
        return dict(self._order("describe")["leaders"])

    def states(self) -> dict[str, dict[str, str]]:
        """By instance: `life` (alive, dead, silent, frozen), `current` and `target` (Online, …)."""
        return dict(self._order("states"))

    @property
    def dsn(self) -> str:
        """URI with every instance, as `admin`."""
        return self.dsn_for()

    def dsn_for(self, user: str = "admin", instances: Sequence[str] | None = None) -> str:
        """URI for a user, with all instances or the named ones in that order."""
        known = self.instances
        hosts = ",".join(known[name].address for name in (known if instances is None else instances))
        password = self._passwords.get(user)
        secret = f":{quote(password, safe='')}" if password is not None else ""
        return f"postgresql://{quote(user, safe='')}{secret}@{hosts}/picodata"

    def password(self, user: str = "admin") -> str:
        """Password of a user this object knows."""
        return self._passwords[user]

    # faults

    def kill(self, name: str) -> None:
        """End an instance at once: its connections are reset, its address refuses."""
        self._order("kill", name=name)

    def stop(self, name: str) -> None:
        """End an instance in an orderly way, as SIGTERM does."""
        self._order("stop", name=name)

    def freeze(self, name: str) -> None:
        """Stop an instance without ending it, as SIGSTOP does: it accepts connections and says nothing."""
        self._order("freeze", name=name)

    def thaw(self, name: str) -> None:
        """Let a frozen instance go on; returns when it is Online."""
        self._order("thaw", name=name)

    def restart(self, name: str, *, wait: bool = True) -> None:
        """Start a dead instance on its old address; with `wait` this returns when it serves and is Online."""
        self._order("restart", name=name, wait=wait)

    def promote(self, name: str, *, wait: bool = True) -> float | None:
        """Make this instance the master by a planned switch; with `wait` this returns when it is done.

        Returns:
            `time.monotonic()` of this machine when it became the master; None without `wait`.
        """
        moment: float | None = self._order("promote", name=name, wait=wait)
        return moment

    def inject_error(self, instance: str, message: str, *, sqlstate: str = "XX000", times: int = 1) -> None:
        """Let the next statements on sharded tables at an instance fail with this error, without effect."""
        self._order("inject_error", instance=instance, message=message, sqlstate=sqlstate, times=times)

    # waiting (each blocks the calling thread: under asyncio use `asyncio.to_thread`)

    def wait_hanging(self, count: int, instance: str | None = None, *, timeout: float = 10.0) -> None:
        """Return when exactly so many statements hang, at one instance or in all."""
        self._order("wait_hanging", count=count, instance=instance, timeout=timeout)

    def wait_leader(self, replicaset: str, instance: str | None = None, *, timeout: float = 30.0) -> str:
        """Return when this instance, or any living one, leads a replicaset; gives its name."""
        return str(self._order("wait_leader", replicaset=replicaset, instance=instance, timeout=timeout))

    # topology

    def add_instance(self, replicaset: str | None = None, tier: str | None = None) -> str:
        """A further instance, in this replicaset or in a new, empty one; gives its name."""
        return str(self._order("add_instance", replicaset=replicaset, tier=tier))

    def expel(self, name: str) -> None:
        """Take an instance out for good; its rows in the system tables stay."""
        self._order("expel", name=name)

    def move_buckets(
        self, tier: str, first: int, last: int, to_replicaset: str, *, duration: float = 0.0, steps: int = 10
    ) -> None:
        """Give buckets `first` to `last`, inclusive, to a replicaset: at once, or in steps over `duration`
        seconds.

        A gradual move returns at once; `wait_views` waits for its end.
        """
        self._order(
            "move_buckets",
            tier=tier,
            first=first,
            last=last,
            to_replicaset=to_replicaset,
            duration=duration,
            steps=steps,
        )

    def wait_views(self, timeout: float = 30.0) -> None:
        """Return when no gradual move is under way and every instance's `_pico_bucket()` shows the truth."""
        self._order("wait_views", timeout=timeout)

    def set_view_lag(self, seconds: float, instance: str | None = None) -> None:
        """How long `_pico_bucket()` stays behind the truth from now on, everywhere or at one instance."""
        self._order("set_view_lag", seconds=seconds, instance=instance)

    def lose_bucket(self, tier: str, bucket: int | None, instance: str | None = None) -> None:
        """Let `_pico_bucket(tier)` fail over this bucket ("Is rebalancing in progress?"); None: no more."""
        self._order("lose_bucket", tier=tier, bucket=bucket, instance=instance)

    def advertise(self, name: str, address: str | None) -> None:
        """Let an instance's row show another address (`0.0.0.0:…`, a NAT's, …); None: its own again."""
        self._order("advertise", name=name, address=address)

    def mute_notices(self, name: str, muted: bool = True) -> None:
        """Let an instance tell nothing of the topology any more although it answers (with `topology_notices`)."""
        self._order("mute_notices", name=name, muted=muted)

    def set_notices(self, manner: str) -> None:
        """What becomes of clients that ask, from now on, to be told of changes of the topology.

        Args:
            manner: `"told"`; `"ignored"`, as every real server does so far; `"refused"` with an error; or `"closed"`
                without a word. Clients that are told already go on being told.
        """
        self._order("set_notices", manner=manner)

    def bucket_of(self, table: str, *values: Any) -> int:
        """Bucket of a row, from its sharding key's values in the key's order."""
        return int(self._order("bucket_of", table=table, values=[_typed(value) for value in values]))

    def owner_of(self, tier: str, bucket: int) -> str:
        """Name of the replicaset that holds a bucket."""
        return str(self._order("owner_of", tier=tier, bucket=bucket))

    # SQL and users

    def execute(self, sql: str) -> list[list[Any]]:
        """Run a text as `admin` at a living instance; gives the rows, values that JSON lacks as text.

        Raises:
            ClusterError: The server refused it.
        """
        return list(self._order("execute", sql=sql)["rows"])

    def create_user(self, name: str, password: str, auth: str = "md5") -> None:
        """Make a user without privileges; `auth` is `"md5"` or `"scram-sha256"`."""
        self._order("create_user", name=name, password=password, auth=auth)
        self._passwords[name] = password

    def deny(self, user: str, table: str) -> None:
        """Take every right on a table from a user, public and owner's rights included."""
        self._order("deny", user=user, table=table)

    def allow(self, user: str, table: str) -> None:
        """Undo `deny`."""
        self._order("allow", user=user, table=table)

    # counts

    def counters(self) -> dict[str, Counters]:
        """What each instance did since its start or the last reset."""
        return {
            name: Counters(
                values["direct"],
                values["forwarded"],
                values["replica"],
                values["here"],
                values["refused"],
                values["hanging"],
            )
            for name, values in self._order("counters").items()
        }

    def reset_counters(self) -> None:
        """Start counting anew; what hangs is still counted as hanging."""
        self._order("reset_counters")

    def sessions(self) -> dict[str, int]:
        """Open client connections by instance."""
        return dict(self._order("sessions"))

    def _order(self, order: str, /, **arguments: Any) -> Any:
        if self._process is None or self._directory is None:
            raise ClusterError("the embedded cluster is not running")
        line = json.dumps({"do": order, "arguments": arguments}).encode() + b"\n"
        try:
            answer = json.loads(_exchange(str(self._directory / "control"), line))
        except (OSError, ValueError) as error:
            log = _tail(self._directory / "log")
            raise ClusterError(f"the embedded cluster did not answer {order!r}: {error!r}; its log: {log}") from None
        if "error" in answer:
            raise ClusterError(answer["error"], answer.get("sqlstate"))
        return answer["ok"]


def _people(users: Mapping[str, str] | Iterable[UserShape]) -> tuple[UserShape, ...]:
    if isinstance(users, Mapping):
        named = cast("Mapping[str, str]", users)
        return tuple(UserShape(name, password) for name, password in named.items())
    return tuple(users)


def _typed(value: Any) -> Any:
    """A value that JSON knows, or a pair of type name and text."""
    if isinstance(value, datetime):
        return ["datetime", value.isoformat()]
    return [type(value).__name__, str(value)] if isinstance(value, Decimal | UUID) else value


def _exchange(path: str, line: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(120)
        connection.connect(path)
        connection.sendall(line)
        parts = []
        while part := connection.recv(1 << 16):
            parts.append(part)
        return b"".join(parts)


def _environment() -> dict[str, str]:
    """Ours, with the place of this package on the path: the child must find the same one."""
    here = str(Path(__file__).parents[3])
    paths = [here, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def _end(process: subprocess.Popen[str], directory: Path) -> None:
    """Close the child's input and wait; kill it if it does not end (its storage ends by itself)."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
    shutil.rmtree(directory, ignore_errors=True)


def _end_of(process: subprocess.Popen[str]) -> str:
    """How a process ended that has closed its output."""
    try:
        code = process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        return "its process closed its output"
    return f"its process ended with {code}" if code >= 0 else f"its process was ended by signal {-code}"


def _tail(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[-2000:].strip() or "empty"
    except OSError:
        return "none"


def play(**settings: Any) -> int:
    """Start a cluster for play, print its URI, and keep it until the input ends or Ctrl-C."""
    began = time.monotonic()
    with PicodataCluster(**settings) as cluster:
        print(cluster.dsn)
        print(f"started in {time.monotonic() - began:.1f} s; end with Ctrl-D or Ctrl-C", file=sys.stderr)
        with contextlib.suppress(KeyboardInterrupt):
            sys.stdin.read()
    return 0

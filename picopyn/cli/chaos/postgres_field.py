"""A PostgreSQL primary with two streaming replicas as a field. A commit waits for one of the replicas."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from picopyn.cli.chaos.field import COUNTERS, PATIENCE, REGISTERS
from picopyn.cli.chaos.fronts import Fronts
from picopyn.cli.chaos.history import Stored
from picopyn.cli.chaos.schedule import LINK, POSTGRES, Act, Menu, Step
from picopyn.testing import PostgresCluster

#: For replicas to have everything, on a slow machine (seconds).
_CATCHING_UP = 60.0
#: A row has no key: one that was written twice shall be there twice.
_TABLES = f"""
CREATE TABLE chaos_rows (id BIGINT);
CREATE TABLE chaos_counters (id BIGINT PRIMARY KEY, n BIGINT NOT NULL);
CREATE TABLE chaos_registers (id BIGINT PRIMARY KEY, n BIGINT NOT NULL);
INSERT INTO chaos_counters SELECT i, 0 FROM generate_series(0, {COUNTERS - 1}) AS i;
INSERT INTO chaos_registers SELECT i, 0 FROM generate_series(0, {REGISTERS - 1}) AS i;
"""


class PostgresField:
    """Owner: the run."""

    def __init__(self) -> None:
        self._servers = PostgresCluster(replicas=2, synchronous=1).start()
        try:
            self._servers.execute(_TABLES)
            self._servers.wait_caught_up(timeout=_CATCHING_UP)
            self._fronts = Fronts({name: self._servers.address_of(name) for name in self._servers.nodes})
        except BaseException:
            self._servers.shutdown()
            raise
        self._troubled: dict[int, tuple[str, Act]] = {}

    @property
    def menu(self) -> Menu:
        """What can happen here."""
        return POSTGRES

    @property
    def dsn(self) -> str:
        """Connection string for the driver: the proxies."""
        return f"postgresql://postgres@{self._fronts.hosts}/postgres"

    @property
    def options(self) -> Mapping[str, Any]:
        """Further settings of the pool."""
        return {"refresh_delay": 0.3, "acquire_timeout": PATIENCE}

    def take(self, step: Step) -> str:
        """Take a step of a schedule; returns who was meant, in words."""
        if step.act is Act.MEND:
            return self._mend(step)
        if step.act is Act.SUCCEED:
            return self._succeed(step)
        if step.act is Act.SWITCH:
            return self._switch(step)
        name = self._whom(step)
        self._troubled[step.number] = (name, step.act)
        if step.act in LINK or step.act is Act.CUT:
            self._fronts.disturb(name, step.act)
        elif step.act is Act.READ_ONLY:
            self._servers.read_only(name, True)
        else:
            _DONE[step.act](self._servers, name)
        return name

    def _whom(self, step: Step) -> str:
        if step.leader:
            return self._servers.primary
        replicas = [name for name in self._servers.nodes if name != self._servers.primary]
        return replicas[int(step.luck * len(replicas))]

    def _mend(self, step: Step) -> str:
        name, act = self._troubled.pop(step.number)
        if act in LINK:
            self._fronts.free(name, act)
        elif act is Act.READ_ONLY:
            self._servers.read_only(name, False)
        elif act is Act.FREEZE:
            self._servers.thaw(name)
        else:
            self._servers.restart(name)
        if act not in LINK:
            self._servers.wait_caught_up(timeout=_CATCHING_UP)  # or the next loss would be one too many
        return name

    def _succeed(self, step: Step) -> str:
        """Promote another one; the lost one is back as a primary of old for a moment where it can be, then follows."""
        name, act = self._troubled.pop(step.number)
        self._servers.promote()
        if act is Act.FREEZE:
            self._servers.thaw(name)
            return self._depose(name, step.luck)
        return self._follow(name)

    def _switch(self, step: Step) -> str:
        old = self._servers.primary
        self._servers.promote()
        return self._depose(old, step.luck)

    def _depose(self, old: str, seconds: float) -> str:
        """There are two primaries for a moment. No replica confirms what the old one commits; it must not live to show
        it, as it would in an orderly end, which no longer waits for replicas.
        """
        time.sleep(seconds)
        self._servers.kill(old)
        return self._follow(old)

    def _follow(self, old: str) -> str:
        self._servers.rejoin(old)
        self._servers.wait_caught_up(timeout=_CATCHING_UP)
        return f"{self._servers.primary} for {old}"

    def stored(self) -> Stored:
        """What the primary holds, asked without the driver."""
        rows, counters, registers = (
            {int(key or 0): int(value or 0) for key, value in self._servers.execute(query)}
            for query in (
                "SELECT id, count(*) FROM chaos_rows GROUP BY id",
                "SELECT id, n FROM chaos_counters",
                "SELECT id, n FROM chaos_registers",
            )
        )
        return Stored(rows, counters, registers)

    def close(self) -> None:
        """End the servers."""
        self._fronts.close()
        self._servers.shutdown()


_DONE = {
    Act.KILL: PostgresCluster.kill,
    Act.STOP: PostgresCluster.stop,
    Act.FREEZE: PostgresCluster.freeze,
}

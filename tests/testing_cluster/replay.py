"""Plays the recorded conversations of a real Picodata against a cluster, and compares the answers.

Equal means equal after the file's placeholders; of a plan the column name, the buckets line and the number
of rows count; the order of rows counts only with ORDER BY. Names and literals may be replaced on the way:
then the same replacement is expected in the answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from picopyn.testing import PicodataCluster
from tests.testing_cluster import wire_client as wire
from tests.testing_cluster.wire_client import Answer, WireClient

RECORDED = json.loads((Path(__file__).parents[1] / "recorded" / "picodata-conversations.json").read_text())
CONVERSATIONS: list[dict[str, Any]] = RECORDED["conversations"]
SMART = {"pico_query_metadata": "true", "pico_stmt_invalidation": "true"}
BARE_PASSWORD = "Secret-123"

#: Statements whose names and numbers mean something of their own.
_AS_IT_IS = r"pico_|^SELECT [$\d].*[+/]|^SELECT 1|^EXPLAIN SELECT 1$|^Parse duplicate"

#: What each step of section "messages" sends: the file only describes it. `{t}` is the table called t1 in
# the file.
MESSAGES: dict[str, Callable[[Rename], list[bytes]]] = {
    "Bind unknown statement": lambda _: [wire.bind(statement="nostmt"), wire.SYNC],
    "Execute unknown portal": lambda _: [wire.execute("noportal"), wire.SYNC],
    "Describe unknown statement": lambda _: [wire.describe("S", "nostmt"), wire.SYNC],
    "Close unknown statement": lambda _: [wire.close("S", "nostmt"), wire.SYNC],
    "Parse duplicate name": lambda _: [wire.parse("SELECT 1", "dup"), wire.SYNC],
    "pipeline P ok, P bad, P ok, Sync": lambda _: [
        wire.parse("SELECT 1"),
        wire.parse("SELEC 1"),
        wire.parse("SELECT 2"),
        wire.SYNC,
    ],
    "pipeline insert 801, 801, 802 one Sync": lambda rename: [
        *(
            part
            for key in (801, 801, 802)
            for part in (
                wire.parse(rename.sql(f"INSERT INTO t1 (id, name) VALUES ({key}, 'p')")),
                wire.bind(),
                wire.execute(),
            )
        ),
        wire.SYNC,
    ],
    "Execute limit 2 twice": lambda rename: [
        wire.parse(rename.sql("SELECT id FROM t1 WHERE id IN (1, 2, 3, 11, 13) ORDER BY id")),
        wire.bind(),
        wire.execute(limit=2),
        wire.execute(limit=2),
        wire.SYNC,
    ],
    "Flush, Sync": lambda _: [wire.FLUSH, wire.SYNC],
    "CopyData": lambda _: [wire.packed("d", b"abc"), wire.SYNC],
    "FunctionCall": lambda _: [wire.packed("F", b"\0" * 12)],
    "garbage type": lambda _: [wire.packed("!", b"")],
}


@dataclass(frozen=True)
class Rename:
    """Replaces identifiers, text literals and integer keys, in statements and in answers alike."""

    names: dict[str, str]
    texts: dict[str, str]
    keys: dict[int, int]
    buckets: dict[int, int]
    columns: frozenset[str] = frozenset({"name", "v", "extra"})

    @classmethod
    def nothing(cls) -> Rename:
        """Everything stays."""
        return cls({}, {}, {}, {})

    def sql(self, text: str) -> str:
        """A statement; one that names system tables, or computes, stays as it is."""
        if re.search(_AS_IT_IS, text):
            return text
        return re.sub(r"'[^']*'|\"[^\"]*\"|\$\$|\$?\w+", lambda found: self._word(found[0]), text)

    def _word(self, word: str) -> str:
        if word.startswith("'"):
            return f"'{self.texts.get(word[1:-1], word[1:-1])}'"
        if word.startswith('"'):
            return f'"{self.names.get(word[1:-1], word[1:-1])}"'
        if word.isdigit():
            return str(self.keys.get(int(word), int(word)))
        return self.names.get(word.lower(), word)

    def parameter(self, value: str | None) -> str | None:
        """A bound value."""
        if value is None:
            return None
        return str(self.keys.get(int(value), int(value))) if value.isdigit() else self.texts.get(value, value)

    def answer(self, answer: Answer) -> Answer:
        """An expected answer."""
        match answer:
            case ["T", columns]:
                return ["T", [[self.names.get(name, name), oid] for name, oid in columns]]
            case ["D", values]:
                return ["D", [self._value(value) for value in values]]
            case ["E" | "N" as kind, fields]:
                return [kind, {**fields, "M": self._message(fields["M"])}]
        return answer

    def _value(self, value: Any) -> Any:
        if isinstance(value, str) and value.startswith("buckets"):
            return self._plan_line(value)
        if isinstance(value, dict) and len(value["hex"]) == 16:
            key = int(value["hex"], 16)
            return {"hex": f"{self.keys.get(key, key):016x}"}
        return self.parameter(value) if isinstance(value, str) else value

    def _plan_line(self, line: str) -> str:
        return re.sub(r"\d+", lambda found: str(self.buckets.get(int(found[0]), int(found[0]))), line)

    def _message(self, text: str) -> str:
        if text.startswith('{"type"'):
            return json.dumps(
                {**(fields := json.loads(text)), "query": self.sql(fields["query"])},
                separators=(",", ":"),
                ensure_ascii=False,
            )
        text = re.sub(r"(?<=tuple - )\[(\d+), (\d+)?", self._tuple, text)
        text = re.sub(r"(?<=tuple - )\[[^\]]*\]", self._texts_in_tuple, text)
        pieces = re.split(r"(\[[^\]]*\])", text)
        return "".join(piece if at % 2 else self._named(piece) for at, piece in enumerate(pieces))

    def _named(self, text: str) -> str:
        for old, new in self.names.items():
            quoted = rf"""(?<=["'(]){old}(?=\\?["')])"""
            text = re.sub(quoted if old in self.columns else rf"\b{old}\b(?!\\?\")|{quoted}", new, text)
        return text

    def _texts_in_tuple(self, found: re.Match[str]) -> str:
        return re.sub(r'"(\w+)(?=\\?")', lambda text: f'"{self.texts.get(text[1], text[1])}', found[0])

    def _tuple(self, found: re.Match[str]) -> str:
        key = int(found[1])
        if found[2] is None:
            return f"[{self.keys.get(key, key)}, "
        bucket = int(found[2])
        return f"[{self.keys.get(key, key)}, {self.buckets.get(bucket, bucket)}"


def differences(expected: list[Answer], got: list[Answer], *, ordered: bool) -> str | None:
    """What differs, or None."""
    expected, got = _plan_reduced(expected), _plan_reduced(got)
    if not ordered:
        expected, got = _rows_sorted(expected, got)
    if len(expected) != len(got):
        return f"expected {expected}, got {got}"
    for want, have in zip(expected, got, strict=True):
        if not _alike(want, have):
            return f"expected {want}, got {have}"
    return None


def _alike(want: Any, have: Any) -> bool:
    if isinstance(want, list):
        return isinstance(have, list) and len(want) == len(have) and all(map(_alike, want, have))
    if isinstance(want, dict):
        return isinstance(have, dict) and want.keys() == have.keys() and all(_alike(want[k], have[k]) for k in want)
    if isinstance(want, str) and isinstance(have, str) and re.search(r"<[a-z ]+>", want):
        pieces = re.split(r"<[a-z ]+>", want)
        return re.fullmatch(".*".join(map(re.escape, pieces)), have, re.DOTALL) is not None
    return bool(want == have)


def _plan_reduced(answers: list[Answer]) -> list[Answer]:
    if not _is_plan(answers) or not any(a[0] == "D" for a in answers):
        return answers
    last = max(at for at, answer in enumerate(answers) if answer[0] == "D")
    return [["D", ["<plan line>"]] if a[0] == "D" and at != last else a for at, a in enumerate(answers)]


def _is_plan(answers: list[Answer]) -> bool:
    return any(["T", [[name, 25]]] in answers for name in ("QUERY PLAN", "EXPLAIN"))


def _rows_sorted(expected: list[Answer], got: list[Answer]) -> tuple[list[Answer], list[Answer]]:
    """The rows of an answer in an order that does not depend on the server."""
    rows = [a[1] for a in expected if a[0] == "D"]
    if _is_plan(expected) or not rows:
        return expected, got
    masked = {at for row in rows for at, value in enumerate(row) if isinstance(value, str) and "<" in value}

    def arranged(answers: list[Answer]) -> list[Answer]:
        def key(values: list[Any]) -> str:
            return json.dumps([None if at in masked else value for at, value in enumerate(values)])

        in_order = sorted((a for a in answers if a[0] == "D"), key=lambda a: key(a[1]))
        return [in_order.pop(0) if a[0] == "D" else a for a in answers]

    return arranged(expected), arranged(got)


class Player:
    """Plays sections, in order, at the leader of default_1; gives (conversation, difference or None)."""

    def __init__(self, cluster: PicodataCluster, rename: Rename | None = None, version: str = "26.1") -> None:
        self._cluster = cluster
        self._version = f"answer_{version.replace('.', '_')}"
        self._rename = rename or Rename.nothing()
        self._hand_shake: list[Answer] = []

    def connect(self, user: str = "admin", at: str = "default_1_1", **keys: str) -> WireClient:
        """A logged-in connection."""
        client = self._raw(at)
        password = BARE_PASSWORD if user == "bare" else self._cluster.password(user)
        answers = client.start(user, password, keys)
        assert answers[-1] == ["Z", "I"], answers
        return client

    def _raw(self, at: str = "default_1_1") -> WireClient:
        instance = self._cluster.instances[at]
        return WireClient(instance.host, instance.port)

    def section(self, name: str) -> Iterator[tuple[dict[str, Any], str | None]]:
        """Play one section."""
        steps = [item for item in CONVERSATIONS if item["section"] == name]
        plays = {
            "startup": self._startup,
            "auth": self._auth,
            "extended+metadata": self._extended,
            "extended binary": self._binary,
            "messages": self._messages,
        }
        if name in plays:
            yield from plays[name](steps)
        elif name.startswith("bare user"):
            yield from self._bare(steps)
        elif name.startswith(("statement invalidation", "the same without")):
            yield from self._invalidation(steps, name)
        elif name.startswith("errors of"):
            yield from self._direct_and_forwarded(steps)
        elif name == "row limit":
            yield from self._row_limit(steps)
        else:
            yield from self._simple(steps)

    def _judge(self, step: dict[str, Any], got: list[Answer]) -> tuple[dict[str, Any], str | None]:
        expected = []
        for answer in step.get(self._version, step["answer"]):
            expected += self._hand_shake if isinstance(answer, str) else [self._for(step).answer(answer)]
        ordered = "ORDER BY" in str(step["do"]) or "limit 2" in str(step["do"])
        return step, differences(expected, got, ordered=ordered)

    def _for(self, step: dict[str, Any]) -> Rename:
        """What is replaced in this step: nothing where the text names nothing that is."""
        do = str(step["do"])
        same = re.search(_AS_IT_IS, do) or ("params" in step and self._rename.sql(do) == do)
        return Rename.nothing() if same else self._rename

    def _startup(self, steps: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str | None]]:
        for step in steps:
            with self._raw() as client:
                got = client.start("admin", self._cluster.password(), step["do"])
                if not self._hand_shake:
                    self._hand_shake = got
                if got[-1] == ["Z", "I"]:
                    got = got + client.exchange(self._round("SELECT 1"))
            yield self._judge(step, got)

    @staticmethod
    def _round(sql: str, values: list[str | None] | None = None, oids: tuple[int, ...] = (), code: int = 0) -> bytes:
        parts = [wire.parse(sql, oids=oids), wire.describe(), wire.bind(values or (), result_format=code)]
        return b"".join([*parts, wire.execute(), wire.SYNC])

    def _auth(self, steps: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str | None]]:
        for step in steps:
            with self._raw() as client:
                user = None if step["do"] == "no user" else step["do"]
                yield self._judge(step, client.start(user, "not the password"))

    def _simple(self, steps: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str | None]]:
        with self.connect() as client:
            for step in steps:
                yield self._judge(step, client.query(self._rename.sql(step["do"])))

    def _extended(self, steps: list[dict[str, Any]], code: int = 0) -> Iterator[tuple[dict[str, Any], str | None]]:
        with self.connect(**SMART) as client:
            for step in steps:
                sql = self._rename.sql(step["do"])
                values = [self._for(step).parameter(value) for value in step.get("params", ())]
                yield self._judge(step, client.exchange(self._round(sql, values, step.get("oids", ()), code)))

    def _binary(self, steps: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str | None]]:
        yield from self._extended(steps, 1)

    def _messages(self, steps: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str | None]]:
        client = self.connect()
        client.exchange(wire.parse("SELECT 1", "dup") + wire.SYNC)
        for step in steps:
            if step["do"] == "what stayed":
                got = client.query(self._rename.sql("SELECT id FROM t1 WHERE id IN (801, 802)"))
            else:
                got = client.exchange(b"".join(MESSAGES[step["do"]](self._rename)))
            yield self._judge(step, got)
            if got[-1] == ["CLOSED"]:
                client.close()
                client = self.connect()
        client.close()

    def _bare(self, steps: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str | None]]:
        with self._raw() as client:
            hand_shake = client.start("bare", BARE_PASSWORD)
            yield self._judge(steps[0], hand_shake[:4])
            for step in steps[1:]:
                yield self._judge(step, client.query(self._rename.sql(step["do"])))

    def _invalidation(self, steps: list[dict[str, Any]], name: str) -> Iterator[tuple[dict[str, Any], str | None]]:
        smart = name.startswith("statement invalidation")
        with self.connect() as other, self.connect(**(SMART if smart else {})) as client:
            if smart:
                other.query(self._rename.sql("CREATE TABLE inv (id INT NOT NULL PRIMARY KEY, v TEXT)"))
            for step in steps:
                yield self._judge(step, self._invalidation_step(step["do"], client, other))

    def _invalidation_step(self, do: str, client: WireClient, other: WireClient) -> list[Answer]:
        if found := re.match(r"another connection: (.*)", do):
            return other.query(self._rename.sql(found[1]))
        if found := re.match(r"Parse and Describe '(\w+)'(?: again)?(?:: (.*))?", do):
            sql = self._rename.sql(found[2] or "INSERT INTO inv (id, v) VALUES ($1, $2)")
            return client.exchange(wire.parse(sql, found[1]) + wire.describe("S", found[1]) + wire.SYNC)
        if found := re.match(r"Close '(\w+)'", do):
            return client.exchange(wire.close("S", found[1]) + wire.SYNC)
        if found := re.match(r"after (.*?): (.*)", do):
            other.query(self._rename.sql(found[1]))
            do = found[2]
        found = re.match(r"Bind '(\w+)' \((.*?)\), Execute, Sync", do)
        assert found, do
        values = [self._rename.parameter(value) for value in found[2].split(", ")]
        return client.exchange(wire.bind(values, found[1]) + wire.execute() + wire.SYNC)

    def _direct_and_forwarded(self, steps: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str | None]]:
        with self.connect() as one, self.connect(at="default_2_1") as two:
            one.query(self._rename.sql("CREATE TABLE dup (id INT NOT NULL PRIMARY KEY)"))
            for key in (1, 5):
                one.query(self._rename.sql(f"INSERT INTO dup VALUES ({key})"))
            for step in steps:
                sql = re.search(r"INSERT INTO dup VALUES \(\d+\)", step["do"])
                assert sql
                client = one if "leader of default_1" in step["do"] else two
                yield self._judge(step, client.query(self._rename.sql(sql[0])))

    def _row_limit(self, steps: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str | None]]:
        with self.connect() as client:
            client.query(self._rename.sql("CREATE TABLE many (id INT NOT NULL PRIMARY KEY)"))
            for first in range(10_000, 16_000, 1000):
                values = ", ".join(f"({key})" for key in range(first, first + 1000))
                assert client.query(self._rename.sql(f"INSERT INTO many VALUES {values}"))[0] == [
                    "C",
                    "INSERT 0 1000",
                ]
            for step in steps:
                sql = re.sub(r"\(6 000 rows\)|, without its 6 000 D", "", step["do"])
                got = client.query(self._rename.sql(sql))
                kept = [a for a in got if a[0] != "D"] if "without" in step["do"] else got
                yield self._judge(step, kept)

"""The embedded cluster answers as a real Picodata 26.1.6 did, message by message."""

from collections.abc import Callable, Sequence

import pytest

from picopyn.testing import PicodataCluster, UserShape
from picopyn.testing.picodata.planner.hash import bucket_of
from tests.testing_cluster.replay import BARE_PASSWORD, CONVERSATIONS, Player, Rename

SECTIONS = list(dict.fromkeys(item["section"] for item in CONVERSATIONS))

#: (section, what was done) of every answer that is not equal, with the reason.
UNEQUAL: dict[tuple[str, str], str] = {
    (
        "extended binary",
        "INSERT INTO t1 (id, name) VALUES ($1, $2), ($3, $4)",
    ): "both rows exist, at two replicasets: which refusal is heard first is chance",
    (
        "simple",
        "SELECT name, distribution FROM _pico_table",
    ): "the embedded cluster has only the system tables that the facts describe",
}

#: What every version was asked, message by message; the other sections were recorded on 26.1 and 26.2 only.
ON_25_6 = ("setup", "simple", "extended+metadata", "messages", "extended binary")

#: The same for the other versions.
UNEQUAL_ELSEWHERE: dict[tuple[str, str], str] = {
    (
        "simple",
        "SELECT id FROM t1 OPTION (SQL_MOTION_ROW_MAX = 1)",
    ): "it names the number of rows at one replicaset; the embedded cluster does not know which rows came from where",
    (
        "simple",
        "SELECT name, distribution FROM _pico_table",
    ): "the embedded cluster has only the system tables that the facts describe",
}

#: Statements of section "simple" whose answers the renaming itself changes: it replaces a number that is counted,
#: computed or written in a decimal, or half of what a text and its answer have in common.
CHANGED_BY_RENAMING = {
    "SELECT 'x' as y, 1.5, true, null",
    "INSERT INTO t1 VALUES ('x', 'a')",
    "SELECT id, name, bucket_id FROM t1 WHERE id = 1",
    "SELECT count(*) FROM t1",
    "SELECT sum(id), avg(id), max(name) FROM t1",
    "SELECT * FROM t1 ORDER BY id LIMIT 1",
    "SELECT * FROM t1 WHERE bucket_id = 1934",
    "INSERT INTO t1 SELECT id + 100, name FROM t1",
    "SELECT id FROM t1 OPTION (SQL_MOTION_ROW_MAX = 1)",
    "SELECT * FROM t1 OPTION (SQL_VDBE_OPCODE_MAX = 1)",
    "EXPLAIN SELECT * FROM t2 WHERE c = 1 AND b = '2'",
    "SELECT * FROM t1 WHERE _pico_bucket('default') IS NULL",
    "SELECT name, distribution, format FROM _pico_table WHERE name = 't2'",
    "CREATE USER weak WITH PASSWORD 'a'",
    'SELECT "id" FROM "t1"',
    "SELECT ID FROM T1",
}

Factory = Callable[..., PicodataCluster]


def recorded_cluster(fresh: Factory, version: str = "26.1") -> PicodataCluster:
    """A cluster in the shape of the recording: default_1 holds the upper half of the buckets."""
    cluster = fresh(users=(UserShape("bare", BARE_PASSWORD, "scram-sha256"),), version=version)
    cluster.move_buckets("default", 1, 1500, "default_2")
    cluster.move_buckets("default", 1501, 3000, "default_1")
    cluster.execute("GRANT CREATE TABLE TO bare")
    return cluster


def other_names() -> Rename:
    """Other tables, columns and literals; each key's substitute lives in the same half of the buckets."""
    keys, buckets = {}, {}
    for key in [1, 2, 3, 5, *range(11, 16), *range(18, 24), 50, 77, 801, 802, 900, 901, 999]:
        home = bucket_of([key], 3000) > 1500
        candidates = range(20_000 + 50 * key, 20_000 + 50 * key + 50)
        keys[key] = next(k for k in candidates if (bucket_of([k], 3000) > 1500) == home)
        buckets[bucket_of([key], 3000)] = bucket_of([keys[key]], 3000)
    names = {"t1": "orders", "t2": "lines", "g1": "countries", "typ": "kinds", "inv": "stock", "dup": "twins"}
    names |= {
        "many": "crowd",
        "app_own": "mine",
        "name": "title",
        "v": "worth",
        "extra": "more",
        "zz": "gone",
    }
    texts = {"a": "qa", "b": "qb", "z": "qz", "n": "nn", "m": "mm", "p": "pp", "x": "xx"}
    return Rename(names, texts, keys, buckets)


def unequal(player: Player, sections: list[str], played: Sequence[str] = SECTIONS) -> dict[tuple[str, str], str]:
    """Plays these sections, in order; gives what differs in those named."""
    return {
        (step["section"], str(step["do"])): difference
        for section in played
        for step, difference in player.section(section)
        if difference is not None and section in sections
    }


def test_recorded_conversations_are_answered_equally(picopyn_fresh_cluster: Factory) -> None:
    """In the file's order; what is not equal is listed with its reason."""
    found = unequal(Player(recorded_cluster(picopyn_fresh_cluster)), SECTIONS)
    assert found.keys() == UNEQUAL.keys(), found
    assert len(UNEQUAL) <= len(CONVERSATIONS) // 20


@pytest.mark.parametrize("version", ["25.6", "26.2"])
def test_other_versions_are_answered_as_they_answered(picopyn_fresh_cluster: Factory, version: str) -> None:
    """25.6 and 26.2, where they answered otherwise than 26.1 and where they did not."""
    player = Player(recorded_cluster(picopyn_fresh_cluster, version), version=version)
    played = SECTIONS if version == "26.2" else [section for section in SECTIONS if section in ON_25_6]
    found = unequal(player, played, played)
    assert found.keys() == UNEQUAL_ELSEWHERE.keys(), found


def test_recorded_conversations_hold_for_other_names_and_literals(picopyn_fresh_cluster: Factory) -> None:
    """Tables, columns and literals are renamed on both sides: answers are not looked up."""
    player = Player(recorded_cluster(picopyn_fresh_cluster), other_names())
    found = unequal(player, [section for section in SECTIONS if section not in ("startup", "auth")])
    changed = {("simple", text) for text in CHANGED_BY_RENAMING}
    assert found.keys() <= UNEQUAL.keys() | changed, found

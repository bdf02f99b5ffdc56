"""`picopyn route`: what it prints, how arguments are read, and its exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from picopyn.cli.main import main
from picopyn.cli.route import BadArgument, values
from picopyn.testing import PicodataCluster

Factory = Callable[..., PicodataCluster]

ROOT = Path(__file__).parents[2]
A_UUID = "9035910e-8342-4460-8c25-25e5f10d9876"


def test_a_statement_is_explained_on_the_command_line(
    picopyn_cluster_factory: Factory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Key, bucket, owner and node; arguments are read as the types that the server names."""
    cluster = picopyn_cluster_factory()
    cluster.execute(
        "CREATE TABLE IF NOT EXISTS routed (a INT, b TEXT, v INT, PRIMARY KEY (a, b)) DISTRIBUTED BY (b, a)"
    )
    sql = "SELECT * FROM routed WHERE a = $1 AND b = 'x' AND v = $2"
    assert main(["route", cluster.dsn, sql, "1", "NULL"]) == 0
    told = capsys.readouterr().out
    bucket = cluster.bucket_of("routed", "x", 1)
    owner = cluster.owner_of("default", bucket)
    assert "keyed" in told
    assert "(literal, $1)" in told
    assert f"bucket:    {bucket}\n" in told
    assert f"goes to:   {cluster.leaders()[owner]} (" in told
    assert "direct:    yes" in told
    assert cluster.password() not in told
    assert main(["route", cluster.dsn, "SELECT count(*) FROM routed"]) == 0
    assert "not keyed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["one", "2"], "argument 1 is not of type integer"),
        (["1"], "the statement has 2 parameters, 1 arguments were given"),
        (["1", "2", "3"], "the statement has 2 parameters, 3 arguments were given"),
    ],
)
def test_arguments_that_do_not_fit_are_named(
    picopyn_cluster_factory: Factory, capsys: pytest.CaptureFixture[str], arguments: Sequence[str], said: str
) -> None:
    """Position and expectation; exit code 2, nothing on standard output."""
    cluster = picopyn_cluster_factory()
    cluster.execute("CREATE TABLE IF NOT EXISTS fitting (id INT PRIMARY KEY, v INT)")
    assert main(["route", cluster.dsn, "SELECT * FROM fitting WHERE id = $1 AND v = $2", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert "one" not in captured.err


@pytest.mark.parametrize(
    ("text", "said"), [("SELEC $1", "parsing error"), ("SELECT * FROM no_table WHERE id = $1", '"no_table" not found')]
)
def test_a_text_that_the_server_refuses_has_no_route(
    picopyn_cluster_factory: Factory, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    """The server's reason on standard error, exit code 2; a text that has no route is none that is refused."""
    cluster = picopyn_cluster_factory()
    assert main(["route", cluster.dsn, text, "1"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("picopyn route: ")
    assert said in captured.err
    assert main(["route", cluster.dsn, "CREATE TABLE routed_not_made (id INT PRIMARY KEY)"]) == 0
    assert "not known" in capsys.readouterr().out
    assert cluster.execute("SELECT name FROM _pico_table WHERE name = 'routed_not_made'") == []


def test_what_cannot_be_reached_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback, no password."""
    assert main(["route", "postgresql://u:hidden@127.0.0.1:1/", "SELECT 1"]) == 2
    assert main(["route", "postgresql://u:hidden@127.0.0.1:x/", "SELECT 1"]) == 2
    said = capsys.readouterr().err
    assert said.count("picopyn route: ") == 2
    assert "hidden" not in said


def test_it_is_a_command_of_the_package() -> None:
    """With its own help."""
    command = [sys.executable, "-m", "picopyn.cli.main", "route", "--help"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60, check=True
    )
    assert "Nothing is executed" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("oid", "text", "value"),
    [
        (16, "true", True),
        (16, "F", False),
        (20, "-5", -5),
        (25, "5", "5"),
        (701, "1e3", 1000.0),
        (1700, "1.50", Decimal("1.50")),
        (2950, A_UUID, UUID(A_UUID)),
        (1184, "2023-07-07T12:34:56+03:00", datetime.fromisoformat("2023-07-07T12:34:56+03:00")),
        (1184, "2023-07-07", datetime(2023, 7, 7, tzinfo=UTC)),
        (20, "NULL", None),
    ],
)
def test_arguments_become_values_of_their_types(oid: int, text: str, value: Any) -> None:
    """Every type that may be part of a key."""
    assert values([text], [oid]) == [value]
    assert values([text], []) == [None if text == "NULL" else text]


@pytest.mark.parametrize(
    ("oid", "text"), [(16, "yes!"), (20, "1.5"), (1700, "x"), (2950, "x"), (1184, "noon"), (701, "")]
)
def test_values_that_are_none_are_refused(oid: int, text: str) -> None:
    """Before anything is asked with them."""
    with pytest.raises(BadArgument, match="argument 1 is not of type"):
        values([text], [oid])

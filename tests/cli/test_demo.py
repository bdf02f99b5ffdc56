"""`picopyn demo`: it keeps its promises, says so, and leaves nothing behind; a broken promise is an exit code of 1."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from picopyn.cli.demo import verification
from picopyn.cli.demo.killing import Killing
from picopyn.cli.demo.killing import promises as promises_of
from picopyn.cli.demo.ledger import Key, Ledger
from picopyn.cli.demo.play import conclude
from picopyn.cli.demo.promises import Promise, exit_code, no_failure, percent
from picopyn.cli.demo.screen import Screen
from picopyn.cli.demo.tally import Tally
from picopyn.cli.demo.timeline import marks, spark
from picopyn.errors import WriteLost

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "picopyn.cli.main"]
MARK = "PICOPYN_TEST_DEMO"

KEPT = [
    "keyed statements go straight to their owner",
    "no call fails under the load",
    "no call fails while 750 buckets move",
    "the driver follows the moved buckets",
    "no call fails while leaders change places",
    "calls of all other buckets go on",
    "reads of default_2: its replica answers",
    "writes of default_2: wait, and come back",
    "every acknowledged row is there exactly once",
]


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """Variables for a process whose children can be told from all others; none of them may be left in the end."""
    mark = uuid.uuid4().hex
    yield {**os.environ, "PYTHONPATH": str(ROOT), MARK: mark, "PYTHONUNBUFFERED": "1"}
    assert _alive(mark) == []


def _alive(mark: str) -> list[str]:
    """Command lines of living processes that were started with this mark; empty where there is no /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (path / "environ").read_bytes().split(b"\0"):
                found.append((path / "cmdline").read_text())
        except OSError:
            continue
    return found


# --- the whole thing ---------------------------------------------------------------------------------------


@pytest.mark.cluster
@pytest.mark.parametrize(("options", "pool"), [([], "picopyn.asynchronous"), (["--sync"], "picopyn.sync")])
def test_the_demo_keeps_its_promises(environment: dict[str, str], options: list[str], pool: str) -> None:
    """Three acts and a verification; every promise is ticked, and the exit code is 0. So it is with threads."""
    done = subprocess.run(
        [*COMMAND, "demo", "--quick", *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert f"the pool is that of {pool}" in " ".join(done.stdout.split())
    for promise in KEPT:
        assert re.search(rf"✓ kept +{re.escape(promise)}", done.stdout), done.stdout
    assert "All 9 promises were kept." in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 160


@pytest.mark.cluster
def test_chaos_breaks_no_law(environment: dict[str, str]) -> None:
    """Two clusters are disturbed in the order that the seed gives; every law is ticked, and the seed is told."""
    done = subprocess.run(
        [*COMMAND, "demo", "--chaos", "--quick", "--sync", "--seed", "5"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for kind in ("Picodata", "PostgreSQL"):
        assert re.search(rf"✓ kept +{kind}: no acknowledged write is lost", done.stdout), done.stdout
    assert "All 10 promises were kept." in done.stdout
    assert "picopyn demo --chaos --seed 5" in done.stdout


def test_a_seed_without_chaos_is_refused(environment: dict[str, str]) -> None:
    """It would change nothing; the exit code is 2."""
    done = subprocess.run(
        [*COMMAND, "demo", "--seed", "5"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "--seed belongs to --chaos" in done.stderr


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("moment", "number", "options"),
    [
        ("ready after", signal.SIGINT, []),
        ("Act 3", signal.SIGTERM, []),
        pytest.param("Act 3", signal.SIGTERM, ["--sync"], marks=pytest.mark.full),
    ],
)
def test_it_stops_when_told_to(
    environment: dict[str, str], moment: str, number: signal.Signals, options: list[str]
) -> None:
    """Ctrl-C and SIGTERM stop the cluster too, and say so without a traceback."""
    with subprocess.Popen(
        [*COMMAND, "demo", "--quick", *options],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert any(moment in line for line in process.stdout)
        process.send_signal(number)
        output, errors = process.communicate(timeout=30)
    assert process.returncode == 130, output + errors
    assert errors.strip() == "picopyn demo: stopped before its end; nothing is left behind"


def test_a_missing_package_is_named(environment: dict[str, str]) -> None:
    """Without the extra packages it says what to install, and the exit code is 2."""
    code = "import sys; sys.modules['rich'] = None; from picopyn.cli.main import main; sys.exit(main(['demo']))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "'rich" in done.stderr
    assert "extras testing and cli, from a clone: pip install '.[testing,cli]'" in done.stderr
    assert "pip install 'picopyn" not in done.stderr  # from the index, that is an older driver
    assert "Traceback" not in done.stderr


def test_without_postgresql_it_says_what_to_install(environment: dict[str, str], tmp_path: Path) -> None:
    """The cluster's storage is missing: the same exit code, and the places that were tried."""
    done = subprocess.run(
        [*COMMAND, "demo"],
        env={**environment, "PICOPYN_TEST_POSTGRES_BIN": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr
    assert "extra testing (from a clone: pip install '.[testing]')" in done.stderr


def test_the_version_needs_no_extra_package(environment: dict[str, str]) -> None:
    """`picopyn --version` works in a plain installation."""
    code = "import sys; sys.modules['rich'] = None; from picopyn.cli.main import main; main(['--version'])"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0
    assert done.stdout.startswith("picopyn ")


# --- a broken promise --------------------------------------------------------------------------------------


ROW: Key = ("orders", (7,))


def _books(*written: str | None, unknown: str | None = "no") -> Ledger:
    ledger = Ledger()
    for state in written:
        ledger.acknowledged(ROW, state)
    if unknown != "no":
        ledger.unknown(ROW, unknown)
    return ledger


@pytest.mark.parametrize(
    ("ledger", "stored", "problem"),
    [
        (_books("new"), [], "1 lost"),
        (_books("new"), [(ROW, "new"), (ROW, "new")], "1 twice"),
        (_books("new", "paid"), [(ROW, "new")], "1 differing"),
        (_books("new", None), [(ROW, "new")], "1 back after their deletion"),
        (_books(), [(ROW, "new")], "1 back after their deletion"),
        (_books("new", unknown="paid"), [], "1 lost"),
        (_books("new", unknown="paid"), [(ROW, "sent")], "1 differing"),
    ],
)
def test_an_acknowledged_row_that_is_not_there_breaks_the_promise(
    ledger: Ledger, stored: list[tuple[Key, str]], problem: str
) -> None:
    """Lost, doubled, overwritten and revived rows are found, named, and make the exit code 1."""
    promise = verification.promise(ledger.audit(stored))
    assert not promise.kept
    assert problem in promise.evidence
    assert exit_code([Promise("another one", True, ""), promise]) == 1


@pytest.mark.parametrize(
    ("ledger", "stored", "happened"),
    [
        (_books("new", unknown="paid"), [(ROW, "new")], 0),
        (_books("new", unknown="paid"), [(ROW, "paid")], 1),
        (_books("new", unknown=None), [(ROW, "new")], 0),
        (_books("new", unknown=None), [], 1),
        (_books(unknown="new"), [], 0),
        (_books(unknown="new"), [(ROW, "new")], 1),
    ],
)
def test_an_unknown_outcome_may_have_happened_or_not(
    ledger: Ledger, stored: list[tuple[Key, str]], happened: int
) -> None:
    """Both are in order, and the summary says how many there were."""
    audit = ledger.audit(stored)
    assert audit.sound
    assert (audit.unknown, audit.happened) == (1, happened)
    assert f"1 unknown, {happened} of them happened" in verification.promise(audit).evidence


def test_the_summary_names_a_broken_promise() -> None:
    """A promise that was not kept is marked, counted, and told with what was seen instead."""
    output = io.StringIO()
    broken = Promise("no call fails under the load", False, "3 of 10 failed: TimeoutError")
    conclude(Screen(Console(file=output, width=100)), [Promise("a", True, "1"), broken], "A contrast.", 1.0)
    text = output.getvalue()
    assert re.search(r"✗ BROKEN +no call fails under the load +3 of 10 failed: TimeoutError", text)
    assert "1 of 2 promises were broken." in text


def test_a_demo_that_promised_nothing_has_failed() -> None:
    """No evidence is no success."""
    assert exit_code([]) == 1


def _tally(*ended: float, lasting: float = 0.01) -> Tally:
    return Tally(ended=list(ended), began=[end - lasting for end in ended])


def test_a_failed_call_breaks_the_promise() -> None:
    """One failed call among many is enough, and it is quoted."""
    tally = _tally(1.0, 2.0)
    with pytest.raises(OSError, match="gone"), tally.timing():
        raise OSError("gone\nand more")
    promise = no_failure("x", tally)
    assert not promise.kept
    assert promise.evidence == "1 of 3 failed: OSError: gone"


def test_an_unknown_outcome_is_no_failure_where_something_was_killed() -> None:
    """Where nothing was killed, it is one."""
    tally = _tally(1.0)
    with pytest.raises(WriteLost), tally.timing():
        raise WriteLost("lost")
    assert no_failure("x", tally, unknown_too=True).kept
    assert not no_failure("x", tally).kept


def _killing(others: Tally, reads: Tally, writes: Tally) -> list[bool]:
    killing = Killing("default_2_1", "default_2", others, reads, writes, began=0.0, killed=10.0, demoted=13.0)
    return [promise.kept for promise in promises_of(killing)]


def test_calls_that_wait_out_the_outage_have_not_gone_on() -> None:
    """A group without failures that was silent for most of the outage breaks its promise all the same."""
    steady = _tally(*(9 + step / 10 for step in range(60)))
    silent = _tally(9.0, 10.2, 12.9, 14.0)
    back = _tally(9.0, 13.3)
    assert _killing(steady, steady, back) == [True, True, True]
    assert _killing(silent, steady, back) == [False, True, True]
    assert _killing(steady, silent, back) == [True, False, True]
    assert _killing(steady, steady, _tally(9.0)) == [True, True, False]


# --- small things ------------------------------------------------------------------------------------------


def test_a_timeline_shows_silence_as_silence() -> None:
    """Nothing is a dot, little is a low bar, the most is a full one."""
    assert spark([0, 1, 50, 100, 200], 100) == "·▁▅██"
    assert spark([0, 0], 0) == "··"


def test_marks_stand_above_their_columns_and_never_cover_each_other() -> None:
    """A mark that has no room moves to the right."""
    assert marks([(2, "killed"), (12, "new leader")]) == "  ▼ killed  ▼ new leader"
    assert marks([(0, "moving"), (1, "moved")]) == "▼ moving ▼ moved"


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "100 %"), (0.99999, "99.99 %"), (0.99, "99 %"), (0.5, "50 %"), (0.0, "0 %")]
)
def test_what_is_not_all_is_not_called_all(value: float, text: str) -> None:
    """A share is never rounded up to all."""
    assert percent(value) == text

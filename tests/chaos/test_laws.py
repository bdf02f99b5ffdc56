"""The checker of histories: every law is broken by the smallest history that breaks it, and by no sound one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picopyn.cli.chaos.history import Call, History, Outcome, Stored, Verb
from picopyn.cli.chaos.laws import LAWS, breaches

NOTHING = Stored({}, {}, {})


def stored(
    rows: dict[int, int] | None = None, counters: dict[int, int] | None = None, registers: dict[int, int] | None = None
) -> Stored:
    return Stored(rows or {}, counters or {}, registers or {})


def told(*calls: tuple[Verb, str, int]) -> list[Call]:
    """Calls of key 1, one after the other: verb, outcome, and the value written or read."""
    history = History()
    for verb, outcome, value in calls:
        reads = verb in (Verb.READ_COUNTER, Verb.READ_REGISTER)
        call = history.begin(verb, 1, 0 if reads else value)
        end(history, call, outcome, value if reads else None)
    return history.calls


def end(history: History, call: Call, outcome: str, answer: int | None = None) -> None:
    if outcome == "done":
        history.done(call, answer)
    elif outcome == "unknown":
        history.unknown(call, "WriteLost: …", losses=0)
    elif outcome == "failed":
        history.failed(call, "NoNodeAvailable: …")


I, A, R, RC, RR = Verb.INSERT, Verb.ADD, Verb.RAISE, Verb.READ_COUNTER, Verb.READ_REGISTER  # noqa: E741


@pytest.mark.parametrize(
    ("calls", "held", "laws"),
    [
        pytest.param([(I, "done", 0)], NOTHING, ["lost"], id="a row is lost"),
        pytest.param([(I, "done", 0)], stored({1: 2}), ["doubled"], id="a row is there twice"),
        pytest.param([(I, "unknown", 0)], stored({1: 2}), ["doubled"], id="an unknown row is there twice"),
        pytest.param([(I, "failed", 0)], stored({1: 1}), ["invented", "failed"], id="a refused row is there"),
        pytest.param([], stored({1: 1}), ["invented"], id="a row nobody wrote"),
        pytest.param([(A, "done", 0), (A, "done", 0)], stored(None, {1: 1}), ["lost"], id="an increment is lost"),
        pytest.param([(A, "done", 0)], NOTHING, ["lost"], id="a counter is lost"),
        pytest.param([(A, "done", 0)], stored(None, {1: 2}), ["doubled"], id="an increment ran twice"),
        pytest.param([(A, "unknown", 0)], stored(None, {1: 2}), ["doubled"], id="an unknown increment ran twice"),
        pytest.param([(A, "failed", 0)], stored(None, {1: 1}), ["doubled", "failed"], id="a refused increment ran"),
        pytest.param([], stored(None, {1: 1}), ["doubled"], id="a counter nobody used"),
        pytest.param([(R, "done", 1), (R, "done", 2)], stored(None, None, {1: 1}), ["lost"], id="a value is lost"),
        pytest.param([(R, "done", 1)], stored(None, None, {1: 2}), ["invented"], id="a value nobody wrote"),
        pytest.param([(R, "unknown", 1)], NOTHING, ["failed"], id="a repeatable write ends unknown"),
        pytest.param([(RR, "unknown", 0)], NOTHING, ["failed"], id="a read ends unknown"),
        pytest.param([(RC, "failed", 0)], NOTHING, ["failed"], id="a read fails"),
        pytest.param([(I, "failed", 0)], NOTHING, ["failed"], id="a write fails that was never sent"),
        pytest.param(
            [(A, "done", 0), (RC, "done", 0)],
            stored(None, {1: 1}),
            ["stale"],
            id="an acknowledged increment is not seen",
        ),
        pytest.param(
            [(A, "unknown", 0), (RC, "done", 1), (RC, "done", 0)],
            stored(None, {1: 1}),
            ["stale"],
            id="a counter that was seen goes back",
        ),
        pytest.param(
            [(RC, "done", 1), (A, "done", 0)], stored(None, {1: 1}), ["invented"], id="seen before it was added"
        ),
        pytest.param([(RC, "done", -1)], NOTHING, ["stale"], id="a counter below nothing"),
        pytest.param(
            [(R, "done", 1), (R, "done", 2), (RR, "done", 1)],
            stored(None, None, {1: 2}),
            ["stale"],
            id="an acknowledged value is not seen",
        ),
        pytest.param(
            [(R, "done", 1), (RR, "done", 7)],
            stored(None, None, {1: 1}),
            ["invented"],
            id="a value read that nobody wrote",
        ),
        pytest.param(
            [(RR, "done", 1), (R, "done", 1)], stored(None, None, {1: 1}), ["invented"], id="read before it was written"
        ),
    ],
)
def test_what_must_not_be_is_found(calls: list[tuple[Verb, str, int]], held: Stored, laws: list[str]) -> None:
    """One history for each way to break a law; nothing else is found in it."""
    assert [breach.law for breach in breaches(told(*calls), held)] == laws
    assert set(laws) <= set(LAWS)


@pytest.mark.parametrize(
    ("calls", "held"),
    [
        pytest.param([(I, "done", 0)], stored({1: 1}), id="a row"),
        pytest.param([(I, "unknown", 0)], stored({1: 1}), id="an unknown row that is there"),
        pytest.param([(I, "unknown", 0)], NOTHING, id="an unknown row that is not"),
        pytest.param([(I, "running", 0)], stored({1: 1}), id="a row that is being written"),
        pytest.param([(A, "done", 0), (A, "unknown", 0)], stored(None, {1: 1}), id="an unknown increment, not run"),
        pytest.param([(A, "done", 0), (A, "unknown", 0)], stored(None, {1: 2}), id="an unknown increment, run"),
        pytest.param([(A, "unknown", 0), (RC, "done", 0), (RC, "done", 1)], stored(None, {1: 1}), id="run later"),
        pytest.param([(R, "done", 2), (R, "done", 1), (RR, "done", 2)], stored(None, None, {1: 2}), id="never lowered"),
        pytest.param([(RC, "done", 0), (RR, "done", 0)], NOTHING, id="nothing"),
    ],
)
def test_what_may_be_is_no_breach(calls: list[tuple[Verb, str, int]], held: Stored) -> None:
    """An unknown call may have happened, at once, later, or never."""
    assert breaches(told(*calls), held) == []


def test_a_read_beside_a_write_may_show_it_or_not() -> None:
    """Only what ended before the read began has to be seen, and only what begins after its end cannot be."""
    for answer in (0, 1):
        history = History()
        write, read = history.begin(A, 1), history.begin(RC, 1)
        history.done(write)
        history.done(read, answer)
        assert breaches(history.calls, stored(None, {1: 1})) == []


def test_a_read_that_need_not_be_fresh_may_show_the_past_and_not_the_future() -> None:
    """A replica's answer is not stale, but it may not be made up either."""
    for answer, laws in ((0, []), (1, []), (2, ["invented"])):
        history = History()
        history.done(history.begin(A, 1))
        history.done(history.begin(RC, 1, fresh=False), answer)
        assert [breach.law for breach in breaches(history.calls, stored(None, {1: 1}))] == laws


def test_what_an_old_replica_shows_binds_no_fresh_read() -> None:
    """Only fresh reads have to follow one another."""
    history = History()
    history.unknown(history.begin(A, 1), "")
    history.done(history.begin(RC, 1, fresh=False), 1)
    history.done(history.begin(RC, 1), 0)
    assert breaches(history.calls, stored(None, {1: 1})) == []


def test_a_repeatable_call_may_end_unknown_when_it_was_lost() -> None:
    """Twice, or once when its error says why it was not sent again; not when no connection broke under it."""
    for losses, held_back, laws in (
        (0, False, ["failed"]),
        (0, True, ["failed"]),
        (1, False, ["failed"]),
        (1, True, []),
        (2, False, []),
    ):
        history = History()
        history.unknown(history.begin(R, 1, 5), "ConnectionLost: …", losses, held_back=held_back)
        assert [breach.law for breach in breaches(history.calls, stored(None, None, {1: 5}))] == laws


def test_a_breach_says_what_was_seen() -> None:
    """With the events around it, so that it can be found in the history."""
    (breach,) = breaches(told((A, "done", 0), (RC, "done", 0)), stored(None, {1: 1}))
    seen = "read counter 1 = 0 [done, events 3 to 4]; 1 was acknowledged or read before it began"
    assert str(breach) == f"stale: {seen}"


@given(st.lists(st.tuples(st.sampled_from([I, A, R, RC, RR]), st.sampled_from([1, 2]), st.booleans()), max_size=40))
def test_a_sound_server_breaks_no_law(script: list[tuple[Verb, int, bool]]) -> None:
    """Whatever is called in whatever order on a server that does one call after the other."""
    history = History()
    rows: dict[int, int] = {}
    counters, registers = {1: 0, 2: 0}, {1: 0, 2: 0}
    for number, (verb, key, heard) in enumerate(script, 1):
        call = history.begin(verb, number if verb is I else key, number)
        answer = {RC: counters[key], RR: registers[key]}.get(verb)
        if verb is I:
            rows[number] = 1
        elif verb is A:
            counters[key] += 1
        elif verb is R:
            registers[key] = number
        if heard or verb not in (I, A):
            history.done(call, answer)
        else:
            history.unknown(call, "")
    assert breaches(history.calls, stored(rows, counters, registers)) == []
    assert history.answered == sum(call.outcome is Outcome.DONE for call in history.calls)
    assert sum(history.counts().values()) == len(script)

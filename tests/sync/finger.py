"""A signal at a chosen moment of the driver's own code."""

from __future__ import annotations

import dis
import functools
import signal
import sys
import threading
from types import CodeType, FrameType
from typing import Any

#: Which of the interpreter's tools it is; none of those with a name.
_TOOL = 4
#: What the argument of RESUME says where a generator or a coroutine goes on that another one waits for; above: `await`.
_BEHIND_YIELD_FROM = 2
#: Which signal it is; nobody else uses it.
_SIGNAL = signal.SIGUSR2


class Finger:
    """Lets a signal come at the n-th moment at which the interpreter looks for signals in our code.

    It looks after calls, when it begins a function, and when it jumps back; that is what makes a `with` block over a
    lock safe, which is not so between any two instructions. What it finds belongs to the instruction before, so nothing
    is pressed where the next one has another handler.

    Args:
        moment: Which one, from 1.
        rooms: Parts of the names of the files whose code counts.
        spared: Functions whose code does not: what cleans up.
        raised: What the signal's handler raises.

    Attributes:
        left: How many moments are still to come; 0 or less once it has pressed.
    """

    def __init__(
        self,
        moment: int,
        rooms: tuple[str, ...],
        spared: tuple[str, ...] = ("__del__",),
        raised: type[BaseException] = KeyboardInterrupt,
    ) -> None:
        self.left = moment
        self._identity = 0
        self._former: Any = None
        self._raised = raised
        self._rooms = rooms
        self._spared = spared
        self._before: dict[FrameType, int] = {}
        self._thread = threading.get_ident()

    def __enter__(self) -> Finger:
        self._former = signal.signal(_SIGNAL, self._handle)
        if sys.version_info >= (3, 12):  # there, a traced function tells of its instructions from its second call on
            watch = sys.monitoring
            watch.use_tool_id(_TOOL, "finger")
            watch.register_callback(_TOOL, watch.events.INSTRUCTION, self._instruction)
            watch.restart_events()
            watch.set_events(_TOOL, watch.events.INSTRUCTION)
        else:
            sys.settrace(self._frame)
        return self

    def __exit__(self, *_: object) -> None:
        if sys.version_info >= (3, 12):
            sys.monitoring.set_events(_TOOL, 0)
            sys.monitoring.free_tool_id(_TOOL)
        else:
            sys.settrace(None)
        self._before.clear()
        signal.signal(_SIGNAL, self._former)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        error = self._raised()
        self._identity = id(error)
        try:
            raise error
        finally:
            del error  # which would keep itself, and all that it has come through

    def has_raised(self, error: BaseException) -> bool:
        """Whether it is this that the handler has raised."""
        return id(error) == self._identity

    def _instruction(self, code: CodeType, offset: int) -> Any:
        if not self._counts(code):
            return sys.monitoring.DISABLE  # type: ignore[attr-defined, unused-ignore]
        if threading.get_ident() == self._thread:
            self._look(sys._getframe(1), offset)
        return None

    def _frame(self, frame: FrameType, _: str, __: Any) -> Any:
        if not self._counts(frame.f_code):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._step

    def _step(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            self._look(frame, frame.f_lasti)
        return self._step

    def _counts(self, code: CodeType) -> bool:
        return code.co_name not in self._spared and any(room in code.co_filename for room in self._rooms)

    def _look(self, frame: FrameType, now: int) -> None:
        """An instruction is about to be executed; press, if the one before it was one after which it is looked."""
        before = self._before.get(frame)
        self._before[frame] = now
        if before is None or _handler(frame.f_code, before) != _handler(frame.f_code, now):
            return
        if before in _lookouts(frame.f_code):
            self.left -= 1
            if not self.left:
                signal.raise_signal(_SIGNAL)


@functools.cache
def _lookouts(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions after which it is looked; not so where a coroutine goes on behind an `await`."""
    return frozenset(each.offset for each in dis.get_instructions(code) if _is_lookout(each.opname, each.arg or 0))


def _is_lookout(name: str, arg: int) -> bool:
    if name == "RESUME":
        return arg & 3 < _BEHIND_YIELD_FROM
    return name == "JUMP_BACKWARD" or (name.startswith("CALL") and "INTRINSIC" not in name)


@functools.cache
def _handler(code: CodeType, offset: int) -> int | None:
    """Where an instruction's exceptions go."""
    table: Any = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    return next((entry.target for entry in table if entry.start <= offset < entry.end), None)

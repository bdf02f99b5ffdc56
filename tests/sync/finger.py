"""Ctrl-C at a chosen moment of the driver's own code."""

from __future__ import annotations

import dis
import functools
import sys
from types import CodeType, FrameType
from typing import Any


class Finger:
    """Presses Ctrl-C at the n-th moment at which the interpreter looks for signals in our code.

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
        self._raised = raised
        self._rooms = rooms
        self._spared = spared
        self._before: dict[FrameType, int] = {}

    def __enter__(self) -> Finger:
        sys.settrace(self._frame)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        self._before.clear()

    def _frame(self, frame: FrameType, _: str, __: Any) -> Any:
        code = frame.f_code
        if code.co_name in self._spared or not any(room in code.co_filename for room in self._rooms):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._step

    def _step(self, frame: FrameType, event: str, _: Any) -> Any:
        if event != "opcode":
            return self._step
        before, now = self._before.get(frame), frame.f_lasti
        self._before[frame] = now
        if before is None or _handler(frame.f_code, before) != _handler(frame.f_code, now):
            return self._step
        name = dis.opname[frame.f_code.co_code[before]]
        if name == "RESUME" or "JUMP_BACKWARD" in name or name.startswith("CALL"):
            self.left -= 1
            if not self.left:
                raise self._raised
        return self._step


@functools.cache
def _handler(code: CodeType, offset: int) -> int | None:
    """Where an instruction's exceptions go."""
    table: Any = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    return next((entry.target for entry in table if entry.start <= offset < entry.end), None)

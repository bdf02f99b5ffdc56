"""asyncpg's error about an argument that it cannot send, without the argument's value.

It says which argument it is, shows its value, and says what was expected, often with the value once more, and once more
in the error that it came from. A value may be a secret, and errors are logged. So what says the number and the types
stays, and the rest goes: from the error itself, before a caller gets it.

The words are asyncpg's; what becomes of them is tested with the types of a real PostgreSQL
(`tests/postgres/test_refused_arguments.py`). Words that are not known here are not told.

*Source*: asyncpg 0.32 `protocol/prepared_stmt.pyx`, `pgproto/codecs/*.pyx`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import TracebackType
from typing import Final

#: Which argument it is; then its value, and the text of the error's cause.
_REFUSAL: Final = re.compile(
    r"(invalid input for query argument \$\d+(?: in element #\d+ of executemany\(\) sequence)?): ", re.DOTALL
)
#: What codecs raise that compare types only: these texts name types and nothing else.
_ABOUT_TYPES: Final = (TypeError, AttributeError, OverflowError)
#: What else may be told; of texts with a value, the part in parentheses.
_MAY_BE_TOLD: Final = re.compile(
    r"value out of \w+ range|non-homogeneous array|expected 0, 1 or 2 elements in range \(got \d+\)"
    r"|invalid number of elements in tid tuple, expecting 2|\[<class 'decimal\.\w+'>\]"
    r"|invalid array element at index \d+: (?:'\w+' object cannot be interpreted as an integer|expected str, got \w+)"
    r"|(?P<uuid>invalid UUID) '.*|(?P<text>'[\w-]+' codec can't encode characters?) .*"
    r"|'.*' (?P<address>does not appear to be an IPv4 or IPv6 \w+)",
    re.DOTALL,
)
#: Where asyncpg's own codecs raise errors.
_OWN_FILES: Final = (".pyx", "ipaddress.py")


def hide_value(error: BaseException) -> None:
    """Take the value of an argument out of an error, if it is asyncpg's about one; do nothing to any other."""
    if getattr(error, "severity", "") is not None or not error.args:  # the server's have one, others no such attribute
        return
    refusal = _REFUSAL.match(str(error.args[0]))
    if refusal is not None:
        error.args = (f"{refusal[1]} ({_expectation(error.__cause__)})",)
        error.__cause__ = error.__context__ = None
        error.__suppress_context__ = True


def _expectation(cause: BaseException | None) -> str:
    """What a codec has to say of types; of what it does not say itself, the kind of error."""
    kind, text = type(cause).__name__, str(cause)
    if cause is None or not all(name.endswith(_OWN_FILES) for name in _files(cause.__traceback__)):
        return kind
    if isinstance(cause, _ABOUT_TYPES):
        return text
    told = _MAY_BE_TOLD.fullmatch(text)
    if told is None:
        return kind
    return next(filter(None, told.groups()), text)


def _files(trace: TracebackType | None) -> Iterator[str]:
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename
        trace = trace.tb_next

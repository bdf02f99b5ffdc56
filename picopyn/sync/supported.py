"""Which releases of asyncpg `picopyn.sync` works with.

`picopyn.sync.wire` leans on more of asyncpg's inside than the asynchronous rooms do, and a release that works otherwise
could give wrong answers rather than errors. So one that was not tried is refused. `pyproject.toml` says the same, and
`tests/sync/test_contract.py` compares both and looks at everything that is leaned on.
"""

from __future__ import annotations

import re
from typing import Final

import asyncpg

from picopyn.errors import NotSupported

#: The first release that is known to work, and the first that is not.
FIRST: Final = (0, 32)
BEFORE: Final = (0, 33)


def check(version: str = asyncpg.__version__) -> None:
    """Refuse a release of asyncpg that was not tried.

    Raises:
        NotSupported: It says which one to install.
    """
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if not FIRST <= numbers < BEFORE:
        wanted = f"asyncpg>={FIRST[0]}.{FIRST[1]},<{BEFORE[0]}.{BEFORE[1]}"
        raise NotSupported(f"picopyn.sync does not know asyncpg {version}; install {wanted!r}, or a newer picopyn")

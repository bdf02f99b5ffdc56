"""What a key of YugabyteDB costs the client: from the arguments of a call to the hash code, by type of the key.

    python -m benchmarks.yugabyte_key [--calls 20000] [--repeats 30]

The least of many repeats counts, since everything that disturbs only adds. `memory` is a look-up in a dictionary of the
same process at the same time, to compare machines by.
"""

from __future__ import annotations

import argparse
import uuid
from typing import Any

from benchmarks.hot_path import Stopwatch
from picopyn.dialects.yugabyte.hash_code import HASH_CODES
from picopyn.dialects.yugabyte.key_hash import YUGABYTE_KEY_HASH
from picopyn.routing.route import KeyPart
from picopyn.routing.sharding import compile_key

INT2, INT4, INT8, TEXT, UUID, BYTEA = 21, 23, 20, 25, 2950, 17

#: What is measured: name → (types, arguments).
KEYS: dict[str, tuple[tuple[int, ...], tuple[Any, ...]]] = {
    "smallint": ((INT2,), (12345,)),
    "int": ((INT4,), (123456,)),
    "bigint": ((INT8,), (123456,)),
    "text, 6 bytes": ((TEXT,), ("user-1",)),
    "text, 20 bytes": ((TEXT,), ("x" * 20,)),
    "text, 100 bytes": ((TEXT,), ("x" * 100,)),
    "uuid": ((UUID,), (uuid.UUID(int=1 << 100),)),
    "int, int": ((INT4, INT4), (1, 2)),
    "bigint, text of 8 bytes": ((INT8, TEXT), (1, "x" * 8)),
}


def measure(calls: int, repeats: int) -> dict[str, float]:
    """Microseconds of client CPU by kind of key."""
    watch = Stopwatch(calls, repeats)
    memory = {123456: 1}
    found = {"memory": watch.plain(lambda: memory[123456])}
    for name, (oids, args) in KEYS.items():
        parts = [KeyPart(place, oid) for place, oid in enumerate(oids)]
        key = compile_key(parts, YUGABYTE_KEY_HASH, HASH_CODES)
        found[name] = watch.plain(lambda key=key, args=args: key(args))  # type: ignore[misc]
    return found


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=30)
    asked = parser.parse_args()
    for name, microseconds in measure(asked.calls, asked.repeats).items():
        print(f"{name:<24} {microseconds:6.2f} us")


if __name__ == "__main__":
    main()

"""What machine a result was made on: hardware and versions; no names of hosts, no paths."""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import msgspec

from picopyn.dialects.picodata import bucket_hash, quick_keys


class Machine(msgspec.Struct, frozen=True):
    """A machine and what runs on it.

    Attributes:
        cpu: Model of the processor.
        cores: How many this process may use.
        virtual: Whether it is a virtual machine; None where nobody says.
        memory_gib: Main memory.
        system: Name of the operating system.
        kernel: Its version.
        libc: C library and version.
        python: Implementation and version.
        optimized_python: That Python says it was built with profile-guided optimisation; None: it does not say
            (Debian's is, and does not).
        keys_in_c: Whether picopyn's key functions are compiled; None: nobody looked.
    """

    cpu: str
    cores: int
    virtual: bool | None
    memory_gib: float | None
    system: str
    kernel: str
    libc: str
    python: str
    optimized_python: bool | None
    keys_in_c: bool | None = None


def describe() -> Machine:
    """Describe this machine."""
    fields = dict(_cpu_fields())
    flags = fields.get("flags", fields.get("Features"))
    arguments = sysconfig.get_config_var("CONFIG_ARGS")
    return Machine(
        cpu=fields.get("model name") or platform.processor() or platform.machine(),
        cores=len(cores()),
        virtual=None if flags is None else "hypervisor" in flags.split(),
        memory_gib=_memory(),
        system=platform.system(),
        kernel=platform.release(),
        libc=" ".join(platform.libc_ver()).strip(),
        python=f"{sys.implementation.name} {platform.python_version()}",
        optimized_python=True if "--enable-optimizations" in (arguments or "") else None,
        keys_in_c=bucket_hash.int_key is not quick_keys.int_key,
    )


def cores() -> list[int]:
    """The cores this process may use; numbers without meaning where they cannot be chosen."""
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:
        return list(range(os.cpu_count() or 1))


def can_pin() -> bool:
    """Whether processes can be bound to cores here."""
    return hasattr(os, "sched_setaffinity")


def stolen() -> float | None:
    """Seconds that the host of a virtual machine has taken from it so far; None where nobody says."""
    try:
        words = Path("/proc/stat").read_text("ascii").split("\n", 1)[0].split()
    except OSError:
        return None
    return int(words[8]) / os.sysconf("SC_CLK_TCK")


def _cpu_fields() -> Iterator[tuple[str, str]]:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").split("\n\n", 1)[0].splitlines()
    except OSError:
        return
    for line in lines:
        name, _, value = line.partition(":")
        yield name.strip(), value.strip()


def _memory() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None

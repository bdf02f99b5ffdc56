"""Who can take part: peers that are installed here, and the published picopyn in an environment of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from benchmarks import plans

PUBLISHED = "3.2.0"
_NEEDS = {
    plans.PSYCOPG: ("psycopg",),
    plans.PSYCOPG_EXECUTE: ("psycopg",),
    plans.PSYCOPG_POOL: ("psycopg", "psycopg_pool"),
    plans.HASQL: ("hasql",),
}
_ROOT = Path(__file__).parent.parent


class NotInstalled(Exception):  # noqa: N818 - it is what happened
    """An environment could not be made; the message is the installer's last line."""


def left_out() -> dict[str, str]:
    """Peers that are not installed here, with what to do."""
    hint = "not installed: pip install --group bench"
    return {name: hint for name, modules in _NEEDS.items() if not all(map(importlib.util.find_spec, modules))}


def has_uvloop() -> bool:
    """Whether uvloop is installed here."""
    return importlib.util.find_spec("uvloop") is not None


def this_command() -> tuple[list[str], dict[str, str]]:
    """How a worker of this environment is started: command, and what its environment has more."""
    return [sys.executable], {"PYTHONPATH": str(_ROOT)}


def published_command() -> tuple[list[str], dict[str, str]]:
    """How a worker of the published picopyn's environment is started; makes that environment on first use.

    Raises:
        NotInstalled: It cannot be had.
    """
    place = cache() / f"picopyn-{PUBLISHED}-{sys.implementation.cache_tag}"
    python = place / "bin" / "python"
    ready = place / "ready"
    if not ready.exists():
        print(f"making an environment with picopyn {PUBLISHED} (once) …", file=sys.stderr, flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(place)])
        _run([str(python), "-m", "pip", "install", "--quiet", f"picopyn=={PUBLISHED}", "uvloop"])
        ready.touch()
    return [str(python)], {}


def cache() -> Path:
    """Where environments are kept: `PICOPYN_BENCH_CACHE`, else the user's cache directory."""
    named = os.environ.get("PICOPYN_BENCH_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named) if named else Path(home) / "picopyn-benchmarks"


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(type(error).__name__) from error
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise NotInstalled(lines[-1] if lines else f"ended with {done.returncode}")

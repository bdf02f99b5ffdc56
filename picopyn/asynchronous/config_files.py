"""Files a user keeps beside the program: reading service and password files, and asking the latter for passwords.

What they mean is decided in [`picopyn.service_file`][] and [`picopyn.passfile`][]; this file only reads, and complains
once.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

from picopyn.passfile import FileText, find_password, mistrust

_LOG = logging.getLogger(__name__)

#: More than this of a file is not read (bytes).
_LONGEST: int = 1 << 20


def read_file(path: str) -> FileText:
    """Read a small text file; one that is not a plain file is not opened, for it may never end.

    Raises:
        OSError: It cannot be read.
    """
    mode = Path(path).stat().st_mode
    if os.name == "nt":  # these bits mean nothing there
        mode &= ~(stat.S_IRWXG | stat.S_IRWXO)
    if not stat.S_ISREG(mode):
        return FileText("", mode)
    with Path(path).open("rb") as file:
        return FileText(file.read(_LONGEST).decode("utf-8", "replace"), mode)


class PasswordFile:
    """The password file of one pool. It is read at each question, so that a changed password counts at once.

    Args:
        path: Its name; None: there is none.
    """

    __slots__ = ("_path", "_told")

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._told = False

    def find(self, host: str, port: int, database: str, user: str) -> str | None:
        """The password for a server as it is dialled; None when the file has none, or cannot be used."""
        if self._path is None:
            return None
        try:
            file = read_file(self._path)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._complain(error.strerror or type(error).__name__)
            return None
        reason = mistrust(file)
        if reason is not None:
            self._complain(reason)
            return None
        return find_password(file, host, port, database, user)

    def _complain(self, reason: str) -> None:
        if not self._told:
            self._told = True
            _LOG.warning("the password file %s is not used: %s", self._path, reason)

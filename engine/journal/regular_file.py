"""Opens files that somebody else may have made. Imports no other room."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file, or a link to one, for reading. Raises OSError for anything else."""
    return open(opened(path, os.O_RDONLY), "rb")


def opened(path: Path, flags: int) -> int:
    """A descriptor of a regular file. Raises OSError for anything else: a pipe would block until somebody writes, and a device
    may not end; with ``O_NOFOLLOW`` also for a link."""
    try:
        handle = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise _not_regular(path) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _not_regular(path)
    return handle


def _not_regular(path: Path) -> OSError:
    return OSError(errno.EINVAL, "not a regular file", str(path))

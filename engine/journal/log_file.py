"""The program's log file: tracebacks of bugs, and warnings. Imports no other room."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from engine.journal.user_folders import state_folder

_FORMATTER = logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s")


def path() -> Path:
    """The log file: under ESPALIER_HOME, else in the user's state folder."""
    return state_folder() / "espalier.log"


def append(record: logging.LogRecord) -> Path:
    """Write a record, with its traceback if it has one, and return the file. Raises OSError."""
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as out:
        out.write(_FORMATTER.format(record) + "\n")
    return file


class LogFileHandler(logging.Handler):
    """Writes warnings to the log file; drops those that cannot be written."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            append(record)


def log_to_file() -> None:
    """Send the warnings of this process to the log file from now on."""
    root = logging.getLogger()
    if not any(isinstance(handler, LogFileHandler) for handler in root.handlers):
        root.addHandler(LogFileHandler())

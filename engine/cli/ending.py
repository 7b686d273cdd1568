"""How the program ends: exit statuses, the one line for each kind of trouble, and where a traceback is kept."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

import click

from engine.domain.errors import EspalierError
from engine.domain.printable import printable

DONE = 0
FAILED = 1
"""The kernel or the search failed."""
BAD_INPUT = 2
INTERRUPTED = 130
_PIPE_CLOSED = 141
"""What a shell reports for a program that SIGPIPE ended."""


class Ended(Exception):
    """The command is over with this status; ``message``, if any, is still to be said."""

    def __init__(self, status: int, message: str = "") -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message


def end(status: int) -> None:
    """Leave the command with a status other than 0."""
    if status != DONE:
        raise Ended(status)


def log_file() -> Path:
    """Where tracebacks and the engine's own warnings go: under ESPALIER_HOME, else in the user's state folder."""
    import platformdirs

    home = os.environ.get("ESPALIER_HOME")
    folder = Path(home).expanduser() / "state" if home else platformdirs.user_state_path("espalier")
    return folder / "espalier.log"


def guarded(work: Callable[[], None]) -> int:
    """Run ``work`` and turn however it ends into an exit status and at most one line on standard error."""
    try:
        work()
        if sys.stdout is not None:
            sys.stdout.flush()
        return DONE
    except Ended as ended:
        return _say(ended.message, ended.status) if ended.message else ended.status
    except click.exceptions.Exit as left:
        return left.exit_code
    except click.UsageError as error:
        return _say(_usage(error), BAD_INPUT)
    except click.ClickException as error:
        return _say(error.format_message(), BAD_INPUT)
    except EspalierError as error:
        return _say(str(error), BAD_INPUT)
    except (KeyboardInterrupt, click.Abort):
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:
        _drop_output()
        return _PIPE_CLOSED
    except OSError as error:
        if not _unwritable(error):
            return _say(_unexpected(error), FAILED)
        _drop_output()
        return _say(f"what there is to say cannot be written: {error.strerror}", BAD_INPUT)
    except Exception as error:
        return _say(_unexpected(error), FAILED)


def _unwritable(error: OSError) -> bool:
    """Whether it is the standard output that takes nothing more: errors of files name theirs, and a journal's have words."""
    return error.filename is None and error.errno in (errno.ENOSPC, errno.EIO, errno.EBADF)


def _say(message: str, status: int) -> int:
    with contextlib.suppress(OSError):
        click.echo(f"espalier: {printable(' '.join(message.split()))}", err=True)
    return status


def _usage(error: click.UsageError) -> str:
    message = error.format_message().rstrip(".").replace(". (", " (")
    path = error.ctx.command_path if error.ctx is not None else "espalier"
    return f"{message[:1].lower()}{message[1:]}: `{path} --help` lists what there is"


def _drop_output() -> None:
    """Nobody reads any more: what is left in the buffers must not raise again when the program ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (s for s in (sys.stdout, sys.stderr) if s is not None):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
        with contextlib.suppress(OSError, ValueError):
            os.dup2(nowhere, stream.fileno())


def _unexpected(error: Exception) -> str:
    words = f"{type(error).__name__}: {error}".strip()
    if isinstance(error, OSError) and error.filename:
        words = f"{error.filename}: {error.strerror}"
    try:
        file = log_file()
        file.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(file, encoding="utf-8")
    except OSError as trouble:
        return f"this is a fault of the program: {words} (the traceback cannot be kept: {trouble.strerror})"
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    record = logging.LogRecord("espalier", logging.ERROR, "", 0, words, None, (type(error), error, error.__traceback__))
    with contextlib.suppress(OSError):
        handler.emit(record)
    handler.close()
    return f"this is a fault of the program: {words}; the traceback is in {file}"


class LogFile(logging.Handler):
    """The engine's warnings into the log file; where that cannot be written they are dropped."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            file = log_file()
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a", encoding="utf-8") as out:
                out.write(self.format(record) + "\n")

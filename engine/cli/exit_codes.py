"""How the program ends: exit statuses, and one line on standard error for each kind of error."""

from __future__ import annotations

import contextlib
import errno
import logging
import sys
from collections.abc import Callable

import click

from engine.cli.config import ConfigError
from engine.cli.streams import discard
from engine.cli.suggestions import number_words, unknown_option
from engine.domain.errors import EspalierError, message_line
from engine.journal import log_file

DONE = 0
"""Done. For a search: there is an incumbent; for `eval`: the kernel was measured, and its time is corroborated."""
FAILED = 1
"""The kernel or the search failed."""
BAD_INPUT = 2
"""Bad usage or bad input."""
AWAITING = 3
"""Stopped, awaiting the engineer or a provider."""
DOUBTED = 4
"""Correct and measured, but the time is not corroborated, or the kernel is quarantined: no figure of it is a result."""
INTERRUPTED = 130
"""Interrupted; `espalier open` resumes."""
_PIPE_CLOSED = 141
"""What a shell reports for a program that SIGPIPE ended."""


class CommandExit(Exception):
    """Ends the command with this status; ``message``, if any, is printed on standard error."""

    def __init__(self, status: int, message: str = "") -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message


def end(status: int) -> None:
    """Leave the command with a status other than 0."""
    if status != DONE:
        raise CommandExit(status)


def exit_status_of(work: Callable[[], None]) -> int:
    """Run ``work``; its exit status. Prints at most one line on standard error."""
    try:
        work()
        if sys.stdout is not None:
            sys.stdout.flush()
        return DONE
    except CommandExit as exit_:
        return _print_error(exit_.message, exit_.status) if exit_.message else exit_.status
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx is not None else error.format_message())
        return DONE
    except ConfigError as error:
        return _print_error(error.message, BAD_INPUT)
    except click.UsageError as error:
        return _print_error(_usage_message(error), BAD_INPUT)
    except click.ClickException as error:
        return _print_error(error.format_message(), BAD_INPUT)
    except EspalierError as error:
        return _print_error(str(error), BAD_INPUT)
    except (KeyboardInterrupt, click.Abort):
        return _print_error("interrupted", INTERRUPTED)
    except BrokenPipeError:
        discard(sys.stdout, sys.stderr)
        return _PIPE_CLOSED
    except OSError as error:
        return _print_os_error(error)
    except Exception as error:
        return _print_error(_fault(error), FAILED)


def _print_os_error(error: OSError) -> int:
    if _is_unusable_path(error):
        return _print_error(f"{error.filename} cannot be used: {error.strerror}", BAD_INPUT)
    if not _is_unwritable_output(error):
        return _print_error(_fault(error), FAILED)
    discard(sys.stdout)
    status = _print_error(f"standard output cannot be written: {error.strerror}", BAD_INPUT)
    discard(sys.stderr)
    return status


_UNUSABLE = frozenset({
    errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EROFS, errno.ENOSPC,
    errno.EDQUOT,
})  # fmt: skip


def _is_unusable_path(error: OSError) -> bool:
    """Whether a path that the user named, or its file system, is at fault and not the program."""
    return error.filename is not None and error.errno in _UNUSABLE


def _is_unwritable_output(error: OSError) -> bool:
    """Whether standard output cannot be written. An error of a file names the file; a journal's is an EspalierError."""
    return error.filename is None and error.errno in (errno.ENOSPC, errno.EIO, errno.EBADF)


def _print_error(message: str, status: int) -> int:
    with contextlib.suppress(OSError):
        click.echo(f"espalier: {message_line(message)}", err=True)
    return status


def _usage_message(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption):
        known = (name for param in error.ctx.command.params for name in param.opts) if error.ctx is not None else ()
        message = unknown_option(error.option_name, error.possibilities or (), known)
    else:
        message = number_words(error.format_message().rstrip(".").replace(". (", " ("))
        message = f"{message[:1].lower()}{message[1:]}"
    if "did you mean" in message.lower():
        return message
    path = error.ctx.command_path if error.ctx is not None else "espalier"
    return f"{message}: run `{path} --help` for usage"


def _fault(error: Exception) -> str:
    """The message for an internal error, whose traceback goes into the log file."""
    words = f"{type(error).__name__}: {error}".strip()
    if isinstance(error, OSError) and error.filename:
        words = f"{error.filename}: {error.strerror}"
    record = logging.LogRecord("espalier", logging.ERROR, "", 0, words, None, (type(error), error, error.__traceback__))
    try:
        file = log_file.append(record)
    except OSError as trouble:
        return f"internal error: {words} (the traceback cannot be written: {trouble.strerror})"
    return f"internal error: {words}; the traceback is in {file}"

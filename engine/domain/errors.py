"""The errors that the engine raises on purpose.

    EspalierError                bad input, or a failure outside the engine: one line, exit status 2
    ├── ProblemError             a problem cannot be found, read, run or judged
    ├── KernelCodeError          a kernel's code is unreadable or malformed (has line and column)
    ├── ToolchainError           a required compiler is missing or fails to start
    ├── DeviceError              the requested device is missing, full or broken
    ├── SandboxError             the requested isolation is unavailable
    ├── BudgetExhausted          the next call could exceed a hard cap on tokens or money
    ├── ProposerError            a proposer or writer is unreachable or violates its protocol
    │   └── CallCancelled        someone cancelled the call
    ├── JournalError             a session cannot be read or written
    │   ├── JournalCorrupt       a line that is not the last cannot be read
    │   ├── JournalLocked        another process is writing this session
    │   ├── JournalTooNew        written in a newer format than this program reads
    │   └── JournalUnwritable    read-only folder or full disk
    ├── UntrustedError           made elsewhere, and not allowed to run here (has the question)
    └── CommandRejected          the rules do not allow this command in this state

Expected outcomes (a compile error, a mismatch, a time-out) are values, never exceptions.
A message says what failed, which one, and what to do.
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.domain.trust import TrustQuestion


class EspalierError(Exception):
    """Base of all errors raised on purpose; the message is one line for people."""


class ProblemError(EspalierError):
    """A problem cannot be found, read, run or judged."""


class KernelCodeError(EspalierError):
    """A kernel's code is unreadable or malformed.

    ``line`` and ``column`` count from 1; 0 means the whole file.
    """

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        super().__init__(f"line {line}, column {column}: {message}" if line else message)
        self.line = line
        self.column = column


class ToolchainError(EspalierError):
    """A required compiler is missing or fails to start."""


class DeviceError(EspalierError):
    """The requested device is missing, full or broken."""


class SandboxError(EspalierError):
    """The requested isolation is unavailable on this machine."""


class ProposerError(EspalierError):
    """A proposer or writer is unreachable or violates its protocol."""


class CallCancelled(ProposerError):
    """Someone cancelled the call: there is no reply, and it is not repeated."""


class BudgetExhausted(EspalierError):
    """The next call could exceed a hard cap on tokens or money and was not made."""


class JournalError(EspalierError):
    """A session cannot be read or written."""


class JournalCorrupt(JournalError):
    """A line that is not the last one cannot be read."""


class JournalLocked(JournalError):
    """Another process is writing this session."""


class JournalTooNew(JournalError):
    """The journal was written in a newer format than this program reads."""


class JournalUnwritable(JournalError):
    """The session's folder cannot be written: read-only, or the disk is full."""


class UntrustedError(EspalierError):
    """A session or problem from elsewhere would run something that nobody has allowed here."""

    def __init__(self, message: str, question: TrustQuestion) -> None:
        super().__init__(message)
        self.question = question


class CommandRejected(EspalierError):
    """The rules do not allow this command in this state."""


_LONGEST_MESSAGE = 1000
"""Characters: messages quote what files and arguments say."""


def head_and_tail(text: str, most: int) -> str:
    """The text; of one longer than ``most`` characters its beginning and its end, on one line where it is one."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} … {len(text) - 2 * half} characters left out … {text[-half:]}"


def printable(text: str) -> str:
    """Foreign text made printable: control characters except line feed and tab become question marks.

    Spaces of other widths, as Chinese, Japanese and French texts have them, become spaces.
    """
    if text.replace("\n", "").replace("\t", "").isprintable():  # a text is searched faster than its characters
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else " " if unicodedata.category(c) == "Zs" else "?" for c in text)


def message_line(message: str) -> str:
    """An error's message on one line; of a long one, which quotes a file or an argument, the beginning and the end."""
    return printable(head_and_tail(" ".join(message.split()), _LONGEST_MESSAGE))

"""Every error the engine raises on purpose, drawn once.

    EspalierError                bad input or a broken contract with the outside: one line, exit status 2
    ├── ProblemError             a problem cannot be found, read, run or judged
    ├── KernelCodeError          a kernel's code is unreadable or malformed (carries line and column)
    ├── ToolchainError           a compiler that is needed is missing or does not start
    ├── DeviceError              the device asked for is absent, full or broken
    ├── SandboxError             the isolation asked for cannot be had
    ├── BudgetExhausted          the next call could pass a hard cap on tokens or money
    ├── ProposerError            a proposer or writer cannot be reached or does not answer as agreed
    │   └── CallCancelled        someone cancelled the call
    ├── JournalError             a session cannot be read or written
    │   ├── JournalCorrupt       a line that is not the last cannot be read
    │   ├── JournalLocked        another process is writing this session
    │   ├── JournalTooNew        written by a newer format than this program knows
    │   └── JournalUnwritable    read-only folder, full disk
    └── CommandRejected          the rules do not allow this command in this state

Expected outcomes (a kernel that does not compile, a mismatch, a time-out) are values, never exceptions.
A message says what failed, which one, and what to do about it.
"""

from __future__ import annotations


class EspalierError(Exception):
    """Base of everything raised on purpose; its text is one line for a person."""


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
    """A compiler that is needed is missing or does not start."""


class DeviceError(EspalierError):
    """The device asked for is absent, full or broken."""


class SandboxError(EspalierError):
    """The isolation asked for cannot be had on this machine."""


class ProposerError(EspalierError):
    """A proposer or writer cannot be reached or does not answer as agreed."""


class CallCancelled(ProposerError):
    """Someone cancelled the call: no reply will come, and it is not repeated."""


class BudgetExhausted(EspalierError):
    """The next call could pass a hard cap on tokens or money; it was not made."""


class JournalError(EspalierError):
    """A session cannot be read or written."""


class JournalCorrupt(JournalError):
    """A line that is not the last one cannot be read."""


class JournalLocked(JournalError):
    """Another process is writing this session."""


class JournalTooNew(JournalError):
    """The journal was written in a newer format than this program knows."""


class JournalUnwritable(JournalError):
    """The session's folder cannot be written: read-only, or the disk is full."""


class CommandRejected(EspalierError):
    """The rules do not allow this command in this state."""


def printable(text: str) -> str:
    """A message that quotes foreign text: every control character but line feed and tab becomes a question mark."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)

"""Sessions as a stranger could send them: what they name leaves a file where it runs, or a request where it is sent."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from support import sessions

from engine.domain.events import SessionOpened
from engine.journal import codec, journal
from engine.journal.journal import NAME
from engine.session import fork

Change = Callable[[SessionOpened], SessionOpened]


def marking(marker: Path) -> str:
    """Python that leaves the marker where it is executed."""
    return f"import pathlib\npathlib.Path({str(marker)!r}).write_text('it ran')\n"


def touching(marker: Path) -> str:
    """A proposer or writer that leaves the marker where it is started."""
    return f"command:touch {marker}"


def problem_text(marker: Path) -> str:
    """A reference that leaves the marker where it is executed."""
    return f"{marking(marker)}\n{sessions.OPENED.problem.reference}"


def with_code(code: str) -> Change:
    """The problem's reference begins with this code."""

    def change(opened: SessionOpened) -> SessionOpened:
        return replace(opened, problem=replace(opened.problem, reference=f"{code}\n{sessions.OPENED.problem.reference}"))

    return change


def with_reference(marker: Path) -> Change:
    """The problem's reference leaves the marker."""
    return with_code(marking(marker))


def with_settings(**settings: Any) -> Change:
    return lambda opened: replace(opened, settings=replace(opened.settings, **settings))


def forge(original: Path, folder: Path, *changes: Change, rounds: int | None = None) -> Path:
    """A copy of a session with a changed first line, up to the end of a round; nobody has allowed it anything."""
    shutil.copytree(original, folder)
    entries = journal.read(folder).entries
    if rounds is not None:
        entries = entries[: fork.after_round(entries, rounds)]
    opened = entries[0].event
    assert isinstance(opened, SessionOpened)
    for change in changes:
        opened = change(opened)
    lines = [codec.encode(replace(entries[0], event=opened)), *(codec.encode(entry) for entry in entries[1:])]
    (folder / NAME).write_bytes(b"".join(line + b"\n" for line in lines))
    return folder


def module_code(marker: Path) -> str:
    """A module kernel that leaves the marker where it is imported."""
    return f"{marking(marker)}\nimport torch\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n"

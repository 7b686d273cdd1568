"""Edits a text in the user's editor: the terminal is handed over until the editor exits."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import tempfile
from pathlib import Path

from textual.app import App, SuspendNotSupported

from engine.domain.errors import EspalierError


def editor_command() -> str:
    """``$VISUAL``, else ``$EDITOR``, else vi."""
    return os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"


def edit_text(app: App[object], text: str, name: str, *, read_only: bool = False) -> str:
    """The text after editing, in a file of this name. Running work waits meanwhile.

    Raises EspalierError if the terminal cannot be handed over or the editor cannot be run.
    """
    editor = editor_command()
    try:
        with app.suspend():
            return _edited(editor, text, name, read_only)
    except SuspendNotSupported as error:
        raise EspalierError("This terminal cannot be handed to an editor.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise EspalierError(f"{editor} failed ({reason}): set $VISUAL or $EDITOR to an editor.") from error


def _edited(editor: str, text: str, name: str, read_only: bool) -> str:
    with tempfile.TemporaryDirectory(prefix="espalier-") as folder:
        file = Path(folder) / (Path(name).name or "kernel.cpp")
        file.write_text(text, encoding="utf-8")
        if read_only:
            file.chmod(stat.S_IRUSR)
        subprocess.run([*shlex.split(editor), str(file)], check=False)
        return file.read_text(encoding="utf-8", errors="replace")

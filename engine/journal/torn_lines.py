"""Keeps a journal's torn last line in a file of its own, beside the journal."""

from __future__ import annotations

import os
from pathlib import Path

from engine.journal.lock import unwritable_error

TORN = "journal.torn"


def set_aside(folder: Path, torn: bytes) -> str:
    """Write the bytes to the first free name and return it; they are on disk before anything else changes."""
    number = 1
    while (folder / f"{TORN}-{number}").exists():
        number += 1
    path = folder / f"{TORN}-{number}"
    try:
        with path.open("xb") as file:
            file.write(torn)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise unwritable_error(folder, error) from error
    return path.name

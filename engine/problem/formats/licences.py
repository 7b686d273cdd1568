"""Finds the licence that a problem's files come with, and whether it forbids training. Reads text only."""

from __future__ import annotations

import re
from pathlib import Path

from engine.domain.errors import ProblemError
from engine.domain.problem_format import Licence
from engine.problem.formats.documents import text_of

_FILES = ("LICENSE", "LICENSE.md", "LICENSE.txt", "LICENCE", "COPYING")
_TRAINING = re.compile(
    r"reciprocity license"
    r"|(?:may not|must not|shall not|not permitted|prohibited|restrict\w*)[^.]{0,200}\b(?:train|training|fine-?tun\w+)\b"
    r"|\bno[- ](?:ai[- ])?training\b|use restriction[^.]{0,200}\b(?:train|training)\b",
    re.IGNORECASE | re.DOTALL,
)
_HIGHEST = 8


def find(folder: Path) -> Licence | None:
    """The nearest licence, from ``folder`` upwards to its repository's root; ``None`` if there is none.

    A link that leads out of its folder is none: the first line of what it names would be shown.
    """
    found = next(filter(None, map(_file_in, _upwards(folder))), None)
    return None if found is None else _licence(found)


def repository(folder: Path) -> Path | None:
    """The root of the repository that holds ``folder``: the nearest folder upwards with ``.git`` or a licence."""
    return next((place for place in _upwards(folder) if (place / ".git").exists() or _file_in(place)), None)


def _file_in(place: Path) -> Path | None:
    """The licence that lies in this folder, which has no links in its path."""
    paths = (place / name for name in _FILES)
    return next((path for path in paths if path.is_file() and path.resolve().is_relative_to(place)), None)


def _upwards(folder: Path) -> list[Path]:
    """The folder and those above it, up to the first with ``.git``; never the root of the file system."""
    places = [folder.resolve(), *folder.resolve().parents][:_HIGHEST]
    found = []
    for place in places:
        if place == Path(place.anchor):
            break
        found.append(place)
        if (place / ".git").exists():
            break
    return found


def _licence(path: Path) -> Licence:
    try:
        text = text_of(path)
    except ProblemError:
        return Licence("unreadable", str(path), True)
    title = next((line.strip(" #*\t") for line in text.splitlines() if line.strip(" #*\t")), "unnamed")
    return Licence(title[:100], str(path), _TRAINING.search(text) is not None)

"""Header trees that compilers may read: CUTLASS, ThunderKittens. ``ESPALIER_INCLUDE`` names them, as ``--include`` does.

They are shown read-only to the builder's sandbox, and to the runner's, where modules compile their extensions. What they hold
can show in a compiler's messages: folders with keys, and folders that hold everything, are refused.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from engine.domain.errors import ProblemError

VARIABLE = "ESPALIER_INCLUDE"
_MOST_FILES = 50_000
_MOST_BYTES = 1 << 30
_WHOLE = frozenset("/ /bin /boot /dev /etc /home /lib /media /mnt /opt /proc /root /run /srv /sys /tmp /usr /var".split())
_INSIDE = ("/dev", "/etc", "/proc", "/run", "/sys")
_KEYS = frozenset(
    ".ssh .aws .azure .gnupg .kube .docker .netrc .env .git-credentials .pypirc .npmrc id_rsa id_ed25519 credentials".split()
)
_KEY_SUFFIXES = (".pem", ".key", ".p12", ".pfx")


@dataclass(frozen=True, slots=True)
class IncludeTree:
    """One folder of headers; ``digest`` is the SHA-256 of all its files."""

    path: Path
    digest: str


def include_trees() -> tuple[IncludeTree, ...]:
    """The trees that compilers see, in the order they are searched.

    Raises:
        ProblemError: a folder that is missing, too large, or must not be shown.
    """
    return tuple(IncludeTree(path, _digest(path)) for path in include_paths())


def include_paths() -> tuple[Path, ...]:
    """Their folders alone. Raises ProblemError."""
    named = [place for place in os.environ.get(VARIABLE, "").split(os.pathsep) if place]
    return tuple(dict.fromkeys(map(checked_tree, named)))


def checked_tree(name: str) -> Path:
    """The folder, resolved. Raises ProblemError, in one line, for one that must not be shown to a compiler."""
    try:
        path = Path(name).expanduser().resolve(strict=True)
        entries = {entry.name for entry in os.scandir(path)}
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ProblemError(f"--include {name}: {reason}: name a folder of headers") from error
    if why := _refusal(path, entries):
        raise ProblemError(f"--include {name}: {why}: name the tree's own include folder")
    return path


def _refusal(path: Path, entries: Iterable[str]) -> str:
    home = Path.home().resolve()
    if str(path) in _WHOLE or home.is_relative_to(path):
        return "it holds more than headers"
    if any(path.is_relative_to(folder) for folder in _INSIDE):
        return "it belongs to the system"
    found = [name for name in (*entries, *path.parts) if name in _KEYS or name.endswith(_KEY_SUFFIXES)]
    return f"it holds keys ({found[0]})" if found else ""


def _files(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The regular files of a tree, sorted, without version control; links are not followed."""
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if name != ".git")
        for name in sorted(names):
            place = os.path.join(folder, name)
            status = os.lstat(place)
            if not os.path.islink(place):
                yield os.path.relpath(place, path), status


def _digest(path: Path) -> str:
    try:
        listed = tuple((name, status.st_size, status.st_mtime_ns) for name, status in _files(path))
        if len(listed) > _MOST_FILES or sum(size for _, size, _ in listed) > _MOST_BYTES:
            raise ProblemError(f"--include {path}: {len(listed)} files are too many: name the tree's own include folder")
        return _content(path, listed)
    except OSError as error:
        raise ProblemError(f"--include {path}: {error.strerror}: {error.filename}") from error


@lru_cache(maxsize=64)
def _content(path: Path, listed: tuple[tuple[str, int, int], ...]) -> str:
    """The digest of a tree whose files have these sizes and times."""
    return digest_of({name: path / name for name, _, _ in listed})


def digest_of(files: Mapping[str, Path]) -> str:
    """SHA-256 over names and contents. Raises OSError."""
    total = hashlib.sha256()
    for name, place in sorted(files.items()):
        with place.open("rb") as file:
            total.update(f"{name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()

"""Reads a problem's ``playbook/playbook.toml``: ideas with implementations that were written and tested in advance.

Decodes strictly and reads the kernel files that the playbook names; independent of sessions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from engine.domain.errors import KernelCodeError, ProposerError
from engine.domain.model import CATEGORIES, Dialect, IdeaText, Tunable
from engine.problem.files import strict_toml
from engine.problem.files.strict_toml import TomlError
from engine.toolchain.kernel_file import KernelCode, read_kernel_file
from engine.toolchain.tunables import Rule, parse_requires, parse_tunables

FOLDER = "playbook"
FILE = "playbook.toml"
ROOT = "root"
"""Key of the naive port."""

_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Speedup = Annotated[float, msgspec.Meta(gt=0, lt=1e6)]


@dataclass(frozen=True, slots=True)
class PlaybookImplementation:
    """One implementation, with the tunables and requirements that its code declares."""

    kernel: KernelCode
    tunables: tuple[Tunable, ...]
    requires: tuple[Rule, ...]


Implementations = Mapping[Dialect, tuple[PlaybookImplementation, ...]]


@dataclass(frozen=True, slots=True)
class PlaybookIdea:
    """One entry of a playbook."""

    key: str
    title: str
    category: str
    rationale: str
    predicted: Mapping[Dialect, float]
    after: tuple[str, ...]
    """Keys of the ideas it builds on; empty for the naive port."""
    implementations: Implementations

    def text(self, dialect: Dialect) -> IdeaText:
        return IdeaText(self.title, self.category, self.rationale, self.predicted.get(dialect), self.key)


@dataclass(frozen=True, slots=True)
class PlaybookFile:
    """A playbook; empty if the file does not exist."""

    root: Implementations = field(default_factory=dict)
    ideas: tuple[PlaybookIdea, ...] = ()


class _Files(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Kernel files by dialect; the fields are named after the values of ``Dialect``."""

    cpp: list[_Text] = []
    """Kernel files in C++, beside the playbook."""
    cuda: list[_Text] = []
    """Kernel files in CUDA C++."""
    triton: list[_Text] = []
    """Kernel files of Triton functions."""
    python: list[_Text] = []
    """Files with a ``ModelNew``."""


class _Predicted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Speedups over the parent by dialect; 1.0 is no change."""

    cpp: _Speedup | None = None
    cuda: _Speedup | None = None
    triton: _Speedup | None = None
    python: _Speedup | None = None


class _IdeaEntry(_Files, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One ``[[idea]]``."""

    key: _Text
    """A name for the idea, by which ``after`` refers to it."""
    title: _Text
    """The optimisation, in a few words."""
    category: _Text
    """One of the categories below."""
    rationale: _Text
    """Why it should help."""
    predicted: _Predicted = _Predicted()
    """Predicted speedup over the parent, by dialect."""
    after: list[_Text] = []
    """Keys of the ideas that it builds on; empty for the naive port."""


class _Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file. Its ideas are decoded one by one, because errors name them by key."""

    root: _Files = _Files()
    idea: list[dict[str, Any]] = []


def read_playbook(problem: Path) -> PlaybookFile:
    """The playbook of the problem in this folder.

    Raises:
        ProposerError: it is malformed, or names an unreadable kernel file; the message has the file and the key.
    """
    file = problem / FOLDER / FILE
    if not file.is_file():
        return PlaybookFile()
    try:
        written = strict_toml.decode(file.read_text(encoding="utf-8"), _Written)
        read = _KernelFiles(file.parent)
        root = read.implementations(written.root, "root")
        ideas = tuple(_idea(entry, number, read) for number, entry in enumerate(written.idea, 1))
        _check_keys(ideas)
    except TomlError as error:
        raise ProposerError(f"{file}, {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ProposerError(f"{file} cannot be read: {error}") from error
    return PlaybookFile(root, ideas)


class _KernelFiles:
    """The kernel files of a playbook, each read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, PlaybookImplementation] = {}

    def implementations(self, files: _Files, where: str) -> Implementations:
        names = {dialect: getattr(files, dialect.value) for dialect in Dialect}
        return {d: tuple(self._implementation(n, d, f"{where}, {d.value}") for n in ns) for d, ns in names.items() if ns}

    def _implementation(self, name: str, dialect: Dialect, where: str) -> PlaybookImplementation:
        # Also through a link: the text of any file here would become a kernel, and part of a prompt.
        inside = (self._folder / name).resolve().is_relative_to(self._folder.resolve())
        if Path(name).is_absolute() or ".." in Path(name).parts or not inside:
            raise TomlError(f"{where}: {name!r} is outside the playbook's folder")
        if name not in self._read:
            try:
                kernel = read_kernel_file(self._folder / name)
                tunables = parse_tunables(kernel.text, kernel.dialect)
                requires = parse_requires(kernel.text, kernel.dialect)
            except KernelCodeError as error:
                raise TomlError(f"{where}: {name}: {error}") from error
            self._read[name] = PlaybookImplementation(kernel, tunables, requires)
        implementation = self._read[name]
        if implementation.kernel.dialect is not dialect:
            raise TomlError(f"{where}: {name} is {implementation.kernel.dialect.value}, not {dialect.value}")
        return implementation


def _idea(table: dict[str, Any], number: int, read: _KernelFiles) -> PlaybookIdea:
    where = f"idea {table['key']!r}" if isinstance(table.get("key"), str) else f"idea {number}"
    entry = strict_toml.convert(table, _IdeaEntry, where)
    if entry.category not in CATEGORIES:
        raise TomlError(f"{where}, category: unknown category {entry.category!r}: use one of {', '.join(CATEGORIES)}")
    implementations = read.implementations(entry, where)
    if not implementations:
        raise TomlError(f"{where}: no implementation: list its files under {', '.join(sorted(Dialect))}")
    speedups = {dialect: getattr(entry.predicted, dialect.value) for dialect in Dialect}
    return PlaybookIdea(
        entry.key,
        entry.title.strip(),
        entry.category,
        " ".join(entry.rationale.split()),
        {dialect: speedup for dialect, speedup in speedups.items() if speedup is not None},
        tuple(entry.after),
        implementations,
    )


def _check_keys(ideas: Sequence[PlaybookIdea]) -> None:
    keys = [idea.key for idea in ideas]
    for key in keys:
        if keys.count(key) > 1 or key == ROOT or ":" in key:
            raise TomlError(f"idea {key!r}: the key must be unique, without a colon, and not {ROOT!r}")
    for idea in ideas:
        for key in idea.after:
            if key == idea.key:
                raise TomlError(f"idea {idea.key!r}, after: an idea cannot build on itself")
            if key not in (ROOT, *keys):
                raise TomlError(f"idea {idea.key!r}, after: unknown idea {key!r}")

"""A problem's ``playbook/playbook.toml`` as data, read strictly: ideas with implementations somebody wrote and tried.

Knows the file's shape and that the sources it names can be read; nothing of sessions.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from engine.build.source import KernelSource, read_kernel
from engine.build.tunables import Requirement, parse_requires, parse_tunables
from engine.domain.errors import IdeaSourceError, SourceError
from engine.domain.model import CATEGORIES, Dialect, IdeaText, Tunable

FOLDER = "playbook"
FILE = "playbook.toml"
ROOT = "root"
"""Key of the first port."""

_DIALECTS = frozenset(d.value for d in Dialect)
_WORDS = frozenset({"key", "title", "category", "rationale", "predicted", "after"})
_LARGEST_PREDICTION = 1e6


@dataclass(frozen=True, slots=True)
class WrittenSource:
    """One implementation, with the tunables and requirements its text declares."""

    kernel: KernelSource
    tunables: tuple[Tunable, ...]
    requires: tuple[Requirement, ...]


@dataclass(frozen=True, slots=True)
class WrittenIdea:
    """One entry of a playbook."""

    key: str
    title: str
    category: str
    rationale: str
    predicted: Mapping[Dialect, float]
    after: tuple[str, ...]
    """Keys of the ideas it builds on; empty means the root."""
    sources: Mapping[Dialect, tuple[WrittenSource, ...]]

    def text(self, dialect: Dialect) -> IdeaText:
        return IdeaText(self.title, self.category, self.rationale, self.predicted.get(dialect), self.key)


@dataclass(frozen=True, slots=True)
class Written:
    """A whole playbook; one that is not there is empty."""

    root: Mapping[Dialect, tuple[WrittenSource, ...]] = field(default_factory=dict)
    ideas: tuple[WrittenIdea, ...] = ()


def read_playbook(problem: Path) -> Written:
    """The playbook of the problem in this folder.

    Raises:
        IdeaSourceError: it is malformed, or names a source that cannot be read; with the file and the key.
    """
    file = problem / FOLDER / FILE
    if not file.exists():
        return Written()
    try:
        with file.open("rb") as stream:
            table = tomllib.load(stream)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise IdeaSourceError(f"{file} cannot be read: {error}") from error
    return _Reader(file).read(table)


class _Reader:
    """Walks the table; every complaint names the file and the place in it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read: dict[str, WrittenSource] = {}

    def read(self, table: Mapping[str, object]) -> Written:
        self._only(table, {"root", "idea"}, "the top level")
        root_table = self._table(table.get("root", {}), "[root]")
        self._only(root_table, _DIALECTS, "[root]")
        root = self._sources(root_table, "[root]")
        entries = table.get("idea", [])
        if not isinstance(entries, list):
            self._fail("idea", "write each idea under [[idea]]")
        ideas = tuple(self._idea(self._table(e, f"idea {n}"), f"idea {n}") for n, e in enumerate(entries, 1))
        self._check_keys(ideas)
        return Written(root, ideas)

    def _idea(self, table: Mapping[str, object], where: str) -> WrittenIdea:
        key = self._text(table, "key", where)
        where = f"idea {key!r}"
        self._only(table, _WORDS | _DIALECTS, where)
        category = self._text(table, "category", where)
        if category not in CATEGORIES:
            self._fail(f"{where}, category", f"{category!r} is none of: {', '.join(CATEGORIES)}")
        sources = self._sources(table, where)
        if not sources:
            self._fail(where, f"it has no implementation: give a list of files under {', '.join(sorted(_DIALECTS))}")
        return WrittenIdea(
            key,
            self._text(table, "title", where),
            category,
            " ".join(self._text(table, "rationale", where).split()),
            self._predicted(table, where),
            self._strings(table.get("after", []), f"{where}, after"),
            sources,
        )

    def _predicted(self, table: Mapping[str, object], where: str) -> dict[Dialect, float]:
        where = f"{where}, predicted"
        given = self._table(table.get("predicted", {}), where)
        self._only(given, _DIALECTS, where)
        found: dict[Dialect, float] = {}
        for dialect, value in given.items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 < float(str(value)) < _LARGEST_PREDICTION:
                self._fail(where, f"{dialect} is {value!r}, not a speedup over the parent kernel (1.0 is no change)")
            found[Dialect(dialect)] = float(str(value))
        return found

    def _sources(self, table: Mapping[str, object], where: str) -> dict[Dialect, tuple[WrittenSource, ...]]:
        found: dict[Dialect, tuple[WrittenSource, ...]] = {}
        for dialect in Dialect:
            here = f"{where}, {dialect.value}"
            names = self._strings(table.get(dialect.value, []), here)
            if names:
                found[dialect] = tuple(self._source(name, dialect, here) for name in names)
        return found

    def _source(self, name: str, dialect: Dialect, where: str) -> WrittenSource:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            self._fail(where, f"{name!r} lies outside the playbook's folder")
        if name not in self._read:
            try:
                kernel = read_kernel(self._file.parent / name)
                tunables = parse_tunables(kernel.text, kernel.dialect)
                requires = parse_requires(kernel.text, kernel.dialect)
            except SourceError as error:
                self._fail(where, f"{name}: {error}", error)
            self._read[name] = WrittenSource(kernel, tunables, requires)
        source = self._read[name]
        if source.kernel.dialect is not dialect:
            self._fail(where, f"{name} is {source.kernel.dialect.value}, not {dialect.value}")
        return source

    def _check_keys(self, ideas: tuple[WrittenIdea, ...]) -> None:
        keys = [idea.key for idea in ideas]
        for key in keys:
            if keys.count(key) > 1 or key == ROOT or ":" in key:
                self._fail(f"idea {key!r}", f"its key must be unique, without a colon, and not {ROOT!r}")
        known = {ROOT, *keys}
        for idea in ideas:
            for key in idea.after:
                if key not in known or key == idea.key:
                    self._fail(f"idea {idea.key!r}, after", f"there is no other idea {key!r}")

    def _text(self, table: Mapping[str, object], key: str, where: str) -> str:
        value = table.get(key)
        if not isinstance(value, str) or not value.strip():
            self._fail(f"{where}, {key}", "it must be a text that is not empty")
        return value.strip()

    def _strings(self, value: object, where: str) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            self._fail(where, "it must be a list of texts")
        return tuple(value)

    def _table(self, value: object, where: str) -> Mapping[str, object]:
        if not isinstance(value, dict):
            self._fail(where, "it must be a table")
        return value

    def _only(self, table: Mapping[str, object], allowed: Collection[str], where: str) -> None:
        unknown = sorted(set(table) - set(allowed))
        if unknown:
            self._fail(where, f"unknown key {unknown[0]!r}: use {', '.join(sorted(allowed))}")

    def _fail(self, where: str, what: str, cause: Exception | None = None) -> NoReturn:
        raise IdeaSourceError(f"{self._file}, {where}: {what}") from cause

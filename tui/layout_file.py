"""How the engineer arranged the session screen: columns of the tree and its share of the screen, kept in ``layout.toml``.

The program writes the file, beside ``screen.toml``; the same arrangement holds in every session.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import tomli

from engine.journal.whole_file import write_whole
from tui.viewmodel.tree_columns import Column, ColumnChoice, Shown

LAYOUT = "layout.toml"
LEAST_SHARE, MOST_SHARE = 0.15, 0.85
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class ScreenLayout:
    """The arrangement; a share is the tree's, ``None`` the usual one."""

    columns: ColumnChoice = field(default_factory=ColumnChoice)
    beside: float | None = None
    """The tree's share of the width, with the pane beside it."""
    below: float | None = None
    """The tree's share of the height, with the pane below it."""

    def share(self, *, below: bool) -> float | None:
        return self.below if below else self.beside

    def split(self, share: float | None, *, below: bool) -> ScreenLayout:
        """The arrangement with another share for the tree."""
        kept = None if share is None else min(MOST_SHARE, max(LEAST_SHARE, share))
        return replace(self, below=kept) if below else replace(self, beside=kept)


class LayoutFile:
    """The arrangement, and the file that keeps it."""

    def __init__(self, path: Path) -> None:
        """What is wrong with the file is in ``errors``, one line each; such entries are skipped."""
        self.path = path
        self.layout, self.errors = read_layout(path)

    def keep(self, layout: ScreenLayout) -> None:
        """Use this arrangement from now on, and write what changed of it: others change the file too. Raises OSError."""
        if layout == self.layout:
            return
        before, self.layout = self.layout, layout
        with _alone(self.path):
            kept, _ = read_layout(self.path)
            write_layout(self.path, _changed(kept, before, layout))


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """While no other process is between reading the file and writing it. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _changed(kept: ScreenLayout, before: ScreenLayout, after: ScreenLayout) -> ScreenLayout:
    """``kept`` with the shares and columns that differ between ``before`` and ``after``."""
    shown, widths = dict(kept.columns.shown), dict(kept.columns.widths)
    for column in Column:
        _take(shown, column, before.columns.shown.get(column), after.columns.shown.get(column))
        _take(widths, column, before.columns.widths.get(column), after.columns.widths.get(column))
    beside = kept.beside if before.beside == after.beside else after.beside
    below = kept.below if before.below == after.below else after.below
    return ScreenLayout(ColumnChoice(shown, widths), beside, below)


def _take(kept: dict[Column, Value], column: Column, before: Value | None, after: Value | None) -> None:
    if after is None and before is not None:
        kept.pop(column, None)
    elif after is not None and after != before:
        kept[column] = after


def read_layout(path: Path) -> tuple[ScreenLayout, tuple[str, ...]]:
    """The arrangement in a file, and one line for each error. A missing file means the usual one."""
    try:
        table = tomli.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ScreenLayout(), ()
    except (OSError, UnicodeDecodeError, tomli.TOMLDecodeError) as error:
        return ScreenLayout(), (f"{path} cannot be read, the usual layout applies: {error}",)
    errors: list[str] = []
    shares: dict[str, float | None] = {"beside": None, "below": None}
    for name in shares:
        value = table.get(name)
        if isinstance(value, float) and LEAST_SHARE <= value <= MOST_SHARE:
            shares[name] = value
        elif value is not None:
            errors.append(f"{path}: {name} must be a share from {LEAST_SHARE} to {MOST_SHARE}, not {value!r}")
    chosen = ColumnChoice()
    columns = table.get("columns", {})
    for name, entry in columns.items() if isinstance(columns, dict) else ():
        try:
            chosen = _with_column(chosen, Column(name), entry if isinstance(entry, dict) else {})
        except ValueError as error:
            errors.append(f"{path}: {error}")
    return ScreenLayout(chosen, shares["beside"], shares["below"]), tuple(errors)


def _with_column(chosen: ColumnChoice, column: Column, entry: Mapping[str, object]) -> ColumnChoice:
    """Raises ValueError."""
    if "shown" in entry:
        chosen = chosen.show(column, Shown(str(entry["shown"])))
    width = entry.get("width")
    return chosen.resize(column, width) if isinstance(width, int) else chosen


def write_layout(path: Path, layout: ScreenLayout) -> None:
    """Write the arrangement, whole or not at all. Raises OSError."""
    lines = [
        f"{name} = {share:.3f}" for name, share in (("beside", layout.beside), ("below", layout.below)) if share is not None
    ]
    for column in Column:
        shown, width = layout.columns.shown.get(column), layout.columns.widths.get(column)
        if shown is not None or width is not None:
            lines += ["", f"[columns.{column.value}]"]
            lines += [f'shown = "{shown.value}"'] if shown is not None else []
            lines += [f"width = {width}"] if width is not None else []
    write_whole(path, ("\n".join(lines) + "\n").encode())

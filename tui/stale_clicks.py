"""Guards Textual where a click names what has been removed since the last paint.

Reported as for upstream (Textual 8.2.8). A click carries the option or column that was painted under it.
``OptionList._on_click`` and, for a header, ``DataTable._on_click`` look it up without asking whether it is still there. The
IndexError ends the program when a list or table shrinks between the paint and the click, as the palette's list does while
its user types. ``CommandPalette._on_click`` asks for the widget at a place that a smaller terminal no longer has: NoWidget.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from textual.command import CommandPalette
from textual.errors import NoWidget
from textual.events import Click
from textual.widgets import DataTable, OptionList

_original_option_click: Callable[[OptionList, Click], Awaitable[None]] = OptionList._on_click
_original_table_click: Callable[[DataTable[Any], Click], Awaitable[None]] = DataTable._on_click

_original_palette_click: Callable[[CommandPalette, Click], None] = CommandPalette._on_click


def guard_stale_clicks() -> None:
    """Make every list, table and palette of this process safe, Textual's own included. Calling it again changes nothing."""
    setattr(OptionList, "_on_click", _click_option)  # noqa: B010  # Textual has no seam here
    setattr(DataTable, "_on_click", _click_table)  # noqa: B010
    setattr(CommandPalette, "_on_click", _click_palette)  # noqa: B010


async def _click_option(listed: OptionList, event: Click) -> None:
    if event.style.meta.get("option", 0) < listed.option_count:
        await _original_option_click(listed, event)


async def _click_table(table: DataTable[Any], event: Click) -> None:
    if event.style.meta.get("column", 0) < len(table.columns):
        await _original_table_click(table, event)


def _click_palette(palette: CommandPalette, event: Click) -> None:
    with suppress(NoWidget):
        _original_palette_click(palette, event)

"""Guards Textual in terminals of a few cells: what has no room is no error.

Reported as for upstream (Textual 8.2.8). ``OptionList._move_page`` looks up the line of the highlighted option, which a list
without room does not know (KeyError). ``Content._wrap_and_format`` wraps a text into no cells where padding takes the whole
width (ValueError). Either exception ends the program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual.content import Content
from textual.widgets import OptionList

_original_move_page: Callable[..., None] = OptionList._move_page
_original_wrap: Callable[..., list[Any]] = Content._wrap_and_format


def guard_tiny_terminals() -> None:
    """Make lists and texts of this process safe, those of Textual's own widgets included. Calling it again changes nothing."""
    setattr(OptionList, "_move_page", _move_page)  # noqa: B010  # Textual has no seam here
    setattr(Content, "_wrap_and_format", _wrap)  # noqa: B010


def _move_page(listed: OptionList, direction: int) -> None:
    if (listed.highlighted or 0) in listed._index_to_line:
        _original_move_page(listed, direction)


def _wrap(content: Content, width: int, *arguments: Any, **options: Any) -> list[Any]:
    return _original_wrap(content, max(1, width), *arguments, **options)

"""Guards Textual where a screen is removed while it begins, or while its program ends.

Reported as for upstream (Textual 8.2.8). ``Widget.mount`` adds nothing to a widget that is being removed, and raises MountError
once ``App.exit`` was called; Compose, Mount and what follows them are still handled, and an ``on_mount`` that looks for them
raises NoMatches. Either exception ends the program with a traceback. So does what ``call_after_refresh`` was given: the
screen on top calls it, after the widget of the caller has lost its own widgets, and the focus that a screen gives when it was
composed.

A screen whose queue holds several messages handles them without a pause. Each resize and each return to a screen lays all of
it out, and no key was read until the last was done; now the loop turns after each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from textual.dom import DOMNode
from textual.events import Compose, Mount, Resize, ScreenResume, Show
from textual.message import Message
from textual.message_pump import MessagePump
from textual.screen import Screen
from textual.widget import Widget

_BEGINNINGS = (Compose, Mount, Resize, ScreenResume, Show)
"""What a widget handles when it begins or appears."""
_LAYOUTS = (Resize, ScreenResume)
"""After which a screen is laid out as a whole."""
Result = TypeVar("Result")
_original_auto_focus = Screen._update_auto_focus


def guard_removals() -> None:
    """Make every widget of this process safe, Textual's own included. Calling it again changes nothing."""
    setattr(Widget, "_dispatch_message", _dispatch)  # noqa: B010  # Textual has no seam here
    setattr(Widget, "call_after_refresh", _call_after_refresh)  # noqa: B010
    setattr(Screen, "_update_auto_focus", _update_auto_focus)  # noqa: B010


def is_going(widget: Widget) -> bool:
    """Whether the widget is being removed or its program ends: its own widgets may be gone already."""
    return widget._pruning or not widget.is_attached


async def while_shown(node: DOMNode, awaited: Awaitable[Result]) -> Result:
    """The result. A worker of the widget that awaits it ends here if the widget went meanwhile, and one of the app if the app
    ends. Raises CancelledError."""
    result = await awaited
    if is_going(node) if isinstance(node, Widget) else node.app._exit:
        raise asyncio.CancelledError
    return result


async def _dispatch(widget: Widget, message: Message) -> None:
    if not (isinstance(message, _BEGINNINGS) and is_going(widget)):
        await MessagePump._dispatch_message(widget, message)
        if isinstance(message, _LAYOUTS) and isinstance(widget, Screen):
            await asyncio.sleep(0)


def _update_auto_focus(screen: Screen[Any]) -> None:
    """A screen that goes while its widgets are mounted would give the focus to one that has not begun."""
    if not is_going(screen):
        _original_auto_focus(screen)


def _call_after_refresh(widget: Widget, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    return MessagePump.call_after_refresh(widget, _call_unless_going, widget, partial(callback, *args, **kwargs))


def _call_unless_going(widget: Widget, callback: Callable[[], Any]) -> Any:
    return None if is_going(widget) else callback()

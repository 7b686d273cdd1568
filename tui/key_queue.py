"""Hands on what the terminal sends one by one: what the one before caused is there first, a dialog that it opens among it.

Reported as for upstream (Textual 8.2.8). The app forwards a key to the focused widget; unless a widget stops it, it comes back
to the app, whose bindings act. The next key was meanwhile forwarded to the widget that had the focus before, so that a text
typed right after the key of a dialog acted as keys of the screen behind it.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final
from weakref import WeakKeyDictionary

from textual import events
from textual._queue import Queue
from textual.app import App
from textual.dom import DOMNode
from textual.errors import NoWidget
from textual.message_pump import MessagePump
from textual.worker import Worker

from tui.screens.loading import is_loading

MOST_SECONDS = 1.0
"""How long input waits for what an earlier one caused: a worker may first read from a slow disk."""
MOST_LOADING_SECONDS = 30.0
"""How long it waits before that while the program loads its own modules or makes a screen."""
ASKING_GROUPS: Final = frozenset({"default", "compare", "open", "quit", "settings", "watch"})
"""The groups of workers that show a screen. Textual's decorator ``work`` names its group ``default``."""
_TURNS = 200
"""Turns of the event loop that are waited for at once; a longer wait looks now and then."""
_LATER_SECONDS = 0.005
_MOTIONS = re.compile(r"(?:.*\.)?(?:motion|first|last|(?:cursor|delete|page|scroll)_\w+)\b")
"""Actions that move in a list, a page or a text, and show nothing else."""
_Answer = asyncio.Future[Any]


class KeyQueue:
    """The input that waits for its turn. Never awaited by the app's message pump, which what it waits for may need."""

    def __init__(self, app: App[None], handle: Callable[[events.Event], Awaitable[None]]) -> None:
        """``handle``: what the app does with an event; called in the app's message pump."""
        self._app = app
        self._handle = handle
        self._waiting: deque[events.Event] = deque()
        self._follower: asyncio.Task[None] | None = None
        """Waits for what the latest event causes; ``None`` when nothing is under way."""
        self._nodes: list[MessagePump] = []
        """What handles the latest event."""
        self._held = ""
        """The latest key, if it moves: its repeats need not wait, and a key that is held stays as fast as it was."""
        self._end = 0.0
        """Until when the latest event's effects are waited for."""
        self._answers: WeakKeyDictionary[Worker[Any], _Answer] = WeakKeyDictionary()
        """What the dialog that a worker showed last will be answered with."""
        self._overdue: WeakKeyDictionary[Worker[Any], _Answer | None] = WeakKeyDictionary()
        """Workers that were waited for long enough since their latest answer."""

    def keeps(self, event: events.Event) -> bool:
        """Whether the event waits for an earlier one. If not, the caller handles it at once."""
        if not isinstance(event, events.InputEvent | events.Paste) or event.is_forwarded or not self._app.screen_stack:
            return False
        if self._follower is None:
            if self._acts(event):
                self._begin(event)
                self._follower = asyncio.create_task(self._follow())
            return False
        if not self._waiting and self._repeats(event):
            self._end = _deadline()
            return False
        if self._waiting and isinstance(event, events.MouseMove) and isinstance(self._waiting[-1], events.MouseMove):
            self._waiting.pop()  # as Textual does in a widget's own queue
        self._waiting.append(event)
        return True

    def has_asked(self, worker: Worker[Any]) -> bool:
        """Whether the worker has shown a dialog."""
        return worker in self._answers

    def asks(self, worker: Worker[Any], answer: _Answer) -> None:
        """The worker shows a dialog, with this answer to come."""
        self._answers[worker] = answer

    def close(self) -> None:
        """Drop what waits: the app ends."""
        self._waiting.clear()
        if self._follower is not None:
            self._follower.cancel()

    def _acts(self, event: events.Event) -> bool:
        """Whether the event may change what later input is for. A character of a text does not, and a paste neither."""
        if isinstance(event, events.Key):
            focused = self._app.focused
            return focused is None or not focused.check_consume_key(event.key, event.character)
        return isinstance(event, events.MouseDown | events.MouseUp)

    def _repeats(self, event: events.Event) -> bool:
        return isinstance(event, events.Key) and event.key == self._held

    def _begin(self, event: events.Event) -> None:
        """The event is handled now or next."""
        self._nodes = self._nodes_of(event)
        self._held = event.key if isinstance(event, events.Key) and self._moves(event.key) else ""
        self._end = _deadline()

    def _moves(self, key: str) -> bool:
        """Whether the first action that is bound to the key only moves."""
        chain = self._app.screen._modal_binding_chain if self._app.screen_stack else ()
        bound = next((found[0] for _, bindings in chain if (found := bindings.key_to_bindings.get(key))), None)
        return bound is not None and _MOTIONS.match(bound.action) is not None

    async def _follow(self) -> None:
        """Wait for what the latest event causes, then hand on the next, until none waits."""
        try:
            await self._settle()
            while self._hand_on():
                await self._settle()
        finally:
            self._follower = None

    def _hand_on(self) -> bool:
        """Hand on what waits, up to an event that acts and its repeats. Whether there was one."""
        while self._waiting and self._app.screen_stack:
            event = self._waiting.popleft()
            acts = self._acts(event)
            if acts:
                self._begin(event)
            self._app.call_later(self._hand, event)
            if acts:
                while self._waiting and self._repeats(self._waiting[0]):
                    self._app.call_later(self._hand, self._waiting.popleft())
                return True
        return False

    async def _hand(self, event: events.Event) -> None:
        self._end = _deadline()
        await self._handle(event)

    async def _settle(self) -> None:
        """Wait until what handled the event, what has the focus now, and workers that will ask have done their work."""
        turns, last = 0, _deadline(MOST_LOADING_SECONDS)
        while self._app.screen_stack:
            if self._is_loading() and _seconds_after(last) < 0:
                self._end = _deadline()
            elif _seconds_after(self._end) >= 0:
                break
            await asyncio.sleep(0 if turns < _TURNS else _LATER_SECONDS)
            if self._is_settled():
                return
            turns += 1
        self._overdue.update((worker, self._answers.get(worker)) for worker in self._about_to_ask())

    def _is_settled(self) -> bool:
        """Asked in each turn of the loop: the app, which is busy most often, comes first."""
        return (
            _is_idle(self._app)
            and all(map(_is_idle, self._nodes))
            and all(map(_is_idle, self._nodes_of()))
            and not self._about_to_ask()
        )

    def _is_loading(self) -> bool:
        """Whether modules are imported, or the screen's widgets are made: the input may be for what follows."""
        return is_loading() or bool(self._app.screen_stack and not self._app.screen.is_mounted)

    def _about_to_ask(self) -> list[Worker[Any]]:
        """Workers that may show a screen next, but for those that were waited for long enough."""
        return [
            worker
            for worker in self._app.workers
            if worker.group in ASKING_GROUPS
            and not worker.is_finished
            and ((answer := self._answers.get(worker)) is None or answer.done())
            and not (worker in self._overdue and self._overdue[worker] is answer)
        ]

    def _nodes_of(self, event: events.Event | None = None) -> list[MessagePump]:
        """What handles the event, from the widget that gets it to the app; without one, what would handle a key now."""
        if not self._app.screen_stack:
            return [self._app]
        target: DOMNode = self._app.focused or self._app.screen
        if isinstance(event, events.MouseEvent):
            with suppress(NoWidget):
                target, _ = self._app.get_widget_at(event.x, event.y)
        return [*target.ancestors_with_self]


def _deadline(seconds: float = MOST_SECONDS) -> float:
    return asyncio.get_running_loop().time() + seconds


def _seconds_after(end: float) -> float:
    return asyncio.get_running_loop().time() - end


def _is_idle(node: MessagePump) -> bool:
    """Whether it has handled all its messages and waits for the next one, or handles none any more."""
    queue: Queue[Any] = node._message_queue
    return node._closed or (queue.empty() and node._pending_message is None and bool(queue.ready_event._waiters))

"""A screen over a session: draws what changed, shows whether the session accepted a command.

Knows the bridge; each screen draws itself.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import ClassVar

from textual.content import Content
from textual.events import Key
from textual.reactive import reactive
from textual.timer import Timer
from textual.widgets import Static

from engine.domain import columns
from engine.domain import commands as c
from engine.domain.errors import EspalierError
from engine.domain.state import Kernel, SessionState
from engine.domain.work import WorkKey
from tui import actions
from tui.bridge import Bridge, Capability
from tui.editor import edit_text
from tui.removals import is_going
from tui.screens.dialogs import DismissOnceScreen
from tui.viewmodel import estimate
from tui.viewmodel.fmt import about
from tui.viewmodel.stages import at_rest
from tui.widgets.bars import SessionHeader, StageStrip

_FRAME_SECONDS = 0.1
"""The shortest time between two frames that nobody asked for."""
_WORKING_SECONDS = 0.25
"""The same while work runs: drawing takes the processor that builds and measures."""
_CLOCK_SECONDS = 1.0
"""How often times are drawn that change by themselves."""
_NOTICE_SECONDS = 3.0
"""How long a notice on a key without use is shown; it is not repeated before."""
_TINY = 9
"""Rows below which the screen has one line of header, and no strips."""


class BridgeScreen(DismissOnceScreen[None]):
    """A screen over a session. ``state`` is set inside ``batch_update`` at most ten times a second.

    It is drawn when the bridge reports a change. Beyond that it draws by itself only for its clock, while it is seen: four
    times a second while work runs, else once.
    """

    PLACE: ClassVar[actions.Place] = actions.Place.SESSION
    state: reactive[SessionState | None] = reactive(None, init=False, repaint=False)

    def __init__(self, bridge: Bridge, clock: Callable[[], float] = time.time) -> None:
        super().__init__()
        self.bridge = bridge
        self.clock = clock
        self._drawn_at = 0.0
        self._next: Timer | None = None
        """Draws the next frame, at ``_due``."""
        self._due = 0.0
        self._refused_at = -_NOTICE_SECONDS
        self._unwatch: Callable[[], None] | None = None

    def on_mount(self) -> None:
        self._unwatch = self.bridge.watch(self.draw_soon)
        self.drain()
        self.begin()

    def begin(self) -> None:
        """Called once, after the first frame. A handler of Textual's would be called for each class that has one."""

    def on_unmount(self) -> None:
        if self._unwatch is not None:
            self._unwatch()

    def on_screen_resume(self) -> None:
        self.draw_soon()

    def on_resize(self) -> None:
        self.set_class(self.app.size.height < _TINY, "-tiny")

    @property
    def shown(self) -> SessionState:
        """The bridge's state; without a process that runs the session nothing runs in it."""
        return self.bridge.state if self.bridge.is_run else at_rest(self.bridge.state)

    @property
    def _works(self) -> bool:
        return self.bridge.transport is None and self.bridge.is_run and bool(self.bridge.state.running)

    @property
    def _is_seen(self) -> bool:
        """Whether it is shown and no other screen hides it. A dialog does not."""
        for screen in reversed(self.app.screen_stack):
            if screen is self:
                return True
            if screen.styles.background.a == 1:
                return False
        return False

    def draw_soon(self) -> None:
        """Something changed: draw it, at once unless the last frame was drawn a moment ago."""
        self._draw_at(self._drawn_at + (_WORKING_SECONDS if self._works else _FRAME_SECONDS))

    def _draw_at(self, moment: float) -> None:
        """Draw a frame at this moment, unless one is drawn before."""
        if is_going(self) or (self._next is not None and self._due <= moment):
            return
        if self._next is not None:
            self._next.stop()
        self._due = moment
        self._next = self.set_timer(max(0.0, moment - time.monotonic()), self._draw_next)

    def _draw_next(self) -> None:
        self._next = None
        self.drain()

    def drain(self) -> None:
        """Draw the changes since the last call; nothing where the screen was closed meanwhile."""
        if is_going(self):
            return
        self._drawn_at = time.monotonic()
        with self.app.batch_update():
            if self.shown is not self.state:
                self.state = self.shown
            self.update_live()
        if self._is_seen:
            self._draw_at(self._drawn_at + (_WORKING_SECONDS if self._works else _CLOCK_SECONDS))

    def update_live(self) -> None:
        """Draw what changes without an event: progress, the clock, the transport."""

    def update_bars(self) -> Mapping[WorkKey, float]:
        """Draw the header and the strip of running work; return the seconds of running work."""
        bridge, now = self.bridge, self.clock()
        seek, submit = bridge.can(Capability.SEEK), bridge.can(Capability.SUBMIT)
        ages = bridge.work_ages(now) if bridge.is_run and not seek else {}
        left = estimate.round_left(bridge.state, bridge.mean_seconds(), ages)
        header, strip = self.query_one(SessionHeader), self.query_one(StageStrip)
        header.session = bridge.name
        place = "not running" if not bridge.is_run else "runs elsewhere" if submit else "replay" if seek else "following"
        header.note = "" if bridge.runs_here else place
        header.stopped = bool(bridge.stopped.keys() - bridge.state.called_off.keys())
        header.telemetry = bridge.device_load
        header.deadline, header.now = bridge.deadline, now
        header.round_left = about(left) if left is not None else ""
        strip.state, strip.is_run = bridge.state, bridge.is_run
        strip.progress, strip.seconds = dict(bridge.progress), {work: int(age) for work, age in ages.items()}
        return ages

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if not super().check_action(action, parameters):
            return False
        found = actions.action_for(action, self.PLACE)
        match found.needs if found is not None else actions.Needs.NOTHING:
            case actions.Needs.SUBMIT:
                return self.bridge.can(Capability.SUBMIT)
            case actions.Needs.SUITE:
                return self.bridge.can(Capability.SUBMIT) and len(columns.workloads(self.bridge.state)) > 1
            case actions.Needs.SEEK:
                return self.bridge.can(Capability.SEEK)
            case _:
                return True

    def on_key(self, event: Key) -> None:
        """A key that nothing has used: say why one that steers does nothing here."""
        if self.bridge.can(Capability.SUBMIT) or not actions.steers(event.key, self.PLACE, getattr(self.app, "user_keys", {})):
            return
        now = time.monotonic()
        if now - self._refused_at < _NOTICE_SECONDS:
            return
        self._refused_at = now
        what = "A replay" if self.bridge.can(Capability.SEEK) else "A session that is only followed"
        fork = self.key_of("session.fork")
        self.notify(f"{what} cannot be steered. {fork} in the tree forks it.", markup=False, timeout=_NOTICE_SECONDS)

    def key_of(self, action: str) -> str:
        """The user's key of an action, as printed on a keyboard."""
        return actions.shown_key(action, getattr(self.app, "user_keys", {}))

    def show_text(self, text: Content, place: Static) -> None:
        """Show a text; the layout changes only if the text does. An empty text takes no room."""
        if place.content != text:
            place.display = bool(text.plain)
            place.update(text)

    def open_code(self, kernel: Kernel, *, read_only: bool) -> str | None:
        """The kernel's code after the editor closed; ``None`` if it is unchanged or was only read."""
        code = self.bridge.code_of(kernel)
        try:
            text = edit_text(self.app, code, kernel.name, read_only=read_only)
        except EspalierError as error:
            self.notify(str(error), severity="warning", markup=False)
            return None
        return text if text != code and not read_only else None

    async def attempt(self, request: Awaitable[None], done: str = "") -> bool:
        """Whether the session accepted; a rejection is shown in the rules' words."""
        try:
            await request
        except EspalierError as error:
            self.notify(str(error), severity="warning", markup=False)
            return False
        if done:
            self.notify(done, markup=False, timeout=2)
        self.drain()
        return True

    async def submit(self, command: c.Command, done: str = "") -> bool:
        """Submit a command; whether the session accepted it."""
        return await self.attempt(self.bridge.submit(command), done)

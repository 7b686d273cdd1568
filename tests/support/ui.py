"""The terminal UI over sessions on disk without a compiler: live sessions run on the fake bench. Reads what journals hold."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from support import builders, sessions
from support.places import APP_FOLDERS
from support.scripted import ScriptedProposer
from textual.pilot import Pilot

from engine.domain.errors import ProblemError
from engine.domain.events import Entry, Event
from engine.domain.model import CallRole
from engine.domain.settings import Settings
from engine.ideas.proposer import Calls, CodeRequest, Implementation, Proposer
from engine.journal import journal, store
from engine.journal.blobs import Blobs
from engine.session.fake_bench import FakeBench
from engine.session.live import LiveSession, Ports
from engine.session.ports import Bench
from tui.app import EspalierApp
from tui.bridge import Bridge, NewSession, SavedSession, Say, live_bridge
from tui.opener import SessionOpener
from tui.screens.gate import GateScreen
from tui.screens.session import SessionScreen
from tui.viewmodel.stages import calls_by_hand
from tui.widgets.kernel_tree import KernelTree

NOW = builders.START + 3600.0
"""What the clock of a pictured screen says: an hour after the fixtures' sessions opened."""


class ByHand(ScriptedProposer):
    """The scripted tree, whose code of an idea is asked for as by the source ``paste``: the reply is the draft's mark."""

    async def implement(self, request: CodeRequest, calls: Calls) -> Implementation:
        if request.idea.parent is None:
            return await super().implement(request, calls)
        open_calls = calls.earlier()
        call = open_calls[0] if open_calls else calls.start(CallRole.CODE, "paste", f"Write {request.idea.id} [now].", 0)
        answered = await calls.wait_by_hand(call.id)
        return Implementation((sessions.draft("pasted", calls.text(answered.reply).strip()),))


BY_HAND = ByHand(sessions.TREE.rounds, sessions.TREE.drafts)


class FakeOpener(SessionOpener):
    """A live session runs the scripted tree on the fake bench."""

    def __init__(
        self, *, pause: float = 0.0, trouble: str = "", clock: Callable[[], float] = time.time,
        ideas: Proposer = sessions.TREE, workloads: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__()
        self._ideas = ideas
        self._workloads = workloads
        self._pause = pause
        self._trouble = trouble
        self._clock = clock
        self.asked: list[NewSession] = []
        """What it was asked to begin, in order."""
        self.resumed: list[SavedSession] = []
        """What it was asked to resume, in order."""

    def bench(self, folder: Path) -> Bench:
        return FakeBench(Blobs(folder).put, pause=self._pause, workloads=self._workloads)

    def ports(self, folder: Path) -> Ports:
        """What a live session is given."""
        return sessions.ports(folder, self._ideas, bench=self.bench(folder), sleep=asyncio.sleep, clock=self._clock)

    async def begin(self, request: NewSession, say: Say) -> Bridge:
        self.asked.append(request)
        say("pretending")
        if self._trouble:
            raise ProblemError(self._trouble)
        folder = request.folder or store.new_folder(request.problem.name)
        asked = sessions.opened(mode=request.mode, source=request.settings.source, limits=request.settings.limits)
        asked = sessions.on_suite(asked, self._workloads) if self._workloads else asked
        return live_bridge(LiveSession.create(folder, asked, self.ports(folder)))

    async def resume(self, saved: SavedSession, say: Say) -> Bridge:
        self.resumed.append(saved)
        return live_bridge(LiveSession.resume(saved.folder, self.ports(saved.folder)))

    def devices(self) -> tuple[tuple[str, str], ...]:
        return (("cpu", "this machine's processor"),)


def own_folder() -> str:
    """A folder for the files beside an app's keymap, which the app writes."""
    return tempfile.mkdtemp(prefix="espalier-test-", dir=os.environ.get(APP_FOLDERS))


def app(opener: FakeOpener | None = None, action: str = "home", subject: object = None, *, keymap: Path | None = None,
        clock: Callable[[], float] = time.time) -> EspalierApp:  # fmt: skip
    """The app over fake sessions, with no keys of anybody's own."""
    keys = keymap or Path(own_folder()) / "keys.toml"
    return EspalierApp(opener or FakeOpener(), action, subject, clock=clock, keymap=keys, colours="truecolor")


async def until(pilot: Pilot[None], holds: Callable[[], object], what: str = "it never came to hold") -> None:
    """Wait until the app comes to a state; a fixed sleep would be either too long or too short."""
    for _ in range(400):
        if holds():
            await pilot.pause()
            return
        await pilot.pause(0.025)
    raise AssertionError(what)


def screen_text(app: EspalierApp) -> str:
    """What the screen shows, line by line."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


async def still(pilot: Pilot[None]) -> None:
    """Wait until three looks in a row see the same screen: whatever is drawn later than asked for is there by then."""
    seen = [""]
    for _ in range(100):
        await pilot.pause(0.05)
        seen.append("\n".join(strip.text for strip in pilot.app.screen._compositor.render_strips()))
        if len(seen) > 3 and len(set(seen[-3:])) == 1:
            return
    raise AssertionError("the screen never came to rest")


def recorded(folder: Path) -> tuple[Entry, ...]:
    """What the journal in the folder holds."""
    return journal.read(folder).entries


def engineer_events(folder: Path) -> list[Event]:
    """What the engineer did, as the journal has it, without the opening itself."""
    return [entry.event for entry in recorded(folder) if entry.by.is_engineer and entry.seq > 0]


class Watch:
    """A clock for grace and patience: it stands still until it is moved."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now

    def pass_grace(self) -> None:
        self.now += 1.0


def new(folder: Path, mode: str = "ask") -> NewSession:
    """What the command line would begin in this folder."""
    return NewSession(builders.problem(), "cpu", Settings(), mode, folder)


Act = Callable[[EspalierApp, Pilot[None], Watch], Awaitable[None]]


def run_steered(folder: Path, act: Act, *, mode: str = "ask", opener: FakeOpener | None = None,
                size: tuple[int, int] = (120, 40)) -> None:  # fmt: skip
    """Begin the scripted session in the app, wait until it awaits the engineer or has ended, and act."""

    async def body() -> None:
        watch = Watch()
        shown = app(opener, "new", new(folder, mode), clock=watch)
        async with shown.run_test(size=size) as pilot:
            await until(pilot, lambda: isinstance(shown.screen, GateScreen) or ended(folder) or asks(shown))
            watch.pass_grace()
            await act(shown, pilot, watch)
            await shown._leave()

    sessions.run(body)


def asks(app: EspalierApp) -> bool:
    """Whether a prompt waits to be answered by hand."""
    return isinstance(app.screen, SessionScreen) and bool(calls_by_hand(app.screen.bridge.state))


def ended(folder: Path) -> bool:
    """Whether the session in the folder is closed."""
    return store.is_session(folder) and bool(recorded(folder)) and store.state_of(folder).closed is not None


def shows_tree(app: EspalierApp) -> bool:
    """Whether a session is on the screen and a kernel is selected in its tree."""
    trees = app.screen.query(KernelTree) if isinstance(app.screen, SessionScreen) else ()
    return any(tree.selected for tree in trees)

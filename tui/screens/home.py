"""Home: lists sessions and problems, and asks the app to open one.

It is drawn before the engine is imported: lists, devices and missing tools are read on threads and follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen, Screen
from textual.widgets import DataTable, OptionList, Static
from textual.widgets.option_list import Option

from engine.domain.errors import EspalierError
from tui import actions
from tui.footer_key import footer_keys
from tui.opener import SessionOpener
from tui.removals import is_going, while_shown
from tui.screens.loading import load_session_screens
from tui.widgets.key_footer import KeyFooter
from tui.widgets.session_table import SessionTable

if TYPE_CHECKING:
    from engine.domain.model import Problem
    from engine.journal import store
    from tui.bridge import Bridge

_WELCOME = (
    "Choose a problem and press Enter twice. Espalier measures PyTorch on it, writes a naive port, and proposes ideas round by "
    "round. You approve, edit or reject ideas, or write your own. Every kernel is verified before it is timed."
)
TAG_LINE = "Search for faster GPU kernels, with you in control."
_PROBLEM_KEYS = footer_keys("home.start", "home.refresh", "app.settings", "app.command_palette", "app.quit")
_SESSION_KEYS = footer_keys("home.open", "home.replay", "home.start", "home.compare", "home.delete")
_EXAMPLE_KEYS = footer_keys("home.replay", "home.start", "home.compare", "home.refresh", "app.quit")
_ALONE = "_autopilot"
"""What examples that nobody steered end in."""
_LEAST_TITLE = 14
"""Columns below which a problem's title says nothing."""
_REST_SECONDS = 0.15
"""How long the cursor rests before its session is read for the preview."""
_DEFAULT_PROBLEM = "softmax"
"""The problem that is highlighted first: it is quick on every device."""


class OpenMode(StrEnum):
    """How to open a session."""

    OPEN = "open"
    REPLAY = "replay"
    FOLLOW = "follow"
    JOIN = "join"
    """Steer it where it runs."""


class _ProblemList(OptionList):
    """The problems; their titles where there is room for some words. Enter before they are read starts the default one."""

    def __init__(self) -> None:
        super().__init__(id="problems")
        self._named: tuple[tuple[str, str], ...] = ()
        self._has_titles = False

    def show(self, named: Sequence[tuple[str, str]]) -> None:
        """Show these problems: (name, title)."""
        self._named, self._has_titles = tuple(named), self._fits_titles
        self.add_options(Option(self._prompt(name, title), id=name) for name, title in named)

    @property
    def _names_width(self) -> int:
        return max((len(name) for name, _ in self._named), default=0) + 2

    @property
    def _fits_titles(self) -> bool:
        return self.size.width >= self._names_width + _LEAST_TITLE

    def _prompt(self, name: str, title: str) -> Content:
        if not self._has_titles:
            return Content.styled(name, "bold")
        return Content.assemble((name.ljust(self._names_width), "bold"), (title, "$text-muted"))

    def action_select(self) -> None:
        if self.option_count:
            super().action_select()
        else:
            self.call_later(self.run_action, "screen.start")

    def on_resize(self) -> None:
        """Keep the highlighted problem in sight where the preview or a small terminal takes room."""
        if self._fits_titles is not self._has_titles:
            self._has_titles = self._fits_titles
            for place, (name, title) in enumerate(self._named):
                self.replace_option_prompt_at_index(place, self._prompt(name, title))
        self.call_after_refresh(self.scroll_to_highlight)


class HomeScreen(Screen[None]):
    """Sessions, latest first, beside the problems."""

    CSS_PATH = "home.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*actions.bindings(actions.Place.HOME)]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (170, "-broad")]  # noqa: RUF012  # an instance variable of Screen
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (9, "-low"), (22, "-middle"), (32, "-tall")]  # noqa: RUF012

    @dataclass
    class OpenRequested(Message):
        """Open a session."""

        folder: Path
        mode: OpenMode

    @dataclass
    class SessionBegun(Message):
        """A session was started."""

        bridge: Bridge

    def __init__(
        self,
        opener: SessionOpener,
        clock: Callable[[], float],
        searched: Callable[[], Path | None],
        make_room: Callable[[], Awaitable[bool]],
        opening: str = "",
    ) -> None:
        """``searched``: the folder of the session that this process searches; ``make_room`` closes it, after asking.

        ``opening``: what is opened first; until then only this is shown, and the sessions are read when the screen returns.
        """
        super().__init__()
        self._opener = opener
        self._clock = clock
        self._searched = searched
        self._make_room = make_room
        self._opening = opening
        self.set_class(bool(opening), "-opening")
        self._problems: Sequence[Problem] = ()
        self._is_loaded = False
        """Whether the preview is there: what it needs is imported first."""
        self._was_read = False
        """Whether the list was read: until then nothing is said about sessions, and afterwards the focus stays where it is."""
        self._left_for: Path | None = None
        """The session that was shown last, which is highlighted on the way back."""

    def compose(self) -> ComposeResult:
        yield Static(_brand(), id="brand")
        with Container(id="lists"):
            sessions = SessionTable(self._clock, self._searched, id="sessions")
            sessions.border_title = "Sessions"
            yield sessions
            problems = _ProblemList()
            problems.border_title = "Problems"
            yield problems
        yield Static(_WELCOME, id="welcome", markup=False)
        yield Container(id="place")
        yield Static(self._opening, id="about", markup=False)
        missing = Static("", id="missing", markup=False)
        missing.display = False
        yield missing
        yield KeyFooter()

    def on_mount(self) -> None:
        self.query_one("#problems").focus()
        self.call_after_refresh(self._load)  # a thread that imports would delay the first frame

    @work(group="load")
    async def _load(self) -> None:
        """Show the problems and the device, then load what a session needs, then say which tools are missing for it."""
        self._show_problems(await while_shown(self, asyncio.to_thread(self._opener.problems)))
        devices = await while_shown(self, asyncio.to_thread(self._opener.devices))
        self.query_one("#brand", Static).update(_brand(devices))
        await while_shown(self, load_session_screens())
        from tui.widgets.preview import Preview

        preview = Preview()
        preview.display = False  # until something is previewed
        await while_shown(self, self.query_one("#place", Container).mount(preview))
        self._is_loaded = True
        if self._was_read:
            self._describe()
        elif isinstance(self.app.screen, ModalScreen):
            self.action_refresh()  # behind a dialog that may wait long for the device
        found = await while_shown(self, self._opener.missing_tools())
        missing = self.query_one("#missing", Static)
        missing.display = bool(found)
        missing.update("\n".join(found))

    def _show_problems(self, problems: Sequence[Problem]) -> None:
        self._problems = problems
        names = [problem.name for problem in problems]
        listed = self.query_one("#problems", _ProblemList)
        listed.show([(problem.name, problem.title) for problem in problems])
        listed.highlighted = names.index(_DEFAULT_PROBLEM) if _DEFAULT_PROBLEM in names else 0

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys act once the lists are there: a key may arrive before they are. While a session opens one can only quit."""
        return self.is_mounted and (action == "leave" or not self.has_class("-opening"))

    def on_screen_resume(self) -> None:
        if not self._opening:
            self.call_after_refresh(self.action_refresh)
        self._opening = ""

    def return_from(self, folder: Path) -> None:
        """Highlight this session, which was shown until now, when this screen appears."""
        self._left_for = folder

    @work(exclusive=True, group="summaries")
    async def action_refresh(self) -> None:
        """Reload the list of sessions."""
        summaries, fault = await while_shown(self, asyncio.to_thread(_summaries, self._searched()))
        if fault:
            self.notify(fault, severity="warning", markup=False)
        is_first, self._was_read = not self._was_read, True
        self._fill(summaries)
        returns = self._left_for is not None and self._sessions_table.highlight(self._left_for)
        if returns or (is_first and any(not one.shipped for one in self._sessions_table.sessions)):
            self.query_one("#sessions").focus()
        self._left_for = None

    def _fill(self, summaries: Sequence[store.SessionSummary]) -> None:
        """The engineer's own sessions first, then the examples, steered ones first; with examples alone the welcome stays."""
        if self.has_class("-opening"):
            self.remove_class("-opening")
            self.query_one("#problems").focus()  # hidden until now, so that it could not have the focus
        self._sessions_table.show(sorted(summaries, key=lambda one: (one.shipped, one.shipped and one.name.endswith(_ALONE))))
        self.set_class(not summaries, "-empty")
        self.set_class(bool(summaries) and all(one.shipped for one in summaries), "-fresh")
        self._describe()

    @property
    def _sessions_table(self) -> SessionTable:
        return self.query_one("#sessions", SessionTable)

    def _highlighted(self) -> store.SessionSummary | None:
        return self._sessions_table.highlighted

    @on(DataTable.RowHighlighted)
    @on(OptionList.OptionHighlighted)
    def _describe(self) -> None:
        if is_going(self) or self.has_class("-opening"):
            return
        about = self.query_one("#about", Static)
        one = self._highlighted()
        on_problems = isinstance(self.focused, OptionList) or one is None
        self.query_one(KeyFooter).keys = (
            _PROBLEM_KEYS if on_problems or one is None else _EXAMPLE_KEYS if one.shipped else _SESSION_KEYS
        )
        if on_problems or one is None:
            about.update("Enter: new session on this problem\nEnter again: start with defaults")
        elif one.shipped:
            about.update(f"{one.folder}\nAn example, recorded on {one.device}. Enter: replay it")
        elif one.status == "unreadable":
            about.update(f"{one.name}: {one.reason}")
        else:
            from tui.viewmodel.ideas import awaiting_approval

            goes_on = "running in this terminal" if self._searched() == one.folder else "open"
            state = one.reason if one.status == "closed" else awaiting_approval(one.awaiting) if one.awaiting else goes_on
            about.update(f"{one.folder}\n{state} · {one.problem} {one.workload} on {one.device}")
        if self._is_loaded and self._was_read:
            self._show_preview()

    @work(exclusive=True, group="preview")
    async def _show_preview(self) -> None:
        """Preview what is highlighted, once the cursor rests on it."""
        await while_shown(self, asyncio.sleep(_REST_SECONDS))
        from tui.screens.home_preview import preview_of

        listed = self.query_one("#problems", OptionList)
        problem = listed.highlighted_option if isinstance(self.focused, OptionList) else None
        named = next((one for one in self._problems if problem is not None and one.name == problem.id), None)
        sessions = self._sessions_table.sessions
        shown = await while_shown(self, asyncio.to_thread(preview_of, self._opener, named, self._highlighted(), sessions))
        for preview in self.query_one("#place", Container).children:
            preview.display = shown is not None
            if shown is not None:
                preview.show(shown.title, shown.lines, shown.state)  # type: ignore[attr-defined]  # a Preview

    def on_descendant_focus(self) -> None:
        self._describe()

    @on(DataTable.RowSelected)
    def action_open(self) -> None:
        """Resume the highlighted session; replay an example."""
        one = self._highlighted()
        self._request_open(OpenMode.REPLAY if one is not None and one.shipped else OpenMode.OPEN)

    async def action_leave(self) -> None:
        """Quit."""
        await self.app.action_quit()

    def action_replay(self) -> None:
        """Replay the highlighted session."""
        self._request_open(OpenMode.REPLAY)

    def action_follow(self) -> None:
        """Follow the highlighted session while another process runs it."""
        self._request_open(OpenMode.FOLLOW)

    def _request_open(self, mode: OpenMode) -> None:
        one = self._highlighted()
        if one is None:
            self.notify("No sessions yet: choose a problem.", markup=False)
        elif one.status == "unreadable":
            self.notify(one.reason, severity="warning", markup=False)
        else:
            self.post_message(self.OpenRequested(one.folder, mode))

    @on(OptionList.OptionSelected, "#problems")
    def _problem_chosen(self, event: OptionList.OptionSelected) -> None:
        self._ask_new_session(str(event.option_id))

    def action_start(self) -> None:
        """The form for a new session."""
        problems = self.query_one("#problems", OptionList)
        one = self._highlighted()
        option = problems.highlighted_option
        chosen = option.id if option is not None and option.id else _DEFAULT_PROBLEM
        self._ask_new_session(chosen if self.focused is problems or one is None else self._problem_of(one) or chosen)

    def _problem_of(self, session: store.SessionSummary) -> str:
        """What a new session on its problem is asked for: a shipped one's name, else the path that it was read from."""
        if any(one.name == session.problem for one in self._problems):
            return session.problem
        return session.origin if session.origin.isprintable() else ""

    @work
    async def _ask_new_session(self, problem: str) -> None:
        await while_shown(self, load_session_screens())
        from tui.screens.new_session import NewSessionForm

        bridge = await self.app.push_screen_wait(NewSessionForm(self._opener, problem, self._make_room))
        if bridge is not None:
            self.post_message(self.SessionBegun(bridge))

    @work(exclusive=True, group="compare")
    async def action_compare(self) -> None:
        """Show the highlighted session beside the others on its problem, workload and device."""
        one = self._highlighted()
        if one is None or one.status == "unreadable":
            self.notify("Highlight a session to compare it with the others of its problem.", markup=False)
            return
        others = [
            s for s in self._sessions_table.sessions if s.problem == one.problem and s is not one and s.status != "unreadable"
        ]
        try:
            await while_shown(self, load_session_screens())
            reading = asyncio.to_thread(self._opener.beside, one.folder, [other.folder for other in others])
            found = await while_shown(self, reading)
        except EspalierError as error:
            self.notify(str(error), severity="warning", markup=False)
            return
        from tui.screens.side_by_side import SideBySideScreen

        self.app.push_screen(SideBySideScreen(found))

    @work
    async def action_delete(self) -> None:
        """Delete the highlighted session; asks first. An example stays."""
        one = self._highlighted()
        if one is None:
            return
        if one.shipped:
            self.notify(f"{one.name} is an example that ships with Espalier: it is not deleted.", markup=False)
            return
        from tui.screens.dialogs import Confirm

        words = f"{one.folder}\n\n{one.kernels} kernels, {one.verified} verified. This cannot be undone."
        if not await self.app.push_screen_wait(Confirm(f"Delete {one.name}?", words, "Delete")):
            return
        from engine.journal import store

        try:
            await while_shown(self, asyncio.to_thread(store.delete, one.folder))
        except EspalierError as error:
            self.notify(str(error), severity="error", markup=False)
        self.action_refresh()


def _brand(devices: Sequence[tuple[str, str]] = ()) -> Content:
    where = "" if not devices else "  ·  CPU only" if devices[0][0] == "cpu" else f"  ·  {devices[0][1]} ({devices[0][0]})"
    return Content.assemble((" Espalier ", "bold $primary"), (f" {TAG_LINE}{where}", "$text-muted"))


def _summaries(searched: Path | None) -> tuple[list[store.SessionSummary], str]:
    from engine.journal import store

    return store.summaries(searched), store.root_fault()

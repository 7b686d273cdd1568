"""The command palette: actions of the screen below, kernels and ideas of its session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import ClassVar

from textual import on, work
from textual.binding import BindingType
from textual.command import CommandList, CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.css.query import NoMatches
from textual.types import IgnoreReturnCallbackType
from textual.widgets import Input, OptionList

from engine.domain.state import SessionState
from engine.report.text.lines import one_line
from tui import actions
from tui.screens.bridge_screen import BridgeScreen
from tui.screens.dialogs import QUITTING, DismissOnceScreen
from tui.screens.gate import GateScreen
from tui.screens.home import HomeScreen
from tui.screens.session import SessionScreen
from tui.viewmodel import kernels

_MOST = 4000


def place_of(screen: object) -> actions.Place | None:
    """The kind of a screen; ``None`` for a dialog."""
    match screen:
        case HomeScreen():
            return actions.Place.HOME
        case BridgeScreen():
            return screen.PLACE
        case _:
            return None


class Palette(CommandPalette, DismissOnceScreen[None]):
    """The palette. Closing it during a search, or twice by bouncing keys, is no error.

    Reported as for upstream (Textual 8.2.8, ``textual/command.py``, ``CommandPalette._gather_commands``): a search that starts
    or ends after the palette was closed finds no list, and the exception of its worker ends the program.
    """

    gives_way = True
    BINDINGS: ClassVar[list[BindingType]] = [*QUITTING]

    def __init__(self) -> None:
        super().__init__(placeholder="an action, a kernel or an idea …")

    VERTICAL_BREAKPOINTS = [(0, "-low"), (20, "-high")]  # noqa: RUF012  # an instance variable of Screen
    DEFAULT_CSS = """
    Palette {
        SearchIcon { display: none; }
        #--input CommandInput { padding-left: 1; }
        &.-low > Vertical { margin-top: 0; }
        &.-low #--input { border: none; height: 1; }
        &.-low CommandInput { border: none; height: 1; }
    }
    """

    @on(OptionList.OptionSelected)
    @on(Input.Submitted)
    def _chosen(self, event: OptionList.OptionSelected | Input.Submitted) -> None:
        """A second Enter, pressed before the palette has closed, chooses nothing."""
        if self._leaving:
            event.prevent_default()

    @work(exclusive=True, group=CommandPalette._GATHER_COMMANDS_GROUP)
    async def _gather_commands(self, search_value: str) -> None:
        try:
            await CommandPalette._gather_commands.__wrapped__(self, search_value)  # type: ignore[attr-defined]
        except NoMatches:
            if self.query(CommandList):
                raise

    def _start_no_matches_countdown(self, search_value: str) -> None:
        super()._start_no_matches_countdown(search_value)
        timer = self._no_matches_timer
        if timer is not None and timer._callback is not None:
            timer._callback = partial(self._while_listed, timer._callback)

    def _while_listed(self, act: Callable[[], object]) -> object:
        return act() if self.query(CommandList) else None


class ActionProvider(Provider):
    """The actions of the registry that are available now."""

    def _here(self) -> Iterator[tuple[actions.Action, IgnoreReturnCallbackType]]:
        place = place_of(self.screen)
        for action in sorted(actions.ACTIONS, key=_is_anywhere) if place is not None else ():
            if action.id == "app.command_palette" or not {place, actions.Place.ANYWHERE} & set(action.places):
                continue
            host = "app" if actions.Place.ANYWHERE in action.places else "screen"
            if host == "app" or self.screen.check_action(action.verb, ()):
                yield action, partial(self.screen.run_action, f"{host}.{action.run}")

    async def discover(self) -> Hits:
        for action, run in self._here():
            yield DiscoveryHit(_line(action), run, text=action.label, help=action.help)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for action, run in self._here():
            score = max(matcher.match(action.label), 0.8 * matcher.match(action.help))
            if score > 0:
                yield Hit(score, _line(action), run, text=action.label, help=action.help)


def _is_anywhere(action: actions.Action) -> bool:
    """The actions of the screen come first."""
    return actions.Place.ANYWHERE in action.places


def _line(action: actions.Action) -> Content:
    return Content.assemble(action.label, (f"  {actions.key_names(action.key)}", "$text-muted"))


class NodeProvider(Provider):
    """Kernels and ideas by id and title; choosing one selects it."""

    async def search(self, query: str) -> Hits:
        screen = self.screen
        if not isinstance(screen, SessionScreen | GateScreen):
            return
        matcher = self.matcher(query)
        for name, words, run in self._nodes(screen, screen.bridge.state):
            score = matcher.match(words)
            if score > 0:
                yield Hit(score, Content(words), run, text=words, help=name)

    def _nodes(
        self, screen: SessionScreen | GateScreen, state: SessionState
    ) -> Iterator[tuple[str, str, IgnoreReturnCallbackType]]:
        if isinstance(screen, SessionScreen):
            for kernel in list(state.kernels.values())[:_MOST]:
                words = f"{kernel.id} {one_line(kernels.title(state, kernel))}"
                yield "Select this kernel.", words, partial(screen.go_to, kernel.id)
        for idea in list(state.ideas.values())[:_MOST]:
            yield "Show this idea.", f"{idea.id} {one_line(idea.text.title)}", partial(screen.go_to, idea.id)

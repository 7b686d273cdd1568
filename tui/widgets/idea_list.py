"""The ideas of a round as cards; one is highlighted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from engine.domain.state import Idea, SessionState
from tui.viewmodel import ideas as cards
from tui.viewmodel.cells import BLANK, Cell, Ink, Line, line
from tui.widgets.painter import PaintedWidget


class IdeaList(ScrollView, PaintedWidget, can_focus=True, inherit_bindings=False):
    """Ideas and their status. The highlight stays on its idea when the list changes."""

    DEFAULT_CSS = """
    IdeaList {
        background: $surface;
        color: $foreground;
        scrollbar-size-vertical: 1;
        & > .idea-list--cursor { background: $block-cursor-blurred-background; }
        &:focus > .idea-list--cursor { background: $block-cursor-background; }
    }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {"idea-list--cursor"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "cursor_up", "Up", show=False, id="ideas.up"),
        Binding("down", "cursor_down", "Down", show=False, id="ideas.down"),
        Binding("home", "first", "First idea", show=False, id="ideas.first"),
        Binding("end", "last", "Last idea", show=False, id="ideas.last"),
        Binding("enter", "choose", "Choose the idea", show=False, id="ideas.choose"),
    ]

    state: reactive[SessionState | None] = reactive(None)
    round: reactive[int | None] = reactive(None)
    highlighted: reactive[str] = reactive("")
    order: reactive[tuple[str, ...]] = reactive(())

    @dataclass
    class Highlighted(Message):
        """The cursor moved to another idea."""

        idea: str

    @dataclass
    class Chosen(Message):
        """Enter or a double click on an idea."""

        idea: str

    def __init__(self, *, name: str | None = None, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self._ideas: tuple[Idea, ...] = ()
        self._lines: list[tuple[str, Line]] = []
        self._places: dict[str, tuple[int, int]] = {}

    @property
    def ideas(self) -> Sequence[str]:
        """Ids from top to bottom."""
        return tuple(idea.id for idea in self._ideas)

    def watch_state(self) -> None:
        self._arrange()

    def watch_round(self) -> None:
        self._arrange()

    def watch_order(self) -> None:
        self._arrange()

    def on_resize(self) -> None:
        """Keep the highlighted idea in sight."""
        self._arrange()
        self._scroll_to_highlight()

    def _arrange(self) -> None:
        state = self.state
        before = next((n for n, idea in enumerate(self._ideas) if idea.id == self.highlighted), 0)
        self._ideas = cards.ideas_in_order(state, self.round, self.order) if state is not None else ()
        self._lines, self._places = [], {}
        for idea in self._ideas:
            assert state is not None
            card = cards.card(state, idea, max(20, self.scrollable_content_region.width - 2))
            self._places[idea.id] = (len(self._lines), len(card))
            self._lines += [(idea.id, Line((Cell(" "), *part.cells))) for part in card]
            self._lines.append(("", BLANK))
        self.virtual_size = Size(0, len(self._lines))
        if self._ideas and self.highlighted not in self._places:
            self.highlighted = self._ideas[min(before, len(self._ideas) - 1)].id
        self.refresh()

    def watch_highlighted(self, highlighted: str) -> None:
        if highlighted in self._places:
            self._scroll_to_highlight()
            self.post_message(self.Highlighted(highlighted))
        self.refresh()

    def _scroll_to_highlight(self) -> None:
        if self.highlighted in self._places:
            top, height = self._places[self.highlighted]
            self.scroll_to_region(Region(0, top, 1, height + 1), animate=False, force=True, immediate=True)

    def render_line(self, y: int) -> Strip:
        place = self.scroll_offset.y + y
        if not self._lines and y == 1:
            empty = line(Cell("  no ideas in this round yet", Ink.FAINT))
            return self.painter.strip(empty, self.size.width, self.rich_style)
        if place >= len(self._lines):
            return Strip.blank(self.size.width, self.rich_style)
        idea, shown = self._lines[place]
        chosen = bool(idea) and idea == self.highlighted
        base = self.get_component_rich_style("idea-list--cursor") if chosen else self.rich_style
        return self.painter.strip(shown, self.size.width, base)

    def _move(self, by: int) -> None:
        if self._ideas:
            names = self.ideas
            place = (names.index(self.highlighted) if self.highlighted in names else 0) + by
            self.highlighted = names[min(max(place, 0), len(names) - 1)]

    def action_cursor_up(self) -> None:
        self._move(-1)

    def action_cursor_down(self) -> None:
        self._move(1)

    def action_first(self) -> None:
        self._move(-len(self._ideas))

    def action_last(self) -> None:
        self._move(len(self._ideas))

    def action_choose(self) -> None:
        if self.highlighted in self._places:
            self.post_message(self.Chosen(self.highlighted))

    def on_click(self, event: events.Click) -> None:
        place = self.scroll_offset.y + event.y
        idea = self._lines[place][0] if place < len(self._lines) else ""
        if idea:
            event.stop()
            self.highlighted = idea
            if event.chain == 2:
                self.post_message(self.Chosen(idea))

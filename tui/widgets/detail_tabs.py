"""The seven pages on one kernel: idea and lineage, code, diff, checks, timing, resources, log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.reactive import reactive

from engine.domain import queries
from engine.domain.errors import EspalierError
from engine.domain.state import SessionState
from engine.domain.work import WorkKey
from tui import actions
from tui.viewmodel import detail, kernels, pages, tabs
from tui.viewmodel.cells import BLANK, Line
from tui.viewmodel.lineage_lines import LineageLines
from tui.viewmodel.tabs import Tab
from tui.widgets.lines import LinesView, Panel, is_displayed

__all__ = ["DetailTabs", "Tab"]

_TEXTS_KEPT = 64


class _TabBar(Panel):
    DEFAULT_CSS = """
    _TabBar { height: 1; background: $panel; }
    """
    shown_tab: reactive[Tab] = reactive(Tab.IDEA)

    @dataclass
    class Picked(Message):
        tab: Tab

    def make_lines(self, width: int) -> Sequence[Line]:
        return (tabs.tab_line(self.shown_tab, width).line,)

    def on_click(self, event: events.Click) -> None:
        for start, end, tab in tabs.tab_line(self.shown_tab, self.size.width).places:
            if start <= event.x < end:
                self.post_message(self.Picked(tab))


class _Heading(Panel):
    DEFAULT_CSS = """
    _Heading { height: 2; background: $surface; }
    """
    state: SessionState | None = None
    kernel = ""

    def make_lines(self, width: int) -> Sequence[Line]:
        kernel = self.state.kernels.get(self.kernel) if self.state is not None else None
        return detail.heading(self.state, kernel, width) if self.state is not None and kernel is not None else (BLANK, BLANK)


class DetailTabs(Vertical):
    """Makes one page at a time, and makes it again only if its content may have changed."""

    DEFAULT_CSS = """
    DetailTabs {
        background: $surface;
        & > LinesView { height: 1fr; scrollbar-gutter: stable; }
        &:focus-within > _TabBar { background: $boost; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(number), f"show('{tab.value}')", tab.value, show=False, id=f"detail.{tab.value}")
          for number, tab in enumerate(Tab, 1)),
    ]  # fmt: skip

    state: reactive[SessionState | None] = reactive(None, repaint=False)
    kernel: reactive[str] = reactive("", repaint=False)
    other: reactive[str] = reactive("", repaint=False)
    tab: reactive[Tab] = reactive(Tab.IDEA, repaint=False)
    progress: reactive[Mapping[WorkKey, str]] = reactive(dict, repaint=False)

    def __init__(
        self,
        read_blob: Callable[[str], str],
        *,
        steered: bool = True,
        name: str | None = None,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        """``read_blob``: SHA-256 → text; raises if it is missing.

        ``steered``: whether keys act on the kernel on this screen; otherwise the pages do not mention them.
        """
        super().__init__(name=name, id=id, classes=classes)
        self._read_blob = read_blob
        self._steered = steered
        self._texts: dict[str, str] = {}
        self._lineage = LineageLines()
        self._filled: tuple[object, ...] = ()
        self._stale = False

    def compose(self) -> ComposeResult:
        yield _TabBar()
        yield _Heading()
        yield LinesView()

    def on_mount(self) -> None:
        self._fill(from_top=True)

    def on_resize(self) -> None:
        self._fill(from_top=False)

    def on_show(self) -> None:
        if self._stale:
            self._fill(from_top=True)

    def watch_state(self) -> None:
        if self._content_key() != self._filled:
            self._fill(from_top=False)

    def _content_key(self) -> tuple[object, ...]:
        """Everything that the page depends on."""
        state = self.state
        kernel = state.kernels.get(self.kernel) if state is not None else None
        if state is None or kernel is None:
            return (state is None,)
        way = queries.lineage(state, kernel.id) if self.tab is Tab.IDEA else (state.kernels.get(kernel.parent or ""),)
        marked = state.kernels.get(self.other) if self.tab is Tab.DIFF else None
        racing = (state.races, kernels.outcome(state, kernel)) if self.tab is Tab.TIMING or state.races else ()
        return (kernel, self.tab, *way, marked, *racing, kernels.incumbent(state), state.ideas.get(kernel.idea), state.notes,
                state.preparation, kernels.under_way(state, kernel))  # fmt: skip

    def watch_kernel(self) -> None:
        self._fill(from_top=True)

    def watch_other(self) -> None:
        if self.tab is Tab.DIFF:
            self._fill(from_top=True)

    def watch_tab(self, tab: Tab) -> None:
        if self.is_mounted:
            self.query_one(_TabBar).shown_tab = tab
            self._fill(from_top=True)

    def watch_progress(self) -> None:
        if self.tab is Tab.LOG:
            self._fill(from_top=False)

    def show(self, tab: Tab) -> None:
        """Show a page."""
        self.tab = Tab(tab)

    def action_show(self, tab: str) -> None:
        self.tab = Tab(tab)

    def on__tab_bar_picked(self, event: _TabBar.Picked) -> None:
        event.stop()
        self.tab = event.tab

    def _read(self, blob: str) -> str | None:
        if blob not in self._texts:
            try:
                text = self._read_blob(blob)
            except (OSError, KeyError, UnicodeDecodeError, EspalierError):
                return None
            while len(self._texts) >= _TEXTS_KEPT:
                del self._texts[next(iter(self._texts))]
            self._texts[blob] = text
        return self._texts[blob]

    def _fill(self, *, from_top: bool) -> None:
        if not self.children or not is_displayed(self):
            self._stale = True
            return
        from_top = from_top or self._stale
        self._stale = False
        self._filled = self._content_key()
        view, heading = self.query_one(LinesView), self.query_one(_Heading)
        heading.state, heading.kernel = self.state, self.kernel
        heading.refresh()
        kernel = self.state.kernels.get(self.kernel) if self.state is not None else None
        if self.state is None or kernel is None:
            view.lines = pages.empty_page("no kernel selected" if self.state and self.state.kernels else "no kernel yet")
            return
        race_key = actions.shown_key("session.race", getattr(self.app, "user_keys", {})) if self._steered else ""
        subject = tabs.PageSubject(self.state, kernel, self.other, self._read, self.progress, race_key, self._lineage)
        lines = tabs.page(self.tab, subject, max(20, view.scrollable_content_region.width or self.size.width))
        if lines != view.lines:
            view.lines = lines
        if from_top:
            view.scroll_home(animate=False)

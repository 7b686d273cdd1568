"""The session screen: kernel tree, pages on the selected kernel, running work. Works over any source."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container, Vertical
from textual.content import Content
from textual.events import DescendantFocus
from textual.message import Message
from textual.widget import Widget
from textual.widgets import ContentSwitcher, Static

from engine.domain import queries
from engine.domain.errors import JournalError
from engine.domain.state import Idea, SessionState
from engine.domain.work import WorkKey, WorkKind
from tui import actions
from tui.bridge import Bridge, Capability
from tui.layout_file import LayoutFile
from tui.screens.arrangement import ArrangedScreen
from tui.screens.compare import CompareScreen
from tui.screens.gate import GateScreen
from tui.screens.workloads import WorkloadsScreen
from tui.viewmodel import banner, footer, kernels
from tui.viewmodel.cells import Ink, Line
from tui.viewmodel.steps import start_lines
from tui.viewmodel.tree_rows import Sort
from tui.widgets.bars import SessionHeader, StageStrip, TransportBar
from tui.widgets.charts import Charts
from tui.widgets.detail_tabs import DetailTabs, Tab
from tui.widgets.find_bar import FindBar
from tui.widgets.fleet_strip import FleetStrip
from tui.widgets.kernel_tree import KernelTree
from tui.widgets.key_footer import KeyFooter
from tui.widgets.lines import LinesView
from tui.widgets.panes import LogView, NoteList, UsageView
from tui.widgets.splitter import Splitter

_PANES = ("kernel", "charts", "events", "notes", "usage")
_ORDERS = {
    Sort.BORN: "Sorted by age.", Sort.BRANCH: "Sorted by best branch.", Sort.RANK: "All kernels, sorted by speedup.",
}  # fmt: skip


_BANNER_STYLES = {
    Ink.BAD: "$text-error", Ink.WARN: "bold $text-warning", Ink.STRONG: "bold", Ink.FAINT: "$text-muted",
}  # fmt: skip


class SessionScreen(ArrangedScreen):
    """Tree at the left, a pane at the right (below on a narrow screen): kernel, charts, events, notes or usage.

    On a short screen there is room for one of them: the tree, or, once it was asked for, the pane.
    """

    PLACE: ClassVar[actions.Place] = actions.Place.SESSION
    CSS_PATH = "session.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*actions.bindings(actions.Place.SESSION)]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide"), (170, "-broad")]  # noqa: RUF012  # an instance variable of Screen

    VERTICAL_BREAKPOINTS = [(0, "-short"), (18, "-low"), (45, "-tall")]  # noqa: RUF012  # an instance variable of Screen

    @dataclass
    class HomeRequested(Message):
        """Return to the home screen."""

    def __init__(self, bridge: Bridge, clock: Callable[[], float] = time.time, layouts: LayoutFile | None = None) -> None:
        super().__init__(bridge, clock, layouts)
        self._searched: LinesView | None = None
        """The page that is searched; ``None``: the tree is filtered."""
        self._offered: frozenset[str] = frozenset()
        self._drawn: list[object] | None = None
        self._drawn_count = 0
        self._waiting: tuple[Idea, ...] = ()

    @property
    def kernel(self) -> str:
        return self.query_one(KernelTree).selected

    @property
    def marked(self) -> str:
        return self.query_one(KernelTree).marked

    def compose(self) -> ComposeResult:
        yield SessionHeader()
        banner = Static("", id="banner")
        banner.display = False  # until there is a message
        yield banner
        with Container(id="body"):
            with Vertical(id="left"):
                yield KernelTree()
                yield Charts(id="overview")
            yield Splitter()
            with ContentSwitcher(initial="kernel", id="pane"):
                yield DetailTabs(self.bridge.read_blob, steered=self.bridge.can(Capability.SUBMIT), id="kernel")
                yield Charts(id="charts")
                yield LogView(id="events")
                yield NoteList(id="notes")
                yield UsageView(id="usage")
        yield FindBar()
        yield FleetStrip()
        yield StageStrip()
        bar = TransportBar()
        bar.display = self.bridge.can(Capability.SEEK)
        yield bar
        yield KeyFooter()

    def begin(self) -> None:
        super().begin()
        self.query_one(KernelTree).focus()

    def watch_state(self, state: SessionState | None) -> None:
        if state is None:
            return
        tree = self.query_one(KernelTree)
        follow = not tree.selected and bool(state.kernels)
        self._waiting = queries.pending_ideas(state)
        tree.state = state
        self.query_one(DetailTabs).state = state
        self.query_one(SessionHeader).state = state
        self.query_one(FleetStrip).state = state
        for charts in self.query(Charts):
            charts.state = state
        self.query_one(NoteList).state = state
        self.query_one(UsageView).state = state
        if follow:
            best = kernels.incumbent(state)
            tree.reveal(best.id if best else next(iter(state.kernels)))
        self._draw_events()

    def update_live(self) -> None:
        ages = self.update_bars()
        self.query_one(DetailTabs).progress = dict(self.bridge.progress)
        tree = self.query_one(KernelTree)
        tree.start = () if self.bridge.state.kernels else self._start_lines(ages, tree.size.width or self.app.size.width)
        self.show_text(self._banner(), self.query_one("#banner", Static))
        self.update_transport()
        self._show_keys()
        self._open_gate_for_new_ideas()

    def _show_keys(self) -> None:
        if self.query_one(FindBar).is_typing:
            self.query_one(KeyFooter).keys = footer.typing_keys(searches=self._searched is not None)
            return
        bridge, tree = self.bridge, self.query_one(KernelTree)
        playing = bridge.transport.playing if bridge.transport is not None else None
        now = footer.FooterSituation(
            tree.selected, tree.marked, bridge.can(Capability.SUBMIT), bool(bridge.stopped), playing,
        )  # fmt: skip
        self.query_one(KeyFooter).keys = footer.tree_keys(self.shown, now)

    def _start_lines(self, ages: Mapping[WorkKey, float], room: int) -> tuple[Line, ...]:
        bridge = self.bridge
        return start_lines(bridge.state, bridge.start, ages, self.clock(), room, is_run=bridge.is_run)

    def _draw_events(self) -> None:
        """Update the events pane while it is shown: formatting the events of a long session takes a while."""
        if self.query_one(ContentSwitcher).current != "events":
            return
        log, entries = self.query_one(LogView), self.bridge.entries
        if entries is not self._drawn or len(entries) < self._drawn_count:
            log.show(tuple(entries), self.bridge.state_before)
        elif len(entries) > self._drawn_count:
            log.push(tuple(entries[self._drawn_count :]))
        self._drawn, self._drawn_count = entries, len(entries)  # type: ignore[assignment]  # compared by identity alone

    def _banner(self) -> Content:
        """The most important message with the keys that act on it; empty if there is none."""
        bridge = self.bridge
        transport = bridge.transport
        source = banner.Source(
            bridge.fault, bridge.stopped, bridge.can(Capability.SUBMIT), bridge.runs_here, transport is not None,
            transport is None or transport.position >= transport.length, bridge.shell_name, bridge.ships, bridge.is_run,
        )  # fmt: skip
        shown = banner.banner(bridge.state, source)
        rows = 1 if self.has_class("-short") else 2
        lines = banner.lines(shown, self.key_of, self.size.width, rows) if shown is not None else ()
        styled = [(line.text, _BANNER_STYLES[line.cells[0].ink]) for line in lines if line.cells]
        return Content("\n").join([Content.styled(*one) for one in styled])

    def _open_gate_for_new_ideas(self) -> None:
        """Open the gate once for each set of new ideas."""
        state = self.bridge.state
        if state.closed is not None or state.mode.is_autopilot or not self.bridge.can(Capability.SUBMIT):
            return
        waiting = frozenset(i.id for i in self._waiting if not i.author.is_engineer)
        if waiting - self._offered and self.is_active:
            self._offered |= waiting
            self.action_gate()

    @on(KernelTree.Selected)
    def _kernel_selected(self) -> None:
        self.call_after_refresh(self._show_kernel)  # the cursor moves first; making the pages may take longer

    def _show_kernel(self) -> None:
        kernel = self.kernel
        self.query_one(DetailTabs).kernel = kernel
        for charts in self.query(Charts):
            charts.selected = kernel
        self._show_keys()

    @on(KernelTree.Opened)
    def _kernel_opened(self) -> None:
        self._show_pane("kernel")
        self.query_one("#kernel LinesView").focus()

    def action_gate(self) -> None:
        """Show the ideas; after a writer failed, its idea."""
        failed = (work.subject for work in self.bridge.state.broken if work.kind == WorkKind.IMPLEMENT)
        self.app.push_screen(GateScreen(self.bridge, self.clock, next(failed, "")))

    def action_mark(self) -> None:
        """Mark the kernel, or unmark it."""
        tree = self.query_one(KernelTree)
        tree.marked = "" if tree.marked == tree.selected else tree.selected
        self.query_one(DetailTabs).other = tree.marked
        self._show_keys()

    def action_compare(self) -> None:
        """Compare the marked kernel, or the parent, with this one."""
        kernel = self._selected_kernel()
        if kernel is None:
            return
        marked = self.query_one(KernelTree).marked
        other = marked if marked and marked != kernel.id else kernel.parent or ""
        if other not in self.bridge.state.kernels:
            keys = (self.key_of("session.mark"), self.key_of("session.compare"))
            self.notify(f"Mark a kernel first: press {keys[0]} on it, then {keys[1]} on the other.", markup=False)
            return
        self.app.push_screen(CompareScreen(self.bridge, other, kernel.id, self.clock))

    def action_workloads(self) -> None:
        """Show every kernel's speedup on every workload."""
        self.app.push_screen(WorkloadsScreen(self.bridge, self.go_to, self.clock))

    def action_copy(self) -> None:
        """Copy the kernel's code."""
        if kernel := self._selected_kernel():
            try:
                self.app.copy_to_clipboard(self.bridge.read_blob(kernel.source))
            except JournalError as error:
                self.notify(str(error), severity="error", markup=False)
            else:
                self.notify(f"Copied {kernel.name} of {kernel.id}.", markup=False, timeout=2)

    def action_incumbent(self) -> None:
        """Select the incumbent."""
        best = kernels.incumbent(self.bridge.state)
        if best is not None:
            self.query_one(KernelTree).reveal(best.id)
        else:
            self.notify("No verified kernel yet.", markup=False)

    def go_to(self, node: str) -> None:
        """Select this kernel in the tree, or show this idea at the gate."""
        if node in self.bridge.state.kernels:
            self.query_one(KernelTree).reveal(node)
        else:
            self.app.push_screen(GateScreen(self.bridge, self.clock, node))

    def action_tab(self, tab: str) -> None:
        """Show a page of the selected kernel."""
        self._show_pane("kernel")
        self.query_one(DetailTabs).show(Tab[tab])

    def action_sort(self) -> None:
        """Use the next sort order of the tree."""
        tree = self.query_one(KernelTree)
        orders = tuple(_ORDERS)
        tree.sort = orders[(orders.index(tree.sort) + 1) % len(orders)] if tree.sort in orders else Sort.BORN
        self.notify(_ORDERS[tree.sort], markup=False, timeout=2)

    def action_filter(self) -> None:
        """Filter the tree while typing; on a focused page, search it."""
        bar, page = self.query_one(FindBar), self.focused
        if isinstance(page, LinesView):
            self._find_text("")
            self._searched = page
            bar.open("Search", "")
            bar.report("")
        else:
            if self._searched is not None:
                self._find_text("")
            self._searched = None
            bar.open("Filter", self.query_one(KernelTree).pattern)
            self._report_filter("id, title, author, outcome")
        self.call_after_refresh(self._show_keys)

    @on(FindBar.Changed)
    def _find(self, event: FindBar.Changed) -> None:
        self._find_text(event.text)

    def _find_text(self, text: str) -> None:
        if self._searched is not None:
            self.query_one(FindBar).report(self._searched.search(text))
        else:
            self.query_one(KernelTree).pattern = text
            self._report_filter("id, title, author, outcome")

    @on(LinesView.FoundMoved)
    def _found_moved(self, event: LinesView.FoundMoved) -> None:
        self._report_found(event.found)

    def _report_found(self, found: str) -> None:
        self.query_one(FindBar).report(f"{found} · n, N · Esc: clear")

    @on(FindBar.Closed)
    def _find_closed(self) -> None:
        (self._searched or self.query_one(KernelTree)).focus()
        if self._searched is None:
            self._report_filter("Esc: clear")
        else:
            self._report_found(self._searched.search_result)
        self.call_after_refresh(self._show_keys)

    def _report_filter(self, hint: str) -> None:
        found, all_kernels = self.query_one(KernelTree).matches, len(self.bridge.state.kernels)
        self.query_one(FindBar).report(f"{found} of {all_kernels} kernels · {hint}")

    def _clear_find(self) -> bool:
        """Clear the filter or the search; whether there was one."""
        bar = self.query_one(FindBar)
        if not bar.display:
            return False
        bar.action_clear()
        return True

    def action_usage(self) -> None:
        """Show model calls and their cost."""
        self._show_pane("usage")

    def action_pane(self) -> None:
        """Show the next pane, or the next chart where only one has room."""
        current = self.query_one(ContentSwitcher).current
        if current == "charts" and self.query_one("#charts", Charts).show_next():
            return
        place = _PANES.index(self.query_one(ContentSwitcher).current or _PANES[0])
        self._show_pane(_PANES[(place + 1) % len(_PANES)])

    def _show_pane(self, pane: str) -> None:
        """Show a pane; a zoomed tree returns to its place."""
        self.remove_class("-zoomed-tree")
        self.add_class("-page")
        self.set_class(pane == "charts", "-charts")
        panes = self.query_one(ContentSwitcher)
        panes.current = pane
        self._draw_events()
        self.call_after_refresh(self._focus_again, panes)

    def _focus_again(self, place: Widget) -> None:
        """If the focused widget was hidden with its pane, focus the new pane, or else the first focusable widget."""
        if self.focused is None or not self.focused.region:
            able = self.focus_chain
            self.set_focus(next((one for one in able if place in one.ancestors), able[0] if able else None))

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        """On a short screen, show what has the focus."""
        if (pane := self.query_one("#pane")) in event.widget.ancestors or isinstance(event.widget, KernelTree):
            self.set_class(pane in event.widget.ancestors, "-page")

    def on_resize(self) -> None:
        self.call_after_refresh(self._focus_again, self.query_one("#pane"))

    def _show_tree(self) -> None:
        self.remove_class("-page")
        self.query_one(KernelTree).focus()

    def action_zoom(self) -> None:
        """Show only the focused pane, or all panes; on a short screen, the other one."""
        if self.has_class("-short"):
            self._show_tree() if self.has_class("-page") else self._show_pane(
                self.query_one(ContentSwitcher).current or "kernel"
            )
            return
        self.toggle_class("-zoomed")
        self.set_class(self.has_class("-zoomed") and isinstance(self.focused, KernelTree), "-zoomed-tree")

    def action_home(self) -> None:
        """Return to the home screen; a zoom, a filter, a search or the page of a short screen ends first."""
        if self.has_class("-zoomed"):
            self.toggle_class("-zoomed")
        elif self._clear_find():
            pass
        elif self.has_class("-short") and self.has_class("-page"):
            self._show_tree()
        else:
            self.post_message(self.HomeRequested())

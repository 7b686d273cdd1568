"""The session: the kernel tree, everything about the selected kernel, and what is under way. Over any source."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container, Vertical
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import ContentSwitcher, Footer, Static

from engine.domain import queries
from engine.domain.errors import JournalError
from engine.domain.state import Idea, SessionState
from tui import actions
from tui.bridge import Bridge, Capability
from tui.screens.compare import CompareScreen
from tui.screens.dialogs import AskLine
from tui.screens.gate import GateScreen
from tui.screens.kernel_actions import KernelActionScreen
from tui.viewmodel import kernels
from tui.viewmodel.fmt import counted
from tui.viewmodel.stages import calls_by_hand
from tui.viewmodel.tree_facts import tree_facts
from tui.viewmodel.tree_rows import Sort
from tui.widgets.bars import SessionHeader, StageStrip, TransportBar
from tui.widgets.charts import Charts
from tui.widgets.detail_tabs import DetailTabs, Tab
from tui.widgets.kernel_tree import KernelTree
from tui.widgets.panes import BudgetView, LogView, NoteList

_PANES = ("kernel", "charts", "story", "notes", "budget")
_ORDERS = {Sort.BORN: "As it grew.", Sort.BRANCH: "Best branch first.", Sort.RANK: "By speed alone."}


def _undecided(state: SessionState) -> str:
    """The undecided races, and the key that repeats them with more effort."""
    found = sorted(tree_facts(state).undecided)
    best = queries.incumbent(state)
    return f"≈ {', '.join(found[:4])} undecided against {best.id}  ·  r on it spends more" if found and best is not None else ""


class SessionScreen(KernelActionScreen):
    """Tree at the left, a pane at the right (below on a narrow screen): the kernel, charts, story, notes or budget."""

    PLACE: ClassVar[actions.Place] = actions.Place.SESSION
    CSS_PATH = "session.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*actions.bindings(actions.Place.SESSION)]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide"), (170, "-broad")]  # noqa: RUF012  # an instance variable of Screen

    VERTICAL_BREAKPOINTS = [(0, "-low"), (45, "-tall")]  # noqa: RUF012  # an instance variable of Screen

    @dataclass
    class HomeRequested(Message):
        """Back to the list of sessions."""

    def __init__(self, bridge: Bridge, clock: Callable[[], float] = time.time) -> None:
        super().__init__(bridge, clock)
        self._offered: frozenset[str] = frozenset()
        self._drawn: list[object] | None = None
        self._drawn_count = 0
        self._waiting: tuple[Idea, ...] = ()
        seek, submit = bridge.can(Capability.SEEK), bridge.can(Capability.SUBMIT)
        self._note = "" if submit else "replay" if seek else "watching"

    @property
    def kernel(self) -> str:
        return self.query_one(KernelTree).selected

    @property
    def marked(self) -> str:
        return self.query_one(KernelTree).marked

    def compose(self) -> ComposeResult:
        yield SessionHeader()
        banner = Static("", id="banner")
        banner.display = False  # until there is something to say
        yield banner
        with Container(id="body"):
            with Vertical(id="left"):
                yield KernelTree()
                yield Charts(id="overview")
            with ContentSwitcher(initial="kernel", id="pane"):
                yield DetailTabs(self.bridge.read_blob, steered=self.bridge.can(Capability.SUBMIT), id="kernel")
                yield Charts(id="charts")
                yield LogView(id="story")
                yield NoteList(id="notes")
                yield BudgetView(id="budget")
        yield StageStrip()
        bar = TransportBar()
        bar.display = self.bridge.can(Capability.SEEK)
        yield bar
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        super().on_mount()
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
        self.query_one(StageStrip).state = state
        for charts in self.query(Charts):
            charts.state = state
        self.query_one(NoteList).state = state
        self.query_one(BudgetView).state = state
        if follow:
            best = queries.incumbent(state)
            tree.reveal(best.id if best else next(iter(state.kernels)))
        self._draw_story()

    def update_live(self) -> None:
        header = self.query_one(SessionHeader)
        header.note = self._note
        header.stopped = bool(self.bridge.stopped.keys() - self.bridge.state.called_off.keys())
        header.telemetry = self.bridge.device_load
        header.deadline, header.now = self.bridge.deadline, self.clock()
        progress = dict(self.bridge.progress)
        self.query_one(StageStrip).progress = progress
        self.query_one(DetailTabs).progress = progress
        self.show_text(self._banner(), self.query_one("#banner", Static))
        self.update_transport()
        self._open_gate_for_new_ideas()

    def _draw_story(self) -> None:
        """Only while it is shown: the story of a long session takes a while to write."""
        if self.query_one(ContentSwitcher).current != "story":
            return
        log, entries = self.query_one(LogView), self.bridge.entries
        if entries is not self._drawn or len(entries) < self._drawn_count:
            log.show(tuple(entries), self.bridge.state_before)
        elif len(entries) > self._drawn_count:
            log.push(tuple(entries[self._drawn_count :]))
        self._drawn, self._drawn_count = entries, len(entries)  # type: ignore[assignment]  # compared by identity alone

    def _banner(self) -> Content:
        """The most important message."""
        state, bridge = self.bridge.state, self.bridge
        waiting = self._waiting
        if bridge.fault:
            return Content.styled(f" {bridge.fault}", "$text-error")
        if state.called_off:
            words = f" {next(iter(state.called_off.values()))}  ·  i: an idea of yours  ·  R asks again"
            return Content.styled(words, "bold $text-warning")
        if bridge.stopped:
            work, reason = next(iter(bridge.stopped.items()))
            return Content.styled(f" The engine stopped at {work}: {' '.join(reason.split())}  ·  R tries again", "$text-error")
        if not bridge.can(Capability.SUBMIT):
            return Content("")
        if state.closed is not None:
            more = f"  ·  {undecided}" if (undecided := _undecided(state)) else ""
            words = f" Ended: {state.closed}.  L: more rounds  ·  i: an idea  ·  s: a kernel takes it up again{more}"
            return Content.styled(words, "$text-muted")
        if prompts := calls_by_hand(state):
            words = f" {counted(len(prompts), 'prompt')} to answer by hand  ·  Q shows {'it' if len(prompts) == 1 else 'them'}"
            return Content.styled(words, "bold $text-warning")
        if quarantined := kernels.quarantined(state):
            which = ", ".join(kernel.id for kernel in quarantined[:4])
            words = f" {which} in quarantine: not believed  ·  4 shows why · a believes · d discards"
            return Content.styled(words, "bold $text-warning")
        if state.paused is not None:
            return Content.styled(f" Paused: {state.paused}  ·  P goes on", "bold $text-warning")
        if waiting:
            words = f" {len(waiting)} idea{'s' if len(waiting) > 1 else ''} to decide on  ·  g opens the gate"
            return Content.styled(words, "bold $text-warning")
        if undecided := _undecided(state):
            return Content.styled(f" {undecided}", "$text-warning")
        return Content("")

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
        self.call_after_refresh(self._show_kernel)  # the cursor moves first, whatever the pages take

    def _show_kernel(self) -> None:
        kernel = self.kernel
        self.query_one(DetailTabs).kernel = kernel
        for charts in self.query(Charts):
            charts.selected = kernel

    @on(KernelTree.Opened)
    def _kernel_opened(self) -> None:
        self._show_pane("kernel")
        self.query_one("#kernel LinesView").focus()

    def action_gate(self) -> None:
        """Look at the ideas."""
        self.app.push_screen(GateScreen(self.bridge, self.clock))

    def action_mark(self) -> None:
        """Mark the kernel, or unmark it."""
        tree = self.query_one(KernelTree)
        tree.marked = "" if tree.marked == tree.selected else tree.selected
        self.query_one(DetailTabs).other = tree.marked

    def action_compare(self) -> None:
        """The marked kernel (or the parent) and this one."""
        kernel = self._selected_kernel()
        if kernel is None:
            return
        marked = self.query_one(KernelTree).marked
        other = marked if marked and marked != kernel.id else kernel.parent or ""
        if other not in self.bridge.state.kernels:
            self.notify("Mark another kernel first: m on it, then v here.", markup=False)
            return
        self.app.push_screen(CompareScreen(self.bridge, other, kernel.id, self.clock))

    def action_copy(self) -> None:
        """Copy the kernel's source."""
        if kernel := self._selected_kernel():
            try:
                self.app.copy_to_clipboard(self.bridge.read_blob(kernel.source))
            except JournalError as error:
                self.notify(str(error), severity="error", markup=False)
            else:
                self.notify(f"{kernel.name} of {kernel.id} is on the clipboard.", markup=False, timeout=2)

    def action_best(self) -> None:
        """Go to the best verified kernel."""
        best = queries.incumbent(self.bridge.state)
        if best is not None:
            self.query_one(KernelTree).reveal(best.id)
        else:
            self.notify("No kernel is verified yet.", markup=False)

    def go_to(self, node: str) -> None:
        """Show this kernel in the tree, or this idea at the gate."""
        if node in self.bridge.state.kernels:
            self.query_one(KernelTree).reveal(node)
        else:
            self.app.push_screen(GateScreen(self.bridge, self.clock, node))

    def action_tab(self, tab: str) -> None:
        """A page of the selected kernel."""
        self._show_pane("kernel")
        self.query_one(DetailTabs).show(Tab[tab])

    def action_sort(self) -> None:
        """The next order of the tree."""
        tree = self.query_one(KernelTree)
        orders = tuple(Sort)
        tree.sort = orders[(orders.index(tree.sort) + 1) % len(orders)]
        self.notify(_ORDERS[tree.sort], markup=False, timeout=2)

    @work
    async def action_filter(self) -> None:
        """Show only kernels that hold a text."""
        tree = self.query_one(KernelTree)
        words = "Kernels whose id, title, author or outcome holds all of these words; empty shows all."
        text = await self.app.push_screen_wait(AskLine("Filter the tree", words, initial=tree.pattern, empty=True))
        if text is not None:
            tree.pattern = text

    def action_budget(self) -> None:
        """What models were asked and what it cost."""
        self._show_pane("budget")

    def action_pane(self) -> None:
        """The next pane."""
        place = _PANES.index(self.query_one(ContentSwitcher).current or _PANES[0])
        self._show_pane(_PANES[(place + 1) % len(_PANES)])

    def _show_pane(self, pane: str) -> None:
        """Show a pane, in place of a zoomed tree."""
        self.remove_class("-zoomed-tree")
        panes = self.query_one(ContentSwitcher)
        panes.current = pane
        self._draw_story()
        self.call_after_refresh(self._focus_again, panes)

    def _focus_again(self, place: Widget) -> None:
        """If the focused widget was hidden with its pane, focus the new pane or whatever takes keys."""
        if self.focused is None or not self.focused.region:
            able = self.focus_chain
            self.set_focus(next((one for one in able if place in one.ancestors), able[0] if able else None))

    def action_zoom(self) -> None:
        """The focused pane alone, or all again."""
        self.toggle_class("-zoomed")
        self.set_class(self.has_class("-zoomed") and isinstance(self.focused, KernelTree), "-zoomed-tree")

    def action_home(self) -> None:
        """Back to the list of sessions; zoomed, back to all panes first."""
        if self.has_class("-zoomed"):
            self.action_zoom()
        else:
            self.post_message(self.HomeRequested())

"""Compares two kernels: figures in a table, and the diff of their code."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.content import Content
from textual.widgets import DataTable, Static

from engine.domain import queries
from engine.domain.model import Interval, Measurement
from engine.domain.state import Kernel, SessionState
from engine.report.text.tree import outcome
from tui import actions
from tui.bridge import Bridge
from tui.footer_key import footer_keys
from tui.screens.bridge_screen import BridgeScreen
from tui.viewmodel import fmt, kernels
from tui.widgets.detail_tabs import DetailTabs, Tab
from tui.widgets.key_footer import KeyFooter

_UNKNOWN = "—"
ComparisonRow = tuple[str, ...]
"""(name, left, right, change)."""
_BESIDE = 72
"""The width from which the figures of both kernels stand beside each other."""
_KEYS = footer_keys("compare.swap", "session.diff", "session.code", "session.timing", "compare.back")


class CompareScreen(BridgeScreen):
    """Compares ``right`` with ``left``. On a short screen the figures have the room, or the page that was asked for."""

    PLACE: ClassVar[actions.Place] = actions.Place.COMPARE
    CSS_PATH = "compare.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*actions.bindings(actions.Place.COMPARE)]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (130, "-wide")]  # noqa: RUF012  # an instance variable of Screen
    VERTICAL_BREAKPOINTS = [(0, "-short"), (18, "-low")]  # noqa: RUF012

    def __init__(self, bridge: Bridge, left: str, right: str, clock: Callable[[], float] = time.time) -> None:
        super().__init__(bridge, clock)
        self._left = left
        self._right = right

    def compose(self) -> ComposeResult:
        yield Static("", id="title")
        with Container(id="body"):
            table: DataTable[Text] = DataTable(id="numbers", cursor_type="none", zebra_stripes=False)
            yield table
            yield DetailTabs(self.bridge.read_blob, steered=False)
        yield KeyFooter(_KEYS)

    def begin(self) -> None:
        self.query_one(DetailTabs).show(Tab.DIFF)
        self.query_one("DetailTabs LinesView").focus()

    def on_resize(self) -> None:
        self.call_after_refresh(self._arrange)

    def _arrange(self) -> None:
        """Lay out the figures for the width, and focus what is shown."""
        if self.state is not None:
            self._draw(self.state)
        if self.has_class("-short") and not self.has_class("-page"):
            self.query_one("#numbers").focus()

    def watch_state(self, state: SessionState | None) -> None:
        if state is not None:
            self._draw(state)

    def _draw(self, state: SessionState) -> None:
        left, right = state.kernels.get(self._left), state.kernels.get(self._right)
        if left is None or right is None:
            return
        beside = self.app.size.width >= _BESIDE
        named = [f"{one.id} {kernels.title(state, one)}" if beside else one.id for one in (left, right)]
        title = f" {named[0]}  →  {named[1]}"
        self.query_one("#title", Static).update(Content.styled(title, "bold"))
        table = self.query_one("#numbers", DataTable)
        table.clear(columns=True)
        if not beside:
            table.show_header = False
            table.add_column("")
            for one in rows(state, left, right):
                for text in _stacked(left.id, right.id, one):
                    table.add_row(text)
        else:
            table.show_header = True
            for head in ("", left.id, right.id, "change"):
                table.add_column(Text(head, "bold"))
            for name, first, second, change in rows(state, left, right):
                table.add_row(Text(name, "dim"), Text(first), Text(second), Text(change))
        tabs = self.query_one(DetailTabs)
        tabs.state = state
        tabs.kernel, tabs.other = self._right, self._left

    def action_tab(self, tab: str) -> None:
        """Show a page of the right kernel."""
        self.add_class("-page")
        self.query_one(DetailTabs).show(Tab[tab])
        self.call_after_refresh(self.query_one("DetailTabs LinesView").focus)

    def action_swap(self) -> None:
        """Swap the two kernels."""
        self._left, self._right = self._right, self._left
        if self.state is not None:
            self._draw(self.state)

    def action_editor(self) -> None:
        """Read the right kernel's code in the editor."""
        if (kernel := self.bridge.state.kernels.get(self._right)) is not None:
            self.open_code(kernel, read_only=True)

    def action_copy(self) -> None:
        """Copy the right kernel's code."""
        kernel = self.bridge.state.kernels.get(self._right)
        if kernel is not None:
            self.app.copy_to_clipboard(self.bridge.code_of(kernel))
            self.notify(f"Copied {kernel.name} of {kernel.id}.", markup=False, timeout=2)

    def action_back(self) -> None:
        """Return to the tree; a short screen's page leads to the figures first."""
        if self.has_class("-short") and self.has_class("-page"):
            self.remove_class("-page")
            self.call_after_refresh(self._arrange)
        else:
            self.dismiss()


def _stacked(left: str, right: str, row: ComparisonRow) -> Iterator[Text]:
    """A row of the comparison in a column: its name with the change, then the figure of each kernel."""
    name, first, second, change = row
    yield Text.assemble((name, "dim"), f"  {change}" if change else "")
    for kernel, figure in ((left, first), (right, second)):
        yield Text.assemble((f"  {kernel}  ", "bold"), figure)


def rows(state: SessionState, left: Kernel, right: Kernel) -> list[ComparisonRow]:
    """The rows in which at least one kernel has a figure."""
    pair = (left, right)
    first, second = left.measurement, right.measurement
    ratios = [queries.speedup(state, kernel) for kernel in pair]
    times = [m.time_us if m else None for m in (first, second)]
    sols = [m.light if m else None for m in (first, second)]
    verifications = [kernel.verification for kernel in pair]
    found: list[ComparisonRow] = [
        ("outcome", *(_outcome(state, kernel) for kernel in pair), ""),
        (
            "time",
            *(fmt.duration_interval(t) if t else _UNKNOWN for t in times),
            _ratio_text(times[0], times[1]) if left.epoch == right.epoch else "",
        ),
        (
            f"× {queries.ranking_baseline(state)}",
            *(fmt.times(r) if r else _UNKNOWN for r in ratios),
            _interval_verdict(*ratios),
        ),
        ("SOL", *(fmt.percent(sol.fraction) if sol else _UNKNOWN for sol in sols), ""),
        ("samples", *(_samples(m) for m in (first, second)), ""),
        ("centred error", *(fmt.error(v.rel_fro) if v else _UNKNOWN for v in verifications), ""),
        ("precision class", *(v.precision_class.value if v else _UNKNOWN for v in verifications), ""),
        ("contract", left.contract.value, right.contract.value, ""),
        ("tunables", *(fmt.tunables(kernel.tunables) or _UNKNOWN for kernel in pair), ""),
        *_resources(left, right),
    ]
    return [row for row in found if {row[1], row[2]} != {_UNKNOWN}]


def _outcome(state: SessionState, kernel: Kernel) -> str:
    """How it ended; of a measurement on another device or with earlier baselines, that it is not compared."""
    words = outcome(kernel)
    return f"{words}, {kernels.NOT_COMPARED.word}" if kernels.outcome(state, kernel) is kernels.NOT_COMPARED else words


def _samples(measured: Measurement | None) -> str:
    if measured is None:
        return _UNKNOWN
    processes = "one pair" if measured.depth == "screen" else fmt.counted(measured.processes, "pair")
    return f"{measured.samples} in {processes}"


def _ratio_text(first: Interval | None, second: Interval | None) -> str:
    return f"{first.value / second.value:.2f}× as fast" if first and second and second.value > 0 else ""


def _interval_verdict(first: Interval | None, second: Interval | None) -> str:
    if first is None or second is None:
        return ""
    return f"intervals {'disjoint' if second.low > first.high or first.low > second.high else 'overlap'}"


def _resources(left: Kernel, right: Kernel) -> Iterator[ComparisonRow]:
    for name, pick in (("registers", "registers"), ("shared bytes", "shared_bytes"), ("spill bytes", "spill_bytes")):
        before, after = (max((getattr(r, pick) for r in k.resources), default=None) for k in (left, right))
        change = f"{after - before:+d}" if before is not None and after is not None and before != after else ""
        yield (name, *(_UNKNOWN if value is None else str(value) for value in (before, after)), change)

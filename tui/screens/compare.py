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
from tui.screens.steering import BridgeScreen
from tui.viewmodel import fmt, kernels
from tui.widgets.detail_tabs import DetailTabs, Tab
from tui.widgets.key_footer import KeyFooter

_UNKNOWN = "—"
ComparisonRow = tuple[str, ...]
"""(name, left, right, change)."""
_KEYS = footer_keys("compare.swap", "session.diff", "session.code", "session.timing", "compare.back")


class CompareScreen(BridgeScreen):
    """Compares ``right`` with ``left``."""

    PLACE: ClassVar[actions.Place] = actions.Place.COMPARE
    CSS_PATH = "compare.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*actions.bindings(actions.Place.COMPARE)]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (130, "-wide")]  # noqa: RUF012  # an instance variable of Screen

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

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one(DetailTabs).show(Tab.DIFF)
        self.query_one("DetailTabs LinesView").focus()

    def watch_state(self, state: SessionState | None) -> None:
        if state is not None:
            self._draw(state)

    def _draw(self, state: SessionState) -> None:
        left, right = state.kernels.get(self._left), state.kernels.get(self._right)
        if left is None or right is None:
            return
        title = f" {left.id} {kernels.title(state, left)}  →  {right.id} {kernels.title(state, right)}"
        self.query_one("#title", Static).update(Content.styled(title, "bold"))
        table = self.query_one("#numbers", DataTable)
        table.clear(columns=True)
        for head in ("", left.id, right.id, "change"):
            table.add_column(Text(head, "bold"))
        for name, first, second, change in rows(state, left, right):
            table.add_row(Text(name, "dim"), Text(first), Text(second), Text(change))
        tabs = self.query_one(DetailTabs)
        tabs.state = state
        tabs.kernel, tabs.other = self._right, self._left

    def action_tab(self, tab: str) -> None:
        """Show a page of the right kernel."""
        self.query_one(DetailTabs).show(Tab[tab])

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
        """Return to the tree."""
        self.dismiss()


def rows(state: SessionState, left: Kernel, right: Kernel) -> list[ComparisonRow]:
    """The rows in which at least one kernel has a figure."""
    pair = (left, right)
    first, second = left.measurement, right.measurement
    ratios = [queries.speedup(state, kernel) for kernel in pair]
    times = [m.time_us if m else None for m in (first, second)]
    sols = [m.light if m else None for m in (first, second)]
    verifications = [kernel.verification for kernel in pair]
    found: list[ComparisonRow] = [
        ("outcome", outcome(left), outcome(right), ""),
        ("time", *(fmt.duration_interval(t) if t else _UNKNOWN for t in times), _ratio_text(times[0], times[1])),
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


def _samples(measured: Measurement | None) -> str:
    if measured is None:
        return _UNKNOWN
    processes = "one process" if measured.depth == "screen" else fmt.counted(measured.processes, "pair")
    return f"{measured.samples} in {processes}"


def _ratio_text(first: Interval | None, second: Interval | None) -> str:
    return f"{first.value / second.value:.2f}× as fast" if first and second and second.value > 0 else ""


def _interval_verdict(first: Interval | None, second: Interval | None) -> str:
    if first is None or second is None:
        return ""
    return "disjoint" if second.low > first.high or first.low > second.high else "overlap"


def _resources(left: Kernel, right: Kernel) -> Iterator[ComparisonRow]:
    for name, pick in (("registers", "registers"), ("shared bytes", "shared_bytes"), ("spill bytes", "spill_bytes")):
        before, after = (max((getattr(r, pick) for r in k.resources), default=None) for k in (left, right))
        change = f"{after - before:+d}" if before is not None and after is not None and before != after else ""
        yield (name, *(_UNKNOWN if value is None else str(value) for value in (before, after)), change)

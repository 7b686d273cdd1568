"""The workload × kernel table: sorted by a column, the best of each marked; Enter goes to the kernel in the tree."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import ui
from support.ui import Watch, until
from textual.coordinate import Coordinate
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from engine.domain import columns, queries
from engine.journal import store
from tui.app import EspalierApp
from tui.screens.session import SessionScreen
from tui.screens.workloads import WorkloadsScreen
from tui.viewmodel import heat_map, kernels, timing
from tui.viewmodel.workload_table import MEAN, workload_table
from tui.widgets.kernel_tree import KernelTree

NAMES = ("full", "small", "decode")


@pytest.mark.slow
def test_the_table_of_a_suite_session(tmp_path: Path) -> None:
    folder = tmp_path / "session"
    chosen: list[str] = []

    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await until(pilot, lambda: ui.ended(folder))
        await pilot.press("W")
        await until(pilot, lambda: isinstance(app.screen, WorkloadsScreen) and app.screen.query_one(DataTable).row_count)
        table = app.screen.query_one(DataTable)
        assert [str(column.label) for column in table.ordered_columns] == ["kernel", "mean ▾", "full", "small"]
        await pilot.press("G")
        await until(pilot, lambda: table.cursor_coordinate.row == table.row_count - 1)
        await pilot.press("g", "end")
        await until(pilot, lambda: table.cursor_coordinate == Coordinate(0, 3))
        await pilot.press("s")
        await until(pilot, lambda: "sorted by small" in str(app.screen.query_one("#title", Static).render()))
        chosen.append(str(table.get_cell_at(Coordinate(0, 0))).split()[0])
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, SessionScreen))
        assert app.screen.query_one(KernelTree).selected == chosen[0]

    ui.run_steered(folder, act, mode="autopilot", opener=ui.FakeOpener(workloads=NAMES[:2]))
    state = store.state_of(folder)
    assert columns.leaders(state)["small"].id == chosen[0]

    for head in (MEAN, *NAMES[:2]):
        found = workload_table(state, head)
        place = found.heads.index(head)
        assert all(row.cells[place].text.count("×") == 1 for row in found.rows)
        values = [float(row.cells[place].text.split("×")[0]) for row in found.rows]
        assert values == sorted(values, reverse=True)
        marked = [row.kernel for row in found.rows if kernels.INCUMBENT in row.cells[place].text]
        best = queries.incumbent(state) if head == MEAN else columns.leaders(state)[head]
        assert best is not None
        assert marked == [best.id]
    assert workload_table(state, "no such column").sorted_by == MEAN

    chart = heat_map.heat_map(state, "k1", 0, 0, 80, 12)
    assert heat_map.has_heat_map(state)
    assert [line.text.split()[0] for line in chart.lines[1:]] == ["mean", *NAMES[:2]]
    assert all(row.text.count(kernels.INCUMBENT) == 1 for row in chart.lines[1:])
    narrow = heat_map.heat_map(state, "k1", 1, 0, 24, 12)
    assert all(line.width <= 24 for line in narrow.lines)

    shown = "\n".join(line.text for line in timing.page(state, state.kernels["k1"], 100))
    assert "workloads of the suite" in shown
    assert "worst" in shown


@pytest.mark.slow
def test_the_table_of_one_workload_says_so(tmp_path: Path) -> None:
    """Its only column was called mean, of what it did not say."""
    folder = tmp_path / "session"

    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        await until(pilot, lambda: ui.ended(folder))
        await pilot.press("W")
        await until(pilot, lambda: isinstance(app.screen, WorkloadsScreen) and app.screen.query_one(DataTable).row_count)
        table = app.screen.query_one(DataTable)
        assert [str(column.label) for column in table.ordered_columns] == ["kernel", "speedup"]
        assert "the only workload of this session" in str(app.screen.query_one("#title", Static).render())

    ui.run_steered(folder, act, mode="autopilot")

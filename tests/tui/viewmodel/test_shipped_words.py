"""Words over a shipped session on a suite: with kernels that were added after its last round, cancelled and doubted ones."""

from __future__ import annotations

from dataclasses import replace

from support.program import ROOT

from engine.domain.state import Stage
from engine.journal import store
from tui.viewmodel import charts, detail, farewell, kernels, timing, tree_cells, workload_table
from tui.viewmodel.lineage_lines import LineageLines
from tui.viewmodel.plot import WHOLE

STATE = store.state_of(ROOT / "sessions" / "gqa_decode_bf16")
COMPARED = replace(STATE, kernels={name: replace(one, epoch=STATE.epoch) for name, one in STATE.kernels.items()})
"""As if all kernels, the doubted ones too, had been measured with the latest baselines."""


def test_why_a_kernel_was_cancelled_is_not_said_twice() -> None:
    cancelled = [kernel for kernel in STATE.kernels.values() if kernel.stage is Stage.CANCELLED]
    assert {tree_cells._reason_words(kernel) for kernel in cancelled} == {"by hand"}


def test_the_pages_of_a_kernel_say_why_it_is_not_compared() -> None:
    kernel = STATE.kernels["k1"]
    assert kernels.outcome(STATE, kernel) is kernels.NOT_COMPARED
    for page in (detail.idea(STATE, kernel, 90, LineageLines()), timing.page(STATE, kernel, 90)):
        assert kernels.WHY_NOT_COMPARED in "\n".join(line.text for line in page)


def test_what_was_added_after_the_last_round_has_no_tick_of_a_further_round() -> None:
    shown = "\n".join(line.text for line in charts.speedup_chart(STATE, "", WHOLE, 80, 16).lines)
    assert "4+" in shown


def test_a_chart_says_that_doubted_kernels_are_hollow_too() -> None:
    for make in (charts.speedup_chart, charts.roofline_chart):
        legends = make(COMPARED, "", WHOLE, 80, 16).legends
        hollow = [one for one in legends if "○" in one]
        assert hollow
        assert all("○ screened or not corroborated" in one for one in hollow)


def test_the_table_of_workloads_says_what_stands_beside_a_figure() -> None:
    words = workload_table.legend(STATE)
    assert "★ best of the column" in words
    assert "dim: not corroborated" in words
    assert "k6: what a dispatch runs there" in words
    assert "3·4: tuned there, STAGES=3 WARPS=4" in words


def test_leaving_a_session_of_doubted_kernels_does_not_deny_that_they_were_verified() -> None:
    doubted = {name: kernel for name, kernel in COMPARED.kernels.items() if name in ("k4", "k13")}
    assert "no kernel whose time is corroborated" in farewell.farewell(replace(COMPARED, kernels=doubted), "s")

"""Snapshots of the tree and of every page on a kernel at three sizes; of the other panes at one.

Review a changed snapshot before accepting it with ``pytest tests/tui --snapshot-update``.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support import showcase
from support.hosts import LOG, STATE, Host
from support.ui import still
from textual.app import App

from engine.domain.work import WorkKey
from tui.widgets.bars import SessionHeader, StageStrip, TransportBar
from tui.widgets.charts import Charts
from tui.widgets.detail_tabs import DetailTabs, Tab
from tui.widgets.idea_list import IdeaList
from tui.widgets.kernel_tree import KernelTree
from tui.widgets.panes import LogView

Compare = Callable[..., bool]
SIZES = [pytest.param((80, 24), marks=pytest.mark.slow), (120, 40), pytest.param((200, 60), marks=pytest.mark.slow)]
PROGRESS = {
    WorkKey.parse(key): text
    for key, text in {
        "build:k20:0": "nvcc -cubin, 0.4 s",
        "verify:k19:0": "trial 3 of 5",
        "measure:k18:0": "pair 2 of 4",
    }.items()
}


def same(compare: Compare, app: App[None], size: tuple[int, int]) -> bool:
    return compare(app, terminal_size=size, run_before=still)


def prepare_tree(host: Host) -> None:
    tree = host.query_one(KernelTree)
    tree.selected, tree.marked = "k12", "k7"
    tree.focus()
    host.query_one(StageStrip).progress = PROGRESS


@pytest.mark.parametrize("size", SIZES)
def test_tree(snap_compare: Compare, size: tuple[int, int]) -> None:
    assert same(snap_compare, Host(SessionHeader, KernelTree, StageStrip, prepare=prepare_tree), size)


@pytest.mark.slow
def test_tree_in_the_light(snap_compare: Compare) -> None:
    app = Host(SessionHeader, KernelTree, StageStrip, prepare=prepare_tree, dark=False)
    assert same(snap_compare, app, (120, 40))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("tab", list(Tab), ids=lambda tab: tab.name.lower())
def test_details(snap_compare: Compare, tab: Tab, size: tuple[int, int]) -> None:
    def prepare(host: Host) -> None:
        host.query_one(DetailTabs).kernel = "k6" if tab is Tab.LOG else "k12"
        host.query_one(DetailTabs).show(tab)

    assert same(snap_compare, Host(lambda: DetailTabs(showcase.read_blob), prepare=prepare), size)


def test_ideas(snap_compare: Compare) -> None:
    assert same(snap_compare, Host(IdeaList, prepare=lambda host: host.query_one(IdeaList).focus() and None), (100, 30))


@pytest.mark.slow
def test_charts(snap_compare: Compare) -> None:
    def prepare(host: Host) -> None:
        host.query_one(Charts).selected = "k12"

    assert same(snap_compare, Host(Charts, prepare=prepare), (150, 36))


@pytest.mark.slow
def test_events_with_transport(snap_compare: Compare) -> None:
    def prepare(host: Host) -> None:
        host.query_one(LogView).show(LOG)
        bar = host.query_one(TransportBar)
        bar.position, bar.length, bar.speed, bar.ticks = 80, len(LOG), 4.0, (2, 9, 30, 60, 90)

    assert STATE.kernels
    assert same(snap_compare, Host(LogView, TransportBar, prepare=prepare), (100, 30))

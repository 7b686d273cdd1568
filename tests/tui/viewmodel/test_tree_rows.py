"""Rows of the tree: hierarchy, folding, filter and sort order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import builders as b
from support import showcase

from engine.domain import events as e
from engine.domain import queries
from engine.domain.folds import advance
from engine.domain.state import SessionState
from tui.viewmodel import tree_rows
from tui.viewmodel.tree_columns import SORTS, Column, sort_by
from tui.viewmodel.tree_rows import GUIDE_LEVELS, Sort, TreeShape, rows

STATE = showcase.session()[0]


def grown(parents: list[int]) -> SessionState:
    """A tree in which kernel n + 2 is a child of an earlier one."""
    events: list[e.Event] = [b.opened(), b.prepared(), b.drafted("k1")]
    events += [b.drafted(f"k{n + 2}", parent=f"k{parent % (n + 1) + 1}") for n, parent in enumerate(parents)]
    return b.fold(*events)


TREES = st.lists(st.integers(0, 10**6), max_size=40).map(grown)


def test_rows_of_the_whole_tree() -> None:
    drawn = [f"{row.guides}{row.kernel}" for row in rows(STATE)]
    assert drawn[:8] == ["k1", "├─k2", "├─k3", "│ ├─k7", "│ │ ├─k11", "│ │ ├─k12", "│ │ │ ╰─k14", "│ │ │   ├─k15"]
    assert len(drawn) == len(STATE.kernels)


def test_a_folded_kernel_hides_its_branch_and_counts_it() -> None:
    found = rows(STATE, TreeShape(folded=frozenset({"k7"})))
    row = next(r for r in found if r.kernel == "k7")
    assert row.folded
    assert row.hidden == len(queries.descendants(STATE, "k7")) - 1
    assert len(found) == len(STATE.kernels) - row.hidden


def test_a_pruned_branch_includes_all_descendants() -> None:
    state = b.fold(*b.first_round(), b.drafted("k2", parent="k1"), b.drafted("k3", parent="k2"), e.BranchPruned("k2", ""))
    assert {r.kernel: r.pruned for r in rows(state)} == {"k1": False, "k2": True, "k3": True}


def test_a_filter_shows_matches_with_their_ancestors_and_ignores_folds() -> None:
    found = rows(STATE, TreeShape(folded=frozenset({"k1"}), pattern="CHAINS=8 block"))
    assert [r.kernel for r in found] == ["k1", "k3", "k7", "k12", "k14"]
    assert [r.context for r in found] == [True, True, True, True, False]


def test_a_filter_finds_outcomes_authors_and_titles() -> None:
    def matches(pattern: str) -> set[str]:
        return {r.kernel for r in rows(STATE, TreeShape(pattern=pattern)) if not r.context}

    assert matches("build failed") == {"k6"}
    assert matches("engineer") == {"k12", "k13", "k14"}
    assert matches("fuse PASSES") == {"k9", "k10"}
    assert matches("no such thing") == set()


def test_ranked_rows_are_flat_fastest_first_then_unmeasured() -> None:
    found = rows(STATE, TreeShape(sort=Sort.RANK))
    assert {r.depth for r in found} == {0}
    assert [r.kernel for r in found][:3] == [k.id for k in queries.ranked(STATE)][:3]
    assert len(found) == len(STATE.kernels)


def test_the_branch_with_the_fastest_kernel_comes_first() -> None:
    found = [r.kernel for r in rows(STATE, TreeShape(sort=Sort.BRANCH)) if r.depth == 1]
    assert found[0] == "k3"


def test_a_time_that_is_not_corroborated_does_not_lead_its_branch_ahead() -> None:
    unsure = replace(b.measurement(9.0), corroborated=False, doubts=("disturbed",))
    state = advance(STATE, b.entries([e.KernelMeasured("k2", unsure, 1.0)], start=STATE.seq + 1))
    found = [r.kernel for r in rows(state, TreeShape(sort=Sort.BRANCH)) if r.depth == 1]
    assert found[:3] == ["k3", "k4", "k2"]


def test_a_very_deep_chain_does_not_recurse_and_bounds_its_strokes() -> None:
    state = grown(list(range(3000)))
    found = rows(state)
    assert found[-1].depth == 3000
    assert all(len(row.guides) <= 2 * GUIDE_LEVELS for row in found)


@given(TREES, st.sampled_from(Sort))
def test_every_kernel_has_one_row(state: SessionState, sort: Sort) -> None:
    assert sorted(r.kernel for r in rows(state, TreeShape(sort=sort))) == sorted(state.kernels)


@given(TREES, st.data())
def test_folding_hides_exactly_the_descendants(state: SessionState, data: st.DataObject) -> None:
    folded = data.draw(st.frozensets(st.sampled_from(sorted(state.kernels))))
    found = rows(state, TreeShape(folded=folded))
    shown = {r.kernel for r in found}
    for kernel in state.kernels.values():
        above = {k.id for k in queries.lineage(state, kernel.id)[:-1]}
        assert (kernel.id in shown) == (not above & folded)
    assert len(found) + sum(r.hidden for r in found) == len(state.kernels)


@given(TREES)
def test_the_parent_row_is_the_parent_kernel(state: SessionState) -> None:
    found = rows(state)
    for place, row in enumerate(found):
        above = tree_rows.parent_row(found, place)
        assert (found[above].kernel if above is not None else None) == state.kernels[row.kernel].parent


@pytest.mark.parametrize("sort", [order for order in Sort if order not in (Sort.BORN, Sort.BRANCH)])
def test_a_list_by_a_column_holds_every_kernel_once_those_without_a_figure_last(sort: Sort) -> None:
    found = [row.kernel for row in rows(STATE, TreeShape(sort=sort))]
    assert sorted(found) == sorted(STATE.kernels)
    measured = [STATE.kernels[name].measurement for name in found]
    if sort is Sort.TIME:
        times = [one.time_us.value for one in measured if one is not None]
        assert times == sorted(times)
        assert None not in measured[: len(times)]


@pytest.mark.slow
def test_a_column_sorts_and_once_more_returns_to_the_tree() -> None:
    for column, order in SORTS.items():
        if order is not Sort.BORN:
            assert sort_by(column, Sort.BORN) is order
            assert sort_by(column, order) is Sort.BORN
    assert sort_by(Column.NAME, Sort.BORN) is Sort.BRANCH
    assert sort_by(Column.REMARKS, Sort.TIME) is Sort.TIME

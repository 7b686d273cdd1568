"""The kernel tree with keys and mouse, and with ten thousand nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from support import builders as b
from support.hosts import STATE, Host
from textual.pilot import Pilot

from engine.domain import events as e
from engine.domain.state import SessionState
from tui.viewmodel.tree_rows import Sort
from tui.widgets.kernel_tree import KernelTree

Act = Callable[[KernelTree, Pilot[None], Host], Awaitable[None]]


def play(act: Act, *, size: tuple[int, int] = (100, 30), state: SessionState = STATE, start: str = "k1") -> None:
    def prepare(host: Host) -> None:
        tree = host.query_one(KernelTree)
        tree.selected = start
        tree.focus()

    async def run() -> None:
        host = Host(KernelTree, prepare=prepare, state=state)
        async with host.run_test(size=size, message_hook=host.keep) as pilot:
            await pilot.pause()
            await act(host.query_one(KernelTree), pilot, host)

    asyncio.run(run())


def lines(tree: KernelTree) -> list[str]:
    return [tree.render_line(y).text for y in range(tree.size.height)]


@pytest.mark.parametrize(
    ("start", "keys", "ends"),
    [
        ("k1", ["down"], "k2"),
        ("k2", ["up"], "k1"),
        ("k1", ["up"], "k1"),
        ("k12", ["home"], "k1"),
        ("k1", ["end"], "k6"),
        ("k6", ["down"], "k6"),
        ("k14", ["left", "left"], "k12"),
        ("k2", ["left"], "k1"),
        ("k3", ["right"], "k7"),
        ("k2", ["right"], "k2"),
        ("k1", ["down", "down"], "k3"),
        ("k1", ["pagedown"], "k6"),
    ],
)
def test_keys_move_the_selection(start: str, keys: list[str], ends: str) -> None:
    async def act(tree: KernelTree, pilot: Pilot[None], host: Host) -> None:
        await pilot.press(*keys)
        assert tree.selected == ends

    play(act, start=start)


@pytest.mark.slow
def test_every_move_posts_one_message() -> None:
    async def act(tree: KernelTree, pilot: Pilot[None], host: Host) -> None:
        host.posted.clear()
        await pilot.press("down", "down", "enter")
        await pilot.pause()
        assert [m.kernel for m in host.of(KernelTree.Selected) if isinstance(m, KernelTree.Selected)] == ["k2", "k3"]
        assert [m.kernel for m in host.of(KernelTree.Opened) if isinstance(m, KernelTree.Opened)] == ["k3"]

    play(act)


def test_folding_hides_the_branch_and_the_selection_moves_out_of_it() -> None:
    async def act(tree: KernelTree, pilot: Pilot[None], host: Host) -> None:
        tree.folded = frozenset({"k3"})
        assert tree.selected == "k3"
        assert "k7" not in tree.visible_kernels
        await pilot.press("right")
        assert "k7" in tree.visible_kernels

    play(act, start="k14")


@pytest.mark.slow
def test_a_click_selects_and_a_click_on_the_fold_sign_folds() -> None:
    async def act(tree: KernelTree, pilot: Pilot[None], host: Host) -> None:
        row = list(tree.visible_kernels).index("k7")
        await pilot.click(KernelTree, offset=(30, row + 1))
        assert tree.selected == "k7"
        sign = lines(tree)[row + 1].index("▾")
        await pilot.click(KernelTree, offset=(sign, row + 1))
        assert tree.folded == frozenset({"k7"})
        await pilot.click(KernelTree, offset=(30, 0))
        assert tree.selected == "k7"

    play(act)


@pytest.mark.slow
def test_a_double_click_opens() -> None:
    async def act(tree: KernelTree, pilot: Pilot[None], host: Host) -> None:
        await pilot.click(KernelTree, offset=(40, 4), times=2)
        await pilot.pause()
        assert [m.kernel for m in host.of(KernelTree.Opened) if isinstance(m, KernelTree.Opened)] == [tree.selected]

    play(act)


def test_the_header_stays_while_the_rows_scroll() -> None:
    async def act(tree: KernelTree, pilot: Pilot[None], host: Host) -> None:
        await pilot.press("end")
        shown = lines(tree)
        assert "kernel" in shown[0]
        assert "k6" in shown[-1]
        await pilot.press("home")
        assert "k1 " in lines(tree)[1]

    play(act, size=(80, 10))


def test_the_scroll_bar_does_not_touch_the_last_column() -> None:
    async def act(tree: KernelTree, pilot: Pilot[None], host: Host) -> None:
        assert tree.show_vertical_scrollbar
        assert all(text.endswith(" ") for text in lines(tree))

    play(act, size=(80, 7))


def test_filter_and_order() -> None:
    async def act(tree: KernelTree, pilot: Pilot[None], host: Host) -> None:
        tree.pattern = "chains"
        assert list(tree.visible_kernels) == ["k1", "k3", "k7", "k12", "k14", "k13"]
        matching = [row.kernel for row in tree.rows if not row.context]
        assert tree.matches == len(matching) < 6, "ancestors are shown, but do not match"
        assert tree.selected in matching
        tree.pattern = ""
        assert tree.selected in matching, "it stays selected without the filter"
        tree.pattern = "chains"
        tree.pattern = "no such kernel"
        assert "no kernel matches" in "".join(lines(tree))
        tree.pattern = ""
        tree.sort = Sort.RANK
        assert next(iter(tree.visible_kernels)) == "k14"

    play(act)


@pytest.mark.slow
def test_the_selected_kernel_stays_in_sight_in_another_order() -> None:
    async def act(tree: KernelTree, pilot: Pilot[None], host: Host) -> None:
        for kernel, order in (("k6", Sort.RANK), ("k14", Sort.BORN), ("k22", Sort.RANK), ("k1", Sort.BRANCH)):
            tree.reveal(kernel)
            tree.sort = order
            await pilot.pause()
            assert any(kernel in line.split() for line in lines(tree)), (kernel, order)

    play(act, size=(80, 10))


def test_a_click_on_the_name_of_a_column_sorts_and_another_returns_to_the_tree() -> None:
    async def act(tree: KernelTree, pilot: Pilot[None], host: Host) -> None:
        at = lines(tree)[0].index("×")
        await pilot.click(KernelTree, offset=(at, 0))
        assert tree.sort is Sort.RANK
        assert "▾" in lines(tree)[0]
        assert next(iter(tree.visible_kernels)) == "k14"
        await pilot.click(KernelTree, offset=(at, 0))
        assert tree.sort is Sort.BORN

    play(act)


def test_reveal_unfolds_the_ancestors() -> None:
    async def act(tree: KernelTree, pilot: Pilot[None], host: Host) -> None:
        tree.folded = frozenset({"k3", "k7", "k12"})
        assert "k14" not in tree.visible_kernels
        tree.pattern = "k2"
        tree.reveal("k14")
        assert tree.selected == "k14"
        assert "k14" in tree.visible_kernels

    play(act)


def test_a_new_state_keeps_selection_and_folds() -> None:
    async def act(tree: KernelTree, pilot: Pilot[None], host: Host) -> None:
        tree.folded = frozenset({"k14"})
        tree.state = replace(STATE, pinned=(*STATE.pinned, "k3"))
        assert tree.selected == "k3"
        assert "⚑" in lines(tree)[3]
        assert "k15" not in tree.visible_kernels

    play(act, start="k3")


def test_an_empty_session_names_what_comes_next() -> None:
    async def act(tree: KernelTree, pilot: Pilot[None], host: Host) -> None:
        await pilot.press("down", "enter", "left", "right")
        assert "no kernel yet" in "".join(lines(tree))

    play(act, state=b.fold(b.opened()))


def test_a_title_with_markup_and_escapes_is_shown_literally() -> None:
    text = b.m.IdeaText("[red]x[/red] \x1b[2J", "instructions", "", None)
    idea = e.IdeasProposed(0, (e.ProposedIdea("i1", text, None, b.PLAYBOOK, 1),), True)
    state = b.fold(b.opened(), b.prepared(), e.RoundOpened(0, ()), idea, e.IdeaSelected("i1"), b.drafted("k1"))

    async def act(tree: KernelTree, pilot: Pilot[None], host: Host) -> None:
        assert "[red]x[/red] ␛[2J" in lines(tree)[1]

    play(act, state=state)


@pytest.mark.slow
def test_of_ten_thousand_kernels_only_visible_rows_are_drawn() -> None:
    events: list[e.Event] = [*b.first_round()]
    events += [b.drafted(f"k{n}", parent=f"k{max(1, n - 1 - n % 7)}") for n in range(2, 10_001)]
    state = b.fold(*events)

    async def act(tree: KernelTree, pilot: Pilot[None], host: Host) -> None:
        await pilot.press("end")
        assert len(tree.rows) == 10_000
        assert tree.selected == tree.rows[-1].kernel
        assert tree.selected in lines(tree)[-1]
        await pilot.press("pageup")
        assert len(tree._cache) < 200

    play(act, state=state)

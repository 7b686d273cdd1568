"""Outputs that a module's caller holds: when they are, and what finds that a later call overwrote them."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest
import torch

from engine.trial.judge.runners import held_outputs
from engine.trial.judge.runners.held_outputs import HeldOutputs
from engine.trial.judge.runners.runner_memory import RunnerMemory
from engine.trial.runner.modules import places_of

CALLS = 60


@dataclass(frozen=True)
class Memory:
    """Outputs in this process."""

    made: tuple[torch.Tensor, ...]

    @property
    def addresses(self) -> tuple[int, ...]:
        return tuple(tensor.data_ptr() for tensor in self.made)

    def copy_to(self, output: int, target: torch.Tensor) -> None:
        target.copy_(self.made[output].view(torch.uint8))

    def elements(self, output: int, where: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        return torch.index_select(self.made[output].view(words.dtype), 0, where)

    def fill(self, output: int, count: int, byte: int) -> None:
        self.made[output].view(torch.uint8)[:count] = byte


def returned(held: HeldOutputs, made: torch.Tensor, lent: frozenset[int] = frozenset()) -> bool:
    return held.overwritten_by(Memory((made,)), [made], lent)


def test_fresh_outputs_are_never_overwritten_and_some_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_outputs, "_FOR_GOOD", 1 << 60)
    held = HeldOutputs()
    seen = []
    for _ in range(CALLS):
        assert not returned(held, torch.rand(300))
        seen.append(held.holding)
    assert seen[0]
    assert 0 < sum(seen) < CALLS


@pytest.mark.parametrize("buffers", [1, 2, 3, 40])
def test_buffers_used_in_turn_are_found(buffers: int) -> None:
    kept = [torch.empty(300) for _ in range(buffers)]
    held = HeldOutputs()
    assert any(returned(held, kept[call % buffers].uniform_()) for call in range(1000))


def test_an_output_may_be_held_until_its_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_outputs, "_FOR_GOOD", 1)
    held, kept = HeldOutputs(), torch.rand(300)
    assert not returned(held, kept)
    for _ in range(CALLS):
        assert not returned(held, torch.rand(300))
        assert held.holding
    assert returned(held, kept.uniform_())


def test_a_buffer_that_is_used_again_only_when_nobody_holds_it_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    held, kept = HeldOutputs(), torch.empty(300)
    for _ in range(CALLS):
        made = torch.rand(300) if held.holding else kept.uniform_()
        assert not returned(held, made)


def test_none_are_held_where_there_is_no_memory_for_them() -> None:
    held, kept = HeldOutputs(never=True), torch.empty(300)
    for _ in range(CALLS):
        assert not returned(held, kept.uniform_())
        assert not held.holding


def test_memory_of_inputs_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_outputs, "_HOLDING", 1 << 60)
    held, lent = HeldOutputs(), torch.zeros(300)
    assert not returned(held, lent, frozenset({0}))
    assert not held.holding
    lent.fill_(1.0)
    assert not returned(held, torch.rand(300))


def test_outputs_are_overwritten_once_they_are_held_no_longer() -> None:
    held = HeldOutputs()
    alive: list[tuple[torch.Tensor, torch.Tensor]] = []
    for _ in range(CALLS):
        made = torch.rand(300)
        alive.append((made, made.clone()))
        assert not returned(held, made)
        held.overwrite_let_go([made])
        untouched = [torch.equal(now, values) for now, values in alive]
        assert sum(untouched) == held.holding
        assert all((now != values).all() for (now, values), same in zip(alive, untouched, strict=True) if not same)


def test_lent_and_empty_outputs_are_not_overwritten() -> None:
    held, made = HeldOutputs(never=True), (torch.rand(3), torch.rand(0), torch.rand(5))
    kept = made[0].clone()
    assert not held.overwritten_by(Memory(made), made, {0})
    held.overwrite_let_go(made)
    assert torch.equal(made[0], kept)
    assert made[2].view(torch.uint8).unique().numel() == 1


def test_an_output_in_the_memory_of_a_process_is_filled() -> None:
    size = (20 << 20) + 3
    made = torch.zeros(size + 2, dtype=torch.uint8)
    RunnerMemory(os.getpid(), (made.data_ptr() + 1,)).fill(0, size, 0x5B)
    assert made[0] == made[-1] == 0
    assert bool((made[1:-1] == 0x5B).all())
    with pytest.raises(OSError, match=r".+"):
        RunnerMemory(os.getpid(), (8,)).fill(0, 4, 0)


def test_an_output_that_torch_lets_nobody_read_was_overwritten() -> None:
    """As an output of ``torch.compile`` with CUDA graphs, once its graph has run again."""
    readable, taken_back = torch.ones(3), torch.ones(3)
    torch._C._set_throw_on_mutable_data_ptr(taken_back)
    assert places_of([readable, torch.empty(0), 7]) == {readable.untyped_storage().data_ptr()}
    assert places_of([readable, taken_back]) is None

"""The memory plan: what fits, in which order settings are given up, and what is told where nothing fits."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain.memory_phases import judges_tensors
from engine.domain.memory_plan import (
    GIB,
    MOST_SLICES,
    MOST_SLOTS,
    MemoryNeeds,
    MemoryPlan,
    MemoryRoom,
    TooLarge,
    TrialProcesses,
    WorkloadMemory,
)
from engine.domain.memory_planning import is_short_of_memory, plans
from engine.domain.memory_text import plan_facts, plan_note, refusal, size

CONTEXT = 600 << 20
GB = 10**9
SOFTMAX = MemoryNeeds(GIB, 0, GIB, GIB, 2 * GIB, 2 * GIB, 0)
"""4096 x 65536 in float32."""
RELU_6GB = MemoryNeeds(6 * GIB, 0, 6 * GIB, 6 * GIB, 12 * GIB, 12 * GIB, 0)
LAYERNORM = MemoryNeeds(256 << 20, 32 << 20, 256 << 20, 256 << 20, 512 << 20, 512 << 20, 64 << 20)
CONVOLUTION = MemoryNeeds(60 << 20, 140_000, 110 << 20, 110 << 20, 221 << 20, 120 << 20, 280_000)
POOLED = MemoryNeeds(60 << 20, 140_000, 27 << 20, 221 << 20, 442 << 20, 120 << 20, 280_000)
MATMUL = MemoryNeeds(128 << 20, 0, 64 << 20, 64 << 20, 128 << 20, 256 << 20, 0)
HALF_MATMUL = MemoryNeeds(64 << 20, 0, 32 << 20, 32 << 20, 128 << 20, 256 << 20, 0)
ATTENTION = MemoryNeeds(192 << 20, 0, 64 << 20, 64 << 20, 24 * GIB, 768 << 20, 0)
"""In float64 a GPU holds all scores."""
SHIPPED = (SOFTMAX, LAYERNORM, CONVOLUTION, POOLED, MATMUL, HALF_MATMUL, ATTENTION)
SIZES = st.integers(0, 64 * GIB)
NEEDS = st.builds(MemoryNeeds, SIZES, SIZES, SIZES, SIZES, SIZES, SIZES, SIZES, SIZES, st.integers(0, 64))
ROOMS = st.builds(
    MemoryRoom, st.integers(0, 200 * GIB), st.integers(0, 500 * GIB), st.sampled_from([0, CONTEXT]), st.booleans()
)
PROCESSES = st.builds(
    TrialProcesses, st.integers(1, 4), st.integers(1, 2), st.integers(3, 8), st.lists(SIZES, max_size=3).map(tuple)
)


def on_gpu(free: float) -> MemoryRoom:
    return MemoryRoom(int(free * GB), 100 * GB, CONTEXT)


def chosen(needs: MemoryNeeds, room: MemoryRoom, processes: TrialProcesses = TrialProcesses(1, 1, 8)) -> MemoryPlan:  # noqa: B008
    found = plans(needs, room, processes)
    assert not isinstance(found, TooLarge)
    return found[0]


@pytest.mark.slow
@given(NEEDS, ROOMS, PROCESSES)
def test_what_the_judge_keeps_between_its_steps_is_part_of_the_plan(
    needs: MemoryNeeds, room: MemoryRoom, processes: TrialProcesses
) -> None:
    found = plans(needs, room, processes)
    for plan in () if isinstance(found, TooLarge) else found:
        assert judges_tensors(plan, needs) + plan.slots * needs.operands <= plan.device_bytes + 1


@pytest.mark.slow
@given(NEEDS, ROOMS, PROCESSES)
def test_a_plan_stays_within_the_room_and_each_fallback_needs_less(
    needs: MemoryNeeds, room: MemoryRoom, processes: TrialProcesses
) -> None:
    found = plans(needs, room, processes)
    if isinstance(found, TooLarge):
        assert found.needed > found.free
        return
    assert all(one.device_bytes <= room.device and one.host_bytes <= room.host for one in found)
    assert all(after.device_bytes < before.device_bytes for before, after in pairwise(found))


@pytest.mark.slow
@given(NEEDS, ROOMS, PROCESSES, st.integers(1, 100 * GIB))
def test_more_memory_never_makes_a_problem_unfit(
    needs: MemoryNeeds, room: MemoryRoom, processes: TrialProcesses, more: int
) -> None:
    if not isinstance(plans(needs, room, processes), TooLarge):
        larger = replace(room, device=room.device + more, host=room.host + more)
        assert not isinstance(plans(needs, larger, processes), TooLarge)


@pytest.mark.slow
@given(NEEDS, ROOMS)
def test_a_plan_covers_what_a_call_holds_at_least(needs: MemoryNeeds, room: MemoryRoom) -> None:
    """Lent memory, the judge's inputs and weights, and what the kernel and eager allocate beside each other."""
    found = plans(needs, room, TrialProcesses())
    for plan in () if isinstance(found, TooLarge) else found:
        held = plan.slots * needs.operands + needs.inputs + needs.weights + 2 * needs.own + 3 * room.process
        checked = plan.slots * needs.operands + needs.weights + 2 * needs.own + 3 * room.process
        exact = 0 if plan.exact_on_host else (needs.exact_inputs + needs.exact) // plan.exact_slices + needs.exact_weights
        assert plan.device_bytes >= max(held - needs.own, checked + exact)
        assert plan.host_bytes >= (needs.exact_inputs if plan.exact_on_host and not room.shared else 0)


@pytest.mark.parametrize("needs", SHIPPED)
def test_full_workloads_fit_a_card_of_16_gb(needs: MemoryNeeds) -> None:
    assert chosen(needs, on_gpu(0.95 * 16)).device_bytes <= 0.95 * 16 * GB


@pytest.mark.parametrize("free", [80, 139])
def test_large_operands_take_at_most_six_times_their_size(free: float) -> None:
    for needs in (SOFTMAX, RELU_6GB):
        assert chosen(needs, on_gpu(0.95 * free)).device_bytes <= 6 * needs.operands


def test_outputs_of_an_earlier_call_are_held_only_where_they_fit() -> None:
    """A module of x / (1 + |x|) ran out of memory on 80 GB with 12.9 GB of operands, because a third output was held."""
    softsign = replace(RELU_6GB, own=12 * GIB, exact=24 * GIB, exact_outputs=12 * GIB, rows=4096)
    assert not chosen(softsign, on_gpu(0.95 * 80)).holds_outputs
    assert chosen(HALF_MATMUL, on_gpu(0.95 * 80)).holds_outputs


def test_small_operands_are_not_saved() -> None:
    plan = chosen(HALF_MATMUL, on_gpu(0.95 * 139))
    assert (plan.slots, plan.keeps_inputs, plan.keeps_processes) == (MOST_SLOTS, True, True)
    assert not plan.frugal
    assert plan_note(plan) == ""


@pytest.mark.parametrize("needs", [LAYERNORM, CONVOLUTION, POOLED, MATMUL])
def test_less_than_a_gib_of_operands_is_not_saved_while_processes_leave_half_of_the_device(needs: MemoryNeeds) -> None:
    """Processes that end with their pair start again for each one, and their start takes longer than their calls."""
    plan = chosen(needs, on_gpu(0.95 * 80))
    assert plan.keeps_processes
    assert plan.device_bytes <= 0.95 * 80 * GB / 2
    assert not chosen(replace(needs, inputs=2 * GIB), on_gpu(0.95 * 80)).keeps_processes


def test_outputs_are_copied_to_the_host_for_six_times_the_operands_only_while_rows_are_unknown() -> None:
    """A copy there takes a second for 2 GB, and every sample makes one."""
    room = on_gpu(0.95 * 80)
    assert is_short_of_memory(plans(SOFTMAX, room, TrialProcesses()))
    assert not chosen(replace(SOFTMAX, rows=1), room, TrialProcesses()).copies_on_host
    sliced = chosen(replace(SOFTMAX, rows=4096), room, TrialProcesses())
    assert not sliced.copies_on_host
    assert sliced.device_bytes <= 6 * SOFTMAX.operands


def test_contexts_are_created_ahead_where_processes_end_with_their_pair() -> None:
    plan = chosen(RELU_6GB, on_gpu(0.95 * 80))
    assert not plan.keeps_processes
    assert (plan.baselines_ahead, plan.pairs_ahead) == (3, 2)
    kept = chosen(HALF_MATMUL, on_gpu(0.95 * 139))
    assert (kept.baselines_ahead, kept.pairs_ahead) == (0, 0)


CONVOLVED = MemoryNeeds(GIB, GIB // 4, GIB // 2, 3 * GIB, 6 * GIB, 2 * GIB, GIB // 2, GIB)
"""Its intermediate results are larger than its operands."""


def test_processes_of_several_pairs_live_together_where_no_bound_is_broken_by_them() -> None:
    """Loading them one after the other took up to 4 of 18 s of a verdict on an H200."""
    beyond = chosen(CONVOLVED, on_gpu(0.95 * 139))
    assert not beyond.keeps_processes
    assert (beyond.baselines_together, beyond.pairs_together, beyond.pairs_ahead) == (True, 2, 2)
    assert 6 * CONVOLVED.operands < beyond.device_bytes <= 0.95 * 139 * GB / 2, "no plan keeps the bound: half of the room"
    within = chosen(RELU_6GB, on_gpu(0.95 * 139))
    assert within.baselines_together
    assert within.device_bytes <= 6 * RELU_6GB.operands
    scarce = chosen(CONVOLVED, on_gpu(18.0))
    assert (scarce.pairs_together, scarce.device_bytes <= 18 * GB) == (1, True)
    kept = chosen(HALF_MATMUL, on_gpu(0.95 * 139))
    assert (kept.baselines_together, kept.pairs_together) == (False, 1), "they all live"


def test_float64_moves_to_the_host_only_where_the_device_has_no_room() -> None:
    assert chosen(ATTENTION, on_gpu(0.95 * 16)).exact_on_host
    assert not chosen(ATTENTION, on_gpu(0.95 * 80)).exact_on_host


SWISH_6GB = MemoryNeeds(6 * GIB, 0, 6 * GIB, 12 * GIB, 24 * GIB, 12 * GIB, 0, 12 * GIB)


def test_independent_rows_keep_float64_on_a_device_without_room_for_all_of_it() -> None:
    room = on_gpu(0.95 * 80)
    assert chosen(SWISH_6GB, room, TrialProcesses()).exact_on_host
    assert is_short_of_memory(plans(SWISH_6GB, room, TrialProcesses()))
    sliced = chosen(replace(SWISH_6GB, rows=4096), room, TrialProcesses())
    assert sliced.exact_slices == MOST_SLICES
    assert sliced.device_bytes <= room.device
    assert "float64 on the device, in 32 slices" in plan_facts(sliced)


def test_on_a_cpu_nothing_moves_to_the_host() -> None:
    room = MemoryRoom(12 * GIB, 12 * GIB, 96 << 20, shared=True)
    plan = chosen(replace(LAYERNORM, own=GIB), room)
    assert not plan.exact_on_host
    assert not plan.copies_on_host
    assert plan.host_bytes == 0


def test_a_refusal_names_what_is_needed_what_is_free_and_what_fits() -> None:
    room = on_gpu(0.95 * 16)
    found = plans(RELU_6GB, room, TrialProcesses())
    assert isinstance(found, TooLarge)
    small = WorkloadMemory("small", CONVOLUTION, room, plans(CONVOLUTION, room, TrialProcesses()))
    text = refusal("relu", "full", found, [small])
    assert text.startswith(f"relu with workload full does not fit: it needs {size(found.needed)} of device memory, and 15.2 GB")
    assert "choose another workload: small fits (" in text
    alone = refusal("relu", "full", found, [])
    assert found.divisor > 1
    assert alone.endswith(f"a workload with 1/{found.divisor} of its operands would fit")
    less = MemoryNeeds(*(count // found.divisor for count in (6 * GIB, 0, 6 * GIB, 6 * GIB, 12 * GIB, 12 * GIB, 0)))
    assert not isinstance(plans(less, room, TrialProcesses()), TooLarge)


def test_where_processes_alone_take_the_room_no_workload_is_offered() -> None:
    found = plans(CONVOLUTION, MemoryRoom(GIB, GIB, CONTEXT, limited=True), TrialProcesses())
    assert isinstance(found, TooLarge)
    assert "the limit set by ESPALIER_MEMORY_GB; the processes of a trial alone need more" in refusal("c", "full", found, [])


def test_facts_say_each_setting() -> None:
    tight = plan_facts(MemoryPlan(1, False, False, True, True))
    assert tight[0] == "1 slot of operands"
    assert "float64 on the host" in tight
    assert len(set(tight) & set(plan_facts(MemoryPlan(8, True, True, False, False)))) == 0

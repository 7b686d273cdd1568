"""Kernels of the playbooks for Hopper's tensor cores, on a CPU: their results, early and late, and what the emulator sees."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.emulated_gpu import EmulatedKernel, Inputs

from engine.domain.model import Workload
from engine.problem import catalog

PROBLEMS = Path(__file__).parents[2] / "problems"
ROUNDING = {"gemm_fp8": 2e-2, "gqa_decode_bf16": 2e-2, "rmsnorm_bf16": 2e-2}
"""Of results in bfloat16: in units of the root of the mean square."""
HALF = 4e-3
"""Of operands or results in float16."""
SLOW = pytest.mark.slow

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


Numbers = dict[str, int]


def emulated(
    folder: Path, file: str, settings: Numbers, tunables: Numbers, units: int, changed: tuple[str, str] = ("", ""),
    perturb: Callable[[Inputs], Inputs] = lambda inputs: inputs,
) -> EmulatedKernel:  # fmt: skip
    """A shipped kernel for the problem's first workload with other ``settings``; ``changed`` replaces a part of its code."""
    name, _, kernel = file.partition("/")
    problem = catalog.find(name)
    code = (PROBLEMS / name / "playbook" / kernel).read_text()
    assert changed[0] in code
    workload = Workload("emulated", {**problem.workloads[0].settings, **settings})
    return EmulatedKernel(problem, workload, code.replace(*changed), tunables, units, folder, perturb)


def size(m: int, n: int, k: int) -> Numbers:
    return {"m": m, "n": n, "k": k}


def image(batch: int, channels: tuple[int, int], height: int, width: int, **more: int) -> Numbers:
    given, made = channels
    return {"batch_size": batch, "in_channels": given, "out_channels": made, "height": height, "width": width, **more}


def rows(count: int, length: int) -> Numbers:
    return {"batch_size": count, "dim": length}


def cache(count: int, length: int, kv_heads: int, group: int, head_dim: int) -> Numbers:
    return {"batch_size": count, "length": length, "kv_heads": kv_heads, "group": group, "head_dim": head_dim}


OTHER_WINDOWS = image(2, (2, 96), 67, 260, kernel_size=8, padding=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "settings", "tunables", "units"),
    [
        pytest.param("matmul_fp16/warpgroup.cu", size(200, 328, 392), {}, 4, marks=SLOW),
        pytest.param("matmul_fp16/multicast.cu", size(256, 256, 192), {}, 4, marks=SLOW),
        pytest.param("matmul_fp16/staggered.cu", size(256, 512, 328), {"LAG": 1}, 2, marks=SLOW),
        pytest.param("matmul_fp16/even_tiles.cu", size(1000, 1112, 72), {}, 6, marks=SLOW),
        ("matmul_fp16/transposed.cu", size(264, 200, 392), {}, 4),
        pytest.param("matmul_fp16/transposed.cu", size(1000, 1112, 136), {"STAGES": 3, "BAND": 4}, 6, marks=SLOW),
        pytest.param("matmul_fp16/transposed.cu", size(4096, 256, 64), {}, 10, marks=SLOW),
        pytest.param("matmul_fp16/quads.cu", size(1000, 1112, 72), {}, 12, marks=SLOW),
        pytest.param("matmul_fp16/quads.cu", size(600, 328, 392), {"BAND": 8}, 4, marks=SLOW),
        pytest.param("gemm_fp8/warpgroup.cu", size(200, 512, 1024), {}, 8, marks=SLOW),
        pytest.param("gemm_fp8/one_round.cu", size(100, 640, 1536), {}, 8, marks=SLOW),
        pytest.param("gemm_fp8/one_round.cu", size(128, 768, 256), {"COLUMNS": 128, "STAGES": 4}, 8, marks=SLOW),
        pytest.param("conv2d_relu_maxpool/stride_blocks.cu", image(2, (3, 61), 101, 83), {}, 3, marks=SLOW),
        ("conv2d/stride_blocks.cu", image(2, (3, 61), 101, 83), {}, 3),
        pytest.param("conv2d/stride_blocks.cu", image(1, (3, 96), 224, 224), {"STREAM": 0}, 2, marks=SLOW),
        pytest.param("conv2d/stride_blocks.cu", image(1, (3, 130), 64, 300), {"GROUPS": 2}, 4, marks=SLOW),
        pytest.param("conv2d/stride_blocks.cu", OTHER_WINDOWS, {"GROUPS": 4}, 2, marks=SLOW),
        pytest.param("conv2d/stride_blocks.cu", image(3, (1, 40), 40, 40, kernel_size=12, padding=0), {}, 3, marks=SLOW),
        pytest.param("conv2d/whole_sectors.cu", image(2, (3, 61), 101, 83), {}, 3, marks=SLOW),
        pytest.param("conv2d/whole_sectors.cu", image(1, (3, 130), 64, 300), {"GROUPS": 2}, 4, marks=SLOW),
        pytest.param("conv2d/whole_sectors.cu", image(1, (3, 33), 60, 250), {}, 2, marks=SLOW),
        ("conv2d/separate_roles.cu", image(2, (3, 61), 101, 83), {}, 3),
        ("matmul_fp32/half_pairs.cu", size(130, 900, 131), {}, 3),
        pytest.param("matmul_fp32/half_three.cu", size(130, 300, 131), {}, 3, marks=SLOW),
        pytest.param("matmul_fp32/half_three.cu", size(200, 328, 200), {"PROMOTE": 2}, 3, marks=SLOW),
        pytest.param("matmul_fp32/half_pairs.cu", size(100, 1200, 72), {"PROMOTE": 2}, 2, marks=SLOW),
        pytest.param("matmul_fp32/half_pairs.cu", size(300, 770, 200), {"BAND": 8}, 2, marks=SLOW),
        ("matmul_fp32/rotated_bytes.cu", size(127, 193, 331), {"SKEW": 0}, 3),
        pytest.param("matmul_fp32/rotated_bytes.cu", size(200, 300, 1100), {"SPAN": 256}, 3, marks=SLOW),
        pytest.param("matmul_fp32/rotated_bytes.cu", size(300, 300, 600), {"WIDE": 128, "STAGES": 6}, 2, marks=SLOW),
        ("rmsnorm_bf16/dry_run.cu", {"tokens": 3, "hidden": 2888}, {}, 4),
        pytest.param("rmsnorm_bf16/dry_run.cu", {"tokens": 2, "hidden": 4096}, {"BLOCK": 256, "TURNS": 1}, 4, marks=SLOW),
        pytest.param("rmsnorm_bf16/dry_run.cu", {"tokens": 5, "hidden": 128}, {"BLOCK": 1024}, 4, marks=SLOW),
        ("gqa_decode_bf16/cluster_pages.cu", cache(1, 650, 1, 7, 64), {"STAGES": 16}, 16),
        pytest.param("gqa_decode_bf16/cluster_pages.cu", cache(3, 530, 1, 4, 128), {"WARPS": 4, "STAGES": 12}, 3, marks=SLOW),
        ("gqa_decode_bf16/one_wave.cu", cache(1, 1300, 1, 7, 64), {"TEAM": 4}, 2),
        pytest.param("gqa_decode_bf16/one_wave.cu", cache(2, 700, 1, 8, 128), {"PER_SM": 1, "EACH": 3}, 4, marks=SLOW),
        pytest.param("gqa_decode_bf16/one_wave.cu", cache(3, 203, 2, 8, 128), {"PER_SM": 1}, 2, marks=SLOW),
        ("softmax/one_meeting.cu", rows(2, 5001), {}, 4),
        ("softmax/more_blocks.cu", rows(2, 49156), {}, 4),
        pytest.param("softmax/more_blocks.cu", rows(2, 50257), {"HELD": 2}, 4, marks=SLOW),
        pytest.param("softmax/more_blocks.cu", rows(2, 16385), {"CLUSTER": 8, "BLOCK": 256, "HELD": 2}, 4, marks=SLOW),
        pytest.param("softmax/one_meeting.cu", rows(3, 4096), {"CLUSTER": 8, "BLOCK": 256, "ONCE": 1}, 4, marks=SLOW),
        pytest.param("softmax/rows_ahead.cu", rows(120, 4096), {"AHEAD": 104}, 4, marks=SLOW),
        pytest.param("softmax/one_meeting.cu", rows(2, 3), {"BLOCK": 256}, 4, marks=SLOW),
        pytest.param("conv2d/separate_roles.cu", image(1, (3, 96), 224, 224), {"GROUPS": 3}, 2, marks=SLOW),
        pytest.param("conv2d/separate_roles.cu", image(1, (3, 130), 64, 300), {"RING": 256}, 4, marks=SLOW),
        pytest.param("conv2d/separate_roles.cu", OTHER_WINDOWS, {"GROUPS": 3, "RING": 256}, 2, marks=SLOW),
        pytest.param("conv2d/separate_roles.cu", image(20, (2, 20), 12, 40), {"GROUPS": 3, "RING": 256}, 1, marks=SLOW),
    ],
)  # fmt: skip
def test_results_are_right(tmp_path: Path, file: str, settings: Numbers, tunables: Numbers, units: int) -> None:
    kernel = emulated(tmp_path, file, settings, tunables, units)
    limit = ROUNDING.get(file.partition("/")[0], HALF)
    assert kernel.largest_error(late=False) < limit
    assert kernel.largest_error(late=True) < limit
    assert kernel.largest_error(late=True, newest_first=True) < limit


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(("l + 128 * k, r + 2 * k", "l + 128 * k, r + 4 * k"), id="wrong descriptor", marks=SLOW),
        pytest.param(("chunk ^ lane % 8", "chunk"), id="results without swizzle", marks=SLOW),
    ],
)
def test_a_wrong_address_shows(tmp_path: Path, changed: tuple[str, str]) -> None:
    kernel = emulated(tmp_path, "matmul_fp16/transposed.cu", size(256, 256, 136), {}, 2, changed)
    assert kernel.largest_error(late=False) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(("stores_have_read<1>", "stores_have_read<3>"), id="buffer of results used again too early", marks=SLOW),
        pytest.param(("wgmma_wait<1>();\n            if (release", "if (release"), id="stage given back too early"),
    ],
)
def test_memory_that_is_overwritten_too_early_shows_late(tmp_path: Path, changed: tuple[str, str]) -> None:
    kernel = emulated(tmp_path, "matmul_fp16/transposed.cu", size(512, 512, 392), {"STAGES": 3}, 2, changed)
    assert kernel.largest_error(late=False) < HALF
    assert kernel.largest_error(late=True) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("file", ["half_pairs.cu", "half_three.cu"])
@pytest.mark.parametrize("narrow", [("LARGEST 8188.0f", "LARGEST 0.5f"), ("SMALLEST 0.015625f", "SMALLEST 100.0f")])
def test_numbers_beyond_float16_are_multiplied_in_fp32(tmp_path: Path, file: str, narrow: tuple[str, str]) -> None:
    kernel = emulated(tmp_path, f"matmul_fp32/{file}", size(130, 300, 131), {}, 3, narrow)
    assert kernel.largest_error(late=False) < 1e-5


SINGLE = 3e-5
"""Of the worst element of a product in single precision."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "tunables"),
    [
        (size(130, 500, 1100), {}),
        pytest.param(size(300, 833, 1300), {"BAND": 1, "SPAN": 256}, marks=SLOW),
        pytest.param(size(257, 600, 600), {"WIDE": 128, "STAGES": 6}, marks=SLOW),
    ],
)
def test_bytes_correct_halves(tmp_path: Path, shape: Numbers, tunables: Numbers) -> None:
    """Columns of both widths, on two clusters instead of 66."""
    two = ("CLUSTERS = 66", "CLUSTERS = 2")
    kernel = emulated(tmp_path, "matmul_fp32/rotated_bytes.cu", shape, tunables, 4, two)
    assert kernel.largest_error(late=False) < SINGLE
    assert kernel.largest_error(late=True) < SINGLE
    assert kernel.largest_error(late=True, slow=0) < SINGLE
    assert kernel.largest_error(late=False, slow=1) < SINGLE


def graded(inputs: Inputs) -> Inputs:
    """Columns of a times factors up to 1000, rows of b divided by them: each term of a sum stays as it was."""
    a, b = inputs
    assert isinstance(a, torch.Tensor)
    assert isinstance(b, torch.Tensor)
    factors = torch.logspace(-3, 3, len(b))[torch.randperm(len(b), generator=torch.Generator().manual_seed(1))]
    return a * factors, b / factors[:, None]


def half_empty(inputs: Inputs) -> Inputs:
    """Where b's rows are zero, a is large; where a's columns are zero, b is."""
    a, b = inputs
    assert isinstance(a, torch.Tensor)
    assert isinstance(b, torch.Tensor)
    third = torch.arange(len(b)) % 3
    return a * torch.tensor([1.0, 0.0, 1e5])[third], b * torch.tensor([1.0, 1e5, 0.0])[third][:, None]


@pytest.mark.slow
@pytest.mark.parametrize("perturb", [graded, half_empty])
@pytest.mark.parametrize("shape", [size(70, 100, 1100), pytest.param(size(100, 70, 300), marks=SLOW)])
def test_rotated_numbers_are_balanced_first(tmp_path: Path, shape: Numbers, perturb: Callable[[Inputs], Inputs]) -> None:
    kernel = emulated(tmp_path, "matmul_fp32/rotated_bytes.cu", shape, {}, 2, perturb=perturb)
    assert kernel.largest_error(late=False) < SINGLE


@pytest.mark.slow
def test_rotated_numbers_without_balance_show(tmp_path: Path) -> None:
    unbalanced = ("apart + (1 << 23)", "0 * apart")
    kernel = emulated(tmp_path, "matmul_fp32/rotated_bytes.cu", size(70, 100, 1100), {}, 2, unbalanced, graded)
    assert kernel.largest_error(late=False) > 1e-2


SAMPLES = {"batch_size": 3, "features": 60, "dim1": 32, "dim2": 32}
FEW_BLOCKS = ("MOST_BLOCKS 132", "MOST_BLOCKS 2")


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, pytest.param(True, marks=SLOW)])
@pytest.mark.parametrize("tunables", [{}, pytest.param({"FAR_FIRST": 0, "AT_ONCE": 4}, marks=SLOW)])
def test_blocks_that_look_ahead_are_right(tmp_path: Path, tunables: Numbers, late: bool) -> None:
    """Chunks that have no slot yet: 30 of a sample in each block, 50 slots."""
    kernel = emulated(tmp_path, "layernorm/look_ahead.cu", SAMPLES, tunables, 2, FEW_BLOCKS)
    assert kernel.largest_error(late=late) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "tunables", "blocks"),
    [
        ({"batch_size": 3, "features": 127}, {}, 4),
        pytest.param({"batch_size": 3, "features": 127}, {"BULK": 0, "LEAD": 36}, 4, marks=SLOW),
        pytest.param({"batch_size": 3, "features": 127}, {"LEAD": 36, "BIAS_HELD": 20}, 4, marks=SLOW),
        pytest.param({"batch_size": 12, "features": 61}, {"BIAS_HELD": 4}, 12, marks=SLOW),
        pytest.param({"batch_size": 2, "features": 3, "dim1": 5, "dim2": 7}, {}, 3, marks=SLOW),
    ],
)
def test_an_even_flow_is_right(tmp_path: Path, settings: Numbers, tunables: Numbers, blocks: int) -> None:
    """Pieces of chunks, biases that are loaded again, and more chunks than slots."""
    few = ("MOST_BLOCKS 132", f"MOST_BLOCKS {blocks}")
    kernel = emulated(tmp_path, "layernorm/even_flow.cu", {**SAMPLES, **settings}, tunables, blocks, few)
    assert kernel.largest_error(late=False) < 1e-5
    assert kernel.largest_error(late=True) < 1e-5
    assert kernel.largest_error(late=True, newest_first=True) < 1e-5


@pytest.mark.slow
def test_warps_that_ask_for_registers_that_a_block_has_not_are_stopped(tmp_path: Path) -> None:
    """It hung on a GPU: 232 for two warpgroups and 48 for one are more than 168 for three."""
    changed = ('"n"(MANY)', '"n"(MANY + 8)')
    kernel = emulated(tmp_path, "layernorm/even_flow.cu", {**SAMPLES, "batch_size": 1, "features": 2}, {}, 2, changed)
    with pytest.raises(AssertionError, match="all threads wait for each other"):
        kernel.largest_error(late=False)


@pytest.mark.slow
def test_a_warp_that_takes_the_round_before_last_for_its_own_shows(tmp_path: Path) -> None:
    """13 slots for four warps were wrong results and launch failures on a GPU, where copies arrive in any order."""
    unchecked = ("static_assert(STAGES % WARPS == 0", "static_assert(true")
    tunables = {"WARPS": 4, "STAGES": 13}
    kernel = emulated(tmp_path, "gqa_decode_bf16/cluster_pages.cu", cache(1, 1300, 1, 4, 64), tunables, 2, unchecked)
    assert kernel.largest_error(late=True) < ROUNDING["gqa_decode_bf16"]
    with pytest.raises(AssertionError, match="more arrivals at an mbarrier than it expects"):
        kernel.largest_error(late=True, newest_first=True)


@pytest.mark.slow
def test_samples_that_do_not_fit_are_right(tmp_path: Path) -> None:
    odd = {"batch_size": 3, "features": 61, "dim1": 25, "dim2": 27}
    assert emulated(tmp_path, "layernorm/look_ahead.cu", odd, {}, 3).largest_error(late=True) < 1e-5


ROLES = ("conv2d/separate_roles.cu", image(6, (3, 8), 24, 224), {"GROUPS": 3, "RING": 256}, 1)


@pytest.mark.slow
@pytest.mark.parametrize("slow", [0, pytest.param(1, marks=SLOW), pytest.param(3, marks=SLOW), pytest.param(4, marks=SLOW)])
def test_roles_are_right_whichever_is_slow(tmp_path: Path, slow: int) -> None:
    kernel = emulated(tmp_path, *ROLES)
    assert kernel.largest_error(late=False, slow=slow) < HALF
    assert kernel.largest_error(late=True, slow=slow) < HALF


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "slow"),
    [
        pytest.param(("if (free >= 0) wait", "if (free >= 1 << 30) wait"), 1, id="results staged before there is room"),
        pytest.param(
            ("made + 1 < DEPTH ? made + 1 : DEPTH", "false ? 0 : DEPTH"), 1, id="results of another stretch overwritten"
        ),
        pytest.param(("now - SLOTS + TAPS - 1", "now - SLOTS"), 2, id="slot filled again too early"),
    ],
)
def test_roles_that_do_not_wait_for_a_slow_one_show(tmp_path: Path, changed: tuple[str, str], slow: int) -> None:
    kernel = emulated(tmp_path, *ROLES, changed)
    assert kernel.largest_error(late=False) < HALF
    assert kernel.largest_error(late=False, slow=slow) > 0.1


@pytest.mark.slow
def test_a_kernel_that_waits_for_ever_is_stopped(tmp_path: Path) -> None:
    changed = ("if (thread < 2) barrier_arrive_at(&empty[last], thread);\n        };", "};")
    kernel = emulated(tmp_path, "matmul_fp16/transposed.cu", size(512, 512, 392), {"STAGES": 3}, 2, changed)
    with pytest.raises(AssertionError, match="all threads wait for each other"):
        kernel.largest_error(late=False)

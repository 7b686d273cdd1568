"""A verdict, a rerun on another machine, and exported modules: their texts."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest
from support import builders as b
from support import sessions

from engine.domain import corroboration
from engine.domain import work as w
from engine.domain.model import (
    Contract,
    Device,
    Dialect,
    Failure,
    FailureKind,
    Interval,
    Measurement,
    Operand,
    Role,
    Signature,
    SpeedOfLight,
    Verification,
)
from engine.domain.model import PrecisionClass as P
from engine.domain.regimes import Regime
from engine.domain.state import SessionState
from engine.export import module, plan_host
from engine.problem import catalog
from engine.report.text import comparison
from engine.report.text import verdict as v
from engine.report.text.head_to_head import head_to_head, head_to_head_lines
from engine.report.text.lines import Span, plain
from engine.toolchain import plan as launch_plan
from engine.toolchain.kernel_file import KernelCode
from engine.toolchain.resolution import resolve

DEVICE = Device("cpu", 0, "two cores", "x86_64", 2, 1 << 25, 1 << 33, "torch 2.6")
SUBJECT = v.VerdictSubject("softmax", "a.cpp", Dialect.CPP, Contract.HOST, DEVICE, "small", "limits")
VERIFIED = Verification("class:fp32 (10x)", 12, 1e-7, 1e-6, 2e-5, 1e-7, 1e-6, P.FP32, "3/3")


def measured(ratio: Interval, name: str = "eager") -> Measurement:
    light = SpeedOfLight("bytes", 50.0, 0.5)
    return Measurement("precise", Interval(100.0, 99.0, 101.0), 40, 5, {name: ratio}, light, True, ("cold caches",))


def test_a_measured_kernel_has_all_its_figures() -> None:
    found = v.verdict(SUBJECT, VERIFIED, w.Measured(measured(Interval(2.0, 1.9, 2.1)), 1.0), v.StageSeconds(0.1, 0.2, 0.3))
    assert (found.status, found.reason, found.measured) == ("measured", None, True)
    assert found.time_us == v.TimeFigures(100.0, 99.0, 101.0, 40)
    assert found.speedup == {"eager": Interval(2.0, 1.9, 2.1), "eager_tf32": None, "compile": None}
    assert found.speed_of_light == SpeedOfLight("bytes", 50.0, 0.5)


UNSURE = ("not corroborated: every process pair was disturbed by CPU contention",)


def doubted(ratio: Interval, name: str = "eager") -> Measurement:
    return replace(measured(ratio, name), corroborated=False, doubts=UNSURE)


def test_a_time_that_is_not_corroborated_is_given_and_marked() -> None:
    found = v.verdict(SUBJECT, VERIFIED, w.Measured(doubted(Interval(2.0, 1.9, 2.1)), 1.0), v.StageSeconds())
    assert (found.status, found.reason, found.measured, found.doubted) == ("not_corroborated", UNSURE[0], False, True)
    assert (found.corroborated, found.quarantined, found.doubts, found.conditions) == (False, False, UNSURE, ("cold caches",))
    assert (found.time_us is not None, found.speedup["eager"], found.claimed) == (True, Interval(2.0, 1.9, 2.1), None)


def test_figures_of_a_quarantined_kernel_are_claims_and_no_results() -> None:
    suspected = w.Suspected(("names files", *UNSURE), VERIFIED, doubted(Interval(9.0, 8.9, 9.1)), 1.0)
    found = v.verdict(SUBJECT, VERIFIED, suspected, v.StageSeconds())
    assert (found.status, found.quarantined, found.doubts) == ("quarantined", True, ("names files", *UNSURE))
    assert (found.time_us, set(found.speedup.values()), found.speed_of_light) == (None, {None}, None)
    assert found.claimed is not None
    assert found.claimed.speedup["eager"] == Interval(9.0, 8.9, 9.1)


def test_a_doubt_without_words_has_words() -> None:
    """In journals from before doubts were recorded they are among the conditions, or nowhere."""
    bare = replace(measured(Interval(2.0, 1.9, 2.1)), corroborated=False)
    assert v.verdict(SUBJECT, None, w.Measured(bare, 1.0), v.StageSeconds()).doubts == (corroboration.UNEXPLAINED,)
    former = replace(bare, conditions=("cold caches", "not corroborated: hidden time"))
    assert corroboration.of_measurement(former) == ("not corroborated: hidden time",)


@pytest.mark.parametrize(("ratio", "words"), [(2.0, "not corroborated"), (1.0, "no measurable difference"), (0.5, "slower")])
def test_a_doubted_claim_wins_no_comparison(ratio: float, words: str) -> None:
    found = head_to_head("b.cpp", doubted(Interval(ratio, ratio * 0.9, ratio * 1.1), "other"))
    assert (found.difference, found.corroborated, found.doubts) == (words, False, UNSURE)


@pytest.mark.parametrize("kind", list(FailureKind))
def test_a_failure_has_a_status_and_no_figures(kind: FailureKind) -> None:
    found = v.verdict(SUBJECT, None, w.Failed(Failure(kind, "one\nreason")), v.StageSeconds(0.1))
    assert (found.status, found.reason, found.measured) == (kind.value, "one reason", False)
    assert (found.verification, found.time_us, found.speed_of_light) == (None, None, None)
    assert set(found.speedup.values()) == {None}


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (Interval(1.2, 1.1, 1.3), "faster"),
        (Interval(0.8, 0.7, 0.9), "slower"),
        (Interval(1.01, 0.99, 1.03), "no measurable difference"),
        (Interval(1.0, 1.0, 1.0), "no measurable difference"),
    ],
)
def test_a_comparison_claims_no_more_than_its_interval(ratio: Interval, words: str) -> None:
    found = head_to_head("b.cpp", measured(ratio, "other"))
    assert found.difference == words
    assert words in plain(
        head_to_head_lines(v.verdict(SUBJECT, None, w.Measured(measured(ratio), 1.0), v.StageSeconds()), found)[0]
    )


def test_a_speedup_that_is_not_measurable_is_told_with_its_reason_instead_of_a_figure() -> None:
    wide = Interval(3.97, 0.0803, 197.0)
    (row,) = (words for name, words in v.measurement_rows(measured(wide)) if name == "speedup")
    assert isinstance(row, Span)
    assert row.text.startswith("not measurable [0.0803, 197] over eager: too few process pairs")
    found = head_to_head("b.cpp", measured(wide, "other"))
    words = plain(head_to_head_lines(v.verdict(SUBJECT, None, w.Measured(measured(wide), 1.0), v.StageSeconds()), found)[0])
    assert "3.97" not in words
    assert "no measurable difference" not in words


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> SessionState:
    return sessions.whole(tmp_path_factory.mktemp("verdict") / "s")


@pytest.mark.parametrize(
    ("kernel", "final", "carries", "words"),
    [
        ("k2", w.Measured(measured(Interval(2.0, 1.9, 2.1)), 1.0), True, "speedup reproduced"),
        ("k2", w.Measured(measured(Interval(1.0, 0.9, 1.1)), 1.0), False, "no significant speedup here"),
        ("k2", w.Measured(measured(Interval(0.5, 0.4, 0.6)), 1.0), False, "slower here"),
        ("k2", w.Measured(doubted(Interval(2.0, 1.9, 2.1)), 1.0), False, UNSURE[0]),
        ("k2", w.Suspected(("too fast",), None, measured(Interval(9.0, 8.9, 9.1))), False, "quarantined: too fast"),
        ("k2", w.Failed(Failure(FailureKind.MISMATCH, "wrong")), False, "mismatch: wrong"),
        ("k4", w.Measured(measured(Interval(2.0, 1.9, 2.1)), 1.0), None, "no significant speedup recorded"),
    ],
)
def test_a_rerun_compares_recorded_and_measured_speedups(
    state: SessionState, kernel: str, final: w.Measured | w.Suspected | w.Failed, carries: bool | None, words: str
) -> None:
    found = comparison.compare(state, state.kernels[kernel], final)
    assert found.carries_over is carries
    assert words in plain(comparison.lines(state, [found])[1])


@pytest.mark.parametrize(
    ("recorded", "here", "carries", "words"),
    [
        (1.5, 1.4, True, "speedup reproduced"),
        (1.5, 0.9, False, "slower here"),
        (1.0, 1.4, None, "no significant speedup recorded"),
    ],
)
def test_a_rerun_compares_what_decides_where_both_have_it(
    state: SessionState, recorded: float, here: float, carries: bool | None, words: str
) -> None:
    kernel = state.kernels["k2"]
    assert kernel.measurement is not None
    both = replace(kernel, measurement=replace(kernel.measurement, sustained=b.sustained(recorded)))
    final = w.Measured(replace(measured(Interval(2.0, 1.9, 2.1)), sustained=b.sustained(here)), 1.0)
    found = comparison.compare(state, both, final, Regime.SUSTAINED)
    assert (found.carries_over, found.regime) == (carries, "sustained")
    assert words in plain(comparison.lines(replace(state, kernels={**state.kernels, "k2": both}), [found])[1])
    without = comparison.compare(state, kernel, final, Regime.SUSTAINED)
    assert (without.carries_over, without.regime) == (True, "single")


SIGNATURE = Signature(
    (Operand("x", Role.INPUT, (128, 256), "float32"), Operand("out", Role.OUTPUT, (128, 256), "float32")), {"DIM": 256}
)
PLAN = """#include "problem.h"
// @tune BLOCK = 64, 128
// @workspace 4096 zero
// @tensormap tiles = x tile(16, 32) swizzle(128)
// @launch first(tiles, workspace+256) grid(DIM / BLOCK) block(BLOCK) shared(65536) cluster(2)
// @launch second(x, out) grid(4) block(32) cooperative
extern "C" __global__ void first(const __grid_constant__ CUtensorMap tiles, float* s) {}
extern "C" __global__ void second(const float* x, float* out) {}
"""


def test_a_plan_is_exported_as_host_code_that_launches_it() -> None:
    plan = resolve(launch_plan.parse_plan(PLAN), {"DIM": 256, "BLOCK": 64, "SMS": 132}, SIGNATURE.operands)
    text = plan_host.launcher(plan, ["x", "out"])
    for words in (
        "cudaMemsetAsync(workspace, 0, 4096ull, stream)",
        "encode(&map_tiles, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, operands[0]",
        "dims[] = {256ull, 128ull}, strides[] = {1024ull}",
        "tile[] = {32u, 16u}",
        "CU_TENSOR_MAP_SWIZZLE_128B",
        "config.gridDim = dim3(4, 1, 1)",
        "cudaFuncAttributeMaxDynamicSharedMemorySize, 65536",
        "clusterDim.x = 2",
        "cooperative = 1",
        "void* arguments[] = {&map_tiles, &argument1}",
        "(char*)workspace + 256ull",
        "void* argument1 = operands[1]",
    ):
        assert words in text, words
    assert text.index("first") < text.index("second")


@pytest.mark.parametrize(
    ("name", "text", "dialect", "contract"),
    [
        ("a.cpp", 'extern "C" void launch(const float* x, float* out, void*) {}\n', Dialect.CPP, Contract.HOST),
        ("quotes.cpp", "// '''\\\nextern \"C\" void launch() {}\\", Dialect.CPP, Contract.HOST),
        ("a.cu", PLAN, Dialect.CUDA, Contract.PLAN),
    ],
)
def test_a_module_is_python_and_contains_the_code_unchanged(name: str, text: str, dialect: Dialect, contract: Contract) -> None:
    problem = catalog.find("softmax")
    device = replace(DEVICE, kind="cuda", arch="sm_90a", units=132) if dialect is Dialect.CUDA else DEVICE
    given = module.Exported(
        problem, problem.workloads[0], SIGNATURE, device, KernelCode(text, dialect, contract, name), {"BLOCK": 64},
        ("best\nof all",),
    )  # fmt: skip
    made = module.module(given)
    tree = ast.parse(made)
    values = {s.targets[0].id: s.value for s in tree.body if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name)}
    assert ast.literal_eval(values["KERNELS"])[0].startswith(text.rstrip())
    assert "'-DBLOCK=64'" in made
    assert ("-gencode=arch=compute_90a,code=sm_90a" in made) is (dialect is Dialect.CUDA)
    assert made.startswith("# best of all\n")
    assert {"Model", "ModelNew"} <= {s.name for s in tree.body if isinstance(s, ast.ClassDef)}
    assert "@" not in made.replace("@tune", "").replace("@workspace", "").replace("@tensormap", "").replace("@launch", "")


def test_a_python_kernel_is_exported_unchanged_with_its_tunables() -> None:
    text = '"""Docs."""\nfrom __future__ import annotations\nimport torch\nclass ModelNew(torch.nn.Module): ...\n'
    problem = catalog.find("softmax")
    kernel = KernelCode(text, Dialect.PYTHON, Contract.MODULE, "a.py")
    made = module.module(module.Exported(problem, problem.workloads[0], SIGNATURE, DEVICE, kernel, {"BLOCK": 64}, ()))
    assert made.splitlines()[:4] == ['"""Docs."""', "from __future__ import annotations", "BLOCK = 64", "import torch"]

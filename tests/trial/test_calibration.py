"""The correctness check of every shipped problem, at small sizes: trivial models are rejected, eager passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from trial.ground import tiny

from engine.domain.errors import ProblemError
from engine.domain.model import PrecisionClass, Workload
from engine.problem import catalog
from engine.problem.counting.operation_count import family
from engine.problem.reference import Reference
from engine.trial.judge.inputs.cases import Case, default_class, make_case, output_dtype, output_names
from engine.trial.judge.inputs.perturbations import COPIES, GRADED, OWN, SPECIAL, UNEQUAL, WIDE_ONLY
from engine.trial.judge.tolerance import calibration
from engine.trial.judge.tolerance.calibration import Calibration, calibrate
from engine.trial.judge.tolerance.correctness_check import describe_check, try_trivial_models
from engine.trial.judge.tolerance.known_calibrations import shape_text
from engine.trial.judge.tolerance.perturbed_calibration import LEAST_PERTURBED
from engine.trial.judge.tolerance.reference_on_case import ReferenceOnCase

SIZES: Mapping[str, Mapping[str, int]] = {
    "softmax": {"batch_size": 8, "dim": 1000},
    "layernorm": {"batch_size": 2, "features": 8, "dim1": 16, "dim2": 16},
    "matmul_fp32": {"m": 48, "n": 64, "k": 256},
    "matmul_fp16": {"m": 48, "n": 64, "k": 256},
    "conv2d": {"batch_size": 1, "height": 48, "width": 48},
    "conv2d_relu_maxpool": {"batch_size": 1, "height": 48, "width": 48},
    "attention_fp16": {"batch_size": 1, "heads": 2, "sequence": 96, "head_dim": 32},
    "rmsnorm_bf16": {"tokens": 8, "hidden": 256},
    "gqa_decode_bf16": {"batch_size": 2, "length": 96, "kv_heads": 2, "group": 4, "head_dim": 32},
    "gemm_fp8": {"m": 32, "n": 128, "k": 256},
}


def test_every_shipped_problem_is_covered() -> None:
    assert set(SIZES) == set(catalog.shipped_names())


@pytest.fixture(scope="module", params=SIZES)
def judged(request: pytest.FixtureRequest) -> tuple[Reference, Calibration]:
    problem = catalog.find(request.param)
    full = problem.workload("full")
    assert full is not None
    reference = Reference(problem, Workload("tiny", {**full.settings, **SIZES[request.param]}))
    return reference, calibrate(reference, "class")


def test_trivial_models_are_rejected(judged: tuple[Reference, Calibration]) -> None:
    check = describe_check(*judged)
    assert check.verifiable, [n for n in check.nulls if n.passed]
    assert len(check.nulls) >= 4
    assert all(n.rel_fro > check.rel_fro_limit for n in check.nulls)
    assert 0 < check.rel_fro_limit < 0.02
    assert OWN in judged[1].distributions
    assert len(judged[1].distributions) >= 4


def test_the_default_class_is_eager_s(judged: tuple[Reference, Calibration]) -> None:
    reference, _ = judged
    half = reference.problem.name.endswith(("fp16", "bf16", "fp8"))
    assert default_class(reference) is (PrecisionClass.HALF if half else PrecisionClass.FP32)


@pytest.mark.parametrize(
    ("operator", "on_a_gpu"),
    [("addmm", PrecisionClass.FP32), ("convolution", PrecisionClass.TF32), ("_cudnn_rnn", PrecisionClass.TF32)],
)
def test_what_cudnn_computes_is_tf32_on_a_gpu(operator: str, on_a_gpu: PrecisionClass, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = catalog.find("matmul_fp32")
    reference = Reference(problem, problem.workloads[0])
    monkeypatch.setattr(reference, "ops_used", lambda: frozenset({family(operator)}))
    assert default_class(reference) is PrecisionClass.FP32
    monkeypatch.setattr(reference, "device", torch.device("cuda"))
    assert default_class(reference) is on_a_gpu


def test_eager_passes_on_every_distribution(judged: tuple[Reference, Calibration]) -> None:
    reference, calibration = judged
    for distribution in calibration.distributions:
        case = make_case(reference, distribution)
        eager = reference.call(case.model, case.inputs)
        rounded = [e.to(o.dtype) for e, o in zip(case.expected, eager, strict=True)]
        for outputs in (eager, rounded):
            own = (
                None if distribution == OWN else ReferenceOnCase(reference, case)
            )  # what is perturbed differs from case to case
            ruling = calibration.policy.rule(outputs, case.expected, output_names(reference), distribution, own)
            assert ruling.passed, (distribution, ruling)


def test_the_next_lower_precision_is_rejected(judged: tuple[Reference, Calibration]) -> None:
    reference, calibration = judged
    case = make_case(reference, OWN)
    wide = default_class(reference) is PrecisionClass.FP32
    if output_dtype(reference) is torch.bfloat16:
        outputs = [e.to(torch.float8_e4m3fn).to(torch.bfloat16) for e in case.expected]
    else:
        narrow = torch.bfloat16
        low = reference.call(reference.cast(case.model, narrow), reference.cast_inputs(case.inputs, narrow))
        outputs = [o.to(torch.float32 if wide else torch.float16) for o in low]
    assert not calibration.policy.rule(outputs, case.expected, output_names(reference), OWN).passed


def test_one_element_off_by_its_scale_is_rejected(judged: tuple[Reference, Calibration]) -> None:
    reference, calibration = judged
    for distribution in set(calibration.distributions) - set(SPECIAL):
        case = make_case(reference, distribution)
        outputs = [e.clone() for e in case.expected]
        flat = outputs[0].view(-1)
        flat[flat.numel() // 3] += float(flat.abs().max() + outputs[0].std()) or 1.0
        assert not calibration.policy.rule(outputs, case.expected, output_names(reference), distribution).passed


MODEL = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x):
        return {}
def get_inputs():
    return [torch.rand(64, 1024)]
def get_init_inputs():
    return []
"""


def returning(folder: Path, expression: str) -> Reference:
    file = folder / "reference.py"
    file.write_text(MODEL.format(expression))
    problem = catalog.find(str(file))
    return Reference(problem, next(iter(problem.workloads)), "cpu")


def test_a_hold_out_is_judged_on_the_workload_s_perturbed_inputs() -> None:
    problem = catalog.find(str(Path(__file__).parent / "problems" / "scaled_softmax"))
    main = calibrate(Reference(problem, Workload("full", {"rows": 8, "width": 64})), "class")
    tail = Reference(problem, Workload("tail", {"rows": 3, "width": 71}))
    found = calibrate(tail, "class", main)
    assert set(found.distributions) == set(main.distributions) - {UNEQUAL, GRADED, COPIES}
    assert len(found.distributions) > 10
    for distribution in found.distributions:
        assert found.policy.limit(distribution).rel_fro >= main.policy.limit(distribution).rel_fro
        case = make_case(tail, distribution)
        outputs = tail.call(case.model, case.inputs)
        again = ReferenceOnCase(tail, case)
        assert found.policy.rule(outputs, case.expected, output_names(tail), distribution, again).passed, distribution


@pytest.mark.slow
def test_limits_are_per_output_for_a_single_number(tmp_path: Path) -> None:
    reference = returning(tmp_path, "(torch.relu(x), (x * x).mean())")
    calibration = calibrate(reference, "class")
    assert calibration.policy.limit(OWN).rel_fro < 1e-5
    assert len(calibration.distributions) >= 4
    echoes = []
    for distribution in calibration.distributions:
        case = make_case(reference, distribution)
        x = case.inputs[0]
        assert isinstance(x, torch.Tensor)
        echo = [x.clone(), (x * x).mean()]
        echoes.append(calibration.policy.rule(echo, case.expected, output_names(reference), distribution).passed)
    assert not all(echoes)
    assert not any(n.passed for n in try_trivial_models(reference, calibration))


@pytest.mark.parametrize("expression", ["x.sum()", "(x * x).mean()", "x.mean().expand(32)", "(x * 1e6).sum().long()"])
def test_the_constant_model_of_a_single_number_uses_another_input(tmp_path: Path, expression: str) -> None:
    reference = returning(tmp_path, expression)
    assert describe_check(reference, calibrate(reference, "class")).verifiable


@pytest.mark.parametrize(
    "expression",
    [
        "torch.nn.functional.one_hot(x.argmax(1), 1024)",
        "x > x.flatten().topk(3).values[-1]",
        "torch.zeros(600, 1024).index_add(0, torch.tensor([0, 599]), x[:2])",
        "torch.cat([x[:2, :3], x[:2, :8] * 0, x[:2, :1]], 1)",
    ],
)
def test_an_output_of_mostly_zeros_is_verifiable(tmp_path: Path, expression: str) -> None:
    """Zeros in the middle are right where a tile of zeros stands for one that is not written."""
    reference = returning(tmp_path, expression)
    found = [n for n in try_trivial_models(reference, calibrate(reference, "class")) if n.name == "one tile unwritten"]
    assert [n.passed for n in found] == [False]


@pytest.mark.parametrize(("expression", "tells"), [("x.sum() * 0 + 3", True), ("x[0, 0]", False)])
def test_an_output_independent_of_the_input_is_not_verifiable(tmp_path: Path, expression: str, tells: bool) -> None:
    reference = returning(tmp_path, expression)
    found = {n.name: n.passed for n in try_trivial_models(reference, calibrate(reference, "class"))}
    assert found["other input's output"] is found["constant"] is tells


@pytest.mark.parametrize(
    ("expression", "floored"),
    [("x.sum()", [True]), ("x[0, :15]", [True]), ("x[0, :16]", [False]), ("(x.sum(), x)", [True, False])],
)
def test_outputs_with_few_elements_get_a_lower_bound_on_their_error(
    tmp_path: Path, expression: str, floored: list[bool]
) -> None:
    reference = returning(tmp_path, expression)
    limit = calibrate(reference, "class").policy.limit(OWN)
    alone = limit.by_output or (limit,)
    assert [one.rel_fro > 0.99e-5 and one.max_scaled > 0.99e-5 for one in alone] == floored
    assert limit.rel_fro < 1e-3


def test_notes_from_calling_the_reference_are_reported(tmp_path: Path) -> None:
    told = calibrate(returning(tmp_path, "x.mul_(2)"), "class").notes
    assert [n for n in told if "in place" in n] == [
        "the reference changes x in place; kernels may do so too, and only what forward returns is compared"
    ]


@pytest.mark.slow
def test_sequential_summation_passes_with_outliers() -> None:
    problem = catalog.find(str(Path(__file__).parent / "problems" / "scaled_softmax"))
    reference = Reference(problem, problem.workloads[0], "cpu")
    calibration = calibrate(reference, "class")
    worst = 0.0
    for _ in range(200):
        case = make_case(reference, "outliers")
        (x,) = case.inputs
        assert isinstance(x, torch.Tensor)
        scaled = x * dict(case.model.named_parameters())["weight"].detach()
        e = torch.exp(scaled - scaled.amax(1, keepdim=True))
        total = torch.from_numpy(np.cumsum(e.numpy(), axis=1, dtype=np.float32)[:, -1:].copy())
        ruling = calibration.policy.rule([e / total], case.expected, ("out",), "outliers")
        assert ruling.passed, ruling.errors
        worst = max(worst, ruling.errors.rel_fro)
    assert worst < calibration.policy.limit("outliers").rel_fro < 1e-3  # half precision is an error of more than that


CHANCE = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(torch.tanh(x), {p}, training=True)


def get_inputs():
    return [torch.randn(32, 64)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(("p", "refused"), [(0.5, True), (1e-9, False)])
def test_a_reference_with_random_output_is_rejected(tmp_path: Path, p: float, refused: bool) -> None:
    file = tmp_path / "chance.py"
    file.write_text(CHANCE.replace("{p}", str(p)))
    problem = catalog.find(str(file))
    reference = Reference(problem, problem.workloads[0], "cpu")
    if not refused:
        assert any("random numbers" in note for note in calibrate(reference, "class").notes)
        return
    with pytest.raises(ProblemError, match=r"chance: the reference's output depends on random numbers .* eval mode"):
        calibrate(reference, "class")


DOUBLE = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a, b):
        return {computed}


def get_inputs():
    return [torch.randn(48, 512, dtype=torch.float64), torch.randn(512, 48, dtype=torch.float64)]


def get_init_inputs():
    return []
"""


def _product_in_loops(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(len(a), b.shape[1], dtype=a.dtype)
    for k in range(len(b)):
        total += a[:, k, None] * b[k]
    return total


def _softmax_in_loops(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    powers = torch.exp(a - a.amax(1, keepdim=True)) + 0 * b.sum()
    total = torch.zeros(len(a), 1, dtype=a.dtype)
    for k in range(a.shape[1]):
        total += powers[:, k, None]
    return powers / total


@pytest.mark.slow
@pytest.mark.parametrize(
    ("computed", "in_loops"),
    [("a @ b", _product_in_loops), ("torch.softmax(a, 1) + 0 * b.sum()", _softmax_in_loops)],
)
def test_float64_may_be_summed_in_another_order_and_not_in_fp32(
    tmp_path: Path, computed: str, in_loops: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> None:
    """The reference itself has no error there."""
    file = tmp_path / "double.py"
    file.write_text(DOUBLE.replace("{computed}", computed))
    problem = catalog.find(str(file))
    reference = Reference(problem, problem.workloads[0], "cpu")
    policy, names = calibrate(reference, "class").policy, output_names(reference)
    for distribution in (OWN, "alternating", "x0.001"):
        case = make_case(reference, distribution)
        a, b = case.inputs
        assert isinstance(a, torch.Tensor)
        assert isinstance(b, torch.Tensor)
        on_case = ReferenceOnCase(reference, case)
        assert policy.rule([in_loops(a, b)], case.expected, names, distribution, on_case).passed
        in_fp32 = in_loops(a.float(), b.float()).double()
        assert not policy.rule([in_fp32], case.expected, names, distribution, on_case).passed


QUANTISED = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        scale = x.abs().amax(1, keepdim=True) / 127
        return torch.clamp(torch.round(x / scale), -127, 127).to(torch.int8), scale


def get_inputs():
    return [torch.randn(64, 640)]


def get_init_inputs():
    return []
"""


@pytest.mark.slow
def test_a_quantisation_may_multiply_by_the_reciprocal(tmp_path: Path) -> None:
    """Some numbers lie so close to a half that the last place of the scale decides."""
    file = tmp_path / "quantised.py"
    file.write_text(QUANTISED)
    problem = catalog.find(str(file))
    reference = Reference(problem, problem.workloads[0], "cpu")
    policy, names = calibrate(reference, "class").policy, output_names(reference)
    for _ in range(8):
        for distribution in (OWN, "sunk", "ties"):
            case = make_case(reference, distribution)
            (x,) = case.inputs
            assert isinstance(x, torch.Tensor)
            largest = x.abs().amax(1, keepdim=True)
            outputs = [torch.clamp(torch.round(x * (127 / largest)), -127, 127).to(torch.int8), largest / 127]
            assert policy.rule(outputs, case.expected, names, distribution, ReferenceOnCase(reference, case)).passed


KEPT = """
import torch
from torch import nn

calls = [0]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.source = torch.Generator()

    def forward(self, x):
        calls[0] += 1
        return torch.tanh(x){more}


def get_inputs():
    return [torch.randn(32, 64)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("more", [" + {size} * torch.rand(x.shape, generator=self.source)", " * (1 + {size} * calls[0])"])
@pytest.mark.parametrize("size", [1.0, 0.02])
def test_a_reference_whose_calls_differ_on_the_same_inputs_is_rejected(tmp_path: Path, more: str, size: float) -> None:
    file = tmp_path / "kept.py"
    file.write_text(KEPT.replace("{more}", more.replace("{size}", str(size))))
    problem = catalog.find(str(file))
    with pytest.raises(ProblemError, match=r"kept: two calls of the reference on the same inputs differ by .* indices"):
        calibrate(Reference(problem, problem.workloads[0], "cpu"), "class")


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ("[torch.linspace(0, 1, 64)]", "the same for every seed: a kernel that remembers"),
        ("[torch.rand(64), torch.ones(64)]", "inputs that are the same for every seed: y"),
        ("[torch.rand(64)]", ""),
    ],
)
def test_inputs_that_ignore_the_seed_are_told(tmp_path: Path, inputs: str, told: str) -> None:
    text = MODEL.format("x + y" if "ones" in inputs else "x * 2").replace("[torch.rand(64, 1024)]", inputs)
    file = tmp_path / "reference.py"
    file.write_text(text.replace("forward(self, x)", "forward(self, x, y)") if "ones" in inputs else text)
    reference = Reference(catalog.find(str(file)), Workload("full", {}))
    notes = describe_check(reference, calibrate(reference, "class")).notes
    assert any(told in note for note in notes) if told else not any("every seed" in note for note in notes)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("torch.rand(1024)", ""),
        ("torch.ones(1024)", ""),  # varied
        ("torch.linspace(1, 2, 1024)", "parameters that are the same for every seed: weight: a kernel may contain"),
        ("torch.linspace(1, 2, 1024), requires_grad=False", "parameters that are the same for every seed: weight: a kernel"),
    ],
)
def test_parameters_that_ignore_the_seed_are_told(tmp_path: Path, made: str, told: str) -> None:
    constructor = f"    def __init__(self):\n        super().__init__()\n        self.weight = nn.Parameter({made})\n"
    file = tmp_path / "reference.py"
    file.write_text(MODEL.format("x * self.weight").replace("    def forward", f"{constructor}    def forward"))
    reference = Reference(catalog.find(str(file)), Workload("full", {}))
    notes = describe_check(reference, calibrate(reference, "class")).notes
    assert any(told in note for note in notes) if told else not any("every seed" in note for note in notes)


WITHOUT_FLOAT64 = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        scale = {torch.float32: 1.0}[x.dtype]
        y = torch.matmul(x, x.t()) * scale
        return y - y.mean()


def get_inputs():
    return [torch.rand(32, 8192) + 8]


def get_init_inputs():
    return []
"""


@pytest.mark.slow
def test_where_float64_is_missing_another_order_of_summation_is_right(tmp_path: Path) -> None:
    """Compared with float32, eager's own error is zero: the limit comes from inputs moved in the last place."""
    file = tmp_path / "theirs.py"
    file.write_text(WITHOUT_FLOAT64)
    reference = Reference(catalog.find(str(file)), Workload("full", {}))
    calibration = calibrate(reference, "class")
    case = make_case(reference, OWN)
    assert case.note
    x = next(t for t in case.inputs if isinstance(t, torch.Tensor))
    parts = [torch.matmul(x[:, i::7], x[:, i::7].t()) for i in range(7)]
    total = sum(parts[1:], parts[0])

    def passes(output: torch.Tensor) -> bool:
        return calibration.policy.rule([output], case.expected, output_names(reference), OWN).passed

    assert passes(total - total.mean())
    assert not passes(total - parts[0] - (total - parts[0]).mean())
    assert not passes(case.expected[0] * 1.1)


@pytest.mark.parametrize(("expression", "cases"), [("x * 2", 2), ("50 + x / 1000", 8)])
def test_where_outputs_differ_by_little_more_than_rounding_more_cases_are_tried(
    tmp_path: Path, expression: str, cases: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What TF32 did to a logarithm of sums depended on the weights: a model was refused against itself, 20 × over its limit."""
    drawn: list[str] = []

    def counted(reference: Reference, distribution: str) -> Case:
        drawn.append(distribution)
        return make_case(reference, distribution)

    monkeypatch.setattr(calibration, "make_case", counted)
    calibrate(returning(tmp_path, expression), "class")
    assert drawn.count(OWN) == cases


def test_large_inputs_have_common_limits() -> None:
    # With one outlier in every other row the reference is exact; intermediate results of 1000 are still rounded to 6e-5.
    found = calibrate(Reference(tiny(), Workload("full", {"rows": 64, "width": 512})), "class").policy
    limits = {name: found.limit(name) for name in WIDE_ONLY if name in found.classes}
    assert len(limits) > 2
    assert len(set(limits.values())) == 1
    assert limits["outliers"].rel_fro >= 1e-4


def test_a_slow_reference_is_tried_on_fewer_inputs_and_a_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = Reference(catalog.find("softmax"), Workload("tiny", {"batch_size": 4, "dim": 8}))
    assert len(calibrate(reference, "class").distributions) > 8
    monkeypatch.setattr(calibration, "_PERTURBED_S", 0.0)
    found = calibrate(reference, "class")
    assert 1 <= len(found.distributions) <= 1 + LEAST_PERTURBED
    assert any("kinds of perturbed inputs are tried" in note for note in found.notes)


def test_shapes_of_a_million_are_told_apart() -> None:
    """A kept calibration is found by this text; a reason names the shape with it."""
    assert [shape_text(Workload("a", {"n": n})) for n in (1_048_575, 1_048_577)] == ["n=1048575", "n=1048577"]


@pytest.mark.parametrize("size", ["1e200", "1e-200"])
def test_large_and_small_float64_outputs_are_judged_like_others(tmp_path: Path, size: str) -> None:
    file = tmp_path / "double.py"
    file.write_text(MODEL.format(f"(x - 0.5).double().cumsum(-1) * {size}"))
    reference = Reference(catalog.find(str(file)), Workload("full", {}))
    found = calibrate(reference, "class")
    case = make_case(reference, OWN)
    (right,) = reference.call(case.model, case.inputs)
    (x,) = case.inputs
    assert isinstance(x, torch.Tensor)
    loop = torch.from_numpy(np.add.accumulate(x.double().numpy() - 0.5, axis=-1) * float(size))

    def passes(output: torch.Tensor) -> bool:
        asked = ReferenceOnCase(reference, case)
        return found.policy.rule([output], case.expected, output_names(reference), OWN, asked).passed

    assert passes(right)
    assert passes(loop)
    assert not passes(-right)
    assert not passes(torch.zeros_like(right))
    assert not passes(right.mul(1 + 1e-6))
    assert describe_check(reference, found).verifiable

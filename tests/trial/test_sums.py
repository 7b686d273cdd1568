"""Sums in plain loops are honest fp32, in whatever operator; sums of lower precision, or that lack terms, are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from engine.domain.errors import ProblemError
from engine.domain.model import PrecisionClass
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.judge.inputs import cases
from engine.trial.judge.inputs.cases import make_case
from engine.trial.judge.inputs.perturbations import SPECIAL, perturb
from engine.trial.judge.outputs.relative_errors import RelativeErrors
from engine.trial.judge.rounding import sums
from engine.trial.judge.rounding.arithmetic import round_to_tf32
from engine.trial.judge.tolerance.calibration import calibrate
from engine.trial.judge.tolerance.policies import make_policy
from engine.trial.judge.tolerance.reference_on_case import ReferenceOnCase

Sum = Callable[[torch.Tensor], torch.Tensor]
"""Of each row, as a column."""
functional = nn.functional


def in_order(terms: torch.Tensor) -> torch.Tensor:
    """One element after the other in fp32."""
    return torch.from_numpy(np.cumsum(terms.numpy(), axis=1, dtype=np.float32)[:, -1:].copy())


def tree(terms: torch.Tensor) -> torch.Tensor:
    return terms.sum(1, keepdim=True)


def to_bf16(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.bfloat16().float()


# ---------------------------------------------------------------- how they are computed


def running_sum(terms: torch.Tensor, dim: int) -> np.ndarray:
    return np.cumsum(terms.numpy(), axis=dim, dtype=np.float32).take(-1, axis=dim)


@pytest.mark.parametrize("columns", [1, 2, 3, 255, 257, 600])
@pytest.mark.parametrize("dim", [0, 1])
def test_loops_add_in_order(columns: int, dim: int) -> None:
    x = torch.rand((5000, columns) if dim == 0 else (columns, 5000))
    every = torch.arange(5000)
    two, four = (sum(running_sum(x.index_select(dim, every[lane::n]), dim) for lane in range(n)) for n in (2, 4))
    expected = [running_sum(x, dim), running_sum(x.flip(dim), dim), two, four]
    for (found,), right in zip(sums.in_loops(lambda: [x.sum(dim)]), expected, strict=True):
        assert np.array_equal(found.numpy(), right)


@pytest.mark.parametrize(("running", "in_numpy"), [(torch.cumsum, np.cumsum), (torch.cumprod, np.cumprod)])
def test_a_running_sum_or_product_is_computed_in_order_and_in_blocks(
    running: Callable[[torch.Tensor, int], torch.Tensor], in_numpy: Callable[..., np.ndarray]
) -> None:
    x = torch.rand(3, 5000) / 100 + 1
    for dim in (0, 1):
        found = [outputs for (outputs,) in sums.in_loops(lambda: [running(x, dim)])]  # noqa: B023
        assert len(found) == 8
        assert np.array_equal(found[0].numpy(), in_numpy(x.numpy(), axis=dim, dtype=np.float32))
        for one in found[1:]:
            torch.testing.assert_close(one, found[0], rtol=1e-4, atol=0)
    assert len({one.numpy().tobytes() for one in found}) == 8
    assert not [*sums.in_loops(lambda: [running(x.double(), 1)])]
    assert [len(outputs[0]) for outputs in sums.in_loops(lambda: [running(x[:0], 0)])] == [0] * 8


def test_one_order_of_a_running_product_says_little_of_another() -> None:
    """A few rows are most of its error: one product of 32 in each block errs over twice as much here as one in order."""
    x = torch.from_numpy(np.random.default_rng(74).uniform(0.9, 1.1, (64, 1024)).astype(np.float32))
    right = x.double().cumprod(1)

    def error(outputs: torch.Tensor) -> float:
        return float((outputs - right).square().mean().sqrt())

    inside = torch.from_numpy(np.cumprod(x.numpy().reshape(64, 32, 32), axis=2))
    carried = torch.from_numpy(np.cumprod(inside[:, :, -1].numpy(), axis=1))
    kernel = error((inside * torch.cat([torch.ones(64, 1), carried[:, :-1]], 1)[:, :, None]).reshape(64, 1024))
    in_order, *in_blocks = (error(outputs) for (outputs,) in sums.in_loops(lambda: [x.cumprod(1)]))
    assert kernel > 2 * in_order
    assert kernel < 2 * max(in_blocks)
    assert 2 * max(in_blocks) < 1e-5 * float(right.std())


def test_a_long_sum_is_of_several_loops() -> None:
    x = torch.rand(70_001)
    for (found,) in sums.in_loops(lambda: [x.sum()]):
        torch.testing.assert_close(found.double(), x.double().sum(), rtol=1e-4, atol=0)


EXPRESSIONS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda x: x.sum(),
    lambda x: x.sum((0, 2), keepdim=True),
    lambda x: x.mean((1, 2)),
    lambda x: x.mean(),
    lambda x: x.var(-1),
    lambda x: x.std((0, 2), correction=0, keepdim=True),
    lambda x: torch.linalg.vector_norm(x, dim=1),
    lambda x: torch.softmax(x, 1),
    lambda x: torch.log_softmax(x, 0),
    lambda x: torch.logsumexp(x, 2),
    lambda x: functional.layer_norm(x, x.shape[1:]),
    lambda x: functional.group_norm(x, 3),
    lambda x: functional.batch_norm(x, None, None, training=True),
    lambda x: functional.mse_loss(x, x * 1.5),
)
UNTOUCHED: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda x: x.sum(0, dtype=torch.float64),
    lambda x: x.double().mean(),
    lambda x: x.to(torch.int32).sum(),
    lambda x: x[:0].sum(0),
    lambda x: x[0, 0, 0].sum(),
)


@pytest.mark.parametrize("computed", [sums.in_loops, sums.of_tf32_terms])
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_kind_of_sum_is_computed_in_the_other_way(
    expression: Callable[[torch.Tensor], torch.Tensor],
    computed: Callable[[Callable[[], sums.Outputs]], Iterator[sums.Outputs]],
) -> None:
    """It comes near, and is another number: means and norms were the library's own."""
    x = torch.rand(4, 6, 5000) + 0.5
    found = [output for (output,) in computed(lambda: [expression(x)])]
    for output in found:
        torch.testing.assert_close(output, expression(x), rtol=2e-3, atol=2e-3)
        assert not torch.equal(output, expression(x)) or output.numel() == 1, "a single number can be equal by luck"


@pytest.mark.parametrize("expression", UNTOUCHED)
def test_other_sums_stay_as_they_are(expression: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.randn(4, 6, 50)
    found = [output for (output,) in sums.in_loops(lambda: [expression(x)])]
    assert all(torch.equal(output, expression(x)) for output in found)


@pytest.mark.parametrize("computed", [sums.in_loops, sums.of_tf32_terms])
def test_nothing_is_computed_again_where_there_are_no_sums(
    computed: Callable[[Callable[[], sums.Outputs]], Iterator[sums.Outputs]],
) -> None:
    calls = []
    assert list(computed(lambda: [torch.relu(torch.ones(3)), torch.ones(2, 2) @ torch.ones(2, 2), calls.append(1)])) == []
    assert len(calls) == 1


# ---------------------------------------------------------------- what is judged by them

WIDTH = 8192
MODEL = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x):
        return {}
def get_inputs():
    return [torch.rand(16, 8192)]
def get_init_inputs():
    return []
"""


def softmax(x: torch.Tensor, add: Sum) -> torch.Tensor:
    e = torch.exp(x - x.amax(1, keepdim=True))
    return e / add(e)


def logsumexp(x: torch.Tensor, add: Sum) -> torch.Tensor:
    most = x.amax(1, keepdim=True)
    return most + torch.log(add(torch.exp(x - most)))


def rms_norm(x: torch.Tensor, add: Sum) -> torch.Tensor:
    return x * torch.rsqrt(add(x * x) / WIDTH + 1e-5)


def mean(x: torch.Tensor, add: Sum) -> torch.Tensor:
    return add(x) / WIDTH


def layer_norm(x: torch.Tensor, add: Sum) -> torch.Tensor:
    apart = x - add(x) / WIDTH
    return apart * torch.rsqrt(add(apart * apart) / WIDTH + 1e-5)


PROBLEMS: Mapping[str, Callable[[torch.Tensor, Sum], torch.Tensor]] = {
    "torch.softmax(x, 1)": softmax,
    "torch.logsumexp(x, 1, keepdim=True)": logsumexp,
    "x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-5)": rms_norm,
    "x.mean(1, keepdim=True)": mean,
    "nn.functional.layer_norm(x, (8192,))": layer_norm,
}


def in_chunks(rounded: Callable[[torch.Tensor], torch.Tensor]) -> Sum:
    """An accumulator that is rounded after each of 64 chunks, which are added in fp32."""

    def add(terms: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(len(terms), 1)
        for chunk in terms.chunk(64, 1):
            total = rounded(total + tree(chunk))
        return total

    return add


HONEST: Mapping[str, Sum] = {
    "in a tree": tree,
    "forwards": in_order,
    "backwards": lambda terms: in_order(terms.flip(1)),
    "two threads": lambda terms: in_order(terms[:, : WIDTH // 2]) + in_order(terms[:, WIDTH // 2 :]),
    "two lanes": lambda terms: in_order(terms[:, ::2]) + in_order(terms[:, 1::2]),
    "four threads": lambda terms: in_order(torch.cat([in_order(part) for part in terms.chunk(4, 1)], 1)),
    "lanes": lambda terms: tree(torch.cat([in_order(terms[:, lane::32]) for lane in range(32)], 1)),
}
WRONG: Mapping[str, Sum] = {
    "terms in tf32": lambda terms: in_order(round_to_tf32(terms)),
    "terms in tf32, in a tree": lambda terms: tree(round_to_tf32(terms)),
    "terms in fp16, in a tree": lambda terms: tree(terms.half().float()),
    "terms in bf16, in a tree": lambda terms: tree(to_bf16(terms)),
    "accumulator in tf32": in_chunks(round_to_tf32),
    "accumulator in bf16": in_chunks(to_bf16),
    "without the first": lambda terms: tree(terms[:, 1:]),
    "without the last": lambda terms: tree(terms[:, :-1]),
    "without one in the middle": lambda terms: tree(terms) - terms[:, 3001:3002],
}


def reference_of(folder: Path, expression: str) -> Reference:
    file = folder / "reference.py"
    file.write_text(MODEL.format(expression))
    problem = catalog.find(str(file))
    return Reference(problem, problem.workloads[0], "cpu")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads of small operators wait for each other where the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("expression", PROBLEMS)
def test_plain_loops_are_honest_and_lower_precision_or_fewer_terms_are_not(tmp_path: Path, expression: str) -> None:
    reference = reference_of(tmp_path, expression)
    calibration = calibrate(reference, "class")
    refused: dict[str, list[str]] = {name: [] for name in (*HONEST, *WRONG)}
    for distribution in set(calibration.distributions) - set(SPECIAL):
        case = make_case(reference, distribution)
        (x,) = case.inputs
        assert isinstance(x, torch.Tensor)
        asked = ReferenceOnCase(reference, case)
        for name, add in (HONEST | WRONG).items():  # type: ignore[operator]
            output = PROBLEMS[expression](x, add)
            if not calibration.policy.rule([output], case.expected, ("out",), distribution, asked).passed:
                refused[name].append(distribution)
    assert {name: found for name, found in refused.items() if found and name in HONEST} == {}
    assert [name for name in WRONG if not refused[name]] == []


def running_product(x: torch.Tensor, rounded: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """One factor after the other in fp32."""
    return torch.from_numpy(np.cumprod(rounded(x).numpy(), axis=1, dtype=np.float32))


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_plain_loop_for_a_running_product_is_honest(tmp_path: Path) -> None:
    """torch's own is in float64 on a CPU: every such loop was refused."""
    reference = reference_of(tmp_path, "torch.cumprod(x * 0.02 + 0.99, 1)")
    calibration = calibrate(reference, "class")
    passed: dict[str, list[bool]] = {"loop": [], "factors in tf32": []}
    for _ in range(4):
        case = make_case(reference, "own")
        (x,) = case.inputs
        assert isinstance(x, torch.Tensor)
        factors, asked = x * 0.02 + 0.99, ReferenceOnCase(reference, case)
        for name, rounded in (("loop", torch.clone), ("factors in tf32", round_to_tf32)):
            output = running_product(factors, rounded)
            passed[name].append(calibration.policy.rule([output], case.expected, ("out",), "own", asked).passed)
    assert passed == {"loop": [True] * 4, "factors in tf32": [False] * 4}


LOG2_E = 1.4426950408889634


def softmax_in_base_two(x: torch.Tensor, add: Sum) -> torch.Tensor:
    """Scales first, as GPU kernels do: of inputs of 1000 the product is rounded by 6e-5, which is the error of a term."""
    scaled = x * LOG2_E
    e = torch.exp2(scaled - scaled.amax(1, keepdim=True))
    return e / add(e)


def online_softmax(x: torch.Tensor, add: Sum) -> torch.Tensor:
    """Each of 64 chunks against its own maximum, brought together afterwards."""
    scaled = [chunk * LOG2_E for chunk in x.chunk(64, 1)]
    tops = torch.cat([chunk.amax(1, keepdim=True) for chunk in scaled], 1)
    parts = torch.cat([add(torch.exp2(chunk - chunk.amax(1, keepdim=True))) for chunk in scaled], 1)
    top = tops.amax(1, keepdim=True)
    return torch.exp2(x * LOG2_E - top) / add(parts * torch.exp2(tops - top))


def fused_softmax(x: torch.Tensor, add: Sum) -> torch.Tensor:
    """With weights: in the second pass the compiler fuses the product with the subtraction of the rounded maximum."""
    weights = torch.linspace(0.5, 1.5, WIDTH)
    top = (x * weights).amax(1, keepdim=True)
    return torch.exp((x.double() * weights.double() - top).float()) / add(torch.exp(x * weights - top))


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("expression", "computed"),
    [
        ("torch.softmax(x, 1)", softmax_in_base_two),
        ("torch.softmax(x, 1)", online_softmax),
        ("torch.softmax(x * torch.linspace(0.5, 1.5, 8192), 1)", fused_softmax),
    ],
)
@pytest.mark.parametrize("rounds", range(3))
def test_rounding_of_large_inputs_is_not_taken_for_lower_precision(
    tmp_path: Path, expression: str, computed: Callable[[torch.Tensor, Sum], torch.Tensor], rounds: int
) -> None:
    """Three such kernels were refused, two of them on a GPU, on inputs with outliers and with large edges."""
    reference = reference_of(tmp_path, expression)
    calibration = calibrate(reference, "class")
    refused = []
    for distribution in set(calibration.distributions) - set(SPECIAL):
        case = make_case(reference, distribution)
        (x,) = case.inputs
        assert isinstance(x, torch.Tensor)
        asked = ReferenceOnCase(reference, case)
        ruling = calibration.policy.rule([computed(x, tree)], case.expected, ("out",), distribution, asked)
        if not ruling.passed:
            refused.append((distribution, ruling.errors.rel_fro, ruling.limit))
    assert refused == []


MASKED_ATTENTION = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, q, k, v, mask):
        return torch.softmax(q @ k.transpose(-1, -2) / 8 + mask, dim=-1) @ v


def get_inputs():
    return [*(torch.randn(4, 65, 64) for _ in range(3)), torch.full((65, 65), -1e9).triu(1)]


def get_init_inputs():
    return []
"""


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("seed", [43, 90, 95, 96, 255])
def test_another_order_of_sums_is_right_where_scores_nearly_tie(tmp_path: Path, seed: int) -> None:
    """Scores of thousands: here the reference happens to err less than a tenth of what another order of sums does."""
    (tmp_path / "attention.py").write_text(MASKED_ATTENTION)
    problem = catalog.find(str(tmp_path / "attention.py"))
    reference = Reference(problem, problem.workloads[0], "cpu")
    policy = make_policy("class", PrecisionClass.FP32, {"x64": {"fp32": RelativeErrors(1e-6, 5e-3)}}, torch.float32)
    q, k, v, mask = inputs = tuple(t for t in perturb(reference.inputs(seed), "x64") if isinstance(t, torch.Tensor))
    model = reference.judged_model(0, sample=True)
    case = cases.Case(model, lambda: inputs, reference.exact(model, inputs).outputs)

    def passes(q: torch.Tensor, k: torch.Tensor, width: int) -> bool:
        blocks = zip(q.split(width, -1), k.split(width, -1), strict=True)
        scores = torch.stack([a @ b.transpose(-1, -2) for a, b in blocks]).sum(0) / 8 + mask
        output = torch.softmax(scores, -1) @ v
        return policy.rule([output], case.expected, ("out",), "x64", ReferenceOnCase(reference, case)).passed

    assert [width for width in (1, 2, 4, 8, 16, 32, 64) if not passes(q, k, width)] == []
    # Of one seed TF32 errs as little as the rounding of a saved logarithm of thousands does.
    assert passes(round_to_tf32(q), round_to_tf32(k), 8) is (seed == 95)


class Failing(nn.Module):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise self.error


@pytest.mark.parametrize("asked", [lambda case: [*case.plain_sums()], lambda case: [case.tf32_sums()]])
def test_a_lack_of_memory_refuses_no_kernel(tmp_path: Path, asked: Callable[[ReferenceOnCase], list[object]]) -> None:
    """The judge tries again with another memory plan. It was taken for a reference without sums."""
    reference = reference_of(tmp_path, "x.mean(1)")
    case = make_case(reference, "own")
    lacking = cases.Case(Failing(torch.OutOfMemoryError("CUDA out of memory")), case.draw, case.expected)
    with pytest.raises(ProblemError, match="needs more memory"):
        asked(ReferenceOnCase(reference, lacking))
    other = cases.Case(Failing(NotImplementedError("no such sum")), case.draw, case.expected)
    assert asked(ReferenceOnCase(reference, other)) in ([], [None])

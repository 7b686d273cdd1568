"""A module that changes its weights in the constructor is judged on those, and the verdict says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.domain import work as w
from engine.domain.model import Contract, Dialect, FailureKind
from engine.problem import catalog
from engine.trial.bench import Assignment, KernelSpec, TrialBench

HEAD = "import torch\nfrom torch import nn\n\n\n"
TAIL = "\n\ndef get_inputs():\n    return [torch.randn(32, 48)]\n\n\ndef get_init_inputs():\n    return [48, 0.5]\n"


def model(name: str, constructor: str, forward: str) -> str:
    """A class with a layer ``fc``; ``constructor``: further lines."""
    first = "\n        ".join(["super().__init__()", "self.fc = nn.Linear(width, width)", *constructor.splitlines()])
    then = "\n        ".join(forward.splitlines())
    methods = f"    def __init__(self, width, scale):\n        {first}\n\n    def forward(self, x):\n        {then}\n"
    return f"{HEAD}class {name}(nn.Module):\n{methods}"


def module(constructor: str, forward: str = "return self.fc(x)") -> str:
    return model("ModelNew", constructor, forward)


NORM = "self.norm = nn.BatchNorm1d(width)"
SCALED = model("Model", "self.scale = scale", "return self.fc(x) * self.scale") + TAIL
NORMED = model("Model", f"{NORM}\nself.eval()", "return self.norm(self.fc(x))") + TAIL
COUNT = 'self.register_buffer("total", torch.rand(width))'
COUNTED = (
    model("Model", f"{COUNT}\nself.scale = scale", "self.total += x.sum(0)\nreturn self.fc(x) * self.scale + self.total") + TAIL
)
"""Its calls change a buffer: each starts again from the initial values."""

FOLD = "self.fc.weight.data.mul_({0})\nself.fc.bias.data.mul_({0})"
FOLDED = module(FOLD.format("scale"))
TRANSPOSED = module(
    "self.fc.weight.data = self.fc.weight.data.t().contiguous() * scale",
    "return torch.addmm(self.fc.bias * 0.5, x, self.fc.weight)",
)
PLAIN = module("self.scale = scale", "return self.fc(x) * self.scale")
OTHER_ORDER = module("self.scale = scale\nself.fc = nn.Linear(width, width)", "return self.fc(x) * self.scale")
"""Its constructor draws other weights than the reference's: it is right with the lent ones only."""
FOLDED_WRONGLY = module(FOLD.format("3 * scale"))
BAKED = module("self.fc.weight.data.fill_(0.01)\nself.fc.bias.data.zero_()")
"""The same weights for every seed."""
COUNT_FOLDED = module(f"{COUNT}\n{FOLD.format('scale')}", "self.total += x.sum(0)\nreturn self.fc(x) + self.total")
NORM_FOLDED = module(
    f"{NORM}\nwith torch.no_grad():\n    gain = self.norm.weight * torch.rsqrt(self.norm.running_var + 1e-5)\n"
    "    self.fc.weight.mul_(gain[:, None])\n"
    "    self.fc.bias.copy_((self.fc.bias - self.norm.running_mean) * gain + self.norm.bias)",
)
NORM_LEFT_OUT = module(f"{NORM}\n{FOLD.format('(1 + 1e-5) ** -0.5')}")
NORM_NOT_TAKEN = module(FOLD.format("(1 + 1e-5) ** -0.5"))


def judged(folder: Path, reference: str, kernels: Sequence[str], judge: Callable[[TrialBench, list[KernelSpec]], Any]) -> Any:
    file = folder / "theirs.py"
    file.write_text(reference)
    problem = catalog.find(str(file))

    async def run() -> Any:
        bench = TrialBench(Assignment(problem, problem.workloads[0], "cpu"), lambda _: "")
        specs = [KernelSpec(f"{i}.py", code, Dialect.PYTHON, Contract.MODULE, {}) for i, code in enumerate(kernels)]
        try:
            return await judge(bench, specs)
        finally:
            await bench.close()

    return asyncio.run(run())


def verdicts(folder: Path, reference: str, *kernels: str) -> list[object]:
    async def verify(bench: TrialBench, specs: list[KernelSpec]) -> list[object]:
        return [await bench.verify_kernel(spec, lambda _: None) for spec in specs]

    return judged(folder, reference, kernels, verify)  # type: ignore[no-any-return]


def own_weights(found: object) -> str:
    """The caveat on the constructor's own weights."""
    assert isinstance(found, w.Verified), found
    return next((line for line in found.verification.caveats if "constructor" in line), "")


@pytest.mark.slow
def test_a_constructor_may_fold_numbers_into_its_weights(tmp_path: Path) -> None:
    folded, transposed, plain, other, wrong, baked = verdicts(
        tmp_path, SCALED, FOLDED, TRANSPOSED, PLAIN, OTHER_ORDER, FOLDED_WRONGLY, BAKED
    )
    assert "fc_weight, fc_bias" in own_weights(folded)
    assert "fc_weight" in own_weights(transposed)
    assert "fc_bias" not in own_weights(transposed)
    assert isinstance(folded, w.Verified)
    assert not any("weight" in doubt for doubt in folded.screen.doubts), "its weights were as varied as the reference's"
    assert not own_weights(plain)
    assert not own_weights(other)
    for found in (wrong, baked):
        assert isinstance(found, w.Failed)
        assert found.failure.kind is FailureKind.MISMATCH
        assert "its constructor makes other fc_weight, fc_bias" in found.failure.reason
        assert found.failure.mismatches


@pytest.mark.slow
def test_constant_parameters_vary_in_folded_weights_too(tmp_path: Path) -> None:
    folded, left_out, not_taken = verdicts(tmp_path, NORMED, NORM_FOLDED, NORM_LEFT_OUT, NORM_NOT_TAKEN)
    assert "fc_weight, fc_bias" in own_weights(folded)
    assert isinstance(left_out, w.Failed)
    assert "left out?" in left_out.failure.reason
    assert "fc_weight, fc_bias" in own_weights(not_taken)
    assert isinstance(not_taken, w.Verified)
    assert not not_taken.screen.corroborated
    assert any("constant parameters were not varied" in line for line in not_taken.verification.caveats)


@pytest.mark.slow
def test_own_buffers_start_each_call_from_their_initial_values(tmp_path: Path) -> None:
    (folded,) = verdicts(tmp_path, COUNTED, COUNT_FOLDED)
    assert "fc_weight, fc_bias" in own_weights(folded)
    assert "total" not in own_weights(folded)


@pytest.mark.slow
def test_weights_are_settled_where_a_kernel_was_not_verified(tmp_path: Path) -> None:
    """A judge that was started again gets kernels that an earlier one has verified."""

    async def race(bench: TrialBench, specs: list[KernelSpec]) -> object:
        return await bench.versus(specs[0], specs[1], lambda _: None, 1)

    unfolded = module(f"{NORM}\nself.eval()", "return self.norm(self.fc(x))")
    raced = judged(tmp_path, NORMED, (NORM_FOLDED, unfolded), race)
    assert isinstance(raced, w.Measured)
    assert not any("weight" in doubt for doubt in raced.measurement.doubts)

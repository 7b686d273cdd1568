"""Running references: the variety of KernelBench files, and their errors."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.domain.errors import DeviceError, ProblemError
from engine.domain.model import Dialect, Role, Workload
from engine.problem import catalog, header
from engine.problem.precision import cast_model
from engine.problem.reference import Reference

BENCH = Path(__file__).parent / "kernelbench"
FILES = sorted(path.stem for path in BENCH.glob("*.py"))
HEAD = "import torch\nfrom torch import nn\ndim = 4\n"
MODEL = "class Model(nn.Module):\n    def forward(self, x):\n        return x * 2\n"
INPUTS = "def get_inputs():\n    return [torch.randn(dim)]\n"
INIT = "def get_init_inputs():\n    return []\n"


def bench(name: str, **changes: float) -> Reference:
    problem = catalog.find(str(BENCH / f"{name}.py"))
    workload = problem.workloads[0]
    return Reference(problem, Workload("full", {**workload.settings, **changes}))


def made(folder: Path, text: str) -> Reference:
    path = folder / "made.py"
    path.write_text(text)
    problem = catalog.find(str(path))
    return Reference(problem, problem.workloads[0])


def run(folder: Path, text: str) -> None:
    """Every use that a judge makes of a reference."""
    reference = made(folder, text)
    reference.signature()
    model, inputs = reference.model(0), reference.inputs(0)
    reference.call(model, inputs)
    reference.exact(model, inputs)


def rows(reference: Reference) -> list[tuple[str, str, tuple[int, ...], str]]:
    return [(o.name, o.role.value, o.shape, o.dtype) for o in reference.signature().operands]


@pytest.mark.parametrize(("label", "current"), [("cuda:1", [torch.device("cuda:1")]), ("cuda:0", []), ("cpu", [])])
def test_cuda_without_a_number_is_the_reference_s_device(
    label: str, current: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    problem = catalog.find(str(BENCH / f"{FILES[0]}.py"))
    assert Reference(problem, problem.workloads[0], label).device == torch.device(label)
    assert used == current


@pytest.mark.parametrize("name", FILES)
def test_every_form_runs_and_has_a_consistent_signature(name: str) -> None:
    reference = bench(name)
    signature = reference.signature()
    model, inputs = reference.model(1), reference.inputs(2)
    kept = [t.clone() for t in reference.arguments(model, inputs)]
    first, second = reference.call(model, inputs), reference.call(model, inputs)
    after = reference.arguments(model, inputs)
    given = signature.with_roles(Role.INPUT, Role.PARAMETER, Role.BUFFER)
    for operands, values in ((given, after), (signature.with_roles(Role.OUTPUT), first)):
        assert [(o.shape, o.dtype) for o in operands] == [(tuple(t.shape), str(t.dtype)[6:]) for t in values]
        assert all(t.is_contiguous() and not t.requires_grad for t in values)
    assert all(torch.equal(a, b) for a, b in zip(kept, after, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    pointers = [t.untyped_storage().data_ptr() for t in (*first, *after)]
    assert not set(pointers[: len(first)]) & set(pointers[len(first) :])
    assert len(set(pointers[: len(first)])) == len(first)


@pytest.mark.parametrize("name", FILES)
def test_every_form_has_a_close_float64_output(name: str) -> None:
    reference = bench(name)
    model, inputs = reference.model(1), reference.inputs(2)
    exact = reference.exact(model, inputs)
    assert exact.note == ""
    for output, truth in zip(reference.call(model, inputs), exact.outputs, strict=True):
        assert truth.dtype == (torch.float64 if output.is_floating_point() else output.dtype)
        loose = 2e-2 if output.dtype in (torch.bfloat16, torch.float16) else 1e-4
        torch.testing.assert_close(output.double(), truth.double(), rtol=loose, atol=loose)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("name", FILES)
def test_the_signature_from_fake_tensors_equals_that_of_a_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    imagined = bench(name).signature()
    monkeypatch.setattr("engine.problem.reference.trace_on_fake_tensors", lambda *_: None)
    found = bench(name).signature()
    assert replace(found, bytes_moved=0) == replace(imagined, bytes_moved=0)
    assert found.bytes_moved >= imagined.bytes_moved or not found.bytes_moved, "a run also reads the state that it restores"


@pytest.mark.parametrize("name", FILES)
def test_every_scalar_only_signature_renders(name: str) -> None:
    signature = bench(name).signature()
    assert signature.scalar_only == (name != "optional")
    for dialect in (Dialect.CPP, Dialect.CUDA):
        assert "#endif" in header.render(signature, dialect, "full")


@pytest.mark.slow
@pytest.mark.parametrize("problem", catalog.shipped(), ids=lambda p: p.name)
def test_signatures_of_shipped_problems_follow_the_abi(problem: object) -> None:
    assert isinstance(problem, type(catalog.find("softmax")))
    names, unit = EXPECTED[problem.name]
    every = (*problem.workloads, *(h for hs in problem.holdouts.values() for h in hs))
    for workload in every:
        signature = Reference(problem, workload).signature()
        assert [o.name for o in signature.operands] == [*names, "out"]
        assert signature.unit == unit
        assert signature.scalar_only
        assert {k.upper(): v for k, v in workload.settings.items()}.items() <= signature.constants.items()


EXPECTED = {
    "softmax": (["x"], "fp32"),
    "layernorm": (["x", "ln_weight", "ln_bias"], "fp32"),
    "matmul_fp32": (["a", "b"], "fp32"),
    "matmul_fp16": (["a", "b"], "fp16"),
    "conv2d": (["x", "conv1_weight", "conv1_bias"], "fp32"),
    "conv2d_relu_maxpool": (["x", "conv1_weight", "conv1_bias"], "fp32"),
    "attention_fp16": (["q", "k", "v"], "fp16"),
    "rmsnorm_bf16": (["x", "weight"], "fp32"),
    "gqa_decode_bf16": (["q", "k_cache", "v_cache", "block_table", "lengths"], "bf16"),
    "gemm_fp8": (["a", "b", "scale_a", "scale_b"], "fp32"),
}


@pytest.mark.parametrize(
    ("name", "operations", "families"),
    [
        ("matmul_fp32", 2 * 512**3, {"matmul"}),
        ("attention_fp16", 4 * 4 * 512 * 512 * 64, {"attention"}),
        ("conv2d", 2 * 2 * 96 * 55 * 55 * 3 * 11 * 11, {"convolution"}),
        ("conv2d_relu_maxpool", 2 * 2 * 96 * 55 * 55 * 3 * 11 * 11, {"convolution", "pooling"}),
        ("softmax", 0, {"softmax"}),
        ("gqa_decode_bf16", 4 * 2 * 16 * 1024 * 128, {"attention"}),
        ("gemm_fp8", 2 * 128 * 512 * 1024, {"matmul"}),
        ("layernorm", 0, {"normalisation"}),
    ],
)
def test_operations_and_families_of_shipped_problems(name: str, operations: float, families: set[str]) -> None:
    problem = catalog.find(name)
    reference = Reference(problem, catalog.workload_for(problem, "small"))
    assert reference.signature().operations == operations
    assert reference.ops_used() - {"other"} == families


def test_recurrent_operations_are_counted() -> None:
    weights = 24 * 4 + 3 * 24 * 6
    assert bench("lstm").signature().operations == 2 * (2 * 5) * weights


def test_operand_order_and_names() -> None:
    assert [(n, r) for n, r, _, _ in rows(bench("batch_norm"))] == [
        ("x", "input"),
        ("bn_weight", "parameter"),
        ("bn_bias", "parameter"),
        ("bn_running_mean", "buffer"),
        ("bn_running_var", "buffer"),
        ("bn_num_batches_tracked", "buffer"),
        ("out", "output"),
    ]
    assert rows(bench("cross_entropy")) == [
        ("predictions", "input", (16, 10), "float32"),
        ("targets", "input", (16,), "int64"),
        ("out", "output", (), "float32"),
    ]
    assert [n for n, *_ in rows(bench("awkward_names"))] == [
        "key",
        "time",
        "default_",
        "out_",
        "Out__",
        "workspace_",
        "gr__e",
        "out",
    ]
    assert [n for n, *_ in rows(bench("optional"))] == ["parts0", "parts1", "rest0", "out0", "out1", "out2"]
    assert ("h0", "buffer", (2, 2, 6), "float32") in rows(bench("lstm"))


def test_constants_are_module_numbers_and_scalar_arguments() -> None:
    assert bench("scalars").signature().constants == {"M": 6, "N": 9, "S": 2.5, "AXIS": 1, "KEEP": 1}
    assert bench("init_tail").signature().constants == {"CHANNELS": 3, "KERNEL_SIZE_0": 3, "KERNEL_SIZE_1": 5, "GROUPS": 3}
    assert bench("init_keywords").signature().constants == {"IN_FEATURES": 6, "OUT_FEATURES": 4, "BIAS": 0, "SCALE": 0.5}
    assert bench("awkward_names").signature().constants == {"KEY": 3, "SMS_": 7, "OUT": 2.5, "EOF_": -1}


def test_a_setting_reaches_everything_derived_from_it() -> None:
    constants = bench("derived", dim=6).signature().constants
    assert constants == {
        "DIM": 6,
        "HIDDEN": 24,
        "HEADS": 2,
        "HEAD_DIM": 12,
        "WIDE": 0,
        "PAIR_0": 6,
        "PAIR_1": 24,
        "DIM2": 7,
    }
    assert rows(bench("derived", dim=6)) == [("x", "input", (3, 24), "float32"), ("out", "output", (3, 2, 12), "float32")]


@pytest.mark.parametrize(
    ("name", "said"),
    [("batch_norm", "its own state"), ("gru", "its own state"), ("in_place", "changes x in place"), ("dropout", "random")],
)
def test_caveats_are_noted(name: str, said: str) -> None:
    reference = bench(name)
    reference.call(reference.model(1), reference.inputs(2))
    (note,) = reference.notes
    assert said in note


def test_a_well_behaved_reference_has_no_notes() -> None:
    reference = bench("transformer")
    reference.call(reference.model(1), reference.inputs(2))
    assert reference.notes == ()


def test_seeds_determine_inputs_and_weights_without_side_effects() -> None:
    reference = bench("transformer")
    torch.manual_seed(5)
    random.seed(5)
    before = torch.get_rng_state(), random.getstate()
    one, same, other = reference.inputs(1), reference.inputs(1), reference.inputs(2**64 + 7)
    weights = [[p.clone() for p in reference.model(s).parameters()] for s in (3, 3, 4)]
    reference.call(reference.model(3), one)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    for a, b, c in zip(one, same, other, strict=True):
        assert isinstance(a, torch.Tensor)
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
    assert all(torch.equal(a, b) for a, b in zip(weights[0], weights[1], strict=True))
    assert not torch.equal(weights[0][2], weights[2][2])


def test_the_model_keeps_its_mode(tmp_path: Path) -> None:
    assert bench("batch_norm").model(0).training
    made_in_eval = "    def __init__(self):\n        super().__init__()\n        self.eval()\n    def forward"
    evaluated = MODEL.replace("    def forward", made_in_eval)
    assert not made(tmp_path, HEAD + evaluated + INPUTS + INIT).model(0).training


def test_casts_inside_the_forward_do_not_narrow_the_float64_run(tmp_path: Path) -> None:
    text = HEAD + MODEL.replace("x * 2", "(x.half().float() * 3.1).to(torch.bfloat16)") + INPUTS + INIT
    reference = made(tmp_path, text)
    inputs = reference.inputs(0)
    (truth,) = reference.exact(reference.model(0), inputs).outputs
    assert isinstance(inputs[0], torch.Tensor)
    assert torch.equal(truth, inputs[0].double() * 3.1)


@pytest.mark.parametrize(
    "drawn",
    [
        "torch.rand(x.shape, generator=g)",
        "torch.empty_like(x).uniform_(generator=g)",
        "torch.normal(0.0, 1.0, x.shape, generator=g)",
    ],
)
def test_a_generator_gives_the_float64_run_the_same_numbers(tmp_path: Path, drawn: str) -> None:
    """In float64 it gives others: no kernel was right, and the problem "not verifiable"."""
    body = f"x * (g := torch.Generator().manual_seed(7)).initial_seed() * {drawn}"
    reference = made(tmp_path, HEAD + MODEL.replace("x * 2", body) + INPUTS + INIT)
    inputs = reference.inputs(0)
    (truth,), (own,) = reference.exact(reference.model(0), inputs).outputs, reference.call(reference.model(0), inputs)
    assert truth.dtype == torch.float64
    torch.testing.assert_close(truth.float(), own)


def test_float32_replaces_a_failing_float64_with_a_note(tmp_path: Path) -> None:
    reference = made(tmp_path, HEAD + MODEL.replace("x * 2", "x * {torch.float32: 2}[x.dtype]") + INPUTS + INIT)
    exact = reference.exact(reference.model(0), reference.inputs(0))
    assert exact.outputs[0].dtype == torch.float32
    assert exact.note.startswith("compared with float32")
    assert "KeyError" in exact.note


def test_precision_can_be_lowered_on_copies() -> None:
    reference = bench("init_keywords")
    model, inputs = reference.model(0), reference.inputs(0)
    (out,) = reference.call(reference.cast(model, torch.bfloat16), reference.cast_inputs(inputs, torch.bfloat16))
    assert out.dtype == torch.bfloat16
    assert next(model.parameters()).dtype == torch.float32


COMPLEX_MODEL = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.turn = nn.Parameter(torch.polar(torch.ones(dim), torch.arange(dim) / 7))
        self.register_buffer("shift", torch.full((dim,), 1 + 2j, dtype=torch.complex64))
        self.factor = torch.tensor(3 + 4j)
    def forward(self, x):
        made = torch.zeros(dim, dtype=torch.cfloat) + self.shift
        return torch.view_as_real((x.to(torch.complex64) * self.turn + made) * self.factor)
"""


def test_complex_weights_keep_their_imaginary_parts_in_another_precision(tmp_path: Path) -> None:
    reference = made(tmp_path, HEAD + COMPLEX_MODEL + INPUTS + INIT)
    model, inputs = reference.model(0), reference.inputs(0)
    exact = reference.exact(model, inputs)
    assert exact.note == ""
    assert exact.outputs[0].dtype == torch.float64
    (eager,) = reference.call(model, inputs)
    torch.testing.assert_close(exact.outputs[0].float(), eager)
    for dtype, kept in ((torch.float64, torch.complex128), (torch.float32, torch.complex64), (torch.bfloat16, torch.complex64)):
        cast = reference.cast(model, dtype)
        assert {cast.turn.dtype, cast.shift.dtype, cast.factor.dtype} == {kept}
        assert bool((cast.shift.imag == 2).all())
    assert next(model.parameters()).dtype == torch.complex64


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (HEAD + "1 / 0\n" + MODEL + INPUTS + INIT, 4, "ZeroDivisionError"),
        (HEAD + "raise SystemExit(3)\n" + MODEL + INPUTS + INIT, 4, "SystemExit"),
        (HEAD + "raise ValueError('\\ud800')\n" + MODEL + INPUTS + INIT, 4, r"ValueError: \ud800"),
        (HEAD + "import no_such_module_here\n" + MODEL + INPUTS + INIT, 4, "install it"),
        (HEAD + "Model = 3\n" + INPUTS + INIT, 0, "not a subclass of torch.nn.Module"),
        (HEAD + "class Model:\n    pass\n" + INPUTS + INIT, 0, "not a subclass of torch.nn.Module"),
        (HEAD + MODEL + "get_inputs = 3\n" + INIT, 0, "get_inputs is not a function"),
        (HEAD + MODEL + "def get_inputs():\n    return 3\n" + INIT, 0, "get_inputs() returns a int"),
        (HEAD + MODEL + "def get_inputs():\n    return []\n" + INIT, 0, "0 values, Model.forward takes 1 argument (x): "),
        (HEAD + MODEL + "def get_inputs():\n    return [1, 2]\n" + INIT, 0, "get_inputs() returns 2 values, Model.forward"),
        (HEAD + MODEL + "def get_inputs():\n    return [torch.randn(-1)]\n" + INIT, 8, "get_inputs() with workload full"),
        (HEAD + MODEL + INPUTS + INIT.replace("[]", "[1, 2]"), 0, "making Model"),
        (HEAD + MODEL + INPUTS + INIT.replace("[]", "[][0]"), 10, "IndexError"),
        (HEAD + MODEL.replace("x * 2", "x @ torch.ones(dim + 1)") + INPUTS + INIT, 6, "forward() with workload full"),
        (HEAD + MODEL.replace("x * 2", "'text'") + INPUTS + INIT, 0, "forward returns a str"),
        (HEAD + MODEL.replace("x * 2", "None") + INPUTS + INIT, 0, "returns no tensor"),
        (HEAD + MODEL.replace("x * 2", "torch.empty(1 << 60)") + INPUTS + INIT, 6, "needs more memory than cpu"),
        (HEAD + MODEL.replace("x * 2", "self.forward(x)") + INPUTS + INIT, 6, "RecursionError"),
        (HEAD + MODEL.replace("x * 2", "exit(3)") + INPUTS + INIT, 6, "SystemExit: 3"),
        (HEAD.replace("4", "1 << 70") + MODEL + INPUTS + INIT, 8, "Overflow when unpacking long long: correct"),
    ],
)
def test_an_exception_of_a_reference_is_one_line_with_its_place(tmp_path: Path, text: str, line: int, said: str) -> None:
    with pytest.raises(ProblemError) as caught:
        run(tmp_path, text)
    message = str(caught.value)
    assert "\n" not in message
    assert message.encode()
    assert said in message
    assert f"{tmp_path / 'made.py'}{f', line {line}' if line else ''}" in message


def test_a_failed_call_leaves_the_model_state_unchanged(tmp_path: Path) -> None:
    text = (
        "class Model(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.register_buffer('n', torch.zeros(1))\n"
        "    def forward(self, x):\n"
        "        self.n.add_(1)\n"
        "        raise ValueError('late')\n"
    )
    reference = made(tmp_path, HEAD + text + INPUTS + INIT)
    model = reference.model(0)
    with pytest.raises(ProblemError, match="late"):
        reference.call(model, reference.inputs(0))
    assert dict(model.named_buffers())["n"].item() == 0


def test_a_buffer_whose_elements_share_memory_is_left_as_it_is(tmp_path: Path) -> None:
    text = (
        "import torch\nclass Model(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.register_buffer('ones', torch.ones(1).expand(4))\n        self.register_buffer('n', torch.zeros(1))\n"
        "    def forward(self, x):\n        self.n += 1\n        return x + self.ones + self.n\n"
        "def get_inputs():\n    return [torch.rand(4)]\ndef get_init_inputs():\n    return []\n"
    )
    reference = made(tmp_path, text)
    model, inputs = reference.model(0), reference.inputs(0)
    one, other = (reference.call(model, inputs)[0] for _ in range(2))
    assert torch.equal(one, other)


def test_an_invalid_setting_names_the_workload(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match=r"derived.py.*workload full raised"):
        bench("derived", dim=-2).inputs(0)


@pytest.mark.parametrize("label", ["cuda:99", "gpu", "cpu:x", ""])
def test_an_unknown_device_is_named(label: str) -> None:
    problem = catalog.find("softmax")
    with pytest.raises(DeviceError, match="device"):
        Reference(problem, problem.workloads[1], label)


TEXTS: list[Callable[[str], str]] = [
    lambda junk: HEAD + f"value = {junk}\n" + MODEL + INPUTS + INIT,
    lambda junk: HEAD + MODEL.replace("x * 2", junk) + INPUTS + INIT,
    lambda junk: HEAD + MODEL + INPUTS.replace("[torch.randn(dim)]", junk) + INIT,
    lambda junk: HEAD + MODEL + INPUTS + INIT.replace("[]", junk),
]
VALUES = st.recursive(
    st.sampled_from(["None", "3", "'a'", "torch.ones(2)", "x", "dim", "torch.tensor([])", "{1}", "...", "1j", "object()"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda v: f"[{', '.join(v)}]")
        | st.lists(inner, max_size=2).map(lambda v: "{" + ", ".join(f"'k{i}': {x}" for i, x in enumerate(v)) + "}")
    ),
    max_leaves=4,
)


@pytest.mark.slow
@given(junk=VALUES, place=st.sampled_from(TEXTS))
def test_any_result_of_a_reference_gives_at_most_a_problem_error(
    tmp_path_factory: pytest.TempPathFactory, junk: str, place: Callable[[str], str]
) -> None:
    said = ""
    try:
        run(tmp_path_factory.getbasetemp(), place(junk))
    except ProblemError as refused:
        said = str(refused)
    assert "\n" not in said


@pytest.mark.parametrize(
    ("returned", "of_inputs", "of_model"),
    [
        ("x * 2", set(), set()),
        ("(x * 2, x)", {1}, set()),
        ("x[:2]", {0}, set()),
        ("self.shift", set(), {0}),
        ("(self.shift + 0, x.clone())", set(), set()),
    ],
)
def test_outputs_in_memory_of_inputs_or_state_are_known(
    tmp_path: Path, returned: str, of_inputs: set[int], of_model: set[int]
) -> None:
    model = f"{MODEL.replace('x * 2', returned)}    def __init__(self):\n        super().__init__()\n"
    reference = made(tmp_path, f"{HEAD}{model}        self.shift = nn.Parameter(torch.ones(dim))\n{INPUTS}{INIT}")
    reference.call(reference.model(0), reference.inputs(0))
    assert (reference.lent_outputs.of_inputs, reference.lent_outputs.of_model) == (of_inputs, of_model)


def test_lazily_conjugated_tensors_are_ordinary_ones(tmp_path: Path) -> None:
    """torch only marks the result of ``conj()``, and its imaginary part as negated: nobody can read such memory."""
    inputs = "def get_inputs():\n    return [torch.randn(4, dtype=torch.complex64).conj(), torch.randn(4)]\n"
    model = (
        "class Model(nn.Module):\n    def forward(self, x, y):\n"
        "        f = torch.fft.rfft(y).conj()\n        return f, f.imag, x * 2\n"
    )
    reference = made(tmp_path, HEAD + model + inputs + INIT)
    module, given = reference.model(0), reference.inputs(0)
    for tensor in (*given, *reference.call(module, given), *reference.exact(module, given).outputs):
        assert isinstance(tensor, torch.Tensor)
        assert not tensor.is_conj()
        assert not tensor.is_neg()
    found = reference.call(module, given)
    torch.testing.assert_close(found[1], -torch.fft.rfft(given[1]).imag)  # type: ignore[arg-type]


def test_a_lambda_over_layers_is_cast_with_them() -> None:
    class Closing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = torch.nn.ModuleDict({"proj": torch.nn.Linear(3, 2)})
            parts = self.parts
            self.apply_parts = lambda x: torch.relu(parts.proj(x))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.apply_parts(x)

    model, given = Closing(), torch.rand(4, 3)
    wide = cast_model(model, torch.float64)
    assert wide(given.double()).dtype == torch.float64
    assert torch.allclose(wide(given.double()).float(), model(given))
    assert model(given).dtype == torch.float32


def test_a_forward_without_output_is_refused_by_the_signature_too(tmp_path: Path) -> None:
    """On fake tensors nothing is computed, so nothing was missed: the calibration then ended with an internal error."""
    with pytest.raises(ProblemError, match="forward returns no tensor"):
        made(tmp_path, HEAD + MODEL.replace("x * 2", "None") + INPUTS + INIT).signature()


def test_a_model_that_converts_itself_is_described_without_a_run() -> None:
    reference = bench("half_weights")
    assert reference.known_without_running()
    assert [o.dtype for o in reference.signature().operands] == ["bfloat16"] * 7 + ["int64", "bfloat16", "float64"]
    model = reference.model(0)
    assert model.first.weight is model.second.weight, "modules are converted as before"


def test_a_forward_that_reads_values_is_not_described_without_a_run(tmp_path: Path) -> None:
    reference = made(tmp_path, HEAD + MODEL.replace("x * 2", "x * x.sum().item()") + INPUTS + INIT)
    assert not reference.known_without_running()
    assert reference.signature().operands
    assert reference.known_without_running()


@pytest.mark.parametrize(
    "place",
    [
        "torch.empty(64)",
        "torch.empty_like(x)",
        "x.new_empty(64)",
        "torch.empty_strided((64,), (1,))",
        "torch.empty((8, 8)).view(64)",
    ],
)
def test_a_place_for_the_output_is_cleared_and_its_writing_is_seen(tmp_path: Path, place: str) -> None:
    """A kernelbot task gave ``torch.empty``: memory of an earlier call held what the forward was about to write."""
    text = (
        "import torch\nfrom torch import nn\n"
        "class Model(nn.Module):\n    def forward(self, x, out):\n        out[...] = x + 1\n        return out\n"
        f"def get_inputs():\n    x = torch.randn(64)\n    return [x, {place}]\n" + INIT
    )
    reference = made(tmp_path, text)
    recycled = [torch.full((64,), 7.0) for _ in range(50)]
    del recycled
    assert not reference.inputs(3)[1].any()  # type: ignore[attr-defined]
    assert reference.side_effects.changed_inputs


@pytest.mark.parametrize("write", ["x.relu_()", "x[1:].clamp_(min=0)", "torch.add(x, 0, out=x)", "torch.sign(y, out=y)"])
def test_a_write_that_leaves_the_values_of_the_first_call_is_seen(tmp_path: Path, write: str) -> None:
    """Inputs of ``torch.rand`` are positive: ``nn.ReLU(inplace=True)`` changes nothing there, and other inputs later."""
    text = (
        "import torch\nfrom torch import nn\n"
        "class Model(nn.Module):\n    def forward(self, x, y):\n"
        f"        {write}\n        return x + y\n"
        "def get_inputs():\n    return [torch.rand(64), torch.ones(64)]\n" + INIT
    )
    assert made(tmp_path, text).side_effects.changed_inputs


def test_a_write_that_leaves_the_values_of_the_state_is_seen(tmp_path: Path) -> None:
    text = (
        "import torch\nfrom torch import nn\n"
        "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.register_buffer('scale', torch.ones(4))\n"
        "    def forward(self, x):\n        return x * self.scale.clamp_(min=0)\n"
        "def get_inputs():\n    return [torch.rand(4)]\n" + INIT
    )
    reference = made(tmp_path, text)
    assert reference.side_effects.changes_state
    assert not reference.side_effects.changed_inputs


def test_numbers_drawn_into_such_memory_are_kept(tmp_path: Path) -> None:
    inputs = "def get_inputs():\n    return [torch.empty(dim).uniform_(1, 2)]\n"
    (x,) = made(tmp_path, HEAD + MODEL + inputs + INIT).inputs(0)
    assert (x >= 1).all()  # type: ignore[operator]


@pytest.mark.parametrize(
    "inputs",
    [
        "torch.randn(dim).cuda()",
        "torch.randn(dim).cuda(non_blocking=True).half()",
        "torch.randn(dim).cuda(0)",
        'torch.randn(dim, device="cuda:0")',
        "nn.Identity().cuda()(torch.randn(dim))",
    ],
)
def test_a_reference_written_for_a_gpu_runs_on_a_cpu(tmp_path: Path, inputs: str) -> None:
    """KernelBench's own example calls ``.cuda()`` in ``get_inputs``: it was refused on a CPU, unlike ``device="cuda"``."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    reference = made(tmp_path, HEAD + MODEL + f"def get_inputs():\n    return [{inputs}]\n" + INIT)
    (x,) = reference.inputs(0)
    assert isinstance(x, torch.Tensor)
    assert x.device.type == "cpu"


@pytest.mark.parametrize(
    "check",
    [
        "assert x.dtype == torch.float16",
        "assert x.shape == (dim,) and x.dtype is torch.float16, 'half only'",
        "if x.dtype != torch.float16: raise TypeError('half only')",
        "if x.dim() == 1:\n            assert x.dtype == torch.float16",
    ],
)
def test_a_reference_that_checks_the_type_of_its_inputs_has_a_float64_output(tmp_path: Path, check: str) -> None:
    """LeetGPU's references do. None passes in float64: one for float32 was compared with itself, others were refused."""
    model = MODEL.replace("        return x * 2", f"        {check}\n        return x * 2")
    reference = made(tmp_path, HEAD + model + INPUTS.replace("(dim)", "(dim).half()") + INIT)
    exact = reference.exact(reference.model(0), reference.inputs(0))
    assert exact.note == ""
    assert exact.outputs[0].dtype == torch.float64


def test_other_checks_of_a_reference_are_kept(tmp_path: Path) -> None:
    model = MODEL.replace("        return x * 2", "        assert x.dim() == 2\n        return x * 2")
    with pytest.raises(ProblemError, match=r"made.py, line 6: forward\(\) with workload full raised AssertionError: correct"):
        made(tmp_path, HEAD + model + INPUTS + INIT).signature()


def test_outputs_without_elements_are_refused(tmp_path: Path) -> None:
    """They were "not verifiable: a trivial model passes the correctness check", after a calibration."""
    with pytest.raises(ProblemError, match=r"made\.py: forward's outputs have no elements: choose sizes above zero"):
        made(tmp_path, HEAD.replace("dim = 4", "dim = 0") + MODEL + INPUTS + INIT).signature()


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (
            "torch.autograd.grad(x.sum(), x)[0]",
            "forward is called without gradients; compute them in it, under torch.enable_grad",
        ),
        ("nn.UninitializedParameter().shape", "give lazy layers their sizes"),
        ("torch.cuda.current_stream() and x", "it needs a GPU: run it on a machine with one"),
    ],
)
def test_an_error_says_what_the_judge_lacks(tmp_path: Path, forward: str, words: str) -> None:
    if torch.cuda.is_available() and "GPU" in words:
        pytest.skip("there is a GPU here")
    with pytest.raises(ProblemError, match=words):
        made(
            tmp_path, HEAD + MODEL.replace("x * 2", forward) + INPUTS.replace("(dim)", "(dim, requires_grad=True)") + INIT
        ).signature()


def test_a_sparse_input_is_refused_as_what_it_is(tmp_path: Path) -> None:
    """It was a NotImplementedError of aten::equal "in forward()"."""
    with pytest.raises(ProblemError, match=r"made\.py: get_inputs\(\) returns a sparse tensor: only dense tensors"):
        made(tmp_path, HEAD + MODEL + INPUTS.replace("torch.randn(dim)", "torch.eye(dim).to_sparse()") + INIT).signature()


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("x.to_sparse()", r"forward returns a sparse tensor: only dense tensors are supported, so return .to_dense\(\) of it"),
        ("(x, {'y': x[:, None].to_sparse_csr()})", "forward returns a sparse tensor as output 2 of 2: only dense"),
        ("torch.nested.as_nested_tensor([x, x[1:]])", "a nested tensor: only dense .* so return .to_padded_"),
    ],
)
def test_an_output_that_is_not_dense_is_refused_with_what_to_return(tmp_path: Path, returned: str, words: str) -> None:
    """It was an internal error of the judge: nbytes is not defined for sparse tensors."""
    with pytest.raises(ProblemError, match=words):
        run(tmp_path, HEAD + MODEL.replace("x * 2", returned) + INPUTS + INIT)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("x[: 1 + self.calls]", r"values \(\(1,\), then \(2,\)\): only fixed shapes are supported, so return a mask"),
        ("(x, x[: 1 + self.calls])", r"values \(output 2 of 2: \(1,\), then \(2,\)\): only fixed"),
        ("[x] * (1 + self.calls)", r"values \(1 tensors, then 2\): only fixed"),
    ],
)
def test_outputs_that_change_their_shapes_are_named(tmp_path: Path, returned: str, words: str) -> None:
    """The message held nested tuples of all shapes of both calls."""
    reference = made(tmp_path, HEAD + MODEL.replace("x * 2", returned) + INPUTS + INIT)
    model, inputs = reference.judged_model(1, sample=True), reference.inputs(1)
    model.calls = 0  # type: ignore[assignment]
    reference.call(model, inputs)
    model.calls = 1  # type: ignore[assignment]
    with pytest.raises(ProblemError, match=words):
        reference.call(model, inputs)


COUNTS = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 2
    def forward(self, x):
        self.calls += 1
        return x * {factor}
def get_inputs(): return [torch.rand(4, 8)]
def get_init_inputs(): return []
"""


@pytest.mark.parametrize("factor", ["self.calls", "self.calls % 2", "torch.tensor([torch.inf, *[self.calls] * 7])"])
def test_a_forward_whose_outputs_depend_on_its_count_of_calls_is_refused(tmp_path: Path, factor: str) -> None:
    found = made(tmp_path, COUNTS.format(factor=factor))
    with pytest.raises(ProblemError, match=r"forward changes self.calls, and two calls on the same inputs differ"):
        found.call(found.model(0), found.inputs(0))


def test_a_forward_may_count_its_calls(tmp_path: Path) -> None:
    found = made(tmp_path, COUNTS.format(factor="2"))
    inputs = found.inputs(0)
    assert torch.equal(found.call(found.model(0), inputs)[0], inputs[0] * 2)


HIGHER = {
    "cond": ("torch.cond(x.sum() > 0, lambda a: a @ a.T, lambda a: a @ a, (x,))", 2 * 4**3),
    "while_loop": (
        "torch._higher_order_ops.while_loop("
        "lambda i, y: i < 3, lambda i, y: (i + 1, y @ y.T), (torch.zeros((), dtype=torch.int64), x))[1]",
        3 * 2 * 4**3,
    ),
    "flex_attention": ("flex_attention(x[None, None], x[None, None], x[None, None])", 2 * 2 * 4**3),
}


@pytest.mark.parametrize("name", HIGHER)
def test_operators_of_higher_order_are_counted_and_widened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")  # as for the judge
    expression, operations = HIGHER[name]
    head = HEAD + "from torch.nn.attention.flex_attention import flex_attention\n"
    text = head + MODEL.replace("x * 2", expression) + INPUTS.replace("randn(dim)", "randn(dim, dim)") + INIT
    reference = made(tmp_path, text)
    assert reference.signature().operations == operations
    inputs, model = reference.inputs(1), reference.model(1)
    (right,) = reference.call(model, inputs)
    (exact,) = reference.exact_of(model, lambda: inputs).outputs
    assert exact.dtype == torch.float64
    assert torch.allclose(exact.float(), right, atol=1e-4)


def test_a_static_forward_takes_what_get_inputs_returns(tmp_path: Path) -> None:
    static = MODEL.replace("    def forward(self, x)", "    @staticmethod\n    def forward(x)")
    reference = made(tmp_path, HEAD + static + INPUTS + INIT)
    assert torch.equal(reference.call(reference.model(1), reference.inputs(2))[0], 2 * reference.inputs(2)[0])

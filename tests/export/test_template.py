"""The templates of an exported module: they run by themselves, and copies are filled in and renamed."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest
import torch

from engine.export import template
from engine.export.templates import kernel_module, module_check

NAMES = sorted(path.stem for path in Path(kernel_module.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_is_standalone_and_has_no_decorator(name: str) -> None:
    tree = ast.parse(template.template(name))
    imported = [s.module for s in ast.walk(tree) if isinstance(s, ast.ImportFrom)]
    assert not any(module and module.startswith(("engine", "tui")) for module in imported)
    assert ast.get_docstring(tree) is None
    definitions = [s for s in ast.walk(tree) if isinstance(s, ast.FunctionDef | ast.ClassDef)]
    assert not any(one.decorator_list for one in definitions)
    assert "Model = " not in template.template(name)


def test_renamed_constants_are_filled_in_too() -> None:
    text = template.keep_apart(
        "import time\n\nDEVICE: str = 'cpu'\n\nLIST = [\n    1,\n]\n\nprint(DEVICE, time.time())\n", {"DEVICE"}
    )
    filled = template.fill(text, {"DEVICE": "'cuda'", "LIST": "[2]"})
    assert filled == "import time\n\nDEVICE_: str = 'cuda'\n\nLIST = [2]\n\nprint(DEVICE_, time.time())\n"
    with pytest.raises(AssertionError, match="no template has OTHER"):
        template.fill(text, {"OTHER": "1"})


def test_two_clashing_names_become_two_names() -> None:
    text = template.keep_apart("def run(): return run_()\ndef run_(): return 1\n", {"run", "run_"})
    space: dict[str, object] = {}
    exec(compile(text, "module.py", "exec"), space)
    assert space["run__"]() == 1  # type: ignore[operator]
    assert text == "def run__(): return run___()\ndef run___(): return 1\n"


@pytest.mark.parametrize("text", ["plain", "a'''b", "ends with '", "back\\", "carriage\r", 'quotes """ and \\n'])
def test_a_literal_evaluates_to_the_text(text: str) -> None:
    assert ast.literal_eval(template.literal(text)) == text


def test_the_template_s_operator_checks_its_arguments() -> None:
    model = kernel_module.ModelNew()
    x = torch.zeros(1)
    assert model.operands(x) == [x]
    assert kernel_module._fake(x).shape == (1,)
    for given, words in (((torch.zeros(2),), "expected torch.float32"), ((x, x), "expected 1 tensors, got 2")):
        with pytest.raises(ValueError, match=words):
            kernel_module._run(*given)
    with pytest.raises(TypeError, match="forward takes x"):
        model.operands(y=x)


@pytest.mark.parametrize(
    ("output", "exact", "wrong"),
    [
        ([1.0, 2.0], [1.0, 2.0], False),
        ([1.0, 2.5], [1.0, 2.0], True),
        ([1.0], [1.0, 2.0], True),
        ([math.nan, 2.0], [1.0, 2.0], True),
        ([math.inf, 2.0], [math.inf, 2.0], False),
        ([-math.inf, 2.0], [math.inf, 2.0], True),
    ],
)
def test_the_template_s_errors(output: list[float], exact: list[float], wrong: bool) -> None:
    errors = module_check._errors(torch.tensor(output), torch.tensor(exact, dtype=torch.float64))
    assert (max(errors) > 1e-6) is wrong


class Quantising(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 3).to(torch.float8_e4m3fn)


def test_the_template_compares_eight_bit_floats_with_what_was_not_rounded() -> None:
    x = torch.randn(64, 64)
    result = [Quantising()(x)]
    exact, note = module_check._expected(Quantising(), [x], result)
    assert (exact[0].dtype, note) == (torch.float64, "")
    assert torch.equal(exact[0], x.double() * 3)
    right = module_check._errors(result[0], exact[0])[0]
    assert 0.02 < right < 0.03
    assert module_check._errors((x * 3 * 0.97).to(torch.float8_e4m3fn), exact[0])[0] > 1.25 * right


@pytest.mark.slow
def test_the_template_checks_an_operator_as_far_as_torch_can() -> None:
    """torch's test of the schema compares tensors before and after: it raises for eight-bit floats."""
    from torch.testing._internal.optests.generate_tests import OpCheckError  # loads torch's compiler: seconds

    schema = "(Tensor x) -> Tensor"
    widen = torch.library.custom_op("espalier_test::widen", lambda x: x.double(), mutates_args=(), schema=schema)
    widen.register_fake(lambda x: torch.empty(x.shape, dtype=torch.float64))
    for dtype in (torch.float32, torch.float8_e4m3fn):
        module_check._check_operator(widen, (torch.ones(4).to(dtype),))
    changing = torch.library.custom_op("espalier_test::change", lambda x: x.add_(1) * 1, mutates_args=(), schema=schema)
    with pytest.raises(OpCheckError, match="test_schema"):
        module_check._check_operator(changing, (torch.ones(4),))


def test_the_template_constructs_models_as_kernelbench_does() -> None:
    for given in ([2, 3], [[2, 3], {}], [2, {"out_features": 3}], {"in_features": 2, "out_features": 3}):
        assert module_check._model(torch.nn.Linear, given).weight.shape == (3, 2)

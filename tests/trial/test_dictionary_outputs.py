"""A module's results are matched with the reference's: by key in dictionaries, else in order."""

from __future__ import annotations

import asyncio
from collections import UserDict
from pathlib import Path

import pytest
import torch

from engine.domain import work as w
from engine.domain.model import Contract, Dialect, Workload
from engine.problem import catalog
from engine.problem.arguments.values import OutputLayout, output_layout
from engine.problem.reference import Reference
from engine.trial.bench import Assignment, KernelSpec, TrialBench
from engine.trial.judge.inputs.input_dump import module_arguments
from engine.trial.runner.calls import OutputError
from engine.trial.runner.returned import flattened
from engine.trial.shared.argument_codec import decode_value

A, B, C, D = (torch.full((1,), float(i)) for i in range(4))
NESTED = (A, None, {"loss": B, "more": [{"last": C, "first": D}, None]})

MODEL = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x):
        return {}
def get_inputs():
    return [torch.randn(32, 48)]
def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(
    ("returned", "layout"),
    [
        (A, 1),
        (None, 0),
        ((A, 3, None, [B, (C,)]), 4),
        ({"a": A, "rest": (B, C), "none": None, 7: [None]}, {"a": 1, "rest": 2}),
        (NESTED, [1, {"loss": 1, "more": [{"last": 1, "first": 1}]}]),
        ({"none": None}, 0),
    ],
)
def test_a_layout_holds_keys_and_counts(returned: object, layout: OutputLayout) -> None:
    assert output_layout(returned) == layout


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (NESTED, [A, B, C, D]),
        ([A, {"more": ({"first": D, "last": C},), "loss": B, "cache": None}], [A, B, C, D]),  # other order, other containers
        ([A, UserDict({"more": [{"first": D, "last": C}], "loss": 3})], [A, 3, C, D]),
        ([A, [B, [C, D]]], [A, B, C, D]),  # no dictionary: in order
        ((A, B, C, D), [A, B, C, D]),
        (A, [A]),
    ],
)
def test_results_are_matched_by_key(value: object, found: list[object]) -> None:
    assert all(one is other for one, other in zip(flattened(value, output_layout(NESTED)), found, strict=True))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"a": A}, "returned no 'b'"),
        ({"a": A, "b": None}, "returned no 'b'"),
        ({"a": A, "B": B}, "returned no 'b'"),
        ({"a": A, "b": B, "c": C}, "returned 'c', which the reference does not return"),
        ({"a": (A, B), "b": B}, "returned 2 outputs as 'a' instead of 1"),
    ],
)
def test_a_key_too_few_or_too_many_is_named(value: object, why: str) -> None:
    with pytest.raises(OutputError, match=why):
        flattened(value, {"a": 1, "b": 1})


@pytest.mark.parametrize(
    ("result", "layout"),
    [
        ('{"b": x, ("a", 1): (x, x)}', {"b": 1, ("a", 1): 2}),
        ("(x, x)", 2),
        ("{frozenset(): x, 2: x}", 0),  # such a key cannot be sent: in order
    ],
)
def test_the_layout_is_sent_with_a_modules_arguments(tmp_path: Path, result: str, layout: OutputLayout) -> None:
    file = tmp_path / "theirs.py"
    file.write_text(MODEL.replace("return {}", f"return {result}"))
    reference = Reference(catalog.find(str(file)), Workload("full", {}))
    assert decode_value(module_arguments(reference, 1, reference.inputs(1))[5]) == layout


@pytest.mark.slow
def test_dictionaries_are_judged_by_key(tmp_path: Path) -> None:
    file = tmp_path / "theirs.py"
    file.write_text(MODEL.replace("return {}", 'return {"a": x.softmax(-1), "b": x.sigmoid(), "c": None}'))
    problem = catalog.find(str(file))
    results = {
        "order": '{"b": x.sigmoid(), "a": x.softmax(-1)}',
        "tuple": "x.softmax(-1), x.sigmoid()",
        "swapped": '{"b": x.softmax(-1), "a": x.sigmoid()}',
        "fewer": '{"a": x.softmax(-1)}',
    }

    async def judge() -> dict[str, w.WorkResult]:
        bench = TrialBench(Assignment(problem, problem.workloads[0], "cpu"), lambda _: "")
        modules = {
            name: MODEL.replace("class Model(", "class ModelNew(").replace("return {}", f"return {text}")
            for name, text in results.items()
        }
        specs = {name: KernelSpec(f"{name}.py", text, Dialect.PYTHON, Contract.MODULE, {}) for name, text in modules.items()}
        try:
            return {name: await bench.verify_kernel(spec, lambda _: None) for name, spec in specs.items()}
        finally:
            await bench.close()

    found = asyncio.run(judge())
    assert isinstance(found["order"], w.Verified), found
    assert isinstance(found["tuple"], w.Verified), found
    swapped, fewer = found["swapped"], found["fewer"]
    assert isinstance(swapped, w.Failed)
    assert "elements" in swapped.failure.reason or swapped.failure.mismatches
    assert isinstance(fewer, w.Failed)
    assert "returned no 'b'" in fewer.failure.reason

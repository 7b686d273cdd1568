"""The values of tunables that an evaluation takes."""

from __future__ import annotations

import pytest

from engine.api.evaluation import EvaluationRequest, _tunable_choices, request
from engine.domain.errors import KernelCodeError
from engine.domain.model import Contract, Dialect
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.toolchain.kernel_file import KernelCode
from engine.trial.judge import devices

LAUNCH = 'extern "C" void launch(const float* x, float* out) {}\n'


def wanted(head: str, tunables: dict[str, int] | None = None, variants: int = 1) -> EvaluationRequest:
    kernel = KernelCode(head + LAUNCH, Dialect.CPP, Contract.HOST, "k.cpp")
    return request(
        catalog.find("softmax"), kernel, device="cpu", workload="small", tunables=tunables, variants=variants
    )  # fmt: skip


def chosen(one: EvaluationRequest) -> list[dict[str, int]]:
    problem = catalog.find("softmax")
    signature = Reference(problem, catalog.workload_for(problem, "small")).signature()
    return list(_tunable_choices(one, devices.describe("cpu"), signature))


def test_the_values_that_were_asked_for_are_taken() -> None:
    head = "// @tune A = 1, 4, 8\n// @require A > 2\n"
    assert chosen(wanted("// @tune A = 1, 4\n")) == [{"A": 1}]
    assert chosen(wanted(head, {"A": 8})) == [{"A": 8}]
    assert chosen(wanted(head, variants=8)) == [{"A": 4}, {"A": 8}]


def test_defaults_that_a_requirement_forbids_give_way_to_the_nearest_allowed_values() -> None:
    """As in a search. They were measured without a word."""
    assert chosen(wanted("// @tune A = 1, 4, 8\n// @require A > 2\n")) == [{"A": 4}]


def test_other_values_that_a_requirement_forbids_are_refused() -> None:
    """Also where they are the defaults: somebody asked for these."""
    for value in (1, 4):
        with pytest.raises(KernelCodeError, match=rf"k\.cpp: `@require A > 5` forbids A={value}: choose others with --tune"):
            chosen(wanted("// @tune A = 1, 4, 8\n// @require A > 5\n", {"A": value}))


def test_a_requirement_on_an_unknown_name_is_refused() -> None:
    with pytest.raises(KernelCodeError, match=r"k\.cpp: .*\bB\b"):
        chosen(wanted("// @tune A = 1, 4\n// @require B > 1\n"))

"""The digest by which kernels with the same machine code are recognised."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.domain.model import Contract, Dialect, Workload
from engine.toolchain.build import Artefact, BuildFailure
from engine.trial.kernel_builds import KernelSpec, machine_code
from engine.trial.protocol import WorkloadBinary

KERNEL = KernelSpec("k.cu", 'extern "C" __global__ void f(float* x) { *x = 1; }', Dialect.CUDA, Contract.PLAN, {"BLOCK": 2})
BuildResult = tuple[WorkloadBinary, Artefact] | BuildFailure


def built(digest: str = "d", plan: bytes = b"plan", workload: str = "small") -> BuildResult:
    artefact = Artefact("key", Path("there"), Path("there/kernel.cubin"), 0.1, False, (), "", digest=digest)
    return WorkloadBinary(Workload(workload), "there/kernel.cubin", plan=plan), artefact


SAME = machine_code(KERNEL, [built(), built("e")])


def test_text_name_and_tunables_do_not_count_where_they_change_nothing() -> None:
    other = replace(KERNEL, name="l.cu", text=f"// one\n{KERNEL.text}", tunables={"BLOCK": 2, "UNUSED": 3})
    assert machine_code(other, [built(), built("e")]) == SAME


@pytest.mark.parametrize(
    ("kernel", "builds"),
    [
        (KERNEL, [built(), built("f")]),
        (KERNEL, [built("e"), built()]),
        (KERNEL, [built(plan=b"other"), built("e")]),
        (KERNEL, [built()]),
        (KERNEL, [built(), BuildFailure("too large", "", 0.1)]),
        (replace(KERNEL, contract=Contract.HOST), [built(), built("e")]),
        (replace(KERNEL, dialect=Dialect.CPP), [built(), built("e")]),
    ],
)
def test_every_binary_every_plan_and_the_contract_count(kernel: KernelSpec, builds: list[BuildResult]) -> None:
    assert machine_code(kernel, builds) not in ("", SAME)


@pytest.mark.parametrize(
    "kernel",
    [
        replace(KERNEL, dialect=Dialect.PYTHON, contract=Contract.MODULE, text="x = 1"),
        replace(KERNEL, dialect=Dialect.CPP, contract=Contract.HOST, text='void* f() { return dlopen("", 1); }'),
    ],
    ids=["a module", "suspicious code"],
)  # fmt: skip
def test_kernels_that_need_a_trial_of_their_own_have_none(kernel: KernelSpec) -> None:
    assert machine_code(kernel, [built(), built("e")]) == ""

"""Dispatch files: grammar, the rule that chooses, and what is built for a shape."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain.errors import KernelCodeError
from engine.domain.model import Contract, Device, Dialect, Operand, Role, Signature, Workload, WorkloadChoice
from engine.toolchain.dispatch import Dispatch, DispatchMember, DispatchShape, dispatch_text, is_dispatch, parse_dispatch
from engine.toolchain.kernel_build import choices
from engine.toolchain.kernel_file import KernelCode, classify
from engine.toolchain.tunables import parse_requires, parse_tunables
from engine.trial.kernel_builds import KernelSpec, kernel_build

LAUNCH = 'extern "C" void launch(const float* x, float* out, void*)'
WIDE = f'#include "problem.h"\n// @tune LANES = 8, 16\n{LAUNCH} {{ out[0] = LANES; }}\n'
TALL = f'#include "problem.h"\n{LAUNCH} {{ out[0] = 1; }}\n'
TWO = Dispatch(
    ("rows", "dim"),
    (
        DispatchMember(
            "k12",
            {"LANES": 16},
            (DispatchShape({"rows": 1, "dim": 65536}), DispatchShape({"rows": 64, "dim": 65536}, {"LANES": 8})),
            WIDE,
        ),
        DispatchMember("k7", {}, (DispatchShape({"rows": 4096, "dim": 64}),), TALL),
    ),
)
CPU = Device("cpu", 0, "", "x86_64", 2, 0, 0, "")
SIZES = st.integers(1, 10**6)


def signature(rows: int, dim: int) -> Signature:
    both = tuple(Operand(name, role, (rows, dim), "float32") for name, role in (("x", Role.INPUT), ("out", Role.OUTPUT)))
    return Signature(both, {})


def test_a_dispatch_is_read_as_it_was_written() -> None:
    text = dispatch_text(TWO, Dialect.CPP, "Dispatch of k12 and k7.")
    assert is_dispatch(text, Dialect.CPP)
    assert parse_dispatch(text, Dialect.CPP) == TWO
    assert classify(text, "dispatch.cpp") == (Dialect.CPP, Contract.HOST)
    assert parse_tunables(text, Dialect.CPP) == ()
    assert parse_requires(text, Dialect.CPP) == ()


@given(SIZES, SIZES)
def test_the_nearest_shape_decides_and_every_shape_has_a_kernel(rows: int, dim: int) -> None:
    chosen = TWO.choose({"rows": rows, "dim": dim})
    assert chosen.member in TWO.members
    for one in TWO.members:
        for shape in one.shapes:
            assert TWO.choose(shape.settings).member is one
            between = TWO.choose({**shape.settings, "rows": shape.settings["rows"] * 1.01})
            assert (between.member, between.tunables) == (one, {**one.tunables, **shape.tunables})


def test_zero_and_negative_sizes_are_equal_or_far() -> None:
    signs = Dispatch(
        ("axis",),
        (
            DispatchMember("a", {}, (DispatchShape({"axis": -1}),), WIDE),
            DispatchMember("b", {}, (DispatchShape({"axis": 0}),), TALL),
        ),
    )
    assert signs.choose({"axis": 0}).member.name == "b"
    assert signs.choose({"axis": -1}).member.name == "a"


@pytest.mark.parametrize(
    ("rows", "dim", "member", "lanes"),
    [(2, 50257, "k12", {"LANES": 16}), (50, 50257, "k12", {"LANES": 8}), (4000, 80, "k7", {})],
)
def test_a_workload_is_built_from_its_member(rows: int, dim: int, member: str, lanes: dict[str, int]) -> None:
    spec = KernelSpec("dispatch.cpp", dispatch_text(TWO, Dialect.CPP, "two"), Dialect.CPP, Contract.HOST)
    built = kernel_build(spec, Workload("w", {"rows": rows, "dim": dim}), signature(rows, dim), CPU)
    assert built.code.name == f"{member}.cpp"
    assert dict(built.tunables) == lanes
    assert "@dispatch" not in built.request().code


def test_defaults_fill_in_for_tunables_that_a_member_leaves_out() -> None:
    bare = dispatch_text(TWO, Dialect.CPP, "two").replace(" LANES=16", "")
    spec = KernelSpec("dispatch.cpp", bare, Dialect.CPP, Contract.HOST)
    assert kernel_build(spec, Workload("w", {"rows": 1, "dim": 65536}), signature(1, 65536), CPU).tunables == {"LANES": 8}


def test_a_verdict_says_what_runs_on_each_workload() -> None:
    code = KernelCode(dispatch_text(TWO, Dialect.CPP, "two"), Dialect.CPP, Contract.HOST, "dispatch.cpp")
    shapes = [Workload("few", {"rows": 2, "dim": 65536}), Workload("many", {"rows": 90, "dim": 65536}), Workload("other", {})]
    assert choices(code, shapes) == (WorkloadChoice("few", "k12", {"LANES": 16}), WorkloadChoice("many", "k12", {"LANES": 8}))
    assert choices(KernelCode(TALL, Dialect.CPP, Contract.HOST, "k7.cpp"), shapes) == ()


def test_a_value_for_an_undeclared_tunable_is_refused_when_it_is_built() -> None:
    text = dispatch_text(TWO, Dialect.CPP, "two").replace("LANES=8", "LINES=8")
    spec = KernelSpec("dispatch.cpp", text, Dialect.CPP, Contract.HOST)
    with pytest.raises(KernelCodeError, match="member k12 of the dispatch declares no tunable 'LINES'"):
        kernel_build(spec, Workload("w", {"rows": 64, "dim": 65536}), signature(64, 65536), CPU)


def test_a_workload_without_the_setting_is_refused() -> None:
    with pytest.raises(KernelCodeError, match="decides by dim, which this workload does not set"):
        TWO.choose({"rows": 4})


GOOD = "// @dispatch dim\n// @member a\n// @shape dim=4\n" + TALL


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (GOOD.replace("@dispatch dim", "@dispatch"), "give the settings that decide"),
        (GOOD.replace("@dispatch dim", "@dispatch dim dim"), "give the settings that decide"),
        ("// @dispatch dim\n" + TALL, "has no @member"),
        (GOOD.replace("// @member a", "// @member"), "give a name"),
        (GOOD.replace("// @member a", "// @member a N=x"), "'N=x' is not NAME=NUMBER"),
        (GOOD.replace("dim=4", "rows=4"), "@shape: give dim"),
        (GOOD.replace("dim=4", "dim=4 dim=8"), "@shape: give dim, each once"),
        (GOOD.replace("dim=4", "dim=4 LANES=1.5"), "@shape: the value of LANES is not an integer"),
        (GOOD.replace("@member a", "@member a LANES=1.5"), "@member: the value of LANES is not an integer"),
        (GOOD.replace("dim=4", "dim=4x"), "'dim=4x' is not NAME=NUMBER"),
        (GOOD.replace("// @shape dim=4\n", ""), "has no @shape line"),
        (GOOD + GOOD.partition("\n")[2], "two members of the dispatch have one name"),
        ("// @dispatch dim\n// @member a\n// @shape dim=4\n\n", "member a has no code"),
        (GOOD.replace(TALL, "") + "int unused;\n// @member b\n// @shape dim=8\n" + TALL, r"a.cpp has no launch\(\)"),
        (GOOD.replace("launch", "start"), r"has no launch\(\)"),
    ],
)
def test_what_is_wrong_is_said(text: str, reason: str) -> None:
    with pytest.raises(KernelCodeError, match=reason):
        classify(text, "dispatch.cpp")


def test_cuda_members_need_one_contract() -> None:
    plan = '// @launch f<<<1, 1>>>()\nextern "C" __global__ void f() {}\n'
    host = 'extern "C" void launch(const float* x, float* out, void* w, void* s) {}\n'
    text = f"// @dispatch dim\n// @member a\n// @shape dim=4\n{plan}// @member b\n// @shape dim=8\n{host}"
    with pytest.raises(KernelCodeError, match="need the same contract, not a plan, b host"):
        classify(text, "dispatch.cu")

"""problem.h, checked by compiling it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.domain.errors import ProblemError
from engine.domain.model import Dialect, Number, Operand, Role, Signature
from engine.problem import header, names

DTYPES = (
    "float32 float64 float16 bfloat16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool float8_e4m3fn float8_e5m2"
).split()
SIZES = {"float64": 8, "int64": 8, "uint64": 8, "float32": 4, "int32": 4, "uint32": 4}
SIZES |= {"float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2}
GXX = ["g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-x", "c++"]
AWKWARD = ("key", "size", "time", "default", "x", "X", "X_NUMEL", "größe", "2nd", "", "_x", "__y", "out", "M", "int8", "a-b")


def every_type() -> Signature:
    rows = [Operand(f"v_{d}", Role.INPUT, (2, 3), d) for d in DTYPES]
    return Signature((*rows, Operand("out", Role.OUTPUT, (), "float32")), {"EPS": 1e-05, "BATCH_SIZE": 7})


def awkward() -> Signature:
    rows = [Operand(name, Role.INPUT, (i + 1,), "float32") for i, name in enumerate(AWKWARD)]
    constants: dict[str, Number] = {
        "M": 3,
        "X_NUMEL": 99,
        "EOF": -1,
        "SMS": 2,
        "NAN": 1.5,
        "I": 1,
        "größe": 4,
        "LOWEST": -(2**63),
        "HIGHEST": 2**64 - 1,
        "BEYOND": 2**64,
        "INFINITE": float("inf"),
        "TINY": 5e-324,
        "MINUS": -0.25,
        "NULL": 0,
    }
    return Signature(tuple(rows), constants)


def compile_cpp(text: str, source: str, folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    (folder / "problem.h").write_text(text)
    command = [*GXX, f"-I{folder}", *flags, "-"]
    return subprocess.run(command, input=source, text=True, capture_output=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("signature", [every_type(), awkward(), Signature((), {})], ids=["types", "awkward", "nothing"])
def test_cpp_header_compiles_alone_twice_and_before_system_headers(signature: Signature, tmp_path: Path) -> None:
    text = header.render(signature, Dialect.CPP, "small")
    system = "".join(f"#include <{h}>\n" for h in ("cstdlib", "ctime", "cmath", "algorithm", "cstdio", "sys/types.h"))
    source = f'#include "problem.h"\n#include "problem.h"\n{system}int main() {{ return 0; }}\n'
    done = compile_cpp(text, source, tmp_path, "-fsyntax-only")
    assert done.returncode == 0, done.stderr


def test_element_types_are_as_wide_as_torchs(tmp_path: Path) -> None:
    checks = "".join(f"static_assert(sizeof(v_{d}_t) == {SIZES.get(d, 1)});\n" for d in DTYPES)
    done = compile_cpp(
        header.render(every_type(), Dialect.CPP, "w"), f'#include "problem.h"\n{checks}', tmp_path, "-fsyntax-only"
    )
    assert done.returncode == 0, done.stderr


def test_bf16_reads_and_writes_as_bfloat16(tmp_path: Path) -> None:
    body = """
    #include "problem.h"
    #include <cstdio>
    #include <cstdlib>
    int main(int count, char** values) {
        for (int i = 1; i < count; ++i) {
            const bf16 b = std::strtof(values[i], nullptr);
            std::printf("%u %a\\n", b.bits, static_cast<double>(float(b)));
        }
    }
    """
    done = compile_cpp(header.render(every_type(), Dialect.CPP, "w"), body, tmp_path, f"-o{tmp_path}/run")
    assert done.returncode == 0, done.stderr
    values = ["1", "-2.5", "3.14159", "1.00390625", "1.01171875", "nan", "inf", "3.4e38", "1e-40"]
    out = subprocess.run([f"{tmp_path}/run", *values], text=True, capture_output=True, check=True).stdout.splitlines()
    torch = pytest.importorskip("torch")
    for value, line in zip(values, out, strict=True):
        bits, shown = line.split()
        expected = torch.tensor(float(value), dtype=torch.float32).bfloat16()
        if value == "nan":
            assert "nan" in shown
        else:
            assert int(bits) == expected.view(torch.uint16).item()
            assert float.fromhex(shown) == expected.item()


@pytest.mark.parametrize(("name", "dtype"), [("fp8_e4m3", "float8_e4m3fn"), ("fp8_e5m2", "float8_e5m2")])
def test_eight_bit_floats_read_and_write_as_torchs(name: str, dtype: str, tmp_path: Path) -> None:
    """Every value of the type, and floats at, beside and between all of them. torch's releases differ beyond e4m3's largest."""
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    every = torch.arange(256, dtype=torch.uint8).view(kind).float()
    ordered = every[every.isfinite()].sort().values
    between = (ordered[1:].double() + ordered[:-1].double()).div(2).float()
    given = torch.cat([every, between, torch.tensor([449.0, 464.0, 464.1, 480.0, 61439.0, 61440.0, 65536.0, 1e-9, 3e38])])
    values = torch.cat([given, given.nextafter(torch.tensor(float("inf"))), given.nextafter(torch.tensor(-float("inf")))])
    values = torch.cat([values, torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])])
    body = f"""
    #include "problem.h"
    #include <cstdio>
    int main() {{
        float value;
        while (std::fread(&value, sizeof value, 1, stdin)) {{
            const {name} narrow = value;
            const float again = narrow;
            std::fwrite(&narrow, 1, 1, stdout);
            std::fwrite(&again, sizeof again, 1, stdout);
        }}
    }}
    """
    done = compile_cpp(header.render(every_type(), Dialect.CPP, "w"), body, tmp_path, "-O3", f"-o{tmp_path}/run")
    assert done.returncode == 0, done.stderr
    out = subprocess.run([f"{tmp_path}/run"], input=values.numpy().tobytes(), capture_output=True, check=True).stdout
    found = torch.frombuffer(bytearray(out), dtype=torch.uint8).view(-1, 5)
    right = (values.clamp(-448, 448) if name == "fp8_e4m3" else values).to(kind)
    assert torch.equal(found[:, 0], right.view(torch.uint8))
    read = found[:, 1:].contiguous().view(torch.float32).flatten()
    assert torch.equal(read.nan_to_num(12345.0), right.float().nan_to_num(12345.0))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("kind", ["types", "awkward"])
def test_cuda_header_compiles_for_device_code(kind: str, tmp_path: Path) -> None:
    signature = awkward()
    if kind == "types":
        rows = [Operand(f"v_{d}", Role.INPUT, (2, 3), d) for d in DTYPES]
        signature = Signature(tuple(rows), {"EPS": 1e-05})
    (tmp_path / "problem.h").write_text(header.render(signature, Dialect.CUDA, "full"))
    parameters = ", ".join(f"const {names.type_name(o.name)}* p{i}" for i, o in enumerate(signature.operands))
    (tmp_path / "k.cu").write_text(f'#include "problem.h"\nextern "C" __global__ void k({parameters}) {{}}\n')
    command = ["nvcc", "-cubin", "-std=c++17", "-Werror", "all-warnings", "-arch=sm_90a", "-o", "k.cubin", "k.cu"]
    done = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_cuda_includes_half_headers_only_if_an_operand_needs_them() -> None:
    plain = Signature((Operand("x", Role.INPUT, (1,), "float32"),), {})
    half = Signature((Operand("x", Role.INPUT, (1,), "float16"),), {})
    assert "cuda_fp16.h" not in header.render(plain, Dialect.CUDA, "w")
    text = header.render(half, Dialect.CUDA, "w")
    assert "#include <cuda_fp16.h>" in text
    assert "cuda_bf16.h" not in text
    assert "typedef __half x_t;" in text


def test_the_softmax_header_matches_the_documentation() -> None:
    operands = (Operand("x", Role.INPUT, (128, 16384), "float32"), Operand("out", Role.OUTPUT, (128, 16384), "float32"))
    text = header.render(Signature(operands, {"BATCH_SIZE": 128, "DIM": 16384, "EPS": 1e-05}), Dialect.CPP, "small")
    for line in (
        '#define ESPALIER_WORKLOAD "small"',
        "#define BATCH_SIZE 128",
        "#define EPS 1e-05",
        "#define X_NUMEL 2097152",
        "#define X_RANK 2",
        "#define X_DIM1 16384",
        "typedef float x_t;",
        "typedef float out_t;",
        "/* out: output, 128 x 16384, float32, contiguous, row-major. */",
    ):
        assert line in text.splitlines()
    for heading in ("X_DIM2", "SMS"):
        assert heading not in text


def test_an_operand_that_had_to_give_way_to_a_constant_says_so() -> None:
    operands = tuple(Operand(name, Role.PARAMETER, (64,), "float32") for name in ("D_", "e_", "w"))
    text = header.render(Signature(operands, {"D": 64}), Dialect.CPP, "small")
    assert "/* D_ (not D, which is a constant): parameter, 64, float32, contiguous, row-major. */" in text
    assert "/* e_: parameter, 64" in text
    assert names.instead_of("D__", {"D": 64}) == "not D, which is a constant"


def test_python_kernels_and_types_unknown_to_c_are_rejected() -> None:
    strange = Operand("z", Role.INPUT, (1,), "complex64")
    assert not header.has_type(strange)
    with pytest.raises(ProblemError, match="operand z has dtype complex64"):
        header.render(Signature((strange,), {}), Dialect.CPP, "w")
    with pytest.raises(ProblemError, match="python"):
        header.render(Signature((), {}), Dialect.PYTHON, "w")


def test_plan_names_has_the_units_and_every_macro() -> None:
    text = header.render(awkward(), Dialect.CPP, "w")
    defined = set(re.findall(r"^#define (\w+) [^\"]", text, re.MULTILINE))
    assert header.plan_names(awkward(), 132).keys() == defined | {"SMS"}
    assert header.plan_names(awkward(), 132)["SMS"] == 132


shapes = st.lists(st.integers(0, 2**20), max_size=5).map(tuple)
operands = st.builds(
    Operand, st.text(max_size=12) | st.sampled_from(AWKWARD), st.sampled_from(Role), shapes, st.sampled_from(DTYPES[:13])
)
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
constants = st.dictionaries(st.text(max_size=12) | st.sampled_from(["M", "SMS", "X", "EOF"]), numbers, max_size=8)


def distinct(rows: list[Operand]) -> bool:
    """Names as in a signature: they differ as C identifiers even in upper case."""
    return len({names.identifier(o.name).upper() for o in rows}) == len(rows)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much])
@given(rows=st.lists(operands, max_size=5).filter(distinct), table=constants, workload=st.text(max_size=20))
def test_every_macro_survives_the_preprocessor(
    tmp_path: Path, rows: list[Operand], table: dict[str, Number], workload: str
) -> None:
    signature = Signature(tuple(rows), table)
    text = header.render(signature, Dialect.CPP, workload)
    expected = header.plan_names(signature, 4)
    assert sum(len(o.shape) + 2 for o in rows) + len(table) + 1 == len(expected)
    probes = "".join(f'probe "{name}" = {name};\n' for name in expected)
    done = compile_cpp(text, f'#include "problem.h"\n{probes}', tmp_path, "-E", "-P")
    assert done.returncode == 0, done.stderr
    found = dict(re.findall(r'^probe "(\w+)" = (.*);$', done.stdout, re.MULTILINE))
    for name, value in expected.items():
        if name != "SMS":
            assert eval(found[name].removesuffix("u")) == value
    if not any(o.dtype == "bfloat16" for o in rows):
        done = compile_cpp(text, '#include "problem.h"\n', tmp_path, "-fsyntax-only")
        assert done.returncode == 0, done.stderr

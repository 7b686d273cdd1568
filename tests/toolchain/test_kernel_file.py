"""Reading kernel files: classification, and one-line errors for other files."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domain.errors import KernelCodeError
from engine.domain.model import Contract, Dialect
from engine.toolchain.kernel_file import MAX_CODE_BYTES, KernelCode, classify, launch_parameters, read_kernel_file

PLAN = '// @launch k(x) grid(1) block(1)\nextern "C" __global__ void k(float* x) {}\n'
HOST = 'extern "C" void launch(const float* x) {}\n'


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("k.cu", PLAN, (Dialect.CUDA, Contract.PLAN)),
        ("k.cu", HOST, (Dialect.CUDA, Contract.HOST)),
        ("K.CU", PLAN + HOST, (Dialect.CUDA, Contract.PLAN)),
        ("k.cpp", HOST, (Dialect.CPP, Contract.HOST)),
        ("k.cc", HOST, (Dialect.CPP, Contract.HOST)),
        ("k.py", "import torch\nclass ModelNew(torch.nn.Module): ...\n", (Dialect.PYTHON, Contract.MODULE)),
        ("k.py", "def ModelNew(width):\n    return None\n", (Dialect.PYTHON, Contract.MODULE)),
    ],
)
def test_suffix_and_content_decide_dialect_and_contract(name: str, text: str, expected: tuple[Dialect, Contract]) -> None:
    assert classify(text, name) == expected


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("k.cu", "__global__ void k() {}\n// launch(1)", "does not say how it is launched"),
        ("k.cu", "// @lanch k(x) grid(1) block(1)\n", "did you mean @launch?"),
        ("k.cpp", "int main() { relaunch(); }", "has no launch()"),
        ("k.py", "class Model: ...\n# class ModelNew\n", "has no `class ModelNew`, but a `class Model`: rename it to ModelNew"),
        ("k.py", "import torch\n", "has no `class ModelNew`: a python kernel"),
        ("k.txt", HOST, "unknown suffix '.txt': use one of .cu, .cpp"),
        ("kernel", HOST, "unknown suffix ''"),
    ],
)
def test_code_without_a_known_dialect_or_contract_is_refused(name: str, text: str, message: str) -> None:
    with pytest.raises(KernelCodeError) as caught:
        classify(text, name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_bytes(b"\xef\xbb\xbf" + PLAN.encode())
    assert read_kernel_file(path) == KernelCode(PLAN, Dialect.CUDA, Contract.PLAN, "mine.cu")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b" \n\t\n", "is empty"),
        (b"\x7fELF\x02\x01\x01\0\0", "is binary"),
        (b"// caf\xe9\n", "byte 6 is not UTF-8"),
        (b"/" * (MAX_CODE_BYTES + 1), "larger than 1 MiB"),
    ],
)
def test_a_file_that_is_empty_binary_or_too_large_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "k.cu"
    path.write_bytes(data)
    with pytest.raises(KernelCodeError) as caught:
        read_kernel_file(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.cu", "no kernel file"),
        ("", "is a folder"),
        ("a\0b.cu", "cannot be read"),
        ("x" * 300, "cannot be read"),
    ],
)
def test_a_path_that_is_no_file_is_refused(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(KernelCodeError) as caught:
        read_kernel_file(tmp_path / name)
    assert message in str(caught.value)


@given(st.text(max_size=100), st.sampled_from(["k.cu", "k.cpp", "k.py", "k"]))
def test_any_text_is_classified_or_raises_a_code_error(text: str, name: str) -> None:
    with contextlib.suppress(KernelCodeError):
        classify(text, name)


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        (HOST, 1),
        ('extern "C" void launch(const x_t* x, /* w, b */ out_t* out,\n  void*, cudaStream_t stream) {}', 4),
        ('extern "C" void launch() {}', 0),
        ("#define ARGS const float* x, float* out\nvoid launch(ARGS);\nvoid launch(const float* x, float* out) {}", None),
        ('extern "C" void launch(void (*callback)(int), float* out) {}', None),
        ("static void helper() { launch(1, 2, 3); }", None),
    ],
)
def test_the_parameters_of_launch_are_counted(text: str, parameters: int | None) -> None:
    assert launch_parameters(text) == parameters

"""Headers that declare what an extension's text uses, in place of torch's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from engine.trial.runner import torch_headers

TENSORS, TYPES = "ATen/ATen.h", "torch/types.h"


@pytest.fixture
def includes(tmp_path: Path) -> Path:
    """The include folder of a torch with two operators."""
    for name in ("ATen/core/Tensor.h", "ATen/Dispatch.h", "ATen/ops/zeros_like.h", "ATen/ops/sum.h"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    own = tmp_path / "torch" / "csrc" / "api" / "include" / TYPES
    own.parent.mkdir(parents=True)
    own.write_text("#include <ATen/ATen.h>\nnamespace torch {\n\n// Names\nusing namespace at; // all\n} // namespace torch\n")
    factories = tmp_path / "torch" / "csrc" / "autograd" / "generated" / "variable_factories.h"
    factories.parent.mkdir(parents=True)
    body = "{\n  return autograd::make_variable(at::NAME(x), false);\n}\n"
    of = {"zeros_like": "const at::Tensor & x", "eye": "int64_t x"}
    texts = [f"inline at::Tensor {name}({given}) {body.replace('NAME', name)}" for name, given in of.items()]
    factories.write_text(f"namespace torch {{\n{''.join(texts)}}} // namespace torch\n")
    return tmp_path


def lines(code: str, includes: Path) -> list[str]:
    headers = torch_headers.light_headers(code, includes)
    return [*headers[TENSORS].splitlines(), *headers[TYPES].splitlines()]


def test_operators_that_the_text_names_are_declared(includes: Path) -> None:
    found = lines("auto f = torch::zeros_like; at :: sum (x); torch::Tensor y; torch::relu(x); sum(y)", includes)
    assert [line for line in found if "ops/" in line] == ["#include <ATen/ops/sum.h>", "#include <ATen/ops/zeros_like.h>"]
    assert "#include <ATen/core/Tensor.h>" in found


def test_names_of_torch_are_those_of_its_own_header(includes: Path) -> None:
    found = lines("torch::zeros_like(x)", includes)
    assert found[found.index("namespace torch {") :][:3] == [
        "namespace torch {",
        "using namespace at; // all",
        "} // namespace torch",
    ]
    assert "inline at::Tensor zeros_like(const at::Tensor & x) {" in found
    assert "  return espalier_made(at::zeros_like(x), false);" in found
    assert not any("eye" in line for line in found)


@pytest.mark.parametrize(
    ("code", "header"),
    [
        ("AT_DISPATCH_FLOATING_TYPES(t, n, f)", "ATen/Dispatch.h"),
        ("std::numeric_limits<float>::max()", "limits"),
    ],
)
def test_what_few_modules_use_is_declared_for_those(code: str, header: str, includes: Path) -> None:
    assert f"#include <{header}>" in lines(code, includes)
    assert f"#include <{header}>" not in lines("std::max(1, 2)", includes)


@pytest.mark.parametrize(
    "code",
    [
        "torch::zeros({4}, torch::TensorOptions().requires_grad(true))",
        "torch::tensor({1, 2})",
        "torch::from_blob(p, {4})",
        "using namespace torch;",
        "namespace t = torch;",
        "#include <torch/csrc/autograd/variable.h>",
    ],
)
def test_where_autograds_headers_may_be_needed_torchs_own_types_are_read(code: str, includes: Path) -> None:
    headers = torch_headers.light_headers(code, includes)
    assert headers.keys() == {"torch/extension.h", "torch/torch.h"}
    assert f"#include <{TYPES}>" in headers["torch/extension.h"]


def test_a_python_attribute_is_no_such_call(includes: Path) -> None:
    assert TYPES in torch_headers.light_headers("p.requires_grad = False; torch.tensor([1])", includes)


def test_without_torchs_headers_none_stands_for_them(tmp_path: Path) -> None:
    assert TYPES not in torch_headers.light_headers("", tmp_path)


def test_compilers_read_them_before_other_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("NVCC_PREPEND_FLAGS", "")
    monkeypatch.setenv("CPATH", "/kit")
    folder = torch_headers.use("torch::zeros_like(x)")
    assert os.environ["NVCC_PREPEND_FLAGS"] == f"-I{folder}"
    assert os.environ["CPATH"] == f"{folder}:/kit"
    assert folder.is_relative_to(tmp_path)
    before = (folder / TYPES).stat().st_mtime_ns
    assert torch_headers.use("torch::zeros_like(x)") == folder
    assert os.environ["CPATH"] == f"{folder}:/kit"
    assert (folder / TYPES).stat().st_mtime_ns == before


CUDA = """
#include <torch/types.h>
#include <torch/extension.h>
#include <ATen/ATen.h>
#include <cuda_runtime.h>
template <typename T> __global__ void twice(const T* x, T* y, int n) {
  if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x] + x[threadIdx.x];
}
__global__ void rows(torch::PackedTensorAccessor32<float, 2, torch::RestrictPtrTraits> x) { x[0][threadIdx.x] = 1; }
torch::Tensor run(torch::Tensor x, c10::optional<torch::Tensor> mask, torch::IntArrayRef shape) {
  TORCH_CHECK(x.is_contiguous() && x.scalar_type() == torch::kFloat32, "not contiguous: ", x.sizes());
  const at::DeviceGuard guard(x.device());
  auto options = torch::TensorOptions().dtype(torch::kFloat32).device(torch::kCUDA, 0);
  auto y = torch::empty_like(x).to(torch::kFloat32);
  auto z = torch::full(shape, 2.0, options) + torch::zeros({4}, torch::dtype(torch::kF16).device(x.device()));
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "twice", [&] {
    twice<scalar_t><<<1, 32>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), x.numel());
  });
  rows<<<1, 32>>>(y.packed_accessor32<float, 2, torch::RestrictPtrTraits>());
  std::vector<int64_t> first = {0};
  return at::sum(y * 2 + z, first, true).index({torch::indexing::Slice(0, 1)});
}
"""
HOST = """
#include <torch/extension.h>
torch::Tensor run(torch::Tensor x, c10::optional<torch::Tensor> mask, torch::IntArrayRef shape);
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", torch::wrap_pybind_function(run), "run"); }
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize(
    ("name", "code", "command"),
    [
        ("cuda.cu", CUDA, ["nvcc", "-arch=sm_90", "--expt-relaxed-constexpr"]),
        ("main.cpp", HOST, ["g++", "-fPIC", "-DTORCH_EXTENSION_NAME=mine"]),
    ],
    ids=["cuda", "host"],
)
def test_an_extension_compiles_with_them(
    name: str, code: str, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.utils import cpp_extension

    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("NVCC_PREPEND_FLAGS", "")
    monkeypatch.setenv("CPATH", "")
    (tmp_path / name).write_text(code)
    paths = [part for path in cpp_extension.include_paths() for part in ("-isystem", path)]
    paths += ["-isystem", sysconfig.get_path("include")]
    torch_headers.use(CUDA + HOST)
    whole = [
        *command,
        "-std=c++20",
        *paths,
        str(tmp_path / name),
        "-c",
        "-o",
        str(tmp_path / "out"),
        "-MD",
        "-MF",
        str(tmp_path / "d"),
    ]
    found = subprocess.run(whole, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    read = (tmp_path / "d").read_text()
    assert "torch_headers" in read
    assert "ATen/Functions.h" not in read
    assert ("pybind11" in read) == (name == "main.cpp")

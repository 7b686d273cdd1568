"""Headers that stand for torch's own where a module's extension is compiled ahead: they declare what its text uses.

Most of the time that nvcc takes for a short kernel it reads torch's headers: 46 s of a core for all of ``torch/extension.h``,
23 s for ``torch/types.h``, 11 s for tensors and the operators that the text calls. g++ takes 6 s instead of 15 s for the
bindings. What a light header lacks is an error of the compiler, after which all is compiled again with torch's own.

Functions of ``torch`` that hide those of ``at`` are copied from torch's header, so that a call does the same with either.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from collections.abc import Mapping, Set
from pathlib import Path

_STANDS = "// Stands for torch's own header: declares what the module's text uses.\n#pragma once\n"
_TYPES = "torch/types.h"
_TENSORS = "ATen/ATen.h"
_OPERATORS = Path("ATen", "ops")
_OWN_TYPES = Path("torch", "csrc", "api", "include", _TYPES)
"""Torch's own header, in its include folder."""
_OWN_FACTORIES = Path("torch", "csrc", "autograd", "generated", "variable_factories.h")
_NAMES = re.compile(r"^namespace torch \{$.*^\} // namespace torch$", re.MULTILINE | re.DOTALL)
"""What torch's own header declares in ``torch`` itself: ``using namespace at`` and short names of data types."""
_FACTORY = re.compile(r"^inline at::Tensor (\w+)\(.*?^\}$", re.MULTILINE | re.DOTALL)
"""A function of ``torch`` that hides its namesake in ``at``: calls that below autograd, and makes a variable of the tensor."""
_MAKE = "autograd::make_variable("
_MADE = (
    "inline at::Tensor espalier_made(at::Tensor tensor, bool requires_grad) {\n"
    "  return requires_grad ? tensor.set_requires_grad(true) : tensor;\n}\n"
)
"""Stands for ``_MAKE``, which needs the headers of autograd."""
_COMMENT = re.compile(r"^\s*//.*\n|^\s*\n", re.MULTILINE)
_NAMED = re.compile(r"\b(?:torch|at)\s*::\s*([A-Za-z_]\w*)")
_READ_ANYWAY = frozenset({"empty", "empty_like", "scalar_tensor", "zeros"})
"""Functions of ``at`` that other headers declare: those of ``torch`` must hide them also where the text hides a call."""
_COMMON = "array|get|make_pair|make_tuple|max|min|move|optional|pair|size_t|string|tie|to_string|tuple|vector"
"""Names of the standard library that the tensor class needs itself."""
_OTHERS = re.compile(
    r"\brequires_grad\s*\(|\b(?:torch|at)\s*::\s*(?:tensor|from_blob|from_file)\b"
    r"|\bnamespace\s+(?:\w+\s*=\s*)?(?:torch|at)\b"
    r"|#\s*include\s*[<\"]torch/(?!(?:extension|torch|types)\.h)"
)
"""Functions that need autograd's headers, text that may hide a call of one, and other headers of torch's."""
_PYTHON = "#ifndef __CUDACC__\n#include <torch/csrc/Exceptions.h>\n#include <torch/csrc/utils/pybind.h>\n#endif\n"
"""For the file with the bindings, which the host's compiler reads."""
_ALWAYS = (
    "ATen/core/Tensor.h", "ATen/DeviceGuard.h", "ATen/Formatting.h", "ATen/TensorOperators.h",
    "ATen/core/LegacyTypeDispatch.h", "ATen/core/grad_mode.h",
    "c10/core/InferenceMode.h", "c10/core/ScalarType.h", "c10/core/TensorOptions.h", "c10/util/Exception.h",
    "c10/util/Optional.h", "math.h", "stdlib.h", "string.h",
)  # fmt: skip
"""Those of torch's that exist. ``math.h`` and ``stdlib.h`` declare ``abs`` of floats: without them ``abs`` could round."""
_PARTS = {
    re.compile(r"\bAT_(?:DISPATCH|PRIVATE)"): ("ATen/Dispatch.h",),
    re.compile(r"\bindexing\b|\bTensorIndex\b|\.index(?:_put_?)?\s*\("): ("ATen/TensorIndexing.h",),
    re.compile(r"\bglobalContext\b"): ("ATen/Context.h",),
    re.compile(rf"\bstd\s*::\s*(?!(?:{_COMMON})\b)"): (
        "algorithm", "array", "cfloat", "climits", "functional", "iostream", "limits", "map", "memory", "mutex", "numeric",
        "set", "sstream", "unordered_map",
    ),
}  # fmt: skip
"""Headers that the text needs if it matches; reading one takes nvcc 1 to 3 s."""


def use(code: str) -> Path:
    """Have nvcc and g++ read light headers for this module from now on. Raises OSError if they cannot be written.

    They lie among the extensions, whose caches keep them: the builder compiles again what reads a file that is gone or changed.
    """
    headers = light_headers(code, torch_includes())
    known = hashlib.sha256(repr(sorted(headers.items())).encode()).hexdigest()[:16]
    folder = Path(os.environ["TORCH_EXTENSIONS_DIR"], "torch_headers", known)
    if not folder.is_dir():
        write(headers, folder)
    os.environ["NVCC_PREPEND_FLAGS"] = f"-I{folder}"
    others = (place for place in os.environ.get("CPATH", "").split(os.pathsep) if place not in ("", str(folder)))
    os.environ["CPATH"] = os.pathsep.join([str(folder), *others])  # read before torch's own, which are system headers
    return folder


def torch_includes() -> Path:
    """Torch's include folder, found without importing torch; a relative path if torch is not installed."""
    spec = importlib.util.find_spec("torch")
    return Path(*(spec.submodule_search_locations or ()) if spec is not None else ()) / "include"


def light_headers(code: str, includes: Path) -> dict[str, str]:
    """Texts of the headers for a module with this text, by the name that it includes them by."""
    outer = f"{_STANDS}#include <{_TYPES}>\n{_PYTHON}"
    headers = {"torch/extension.h": outer, "torch/torch.h": outer}
    named = {*_NAMED.findall(code), *_READ_ANYWAY}
    if not _OTHERS.search(code) and (names := _of_torch(named, includes)):
        headers |= {_TENSORS: _tensors(code, named, includes), _TYPES: f"{_STANDS}#include <{_TENSORS}>\n{names}"}
    return headers


def write(headers: Mapping[str, str], folder: Path) -> None:
    """Write them where compilers look for ``torch``. Raises OSError."""
    for name, text in headers.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def _of_torch(named: Set[str], includes: Path) -> str:
    """What torch's own headers declare in ``torch`` itself, of functions those that are named; empty if that is not found."""
    try:
        names = _NAMES.search((includes / _OWN_TYPES).read_text())
        factories = list(_FACTORY.finditer((includes / _OWN_FACTORIES).read_text()))
    except OSError:
        return ""
    if names is None or not factories:
        return ""
    hiding = "".join(found[0].replace(_MAKE, "espalier_made(") + "\n" for found in factories if found[1] in named)
    return f"{_COMMENT.sub('', names[0])}\nnamespace torch {{\n{_MADE}{hiding}}}\n"


def _tensors(code: str, named: Set[str], includes: Path) -> str:
    wanted = [*_ALWAYS, *(name for pattern, part in _PARTS.items() if pattern.search(code) for name in part)]
    wanted += [str(_OPERATORS / f"{name}.h") for name in sorted(named)]
    there = (name for name in dict.fromkeys(wanted) if "/" not in name or (includes / name).is_file())
    lines = "".join(f"#include <{name}>\n" for name in there)
    return f"{_STANDS}#ifndef AT_PER_OPERATOR_HEADERS\n#define AT_PER_OPERATOR_HEADERS\n#endif\n{lines}"

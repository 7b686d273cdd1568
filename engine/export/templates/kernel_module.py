"""Template: an exported module's kernel, compiled once, registered as a torch operator, called by ``ModelNew``.

``engine.export.template`` copies this file into the module. It fills in the constants, replaces ``Model`` by the reference's
code, and appends ``_`` to names that the reference uses as well. No decorators, and each import binds plain names.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch

from engine.export.templates.nested_arguments import _tensors

Model = torch.nn.Module

OPERATOR_NAME = "espalier::template"

SCHEMA = "(Tensor x) -> Tensor"

KERNELS = [""]

BUILDS: list[dict[str, Any]] = [
    {
        "kernel": 0,
        "header": "",
        "command": ["g++"],
        "operands": [("x", "input", (1,), torch.float32), ("out", "output", (1,), torch.float32)],
        "numbers": {},
        "workspace_bytes": None,
    },
]

FILE = "kernel.cpp"

FORWARD = ["x"]

ANY_SHAPE = False

PLAN = False

ENTRY = "launch"

TROUBLE = ""

DEVICE = "cpu"

POISON: list[bool] = []


def _compiler(name: str) -> str:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), os.path.join(home, "bin")]))
    if found is None:
        raise RuntimeError(f"{name} not found: this kernel is compiled with it")
    return found


def _output(*command: str) -> str:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False).stdout


def _cache() -> Path:
    """The folder of compiled kernels, writable only by this user."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    usual = Path(os.environ.get("ESPALIER_CACHE") or os.path.join(cache, "espalier")) / "exported"
    for place in (usual, Path(tempfile.gettempdir()) / f"espalier-{os.getuid()}"):
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            if place.stat().st_uid == os.getuid() and os.access(place, os.W_OK | os.X_OK):
                return place
        except OSError:
            continue
    raise RuntimeError(f"cannot write to {usual}: set ESPALIER_CACHE to a writable folder")


def _compiled(kernel: str, header: str, words: list[str]) -> ctypes.CDLL:
    """Compile and load a kernel. The file is named by the digest of its inputs and put in place by one rename."""
    compiler = _compiler(words[0])
    parts = [kernel, header, *words, compiler, _output(compiler, "--version")]
    if "-march=native" in words:
        parts.append(_output(compiler, "-march=native", "-Q", "--help=target"))
    binary = _cache() / f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:32]}.so"
    if not binary.exists():
        with tempfile.TemporaryDirectory(dir=binary.parent) as folder:
            Path(folder, FILE).write_text(kernel)
            Path(folder, "problem.h").write_text(header)
            command = [compiler, FILE, *words[1:], "-o", "kernel.so"]
            done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            if done.returncode:
                lines = (done.stderr or done.stdout).splitlines() or [f"exit status {done.returncode}"]
                raise RuntimeError(f"{words[0]} failed: " + next((x for x in lines if "error" in x), lines[0]))
            os.replace(Path(folder, "kernel.so"), binary)
    try:
        return ctypes.CDLL(str(binary))
    except OSError as error:
        raise RuntimeError(f"cannot load {binary}: {error}") from error


def _module(kernel: str) -> ModuleType:
    """Import a kernel's file, which Triton compiles when it is launched. The file is named by its digest."""
    name = f"espalier_{hashlib.sha256(kernel.encode()).hexdigest()[:32]}"
    file = _cache() / f"{name}.py"
    if not file.exists():
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            Path(folder, FILE).write_text(kernel, encoding="utf-8")
            os.replace(Path(folder, FILE), file)
    loader = SourceFileLoader(name, str(file))
    module = sys.modules[name] = ModuleType(name)
    module.__file__, module.__loader__ = str(file), loader
    loader.exec_module(module)
    return module


def _loaded(build: int) -> Any:
    kernel = KERNELS[BUILDS[build]["kernel"]]
    return _module(kernel) if FILE.endswith(".py") else _compiled(kernel, BUILDS[build]["header"], BUILDS[build]["command"])


_library = functools.cache(_loaded)


def _mismatch(build: int, given: tuple[torch.Tensor, ...]) -> str:
    """How the tensors differ from what a build is compiled for; empty if they do not."""
    expected = [operand for operand in BUILDS[build]["operands"] if operand[1] != "output"]
    if len(given) != len(expected):
        return f"expected {len(expected)} tensors, got {len(given)}"
    for tensor, (name, _, shape, dtype) in zip(given, expected, strict=True):
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            return f"{name}: expected {dtype} {shape}, got {tensor.dtype} {tuple(tensor.shape)}"
    return ""


def _build_for(given: tuple[torch.Tensor, ...]) -> int:
    """The build for these tensors. Raises ValueError if there is none."""
    found = [build for build in range(len(BUILDS)) if not _mismatch(build, given)]
    if not found:
        known = "" if len(BUILDS) == 1 else f", or another of {len(BUILDS)} shapes"
        raise ValueError(f"{_mismatch(0, given)}{known}")
    return found[0]


def _outputs(build: int, device: torch.device) -> list[torch.Tensor]:
    operands = BUILDS[build]["operands"]
    return [torch.empty(shape, dtype=dtype, device=device) for _, role, shape, dtype in operands if role == "output"]


def _workspace(library: Any, size: int | None, device: torch.device) -> torch.Tensor:
    if size is None and hasattr(library, "workspace_bytes"):
        library.workspace_bytes.restype = ctypes.c_size_t
        size = library.workspace_bytes()
    return torch.empty(max(size or 0, 1), dtype=torch.uint8, device=device)


def _call(library: Any, tensors: list[torch.Tensor], workspace: torch.Tensor) -> None:
    """Launch the kernel. Raises RuntimeError with the runtime's message if the launch fails."""
    if FILE.endswith(".py"):
        getattr(library, ENTRY)(tensors, workspace)
        return
    addresses, rest = [tensor.data_ptr() for tensor in tensors], [ctypes.c_void_p(workspace.data_ptr())]
    if DEVICE == "cuda":
        rest.append(ctypes.c_void_p(torch.cuda.current_stream(tensors[0].device).cuda_stream))
    entry, trouble = library[ENTRY], None
    if PLAN:
        entry.restype = ctypes.c_char_p
        trouble = entry((ctypes.c_void_p * len(addresses))(*addresses), *rest)
    else:
        entry.restype = None
        entry(*(ctypes.c_void_p(address) for address in addresses), *rest)
    if TROUBLE:
        reporter = library[TROUBLE]
        reporter.restype = ctypes.c_char_p
        trouble = reporter()
    if trouble:
        raise RuntimeError(f"kernel launch failed: {trouble.decode()}")


def _launch(build: int, given: tuple[torch.Tensor, ...]) -> Any:
    library, device = _library(build), given[0].device
    outputs = _outputs(build, device)
    for tensor in outputs if POISON else []:
        if tensor.dtype != torch.bool:
            tensor.fill_(float("nan") if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max)
    workspace = _workspace(library, BUILDS[build]["workspace_bytes"], device)
    _call(library, [*(tensor.contiguous() for tensor in given), *outputs], workspace)
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _run(*given: torch.Tensor) -> Any:
    """Call the kernel. Raises ValueError for tensors that no build is compiled for."""
    build = _build_for(given)
    for tensor, (name, *_) in zip(given, BUILDS[build]["operands"], strict=False):
        if tensor.device.type != DEVICE or tensor.device != given[0].device:
            raise ValueError(f"{name} is on {tensor.device}: all tensors must be on the same {DEVICE} device")
    with torch.cuda.device(given[0].device) if DEVICE == "cuda" else contextlib.nullcontext():
        return _launch(build, given)


def _fake(*given: torch.Tensor) -> Any:
    """Empty tensors shaped like the result of ``_run``."""
    outputs = _outputs(_build_for(given), given[0].device)
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


OPERATOR: Any = torch.library.custom_op(OPERATOR_NAME, _run, mutates_args=(), schema=SCHEMA)
OPERATOR.register_fake(_fake)


def _tensor_names(model: torch.nn.Module) -> list[str]:
    """Names of the model's parameters, buffers and other tensors."""
    names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    for prefix, part in model.named_modules():
        names += [f"{prefix}.{name}".strip(".") for name, value in vars(part).items() if isinstance(value, torch.Tensor)]
    return names


class ModelNew(Model):
    """The reference's model with the kernel as its forward. It has no backward pass, so its weights cannot be trained.

    With ``ANY_SHAPE`` it runs the reference on shapes that it is not built for.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.espalier_held = _tensor_names(self)

    def operands(self, *arguments: Any, **named: Any) -> list[torch.Tensor]:
        """The operator's arguments. Raises TypeError and ValueError for arguments that do not match."""
        values = [*arguments, *(named[name] for name in FORWARD[len(arguments) :] if name in named)]
        if len(values) != len(arguments) + len(named):
            raise TypeError(f"forward takes {', '.join(FORWARD)}")
        given, model = _tensors(values), cast(Any, self)
        for name in self.espalier_held:
            tensor = functools.reduce(getattr, name.split("."), model).detach()
            given.append(tensor.to(given[0].device) if given and tensor.device != given[0].device else tensor)
        fitting = [build for build in range(len(BUILDS)) if not _mismatch(build, tuple(given))]
        numbers = BUILDS[fitting[0] if fitting else 0]["numbers"]
        for name, value in zip(FORWARD, values, strict=False):
            if isinstance(value, (int, float)) and value != numbers.get(name, value):
                raise ValueError(f"{name} is {value}: the kernel is compiled for {numbers[name]}")
        return given

    def forward(self, *arguments: Any, **named: Any) -> Any:
        given = self.operands(*arguments, **named)
        if ANY_SHAPE and all(_mismatch(build, tuple(given)) for build in range(len(BUILDS))):
            return super().forward(*arguments, **named)
        return OPERATOR(*given)

"""The part of an exported module that is the kernel: compiled once, registered as an operator of torch, called by ``ModelNew``.

Knows ``torch.library`` and how compiled code is kept and loaded, as text that is written into the module. Nothing of it runs
here. The text holds no decorators, and takes no name that the reference has: ``fitted`` sees to that.
"""

from __future__ import annotations

import hashlib
import keyword
import re
from collections.abc import Collection, Sequence

from engine.domain.model import Operand, Role

NAMESPACE = "espalier"
_OWN = re.compile(r"^(?:def|class) (\w+)|^(\w+) = |^import (\w+)$|^from \S+ import (\w+)$", re.MULTILINE)
_KEPT = ("torch", "ModelNew", "Model")
_RENAMED = re.compile(r"^((?:from \S+ )?import )(\w+)_$", re.MULTILINE)


def fitted(text: str, taken: Collection[str]) -> str:
    """``text`` with a ``_`` behind each of its own names that ``taken`` holds too."""
    own = {name for found in _OWN.findall(text) for name in found if name}
    for name in sorted((own & set(taken)) - set(_KEPT)):
        text = re.sub(rf"\b{name}\b", f"{name}_", text)
    return _RENAMED.sub(r"\1\2 as \2_", text)


def name(problem: str, parts: Sequence[str]) -> str:
    """The operator's name: the problem's, and eight digits of everything that it is compiled from."""
    plain = re.sub(r"\W", "_", problem, flags=re.ASCII).lower().strip("_") or "kernel"
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
    return f"{NAMESPACE}::{f'n{plain}' if plain[0].isdigit() else plain}_{digest}"


def schema(operands: Sequence[Operand]) -> str:
    """What goes in and out, as torch's schema language says it."""
    given = [f"Tensor {_argument(o.name)}" for o in operands if o.role is not Role.OUTPUT]
    made = ["Tensor" for o in operands if o.role is Role.OUTPUT]
    returned = ", ".join(made)
    return f"({', '.join(given)}) -> {returned if len(made) == 1 else f'({returned})'}"


def _argument(operand: str) -> str:
    return f"{operand}_" if keyword.iskeyword(operand) or operand[0] == "_" else operand


HOST_CALL = """\
    library.launch.restype = None
    library.launch(*arguments)"""

ASKED = """
    library.@trouble@.restype = ctypes.c_char_p
    trouble = library.@trouble@()
    if trouble:
        raise RuntimeError(f"the kernel could not be launched: {trouble.decode()}")"""

PLAN_CALL = """\
    pointers = (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
    library.@entry@.restype = ctypes.c_char_p
    trouble = library.@entry@(pointers, *arguments[len(tensors):])
    if trouble:
        raise RuntimeError(f"the kernel could not be launched: {trouble.decode()}")"""

STREAM = """
    arguments.append(ctypes.c_void_p(torch.cuda.current_stream(tensors[0].device).cuda_stream))"""

BUILT = '''\
import contextlib
import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

KERNEL = @source@

PROBLEM_H = @header@

COMMAND = @command@

OPERANDS = [
@operands@
]

NUMBERS = @numbers@

FORWARD = @forward@

WORKSPACE_BYTES = @workspace@

DEVICE = @device@

POISON = []


def _compiler():
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    found = shutil.which(COMMAND[0], path=os.pathsep.join([os.environ.get("PATH", os.defpath), os.path.join(home, "bin")]))
    if found is None:
        raise RuntimeError(f"{COMMAND[0]} is missing, and this kernel is compiled with it")
    return found


def _answer(*command):
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout


def _folder():
    """Where what was compiled is kept: a folder that nobody but this user writes to."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    usual = Path(os.environ.get("ESPALIER_CACHE") or os.path.join(cache, "espalier")) / "exported"
    for place in (usual, Path(tempfile.gettempdir()) / f"espalier-{os.getuid()}"):
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            if place.stat().st_uid == os.getuid() and os.access(place, os.W_OK | os.X_OK):
                return place
        except OSError:
            continue
    raise RuntimeError(f"{usual} cannot be written: set ESPALIER_CACHE to a folder of yours")


def _build():
    """The compiled kernel: by the digest of all it depends on, put in place by one rename, so that others may do the same."""
    compiler = _compiler()
    parts = [KERNEL, PROBLEM_H, *COMMAND, compiler, _answer(compiler, "--version")]
    if "-march=native" in COMMAND:
        parts.append(_answer(compiler, "-march=native", "-Q", "--help=target"))
    binary = _folder() / f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:32]}.so"
    if not binary.exists():
        with tempfile.TemporaryDirectory(dir=binary.parent) as folder:
            Path(folder, "@file@").write_text(KERNEL)
            Path(folder, "problem.h").write_text(PROBLEM_H)
            command = [compiler, "@file@", *COMMAND[1:], "-o", "kernel.so"]
            done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode:
                lines = (done.stderr or done.stdout).splitlines() or [f"exit status {done.returncode}"]
                raise RuntimeError(f"{COMMAND[0]} refused the kernel: " + next((x for x in lines if "error" in x), lines[0]))
            os.replace(Path(folder, "kernel.so"), binary)
    try:
        return ctypes.CDLL(str(binary))
    except OSError as error:
        raise RuntimeError(f"{binary} cannot be loaded: {error}") from error


_library = functools.cache(_build)


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [tensor for inner in value for tensor in _tensors(inner)] if isinstance(value, (list, tuple)) else []


def _checked(given):
    wanted = [operand for operand in OPERANDS if operand[1] != "output"]
    if len(given) != len(wanted):
        raise ValueError(f"{len(given)} tensors were given, {len(wanted)} are needed")
    for tensor, (name, _, shape, dtype) in zip(given, wanted):
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}, the kernel is made for {dtype} {shape}")
    return given


def _outputs(device):
    return [torch.empty(shape, dtype=dtype, device=device) for _, role, shape, dtype in OPERANDS if role == "output"]


def _workspace(library, device):
    size = WORKSPACE_BYTES
    if size is None and hasattr(library, "workspace_bytes"):
        library.workspace_bytes.restype = ctypes.c_size_t
        size = library.workspace_bytes()
    return torch.empty(max(size or 0, 1), dtype=torch.uint8, device=device)


def _launch(given):
    library, device = _library(), given[0].device
    outputs = _outputs(device)
    for tensor in outputs if POISON else []:
        if tensor.dtype != torch.bool:
            tensor.fill_(float("nan") if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max)
    tensors = [*(tensor.contiguous() for tensor in given), *outputs]
    workspace = _workspace(library, device)
    arguments = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (*tensors, workspace)]@stream@
@call@
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _run(*given):
    """One call of the kernel. Raises ValueError for tensors that it is not made for."""
    for tensor, (name, *_) in zip(_checked(given), OPERANDS):
        if tensor.device.type != DEVICE or tensor.device != given[0].device:
            raise ValueError(f"{name} is on {tensor.device}, the kernel wants all its tensors on one device of kind {DEVICE}")
    with torch.cuda.device(given[0].device) if DEVICE == "cuda" else contextlib.nullcontext():
        return _launch(given)


def _imagined(*given):
    """What ``_run`` returns, without contents."""
    outputs = _outputs(_checked(given)[0].device)
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


OPERATOR = torch.library.custom_op("@operator@", _run, mutates_args=(), schema="@schema@")
OPERATOR.register_fake(_imagined)


def _held(model):
    """Where the model keeps its parameters, buffers and other tensors."""
    names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    for prefix, part in model.named_modules():
        names += [f"{prefix}.{name}".strip(".") for name, value in vars(part).items() if isinstance(value, torch.Tensor)]
    return names


class ModelNew(Model):
    """The reference's model, with the kernel in place of its forward. It has no backward, and does not train its weights."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.espalier_held = _held(self)

    def operands(self, *arguments, **named):
        """The tensors that the operator is called with. Raises TypeError and ValueError for arguments that do not fit."""
        values = [*arguments, *(named[name] for name in FORWARD[len(arguments):] if name in named)]
        if len(values) != len(arguments) + len(named):
            raise TypeError(f"forward takes {', '.join(FORWARD)}")
        for name, value in zip(FORWARD, values):
            if isinstance(value, (int, float)) and value != NUMBERS.get(name, value):
                raise ValueError(f"{name} is {value}, the kernel is compiled for {NUMBERS[name]}")
        given = _tensors(values)
        for name in self.espalier_held:
            tensor = functools.reduce(getattr, name.split("."), self).detach()
            given.append(tensor.to(given[0].device) if given and tensor.device != given[0].device else tensor)
        return given

    def forward(self, *arguments, **named):
        return OPERATOR(*self.operands(*arguments, **named))
'''

"""Writes the generated part of a definition's reference: ``Model``, ``get_inputs``, ``get_init_inputs``. Pure text.

Inputs are drawn as the format's own harness draws them: standard normal numbers, integers within ±1024, and for
SOL-ExecBench by an input's name (a norm's weight is ones, a weight matrix is scaled by its fan-in).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.problem.formats.axis_expressions import literal
from engine.problem.formats.definition_json import DefinitionJson, TensorJson

_NARROW = ("float8_e4m3fn", "float8_e5m2")
_RANGES = {"int8": (-128, 128), "int16": (-1024, 1024), "int32": (-1024, 1024), "int64": (-1024, 1024), "bool": (0, 2)}
_INDENT = "        "


@dataclass(frozen=True, slots=True)
class Parts:
    """What a workload may set, and how inputs are made. All names are those of the module."""

    numbers: Mapping[str, str]
    expressions: Mapping[str, str]
    names: Mapping[str, str]
    """Axis or input → the module's name for it."""
    kinds: Mapping[str, str]
    """Input → ``random``, ``scalar``, ``safetensors`` or ``custom``."""


def reference(written: DefinitionJson, peer: str, name: str, parts: Parts) -> str:
    """The reference's whole text."""
    head = written.reference.rstrip("\n")
    own_imports = ["import torch as _torch"]
    if "safetensors" in parts.kinds.values():
        own_imports.append("from espalier_tensors import stored as _stored")
    numbers = [f"{label} = {text}" for label, text in {**parts.numbers, **parts.expressions}.items()]
    arguments = ", ".join(written.inputs)
    sampling = written.op_type == "sampling"
    rows = [f"{_INDENT}{_input(n, t, parts, peer, sampling=sampling)}," for n, t in written.inputs.items()]
    custom = _custom(written, parts)
    lines = [
        head, "", "", f"# Below: definition {name} of {peer} as a problem in KernelBench's format, written by Espalier.",
        *own_imports, "", *numbers, "", "",
        "class Model(_torch.nn.Module):", f"    def forward(self, {arguments}):" if arguments else "    def forward(self):",
        f"        return run({arguments})", "", "",
        "def get_inputs():", *custom, "    return [", *rows, "    ]", "", "",
        "def get_init_inputs():", "    return []", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _custom(written: DefinitionJson, parts: Parts) -> list[str]:
    if "custom" not in parts.kinds.values() or written.custom_inputs_entrypoint is None:
        return []
    axes = [f"{axis!r}: {parts.names[axis]}" for axis in written.axes]
    scalars = [f"{n!r}: {parts.names[n]}" for n, kind in parts.kinds.items() if kind == "scalar"]
    made = f"{written.custom_inputs_entrypoint}({{{', '.join((*axes, *scalars))}}}, _torch.get_default_device())"
    return [f"    custom = {made}"]


def _input(name: str, tensor: TensorJson, parts: Parts, peer: str, *, sampling: bool) -> str:
    own = parts.names[name]
    match parts.kinds.get(name, "random"):
        case "custom":
            return f"custom[{name!r}]"
        case "safetensors":
            return f'_stored(f"{name}.{{{own}}}")'
        case "scalar":
            return _scalar(own, tensor)
    axes = [parts.names[axis] if (size := literal(axis)) is None else str(size) for axis in tensor.shape or ()]
    shape = f"({', '.join(axes)}{',' if len(axes) == 1 else ''})"
    text = _random(shape, tensor.dtype)
    if tensor.shape is None:
        return f"{text}.item()"
    if sampling and name == "probs":
        return f"_torch.softmax({text}, dim=-1)"
    if peer == "SOL-ExecBench" and tensor.dtype not in (*_NARROW, *_RANGES):
        return _by_name(name, text, shape, axes, tensor.dtype)
    return text


def _scalar(own: str, tensor: TensorJson) -> str:
    text = f"bool({own})" if tensor.dtype == "bool" else own
    return text if tensor.shape is None else f"_torch.tensor({text}, dtype=_torch.{tensor.dtype})"


def _random(shape: str, dtype: str) -> str:
    if dtype in _RANGES:
        low, high = _RANGES[dtype]
        return f"_torch.randint({low}, {high}, {shape}, dtype=_torch.{dtype})"
    if dtype in _NARROW:
        return f"_torch.randn({shape}).clamp_(-2.0, 2.0).to(_torch.{dtype})"
    return f"_torch.randn({shape}, dtype=_torch.{dtype})"


def _by_name(name: str, text: str, shape: str, axes: list[str], dtype: str) -> str:
    """SOL-ExecBench draws some inputs by their name."""
    base = name.rstrip("0123456789")
    like = f"{shape}, dtype=_torch.{dtype}"
    if base == "norm_weight" or base.endswith(("norm_weight", "layernorm_weight")):
        return f"_torch.ones({like})"
    if base == "norm_bias" or base.endswith(("norm_bias", "layernorm_bias")):
        return f"_torch.zeros({like})"
    if len(axes) >= 2 and axes[-1] == axes[-2] and name in ("attention_mask", "causal_mask"):
        return f"_torch.full({shape}, _torch.finfo(_torch.{dtype}).min, dtype=_torch.{dtype}).triu(1)"
    if name in ("cos", "cos_cached", "rope_cos", "sin", "sin_cached", "rope_sin"):
        function = "cos" if "cos" in name else "sin"
        return f"_torch.randn({shape}).clamp_(-3.14159265, 3.14159265).{function}().to(_torch.{dtype})"
    if base in ("rstd", "std", "variance", "var") or base.endswith(("_rstd", "_std", "_variance", "_var")):
        return f"{text}.abs() + 0.1"
    if name in ("attn_weights", "attention_weights", "routing_weights"):
        return f"_torch.randn({shape}).softmax(-1).to(_torch.{dtype})"
    if name in ("A", "A_log", "g") and len(axes) < 2:
        low, high = {"A": (-1.0, -0.001), "A_log": (-5.0, -1.0), "g": (-5.0, 0.0)}[name]
        return f"_torch.empty({like}).uniform_({low}, {high})"
    if len(axes) >= 2 and (base == "weight" or base.endswith(("_weight", "_weights", "_proj", "_projs", "_weight_matrix"))):
        return f"{text} / {axes[-1]} ** 0.5"
    return text

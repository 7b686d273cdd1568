"""A problem's reference as code that needs no file beside it: its own files and stored tensors are in it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from engine.domain.model import Device, Problem, Workload
from engine.export.template import literal
from engine.problem.files import reference_code
from engine.problem.formats.solutions import inlined

_IMPORT = "from espalier_tensors import stored as _stored\n"
_TENSORS = """import base64 as _base64
import json as _json
import zlib as _zlib

_tensors = {{
{rows}
}}


def _stored(name):
    entry = _json.loads(_tensors[name])
    data = bytearray(_zlib.decompress(_base64.b64decode(entry["zlib"])))
    dtype = getattr(_torch, entry["dtype"])
    flat = _torch.frombuffer(data, dtype=_torch.uint8).view(dtype) if data else _torch.empty(0, dtype=dtype)
    return flat.reshape(entry["shape"]).clone()
"""


def reference(problem: Problem, workload: Workload, device: Device, *, stored: bool) -> ast.Module:
    """The reference with the settings of a workload. On a CPU it names no GPU. Raises ProblemError where it is no Python.

    Without ``stored`` it lacks the stored tensors, and cannot make its inputs.
    """
    files = {name: text for name, text in problem.attachments.items() if name.endswith(".py")}
    text = inlined(problem.reference, files, problem.name)
    if _IMPORT in text:
        rows = "\n".join(f"    {name!r}: {literal(problem.attachments[name])}," for name in _tensors(problem, workload))
        text = text.replace(_IMPORT, _TENSORS.format(rows=rows) if stored else "")
    tree = reference_code.with_settings(reference_code.parse(text, problem.name), workload.settings)
    return reference_code.with_device(tree, "cpu") if device.kind == "cpu" else tree


def _tensors(problem: Problem, workload: Workload) -> Iterator[str]:
    """The stored tensors of a workload: an input's setting is the number of its tensor."""
    chosen = {name.rstrip("_"): value for name, value in workload.settings.items()}
    for name in problem.attachments:
        label, _, number = name.rpartition(".")
        if number.isdigit() and chosen.get(label.rstrip("_")) == int(number):
            yield name

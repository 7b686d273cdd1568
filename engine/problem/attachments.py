"""Makes a problem's attachments available to its reference: Python files as modules, tensors by name. Imports torch.

Executed where the reference is: in the judge's and the baselines' sandbox.
"""

from __future__ import annotations

import base64
import json
import math
import sys
import zlib
from collections.abc import Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import torch
from torch import Tensor

from engine.domain import python_syntax
from engine.problem.files.reference_code import with_device

TENSORS = "espalier_tensors"
"""The module whose ``stored(name)`` returns an attached tensor."""


class Attachments(MetaPathFinder, Loader):
    """Imports attached modules; the last installed attachments are the ones that are found."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files
        self._modules = {name.removesuffix(".py"): text for name, text in files.items() if name.endswith(".py")}

    def install(self) -> None:
        """Replace earlier attachments. Modules of these names are imported again."""
        if not self._files:
            return
        sys.meta_path[:] = [self, *(finder for finder in sys.meta_path if not isinstance(finder, Attachments))]
        for name in (*self._modules, TENSORS):
            sys.modules.pop(name, None)

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """See ``MetaPathFinder``."""
        if fullname in self._modules or fullname == TENSORS:
            return ModuleSpec(fullname, self)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The default one."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Execute the attached text, or provide ``stored``. Without a GPU the device that the text names is the CPU."""
        name = module.__name__
        if name == TENSORS:
            vars(module)["stored"] = self._stored
            return
        tree = python_syntax.parse(self._modules[name], f"{name}.py")
        if not torch.cuda.is_available():
            tree = with_device(tree, "cpu")
        exec(compile(tree, f"{name}.py", "exec", dont_inherit=True), module.__dict__)

    def _stored(self, name: str) -> Tensor:
        return decoded(self._files[name])


def decoded(text: str) -> Tensor:
    """The tensor that ``formats.safetensors`` has encoded, on the CPU."""
    entry = json.loads(text)
    dtype: torch.dtype = getattr(torch, entry["dtype"])
    size = math.prod(entry["shape"]) * dtype.itemsize
    data = bytearray(zlib.decompressobj().decompress(base64.b64decode(entry["zlib"]), size)) if size else bytearray()
    if not size:
        return torch.empty(entry["shape"], dtype=dtype, device="cpu")
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(entry["shape"]).clone()

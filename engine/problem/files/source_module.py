"""Modules made of text: a reference, or a kernel of the dialect ``python``."""

from __future__ import annotations

import linecache
import sys
from types import ModuleType


def source_module(name: str, file: str, source: str) -> ModuleType:
    """An empty module that counts as imported from ``file``, for the code of ``source`` to be executed in.

    Tracebacks, inspect.getsource, torch.jit and Triton's compiler read the source of classes and functions through the two
    tables in which it is entered: the imported modules, and the lines of files.
    """
    module = ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    return module

"""What a kernel is written in, and how it is launched."""

from __future__ import annotations

from enum import StrEnum


class Dialect(StrEnum):
    """The language of a kernel."""

    CUDA = "cuda"
    CPP = "cpp"
    TRITON = "triton"
    PYTHON = "python"

    @property
    def suffix(self) -> str:
        """The suffix of its files: ``.cu``, ``.cpp``, ``.py``."""
        return {"cuda": ".cu", "cpp": ".cpp"}.get(self.value, ".py")

    @property
    def in_python(self) -> bool:
        """Whether its files are written in Python: comments begin with ``#``, and there is no ``problem.h``."""
        return self in (Dialect.TRITON, Dialect.PYTHON)

    @property
    def language(self) -> str:
        """The name that highlighters and code fences know it by."""
        return "python" if self.in_python else self.value


class Contract(StrEnum):
    """How a kernel is launched, strongest guarantee first."""

    PLAN = "plan"
    """Device code only; trusted code launches it according to its ``@launch`` lines."""
    HOST = "host"
    """A shared object with a C ``launch`` function, run natively in the sandboxed runner."""
    MODULE = "module"
    """A KernelBench ``ModelNew``: the weakest guarantee."""

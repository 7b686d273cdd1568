"""FlashInfer-Bench's and SOL-ExecBench's files as their own documentation describes them: independent of our writers.

https://bench.flashinfer.ai/docs/flashinfer-trace and https://github.com/NVIDIA/SOL-ExecBench, docs/solution.md. Unknown fields
are refused: a misspelt optional field would otherwise pass.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

import msgspec

Text = Annotated[str, msgspec.Meta(min_length=1)]
Size = Annotated[int, msgspec.Meta(ge=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Error = NotNegative | Literal["NaN", "Infinity"]
"""Errors that JSON has no number for are words."""


class Source(msgspec.Struct, forbid_unknown_fields=True):
    """A file of a solution."""

    path: Text
    content: Text

    def __post_init__(self) -> None:
        path = PurePosixPath(self.path)
        assert not path.is_absolute()
        assert ".." not in path.parts


class FlashInferSpec(msgspec.Struct, forbid_unknown_fields=True):
    """How FlashInfer-Bench builds a solution."""

    language: Literal["python", "triton", "cpp", "cuda", "tilelang"]
    target_hardware: Annotated[list[Text], msgspec.Meta(min_length=1)]
    entry_point: Text
    dependencies: list[Text] = []
    destination_passing_style: bool = True
    binding: Literal["tvm-ffi", "torch"] | None = None


class CompileOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Flags of SOL-ExecBench's compilers."""

    cflags: list[str] = []
    cuda_cflags: list[str] = []
    ld_flags: list[str] = []


_PYTHON = {"pytorch", "triton", "cute_dsl", "cutile", "cudnn_frontend"}


class SolSpec(msgspec.Struct, forbid_unknown_fields=True):
    """How SOL-ExecBench builds a solution."""

    languages: list[
        Literal["pytorch", "triton", "cute_dsl", "cutile", "cudnn_frontend", "cutlass", "cudnn", "cublas", "cuda_cpp"]
    ]
    target_hardware: Annotated[list[Literal["B200", "LOCAL"]], msgspec.Meta(min_length=1)]
    entry_point: Text
    dependencies: list[Text] = []
    destination_passing_style: bool = True
    binding: Literal["torch"] | None = None
    compile_options: CompileOptions | None = None

    def __post_init__(self) -> None:
        python = [language in _PYTHON for language in self.languages]
        assert len(set(python)) <= 1, "languages of Python and of C++ together"
        if any(python):
            assert self.entry_point.partition("::")[0].endswith(".py")


class Solution(msgspec.Struct, forbid_unknown_fields=True):
    """What both formats' solutions have in common."""

    name: Text
    definition: Text
    author: Text
    spec: FlashInferSpec | SolSpec
    sources: Annotated[list[Source], msgspec.Meta(min_length=1)]
    description: str | None = None

    def __post_init__(self) -> None:
        paths = [source.path for source in self.sources]
        assert len(paths) == len(set(paths))
        assert self.spec.entry_point.count("::") == 1
        assert self.spec.entry_point.partition("::")[0] in paths

    def check_parameters(self, definition: Mapping[str, Any]) -> None:
        """A solution in Python takes the definition's inputs by name, and then its outputs if it writes to them."""
        file, _, function = self.spec.entry_point.partition("::")
        (tree,) = [ast.parse(source.content) for source in self.sources if source.path == file]
        (entry,) = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == function]
        outputs = list(definition["outputs"]) if self.spec.destination_passing_style else []
        assert [parameter.arg for parameter in entry.args.args] == [*definition["inputs"], *outputs]


class FlashInferSolution(Solution, forbid_unknown_fields=True):
    """A solution of FlashInfer-Bench."""

    spec: FlashInferSpec


class SolSolution(Solution, forbid_unknown_fields=True):
    """A solution of SOL-ExecBench."""

    spec: SolSpec


class RandomInput(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="random"):
    """An input drawn at random."""


class ScalarInput(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="scalar"):
    """A number."""

    value: bool | int | float


class StoredInput(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="safetensors"):
    """A tensor of a file."""

    path: Text
    tensor_key: Text


class Workload(msgspec.Struct, forbid_unknown_fields=True):
    """A workload of FlashInfer-Bench."""

    axes: dict[str, Size]
    inputs: dict[str, RandomInput | ScalarInput | StoredInput]
    uuid: Text


class Correctness(msgspec.Struct, forbid_unknown_fields=True):
    """Errors of a solution."""

    max_relative_error: Error = 0.0
    max_absolute_error: Error = 0.0
    extra: dict[str, Any] | None = None


class Performance(msgspec.Struct, forbid_unknown_fields=True):
    """Times of a solution."""

    latency_ms: NotNegative = 0.0
    reference_latency_ms: NotNegative = 0.0
    speedup_factor: NotNegative = 0.0


class Environment(msgspec.Struct, forbid_unknown_fields=True):
    """Where it was judged."""

    hardware: Text
    libs: dict[str, str] = {}


class Evaluation(msgspec.Struct, forbid_unknown_fields=True):
    """A verdict of FlashInfer-Bench: errors and times are there exactly where the status says so."""

    status: Literal[
        "PASSED", "INCORRECT_SHAPE", "INCORRECT_NUMERICAL", "INCORRECT_DTYPE", "RUNTIME_ERROR", "COMPILE_ERROR", "TIMEOUT"
    ]
    environment: Environment
    timestamp: Text
    log: str = ""
    correctness: Correctness | None = None
    performance: Performance | None = None

    def __post_init__(self) -> None:
        assert (self.correctness is not None) == (self.status in ("PASSED", "INCORRECT_NUMERICAL"))
        assert (self.performance is not None) == (self.status == "PASSED")


class Trace(msgspec.Struct, forbid_unknown_fields=True):
    """A line of a trace file of FlashInfer-Bench."""

    definition: Text
    workload: Workload
    solution: str | None = None
    evaluation: Evaluation | None = None


def flashinfer_solution(text: str, definition: Mapping[str, Any]) -> Solution:
    """Raises for a text that is no solution of FlashInfer-Bench."""
    found = msgspec.json.decode(text, type=FlashInferSolution)
    found.check_parameters(definition)
    return found


def sol_solution(text: str, definition: Mapping[str, Any]) -> Solution:
    """Raises for a text that is no solution of SOL-ExecBench."""
    found = msgspec.json.decode(text, type=SolSolution)
    found.check_parameters(definition)
    return found


def traces(text: str) -> list[Trace]:
    """Raises for a text that is no trace file of FlashInfer-Bench."""
    return [msgspec.json.decode(line, type=Trace) for line in text.splitlines()]

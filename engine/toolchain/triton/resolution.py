"""Resolves a Triton plan: what each ``@jit`` function is compiled for, and how the compiled functions are launched.

Pointers are aligned to 16 bytes and sizes are known, so every function is specialised as Triton's own launcher specialises it:
alignment, multiples of 16, arguments that are 1. Nothing here is taken from the file but names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from engine.domain.model import Number, Operand
from engine.toolchain.expressions import Name, Token, evaluate, near
from engine.toolchain.plan import single_value
from engine.toolchain.resolution import (
    GRID_LIMITS,
    Argument,
    OperandArg,
    ResolvedLaunch,
    ResolvedPlan,
    ScalarArg,
    WorkspaceArg,
    check_workspace,
    evaluate_extents,
)
from engine.toolchain.triton.plan import POINTERS, Constant, ExpressionValue, TritonLaunch, TritonPlan, Value, WorkspaceValue
from engine.toolchain.triton.source import OPTIONS, Parameter

_MULTIPLE = 16
"""Arguments that are multiples of it are compiled so; every operand and the workspace start at one."""
_INT32 = 2**31
_WARPS = (1, 2, 4, 8, 16, 32)
_ALLOWED: Mapping[str, tuple[Sequence[int], str]] = {
    "num_warps": (_WARPS, "a power of two up to 32"),
    "num_ctas": ((1, 2, 4, 8, 16), "a power of two up to 16"),
    "num_stages": (range(33), "0 to 32"),
    "maxnreg": (range(16, 256), "16 to 255"),
}


class TritonJob(msgspec.Struct, frozen=True):
    """One function to compile, as the process that runs Triton receives it."""

    function: str
    signature: tuple[tuple[str, str], ...]
    """Each parameter and its type in Triton's words, ``constexpr`` for those with a value below."""
    constants: dict[str, int | float | bool | None]
    defaults: tuple[str, ...]
    """Parameters compiled with their default in the file."""
    computed: tuple[str, ...]
    """Parameters that ``@triton.heuristics`` computes."""
    aligned: tuple[int, ...]
    """Places of the parameters that are multiples of 16."""
    options: dict[str, int]
    cooperative: bool
    line: int
    column: int
    """Of the first ``@launch`` line that needs it."""


@dataclass(frozen=True, slots=True)
class ResolvedTriton:
    """``plan`` lacks what only the compiler knows: block, shared memory, scratch (``device_images.bind`` adds them)."""

    jobs: tuple[TritonJob, ...]
    plan: ResolvedPlan


def resolve_triton(plan: TritonPlan, names: Mapping[str, Number], operands: Sequence[Operand]) -> ResolvedTriton:
    """Evaluate every expression of ``plan``.

    Args:
        plan: from ``parse_triton_plan``.
        names: constants of the problem, the variant's tunables, and ``SMS``.
        operands: of the workload.

    Raises:
        KernelCodeError: an unknown name, a parameter without a value, or a size beyond the limits, with line and column.
    """
    return _TritonResolver(plan, names, operands).resolve()


def encode_jobs(jobs: Sequence[TritonJob]) -> str:
    """The jobs as JSON, for the compiling process."""
    return msgspec.json.encode(jobs).decode()


class _TritonResolver:
    def __init__(self, plan: TritonPlan, names: Mapping[str, Number], operands: Sequence[Operand]) -> None:
        self._plan = plan
        self._names = names
        self._operands = {operand.name: operand for operand in operands}
        self._workspace = 0

    def resolve(self) -> ResolvedTriton:
        scratch = self._plan.workspace
        if scratch is not None:
            self._workspace = evaluate(scratch.size, self._names)
            check_workspace(scratch, self._workspace)
        jobs: list[TritonJob] = []
        launches = tuple(self._launch(launch, jobs) for launch in self._plan.launches)
        zeroed = scratch is not None and scratch.zeroed
        return ResolvedTriton(tuple(jobs), ResolvedPlan(launches, (), self._workspace, zeroed))

    def _launch(self, launch: TritonLaunch, jobs: list[TritonJob]) -> ResolvedLaunch:
        grid = evaluate_extents(launch.grid, self._names, GRID_LIMITS)
        bound = _Bound()
        for place, parameter in enumerate(launch.function.parameters):
            self._bind(launch, parameter, place, bound)
        job = TritonJob(
            launch.kernel.text, tuple(bound.signature), bound.constants, tuple(bound.defaults), tuple(bound.computed),
            tuple(bound.aligned), dict(self._options(launch)), launch.cooperative, launch.kernel.line, launch.kernel.column,
        )  # fmt: skip
        image = next((at for at, known in enumerate(jobs) if _same(known, job)), len(jobs))
        if image == len(jobs):
            jobs.append(job)
        clusters = job.options.get("num_ctas", 1)
        return ResolvedLaunch(
            launch.kernel.text, tuple(bound.arguments), (grid[0] * clusters, grid[1], grid[2]), (1, 1, 1),
            cluster=(clusters, 1, 1), cooperative=launch.cooperative, image=image,
        )  # fmt: skip

    def _options(self, launch: TritonLaunch) -> Iterator[tuple[str, int]]:
        for option in OPTIONS:
            if clause := launch.options.get(option):
                token, value = clause.token, evaluate(single_value(clause), self._names)
            elif (chosen := self._tunable(launch, option)) is not None:
                token, value = launch.kernel, int(chosen)
            else:
                continue
            allowed, text = _ALLOWED[option]
            if value not in allowed:
                raise token.error(f"{option} is {value}: use {text}")
            yield option, value

    def _tunable(self, launch: TritonLaunch, name: str) -> Number | None:
        """A tunable or constant by name; one that begins with the function's name is meant for that function alone."""
        own = self._names.get(f"{launch.kernel.text}_{name}")
        return own if own is not None else self._names.get(name)

    def _bind(self, launch: TritonLaunch, parameter: Parameter, place: int, bound: _Bound) -> None:
        name, value = parameter.name, launch.bound.get(parameter.name)
        if value is None:
            chosen = self._tunable(launch, name) if parameter.constexpr else None
            if name in launch.function.computed and chosen is None:
                bound.computed.append(name)
            elif chosen is not None:
                bound.constants[name] = chosen
            elif parameter.has_default:
                bound.defaults.append(name)
            else:
                raise launch.kernel.error(self._missing(launch, parameter))
            bound.signature.append((name, "constexpr"))
            return
        number, argument, kind = self._value(value)
        if parameter.constexpr or argument is None:
            if isinstance(argument, OperandArg | WorkspaceArg):
                assert not isinstance(value, Constant)
                raise value.token.error(f"'{name}' is tl.constexpr: it takes a number, not an address")
            bound.constants[name] = number
            bound.signature.append((name, "constexpr"))
            return
        bound.signature.append((name, kind))
        bound.arguments.append(argument)
        if not isinstance(argument, ScalarArg) or (isinstance(argument.value, int) and argument.value % _MULTIPLE == 0):
            bound.aligned.append(place)

    def _missing(self, launch: TritonLaunch, parameter: Parameter) -> str:
        what = f"'{launch.kernel.text}' needs a value for '{parameter.name}'"
        if not parameter.constexpr:
            return f"{what}: give it in the brackets, or annotate it tl.constexpr"
        return f"{what}{near(parameter.name, self._names) or ': no tunable and no constant of the problem has this name'}"

    def _value(self, value: Value) -> tuple[int | float | bool | None, Argument | None, str]:
        """A value as a number, as an argument of the launch (``None`` for one that is compiled in), and its type."""
        match value:
            case Constant(constant):
                return constant, None, "constexpr"
            case WorkspaceValue(token, offset, dtype):
                return None, WorkspaceArg(self._offset(token, evaluate(offset, self._names) if offset else 0)), POINTERS[dtype]
            case ExpressionValue(token, Name()) if token.text in self._operands:
                return None, OperandArg(token.text), self._pointer(token)
            case ExpressionValue(token, Name()) if isinstance(self._names.get(token.text), float):
                number = self._names[token.text]
                return number, ScalarArg("fp32", number), "fp32"
            case ExpressionValue(token, expression):
                if isinstance(expression, Name) and token.text not in self._names:
                    raise self._unknown(token)
                whole = evaluate(expression, self._names)
                if whole == 1:
                    return whole, None, "constexpr"
                kind = "i32" if -_INT32 <= whole < _INT32 else "i64"
                return whole, ScalarArg("i32" if kind == "i32" else "i64", whole), kind

    def _pointer(self, token: Token) -> str:
        dtype = self._operands[token.text].dtype
        if dtype not in POINTERS:
            raise token.error(f"'{token.text}' has type {dtype}: Triton has no pointers to it")
        return POINTERS[dtype]

    def _unknown(self, token: Token) -> Exception:
        known = (*self._operands, "workspace", *self._names)
        return token.error(f"unknown operand or name '{token.text}'{near(token.text, known)}")

    def _offset(self, token: Token, offset: int) -> int:
        if self._plan.workspace is None:
            raise token.error("the plan has no `@workspace BYTES` line")
        if offset and not 0 <= offset < self._workspace:
            raise token.error(f"workspace+{offset} is outside the workspace of {self._workspace} bytes")
        if offset % _MULTIPLE:
            raise token.error(f"workspace+{offset}: Triton's pointers must start at a multiple of 16 bytes")
        return offset


class _Bound:
    """The parameters of one launch, as they are bound."""

    def __init__(self) -> None:
        self.signature: list[tuple[str, str]] = []
        self.constants: dict[str, int | float | bool | None] = {}
        self.defaults: list[str] = []
        self.computed: list[str] = []
        self.aligned: list[int] = []
        self.arguments: list[Argument] = []


def _same(one: TritonJob, other: TritonJob) -> bool:
    return msgspec.structs.replace(one, line=0, column=0) == msgspec.structs.replace(other, line=0, column=0)

"""FlashInfer-Bench's and SOL-ExecBench's definitions: a reference ``run`` over named axes, and its workloads. Parses data only.

SOL-ExecBench's are a superset: ``expr`` axes, inputs made by the reference's own function, a tolerance for each workload. The
problem's reference is the definition's own text, unchanged, with a generated ``Model``, ``get_inputs`` and ``get_init_inputs``
below it; variable axes and scalars are settings of its workloads.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from engine.domain import python_syntax
from engine.domain.errors import ProblemError
from engine.domain.model import Number, Workload
from engine.domain.problem_format import FormatTensor, FormatTolerance
from engine.problem.files import reference_code
from engine.problem.formats import axis_expressions, input_code
from engine.problem.formats.axis_expressions import ExpressionError
from engine.problem.formats.definition_json import AxisJson, DefinitionJson, InputJson, TensorJson, WorkloadJson
from engine.problem.formats.documents import MOST_DIMENSIONS, shown
from engine.problem.names import unused_name

DTYPES = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32", "int16", "int8", "bool",
)  # fmt: skip
_PACKED = ("float4_e2m1", "float4_e2m1fn_x2")
_LARGEST_AXIS = 1 << 40
_LONGEST_ID = 16
_SAFE = "abcdefghijklmnopqrstuvwxyz0123456789_"


@dataclass(frozen=True, slots=True)
class Definition:
    """A checked definition; ``file`` is named in messages."""

    file: str
    name: str
    written: DefinitionJson
    constants: Mapping[str, int]
    variables: tuple[str, ...]
    expressions: Mapping[str, str]

    @property
    def axes(self) -> dict[str, int | str]:
        return {name: self.constants.get(name, self.expressions.get(name, "")) for name in self.written.axes}

    def sizes(self, axes: Mapping[str, int], where: str) -> dict[str, int]:
        """Every axis's size on a workload. Raises ProblemError for a missing, unknown or impossible one."""
        for name in self.variables:
            if name not in axes:
                raise ProblemError(f"{where}: axes.{name}: missing: {self.name} needs a value for it")
        for name, value in axes.items():
            if name not in self.written.axes:
                raise ProblemError(f"{where}: axes.{name}: no axis of {self.name}: it has {shown(list(self.written.axes))}")
            if name in self.constants and value != self.constants[name]:
                raise ProblemError(f"{where}: axes.{name}: {value}, but {self.name} fixes it at {self.constants[name]}")
            if not 0 <= value <= _LARGEST_AXIS:
                raise ProblemError(f"{where}: axes.{name}: {value} is not a size")
        given = {**self.constants, **{name: axes[name] for name in self.variables}}
        try:
            return axis_expressions.resolve(self.expressions, given)
        except ExpressionError as error:
            raise ProblemError(f"{where}: {error}") from None

    def shape(self, tensor: TensorJson, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(axis_expressions.size(axis, sizes) for axis in tensor.shape or ())


def checked(written: DefinitionJson, file: str, fallback: str) -> Definition:
    """The definition, with every reference within it checked. Raises ProblemError with the file and field."""
    constants: dict[str, int] = {}
    expressions: dict[str, str] = {}
    variables: list[str] = []
    for name, axis in written.axes.items():
        if not name.isidentifier():
            raise ProblemError(f"{file}: axes: {name[:60]!r} is no name")
        match axis:
            case AxisJson(type="const", value=int() as value) if 0 <= value <= _LARGEST_AXIS:
                constants[name] = value
            case AxisJson(type="var"):
                variables.append(name)
            case AxisJson(type="expr", expression=str() as text):
                expressions[name] = text
            case _:
                raise ProblemError(f"{file}: axes.{name}: expected a const with a value, a var, or an expr with an expression")
    definition = Definition(file, written.name or fallback, written, constants, tuple(variables), expressions)
    try:
        # Ones for the variables: names and cycles show without a workload. Values are checked for each workload.
        axis_expressions.resolve(dict.fromkeys(expressions, "1"), dict.fromkeys((*constants, *variables), 1))
        _check_references(expressions, written.axes)
    except ExpressionError as error:
        raise ProblemError(f"{file}: {error}") from None
    for place, tensors in (("inputs", written.inputs), ("outputs", written.outputs)):
        for name, tensor in tensors.items():
            _check_tensor(definition, f"{place}.{name}", name, tensor)
    if not written.outputs:
        raise ProblemError(f"{file}: outputs: empty: there is nothing to compare")
    if both := written.inputs.keys() & written.outputs.keys():
        raise ProblemError(f"{file}: {sorted(both)[0]} is both an input and an output")
    tree = reference_code.parse(written.reference, f"{file}, reference")
    functions = {statement.name for statement in tree.body if isinstance(statement, ast.FunctionDef)}
    for entry in filter(None, ("run", written.custom_inputs_entrypoint)):
        if entry not in functions:
            raise ProblemError(f"{file}: reference: no function {entry} at its top level")
    return definition


def _check_references(expressions: Mapping[str, str], axes: Iterable[str]) -> None:
    known = set(axes)
    reads = {name: axis_expressions.names_in(text) for name, text in expressions.items()}
    for name, used in reads.items():
        if unknown := sorted(used - known):
            raise ExpressionError(f"axes.{name}: {expressions[name]!r} reads {unknown[0]}, which is not an axis")
    waiting = set(reads)
    while waiting:
        ready = {name for name in waiting if not reads[name] & waiting}
        if not ready:
            raise ExpressionError(f"axes {', '.join(sorted(waiting))} depend on each other")
        waiting -= ready


def _check_tensor(definition: Definition, place: str, name: str, tensor: TensorJson) -> None:
    file = definition.file
    if not name.isidentifier():
        raise ProblemError(f"{file}: {place}: {name[:60]!r} is no name")
    if tensor.dtype in _PACKED:
        raise ProblemError(f"{file}: {place}.dtype: {tensor.dtype} (packed 4-bit) is not supported")
    if tensor.dtype not in DTYPES:
        raise ProblemError(f"{file}: {place}.dtype: unknown dtype {tensor.dtype[:60]!r}: use {', '.join(DTYPES)}")
    if len(tensor.shape or ()) > MOST_DIMENSIONS:
        raise ProblemError(f"{file}: {place}.shape: more than {MOST_DIMENSIONS} axes")
    for axis in tensor.shape or ():
        number = axis_expressions.literal(axis)
        if number is not None and number > _LARGEST_AXIS:
            raise ProblemError(f"{file}: {place}.shape: {axis[:60]} is not a size")
        if number is None and axis not in definition.written.axes:
            known = shown(list(definition.written.axes))
            raise ProblemError(f"{file}: {place}.shape: {axis[:60]!r} is not an axis: there are {known}")


@dataclass(frozen=True, slots=True)
class DefinitionCase:
    """A workload with the settings and stored tensors that make its inputs."""

    workload: Workload
    uuid: str
    size: int
    """Elements of all inputs and outputs."""
    tolerance: FormatTolerance | None
    row: str
    """Its JSON."""


StoredTensor = Callable[[InputJson, str, TensorJson, tuple[int, ...]], str]
"""(a safetensors input, where, what the definition says, its shape) → the attachment's text."""


class Cases:
    """Builds the workloads of a definition, and with them the generated part of its reference."""

    def __init__(self, definition: Definition, stored: StoredTensor) -> None:
        self.definition = definition
        self.attachments: dict[str, str] = {}
        self.cases: list[DefinitionCase] = []
        self._stored = stored
        bound = set(reference_code.bound_names(reference_code.parse(definition.written.reference, definition.file)))
        taken = bound | {"Model", "get_inputs", "get_init_inputs"}
        self._names: dict[str, str] = {}
        for name in (*definition.written.axes, *definition.written.inputs):
            self._names[name] = unused_name(name, lambda n: n in taken)
            taken.add(self._names[name])
        self._texts: dict[str, dict[str, int]] = {}
        self._kinds: dict[str, str] | None = None

    def add(self, written: WorkloadJson, where: str) -> None:
        """Add a workload. Raises ProblemError with the place and the field."""
        definition = self.definition
        if same := next((case for case in self.cases if case.uuid == written.uuid), None):
            raise ProblemError(f"{where}: uuid: {written.uuid[:60]!r} is also that of workload {same.workload.name}")
        sizes = definition.sizes(written.axes, where)
        settings: dict[str, Number] = {self._names[name]: sizes[name] for name in definition.variables}
        for name in written.inputs:
            if name not in definition.written.inputs:
                known = shown(list(definition.written.inputs))
                raise ProblemError(f"{where}: inputs.{name}: no input of {definition.name}: it has {known}")
        kinds = {}
        for name, tensor in definition.written.inputs.items():
            how = written.inputs.get(name, InputJson("random"))
            kinds[name] = how.type
            setting = self._setting(name, how, tensor, sizes, f"{where}: inputs.{name}")
            if setting is not None:
                settings[self._names[name]] = setting
        if self._kinds not in (None, kinds):
            changed = next(name for name, kind in kinds.items() if (self._kinds or {}).get(name) != kind)
            raise ProblemError(f"{where}: inputs.{changed}.type: {kinds[changed]!r}; earlier workloads have another type")
        self._kinds = kinds
        self.cases.append(DefinitionCase(
            Workload(self._name(written), settings), written.uuid, self._elements(sizes),
            written.tolerance.plain if written.tolerance else None, _row(written),
        ))  # fmt: skip

    def _setting(self, name: str, how: InputJson, tensor: TensorJson, sizes: Mapping[str, int], where: str) -> Number | None:
        definition = self.definition
        match how:
            case InputJson(type="random"):
                return None
            case InputJson(type="custom"):
                if definition.written.custom_inputs_entrypoint is None:
                    raise ProblemError(f"{where}.type: custom, but {definition.file} has no custom_inputs_entrypoint")
                return None
            case InputJson(type="scalar", value=bool() | int() | float() as value):
                if tensor.shape is not None and tensor.shape:
                    raise ProblemError(f"{where}: a scalar, but the definition has a tensor of {len(tensor.shape)} dimensions")
                if not reference_code.is_usable(value):
                    raise ProblemError(f"{where}.value: not a finite number of at most 64 bits")
                return int(value) if isinstance(value, bool) else value
            case InputJson(type="safetensors", path=str(), tensor_key=str()):
                text = self._stored(how, where, tensor, definition.shape(tensor, sizes))
                known = self._texts.setdefault(name, {})
                if text not in known:
                    known[text] = len(known)
                    self.attachments[f"{name}.{known[text]}"] = text
                return known[text]
        kinds = "random, scalar with a value, safetensors with path and tensor_key, or custom"
        raise ProblemError(f"{where}.type: {how.type[:60]!r}: expected {kinds}")

    def _name(self, written: WorkloadJson) -> str:
        """Readable: the variable axes, ``M256``; the identifier's beginning is added where two are the same."""
        text = "_".join(f"{name}{written.axes[name]}" for name in self.definition.variables) or written.uuid[:_LONGEST_ID]
        name = "".join(c if c.lower() in _SAFE else "_" for c in text)
        taken = {case.workload.name for case in self.cases}
        short = unused_name(f"{name}_{written.uuid[:_LONGEST_ID]}" if name in taken else name, lambda n: n in taken)
        return "".join(c if c.lower() in _SAFE else "_" for c in short)

    def _elements(self, sizes: Mapping[str, int]) -> int:
        tensors = (*self.definition.written.inputs.values(), *self.definition.written.outputs.values())
        return sum(math.prod(self.definition.shape(tensor, sizes)) for tensor in tensors)

    def reference(self, peer: str) -> str:
        """The definition's text with the generated part below it, set to the first workload."""
        return input_code.reference(self.definition.written, peer, self.definition.name, self._parts())

    def _parts(self) -> input_code.Parts:
        first = self.cases[0].workload.settings
        constants = {self._names[n]: str(v) for n, v in self.definition.constants.items()}
        settings = {name: repr(value) for name, value in first.items()}
        expressions = {}
        for name in _in_order(self.definition.expressions):
            expressions[self._names[name]] = self._renamed(self.definition.expressions[name])
        return input_code.Parts({**constants, **settings}, expressions, self._names, self._kinds or {})

    def _renamed(self, expression: str) -> str:
        tree = python_syntax.parse_expression(expression.strip())
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                node.id = self._names[node.id]
        return f"int({ast.unparse(tree)})"


def _row(written: WorkloadJson) -> str:
    inputs = {
        name: {k: v for k, v in msgspec.to_builtins(how).items() if v is not None} for name, how in written.inputs.items()
    }
    return msgspec.json.encode({"uuid": written.uuid, "axes": written.axes, "inputs": inputs}).decode()


def _in_order(expressions: Mapping[str, str]) -> list[str]:
    ordered: list[str] = []
    while len(ordered) < len(expressions):
        for name, text in expressions.items():
            if name not in ordered and not (axis_expressions.names_in(text) & expressions.keys()) - set(ordered):
                ordered.append(name)
    return ordered


def tensors(table: Mapping[str, TensorJson]) -> tuple[FormatTensor, ...]:
    """Inputs or outputs as plain data."""
    return tuple(FormatTensor(n, t.dtype, None if t.shape is None else tuple(t.shape)) for n, t in table.items())

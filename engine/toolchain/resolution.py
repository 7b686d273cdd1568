"""Resolves a launch plan: evaluates every size and checks it against CUDA's limits (compute capability 9.0)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from engine.domain.errors import KernelCodeError
from engine.domain.model import Number, Operand
from engine.toolchain.expressions import Token, evaluate, near
from engine.toolchain.plan import Clause, Launch, NameRef, Plan, Reference, TensorMap, Workspace, WorkspaceRef

BLOCK_THREADS = 1024
BLOCK_LIMITS = (1024, 1024, 64)
GRID_LIMITS = (2**31 - 1, 65535, 65535)
CLUSTER_BLOCKS = 16
SHARED_BYTES = 227 * 1024
WORKSPACE_BYTES = 2**38
TENSOR_RANK = 5
TENSOR_DIM = 2**32
TENSOR_STRIDE = 2**40
TILE_EXTENT = 256
TENSOR_ALIGNMENT = 16
SWIZZLES = (0, 32, 64, 128)

Dim3 = tuple[int, int, int]

_ITEM_BYTES = {
    "bool": 1, "int8": 1, "uint8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2, "int32": 4, "uint32": 4,
    "float32": 4, "int64": 8, "uint64": 8, "float64": 8,
}  # fmt: skip
_TENSOR_TYPE = {"bool": "uint8", "int8": "uint8", "int16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
"""Operand types that tensor maps lack → the tensor map type of the same size."""


class OperandArg(msgspec.Struct, frozen=True, tag="operand"):
    """The address of an operand."""

    name: str


class WorkspaceArg(msgspec.Struct, frozen=True, tag="workspace"):
    """An address in the workspace, ``offset`` bytes from its start."""

    offset: int


class TensorMapArg(msgspec.Struct, frozen=True, tag="tensormap"):
    """A ``CUtensorMap``, passed by value."""

    name: str


class ScalarArg(msgspec.Struct, frozen=True, tag="scalar"):
    """A number, passed by value."""

    kind: Literal["i32", "i64", "fp32"]
    value: int | float


class NullArg(msgspec.Struct, frozen=True, tag="null"):
    """A null pointer."""


Argument = OperandArg | WorkspaceArg | TensorMapArg | ScalarArg | NullArg


@dataclass(frozen=True, slots=True)
class ResolvedTensorMap:
    """One tiled tensor map. ``dims`` and ``tile`` are row-major (outermost first), in elements."""

    name: str
    source: OperandArg | WorkspaceArg
    dtype: str
    """One of ``engine.toolchain.plan.TENSOR_TYPES``."""
    item_bytes: int
    dims: tuple[int, ...]
    tile: tuple[int, ...]
    swizzle: int
    """Bytes, 0 for none."""


@dataclass(frozen=True, slots=True)
class ResolvedLaunch:
    """One launch; extents in x, y, z order, ``shared_bytes`` is dynamic shared memory."""

    kernel: str
    arguments: tuple[Argument, ...]
    grid: Dim3
    block: Dim3
    shared_bytes: int = 0
    cluster: Dim3 = (1, 1, 1)
    cooperative: bool = False
    image: int = 0
    """Which of the artefact's device images holds the kernel."""


@dataclass(frozen=True, slots=True)
class ResolvedPlan:
    """What trusted code needs to launch a kernel: integers and names only."""

    launches: tuple[ResolvedLaunch, ...]
    tensor_maps: tuple[ResolvedTensorMap, ...]
    workspace_bytes: int
    workspace_zeroed: bool


def resolve(plan: Plan, names: Mapping[str, Number], operands: Sequence[Operand]) -> ResolvedPlan:
    """Evaluate every expression of ``plan`` and check the result.

    Args:
        plan: from ``parse_plan``.
        names: constants of ``problem.h``, the variant's tunables, and ``SMS``.
        operands: of the workload; launch arguments name them, tensor maps take their shapes and types.

    Raises:
        KernelCodeError: an unknown name or a size beyond the device's limits, with line and column.
    """
    return _Resolver(plan, names, operands).resolve()


def encode(plan: ResolvedPlan) -> bytes:
    """``plan`` as JSON, for the process that launches it; ``decode`` reads it back."""
    return msgspec.json.encode(plan)


def decode(data: bytes) -> ResolvedPlan:
    """The plan that ``encode`` wrote.

    Raises:
        KernelCodeError: ``data`` is not an encoded plan.
    """
    try:
        return msgspec.json.decode(data, type=ResolvedPlan)
    except msgspec.MsgspecError as error:
        raise KernelCodeError(f"not a resolved launch plan: {error}") from error


class _Resolver:
    def __init__(self, plan: Plan, names: Mapping[str, Number], operands: Sequence[Operand]) -> None:
        self._plan = plan
        self._names = names
        self._operands = {operand.name: operand for operand in operands}
        self._maps = {tensor_map.name.text for tensor_map in plan.tensor_maps}
        self._workspace = 0

    def resolve(self) -> ResolvedPlan:
        if scratch := self._plan.workspace:
            self._workspace = evaluate(scratch.size, self._names)
            check_workspace(scratch, self._workspace)
        maps = tuple(self._tensor_map(tensor_map) for tensor_map in self._plan.tensor_maps)
        launches = tuple(self._launch(launch) for launch in self._plan.launches)
        return ResolvedPlan(launches, maps, self._workspace, bool(scratch and scratch.zeroed))

    def _launch(self, launch: Launch) -> ResolvedLaunch:
        grid = evaluate_extents(launch.grid, self._names, GRID_LIMITS)
        block = evaluate_extents(launch.block, self._names, BLOCK_LIMITS)
        if math.prod(block) > BLOCK_THREADS:
            raise launch.block.token.error(f"a block of {math.prod(block)} threads: {BLOCK_THREADS} at most")
        shared = evaluate(launch.shared.values[0], self._names) if launch.shared else 0
        if launch.shared and not 0 <= shared <= SHARED_BYTES:
            raise launch.shared.token.error(f"{shared} bytes of shared memory: 0 to {SHARED_BYTES} (227 KiB) are allowed")
        arguments = tuple(self._argument(argument) for argument in launch.arguments)
        cluster = self._cluster(launch.cluster, grid)
        return ResolvedLaunch(launch.kernel.text, arguments, grid, block, shared, cluster, launch.cooperative)

    def _cluster(self, clause: Clause | None, grid: Dim3) -> Dim3:
        if clause is None:
            return (1, 1, 1)
        cluster = evaluate_extents(clause, self._names, (CLUSTER_BLOCKS,) * 3)
        if math.prod(cluster) > CLUSTER_BLOCKS:
            raise clause.token.error(f"a cluster of {math.prod(cluster)} blocks: {CLUSTER_BLOCKS} at most")
        for axis, blocks, size in zip("xyz", grid, cluster, strict=True):
            if blocks % size:
                raise clause.token.error(f"grid {axis} is {blocks}: not a multiple of the cluster size {size}")
        return cluster

    def _argument(self, reference: Reference) -> Argument:
        if isinstance(reference, NameRef) and reference.token.text in self._maps:
            return TensorMapArg(reference.token.text)
        return self._place(reference)

    def _place(self, reference: Reference) -> OperandArg | WorkspaceArg:
        match reference:
            case NameRef(token):
                self._operand(token)
                return OperandArg(token.text)
            case WorkspaceRef(token, offset):
                return WorkspaceArg(self._offset(token, evaluate(offset, self._names) if offset else 0))

    def _operand(self, token: Token) -> Operand:
        if operand := self._operands.get(token.text):
            return operand
        known = (*self._operands, *self._maps, "workspace")
        hint = near(token.text, known) or f": use one of {', '.join(known)}"
        raise token.error(f"unknown operand '{token.text}'{hint}")

    def _offset(self, token: Token, offset: int) -> int:
        if self._plan.workspace is None:
            raise token.error("the plan has no `@workspace BYTES` line")
        if offset and not 0 <= offset < self._workspace:
            raise token.error(f"workspace+{offset} is outside the workspace of {self._workspace} bytes")
        return offset

    def _tensor_map(self, tensor_map: TensorMap) -> ResolvedTensorMap:
        if tensor_map.name.text in self._operands:
            raise tensor_map.name.error(f"'{tensor_map.name.text}' is an operand: choose another name for the tensor map")
        source = self._place(tensor_map.source)
        dtype, dims = self._shape(tensor_map)
        item = _ITEM_BYTES[dtype]
        tile = tuple(evaluate(value, self._names) for value in tensor_map.tile)
        swizzle = evaluate(tensor_map.swizzle, self._names) if tensor_map.swizzle else 0
        self._check_source(tensor_map, source, math.prod(dims) * item)
        _check_dims(tensor_map.name, dims, item)
        _check_tile(tensor_map.tile_token, dims, tile, item, swizzle)
        return ResolvedTensorMap(tensor_map.name.text, source, dtype, item, dims, tile, swizzle)

    def _shape(self, tensor_map: TensorMap) -> tuple[str, tuple[int, ...]]:
        if shape := tensor_map.shape:
            return shape.dtype.text, tuple(evaluate(dim, self._names) for dim in shape.dims)
        token = tensor_map.source.token
        if isinstance(tensor_map.source, WorkspaceRef):
            raise token.error("a tensor map of the workspace needs its type and shape: `as DTYPE(d0,...)`")
        operand = self._operand(token)
        dtype = _TENSOR_TYPE.get(operand.dtype, operand.dtype)
        if dtype not in _ITEM_BYTES:
            raise token.error(f"'{token.text}' has type {operand.dtype}: tensor maps do not support it")
        return dtype, operand.shape

    def _check_source(self, tensor_map: TensorMap, source: OperandArg | WorkspaceArg, size: int) -> None:
        match source:
            case OperandArg(name):
                operand = self._operands[name]
                available = math.prod(operand.shape) * _ITEM_BYTES.get(operand.dtype, 1)
            case WorkspaceArg(offset):
                available = self._workspace - offset
                if offset % TENSOR_ALIGNMENT:
                    raise tensor_map.source.token.error(f"workspace+{offset}: tensor maps must start at a multiple of 16 bytes")
        if size > available:
            raise tensor_map.name.error(f"'{tensor_map.name.text}' spans {size} bytes, its source has {available}")


def evaluate_extents(clause: Clause, names: Mapping[str, Number], limits: Dim3) -> Dim3:
    """The extents of a clause in x, y, z order. Raises KernelCodeError for one beyond its limit."""
    values = [evaluate(value, names) for value in clause.values]
    for axis, value, limit in zip("xyz", values, limits, strict=False):
        if not 1 <= value <= limit:
            raise clause.token.error(f"{clause.token.text} {axis} is {value}: 1 to {limit} are allowed")
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z


def check_workspace(workspace: Workspace, size: int) -> None:
    """Raises KernelCodeError for a size that no workspace has."""
    if not 0 <= size <= WORKSPACE_BYTES:
        raise workspace.token.error(f"a workspace of {size} bytes: 0 to {WORKSPACE_BYTES} are allowed")


def _check_dims(name: Token, dims: tuple[int, ...], item: int) -> None:
    if not 1 <= len(dims) <= TENSOR_RANK:
        raise name.error(f"a tensor map of rank {len(dims)}: 1 to {TENSOR_RANK} are allowed; use `as DTYPE(d0,...)`")
    for dim in dims:
        if not 1 <= dim <= TENSOR_DIM:
            raise name.error(f"a tensor map dimension of {dim}: 1 to 2**32 are allowed")
    stride = item
    for dim in reversed(dims[1:]):
        stride *= dim
        if stride % TENSOR_ALIGNMENT:
            raise name.error(f"the row stride of '{name.text}' is {stride} bytes: tensor maps need a multiple of 16")
        if stride >= TENSOR_STRIDE:
            raise name.error(f"the row stride of '{name.text}' is {stride} bytes: tensor maps need less than 2**40")


def _check_tile(token: Token, dims: tuple[int, ...], tile: tuple[int, ...], item: int, swizzle: int) -> None:
    if len(tile) != len(dims):
        raise token.error(f"the tile has rank {len(tile)}, the tensor {len(dims)}")
    for extent in tile:
        if not 1 <= extent <= TILE_EXTENT:
            raise token.error(f"a tile extent of {extent}: 1 to {TILE_EXTENT} are allowed")
    inner = tile[-1] * item
    if inner % TENSOR_ALIGNMENT:
        raise token.error(f"tile rows are {inner} bytes: tensor maps need a multiple of 16")
    if swizzle not in SWIZZLES:
        raise token.error(f"swizzle({swizzle}) is not supported: use 32, 64 or 128 bytes, or 0 for none")
    if swizzle and inner > swizzle:
        raise token.error(f"tile rows are {inner} bytes: swizzle({swizzle}) allows {swizzle} at most")
    if math.prod(tile) * item > SHARED_BYTES:
        raise token.error(f"a tile of {math.prod(tile) * item} bytes does not fit shared memory")

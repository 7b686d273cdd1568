"""Loads a cubin and prepares the launches of a resolved plan: a timed call is then one foreign call per launch. No torch.

The plan is checked against the attributes that the driver reports for its functions. Every failure of a kernel is a value,
:class:`LaunchFault`.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.domain.errors import DeviceError
from engine.toolchain.resolution import (
    Argument,
    NullArg,
    OperandArg,
    ResolvedLaunch,
    ResolvedPlan,
    ResolvedTensorMap,
    ScalarArg,
    TensorMapArg,
    WorkspaceArg,
)
from engine.trial.shared.cuda import driver as cuda
from engine.trial.shared.cuda.packing import (
    SCALAR_BYTES,
    TENSOR_MAP_BYTES,
    AlignedBuffer,
    PackedConfig,
    PackedParameters,
    pack_config,
    pack_parameters,
    pack_scalar,
    tensor_geometry,
)

_WARP = 32
_ADDRESS_BYTES = 8


@dataclass(frozen=True, slots=True)
class LaunchFault:
    """Device code that could not be loaded or launched, or that failed while running.

    ``error`` is the driver's name (``CUDA_ERROR_ILLEGAL_ADDRESS`` …), empty if our own check failed. After a device-side fault
    the process's context is unusable: end the process.
    """

    text: str
    error: str = ""


def fault(code: int, action: str) -> LaunchFault:
    """A driver's result code as a value."""
    return LaunchFault(f"{action}: {cuda.explain(code)}", cuda.error_name(code))


@dataclass(frozen=True, slots=True)
class Function:
    """One kernel of a loaded module with its attributes from the driver. Sizes in bytes, registers per thread."""

    name: str
    handle: int
    parameters: tuple[int, ...]
    """Size of each parameter, in order."""
    registers: int
    static_shared: int
    local: int
    threads: int
    """Largest block, in threads."""


class Module:
    """Device code loaded into the current context. Its ``__device__`` variables live until ``unload``."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._functions: dict[str, Function] = {}

    @classmethod
    def load(cls, image: bytes) -> Module | LaunchFault:
        """Loads a cubin (or PTX text, which the driver then compiles)."""
        code, handle = cuda.bindings().cuModuleLoadData(image)
        return fault(int(code), "loading the device code") if int(code) else cls(handle)

    def function(self, name: str) -> Function | LaunchFault:
        """A kernel by name, fully loaded now: its first launch does not pay for lazy loading."""
        if name not in self._functions:
            driver = cuda.bindings()
            code, handle = driver.cuModuleGetFunction(self._handle, name.encode())
            if int(code):
                return fault(int(code), f'looking up {name} (is it extern "C" __global__?)')
            if code := int(driver.cuFuncLoad(handle)[0]):
                return fault(code, f"loading {name}")
            self._functions[name] = _facts(name, handle)
        return self._functions[name]

    def unload(self) -> None:
        """Unloads the code and its variables. Never raises."""
        self._functions.clear()
        cuda.bindings().cuModuleUnload(self._handle)


def _facts(name: str, handle: Any) -> Function:
    driver = cuda.bindings()

    def fact(attribute: str) -> int:
        key = getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{attribute}")
        return int(cuda.check(driver.cuFuncGetAttribute(key, handle), f"reading {attribute.lower()} of {name}"))

    sizes: list[int] = []
    while True:
        code, _offset, size = driver.cuFuncGetParamInfo(handle, len(sizes))
        if int(code):
            break
        sizes.append(int(size))
    return Function(
        name, int(handle), tuple(sizes), fact("NUM_REGS"), fact("SHARED_SIZE_BYTES"), fact("LOCAL_SIZE_BYTES"),
        fact("MAX_THREADS_PER_BLOCK"),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The occupancy of one launch, for the report."""

    kernel: str
    blocks: int
    """Blocks resident on one multiprocessor at once."""
    warps: int
    most_warps: int
    clusters: int | None = None
    """Clusters resident on the device at once, for a launch with clusters."""

    @property
    def fraction(self) -> float:
        """Resident warps ÷ the most a multiprocessor holds."""
        return self.warps / self.most_warps


@dataclass(frozen=True, slots=True)
class _Prepared:
    launch: ResolvedLaunch
    function: Function
    config: PackedConfig
    parameters: PackedParameters

    def call(self) -> tuple[Callable[..., int], tuple[Any, ...]]:
        """The foreign function and its arguments, converted once."""
        return cuda.native().cuLaunchKernelEx, (
            ctypes.byref(self.config.config), ctypes.c_void_p(self.function.handle), self.parameters.table, None,
        )  # fmt: skip


class PreparedPlan:
    """A plan bound to addresses and a stream. Calling it enqueues all its launches and returns at once."""

    def __init__(self, launches: tuple[_Prepared, ...], clearing: tuple[Any, ...] | None) -> None:
        self._launches = launches
        self._clearing = clearing
        calls = [prepared.call() for prepared in launches]
        if clearing is not None:
            calls.insert(0, (cuda.native().cuMemsetD8Async, clearing))
        self._calls = tuple(calls)

    @classmethod
    def prepare(
        cls, modules: Sequence[Module], plan: ResolvedPlan, operands: Mapping[str, int], *, workspace: int = 0, stream: int = 0
    ) -> PreparedPlan | LaunchFault:
        """Binds ``plan`` to device addresses: ``operands`` by name, ``workspace`` of at least ``plan.workspace_bytes``.

        ``modules`` are the artefact's device images, in order.
        ``stream`` is the driver's handle, 0 for the default stream. One module can have several prepared plans, one per set of
        inputs. Raises :class:`DeviceError` if an operand or the workspace has no address, which is a bug of the caller.
        """
        if plan.workspace_bytes and not workspace:
            size = cuda.size_text(plan.workspace_bytes)
            raise DeviceError(f"the plan needs a workspace of {size}: allocate it before preparing")
        maps: dict[str, bytes] = {}
        for tensor_map in plan.tensor_maps:
            encoded = _encode(tensor_map, _address(tensor_map.source, operands, workspace))
            if isinstance(encoded, LaunchFault):
                return encoded
            maps[tensor_map.name] = encoded
        prepared: list[_Prepared] = []
        for launch in plan.launches:
            values = tuple(_value(argument, operands, workspace, maps) for argument in launch.arguments)
            one = _prepare(modules[launch.image], launch, values, stream)
            if isinstance(one, LaunchFault):
                return one
            prepared.append(one)
        return cls(tuple(prepared), _clearing(plan, workspace, stream))

    def __call__(self) -> LaunchFault | None:
        """Enqueues the launches in order. Device-side faults show when the device is waited for."""
        for call, arguments in self._calls:
            if code := call(*arguments):
                return self._refused(code)
        return None

    def _refused(self, code: int) -> LaunchFault:
        """Names the launch that the driver refused, by repeating the launches: the timed path keeps no count."""
        for prepared in self._launches:
            call, arguments = prepared.call()
            if again := call(*arguments):
                return fault(again, describe_launch(prepared.launch))
        return fault(code, "launching the plan")

    def occupancy(self) -> tuple[Occupancy, ...]:
        """One entry for each launch, in order. Raises :class:`DeviceError`."""
        return tuple(_occupancy(prepared) for prepared in self._launches)


def _clearing(plan: ResolvedPlan, workspace: int, stream: int) -> tuple[Any, ...] | None:
    if not (plan.workspace_zeroed and plan.workspace_bytes):
        return None
    return (
        ctypes.c_uint64(workspace), ctypes.c_ubyte(0), ctypes.c_size_t(plan.workspace_bytes), ctypes.c_void_p(stream),
    )  # fmt: skip


def _address(place: OperandArg | WorkspaceArg, operands: Mapping[str, int], workspace: int) -> int:
    match place:
        case OperandArg(name):
            if name not in operands:
                raise DeviceError(f"no address was given for operand {name!r}: bind every operand before preparing")
            return operands[name]
        case WorkspaceArg(offset):
            return workspace + offset


def _value(argument: Argument, operands: Mapping[str, int], workspace: int, maps: Mapping[str, bytes]) -> int | bytes:
    match argument:
        case TensorMapArg(name):
            return maps[name]
        case ScalarArg(kind, value):
            return pack_scalar(kind, value)
        case NullArg():
            return 0
        case OperandArg() | WorkspaceArg():
            return _address(argument, operands, workspace)


def _size(argument: Argument) -> tuple[int, str]:
    """The bytes that an argument takes, and what it is."""
    match argument:
        case TensorMapArg():
            return TENSOR_MAP_BYTES, "a tensor map"
        case ScalarArg(kind):
            return SCALAR_BYTES[kind], f"a number ({kind})"
        case _:
            return _ADDRESS_BYTES, "an address"


def _prepare(module: Module, launch: ResolvedLaunch, values: tuple[int | bytes, ...], stream: int) -> _Prepared | LaunchFault:
    function = module.function(launch.kernel)
    if isinstance(function, LaunchFault):
        return function
    if text := mismatch(launch, function, _shared_limit()):
        return LaunchFault(f"{describe_launch(launch)}: {text}")
    if code := _opt_in(launch, function):
        return fault(code, describe_launch(launch))
    config = pack_config(
        launch.grid, launch.block, launch.shared_bytes, stream, cluster=launch.cluster, cooperative=launch.cooperative
    )
    return _Prepared(launch, function, config, pack_parameters(values))


def mismatch(launch: ResolvedLaunch, function: Function, shared_limit: int) -> str | None:
    """Why this function cannot be launched as the plan says; ``None`` if it can.

    The driver would read past missing parameters, so their number and sizes are checked here.
    """
    wanted = tuple(_size(argument) for argument in launch.arguments)
    if len(wanted) != len(function.parameters):
        return f"the kernel has {len(function.parameters)} parameters, the @launch line passes {len(wanted)}"
    for number, ((given, what), size) in enumerate(zip(wanted, function.parameters, strict=True), 1):
        if given != size:
            return f"parameter {number} takes {size} bytes, the @launch line passes {what} of {given} bytes"
    if math.prod(launch.block) > function.threads:
        return (
            f"a block of {math.prod(launch.block)} threads: its {function.registers} registers per thread "
            f"or its launch bounds allow {function.threads}"
        )
    if function.static_shared + launch.shared_bytes > shared_limit:
        return (
            f"{function.static_shared} bytes of static and {launch.shared_bytes} of dynamic shared memory: "
            f"a block can have {shared_limit}"
        )
    return None


def describe_launch(launch: ResolvedLaunch) -> str:
    """A launch in the plan's syntax, with evaluated sizes."""
    parts = [f"grid{_dims(launch.grid)}", f"block{_dims(launch.block)}"]
    if launch.shared_bytes:
        parts.append(f"shared({launch.shared_bytes})")
    if launch.cluster != (1, 1, 1):
        parts.append(f"cluster{_dims(launch.cluster)}")
    if launch.cooperative:
        parts.append("cooperative")
    return f"launching {launch.kernel} {' '.join(parts)}"


def _dims(dims: tuple[int, int, int]) -> str:
    count = 3 if dims[2] > 1 else 2 if dims[1] > 1 else 1
    return f"({','.join(str(d) for d in dims[:count])})"


def _shared_limit() -> int:
    device = cuda.check(cuda.bindings().cuCtxGetDevice(), "asking for the current device")
    return cuda.attribute(device, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")


def _opt_in(launch: ResolvedLaunch, function: Function) -> int:
    """Sets the attributes that are opt-in: large dynamic shared memory, clusters of more than eight blocks."""
    driver = cuda.bindings()
    keys = driver.CUfunction_attribute
    handle = driver.CUfunction(function.handle)
    wanted = [(keys.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, launch.shared_bytes)]
    if launch.cluster != (1, 1, 1):
        wanted.append((keys.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1))
    for key, value in wanted:
        if code := int(driver.cuFuncSetAttribute(handle, key, value)[0]):
            return code
    return 0


def _encode(tensor_map: ResolvedTensorMap, address: int) -> bytes | LaunchFault:
    driver = cuda.bindings()
    geometry = tensor_geometry(tensor_map.dims, tensor_map.tile, tensor_map.item_bytes)
    rank = len(geometry.dims)
    swizzle = f"CU_TENSOR_MAP_SWIZZLE_{tensor_map.swizzle}B" if tensor_map.swizzle else "CU_TENSOR_MAP_SWIZZLE_NONE"
    place = AlignedBuffer(TENSOR_MAP_BYTES)
    code = cuda.native().cuTensorMapEncodeTiled(
        ctypes.c_void_p(place.address),
        int(getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{tensor_map.dtype.upper()}")),
        ctypes.c_uint32(rank),
        ctypes.c_uint64(address),
        (ctypes.c_uint64 * rank)(*geometry.dims),
        (ctypes.c_uint64 * rank)(*geometry.strides),
        (ctypes.c_uint32 * rank)(*geometry.tile),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        int(driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
        int(getattr(driver.CUtensorMapSwizzle, swizzle)),
        int(driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B),
        int(driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
    )
    if code:
        shape = f"{tensor_map.dtype}{list(tensor_map.dims)} tile{list(tensor_map.tile)} swizzle({tensor_map.swizzle})"
        return fault(code, f"encoding tensor map {tensor_map.name} {shape}")
    return place.read(TENSOR_MAP_BYTES)


def _occupancy(prepared: _Prepared) -> Occupancy:
    driver = cuda.bindings()
    launch, handle = prepared.launch, driver.CUfunction(prepared.function.handle)
    threads = math.prod(launch.block)
    found = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(handle, threads, launch.shared_bytes)
    blocks = int(cuda.check(found, f"asking for the occupancy of {launch.kernel}"))
    device = cuda.check(driver.cuCtxGetDevice(), "asking for the current device")
    most = cuda.attribute(device, "MAX_THREADS_PER_MULTIPROCESSOR") // _WARP
    clusters = None
    if launch.cluster != (1, 1, 1):
        count = ctypes.c_int()
        code = cuda.native().cuOccupancyMaxActiveClusters(
            ctypes.byref(count), ctypes.c_void_p(prepared.function.handle), ctypes.byref(prepared.config.config)
        )
        clusters = count.value if code == 0 else 0
    return Occupancy(launch.kernel, blocks, blocks * -(-threads // _WARP), most, clusters)

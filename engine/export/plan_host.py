"""C++ host code that launches a resolved launch plan, for an exported kernel.

The text is appended to the kernel's code and compiled with it; nothing is compiled or launched here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from engine.toolchain.resolution import (
    NullArg,
    OperandArg,
    ResolvedLaunch,
    ResolvedPlan,
    ResolvedTensorMap,
    ScalarArg,
    TensorMapArg,
    WorkspaceArg,
)

ENTRY = "espalier_launch"
"""``const char* espalier_launch(void* const* operands, void* workspace, cudaStream_t stream)``: null, or the error."""

TROUBLE = "espalier_trouble"
"""``const char* espalier_trouble()``: null, or the error of the last launch."""

ERROR_REPORTER = f"""
#include <cuda_runtime.h>

extern "C" const char* {TROUBLE}()
{{
    const cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}}
"""
"""Defines ``TROUBLE`` for a kernel with its own host code."""

_ENCODE = """\
typedef CUresult (*espalier_encode_t)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
    const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
    CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static espalier_encode_t espalier_encoder()
{
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    return driver ? (espalier_encode_t)dlsym(driver, "cuTensorMapEncodeTiled") : nullptr;
}
"""


def launcher(plan: ResolvedPlan, operands: Sequence[str]) -> str:
    """C++ text that defines ``ENTRY``; ``operands`` are names in the order of its first argument."""
    return "\n".join(_lines(plan, operands)) + "\n"


def _lines(plan: ResolvedPlan, operands: Sequence[str]) -> Iterator[str]:
    yield ""
    yield "#include <cuda_runtime.h>"
    if plan.tensor_maps:
        yield "#include <cuda.h>"
        yield "#include <dlfcn.h>"
        yield ""
        yield _ENCODE
    yield ""
    yield f'extern "C" const char* {ENTRY}(void* const* operands, void* workspace, cudaStream_t stream)'
    yield "{"
    yield "    cudaError_t error = cudaSuccess;"
    if plan.workspace_zeroed and plan.workspace_bytes:
        yield f"    error = cudaMemsetAsync(workspace, 0, {plan.workspace_bytes}ull, stream);"
        yield "    if (error != cudaSuccess) return cudaGetErrorString(error);"
    if plan.tensor_maps:
        yield "    static const espalier_encode_t encode = espalier_encoder();"
        yield '    if (!encode) return "the driver has no cuTensorMapEncodeTiled";'
    for tensor_map in plan.tensor_maps:
        yield from (f"    {line}" for line in _tensor_map(tensor_map, operands))
    for launch in plan.launches:
        yield from (f"    {line}" for line in _launch(launch, operands))
    yield "    return nullptr;"
    yield "}"


def _pointer(place: OperandArg | WorkspaceArg, operands: Sequence[str]) -> str:
    match place:
        case OperandArg(name):
            return f"operands[{list(operands).index(name)}]"
        case WorkspaceArg(offset):
            return f"(void*)((char*)workspace + {offset}ull)"


def _tensor_map(tensor_map: ResolvedTensorMap, operands: Sequence[str]) -> Iterator[str]:
    rank = len(tensor_map.dims)
    dims = ", ".join(f"{d}ull" for d in reversed(tensor_map.dims))
    strides = ", ".join(f"{tensor_map.item_bytes * math.prod(tensor_map.dims[i:])}ull" for i in range(rank - 1, 0, -1))
    tile = ", ".join(f"{t}u" for t in reversed(tensor_map.tile))
    swizzle = f"CU_TENSOR_MAP_SWIZZLE_{tensor_map.swizzle}B" if tensor_map.swizzle else "CU_TENSOR_MAP_SWIZZLE_NONE"
    name, source = f"map_{tensor_map.name}", _pointer(tensor_map.source, operands)
    dtype = f"CU_TENSOR_MAP_DATA_TYPE_{tensor_map.dtype.upper()}"
    yield f"alignas(128) CUtensorMap {name};"
    yield "{"
    yield f"    const cuuint64_t dims[] = {{{dims}}}, strides[] = {{{strides or '0ull'}}};"
    yield f"    const cuuint32_t tile[] = {{{tile}}}, steps[] = {{{', '.join(['1u'] * rank)}}};"
    yield f"    if (encode(&{name}, {dtype}, {rank}, {source},"
    yield f"               dims, strides, tile, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, {swizzle},"
    yield "               CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)"
    yield f'        return "cuTensorMapEncodeTiled rejected tensor map {tensor_map.name}";'
    yield "}"


def _launch(launch: ResolvedLaunch, operands: Sequence[str]) -> Iterator[str]:
    kernel = f"(const void*){launch.kernel}"
    clustered = launch.cluster != (1, 1, 1)
    yield "{"
    yield f"    error = cudaFuncSetAttribute({kernel}, cudaFuncAttributeMaxDynamicSharedMemorySize, {launch.shared_bytes});"
    if clustered:
        yield (
            "    if (error == cudaSuccess) "
            f"error = cudaFuncSetAttribute({kernel}, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);"
        )
    yield "    if (error != cudaSuccess) return cudaGetErrorString(error);"
    yield "    cudaLaunchAttribute attributes[2] = {};"
    yield "    cudaLaunchConfig_t config = {};"
    yield f"    config.gridDim = dim3({_dim3(launch.grid)});"
    yield f"    config.blockDim = dim3({_dim3(launch.block)});"
    yield f"    config.dynamicSmemBytes = {launch.shared_bytes};"
    yield "    config.stream = stream;"
    yield "    config.attrs = attributes;"
    if clustered:
        yield "    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;"
        for axis, value in zip("xyz", launch.cluster, strict=True):
            yield f"    attributes[config.numAttrs].val.clusterDim.{axis} = {value};"
        yield "    ++config.numAttrs;"
    if launch.cooperative:
        yield "    attributes[config.numAttrs].id = cudaLaunchAttributeCooperative;"
        yield "    attributes[config.numAttrs++].val.cooperative = 1;"
    names: list[str] = []
    for number, argument in enumerate(launch.arguments):
        if isinstance(argument, TensorMapArg):
            names.append(f"&map_{argument.name}")
        elif isinstance(argument, ScalarArg | NullArg):
            raise TypeError("only triton plans pass numbers and null pointers")
        else:
            yield f"    void* argument{number} = {_pointer(argument, operands)};"
            names.append(f"&argument{number}")
    yield f"    void* arguments[] = {{{', '.join(names) or 'nullptr'}}};"
    yield f"    error = cudaLaunchKernelExC(&config, {kernel}, arguments);"
    yield "    if (error != cudaSuccess) return cudaGetErrorString(error);"
    yield "}"


def _dim3(extent: tuple[int, int, int]) -> str:
    return ", ".join(str(value) for value in extent)

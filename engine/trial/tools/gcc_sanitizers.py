"""A ``cpp`` kernel as a separate program under AddressSanitizer and UBSan (g++).

The harness gives every operand a heap allocation of exactly its size, fresh for each call and freed after it. A read past an
end, a pointer kept from an earlier call, a misaligned access and an overflow are all detected. It needs neither torch nor
Python and runs in the builder's confinement, with time and memory limits.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.domain import work as w
from engine.domain.figure_text import exact
from engine.domain.model import Role
from engine.sandbox.confinement import CommandLimits, Confinement, run_confined
from engine.sandbox.include_trees import include_trees
from engine.toolchain.build import BuildFailure, BuildOutcome, BuildRequest, build_with
from engine.toolchain.cache import Cache, cache_folder
from engine.toolchain.compilers import cpu_arch, find_gxx
from engine.toolchain.included import identity, include_flags
from engine.toolchain.recipe import Recipe
from engine.trial.shared.layout import nbytes
from engine.trial.tools import sanitizer_output
from engine.trial.tools.kernel_case import DumpInputs, KernelCase, Store

TOOLS = ("address", "undefined")
LIMITS = CommandLimits(seconds=60.0, memory_bytes=None, file_bytes=64 << 20, processes=1024)
"""Limits of the harness."""
CALLS = 3
"""Calls on fresh inputs per workload."""
_BUDGET_S = 1.5
"""Seconds after which no further call of a workload starts."""
_MEMORY = 8 << 30
HARNESS = "harness.cpp"
ALIGNMENT = 512
"""Alignment of operands, as in the trial's arenas."""
_BINARY = "kernel.sanitised"
_FLAGS = (
    "-std=c++20", "-O1", "-g1", "-march=native", "-ffp-contract=fast", "-fopenmp", "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined", "-D_GLIBCXX_ASSERTIONS", "-w", "-fmax-errors=20", "-fdiagnostics-color=never",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HarnessOperand:
    """One operand as the harness allocates it."""

    name: str
    size: int
    written: bool


_TEXT = r"""#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

extern "C" void launch(@parameters@);
extern "C" __attribute__((weak)) std::size_t workspace_bytes(void);
extern "C" const char* __asan_default_options()
{
    return "detect_leaks=0:detect_odr_violation=0:redzone=512:max_redzone=2048:allocator_may_return_null=1:"
           "hard_rss_limit_mb=@megabytes@:handle_abort=1";
}
extern "C" const char* __ubsan_default_options() { return "print_stacktrace=0"; }

static const char* const names[] = {@names@};
static const std::size_t sizes[] = {@sizes@};
static const bool written[] = {@written@};
constexpr int count = @count@;

static void* allocated(const char* name, std::size_t size)
{
    void* found = nullptr;
    if (posix_memalign(&found, @alignment@, size ? size : 1)) std::exit(3);
    std::memset(found, 0xFF, size);
    std::fprintf(stderr, "operand %s %p %zu\n", name, found, size);
    return found;
}

static void* filled(const char* name, std::size_t size, std::FILE* from)
{
    void* found = allocated(name, size);
    if (from && std::fread(found, 1, size, from) != size) std::exit(4);
    return found;
}

static double now()
{
    timespec t;
    std::timespec_get(&t, TIME_UTC);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

int main(int argc, char** argv)
{
    if (std::FILE* file = std::fopen("/proc/self/oom_score_adj", "w")) {
        std::fputs("1000", file);
        std::fclose(file);
    }
    const double start = now();
    for (int call = 1; call < argc && now() - start < @seconds@; ++call) {
        std::FILE* file = std::fopen(argv[call], "rb");
        if (!file) return 5;
        void* given[count + 1];
        for (int i = 0; i < count; ++i) given[i] = filled(names[i], sizes[i], written[i] ? nullptr : file);
        std::fclose(file);
        given[count] = workspace_bytes ? allocated("workspace", workspace_bytes()) : nullptr;
        launch(@arguments@);
        for (void* operand : given) std::free(operand);
        std::fprintf(stderr, "harness: call %d of %d done\n", call, argc - 1);
    }
    std::fprintf(stderr, "harness: finished\n");
    std::fflush(stderr);
    std::_Exit(0);
}
"""
FINISHED = "harness: finished"


def harness(operands: Sequence[HarnessOperand], *, seconds: float, memory_bytes: int) -> str:
    """The program around ``launch``: one call per file on its command line, none started after ``seconds``."""
    places = {
        "parameters": ", ".join(["void*"] * (len(operands) + 1)),
        "names": ", ".join(f'"{o.name}"' for o in operands),
        "sizes": ", ".join(f"{o.size}u" for o in operands),
        "written": ", ".join(str(o.written).lower() for o in operands),
        "count": str(len(operands)),
        "alignment": str(ALIGNMENT),
        "megabytes": str(max(256, memory_bytes >> 20)),
        "seconds": f"{seconds:g}",
        "arguments": ", ".join(f"given[{i}]" for i in range(len(operands) + 1)),
    }
    text = _TEXT
    for name, value in places.items():
        text = text.replace(f"@{name}@", value)
    return text


async def build_sanitized(request: BuildRequest, main: str, confinement: Confinement) -> BuildOutcome:
    """Build a ``cpp`` kernel with its harness; cached as a separate entry. Raises as ``build`` does."""
    return await build_with(request, await _recipe(request.tunables, main), confinement)


async def _recipe(tunables: Mapping[str, int], main: str) -> Recipe:
    gxx = await find_gxx()
    defines = tuple(f"-D{name}={value}" for name, value in tunables.items())
    trees = include_trees()
    argv = ("g++", *_FLAGS, *include_flags(trees), *defines, "-o", _BINARY, "kernel.cpp", HARNESS)
    return Recipe(
        argv, "kernel.cpp", _BINARY, (gxx.version, await cpu_arch(), *identity(trees)),
        (*gxx.readable, *(tree.path for tree in trees)), (gxx.folder,), {HARNESS: main}, trees=trees,
    )  # fmt: skip


async def sanitize_cpp(cases: Sequence[KernelCase], dump: DumpInputs, confinement: Confinement, store: Store) -> w.Sanitized:
    """Build and run every shape's program. Raises ToolchainError, SandboxError, or EspalierError for a full disk."""
    builds = await asyncio.gather(*(_build(case, confinement) for case in cases))
    runs: list[_SanitizerRun] = []
    cache = Cache(cache_folder())
    for case, built in zip(cases, builds, strict=True):
        if isinstance(built, BuildFailure):
            runs.append(
                _SanitizerRun((), f"{_name(case)}: does not build with sanitizers: {built.reason}", built.log, ran=False)
            )
            continue
        with cache.build_folder() as folder:
            # The program runs beside its inputs: it need not see the caller's temporary folder.
            shutil.copy(built.binary, folder / "kernel")
            files = await dump(case.workload, folder, CALLS)
            argv = [str(folder / "kernel"), *(str(f) for f in files)]
            result = await run_confined(argv, confinement.for_programs(LIMITS), folder)
        runs.append(_read(case, result.output, result.status, timed_out=result.timed_out))
    return _combine(runs, store)


@dataclass(frozen=True, slots=True)
class _SanitizerRun:
    findings: tuple[str, ...]
    note: str
    log: str
    ran: bool = True


async def _build(case: KernelCase, confinement: Confinement) -> BuildOutcome:
    operands = [HarnessOperand(o.name, nbytes(o), o.role is Role.OUTPUT) for o in case.signature.operands]
    main = harness(operands, seconds=_BUDGET_S, memory_bytes=_MEMORY)
    return await build_sanitized(case.request, main, confinement)


def _read(case: KernelCase, output: str, status: int, *, timed_out: bool) -> _SanitizerRun:
    found = sanitizer_output.parse_gcc_sanitizers(output, "kernel.cpp", case.request.name)
    note = ""
    if timed_out:
        note = f"{_name(case)}: stopped after {LIMITS.seconds:g} s under the sanitizers"
    elif sanitizer_output.out_of_memory(output):
        note = f"{_name(case)}: exceeded {_MEMORY >> 30} GiB of memory under the sanitizers"
    elif not found and (status != 0 or FINISHED not in output):
        how = f"signal {-status}" if status < 0 else f"status {status}"
        found = (f"{case.request.name}: exited with {how} under the sanitizers before its calls finished",)
    return _SanitizerRun(tuple(f"{one} ({_name(case)})" for one in found), note, f"{_name(case)}\n{output}\n")


def _name(case: KernelCase) -> str:
    settings = ", ".join(f"{k}={exact(v)}" for k, v in case.workload.settings.items())
    return settings or case.workload.name


def _combine(runs: Sequence[_SanitizerRun], store: Store) -> w.Sanitized:
    """The combined result; a finding that occurs in several cases is listed once."""
    found: dict[str, str] = {}
    for one in (finding for run in runs for finding in run.findings):
        found.setdefault(one.rpartition(" (")[0], one)
    tools = TOOLS if any(run.ran for run in runs) else ()
    notes = "; ".join(run.note for run in runs if run.note)
    log = "".join(run.log for run in runs)
    return w.Sanitized(tools, tuple(found.values()), notes, store(log.encode()) if log.strip() else "")

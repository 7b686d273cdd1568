"""A ``cpp`` kernel as a program of its own under the address and undefined-behaviour sanitizers.

The harness gives every operand a heap allocation of exactly its size, fresh for each call and freed after it, so that a read
past an end, a pointer kept from an earlier call and a misaligned or overflowing step are all seen. It needs neither torch nor
Python, and reads its inputs from files. Knows text and flags; ``engine.trial.sanitizing`` runs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.build.build import BuildRequest, Outcome, build_as
from engine.build.compilers import Recipe
from engine.build.confinement import Confinement
from engine.build.toolchain import cpu_arch, find_gxx

TOOLS = ("address", "undefined")
HARNESS = "harness.cpp"
ALIGNMENT = 512
"""What the trial's own arenas give every operand."""
_BINARY = "kernel.sanitised"
_FLAGS = (
    "-std=c++20", "-O1", "-g1", "-march=native", "-ffp-contract=fast", "-fopenmp", "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined", "-D_GLIBCXX_ASSERTIONS", "-w", "-fmax-errors=20", "-fdiagnostics-color=never",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lent:
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


def harness(operands: Sequence[Lent], *, seconds: float, memory_bytes: int) -> str:
    """The program around ``launch``: one call for each file named on its command line, none begun after ``seconds``."""
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


async def build_sanitised(request: BuildRequest, main: str, confinement: Confinement) -> Outcome:
    """Build a ``cpp`` source with its harness; kept in the cache as an entry of its own. Raises like ``build``."""
    return await build_as(request, await _recipe(request.tunables, main), confinement)


async def _recipe(tunables: Mapping[str, int], main: str) -> Recipe:
    gxx = await find_gxx()
    defines = tuple(f"-D{name}={value}" for name, value in tunables.items())
    argv = ("g++", *_FLAGS, *defines, "-o", _BINARY, "kernel.cpp", HARNESS)
    return Recipe(
        argv, "kernel.cpp", _BINARY, (gxx.version, await cpu_arch()), gxx.readable, (gxx.folder,), {HARNESS: main}
    )  # fmt: skip

"""Compiles the ``@jit`` functions of a file to PTX. Runs in the builder's sandbox, where the file's own code runs too.

``python compile_worker.py KERNEL JOBS RESULT ARCH SITE...``: imports KERNEL, compiles what JOBS lists, writes RESULT. What it
writes is not trusted: the engine parses it strictly and assembles the PTX itself. It imports nothing of the engine: it is
copied beside the kernel. Errors are printed as g++ prints them, with exit status 1.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import sys
import traceback
import warnings
from types import ModuleType
from typing import Any

Job = dict[str, Any]
_LONGEST = 600
"""Characters of an error."""


class RefusedJob(Exception):
    """A function that cannot be compiled ahead."""


def main(kernel: str, jobs: str, result: str, arch: str) -> int:
    """Compile every job; the exit status."""
    with open(jobs, encoding="utf-8") as file:
        wanted: list[Job] = json.load(file)
    job: Job | None = None
    try:
        from triton.backends.compiler import GPUTarget
        from triton.backends.nvidia.compiler import CUDABackend

        CUDABackend.make_cubin = lambda *_, **__: b""  # the engine assembles the PTX, out of the file's reach
        module = _load(kernel)
        target = GPUTarget("cuda", int(arch), 32)
        compiled = []
        for job in wanted:
            compiled.append(_compile(module, job, target))
    except BaseException as error:  # the file's own SystemExit too
        sys.stdout.write(traceback.format_exc().replace(os.getcwd() + os.sep, "") + _described(error, job, kernel) + "\n")
        return 1
    with open(result, "w", encoding="utf-8") as file:
        json.dump(compiled, file)
    return 0


def _load(kernel: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("kernel", kernel)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernel"] = module
    spec.loader.exec_module(module)
    return module


def _compile(module: ModuleType, job: Job, target: object) -> dict[str, object]:
    import triton

    function, computed = _unwrapped(getattr(module, job["function"], None), job)
    options = {**job["options"], **({"launch_cooperative_grid": True} if job["cooperative"] else {})}
    done = triton.compile(_source(function, job, computed), target=target, options=options)
    facts = done.metadata._asdict()
    if facts.get("tensordesc_meta"):
        raise RefusedJob(f"'{job['function']}' takes tensor descriptors made on the host: use tl.make_tensor_descriptor()")
    return {
        "entry": facts["name"], "ptx": done.asm["ptx"], "shared": facts["shared"], "num_warps": facts["num_warps"],
        "scratch_bytes": facts.get("global_scratch_size", 0), "scratch_align": facts.get("global_scratch_align", 1),
        "profile_bytes": facts.get("profile_scratch_size", 0),
    }  # fmt: skip


def _unwrapped(found: Any, job: Job) -> tuple[Any, dict[str, object]]:
    """The function inside its decorators, and the values that ``@triton.heuristics`` computes."""
    from triton.runtime.jit import JITFunction

    values: dict[str, object] = {}
    while not isinstance(found, JITFunction):
        if not hasattr(found, "fn"):
            raise RefusedJob(f"'{job['function']}' is no @triton.jit or @gluon.jit function when the file is imported")
        if isinstance(getattr(found, "values", None), dict):
            known = {**values, **job["constants"]}
            values |= {name: compute(known) for name, compute in found.values.items() if name in job["computed"]}
        found = found.fn
    return found, values


def _source(function: Any, job: Job, computed: dict[str, object]) -> object:
    from triton.compiler import ASTSource

    parameters = inspect.signature(function.fn).parameters
    signature = dict(job["signature"])
    if list(signature) != list(parameters):
        raise RefusedJob(f"'{job['function']}' has other parameters when the file is imported")
    constants = {**job["constants"], **computed, **{name: parameters[name].default for name in job["defaults"]}}
    if missing := [name for name in job["computed"] if name not in constants]:
        raise RefusedJob(f"@triton.heuristics did not compute {', '.join(missing)}")
    attributes = {(place,): [["tt.divisibility", 16]] for place in job["aligned"]}
    kind = ASTSource
    if getattr(function, "is_gluon", bool)():
        from triton.experimental.gluon._runtime import GluonASTSource

        kind = GluonASTSource
    return kind(function, signature, constants, attributes)


def _described(error: BaseException, job: Job | None, kernel: str) -> str:
    """``kernel.py:LINE:COLUMN: error: text``, at the innermost place in the kernel's own file."""
    chain = [error]
    while chain[-1].__cause__ is not None and chain[-1].__cause__ not in chain:
        chain.append(chain[-1].__cause__)
    for one in reversed(chain):
        node, source = getattr(one, "node", None), getattr(one, "src", None)
        if source and node is not None and hasattr(node, "lineno"):
            text = getattr(one, "error_message", None) or one.__cause__ or type(one).__name__
            return f"{kernel}:{_start(kernel, source) + node.lineno}:{node.col_offset + 1}: error: {_line(text)}"
    last = chain[-1]
    if isinstance(last, SyntaxError):
        return f"{kernel}:{last.lineno or 0}:{last.offset or 0}: error: {last.msg}"
    frames = [frame for frame in traceback.extract_tb(last.__traceback__) if os.path.basename(frame.filename) == kernel]
    place = f"{frames[-1].lineno}:1" if frames else f"{job['line']}:{job['column']}" if job else "1:1"
    return f"{kernel}:{place}: error: {_line(last if isinstance(last, RefusedJob) else f'{type(last).__name__}: {last}')}"


def _start(kernel: str, source: str) -> int:
    """Lines before a function, which Triton knows by its text only."""
    first = source.split("\n")[0].strip()
    with open(kernel, encoding="utf-8") as file:
        return next((at for at, line in enumerate(file) if line.strip() == first), 0)


def _line(text: object) -> str:
    return " ".join(part.strip() for part in str(text).splitlines() if part.strip())[:_LONGEST]


if __name__ == "__main__":
    _kernel, _jobs, _result, _arch, *_sites = sys.argv[1:]
    _here = os.getcwd()
    sys.path[:] = [place for place in sys.path if place not in ("", _here)] + _sites
    os.environ.update(
        HOME=_here, TRITON_HOME=_here, TRITON_CACHE_DIR=os.path.join(_here, "cache"), TRITON_ALWAYS_COMPILE="1",
        TRITON_DEFAULT_FP_FUSION="1", OMP_NUM_THREADS="1",
    )  # fmt: skip
    warnings.simplefilter("ignore")
    sys.exit(main(_kernel, _jobs, _result, _arch))

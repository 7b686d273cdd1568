"""Has a module compile what it compiles, once, in the builder's sandbox, and writes the caches to standard output.

``python -m engine.trial.runner.module_build SPEC [INPUTS]``: as for ``profile_target``. With ``INPUTS`` the module is called
once, else only constructed (in a sandbox without the device). Imports torch.
"""

from __future__ import annotations

import base64
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from engine.trial.messages import ClaimedTimes, Fault, LoadKernel, RunKernel
from engine.trial.runner import module_caches, torch_headers
from engine.trial.runner.module_caches import COMPILED, COMPILER_FAILED, LIGHT, WENT_ON

_FAILED = "Error building extension"
"""How torch's extension builder begins the message when a compiler failed."""
_BUILD = "_jit_compile"
"""What every function of torch's extension builder calls."""


def main() -> None:
    """Compile; the last line of output holds the caches, or says how a compiler failed."""
    own = os.dup(sys.stdout.fileno())
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    words = b""
    load = msgspec.msgpack.decode(Path(sys.argv[1]).read_bytes(), type=LoadKernel)
    failed = _failures(load.source)
    try:
        _call(load, Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
    except BaseException as error:
        words = _words(error)
    if not words and failed and LIGHT in os.environ:
        words = WENT_ON.encode()
    line = (
        COMPILER_FAILED.encode() + base64.b64encode(words)
        if words
        else COMPILED.encode() + base64.b64encode(module_caches.pack())
    )
    with open(own, "wb") as out:
        out.write(b"\n" + line + b"\n")
        out.flush()
        os._exit(0)


def _failures(source: str) -> list[BaseException]:
    """The errors of torch's extension builder from now on, also those that a module catches, to go on without an extension.

    Where ``LIGHT`` is set, the builder's compilers get a part of torch's headers, as the module's source needs them.
    """
    found: list[BaseException] = []
    try:
        from torch.utils import cpp_extension
    except ImportError:  # setuptools is missing: the module will say so
        return found
    build = getattr(cpp_extension, _BUILD)

    def recording(*given: Any, **named: Any) -> Any:
        if LIGHT in os.environ:
            torch_headers.use(source)
        try:
            return build(*given, **named)
        except BaseException as error:
            found.append(error)
            raise

    setattr(cpp_extension, _BUILD, recording)
    return found


def _words(error: BaseException) -> bytes:
    """The output of a compiler that failed; empty for any other error, which the kernel's trial will tell."""
    text = str(error)
    if isinstance(error, RuntimeError) and text.startswith(_FAILED):
        return text.encode(errors="replace")
    traceback.print_exc()
    return b""


def _call(load: LoadKernel, spec: Path, inputs: list[Path]) -> None:
    import torch

    from engine.trial.runner.modules import construct_module
    from engine.trial.runner.profile_target import load_launcher

    torch.set_num_threads(load.threads)
    if not inputs:
        # Many constructors compile only where they find a device. Weights are drawn on the CPU here.
        setattr(torch.cuda, "is_available", lambda: True)  # noqa: B010
        construct_module(msgspec.structs.replace(load, device="cpu"))
        return
    _, launcher = load_launcher(spec, inputs[0], _untimed)
    called = launcher.call(RunKernel(0))
    if isinstance(called, Fault):
        sys.stderr.write(called.text)


def _untimed(work: Callable[[], Any], order: RunKernel, outputs: Callable[[], tuple[int, ...]] = tuple) -> ClaimedTimes:
    work()
    return ClaimedTimes(1.0, 1.0, 0.0)


if __name__ == "__main__":
    main()

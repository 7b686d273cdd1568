"""A builder: compiles kernels in a process of its own that has no GPU.

``python -m engine.fleet.builder FD DEVICE CORES`` serves one engine over the socket FD; DEVICE is ``build``.
"""

from __future__ import annotations

import asyncio
import glob
import os
import socket
import sys
from collections.abc import Callable, Sequence

from engine.domain import work as w
from engine.domain.errors import EspalierError
from engine.domain.state import Kernel
from engine.fleet import messages as m
from engine.fleet.server import CallServer, SendFrame, serve, store
from engine.toolchain.build import BuildFailure
from engine.trial.bench import build_failed, built
from engine.trial.judge_session import with_contents
from engine.trial.kernel_builds import BuildTarget, BuiltKernel, KernelSpec, compile_kernel

_GPUS = "/dev/nvidia[0-9]*"
_MOST_BYTES = m.LONGEST_FRAME // 2
"""Most bytes of a kernel's binaries in one answer."""


class BuilderServer(CallServer):
    """Serves one engine: builds for the target that it names."""

    def __init__(self, send: SendFrame) -> None:
        super().__init__(send)
        self._target: BuildTarget | None = None

    async def obey(self, order: m.Calls) -> object:
        match order:
            case m.OpenBuilder(_, target):
                self._target = m.decode_target(self.payload(target))
                return m.OpenedBuilder(bool(glob.glob(_GPUS)))
            case m.DoWork(call, m.COMPILE, (sent,)):
                if self._target is None:
                    raise EspalierError("this builder has no target")
                return await self.compile(*self.kernel(sent), self._target, self.say(call))
        return await super().obey(order)

    async def compile(
        self, kernel: Kernel, code: str, target: BuildTarget, say: Callable[[str], None]
    ) -> m.CompiledKernel | w.Failed | w.Impossible:
        """Build a kernel; its binaries and its log are stored for the answer. Raises ToolchainError, EspalierError."""
        say(f"building {kernel.name}")
        spec = KernelSpec(kernel.name, code, kernel.dialect, kernel.contract, kernel.tunables)
        found = await compile_kernel(spec, target)
        if isinstance(found, BuildFailure):
            return build_failed(found, store)
        contents = await asyncio.to_thread(_contents, found)
        if (total := sum(map(len, contents))) > _MOST_BYTES:
            return w.Impossible(f"the binaries of {kernel.name} have {total} bytes: they are built where they run")
        for content in contents:
            store(content)
        return m.CompiledKernel(await built(found, store), found.binaries)


def _contents(kernel: BuiltKernel) -> frozenset[bytes]:
    candidate = with_contents(kernel.candidate)
    builds = [(candidate.built, candidate.holdouts), *((one.built, one.holdouts) for one in candidate.more)]
    return frozenset(binary.content for own, holdouts in builds for binary in (own, *holdouts))


def run(make_server: Callable[[SendFrame], CallServer], arguments: Sequence[str]) -> None:
    """The program: descriptor of the socket, ``build``, comma-separated cores or nothing."""
    descriptor, _, numbers = arguments
    if cores := [int(core) for core in numbers.split(",") if core]:
        os.sched_setaffinity(0, cores)
    asyncio.run(serve(socket.socket(fileno=int(descriptor)), make_server))


if __name__ == "__main__":
    run(BuilderServer, sys.argv[1:])

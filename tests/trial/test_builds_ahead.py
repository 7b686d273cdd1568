"""Builds ahead of the device: their order, how many run at once, and what becomes of those that nobody takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.domain.errors import EspalierError
from engine.domain.model import Contract, Dialect
from engine.trial import kernel_builds
from engine.trial.builds_ahead import AT_A_TIME, BuildsAhead
from engine.trial.kernel_builds import KernelBuilds, KernelSpec


class Compiler:
    """Builds texts: each waits until it is told to end."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.begun: list[str] = []
        self.most = 0
        self.end = asyncio.Event()

    async def build(self, text: str) -> str:
        self.begun.append(text)
        self.running.append(text)
        self.most = max(self.most, len(self.running))
        try:
            await self.end.wait()
        finally:
            self.running.remove(text)
        if text == "broken":
            raise EspalierError("no compiler")
        return f"built {text}"


def told(story: Callable[[BuildsAhead[str, str], Compiler], Awaitable[None]]) -> None:
    async def run() -> None:
        compiler = Compiler()
        ahead = BuildsAhead(compiler.build, str.lower)
        await story(ahead, compiler)
        await ahead.close()
        assert compiler.running == []

    asyncio.run(run())


def test_builds_run_in_order_a_few_at_a_time() -> None:
    async def story(ahead: BuildsAhead[str, str], compiler: Compiler) -> None:
        names = ["a", "b", "c", "d", "e"]
        ahead.start(names)
        ahead.start(["A", "b"])  # the same builds again
        compiler.end.set()
        assert [await ahead.take(name) for name in names] == [f"built {name}" for name in names]
        assert compiler.begun == names
        assert compiler.most <= AT_A_TIME
        assert await ahead.take("a") is None  # taken once

    told(story)


def test_an_error_reaches_who_takes_the_build() -> None:
    async def story(ahead: BuildsAhead[str, str], compiler: Compiler) -> None:
        ahead.start(["broken", "whole"])
        compiler.end.set()
        with pytest.raises(EspalierError, match="no compiler"):
            await ahead.take("broken")
        assert await ahead.take("whole") == "built whole"

    told(story)


def test_builds_that_nobody_takes_end_with_the_bench() -> None:
    async def story(ahead: BuildsAhead[str, str], compiler: Compiler) -> None:
        ahead.start(["a", "b", "c", "broken"])
        await asyncio.sleep(0)
        assert compiler.running

    told(story)


@pytest.mark.parametrize(("device", "built"), [("cpu", []), ("cuda:0", ["k.cu"])])
def test_only_compilers_that_take_nothing_that_is_measured_run_ahead(
    device: str, built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU the cores are measured; modules are built with inputs, which the judge draws."""
    begun: list[str] = []

    async def compiled(kernel: KernelSpec, *_: object) -> Any:
        begun.append(kernel.name)
        return kernel_builds.BuildFailure("no", "no", 0.0)

    async def target(*_: object) -> Any:
        return SimpleNamespace(device=None)

    async def run() -> None:
        monkeypatch.setattr(kernel_builds, "compile_kernel", compiled)
        builds = KernelBuilds(cast(Any, SimpleNamespace(device=device)), cast(Any, None))
        monkeypatch.setattr(builds, "target", target)
        kernel = KernelSpec("k.cu", "text", Dialect.CUDA, Contract.PLAN)
        builds.start([kernel, KernelSpec("m.py", "text of a module", Dialect.PYTHON, Contract.MODULE)])
        for _ in range(5):
            await asyncio.sleep(0)
        assert begun == built
        if device != "cpu":
            failed = await builds.build(kernel, lambda _: None)
            assert isinstance(failed, kernel_builds.BuildFailure)
            assert begun == ["k.cu"]  # not built twice
        await builds.close()

    asyncio.run(run())

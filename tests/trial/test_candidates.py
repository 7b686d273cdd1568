"""What the bench passes on about a kernel besides its code: the requested name, and whether it starts threads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from trial.ground import tiny

from engine.domain.model import Contract, Dialect
from engine.domain.work import Failed
from engine.problem import catalog
from engine.toolchain.build import BuildFailure
from engine.trial.bench import Assignment, KernelSpec, TrialBench
from engine.trial.messages import ArenaHandle, LoadKernel
from engine.trial.runner import launchers
from engine.trial.runner.calls import LentOperands
from engine.trial.shared.arena import SharedArena, SharedBorrowed

Result = TypeVar("Result")


def on_bench(story: Callable[[TrialBench, dict[str, bytes]], Awaitable[Result]]) -> Result:
    blobs: dict[str, bytes] = {}

    def store(content: bytes) -> str:
        blobs[str(len(blobs))] = content
        return str(len(blobs) - 1)

    async def run() -> Result:
        problem = tiny()
        bench = TrialBench(Assignment(problem, catalog.workload_for(problem, "small"), "cpu"), store)
        try:
            return await story(bench, blobs)
        finally:
            await bench.close()

    return asyncio.run(run())


@pytest.mark.slow
def test_a_cached_build_of_the_same_text_keeps_the_requested_name() -> None:
    async def story(bench: TrialBench, blobs: dict[str, bytes]) -> str:
        for name in ("first.py", "second.py"):
            source = KernelSpec(name, "raise ValueError", Dialect.PYTHON, Contract.MODULE)
            built = await bench.build_candidate(source, lambda _: None)
            assert not isinstance(built, BuildFailure)
            assert built.candidate.name == name
        failed = await bench.try_verify(source, lambda _: None)
        assert isinstance(failed, Failed), failed
        return blobs[failed.failure.log].decode()

    log = on_bench(story)
    assert 'File "second.py"' in log
    assert "first.py" not in log


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "threads"),
    [
        ('extern "C" const char* launch() { return "pthread_create"; }', False),
        ('#include <thread>\nextern "C" void launch() { std::thread([] {}).join(); }', True),
    ],
)
def test_the_build_reports_whether_a_kernel_starts_threads(text: str, threads: bool) -> None:
    async def story(bench: TrialBench, _: dict[str, bytes]) -> bool:
        built = await bench.build_candidate(KernelSpec("k.cpp", text, Dialect.CPP, Contract.HOST), lambda _: None)
        assert not isinstance(built, BuildFailure), built
        return built.candidate.built.starts_threads

    assert on_bench(story) is threads


@pytest.mark.parametrize("threads", [False, True])
def test_only_kernels_without_threads_are_pinned(monkeypatch: pytest.MonkeyPatch, threads: bool) -> None:
    pinned: list[bool] = []
    monkeypatch.setattr(launchers, "_pin", lambda: pinned.append(True))
    arena = SharedArena(4096, writable=False)
    handle, fds = arena.handle()
    nothing = ArenaHandle("memfd", 0, False)
    load = LoadKernel("null", "cpu", ((),), nothing, nothing, 1, starts_threads=threads)
    lent = SharedBorrowed(handle, fds[0])
    launchers.make_launcher(load, LentOperands(((),), lent, lent), None, None, lambda *_: None)
    assert pinned == [True] * (not threads)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parameters", "hinted"),
    [
        ("const float* x", True),
        ("const float* x, const float* weight, float* out", False),
        ("int, int, int, int, int, int, int", True),
    ],
)
def test_a_failed_kernel_whose_launch_has_other_parameters_is_told_them(parameters: str, hinted: bool) -> None:
    async def story(bench: TrialBench, _: dict[str, bytes]) -> str:
        text = f'extern "C" void launch({parameters}) {{ *(volatile int*)nullptr = 1; }}'
        failed = await bench.try_verify(KernelSpec("k.cpp", text, Dialect.CPP, Contract.HOST), lambda _: None)
        assert isinstance(failed, Failed), failed
        return failed.failure.reason

    reason = on_bench(story)
    assert "segmentation fault" in reason
    assert ("this problem's is launch(const x_t* x" in reason) is hinted

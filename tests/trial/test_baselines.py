"""Further baselines: an expensive one is measured once; one that fails to run is skipped with a reason."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trial.ground import tiny

from engine.domain.memory_plan import MemoryPlan
from engine.domain.model import Contract, Dialect, Interval
from engine.domain.preparation import Peaks
from engine.domain.work import Prepared, Verified
from engine.problem import catalog
from engine.session.fake_bench import FAKE_GPU
from engine.trial.bench import Assignment, KernelSpec, TrialBench
from engine.trial.judge import baselines, devices, process_pool
from engine.trial.judge.baselines import Baselines
from engine.trial.judge.process_pool import ProcessPool
from engine.trial.judge.timing.call_times import Timing
from engine.trial.judge.timing.pair_times import PairTimes
from engine.trial.runner.runner import _error_text

RIGHT = (Path(__file__).parent.parent / "exploits" / "right.h").read_text()
KERNEL = f"""{RIGHT}
extern "C" void launch(const float* x, const float* weight, float* out, void*) {{ right(x, weight, out); }}
"""
REFUSES = """
import torch


def compiled(model, mode=None):
    if mode is not None:
        raise RuntimeError("no such mode here\\nneither now\\n\\nSet SWITCH=1 for more")
    return model


torch.compile = compiled
"""


@pytest.mark.slow
def test_a_failing_baseline_is_skipped_and_an_expensive_one_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESPALIER_CACHE", str(tmp_path))
    problem = replace(tiny(), reference=REFUSES + tiny().reference)
    small = catalog.workload_for(problem, "small")

    async def story() -> None:
        bench = TrialBench(Assignment(problem, small, "cpu", further_baselines=("compile_max", "compile")), lambda _: "")
        try:
            found = await bench.prepare(lambda _: None)
            assert isinstance(found, Prepared), found
            assert list(found.preparation.baselines) == ["eager", "compile"]
            assert found.preparation.notes[-1] == "baseline compile_max skipped: RuntimeError: no such mode here neither now"
            over_compile = found.preparation.baselines["compile"].speedup["eager"]

            source = KernelSpec("right.cpp", KERNEL, Dialect.CPP, Contract.HOST)
            verified = await bench.try_verify(source, lambda _: None)
            assert isinstance(verified, Verified), verified
            over: dict[str, Interval] = dict(verified.screen.speedup)
            assert list(over) == ["eager", "compile"]
            assert over["compile"].value == pytest.approx(over["eager"].value / over_compile.value), "chained via eager"
        finally:
            await bench.close()

        quick = Peaks(1e15, {"fp32": 1e15})
        known = Assignment(
            problem, small, "cpu", further_baselines=("compile_max", "compile"), same=(1.0, 0.9, 1.1), peaks=quick
        )
        again = TrialBench(known, lambda _: "")
        try:
            verified = await again.try_verify(source, lambda _: None)
            assert isinstance(verified, Verified), "a resumed session is not prepared again"
            assert list(verified.screen.speedup) == ["eager", "compile"]
            assert verified.screen.light is not None
            assert verified.screen.light.floor_us < 0.01 * found.preparation.floor_us, (
                "compared with the session's own ceilings"
            )
        finally:
            await again.close()

    asyncio.run(story())


def test_where_processes_end_with_their_pair_the_one_that_stays_serves_the_next_pair_and_the_screen() -> None:
    ended: list[int] = []

    def runner(pair: int, bed: object) -> Any:
        return SimpleNamespace(loaded_for=bed, close=lambda: ended.append(pair))

    pool = ProcessPool(tiny(), devices.describe("cpu"), cold=True, confined=False)
    bed = object()
    for keeps, ahead in ((True, 0), (False, 0), (False, 1)):
        ended.clear()
        pool.use(MemoryPlan(1, True, keeps, False, False, pairs_ahead=ahead))
        pool._baseline_runners = {("eager", n): runner(n, bed if n < 2 else None) for n in range(4)}
        every = dict(pool._baseline_runners)
        pool.end_pair(("eager", 1))
        assert ended == ([] if keeps else [0])
        pool.keep_for_screen("eager", 1)
        if keeps:
            assert pool._baseline_runners == every
            continue
        assert pool._baseline_runners["eager", 0] is every["eager", 1]
        assert {pair for _, pair in pool._baseline_runners} == set(range(1 + ahead)), "more contexts than the plan has room for"
        assert ended == ([0, 3] if ahead else [0, 2, 3])


@pytest.mark.parametrize(
    ("keeps", "ahead", "started", "checking"), [(True, 0, 4, 4), (False, 0, 4, 1), (False, 1, 4, 4), (False, 2, 4, 6)]
)
def test_processes_for_a_kernel_start_while_it_is_checked(
    keeps: bool, ahead: int, started: int, checking: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where processes end with their pair, those of the screen and of the pairs after it too: nobody waits for them later."""
    monkeypatch.setattr(process_pool, "TrustedRunner", lambda _, **__: SimpleNamespace(alive=True))
    for is_checked, count in ((False, started), (True, checking)):
        pool = ProcessPool(tiny(), devices.describe("cpu"), cold=True, confined=False)
        pool.use(MemoryPlan(1, True, keeps, False, False, baselines_ahead=3, pairs_ahead=ahead))
        pool.start_baselines("eager", 4, checking=is_checked)
        assert len(pool._baseline_runners) == count


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(("apart", "pairs"), [(0.0001, 3), (0.02, 4)])
def test_a_baseline_against_itself_ends_once_it_shows_no_difference(
    apart: float, pairs: int, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []

    def run_pair(*_: object) -> PairTimes:
        done.append("pair")
        us = 100.0 * (1 + apart * (-1) ** len(done))
        return PairTimes({"eager": [Timing(100.0, 200.0, 0.0)], "itself": [Timing(us, 200.0, 0.0)]})

    monkeypatch.setattr(baselines, "run_pair", run_pair)
    ended: list[int] = []
    loaded: list[int] = []
    pool = SimpleNamespace(
        loads_baselines_together=together, start_baselines=lambda *_: None, stand_by=lambda: None,
        end_pair=lambda spared: ended.append(spared[1]), keep_for_screen=lambda *kept: done.append(kept),
        baselines=lambda _, names, pair: loaded.append(pair) or dict.fromkeys(names, pair),
    )  # fmt: skip
    opened = SimpleNamespace(same=None, baseline="eager", further_baselines=())
    trial = Baselines(opened, FAKE_GPU, pool, None)
    trial._pairs(None)
    assert done == [*["pair"] * pairs, ("eager", pairs)]
    assert ended == list(range(3 if together else 1, pairs + 1)), "what later pairs need is not ended"
    assert set(loaded[: 6 if together else 2]) == set(range(4 if together else 2))


@pytest.mark.parametrize("calm", [(False, False, False), (False, True, False)])
def test_preparing_on_a_busy_machine_says_so(calm: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a first search ended without a corroborated kernel; each said its doubt, and nothing what to do."""
    pairs = [PairTimes({"eager": [Timing(100.0, 200.0, 0.0)], "itself": [Timing(100.0, 200.0, 0.0)]}, calm=one) for one in calm]
    opened = SimpleNamespace(same=None, baseline="eager", further_baselines=(), fresh=False)
    trial = Baselines(opened, FAKE_GPU, SimpleNamespace(), None)
    monkeypatch.setattr(trial, "_pairs", lambda _: pairs)
    said: list[str] = []
    report = SimpleNamespace(of_times=lambda *_, **__: SimpleNamespace(time_us=Interval(100.0, 100.0, 100.0)))
    found = trial.measure(None, report, b"", said.append)
    busy = [note for note in found.notes if "disturbed by CPU contention" in note]
    assert len(busy) == (0 if any(calm) else 1)
    assert busy == [line for line in said if line in busy]


def test_a_long_message_repeats_its_first_lines_at_the_end() -> None:
    lines = _error_text(ValueError("it broke:\n  in the middle\n\nadvice\nmore advice")).splitlines()
    assert lines[-1] == "ValueError: it broke: in the middle"
    assert "more advice" in lines


def test_a_short_message_is_python_s_traceback() -> None:
    assert _error_text(ValueError("it broke")).splitlines()[-1] == "ValueError: it broke"

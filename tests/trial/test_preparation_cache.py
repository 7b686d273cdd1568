"""A preparation that serves later evaluations: what it depends on, how long it is used, and what is not done again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support import builders as b
from trial.ground import tiny

from engine.domain import work as w
from engine.domain.model import Contract, Dialect, FailureKind, Interval
from engine.problem import catalog
from engine.session.workbench import KernelTrial, open_workbench
from engine.trial import protocol as p
from engine.trial.bench import Assignment, KernelSpec
from engine.trial.client import JudgeClient
from engine.trial.judge.caches import peaks_cache
from engine.trial.judge.caches import preparation_cache as cache
from engine.trial.judge.caches.preparation_cache import Calibrations, KeptCalibration, PreparationKey
from engine.trial.judge.inputs.perturbations import PERTURBATIONS
from engine.trial.judge.outputs.relative_errors import RelativeErrors

TESTS = Path(__file__).parent.parent
PROBLEM = tiny()
SMALL = catalog.workload_for(PROBLEM, "small")
KEY = PreparationKey(PROBLEM, SMALL, (), b.device(), "class", ("eager", "compile"), True, (True, True))
ERRORS = KeptCalibration({"own": {"fp32": RelativeErrors(1e-7, float("inf"))}}, ("a note",), keeps_constants=True)
CALIBRATIONS = cache.encode(Calibrations(ERRORS, {"n=5": ERRORS}))


def kept_file(folder: Path) -> Path:
    return next((folder / "preparations").iterdir())


def test_what_is_kept_is_found_with_its_date(tmp_path: Path) -> None:
    cache.keep(tmp_path, KEY, b.preparation(), CALIBRATIONS)
    found = cache.load(tmp_path, KEY)
    assert found is not None
    assert found.complete
    assert replace(found.preparation, header="") == replace(b.preparation(), header="")
    assert cache.decode(found.calibrations) == Calibrations(ERRORS, {"n=5": ERRORS})
    shown = found.as_preparation()
    assert all(one.conditions[0].startswith("cached, 20") for one in shown.baselines.values())
    assert shown.notes[-1].startswith("prepared 20")


CHANGES: dict[str, Callable[[PreparationKey], PreparationKey]] = {
    "reference": lambda k: replace(k, problem=replace(k.problem, reference=k.problem.reference + "\n# changed")),
    "workload": lambda k: replace(k, workload=replace(k.workload, settings={**k.workload.settings, "more": 1.0})),
    "hold-outs": lambda k: replace(k, holdouts=(SMALL,)),
    "torch": lambda k: replace(k, device=replace(k.device, software="torch 9")),
    "device": lambda k: replace(k, device=replace(k.device, name="another")),
    "tolerance": lambda k: replace(k, tolerance="crfm"),
    "baselines": lambda k: replace(k, baselines=("compile", "eager")),
    "caches": lambda k: replace(k, cold=False),
    "sandbox": lambda k: replace(k, confined=(True, False)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_it_serves_only_what_it_was_measured_for(tmp_path: Path, what: str) -> None:
    cache.keep(tmp_path, KEY, b.preparation(), CALIBRATIONS)
    assert cache.load(tmp_path, CHANGES[what](KEY)) is None
    assert cache.load(tmp_path, replace(KEY)) is not None


def test_another_judge_prepares_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.keep(tmp_path, KEY, b.preparation(), CALIBRATIONS)
    monkeypatch.setattr(cache, "judge_version", lambda: "another")
    assert cache.load(tmp_path, KEY) is None


@pytest.mark.parametrize(
    "damage",
    [lambda d: b"", lambda d: d[:40], lambda d: d[:-1], lambda d: d[:-9] + bytes([d[-9] ^ 1]) + d[-8:], lambda d: d * 2],
)
def test_a_damaged_file_counts_as_missing(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    cache.keep(tmp_path, KEY, b.preparation(), CALIBRATIONS)
    file = kept_file(tmp_path)
    file.write_bytes(damage(file.read_bytes()))
    assert cache.load(tmp_path, KEY) is None


def test_a_file_of_another_key_counts_as_missing(tmp_path: Path) -> None:
    other = CHANGES["torch"](KEY)
    cache.keep(tmp_path, other, b.preparation(), CALIBRATIONS)
    kept_file(tmp_path).rename(tmp_path / "preparations" / f"{KEY.digest()[:32]}.bin")
    assert cache.load(tmp_path, KEY) is None


@pytest.mark.parametrize(("age", "used"), [(timedelta(days=6), True), (timedelta(days=8), False), (timedelta(hours=-1), False)])
def test_it_has_an_age_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: timedelta, used: bool) -> None:
    class Then(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) - age

    with monkeypatch.context() as patch:
        patch.setattr(cache, "datetime", Then)
        cache.keep(tmp_path, KEY, b.preparation(), CALIBRATIONS)
    assert (cache.load(tmp_path, KEY) is not None) is used


@pytest.mark.parametrize("same", [Interval(1.0, 0.8, 1.0), Interval(1.0, 1.0, 1.2)])
def test_noisy_baselines_are_measured_again_and_the_calibration_stays(tmp_path: Path, same: Interval) -> None:
    cache.keep(tmp_path, KEY, replace(b.preparation(), same=same), CALIBRATIONS)
    found = cache.load(tmp_path, KEY)
    assert found is not None
    assert not found.complete


WRONG = 'extern "C" void launch(...) {}'
RIGHT = (TESTS / "exploits" / "right.h").read_text()
HONEST = f"""{RIGHT}
extern "C" void launch(const float* x, const float* weight, float* out, void*) {{ right(x, weight, out); }}
"""


@pytest.mark.slow
def test_a_wrong_kernel_is_told_before_baselines_and_the_problem_is_calibrated_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESPALIER_CACHE", str(tmp_path))
    monkeypatch.setattr(peaks_cache, "are_outdone", lambda kept, found: False)  # whatever else this machine does
    asked: list[p.Request] = []
    plain = JudgeClient.ask

    async def ask(self: JudgeClient, request: p.Request, *more: Any) -> p.Reply:
        asked.append(request)
        return await plain(self, request, *more)

    monkeypatch.setattr(JudgeClient, "ask", ask)

    async def tried(*, fresh: bool = False) -> KernelTrial:
        assignment = Assignment(PROBLEM, SMALL, "cpu", prepared=True, fresh=fresh)
        async with open_workbench(assignment, lambda _: None, accept_unverifiable=False) as bench:
            return await bench.attempt(KernelSpec("wrong.cpp", WRONG, Dialect.CPP, Contract.HOST, {}))

    def kinds() -> list[str]:
        return [
            type(one).__name__.removesuffix("Request") for one in asked if not isinstance(one, p.DeviceRequest | p.PeaksRequest)
        ]

    for prepared, fresh in ((True, False), (False, False), (True, True)):
        asked.clear()
        found = asyncio.run(tried(fresh=fresh)).final
        assert isinstance(found, w.Failed)
        assert found.failure.kind is FailureKind.MISMATCH
        assert kinds() == (["Open", "Prepare", "Check"] if prepared else ["Open", "Check"])
        assert not any(isinstance(one, p.PrepareRequest) and one.measure for one in asked)


@pytest.mark.slow
def test_a_right_kernel_is_checked_once_before_baselines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPALIER_CACHE", str(tmp_path))
    lines: list[str] = []

    async def attempts() -> list[KernelTrial]:
        assignment = Assignment(PROBLEM, SMALL, "cpu", prepared=True)
        async with open_workbench(assignment, lines.append, accept_unverifiable=False) as bench:
            return [await bench.attempt(KernelSpec("right.cpp", HONEST, Dialect.CPP, Contract.HOST, {})) for _ in range(2)]

    first, second = asyncio.run(attempts())
    assert first.verification is not None
    assert second.verification is not None
    assert first.verification.holdouts == second.verification.holdouts == "3/3"  # two fixed ones, one random
    assert first.verification.max_scaled > 0
    # Samples of the screen differ in number, and each is a check too.
    assert min(first.verification.trials, second.verification.trials) > len(PERTURBATIONS)
    checks = [line for line in lines if line.startswith("hold-out shape")]
    assert len(checks) == 2 * 3, "the first kernel's hold-out shapes were checked before the baselines and again after them"
    assert lines.index(checks[2]) < lines.index(next(line for line in lines if line.startswith("measuring eager")))

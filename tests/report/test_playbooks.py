"""The strategies on recorded playbooks: what is recorded decides, and a search is a function of its seed."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path

import pytest
from support.fake_worker import MemoryLauncher

from benchmarks import playbooks
from benchmarks.outcome_files import FOLDER, Outcome
from benchmarks.playbook_outcomes import PROBLEMS, Recorder, Recording
from benchmarks.search_quality import ADAPTIVE, SEQUENTIAL
from engine.domain.model import Interval


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recorded playbooks; a fake bench judged their kernels."""
    folder = tmp_path_factory.mktemp("outcomes")
    found = [Recording(problem, folder / f"{problem}.jsonl") for problem in ("softmax", "conv2d_relu_maxpool")]
    asyncio.run(Recorder(MemoryLauncher(("cpu:0",)), found, math.inf).record())
    return folder


def playground(folder: Path, problem: str) -> playbooks.Playground:
    return playbooks.Playground.read(folder / f"{problem}.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("problem", ["softmax", "conv2d_relu_maxpool"])
def test_a_row_has_every_strategy_and_nothing_is_faster_than_the_fastest(recordings: Path, problem: str) -> None:
    found = playground(recordings, problem)
    row = asyncio.run(playbooks.compared(found, 8, range(2)))
    assert list(row.best) == ["adaptive", "3x3x2", "sequential"]
    assert list(row.over) == ["3x3x2", "sequential"]
    assert all(one.value <= row.fastest * (1 + 1e-9) for one in row.best.values())
    assert row.over["sequential"].value == pytest.approx(row.best["adaptive"].value / row.best["sequential"].value)
    assert str(row).startswith(problem)
    assert asyncio.run(playbooks.compared(found, 8, range(2))) == row


@pytest.mark.slow
@pytest.mark.parametrize("problem", ["softmax", "conv2d_relu_maxpool"])
def test_the_adaptive_strategy_spends_all_verdicts_of_a_playbook(recordings: Path, problem: str) -> None:
    """Ideas that it kept for later are tried when no other comes: it once ended after nine kernels of 51."""
    state = asyncio.run(playbooks.searched(playground(recordings, problem), ADAPTIVE, 24, 0))
    assert len(state.kernels) == 24
    assert state.closed == "limit of 24 kernels reached"


def test_a_kernel_that_failed_when_it_was_recorded_fails_in_every_search(recordings: Path) -> None:
    found = playground(recordings, "softmax")
    failing = {
        key: Outcome(one.kernel, one.values, None, "mismatch") if one.kernel == "vector_exp.cpp" else one
        for key, one in found.outcomes.items()
    }
    state = asyncio.run(playbooks.searched(replace(found, outcomes=failing), SEQUENTIAL, 6, 0))
    failures = [kernel.failure.kind.value for kernel in state.kernels.values() if kernel.failure is not None]
    assert failures == ["mismatch"]
    assert {kernel.name for kernel in state.kernels.values() if kernel.failure is not None} == {"vector_exp.cpp"}


def test_equal_machine_code_is_recognised(recordings: Path) -> None:
    found = playground(recordings, "softmax")
    alike = {key: replace(one, machine_code="00ff") for key, one in found.outcomes.items()}
    state = asyncio.run(playbooks.searched(replace(found, outcomes=alike), ADAPTIVE, 6, 0))
    first, *others = state.kernels.values()
    assert len(others) >= 3
    assert (first.same_as, {kernel.same_as for kernel in others}) == ("", {"k1"})


def test_a_wide_interval_makes_measurements_err(recordings: Path) -> None:
    found = playground(recordings, "softmax")
    noisy = {key: replace(one, speedup=Interval(one.speedup.value, one.speedup.value / 2, one.speedup.value * 2))
             for key, one in found.outcomes.items() if one.speedup is not None}  # fmt: skip
    state = asyncio.run(playbooks.searched(replace(found, outcomes=noisy), ADAPTIVE, 4, 0))
    for kernel in state.kernels.values():
        true = found.outcome(kernel).speedup
        assert kernel.measurement is not None
        assert true is not None
        measured = kernel.measurement.speedup["eager"]
        assert abs(math.log(measured.value / true.value)) > 1e-4
        assert measured.high / measured.low == pytest.approx(4.0)


def test_a_kernel_without_an_outcome_names_the_command_that_records_it(recordings: Path) -> None:
    found = playground(recordings, "softmax")
    with pytest.raises(RuntimeError, match=r"python -m benchmarks\.playbook_outcomes --problems softmax"):
        asyncio.run(playbooks.searched(replace(found, outcomes={}), ADAPTIVE, 4, 0))


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_published_recording_has_every_kernel_that_a_search_tries(problem: str) -> None:
    """A playbook that changed needs a new recording."""
    found = playground(FOLDER, problem)
    ends = [asyncio.run(playbooks.searched(found, one, 24, 0)) for one in playbooks.STRATEGIES]
    assert all(len(state.kernels) > 6 for state in ends)
    assert found.fastest > 1.0

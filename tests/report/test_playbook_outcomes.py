"""Recording the outcomes of playbook kernels: each kernel once, in pieces, on one kind of machine. The bench is a fake."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest
from support.fake_worker import MemoryLauncher

from benchmarks import outcome_files as files
from benchmarks.playbook_outcomes import Recorder, Recording, kernels
from engine.session.fake_bench import _SIGNATURE, FAKE_CPU


def recorded(folder: Path, *problems: str, workers: int = 2, seconds: float = math.inf) -> Recorder:
    recordings = [Recording(problem, folder / f"{problem}.jsonl") for problem in problems]
    places = tuple(f"cpu:{n}" for n in range(workers))
    recorder = Recorder(MemoryLauncher(places), recordings, seconds)
    asyncio.run(recorder.record())
    return recorder


@pytest.mark.slow
def test_every_kernel_of_every_problem_is_recorded_once(tmp_path: Path) -> None:
    recorder = recorded(tmp_path, "softmax", "layernorm", workers=3)
    assert not recorder.troubles
    for one in recorder.recordings:
        head, outcomes = files.read(one.file)
        assert head == files.Recorded(one.problem, "small", FAKE_CPU.name, FAKE_CPU.units)
        wanted = {files.outcome_key(spec.name, spec.tunables) for spec in kernels(one.problem, _SIGNATURE, FAKE_CPU.units)}
        assert {outcome.key for outcome in outcomes} == wanted
        assert len(outcomes) == len(wanted) == one.done
        assert all(outcome.speedup is not None and outcome.machine_code == "" for outcome in outcomes)


def test_a_recording_goes_on_where_it_was_left(tmp_path: Path) -> None:
    file = tmp_path / "softmax.jsonl"
    recorded(tmp_path, "softmax", workers=1)
    head, *lines = file.read_text().splitlines()
    file.write_text("\n".join([head, *lines[5:]]) + "\n")
    recorder = recorded(tmp_path, "softmax")
    assert recorder.recordings[0].done == 5
    assert sorted(file.read_text().splitlines()[1:]) == sorted(lines)


def test_no_kernel_begins_when_the_time_is_over(tmp_path: Path) -> None:
    recorder = recorded(tmp_path, "softmax", seconds=0.0)
    assert recorder.recordings[0].missing is None
    assert not list(tmp_path.iterdir())


def test_a_file_of_another_machine_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "softmax.jsonl"
    file.write_text(files.head_line(files.Recorded("softmax", "small", "another processor", 2)) + "\n")
    before = file.read_text()
    recorder = recorded(tmp_path, "softmax", workers=1)
    assert "another processor" in recorder.troubles[0]
    assert "use another folder" in recorder.troubles[0]
    assert file.read_text() == before


def test_an_outcome_reads_as_it_was_written(tmp_path: Path) -> None:
    recorded(tmp_path, "softmax", workers=1)
    file = tmp_path / "softmax.jsonl"
    failed = files.Outcome("naive.cpp", {"ROWS": 2}, None, "mismatch")
    head, (first, *_) = files.read(file)
    file.write_text("\n".join([files.head_line(head), files.outcome_line(failed), files.outcome_line(first)]))
    assert files.read(file) == (head, (failed, first))
    assert first.speedup is not None


@pytest.mark.parametrize("text", ["", "{}", '{"kernel": "naive.cpp"}'])
def test_what_is_no_file_of_outcomes_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "softmax.jsonl"
    file.write_text(text)
    with pytest.raises(ValueError, match="names no problem"):
        files.read(file)

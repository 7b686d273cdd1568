"""The benchmark of eager's memory: what it prints beside the results of judging."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import eager_memory
from benchmarks.kernelbench_judging import GIB, Result, Status


def test_a_peak_is_within_six_times_the_operands_or_twice_what_eager_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peaks = {"level1/1_A": (6, 1, 2), "level1/2_B": (9, 1, 5), "level1/10_C": (11, 1, 5), "level1/3_no_peak": (0, 1, 1)}
    results = tmp_path / "own.jsonl"
    judged = [
        Result(name, "cuda:0", "own", Status.MEASURED, peak_bytes=peak * GIB, operand_bytes=operands * GIB)
        for name, (peak, operands, _) in peaks.items()
    ]
    results.write_text("".join(json.dumps(one.to_json()) + "\n" for one in judged))
    eager = {name: eager_memory.EagerPeak(name, taken * GIB) for name, (_, _, taken) in peaks.items()}
    eager_memory._print_beside(eager_memory._results(results), eager)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == ["level1/1_A", "level1/2_B", "level1/10_C"]
    assert ["the limit" in line for line in lines[1:-1]] == [False, False, True]
    assert "2 of 3 files" in lines[-1]


def test_files_that_are_known_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "eager.jsonl"
    assert list(eager_memory._known(path)) == []
    path.write_text('{"name": "level1/1_A", "peak_bytes": 5, "error": ""}\n')
    assert list(eager_memory._known(path)) == [eager_memory.EagerPeak("level1/1_A", 5)]

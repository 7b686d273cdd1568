"""How Nsight Compute is found and called, and how its output becomes a profile. The tool itself is tested in tests/gpu."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.domain.model import Device
from engine.sandbox.process import ProcessResult
from engine.trial.tools import ncu

DEVICE = Device("cuda", 0, "NVIDIA H200", "sm_90a", 132, 60 << 20, 140 << 30, "driver 570")
PAGE = '"ID","Kernel Name","gpu__time_duration.sum"\n"","","nsecond"\n"0","softmax","81,200"\n"1","rest","1,000"\n'


def test_the_tool_is_found_in_its_usual_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    monkeypatch.setattr(ncu.glob, "glob", lambda _: [])
    tool = tmp_path / "cuda" / "bin" / "ncu"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    assert ncu.find_tool() == tool


def test_options_leave_clocks_alone_and_match_the_cache_mode() -> None:
    cold, hot = ncu.arguments(cold=True), ncu.arguments(cold=False)
    assert cold[cold.index("--clock-control") + 1] == "none"
    assert cold[cold.index("--cache-control") + 1] == "all"
    assert hot[hot.index("--cache-control") + 1] == "none"


def test_the_tool_s_output_becomes_a_profile_with_a_log() -> None:
    kept: list[bytes] = []

    def store(payload: bytes) -> str:
        kept.append(payload)
        return "blob"

    found = ncu.read(ProcessResult(0, PAGE, 12.5, timed_out=False), DEVICE, store)
    assert (found.tool, found.device, found.launches, found.log, found.seconds) == ("ncu", "NVIDIA H200", 2, "blob", 12.5)
    assert found.metrics == {"duration_us": pytest.approx(82.2)}
    assert kept == [PAGE.encode()]


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (ProcessResult(1, "==ERROR== ERR_NVGPUCTRPERM - no permission", 1.0, timed_out=False), "only administrators"),
        (ProcessResult(-9, "==PROF== Profiling", 300.0, timed_out=True), "stopped after 300 s"),
        (ProcessResult(0, "", 1.0, timed_out=False), "no output"),
    ],
)
def test_missing_counters_are_a_note(result: ProcessResult, said: str) -> None:
    found = ncu.read(result, DEVICE, lambda _: "blob")
    assert found.tool == ""
    assert said in found.note

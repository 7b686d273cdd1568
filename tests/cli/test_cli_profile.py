"""``espalier kernel profile``: counters are kept and compared with the parent's; if there are none, the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest
from support import builders as b
from support.program import Call

from engine.api import profiling
from engine.domain.hot_code import HotCode
from engine.domain.profile import Profile
from engine.ideas.prompts import context
from engine.journal import journal, store
from engine.journal.blobs import Blobs
from engine.journal.lock import WriterLock
from engine.report.text import progress
from engine.session.steer import steer
from engine.trial.bench import Assignment, KernelSpec

FOUND = b.profile()


class Counting:
    """A bench whose device answers with ``found``."""

    found: Profile = FOUND

    def __init__(self, assignment: Assignment, put: Callable[[bytes], str]) -> None:
        self._put = put

    async def profile_kernel(self, source: KernelSpec, say: Callable[[str], None]) -> Profile:
        say("reading")
        log = self._put(b"==PROF== the tool's own words")
        listing = self._put(msgspec.json.encode(b.machine_listing()))
        hot = replace(self.found.hot, listing=listing) if self.found.hot is not None else None
        return replace(self.found, log=log, hot=hot)

    async def close(self) -> None:
        """Nothing is open."""


@pytest.fixture(autouse=True)
def counting(monkeypatch: pytest.MonkeyPatch) -> type[Counting]:
    monkeypatch.setattr(profiling, "TrialBench", Counting)
    monkeypatch.setattr(Counting, "found", FOUND)
    return Counting


def child_of(folder: Path) -> tuple[str, str]:
    """A kernel that has a parent, and that parent."""
    return next((k.id, k.parent) for k in store.state_of(folder).kernels.values() if k.parent)


def test_a_profile_is_printed_and_kept_with_the_tool_s_log(espalier: Call, recorded: Path) -> None:
    result = espalier("kernel", "profile", "scripted", "k2")
    assert result.status == 0
    assert "one call of 2 launches, by ncu" in result.out
    assert "memory throughput" in result.out
    assert "stalls: long scoreboard" in result.out
    kept = store.state_of(recorded).kernels["k2"].profile
    assert kept is not None
    assert kept.metrics == FOUND.metrics
    assert Blobs(recorded).text(kept.log) == "==PROF== the tool's own words"
    state = store.state_of(recorded)
    (line,) = progress.lines(state, journal.read(recorded).entries[-1], state)
    assert "".join(span.text for span in line).startswith("k2 profiled: duration 812.2 us")


def test_each_counter_is_compared_with_the_parent_s(
    espalier: Call, recorded: Path, counting: type[Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    child, parent = child_of(recorded)
    monkeypatch.setattr(counting, "found", b.profile(1000.0))
    espalier("kernel", "profile", "scripted", parent)
    monkeypatch.setattr(counting, "found", FOUND)
    result = espalier("kernel", "profile", "scripted", child)
    assert f"compared with {parent}" in result.out
    assert "from 1000 us" in result.out
    plain = espalier("kernel", "profile", "scripted", child, "--json").json()
    assert (plain["metrics"]["duration_us"], plain["parent_metrics"]["duration_us"]) == (812.25, 1000.0)


def test_the_reason_for_missing_counters_is_printed_and_kept(
    espalier: Call, recorded: Path, counting: type[Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "found", Profile(0, note="only administrators may"))
    result = espalier("kernel", "profile", "scripted", "k1")
    assert result.status == 1
    assert "counters not read: only administrators may" in result.out
    assert espalier("kernel", "profile", "scripted", "k1", "--json").json()["reason"] == "only administrators may"
    kept = store.state_of(recorded).kernels["k1"].profile
    assert kept is not None
    assert kept.note == "only administrators may"


def test_samples_are_a_profile_where_there_are_no_counters(
    espalier: Call, recorded: Path, counting: type[Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "found", Profile(0, note="no counters here", hot=b.hot_code("")))
    result = espalier("kernel", "profile", "scripted", "k1")
    assert result.status == 0
    assert "counters not read: no counters here" in result.out
    rows = [line.split() for line in result.out.splitlines() if "%" in line]
    assert rows == [
        ["80%", "line", "2", "extern", "second"],
        ["15%", "libm.so.6"],
        ["5.0%", "line", "1", "//", "first"],
    ]
    found = espalier("kernel", "profile", "scripted", "k1", "--json").json()["hot_code"]
    assert (found["samples"], found["lines"][0]["line"], found["elsewhere"]) == (1000, 2, {"libm.so.6": 150})
    assert "line 2 `extern second` 80%" in espalier("kernel", "show", "scripted", "k1").out
    state = store.state_of(recorded)
    kernel = state.kernels["k1"]
    (hot,) = [text for text in context.evidence(state, kernel) if text.startswith("hot code")]
    assert hot.endswith(
        "line 2 `extern second` 80%, libm.so.6 15%, line 1 `// first` 5.0% of 1,000 samples of the program counter"
    )
    (line,) = progress.lines(state, journal.read(recorded).entries[-1], state)
    assert "".join(span.text for span in line).startswith("k1 profiled: hot: line 2 `extern second` 80%")


def test_a_kernel_without_loops_has_no_line_on_its_hot_code(
    espalier: Call, recorded: Path, counting: type[Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "found", Profile(0, note="no counters here", hot=HotCode()))
    espalier("kernel", "profile", "scripted", "k1")
    state = store.state_of(recorded)
    assert state.kernels["k1"].profile is not None
    assert not [text for text in context.evidence(state, state.kernels["k1"]) if text.startswith("hot code")]
    assert "hot code" not in espalier("kernel", "show", "scripted", "k1").out


def test_the_listing_of_a_sampled_kernel_is_read_from_the_session(
    espalier: Call, recorded: Path, counting: type[Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "found", Profile(0, note="no counters here", hot=b.hot_code("")))
    assert espalier("kernel", "profile", "scripted", "k1").status == 0
    result = espalier("kernel", "machine-code", "scripted", "k1")
    assert result.status == 0
    assert "3 instructions, objdump; 1,000 samples: a sample names the instruction after the one that waited" in result.out
    fused = next(line for line in result.out.splitlines() if "vfmadd132ps" in line)
    assert fused.split()[:2] == ["70%", "1104"]
    found = espalier("kernel", "machine-code", "scripted", "k1", "--json").json()
    assert found["samples"] == 1000
    assert [one["samples"] for one in found["instructions"]] == [50, 700, 100]
    same = espalier("kernel", "machine-code", "scripted", "k1", "--diff", "k1")
    assert "+0 −0 instructions" in same.out
    hot = store.state_of(recorded).kernels["k1"].profile.hot  # type: ignore[union-attr]
    payload = msgspec.json.encode(b.machine_listing()).replace(b'"depth":1', b'"depth":1000000000')
    with monkeypatch.context() as patched:
        patched.setattr(Blobs, "get", lambda *_: payload)
        deep = espalier("kernel", "machine-code", "scripted", "k1")
    assert "||| vfmadd132ps" in deep.out
    Blobs(recorded).path(hot.listing).write_bytes(b"{")  # type: ignore[union-attr]
    assert "is damaged" in espalier("kernel", "machine-code", "scripted", "k1").err


@pytest.mark.slow
def test_a_locked_session_and_an_unknown_kernel_are_refused_first(
    espalier: Call, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.cli.profile.steer", partial(steer, patience=0.5))
    assert espalier("kernel", "profile", "scripted", "k99").status == 2
    lock = WriterLock(recorded)
    try:
        assert espalier("kernel", "profile", "scripted", "k1").status == 2
    finally:
        lock.release()

"""A session's tree, summary and progress: pure functions over the state of a scripted search."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support import builders as b
from support import sessions, showcase

from engine.domain import events as e
from engine.domain import queries
from engine.domain.folds import advance
from engine.domain.model import Interval
from engine.domain.state import SessionState
from engine.journal import journal, store
from engine.report.facts.summary import summarise
from engine.report.text import progress
from engine.report.text.lines import plain, times
from engine.report.text.tree import evidence, heading, tree


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("report") / "s"
    sessions.whole(place)
    return place


@pytest.fixture(scope="module")
def state(folder: Path) -> SessionState:
    return store.state_of(folder)


def shown(state: SessionState) -> list[str]:
    return [plain(spans) for spans in tree(state)]


def test_every_kernel_has_one_line_under_its_parent(state: SessionState) -> None:
    lines = shown(state)[1:]
    ids = [re.search(r"\bk\d+\b", text) for text in lines]
    assert sorted(m.group() for m in ids if m) == sorted(state.kernels)
    depth = {m.group(): m.start() for m in ids if m}
    for kernel in state.kernels.values():
        if kernel.parent is not None:
            assert depth[kernel.id] == depth[kernel.parent] + 3
    order = [m.group() for m in ids if m]
    assert all(order.index(k.parent) < order.index(k.id) for k in state.kernels.values() if k.parent)


def test_the_incumbent_alone_has_a_star(state: SessionState) -> None:
    best = queries.incumbent(state)
    assert best is not None
    starred = [text for text in shown(state) if "★" in text]
    assert len(starred) == 1
    assert f" {best.id} " in starred[0]


def test_a_failure_has_its_kind_and_reason(state: SessionState) -> None:
    (line,) = [text for text in shown(state) if " k4 " in text]
    assert "mismatch: planted: mismatch" in line
    assert "×" not in line


def test_figures_have_intervals_and_a_depth(state: SessionState) -> None:
    (line,) = [text for text in shown(state) if " k2 " in text]
    for words in ("measured", "500 µs [495, 505]", "2.00× [1.98, 2.02]", "10%", "fp32", "5 process pairs"):
        assert words in line
    for kernel in state.kernels.values():
        if kernel.measurement is not None and kernel.measurement.depth == "screen":
            (line,) = [text for text in shown(state) if f" {kernel.id} " in text]
            assert "screened" in line
            assert "one process pair" in line


def test_pinned_and_pruned_kernels_are_marked(state: SessionState) -> None:
    marked = replace(state, pinned=("k3",), pruned=("k2",))
    lines = {m.group(): text for text in shown(marked) if (m := re.search(r"\bk\d+\b", text))}
    assert "pinned" in lines["k3"]
    assert "pruned" in lines["k2"]
    assert "pruned" in lines["k6"], "descendants are pruned, too"
    assert "pruned" not in lines["k3"]


def test_events_of_a_newer_version_are_named(state: SessionState) -> None:
    newer = [
        e.UnknownEvent("kernel.dreamt", {"kernel": "k1"}),
        e.UnknownEvent("kernel.dreamt", {}),
        e.UnknownEvent("bound", {}),
    ]
    known, told = progress.entry_lines(state, b.entries(newer, start=state.seq + 1))
    assert plain(told[0][1]) == "kernel.dreamt: an event of a newer Espalier, ignored"
    words = [span.text for name, span in evidence(known) if name == "note"]
    assert words[-1] == "3 events of a newer Espalier ignored (kernel.dreamt, bound): figures may be incomplete"
    assert not any("newer Espalier" in span.text for _, span in evidence(state))


def test_the_evidence_names_device_check_baseline_and_sandbox(state: SessionState) -> None:
    found = {name: words.text for name, words in evidence(state)}
    assert found["device"].startswith("cpu: pretended processor")
    assert "1 of 1 trivial models rejected" in found["check"]
    assert "eager 1.00 ms" in found["baseline"]
    assert "eager against itself 1.00×" in found["baseline"]
    assert found["sandbox"].startswith("resource limits only")
    assert "95% interval over 5 process pairs" in found["incumbent"]
    assert plain(heading(state)).startswith("softmax · small on cpu")


@pytest.mark.parametrize(
    ("interval", "words"),
    [(Interval(0.5, 0.4, 0.6), "; slower than eager"), (Interval(1.0, 0.9, 1.1), "; not shown to be faster than eager")],
)
def test_an_incumbent_that_is_not_faster_is_told(state: SessionState, interval: Interval, words: str) -> None:
    best = queries.incumbent(state)
    assert best is not None
    assert best.measurement is not None
    measured = replace(best.measurement, speedup={"eager": interval})
    other = replace(state, kernels={**state.kernels, best.id: replace(best, measurement=measured)})
    assert dict(evidence(other))["incumbent"].text.endswith(words)


def test_an_unverifiable_problem_is_marked(state: SessionState) -> None:
    assert state.preparation is not None
    check = state.preparation.gate
    weak = replace(check, nulls=tuple(replace(one, passed=True) for one in check.nulls))
    unverifiable = replace(state, preparation=replace(state.preparation, gate=weak))
    assert dict(evidence(unverifiable))["check"].text.startswith("NOT VERIFIABLE")


def test_times_from_earlier_baselines_are_marked_and_explained_once(state: SessionState) -> None:
    """Each of some twenty rows ended with the explanation."""
    explanation = "not compared: kernels measured on another device or with earlier baselines"
    assert not any("not compared" in text for text in shown(state))
    assert explanation not in [found.text for _, found in evidence(state)]
    old = queries.incumbent(state)
    assert old is not None
    mixed = replace(state, kernels={**state.kernels, old.id: replace(old, epoch=state.epoch - 1)})
    assert [f" {old.id} " in text for text in shown(mixed) if "not compared" in text] == [True]
    assert [found.text for _, found in evidence(mixed)].count(explanation) == 1


def test_an_empty_session_has_a_tree_and_a_summary() -> None:
    assert shown(SessionState()) == ["no kernel yet"]
    found = summarise(SessionState(), Path("/somewhere"))
    assert (found.kernels, found.best, found.rounds) == (0, None, 0)


def test_the_summary_matches_the_state(state: SessionState) -> None:
    found = summarise(state, Path("/somewhere"))
    assert (found.session, found.problem, found.device.label) == ("/somewhere", "softmax", "cpu")
    assert found.kernels == len(state.kernels)
    assert found.verified == len(queries.verified(state))
    assert found.rounds == 3
    best = queries.incumbent(state)
    assert best is not None
    assert found.best is not None
    assert found.best.kernel == best.id
    assert found.best.speedup.baseline == "eager"
    assert found.best.speedup.low <= found.best.speedup.value <= found.best.speedup.high


def test_progress_reports_each_event_once(folder: Path) -> None:
    before = SessionState()
    lines: list[str] = []
    for entry in journal.read(folder).entries:
        after = advance(before, (entry,))
        lines += [plain(spans) for spans in progress.lines(before, entry, after)]
        before = after
    text = "\n".join(lines)
    for round_number in range(4):
        assert text.count(f"round {round_number} opened") == 1
        assert text.count(f"round {round_number} closed") == 1
    for kernel in before.kernels.values():
        assert text.count(f"{kernel.id} built") == (0 if kernel.failure and kernel.failure.kind == "build_failed" else 1)
    assert text.count("is the incumbent") == 4
    assert all("\n" not in one and one == one.rstrip() for one in lines)


@pytest.mark.parametrize("width", [60, 80, 120, 160, 250])
def test_the_tree_fits_the_terminal_and_keeps_each_speedup(width: int) -> None:
    state = showcase.session()[0]
    found = [plain(spans) for spans in tree(state, width=width)]
    assert len(found) == len(state.kernels) + 1
    assert max(map(len, found)) <= width
    best = queries.incumbent(state)
    assert best is not None
    ratio = queries.speedup(state, best)
    assert ratio is not None
    row = next(text for text in found if text.startswith("★"))
    assert times(ratio) in row
    assert f" {best.id} " in row


def test_a_tree_that_fits_lacks_nothing(state: SessionState) -> None:
    assert [plain(spans) for spans in tree(state, width=1000)] == shown(state)


def test_a_refused_command_of_another_process_is_named_in_words(state: SessionState) -> None:
    refused = e.CommandAnswered("r1", "WriteIdea", False, "an idea needs a title", process=7)
    _, found = progress.entry_lines(state, b.entries([refused], start=state.seq + 1))
    assert plain(found[0][1]) == "command 'write idea' of process 7 refused: an idea needs a title"

"""Journals of every released format stay readable and fold to the same state."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support import builders as b

from engine.domain import events as e
from engine.domain import queries, rules
from engine.domain.folds import advance
from engine.domain.model import ENGINE, Succession
from engine.domain.settings import Limits
from engine.domain.state import SessionState, Stage
from engine.journal import codec
from engine.journal.journal import NAME, Journal, read

HERE = Path(__file__).resolve().parent
JOURNALS = sorted(HERE.glob("v*/session.jsonl"))
BEFORE_RACES = HERE / "v1" / "before_races.jsonl"
"""Format 1 before races existed: without their events."""
DIGESTS = {"v1/session.jsonl": "adeec923fcc9b29cb642ae724dd069d14db5e312da4f33725b4ff1a34c42d46e"}
"""Digests of the folded states. A new field of the state changes them, which needs a review; a journal's bytes never change."""


@pytest.fixture(scope="module")
def make() -> ModuleType:
    """The script that made the journals."""
    spec = importlib.util.spec_from_file_location("make_v1", HERE / "make_v1.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


@pytest.fixture(params=JOURNALS, ids=lambda path: f"{path.parent.name}/{path.name}")
def golden(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_every_format_has_a_golden_journal() -> None:
    assert {path.parent.name for path in JOURNALS} == {f"v{n}" for n in range(1, codec.VERSION + 1)}


def test_it_is_read_completely(golden: Path, tmp_path: Path) -> None:
    shutil.copy(golden, tmp_path / NAME)
    recording = read(tmp_path)
    assert not recording.torn
    assert len(recording.entries) == len(golden.read_bytes().splitlines())


def test_it_has_every_kind_of_event(golden: Path) -> None:
    kinds = {json.loads(line)["kind"] for line in golden.read_bytes().splitlines()}
    assert kinds == {*codec.kinds(), "llm.called"}


def test_it_folds_to_the_recorded_state(golden: Path, make: ModuleType) -> None:
    assert make.digest(golden.read_bytes()) == DIGESTS[f"{golden.parent.name}/{golden.name}"]


def test_a_change_of_one_value_changes_the_digest(make: ModuleType) -> None:
    journal = JOURNALS[0].read_bytes()
    assert make.digest(journal.replace(b"bound by memory", b"bound by MEMORY")) != make.digest(journal)


def test_the_present_format_is_still_written_identically(make: ModuleType) -> None:
    assert (HERE / f"v{codec.VERSION}" / "session.jsonl").read_bytes() == make.lines()


def test_an_old_session_resumes(golden: Path, tmp_path: Path) -> None:
    shutil.copy(golden, tmp_path / NAME)
    log, entries, repaired = Journal.open_for_append(tmp_path)
    with log:
        assert repaired == ""
        state = advance(SessionState(), entries)
        state = advance(state, log.append(rules.resume_events(state, ""), ENGINE, lambda: state.at + 60))
    assert state.kernels["k2"].stage is Stage.BUILD
    assert [str(work.key) for work in rules.next_work(state)] == ["build:k2:1"]
    assert isinstance(read(tmp_path).entries[-1].event, e.SessionResumed)


def test_a_journal_from_before_races_keeps_its_incumbents_and_resumes(tmp_path: Path) -> None:
    """The best measured kernel led, entry by entry; the current program records so when it resumes the session."""
    shutil.copy(BEFORE_RACES, tmp_path / NAME)
    kinds = {json.loads(line)["kind"] for line in BEFORE_RACES.read_bytes().splitlines()}
    assert not kinds & {"kernel.raced", "race.asked", "incumbent.changed"}
    state, led = SessionState(), []
    for entry in read(tmp_path).entries:
        state = advance(state, (entry,))
        best = queries.incumbent(state)
        led += [best.id if best else ""] if not led or led[-1] != (best.id if best else "") else []
    assert led == ["", "k1", "k2", "k1", "", "k3"], "k2 is measured again, the device is another one, k3 is believed"
    assert (state.incumbent, state.races) == ("", ())

    measured = [b.built("k2"), b.verified("k2", 2.0), b.measured("k2", 2.0)]
    state = advance(
        state, b.entries([*rules.resume_events(state, ""), e.LimitsChanged(Limits()), *measured], start=state.seq + 1)
    )
    moves = []
    while events := rules.automatic(state):
        moves += events
        state = advance(state, b.entries(events, start=state.seq + 1))
    assert e.IncumbentChanged("k3", "", Succession.FIRST) in moves
    best = queries.incumbent(state)
    assert best is not None
    assert best.id == "k3"

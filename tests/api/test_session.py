"""``espalier.Session`` on recorded and held sessions."""

from __future__ import annotations

import asyncio
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from support import sessions
from support.held import held
from support.pretended import PretendedBench

import espalier
from engine.api.evaluation import run_blocking
from engine.domain import events as e
from engine.domain.errors import CommandRejected, JournalError, JournalLocked, JournalUnwritable
from engine.domain.model import Author
from engine.domain.settings import Settings
from engine.domain.state import IdeaStatus, Stage
from engine.journal.journal import NAME, Journal
from engine.session import benches

AGENT = Author("agent:claude")


@pytest.mark.slow
def test_a_held_session_is_read_steered_and_followed(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with held(folder), espalier.Session.open(folder, by=AGENT) as agent, espalier.Session.open(folder) as mine:
        with pytest.raises(JournalLocked, match="is open in process"):
            mine.run()
        idea = agent.propose("Try <b>tiles</b>", "They fit.", predicted=1.5)
        assert mine.state.ideas[idea].status is IdeaStatus.PROPOSED
        with pytest.raises(CommandRejected, match="the engineer decides"):
            agent.approve(idea)
        mine.approve(idea)
        with pytest.raises(CommandRejected, match="unknown kernel 'k99'"):
            mine.race("k99")
        kernel = agent.seed(espalier.code(sessions.source("mine", "time_us = 50"), "mine.cpp"), idea=idea)
        stage = mine.wait(lambda state: state.kernels[kernel].stage if state.kernels[kernel].stage.settled else None, 20)
        assert stage is Stage.MEASURED
        assert mine.kernel(kernel).author == AGENT
        assert "time_us = 50" in mine.code(kernel)
        assert [one.seq for one in mine.events()] == list(range(mine.state.seq + 1))
        assert any(isinstance(one.event, e.CommandAnswered) and one.by == AGENT for one in mine.events())
        assert mine.summary.kernels == len(mine.kernels)
        shown = mine._repr_html_()
        assert "&lt;b&gt;tiles" in shown
        assert "<b>" not in shown
        with pytest.raises(TimeoutError):
            mine.wait(lambda state: state.closed, 0.05)


def test_a_session_that_nobody_holds_is_steered_directly(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    sessions.whole(folder)
    session = espalier.Session.open(folder)
    assert session.incumbent is not None
    session.note("good", session.incumbent.id)
    assert session.state.notes[-1].text == "good"
    assert list(session.events(follow=True))[-1].seq == session.state.seq, "closed: nothing more to follow"
    assert not session.held_here


@pytest.mark.parametrize("left", [b"", b'{"v":1,"seq":0'])
def test_a_session_without_a_whole_event_that_no_process_begins_is_an_error(tmp_path: Path, left: bytes) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    (folder / NAME).write_bytes(left)
    with pytest.raises(JournalError, match="has no complete event"):
        espalier.Session.open(folder)
    with Journal.create(folder):
        assert espalier.Session.open(folder).state.opened is None


def test_unknown_sessions_and_problems_are_errors_with_one_line(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="unknown session 'nothing-here'"):
        espalier.Session.open("nothing-here")
    with pytest.raises(espalier.EspalierError, match="unknown problem"):
        espalier.evaluate("nothing-here", espalier.code('extern "C" void launch() {}', "k.cpp"))
    with pytest.raises(espalier.EspalierError):
        espalier.Session.new("softmax", device="cpu", proposer="nobody", folder=tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tolerance": "loose"}, "unknown tolerance 'loose': choose class, "),
        ({"baselines": ["eager", "magic"]}, "unknown baseline 'magic': choose among eager, "),
        ({"baselines": "magic"}, "unknown baseline 'magic': choose among eager, "),
        ({"baselines": []}, "no baseline is named: choose among eager, "),
        ({"workload": "huge"}, "unknown workload 'huge'"),
        ({"regime": "fast"}, "unknown regime 'fast'"),
    ],
)
def test_an_unknown_choice_is_refused_before_a_device_is_waited_for(given: dict[str, Any], said: str) -> None:
    with pytest.raises(espalier.EspalierError, match=f"^{said}"):
        espalier.evaluate("softmax", espalier.code('extern "C" void launch() {}', "k.cpp"), device="cpu", **given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mode": "now"}, "unknown mode 'now': use ask, "),
        ({"settings": Settings(tolerance="loose")}, "unknown tolerance 'loose'"),
        ({"settings": Settings(others=("magic",))}, "unknown baseline 'magic'"),
        ({"seeds": "nowhere.cpp"}, "no kernel file nowhere.cpp"),
    ],
)
def test_a_session_with_an_unknown_choice_is_refused_at_once(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(espalier.EspalierError, match=f"^{said}"):
        espalier.Session.new("softmax", device="cpu", folder=str(tmp_path / "new"), **given)
    assert not (tmp_path / "new").exists()


def test_a_call_inside_a_running_event_loop_works_as_in_a_notebook() -> None:
    async def answer() -> int:
        return 42

    async def cell() -> int:
        return run_blocking(answer)

    assert asyncio.run(cell()) == 42

    async def broken() -> int:
        raise ValueError("from the cell")

    async def failing() -> int:
        return run_blocking(broken)

    with pytest.raises(ValueError, match="from the cell"):
        asyncio.run(failing())


def test_an_interrupted_cell_ends_its_work() -> None:
    """In a notebook an interrupt raises in the main thread, while a loop runs there."""
    cleaned: list[bool] = []

    async def work() -> None:
        threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append(True)

    async def cell() -> None:
        with pytest.raises(KeyboardInterrupt):
            run_blocking(work)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(cell())
    loop.close()
    assert cleaned == [True]


def test_a_failing_callback_is_told() -> None:
    def say(text: str) -> None:
        raise ValueError(f"no room for {text!r}")

    with pytest.raises(ValueError, match="no room for"):
        espalier.evaluate("softmax", espalier.code(sessions.source("mine"), "k.cpp"), device="cpu", say=say)


@pytest.mark.slow
def test_a_search_that_cannot_be_recorded_says_so_and_continues_when_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(PretendedBench):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self._pause = 0.1

    monkeypatch.setattr(benches, "TrialBench", Slow)
    with espalier.Session.new("softmax", device="cpu", proposer="agent", mode="autopilot", folder=tmp_path / "s") as session:
        session.start()
        session.wait(lambda state: state.incumbent, 20)
        kernel = session.seed(espalier.code(sessions.source("mine", "time_us = 50"), "mine.cpp"))

        def full(*_: object) -> None:
            raise JournalUnwritable("no space left")

        with monkeypatch.context() as patch:
            patch.setattr(Journal, "append", full)
            session.wait(lambda _: session.stopped, 20)
            assert dict(session.stopped) == {"session": "no space left"}
            with pytest.raises(JournalUnwritable):
                session.start()
        session.start()
        assert session.wait(lambda state: state.kernels[kernel].measurement, 20)
        assert not session.stopped

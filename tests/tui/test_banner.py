"""The banner: every stop names its remedy with the user's key, and the key leads there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import sessions, showcase, ui
from support.scripted import ScriptedProposer
from support.ui import Watch, until
from textual.pilot import Pilot
from textual.widgets import OptionList, Static

from engine.domain.errors import ProposerError
from engine.domain.events import IdeaEdited
from engine.domain.settings import Limits
from engine.domain.state import IdeaStatus, SessionState
from engine.domain.work import WorkKey
from engine.ideas.proposer import Calls, CodeRequest, Implementation
from tui import actions
from tui.app import EspalierApp
from tui.screens.dialogs import Choose
from tui.screens.gate import GateScreen
from tui.viewmodel import banner, footer
from tui.viewmodel.banner import Source

STATE = showcase.session()[0]
CALM = replace(
    STATE, kernels={name: k for name, k in STATE.kernels.items() if k.stage.settled and not k.evidence}, ideas={}, calls={}
)


def texts(state: SessionState, source: Source, keys: dict[str, str] | None = None, room: int = 120) -> list[str]:
    shown = banner.banner(state, source)
    assert shown is not None
    return [line.text for line in banner.lines(shown, lambda action: actions.shown_key(action, keys or {}), room)]


@pytest.mark.parametrize(
    ("work", "words"),
    [
        ("implement:i2", "Writing code for i2"),
        ("propose:3", "Proposing ideas for round 3"),
        ("repair:k4:1", "Repairing k4"),
        ("build:k4:0", "Building k4"),
        ("measure:k4:0", "Measuring k4"),
        ("race:k2:k1:0", "Racing k2, k1"),
        ("prepare", "Preparing the session"),
    ],
)
def test_every_stop_names_its_remedy_and_a_key_that_exists(work: str, words: str) -> None:
    reason = "the compiler is gone " * 20
    for room in (40, 80, 120):
        message, hints = texts(CALM, Source(stopped={WorkKey.parse(work): reason}), room=room)
        assert f"{words} failed: the"[: room - 2] in message
        assert "R: retry" in hints
    stopped = banner.banner(CALM, Source(stopped={WorkKey.parse(work): reason}))
    assert stopped is not None
    assert len(stopped.remedies) > 1
    assert all(action in {one.id for one in actions.ACTIONS} for action, _ in stopped.remedies)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (replace(STATE, called_off={WorkKey.parse("propose:3"): "cancelled by hand"}), "R: retry"),
        (replace(CALM, paused="lunch"), "Paused: lunch  ·  P: resume"),
        (STATE, "a: accept"),
        (replace(CALM, closed="enough"), "L: more rounds"),
    ],
)
def test_what_waits_is_named_with_the_key_that_decides(state: SessionState, words: str) -> None:
    assert words in "\n".join(texts(state, Source()))


def test_more_rounds_are_advised_only_where_ideas_are_left_for_them(tmp_path: Path) -> None:
    ended = sessions.whole(tmp_path / "s", limits=Limits(rounds=None, plateau=None))
    assert ended.closed == "no further ideas"
    assert texts(ended, Source(shell_name="s"))[-1].endswith("N: add an idea  ·  s: seed a kernel")
    assert footer.tree_keys(ended, footer.FooterSituation())[0].action == "steer.idea"
    name = next(reversed(ended.ideas))
    parked = replace(ended, ideas={**ended.ideas, name: replace(ended.ideas[name], status=IdeaStatus.PARKED)})
    assert "i: parked ideas" in texts(parked, Source(shell_name="s"))[-1]
    assert footer.tree_keys(parked, footer.FooterSituation())[0].label == "Parked ideas"
    assert not any("more rounds" in one for state in (ended, parked) for one in texts(state, Source()))


def test_in_one_row_the_first_remedy_stays_whole_and_remedies_alone_are_left_to_the_footer() -> None:
    for state in (STATE, replace(CALM, paused="a very long lunch with everyone")):
        shown = banner.banner(state, Source())
        assert shown is not None
        (one,) = banner.lines(shown, lambda action: actions.shown_key(action, {}), 40, 1)
        assert one.width <= 40
        assert shown.remedies[0][1] in one.text
    ended = banner.banner(replace(CALM, closed="done"), Source(steers=False, replays=True))
    assert ended is not None
    assert banner.lines(ended, str, 40, 1) == ()


def test_the_keys_are_the_users() -> None:
    assert "e: retry" in "\n".join(texts(CALM, Source(stopped={WorkKey.parse("prepare"): "gone"}), {"steer.retry": "e"}))
    assert "f7: resume" in texts(replace(CALM, paused="lunch"), Source(), {"steer.pause": "f7"})[0].replace("F7", "f7")


def test_ideas_that_await_approval_are_left_to_the_heading_and_the_footer() -> None:
    assert banner.banner(replace(CALM, ideas=STATE.ideas), Source()) is None


def test_a_session_that_runs_elsewhere_is_retried_there() -> None:
    broken = replace(CALM, broken={WorkKey.parse("implement:i2"): "no key"})
    assert "retry where the session runs" in "\n".join(texts(broken, Source(runs_here=False)))


class Keyless(ScriptedProposer):
    """Its writer has no key; any other writer writes."""

    __slots__ = ()

    async def implement(self, request: CodeRequest, calls: Calls) -> Implementation:
        if request.idea.id == "i2" and not request.idea.writer:
            raise ProposerError("no API key")
        return await super().implement(request, calls)


@pytest.mark.slow
def test_an_idea_whose_writer_failed_gets_another_from_the_banner(tmp_path: Path) -> None:
    folder = tmp_path / "session"

    async def act(app: EspalierApp, pilot: Pilot[None], watch: Watch) -> None:
        def toasts() -> list[str]:
            return [one.message for one in app._notifications]

        await pilot.press("R")
        await until(pilot, lambda: "Nothing failed: there is nothing to retry." in toasts())
        await pilot.press("a", "escape")
        await until(pilot, lambda: "choose another writer" in str(app.screen.query_one("#banner", Static).render()))
        await pilot.press("R")
        await until(pilot, lambda: "Retrying: writing code for i2." in toasts())
        await until(pilot, lambda: "choose another writer" in str(app.screen.query_one("#banner", Static).render()))
        await pilot.press("i")
        await until(pilot, lambda: isinstance(app.screen, GateScreen) and app.screen.idea == "i2")
        await pilot.press("W")
        await until(pilot, lambda: isinstance(app.screen, Choose))
        app.screen.query_one(OptionList).highlighted = 1
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, GateScreen))
        await until(pilot, lambda: bool(app.screen.bridge.state_now.ideas["i2"].kernels))  # type: ignore[attr-defined]

    tree = sessions.TREE
    ui.run_steered(folder, act, opener=ui.FakeOpener(ideas=Keyless(tree.rounds, tree.drafts)))
    (edited,) = (event for event in ui.engineer_events(folder) if isinstance(event, IdeaEdited))
    assert edited.writer


def test_an_ended_recording_that_ships_is_not_offered_to_be_opened() -> None:
    ended = replace(CALM, closed="3 of 3 rounds done")
    own = Source(steers=False, replays=True, shell_name="softmax")
    assert "espalier open softmax" in texts(ended, own)[0]
    assert "espalier open" not in texts(ended, replace(own, ships=True))[0]
    assert "fork" in texts(ended, replace(own, ships=True))[0]

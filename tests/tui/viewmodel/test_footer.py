"""The footer names at most five keys: those that matter as the session is now."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import showcase

from engine.domain.state import IdeaStatus, Stage
from tui import actions
from tui.footer_key import FooterKey
from tui.viewmodel.footer import MOST, FooterSituation, gate_keys, tree_keys

STATE = showcase.session()[0]
RESTING = replace(STATE, started={}, ideas={}, mode=STATE.mode)
MEASURED = next(kernel.id for kernel in STATE.kernels.values() if kernel.stage is Stage.MEASURED)
RUNNING = next(kernel.id for kernel in STATE.kernels.values() if not kernel.stage.settled)
QUARANTINED = next(kernel.id for kernel in STATE.kernels.values() if kernel.stage is Stage.QUARANTINED)
FAILED = next(kernel.id for kernel in STATE.kernels.values() if kernel.stage is Stage.FAILED)
PROPOSED = next(idea.id for idea in STATE.ideas.values() if idea.status is IdeaStatus.PROPOSED)
DECIDED = next(idea.id for idea in STATE.ideas.values() if idea.implemented)


def shown(found: tuple[FooterKey, ...]) -> list[str]:
    assert len(found) == MOST
    return [f"{key.action} {key.label}".strip() for key in found]


@pytest.mark.parametrize(
    ("now", "first"),
    [
        (FooterSituation(MEASURED), "session.pin"),
        (FooterSituation(RUNNING), "session.cancel"),
        (FooterSituation(QUARANTINED), "session.accept"),
        (FooterSituation(FAILED), "session.log"),
        (FooterSituation(MEASURED, marked=RUNNING), "session.compare"),
        (FooterSituation(MEASURED, stopped=True), "steer.retry"),
        (FooterSituation(MEASURED, steered=False, playing=True), "replay.play Pause"),
        (FooterSituation(MEASURED, steered=False, playing=False), "replay.play Play"),
        (FooterSituation(MEASURED, steered=False), "session.pane"),
        (FooterSituation(), "session.pane"),
    ],
)
def test_the_first_key_fits_the_situation(now: FooterSituation, first: str) -> None:
    assert shown(tree_keys(RESTING, now))[0] == first


def test_a_session_that_waits_says_so_first() -> None:
    pending = replace(STATE, mode="ask") if STATE.mode.is_autopilot else STATE
    assert shown(tree_keys(pending, FooterSituation(MEASURED)))[0] == "session.gate Approve ideas"
    paused = replace(RESTING, paused="lunch")
    assert shown(tree_keys(paused, FooterSituation(MEASURED)))[0] == "steer.pause Resume"
    ended = replace(RESTING, closed="done")
    assert shown(tree_keys(ended, FooterSituation(MEASURED)))[0] == "steer.limits More rounds"


def test_while_work_runs_it_can_be_paused() -> None:
    running = replace(RESTING, started=STATE.started)
    assert "steer.pause" in shown(tree_keys(running, FooterSituation(MEASURED)))
    assert "steer.pause" not in shown(tree_keys(RESTING, FooterSituation(MEASURED)))


def test_a_source_without_commands_offers_none() -> None:
    keys = [*tree_keys(STATE, FooterSituation(MEASURED, RUNNING, steered=False)), *gate_keys(STATE, PROPOSED, steered=False)]
    assert all(actions.by_id(key.action).needs is actions.Needs.NOTHING for key in keys)


def test_the_gate_offers_decisions_on_an_open_idea_only() -> None:
    assert shown(gate_keys(STATE, PROPOSED, steered=True))[:4] == ["gate.approve", "gate.reject", "gate.edit", "gate.write"]
    assert not {"gate.approve", "gate.reject"} & set(shown(gate_keys(STATE, DECIDED, steered=True)))

"""The registry: every action has a method, ids are unique, and no key has two actions on one screen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tui import actions
from tui.app import EspalierApp
from tui.screens.compare import CompareScreen
from tui.screens.gate import GateScreen
from tui.screens.home import HomeScreen
from tui.screens.session import SessionScreen
from tui.screens.workloads import WorkloadsScreen

SCREENS = {
    actions.Place.ANYWHERE: EspalierApp,
    actions.Place.HOME: HomeScreen,
    actions.Place.SESSION: SessionScreen,
    actions.Place.GATE: GateScreen,
    actions.Place.COMPARE: CompareScreen,
    actions.Place.WORKLOADS: WorkloadsScreen,
}


def test_ids_are_unique() -> None:
    ids = [action.id for action in actions.ACTIONS]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("place", list(actions.Place))
def test_a_key_has_one_action_per_screen(place: actions.Place) -> None:
    here = [a for a in actions.ACTIONS if place in a.places or actions.Place.ANYWHERE in a.places]
    for needs in (actions.Needs.SUBMIT, actions.Needs.SEEK):
        keys = [key for a in here if a.needs in (needs, actions.Needs.NOTHING) for key in a.key.split(",")]
        assert sorted(keys) == sorted(set(keys)), place


@pytest.mark.parametrize(("action", "place"), [(a, p) for a in actions.ACTIONS for p in a.places])
def test_every_action_has_a_method_a_label_and_help(action: actions.Action, place: actions.Place) -> None:
    method = getattr(SCREENS[place], f"action_{action.verb}", None)
    assert callable(method), action.id
    assert action.help.endswith(".")
    assert action.label


def test_the_key_table_names_every_action() -> None:
    table = actions.key_table()
    assert all(f"`{action.id}`" in table for action in actions.ACTIONS)


def test_an_unreadable_keymap_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "keymap.toml"
    assert actions.read_keymap(file) == ({}, ())
    file.write_text("this is = = nothing")
    keys, wrong = actions.read_keymap(file)
    assert not keys
    assert str(file) in wrong[0]


def test_a_renamed_action_names_its_present_id(tmp_path: Path) -> None:
    ids = {action.id for action in actions.ACTIONS}
    assert set(actions.RENAMED.values()) <= ids
    assert not set(actions.RENAMED) & ids
    file = tmp_path / "keys.toml"
    file.write_text('"gate.material" = "m"\n[gate]\naprove = "y"\nnonsense-zzz = "z"\n')
    keys, errors = actions.read_keymap(file)
    assert not keys
    assert errors == (
        f"{file}: unknown action 'gate.material': did you mean 'gate.attach'?",
        f"{file}: unknown action 'gate.aprove': did you mean 'gate.approve'?",
        f"{file}: unknown action 'gate.nonsense-zzz'",
    )


@pytest.mark.slow
@pytest.mark.parametrize("module", ["tui.app", "tui.bridge", "tui.actions"])
def test_the_terminal_ui_imports_neither_torch_nor_a_model_client(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('torch', 'openai', 'google.genai', 'numpy') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"


def test_the_documentation_generates_its_key_table_from_the_registry() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "keys.md").read_text()
    assert "<!-- generate: keys -->" in page

"""The registry's laws: every action can be done, named once, and no key means two things in one place."""

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

SCREENS = {
    actions.Place.ANYWHERE: EspalierApp,
    actions.Place.HOME: HomeScreen,
    actions.Place.SESSION: SessionScreen,
    actions.Place.GATE: GateScreen,
    actions.Place.COMPARE: CompareScreen,
}


def test_ids_are_unique() -> None:
    ids = [action.id for action in actions.ACTIONS]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("place", list(actions.Place))
def test_a_key_means_one_thing_in_one_place(place: actions.Place) -> None:
    here = [a for a in actions.ACTIONS if place in a.places or actions.Place.ANYWHERE in a.places]
    for needs in (actions.Needs.SUBMIT, actions.Needs.SEEK):
        keys = [key for a in here if a.needs in (needs, actions.Needs.NOTHING) for key in a.key.split(",")]
        assert sorted(keys) == sorted(set(keys)), place


@pytest.mark.parametrize(("action", "place"), [(a, p) for a in actions.ACTIONS for p in a.places])
def test_every_action_has_a_method_and_words(action: actions.Action, place: actions.Place) -> None:
    method = getattr(SCREENS[place], f"action_{action.verb}", None)
    assert callable(method), action.id
    assert action.help.endswith(".")
    assert action.label


def test_the_key_table_names_every_action() -> None:
    table = actions.key_table()
    assert all(f"`{action.id}`" in table for action in actions.ACTIONS)


def test_a_keymap_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    file = tmp_path / "keymap.toml"
    assert actions.read_keymap(file) == ({}, ())
    file.write_text("this is = = nothing")
    keys, wrong = actions.read_keymap(file)
    assert not keys
    assert str(file) in wrong[0]


@pytest.mark.parametrize("module", ["tui.app", "tui.bridge", "tui.actions"])
def test_the_face_loads_neither_torch_nor_a_model(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('torch', 'openai', 'google.genai', 'numpy') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"


def test_the_readme_s_keys_are_the_registry_s() -> None:
    """``python -m tui.actions`` prints what belongs there."""
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert actions.key_table().strip() in readme

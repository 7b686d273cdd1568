"""The generated reference: every part is made, and says what the program does."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import sys
from pathlib import Path

import click
import pytest
from docs.pages import PAGES, ROOT
from support import stored_showcase

from engine.cli.command_table import command_paths
from engine.cli.main import espalier as program
from engine.domain import events
from engine.journal import codec
from espalier import main

sys.path.insert(0, str(ROOT / "scripts"))
reference = importlib.import_module("reference")

READ_ONLY = {
    "run, open, step, replay": ("replay", "SESSION"),
    "idea list (each of `ideas`)": ("idea", "list", "SESSION"),
    "model prompts (each of `calls`)": ("model", "prompts", "SESSION"),
    "problems (each of `problems`)": ("problems",),
    "doctor (each of `checks`)": ("doctor",),
    **reference.JSON_OBSERVED,
}
"""Commands whose ``--json`` is compared with what the reference says of it."""


OWN_VARIABLES = {
    "ESPALIER_ALONE", "ESPALIER_DEVICE", "ESPALIER_LIGHT_HEADERS", "ESPALIER_PROFILED", "ESPALIER_WORKSPACE",
}  # fmt: skip
"""What the program's processes tell each other."""


@pytest.mark.parametrize("part", reference.PARTS)
def test_a_part_is_made_and_wanted(part: str) -> None:
    text = reference.PARTS[part]()
    assert len(text) > 100
    assert not re.search(r" object at 0x|<class |_[A-Z]\w+ \|", text), "a type without a name for people"
    assert any(f"<!-- generate: {part} -->" in page.read_text(encoding="utf-8") for page in PAGES), f"no page shows {part}"


def test_every_command_and_every_option_is_described() -> None:
    text = reference.commands()
    for path in command_paths():
        assert re.search(rf"^#+ espalier {' '.join(path)}$", text, re.MULTILINE), path


def test_every_option_has_help() -> None:
    for path in command_paths():
        command: click.Command | None = program
        context = click.Context(program, info_name="espalier")
        for word in path:
            command = command.get_command(context, word) if isinstance(command, click.Group) else None
        assert command is not None
        options = [option for option in command.params if isinstance(option, click.Option)]
        assert not [option.name for option in options if not option.help], path


def test_every_kind_of_event_is_described() -> None:
    described = re.findall(r"^### ([a-z]+\.[a-z_]+)$", reference.events(), re.MULTILINE)
    assert sorted(described) == sorted(codec.kinds())
    fields = [f.name for f in dataclasses.fields(events.KernelBuilt)]
    section = reference.events().partition("### kernel.built")[2].partition("### ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == fields


def test_every_variable_of_this_program_is_described() -> None:
    code = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "engine").rglob("*.py"))
    used = set(re.findall(r'"(ESPALIER_[A-Z_]+)"', code)) - OWN_VARIABLES
    missing = used - set(re.findall(r"`(\w+)`", reference.environment()))
    assert not missing


def test_every_action_has_its_key() -> None:
    from tui.actions import ACTIONS

    table = reference.keys()
    assert all(f"`{action.id}`" in table for action in ACTIONS)


def test_the_plan_grammar_is_what_scaffold_prints(capsys: pytest.CaptureFixture[str]) -> None:
    main(["scaffold", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    shown = " ".join(reference.plan_grammar().strip("`").removeprefix("text").split())
    assert shown in printed


@pytest.mark.parametrize("title", READ_ONLY)
def test_json_has_the_fields_that_are_described(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path))
    folder = tmp_path / "sessions" / "shown"
    folder.parent.mkdir()
    stored_showcase.store(folder)
    capsys.readouterr()
    words = [str(folder) if word == "SESSION" else word for word in READ_ONLY[title]]
    assert main([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    inner = re.search(r"each of `(\w+)`", title)
    row = printed[inner[1]][0] if inner else printed
    section = reference.json_shapes().partition(f"### {title}\n")[2].partition("\n### ")[0]
    assert set(row) == set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))

"""What is known, printed: kernels, ideas and sessions, for people and as JSON; steering as JSON; quiet and verbose."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.program import Call

from engine.cli import output
from engine.cli.conclusion import next_steps
from engine.cli.exit_codes import AWAITING
from engine.domain import races
from engine.domain.errors import printable
from engine.journal import store

ROOT = Path(__file__).resolve().parents[2]

DEVICE = {"name", "arch", "label"}
TINY = ("--rounds", "1", "--ideas", "1", "--branch", "1", "--device", "cpu", "--headless")


def test_kernels_are_listed_as_a_tree_or_by_rank(espalier: Call, recorded: Path) -> None:
    rows = espalier("kernel", "list", "scripted").out
    assert all(f"{kernel} " in rows for kernel in store.state_of(recorded).kernels)
    found = espalier("kernel", "list", "scripted", "--json").json()["kernels"]
    assert [row["kernel"] for row in found] == list(store.state_of(recorded).kernels)
    assert sum(row["incumbent"] for row in found) == 1
    assert {row["status"] for row in found} >= {"measured", "mismatch"}
    assert all(row["device"].keys() == DEVICE for row in found)
    ranked = espalier("kernel", "list", "scripted", "--verified", "--json").json()["kernels"]
    lows = [row["speedup"]["eager"]["low"] for row in ranked]
    assert lows == sorted(lows, reverse=True)


def test_one_kernel_is_shown_with_its_facts_and_verdict(espalier: Call, recorded: Path) -> None:
    best = espalier("session", "show", "scripted", "--json").json()["best"]["kernel"]
    espalier("kernel", "note", "scripted", best, "watch its registers")
    text = espalier("kernel", "show", "scripted", best).out
    for words in ("★ incumbent", "parent", "contract", "speedup", "device", "sandbox", "watch its registers"):
        assert words in text, words
    found = espalier("kernel", "show", "scripted", best, "--json").json()
    assert found["incumbent"]
    assert found["notes"][0]["text"] == "watch its registers"
    assert found["verification"]["policy"]
    failed = next(k.id for k in store.state_of(recorded).kernels.values() if k.failure)
    assert "planted" in espalier("kernel", "show", "scripted", failed).out


def test_the_code_of_a_kernel_and_its_difference_to_its_parent(espalier: Call, recorded: Path) -> None:
    code = espalier("kernel", "show", "scripted", "k2", "--code").out
    assert espalier("kernel", "show", "scripted", "k2", "--code", "--json").json()["code"] == code
    diff = espalier("kernel", "show", "scripted", "k2", "--diff").out
    assert diff.startswith("--- k1/")
    assert espalier("kernel", "show", "scripted", "k2", "--diff", "--json").json()["diff"] == diff.rstrip("\n")
    assert "k1 has no parent" in espalier("kernel", "show", "scripted", "k1", "--diff").error_line()
    assert "not both" in espalier("kernel", "show", "scripted", "k2", "--diff", "--code").error_line()


def test_one_idea_is_shown(espalier: Call, recorded: Path) -> None:
    idea = next(i for i in store.state_of(recorded).ideas.values() if i.kernels)
    text = espalier("idea", "show", "scripted", idea.id).out
    assert idea.text.title in text
    assert idea.kernels[0] in text
    assert espalier("idea", "show", "scripted", idea.id, "--json").json()["idea"]["id"] == idea.id


def test_a_session_is_shown_and_its_object_extends_that_of_replay(espalier: Call, recorded: Path) -> None:
    assert espalier("session", "show", "scripted").out == espalier("replay", "scripted", "--headless").out
    found = espalier("session", "show", "scripted", "--json").json()
    summary = espalier("replay", "scripted", "--json").json()
    assert summary.items() <= found.items()
    assert found["device"].keys() == DEVICE
    assert (found["status"], found["awaiting"], found["usage"]["calls"]) == ("closed", [], 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("kernel", "pin", "scripted", "k2"), ("session", "note", "scripted", "a note"),
        ("idea", "add", "scripted", "A thought of mine"),
        ("session", "limits", "scripted", "--rounds", "9"), ("kernel", "remeasure", "scripted", "k2"),
        ("session", "mode", "scripted", "ask"), ("kernel", "race", "scripted", "k1"),
    ],
)  # fmt: skip
def test_steering_prints_the_accepted_events_as_json(espalier: Call, recorded: Path, arguments: tuple[str, ...]) -> None:
    found = espalier(*arguments, "--json").json()
    assert found["session"] == str(recorded)
    assert found["events"]
    assert {"seq", "at", "by", "kind", "data"} <= found["events"][0].keys()


@pytest.mark.slow
def test_limits_are_printed_as_json(espalier: Call, recorded: Path) -> None:
    assert espalier("session", "limits", "scripted", "--json").json()["limits"]["sol"] == 0.95


@pytest.mark.slow
@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("before", [True, False])
def test_quiet_prints_neither_progress_nor_advice(espalier: Call, tmp_path: Path, before: bool) -> None:
    line = ("run", "softmax", *TINY, "--session", tmp_path / "s")
    result = espalier("-q", *line) if before else espalier(*line, "-q")
    assert result.status == 0
    assert result.err == ""
    assert "★" in result.out
    assert "next  " not in result.out
    assert "next" not in espalier("-q", "kernel", "remeasure", tmp_path / "s", "k1").out


@pytest.mark.slow
@pytest.mark.usefixtures("pretended")
def test_verbose_prints_the_time_of_each_piece_of_work(espalier: Call, tmp_path: Path) -> None:
    result = espalier("run", "softmax", *TINY, "--session", tmp_path / "s", "-v")
    assert result.status == 0
    assert "building k1 began" in result.err
    assert "building k1 took " in result.err
    plain = espalier("run", "softmax", *TINY, "--session", tmp_path / "t")
    assert "building k1 took" not in plain.err
    assert not re.search(r"[a-z]+:[kir]?\d", plain.err + result.err)


@pytest.mark.slow
@pytest.mark.usefixtures("pretended")
def test_waiting_for_somebody_ends_with_3(espalier: Call, home: Path) -> None:
    folder = home / "sessions" / "mine"
    asked = espalier("run", "softmax", *TINY, "--mode", "ask", "--session", folder, "--json")
    assert asked.status == AWAITING
    assert asked.json()["kernels"] == 1
    assert espalier("open", "mine", "--headless").status == AWAITING
    assert espalier("session", "pause", "mine").status == 0
    espalier("idea", "approve", "mine")
    paused = espalier("open", "mine", "--headless")
    assert paused.status == AWAITING
    assert "espalier session resume mine" in paused.out
    espalier("session", "resume", "mine")
    assert espalier("open", "mine", "--headless").status == 0


@pytest.mark.usefixtures("pretended")
def test_a_proposer_that_fails_ends_with_3_and_a_prompt_to_answer_too(espalier: Call, home: Path) -> None:
    failed = espalier("run", "softmax", *TINY, "--proposer", "command:false", "--session", home / "sessions" / "failed")
    assert failed.status == AWAITING
    assert "resume with `espalier open failed` once fixed" in failed.err
    pasted = espalier("run", "softmax", *TINY, "--proposer", "paste", "--session", home / "sessions" / "pasted")
    assert pasted.status == AWAITING
    assert "espalier model answer pasted c1 FILE" in pasted.out


def test_a_mismatch_shows_the_limits_beside_its_errors(espalier: Call, recorded: Path) -> None:
    assert "check     class:fp32 (10×), fp32 class allowed: error ≤ 1.0e-05" in espalier("kernel", "show", "scripted", "k4").out
    assert "check " not in espalier("kernel", "show", "scripted", "k10").out


def test_an_ended_session_with_undecided_races_says_how_to_repeat_them(tmp_path: Path) -> None:
    state = store.state_of(ROOT / "sessions" / "layernorm")
    undecided = len(races.undecided_races(state))
    (step,) = [words for words in next_steps(state, tmp_path, None) if "kernel race" in words]
    assert state.closed is not None
    assert f"repeats {undecided} undecided race" in step
    none = replace(state, races=())
    assert not [words for words in next_steps(none, tmp_path, None) if "kernel race" in words]


def test_a_prediction_of_an_idea_without_a_parent_names_none(
    espalier: Call, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = recorded / "journal.jsonl"
    rows = [json.loads(row) for row in journal.read_text().splitlines()]
    proposed = next(row for row in rows if row["kind"] == "ideas.proposed" and row["data"]["ideas"][0].get("parent") is None)
    proposed["data"]["ideas"][0]["text"]["predicted"] = 1.5
    journal.write_text("".join(json.dumps(row) + "\n" for row in rows))
    shown = espalier("idea", "show", "scripted", proposed["data"]["ideas"][0]["id"]).out
    assert "predicted  1.50×\n" in shown


def test_code_is_printed_as_it_is_and_controls_no_terminal(
    espalier: Call, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into a file it lost what looks like a colour; on a terminal it could rewrite the screen."""
    code = '// \x1b[31mred\x1b[0m \x1b]0;title\x07 é\nextern "C" void launch(const float*, float*, void*) {}\n'
    file = tmp_path / "odd.cpp"
    file.write_text(code)
    assert espalier("kernel", "seed", "scripted", file).status == 0
    kernel = f"k{len(store.state_of(recorded).kernels)}"
    assert espalier("kernel", "show", "scripted", kernel, "--code").out == code
    monkeypatch.setattr(output, "is_terminal", lambda stream: True)
    assert espalier("kernel", "show", "scripted", kernel, "--code").out == printable(code)

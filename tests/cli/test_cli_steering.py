"""Steering from the command line: each command changes the journal as the domain's command does."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.program import Call

from engine.domain import queries
from engine.domain.state import IdeaStatus, SessionState, Stage
from engine.journal import store

KERNEL = 'extern "C" void launch(const float*, float*, void*) {}\n'


def state(folder: Path) -> SessionState:
    return store.state_of(folder)


def test_the_list_of_ideas_fits_a_narrow_terminal(espalier: Call, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reasons stood in the last column, of which a narrow terminal shows 16 characters, and took the room of the titles."""
    reason = "it needs more shared memory than a multiprocessor has"
    espalier("idea", "add", "scripted", "Hold all rows of a block")
    idea = f"i{state(recorded).next_idea - 1}"
    espalier("idea", "reject", "scripted", idea, reason)
    monkeypatch.setattr("engine.cli.idea.terminal_width", lambda: 70)
    lines = espalier("idea", "list", "scripted").out.splitlines()
    assert f"      {reason}" in lines
    assert max(len(line) for line in lines if line.startswith("i")) <= 70
    assert next(line for line in lines if line.startswith("i1 ")).endswith("  k1")


def test_ideas_are_added_listed_edited_approved_rejected_and_parked(espalier: Call, recorded: Path) -> None:
    first = f"i{state(recorded).next_idea}"
    added = espalier(
        "idea", "add", "scripted", "Use wider loads", "--why", "memory binds", "--predict", "1.5", "--parent", "k2"
    )
    assert added.status == 0
    assert first in added.out
    assert (
        f"{first}  after round 3  on k2  awaiting approval  Use wider loads"
        in espalier("idea", "list", "scripted", "--awaiting").out
    )
    assert espalier("idea", "edit", "scripted", first, "--title", "Use the widest loads", "--branch", "2").status == 0
    found = state(recorded).ideas[first]
    assert (found.text.title, found.text.rationale, found.branch) == ("Use the widest loads", "memory binds", 2)
    assert espalier("idea", "approve", "scripted").status == 0
    assert state(recorded).ideas[first].status is IdeaStatus.SELECTED
    second, third = f"i{state(recorded).next_idea}", f"i{state(recorded).next_idea + 1}"
    espalier("idea", "add", "scripted", "Quite another thought")
    espalier("idea", "add", "scripted", "Something unlike the rest")
    assert espalier("idea", "reject", "scripted", second, "too slow").status == 0
    assert espalier("idea", "park", "scripted", third).status == 0
    assert (state(recorded).ideas[second].status, state(recorded).ideas[second].reason) == (IdeaStatus.REJECTED, "too slow")
    assert state(recorded).ideas[third].status is IdeaStatus.PARKED
    assert "\n      too slow\n" in espalier("idea", "list", "scripted").out
    listed = espalier("idea", "list", "scripted", "--json").json()["ideas"]
    assert [i["status"] for i in listed[-3:]] == ["selected", "rejected", "parked"]


def test_kernels_are_pinned_pruned_and_reopened(espalier: Call, recorded: Path) -> None:
    assert "k3 pinned" in espalier("kernel", "pin", "scripted", "k3").out
    assert "nothing changed" in espalier("kernel", "pin", "scripted", "k3").out
    assert state(recorded).pinned == ("k3",)
    assert espalier("kernel", "unpin", "scripted", "k3").status == 0
    assert state(recorded).pinned == ()
    assert (
        "k2 and its descendants pruned: leads nowhere"
        in espalier("kernel", "prune", "scripted", "k2", "--reason", "leads nowhere").out
    )
    assert "pruned" in espalier("replay", "scripted", "--headless").out
    assert espalier("kernel", "reopen", "scripted", "k2").status == 0
    assert state(recorded).pruned == ()


def test_a_session_gets_notes_instructions_a_mode_and_limits_and_ends(espalier: Call, recorded: Path) -> None:
    assert espalier("session", "note", "scripted", "remember this", "--on", "k2").status == 0
    assert state(recorded).notes[-1].text == "remember this"
    assert espalier("session", "instruct", "scripted", "no shared memory").status == 0
    assert state(recorded).instructions == "no shared memory"
    assert espalier("session", "mode", "scripted", "ask:30").status == 0
    assert str(state(recorded).mode) == "ask:30"
    result = espalier("session", "limits", "scripted", "--rounds", "9", "--plateau", "none", "--time", "15m", "--sol", "0.99")
    assert "session reopened" in result.out
    found = state(recorded).limits
    assert (found.rounds, found.plateau, found.seconds, found.light) == (9, None, 900.0, 0.99)
    assert "rounds   9" in espalier("session", "limits", "scripted").out
    assert espalier("session", "end", "scripted", "--reason", "enough").status == 0
    assert state(recorded).closed == "enough"


@pytest.mark.parametrize("reason", ["", " \t"])
def test_an_empty_reason_is_none(espalier: Call, recorded: Path, reason: str) -> None:
    espalier("session", "limits", "scripted", "--rounds", 9)
    assert espalier("kernel", "prune", "scripted", "k2", "--reason", reason).out == "k2 and its descendants pruned\n"
    assert espalier("session", "pause", "scripted", "--reason", reason).out.startswith("paused: by hand;")
    assert espalier("session", "end", "scripted", "--reason", reason).out == "session ended: ended by hand\n"
    assert state(recorded).closed == "ended by hand"


def test_a_seed_has_its_own_idea_or_implements_one(espalier: Call, recorded: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.cpp"
    file.write_text(f"// @tune WIDTH = 4, 8\n{KERNEL}")
    assert (
        espalier("kernel", "seed", "scripted", file, "--idea", "My own way", "--parent", "k2", "--tune", "WIDTH=8").status == 0
    )
    found = list(state(recorded).kernels.values())[-1]
    assert (found.seed, found.parent, dict(found.tunables), found.stage) == (True, "k2", {"WIDTH": 8}, Stage.BUILD)
    assert state(recorded).ideas[found.idea].text.title == "My own way"
    espalier("idea", "add", "scripted", "Written by me")
    idea = list(state(recorded).ideas)[-1]
    assert espalier("kernel", "seed", "scripted", file, "--idea", idea).status == 0
    assert list(state(recorded).kernels.values())[-1].idea == idea
    waiting = list(state(recorded).kernels)[-1]
    assert espalier("kernel", "cancel", "scripted", waiting, "--reason", "no more").status == 0
    assert state(recorded).kernels[waiting].stage is Stage.CANCELLED


def test_a_kernel_of_the_bank_seeds_another_session(espalier: Call, recorded: Path, home: Path) -> None:
    best = espalier("bank", "--json").json()["kernels"][0]
    assert best["seed"].startswith("scripted:k")
    assert espalier("kernel", "seed", "scripted", best["seed"]).status == 0
    assert list(state(recorded).kernels.values())[-1].source == best["source"]


def test_a_settled_kernel_is_remeasured(espalier: Call, recorded: Path) -> None:
    assert espalier("kernel", "remeasure", "scripted", "k2").status == 0
    assert state(recorded).kernels["k2"].stage is Stage.BUILD
    assert state(recorded).closed is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("kernel", "pin", "scripted", "k99"), "unknown kernel 'k99'"),
        (("idea", "approve", "scripted", "i99"), "unknown idea 'i99'"),
        (("idea", "approve", "scripted"), "no idea awaits"),
        (("idea", "add", "scripted", " "), "needs a title"),
        (("idea", "add", "scripted", "x", "--category", "magic"), "unknown value 'magic'"),
        (("session", "end", "scripted"), "already ended"),
        (("kernel", "cancel", "scripted", "k1"), "already settled"),
        (("session", "note", "scripted", "x", "--on", "z9"), "unknown target 'z9'"),
        (("session", "mode", "scripted", "sometimes"), "unknown mode"),
        (("session", "limits", "scripted", "--time", "soon"), "not a duration"),
        (("kernel", "seed", "scripted", "scripted:k2", "--idea", "i99"), "unknown idea 'i99' in scripted"),
        (("kernel", "seed", "scripted", "nowhere.cpp"), "no kernel file"),
        (("kernel", "seed", "scripted", "scripted:k99"), "unknown kernel 'k99'"),
        (("kernel", "pin", "scriptet", "k1"), "did you mean 'scripted'"),
    ],
)
def test_a_rejected_command_is_one_line(espalier: Call, recorded: Path, arguments: tuple[str, ...], words: str) -> None:
    before = (recorded / "journal.jsonl").read_bytes()
    assert words in espalier(*arguments).error_line()
    after = (recorded / "journal.jsonl").read_bytes()
    assert after.startswith(before), "nothing is lost"


def test_a_cuda_kernel_cannot_seed_a_cpu_session(espalier: Call, recorded: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.cu"
    file.write_text(KERNEL)
    assert "is a cuda kernel, and this session measures on the CPU" in espalier("kernel", "seed", "scripted", file).error_line()


def test_races_with_the_incumbent_with_each_other_and_of_the_best(espalier: Call, recorded: Path) -> None:
    leader = queries.incumbent(state(recorded))
    assert leader is not None
    assert "k1 will race" in espalier("kernel", "race", "scripted", "k1").out
    assert state(recorded).asked == (("k1", leader.id),)
    assert "nothing changed" in espalier("kernel", "race", "scripted", leader.id, "--against", "k1").out
    swapped = espalier("kernel", "race", "scripted", leader.id, "--against", "k2").out
    assert f"{leader.id} is the incumbent: the race gives the speedup of k2 over {leader.id}" in swapped
    assert espalier("kernel", "race", "scripted", "k2", "--against", "k1").status == 0
    assert state(recorded).asked[-1] == ("k2", "k1")
    assert espalier("kernel", "race", "scripted", "--leaders", "2").status == 0
    assert {leader.id} == {against for _, against in state(recorded).asked} - {"k1"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("k99",), "unknown kernel 'k99'"),
        ((), "no race against the incumbent is undecided"),
        (("--against", "k1"), "--against needs a KERNEL"),
        (("k1", "--leaders", "2"), "not both"),
        (("k1", "--against", "k1"), "k1 cannot race itself"),
    ],
)
def test_impossible_races_are_bad_usage(espalier: Call, recorded: Path, arguments: tuple[str, ...], words: str) -> None:
    refused = espalier("kernel", "race", "scripted", *arguments)
    assert refused.status == 2
    assert words in refused.err


def test_the_latest_decisions_are_taken_back_one_by_one(espalier: Call, recorded: Path) -> None:
    espalier("kernel", "pin", "scripted", "k3")
    espalier("session", "instruct", "scripted", "prefer fewer registers")
    assert "undone: change of the instructions" in espalier("session", "undo", "scripted").out
    assert (state(recorded).instructions, state(recorded).pinned) == ("", ("k3",))
    assert "undone: pin of k3" in espalier("session", "undo", "scripted").out
    assert state(recorded).pinned == ()
    refused = espalier("session", "undo", "scripted")
    assert (refused.status, refused.err.strip().splitlines()[-1]) == (2, "espalier: no decision to undo")

"""run, open, step and replay over a fake bench: output, exit statuses, and who approves ideas."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from support import sessions
from support.program import Call

from engine.cli.exit_codes import AWAITING, BAD_INPUT
from engine.cli.streams import substitute_unencodable
from engine.journal import store
from engine.session.factory import SavedSession

TINY = ("--rounds", "1", "--ideas", "1", "--branch", "1", "--device", "cpu", "--headless")
BEST = {
    "kernel": str, "idea": str, "speedup": dict, "corroborated": bool, "quarantined": bool, "conditions": list, "doubts": list,
    "accepted": str,
}  # fmt: skip
OBJECT = {
    "session": str, "problem": str, "device": dict, "rounds": int, "kernels": int, "verified": int, "best": dict,
    "doubted": list,
}  # fmt: skip


def check_object(found: dict[str, object]) -> None:
    """The object of DESIGN section 6, to the letter."""
    assert {name: type(value) for name, value in found.items()} == OBJECT
    assert list(found["device"]) == ["name", "arch", "label"]  # type: ignore[call-overload]
    best = found["best"]
    assert isinstance(best, dict)
    assert {name: type(value) for name, value in best.items()} == BEST
    assert list(best["speedup"]) == ["value", "low", "high", "baseline"]


@pytest.mark.usefixtures("pretended")
def test_a_run_prints_its_tree_and_its_evidence(espalier: Call, home: Path) -> None:
    result = espalier("run", "softmax", *TINY)
    assert result.status == 0
    for words in ("k1 Naive port", "★", "check", "trivial models rejected", "baseline", "eager against itself", "sandbox",
                  "SOL", "95% interval", "host contract", "next"):  # fmt: skip
        assert words in result.out, words
    assert str(home / "sessions" / "softmax-") in result.out
    for words in ("round 0 opened", "k1 built", "k1 verified", "is the incumbent", "round 1 closed", "session ended"):
        assert words in result.err, words
    assert "\x1b" not in result.out + result.err


@pytest.mark.usefixtures("pretended")
def test_run_and_replay_print_the_same_object(espalier: Call, tmp_path: Path) -> None:
    result = espalier("run", "softmax", *TINY, "--json", "--session", tmp_path / "mine")
    assert result.status == 0
    check_object(result.json())
    assert result.json()["session"] == str(tmp_path / "mine")
    assert result.json()["rounds"] == 1
    again = espalier("replay", tmp_path / "mine", "--headless", "--json")
    assert again.json() == result.json()


@pytest.mark.usefixtures("pretended")
def test_a_step_runs_one_round_past_the_limit(espalier: Call, tmp_path: Path) -> None:
    espalier("run", "softmax", *TINY, "--session", tmp_path / "s")
    result = espalier("step", tmp_path / "s", "--json")
    assert result.status == 0
    assert result.json()["rounds"] == 2
    assert result.json()["awaiting"] == []
    assert store.state_of(tmp_path / "s").limits.rounds == 2


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize(("sol", "light", "words"), [("0.01", 0.01, "% of SOL reached"), ("none", None, "1 of 1 rounds done")])
def test_a_run_ends_at_its_fraction_of_sol(espalier: Call, tmp_path: Path, sol: str, light: float | None, words: str) -> None:
    result = espalier("run", "softmax", *TINY, "--sol", sol, "--session", tmp_path / "s")
    assert result.status == 0
    assert words in result.err
    assert store.state_of(tmp_path / "s").limits.light == light


@pytest.mark.slow
@pytest.mark.usefixtures("pretended")
def test_in_mode_ask_a_run_stops_for_approval_and_step_approves(espalier: Call, tmp_path: Path) -> None:
    result = espalier("run", "softmax", *TINY, "--mode", "ask", "--session", tmp_path / "s")
    assert result.status == AWAITING
    assert "1 idea awaiting approval" in result.out
    assert "espalier idea approve" in result.out
    asked = espalier("step", tmp_path / "s", "--ask", "--json")
    assert asked.status == AWAITING
    assert asked.json()["awaiting"] == ["i2"]
    done = espalier("step", tmp_path / "s")
    assert done.status == 0
    assert "ended: 1 of 1 rounds done" in done.out


@pytest.mark.usefixtures("pretended")
def test_open_resumes_to_the_end_and_prints_an_ended_session(espalier: Call, tmp_path: Path) -> None:
    espalier("run", "softmax", *TINY, "--mode", "ask", "--session", tmp_path / "s")
    result = espalier("open", tmp_path / "s", "--mode", "autopilot", "--json")
    check_object(result.json())
    assert "mode autopilot" in result.err
    ended = espalier("open", tmp_path / "s")
    assert ended.status == 0
    assert ended.err == ""
    assert "ended: 1 of 1 rounds done" in ended.out


def test_open_on_the_screen_is_told_what_was_asked_for(espalier: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It opened the session as it had been: --device and --mode had no effect there."""
    sessions.whole(tmp_path / "s")
    told: list[object] = []
    monkeypatch.setattr("espalier._open_plain", lambda action, subject: told.append((action, subject)))
    result = espalier("open", tmp_path / "s", "--plain", "--device", "cpu", "--mode", "ask:5", "--fresh-baselines")
    assert result.status == 0
    assert told == [("open", SavedSession(tmp_path / "s", "cpu", "ask:5", fresh=True))]


@pytest.mark.slow
@pytest.mark.usefixtures("pretended")
def test_fresh_baselines_measure_what_the_search_goes_on_from_again(espalier: Call, tmp_path: Path) -> None:
    espalier("run", "softmax", *TINY, "--mode", "ask", "--session", tmp_path / "s")
    before = store.state_of(tmp_path / "s")
    assert espalier("open", tmp_path / "s", "--fresh-baselines", "--headless").status == AWAITING
    state = store.state_of(tmp_path / "s")
    assert (before.epoch, state.epoch) == (1, 2)
    assert state.incumbent == before.incumbent
    assert (state.kernels[state.incumbent].again, state.kernels[state.incumbent].epoch) == (1, 2)
    assert espalier("open", tmp_path / "s", "--mode", "autopilot", "--headless").status == 0
    ended = espalier("open", tmp_path / "s", "--fresh-baselines", "--headless")
    assert ended.status == BAD_INPUT
    assert ended.err.startswith("espalier: session s has ended (1 of 1 rounds done): `espalier session limits")


@pytest.mark.usefixtures("pretended")
def test_several_seeds_and_the_sequential_strategy(espalier: Call, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.cpp").write_text(f'// {name}\nextern "C" void launch(const float*, float*, void*) {{}}\n')
    seeds = ("--seed-kernel", tmp_path / "a.cpp", "--seed-kernel", tmp_path / "b.cpp")
    result = espalier("run", "softmax", *TINY, *seeds, "--strategy", "sequential", "--session", tmp_path / "s")
    assert result.status == 0
    state = store.state_of(tmp_path / "s")
    assert [k.name for k in state.kernels.values() if k.seed] == ["a.cpp", "b.cpp"]
    assert state.opened is not None
    assert state.opened.settings.strategy == "sequential"


@pytest.mark.usefixtures("pretended")
def test_a_search_without_a_verified_kernel_ends_with_1(espalier: Call, tmp_path: Path) -> None:
    (tmp_path / "bad.cpp").write_text('// FAKE: mismatch\nextern "C" void launch(const float*, float*, void*) {}\n')
    problem = tmp_path / "plain.py"
    problem.write_text("class Model: ...\ndef get_inputs(): return []\ndef get_init_inputs(): return []\n")
    result = espalier("run", problem, *TINY, "--seed-kernel", tmp_path / "bad.cpp", "--json")
    assert result.status == 1
    assert result.json()["best"] is None
    assert result.json()["verified"] == 0


@pytest.mark.usefixtures("pretended")
def test_an_unverifiable_problem_is_refused_unless_accepted(espalier: Call) -> None:
    refused = espalier("run", "softmax", *TINY, "--tolerance", "crfm")
    assert refused.status == 2
    assert refused.out == ""
    assert "not verifiable" in refused.err.splitlines()[-1]
    assert "k1" not in refused.err
    accepted = espalier("run", "softmax", *TINY, "--tolerance", "crfm", "--accept-unverifiable")
    assert accepted.status == 0
    assert "NOT VERIFIABLE" in accepted.out


@pytest.mark.usefixtures("pretended")
def test_without_a_naive_port_and_a_seed_no_session_is_created(espalier: Call, home: Path, tmp_path: Path) -> None:
    problem = tmp_path / "plain.py"
    problem.write_text("class Model: ...\ndef get_inputs(): return []\ndef get_init_inputs(): return []\n")
    refused = espalier("run", problem, *TINY)
    assert refused.status == 2
    words = refused.err.splitlines()[-1]
    assert "a pretended operator" in words
    assert "--seed-kernel" in words
    assert not (home / "sessions").exists()


def test_a_malformed_price_list_is_refused_first(espalier: Call, home: Path) -> None:
    (home / "config").mkdir(parents=True)
    (home / "config" / "prices.toml").write_text('[openai]\n"x" = { input = 1 }\n')
    words = espalier("run", "softmax", *TINY, "--source", "command:true").error_line()
    assert "prices.toml is malformed: openai.x.output: required" in words
    assert not (home / "sessions").exists()


def test_the_story_prints_one_line_per_event(espalier: Call, recorded: Path) -> None:
    result = espalier("replay", "scripted", "--plain", "--story")  # --plain opens a terminal UI without a terminal, too
    assert result.status == 0
    assert "round 2 opened, parents k2, k3" in result.out
    assert "k4 mismatch: planted: mismatch" in result.out
    assert result.out.index("session ended") < result.out.index("★")


def test_a_recording_is_shown_without_its_torn_last_line(espalier: Call, recorded: Path) -> None:
    with (recorded / "journal.jsonl").open("ab") as file:
        file.write(b'{"v":1,"se')
    result = espalier("replay", recorded, "--headless", "--json")
    assert result.status == 0
    check_object(result.json())
    assert "cut short" in result.err


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"[" * 100_000 + b"]" * 100_000 + b"\n", "is nested too deeply"),
        (b"\x00" * 4096, "is not JSON"),
        (b"\n", "is blank"),
        (b"  ", "is blank"),
    ],
)
def test_what_is_wrong_with_the_last_line_of_a_journal_is_said(espalier: Call, recorded: Path, line: bytes, fault: str) -> None:
    """All of them were said to be cut short."""
    with (recorded / "journal.jsonl").open("ab") as file:
        file.write(line)
    result = espalier("session", "show", "scripted")
    assert result.status == 0
    assert f"the last line of the journal of scripted {fault} and is left out\n" in result.err
    noted = espalier("session", "note", "scripted", "hello")
    assert f"set the last line, which {fault}, of {len(line)} bytes aside as journal.torn-1" in noted.err


@pytest.mark.slow
def test_a_locale_without_utf8(process: Call, recorded: Path) -> None:
    env = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    process("session", "note", recorded, "4× – ★ naïve", "--on", "k2")
    for arguments in (
        ("replay", recorded, "--headless"),
        (
            "session",
            "list",
        ),
        ("idea", "list", recorded),
    ):
        result = process(*arguments, env=env)
        assert (result.status, result.err) == (0, "")
        assert "?" not in result.out, "each sign of ours has a stand-in"
    assert "|- k2" in process("replay", recorded, "--headless", env=env).out
    check_object(process("replay", recorded, "--json", env=env).json())


def test_substitutes_keep_columns_aligned() -> None:
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="latin-1")
    substitute_unencodable(stream)
    stream.write("│  ├─ k2 ★ 2.1× … ≤ 3 µs \udcff")
    stream.flush()
    assert written.getvalue().decode("latin-1") == "|  |- k2 * 2.1× ~ <= 3 µs ?"


@pytest.mark.slow
def test_a_folder_name_that_is_not_utf8(process: Call, recorded: Path) -> None:
    odd = recorded.rename(recorded.parent / os.fsdecode(b"odd\xff"))
    for arguments in (
        (
            "session",
            "list",
        ),
        ("replay", odd, "--headless"),
        ("replay", odd, "--json"),
        ("session", "list", "--json"),
    ):
        result = process(*arguments)
        assert (result.status, result.err) == (0, "")


TORN = b'{"v":1,"se'


@pytest.mark.parametrize(
    "arguments",
    [
        ("open", "scripted", "--headless"),
        ("session", "limits", "scripted"),
        ("export", "scripted", "--format", "report", "-o", "FILE"),
        ("export", "scripted", "--format", "jsonl", "-o", "FILE"),
        ("fork", "scripted", "--preview"),
        ("idea", "list", "scripted"),
        ("model", "usage", "scripted"),
        ("rerun", "scripted", "--kernels", "k999"),
    ],
)
def test_readers_report_a_torn_last_line_once(
    espalier: Call, recorded: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    journal = recorded / "journal.jsonl"
    torn = journal.read_bytes() + TORN
    journal.write_bytes(torn)
    result = espalier(*(str(tmp_path / "out") if a == "FILE" else a for a in arguments))
    assert result.err.count("the last line of the journal of scripted was cut short and is left out\n") == 1
    assert journal.read_bytes() == torn


@pytest.mark.parametrize(
    "arguments", [("session", "note", "scripted", "hello"), ("session", "limits", "scripted", "--rounds", "9")]
)
def test_writers_set_a_torn_last_line_aside_and_report_it(espalier: Call, recorded: Path, arguments: tuple[str, ...]) -> None:
    journal = recorded / "journal.jsonl"
    before = journal.read_bytes()
    journal.write_bytes(before + TORN)
    result = espalier(*arguments)
    assert result.status == 0
    assert result.err == f"the journal was repaired: set a torn last line of {len(TORN)} bytes aside as journal.torn-1\n"
    assert (recorded / "journal.torn-1").read_bytes() == TORN
    assert journal.read_bytes().startswith(before)
    assert espalier(*arguments).err == "", "the journal is repaired"

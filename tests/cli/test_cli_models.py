"""Model calls and their usage, replies by hand, pauses, quarantine and forks from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import builders as b
from support.program import Call
from support.sessions import Ticking

from engine.cli.exit_codes import AWAITING, BAD_INPUT
from engine.domain import events as e
from engine.domain.model import ENGINE, CallRole, Usage
from engine.domain.settings import CallOptions, ModelServer, Pauses
from engine.domain.state import CallStatus, SessionState, Stage
from engine.journal import store
from engine.journal.blobs import Blobs
from engine.journal.journal import Journal


def state(folder: Path) -> SessionState:
    return store.state_of(folder)


def written(folder: Path, *events: e.Event) -> None:
    """Further events in a recorded session, as the engine would have written them."""
    journal, _, _ = Journal.open_for_append(folder)
    with journal:
        journal.append(events, ENGINE, Ticking())


@pytest.fixture
def asked(recorded: Path) -> Path:
    """A session in which a priced model, one of unknown price and a person were asked."""
    blobs = Blobs(recorded)
    prompt, reply = blobs.put(b"What next?"), blobs.put(b"Wider loads.")
    written(
        recorded,
        e.CallStarted("c1", "propose:1", CallRole.IDEAS, "openai:gpt-test", prompt, 9000),
        e.CallAnswered("c1", reply, Usage(5000, 1000, 200), 0.0125, "stop", 2.0),
        e.CallStarted("c2", "implement:i2", CallRole.CODE, "openai:unheard-of", prompt, 9000),
        e.CallAnswered("c2", reply, Usage(700, 0, 300), None, "stop", 2.0),
        e.CallStarted("c3", "propose:1", CallRole.IDEAS, "paste", prompt),
    )
    return recorded


def test_calls_are_listed_and_their_prompts_printed(espalier: Call, asked: Path) -> None:
    listed = espalier("model", "prompts", "scripted").out.splitlines()
    assert [row.split()[0] for row in listed] == ["c1", "c2", "c3"]
    assert "5,000 in, 200 out" in listed[0]
    assert "awaits your reply" in listed[2]
    assert espalier("model", "prompts", "scripted", "c1").out == "What next?\n"
    assert espalier("model", "prompts", "scripted", "c1", "--reply").out == "Wider loads.\n"
    assert espalier("model", "prompts", "scripted", "c3", "--reply").error_line() == "espalier: c3 has no reply: it is open\n"
    assert "unknown call 'c9'" in espalier("model", "prompts", "scripted", "c9").error_line()
    calls = espalier("model", "prompts", "scripted", "--json").json()["calls"]
    assert [(c["id"], c["work"]) for c in calls] == [("c1", "propose:1"), ("c2", "implement:i2"), ("c3", "propose:1")]


def test_a_retry_names_the_call_whose_reply_was_refused(espalier: Call, recorded: Path) -> None:
    blobs = Blobs(recorded)
    prompt, reply = blobs.put(b"What next?"), blobs.put(b"No idea.")
    written(
        recorded,
        e.CallStarted("c1", "propose:1", CallRole.IDEAS, "paste", prompt),
        e.CallAnswered("c1", reply, Usage(), None, "", 2.0),
        e.CallFailed("c1", "the reply has no ideas"),
        e.CallStarted("c2", "propose:1", CallRole.IDEAS, "paste", prompt),
    )
    first, second = espalier("model", "prompts", "scripted").out.splitlines()
    assert "retry" not in first
    assert "ideas, retry of c1" in second


def test_usage_is_listed_by_round_role_and_model(espalier: Call, asked: Path) -> None:
    rows = espalier("model", "usage", "scripted", "--json").json()["usage"]
    whole = rows[0]
    assert (whole["calls"], whole["usage"], whole["usd"], whole["unpriced"]) == (
        3, {"input": 5700, "cached": 1000, "output": 500}, 0.0125, 1,
    )  # fmt: skip
    by_model = {row["name"]: row["usd"] for row in rows if row["by"] == "model"}
    assert by_model == {"openai:gpt-test": 0.0125, "openai:unheard-of": 0, "paste": 0}
    assert "0.0125 and 1 of unknown price" in espalier("model", "usage", "scripted").out


def test_usage_without_a_call(espalier: Call, recorded: Path) -> None:
    assert espalier("model", "usage", "scripted").out == "no model has been called yet\n"
    assert espalier("model", "prompts", "scripted").out == "no model has been called yet\n"


def test_a_prompt_is_answered_once(espalier: Call, asked: Path, tmp_path: Path) -> None:
    reply = tmp_path / "reply.md"
    reply.write_text("Use them.")
    refused = espalier("model", "answer", "scripted", "c3", reply)
    assert refused.status == BAD_INPUT
    assert "does not answer c3: the reply has no JSON object" in refused.error_line()
    assert "--as-it-is" in refused.error_line()
    assert espalier("model", "answer", "scripted", "c3", reply, "--as-it-is").status == 0
    found = state(asked).calls["c3"]
    assert (found.status, Blobs(asked).text(found.reply)) == (CallStatus.ANSWERED, "Use them.")
    assert "already been answered" in espalier("model", "answer", "scripted", "c3", reply).error_line()


@pytest.mark.parametrize(
    ("call", "text", "words"),
    [
        ("c1", "Use them.", "already been answered"),
        ("c9", "Use them.", "unknown call 'c9'"),
        ("c3", " \n", "is empty"),
        ("c3", None, "cannot be read"),
    ],
)
def test_a_reply_that_is_not_accepted_is_one_line(
    espalier: Call, asked: Path, tmp_path: Path, call: str, text: str | None, words: str
) -> None:
    reply = tmp_path / "reply.md"
    if text is not None:
        reply.write_text(text)
    assert words in espalier("model", "answer", "scripted", call, reply).error_line()
    assert state(asked).calls["c3"].status is CallStatus.OPEN


@pytest.mark.slow
def test_a_session_pauses_now_or_on_conditions_and_resumes(espalier: Call, recorded: Path) -> None:
    espalier("session", "limits", "scripted", "--rounds", "9", "--plateau", "none")
    result = espalier("session", "pause", "scripted", "--above-usd", "5", "--before-round", "6")
    assert "before round 6" in result.out
    espalier("session", "pause", "scripted", "--above-tokens", "1000")
    assert state(recorded).pauses == Pauses(1000, 5.0, 6)
    assert "paused: lunch" in espalier("session", "pause", "scripted", "--reason", "lunch").out
    assert state(recorded).paused == "lunch"
    assert "already paused" in espalier("session", "pause", "scripted").error_line()
    assert espalier("session", "resume", "scripted").status == 0
    assert state(recorded).paused is None
    assert "not paused" in espalier("session", "resume", "scripted").error_line()
    espalier("session", "pause", "scripted", "--never")
    assert state(recorded).pauses == Pauses()


def test_quarantined_kernels_are_accepted_or_discarded(espalier: Call, recorded: Path) -> None:
    evidence = ("faster than the speed of light",)
    doubted = [e.KernelQuarantined(k, evidence, b.verification(), b.measurement(9.0)) for k in ("k2", "k3")]
    written(recorded, *doubted)
    assert "missing argument 'NOTE'" in espalier("kernel", "accept", "scripted", "k2").error_line()
    assert espalier("kernel", "accept", "scripted", "k2", "counted the bytes again").status == 0
    assert state(recorded).kernels["k2"].accepted == "counted the bytes again"
    assert espalier("kernel", "discard", "scripted", "k3").status == 0
    failure = state(recorded).kernels["k3"].failure
    assert failure is not None
    assert failure.reason == "faster than the speed of light"
    assert "not quarantined" in espalier("kernel", "accept", "scripted", "k3", "why not").error_line()


def test_ideas_are_ordered_and_get_kernels_and_a_writer(espalier: Call, recorded: Path) -> None:
    espalier("idea", "add", "scripted", "First thought of mine", "--attach", "k2", "--attach", "k3")
    espalier("idea", "add", "scripted", "Second and better one")
    first, second = list(state(recorded).ideas)[-2:]
    assert state(recorded).ideas[first].materials == ("k2", "k3")
    assert f"{second}, {first}" in espalier("idea", "order", "scripted", second).out
    espalier("idea", "attach", "scripted", second, "k4")
    assert state(recorded).ideas[second].materials == ("k4",)
    espalier("idea", "attach", "scripted", second, "k4", "--remove")
    assert state(recorded).ideas[second].materials == ()
    assert "is not attached to" in espalier("idea", "attach", "scripted", second, "k4", "--remove").error_line()
    espalier("idea", "edit", "scripted", second, "--writer", "playbook", "--predict", "2")
    found = state(recorded).ideas[second]
    assert (found.writer, found.text.predicted) == ("playbook", 2.0)


class TestFork:
    """A session's past as the beginning of another."""

    def test_a_fork_copies_the_past_and_counts_what_is_left_out(self, espalier: Call, recorded: Path, tmp_path: Path) -> None:
        before = (recorded / "journal.jsonl").read_bytes()
        preview = espalier("fork", "scripted", "--round", "1", "--preview", "--json").json()
        assert preview["session"] is None
        assert preview["left_behind"]["rounds"] == 2
        made = espalier("fork", "scripted", "--round", "1", "--into", tmp_path / "other")
        assert "the incumbent" in made.out
        forked = state(tmp_path / "other")
        assert forked.opened is not None
        assert forked.opened.forked_from.startswith("scripted after")
        assert set(forked.rounds) == {0, 1}
        assert all(k.stage.settled for k in forked.kernels.values())
        assert (recorded / "journal.jsonl").read_bytes() == before

    def test_every_blob_is_copied(self, espalier: Call, recorded: Path, tmp_path: Path) -> None:
        espalier("fork", "scripted", "--into", tmp_path / "other")
        blobs = Blobs(tmp_path / "other")
        assert all(blobs.text(k.source) for k in state(tmp_path / "other").kernels.values())

    def test_payloads_that_the_original_lacks_are_named(self, espalier: Call, recorded: Path, tmp_path: Path) -> None:
        lost, damaged, *_ = sorted((recorded / "blobs").iterdir())
        lost.unlink()
        damaged.write_bytes(b"other")
        made = espalier("fork", "scripted", "--into", tmp_path / "other")
        assert "warning: 2 payloads (code, logs or replies) missing or damaged in scripted" in made.out
        assert lost.name[:12] in made.out
        found = espalier("fork", "scripted", "--into", tmp_path / "third", "--json").json()
        assert sorted(found["missing"]) == [lost.name, damaged.name]

    def test_recall_names_the_recorded_session(self, espalier: Call, asked: Path, tmp_path: Path) -> None:
        espalier("fork", "scripted", "--round", "0", "--recall", "--into", tmp_path / "other")
        opened = state(tmp_path / "other").opened
        assert opened is not None
        assert opened.settings.recall == str(asked)

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("--round", "7"), "unknown round 7: the last one that ended is round 3"),
            (("--round", "1", "--event", "3"), "not both"),
            (("--event", "0"), "0 is not in the range"),
            (("--event", "-1"), "-1 is not in the range"),
            (("--event", "100000"), "unknown event 100000 in scripted: its journal has "),
            (("--event", "100000", "--preview"), "unknown event 100000 in scripted: its journal has "),
        ],
    )
    def test_an_unknown_point_is_one_line(self, espalier: Call, recorded: Path, arguments: tuple[str, ...], words: str) -> None:
        assert words in espalier("fork", "scripted", *arguments).error_line()
        assert list(recorded.parent.iterdir()) == [recorded], "nothing is made"

    def test_a_forked_session_can_be_steered(self, espalier: Call, recorded: Path, tmp_path: Path) -> None:
        espalier("fork", "scripted", "--round", "1", "--into", tmp_path / "other")
        espalier("session", "note", tmp_path / "other", "another way from here")
        assert state(tmp_path / "other").notes[-1].text == "another way from here"
        assert state(tmp_path / "other").kernels["k2"].stage is Stage.MEASURED


def test_predictions_are_compared_with_measurements(espalier: Call, recorded: Path) -> None:
    found = espalier("idea", "predictions", "scripted", "--json").json()
    assert found["predictions"], "the scripted ideas predict 1.5 each"
    (author,) = found["authors"]
    assert (author["author"], author["count"]) == ("script", len(found["predictions"]))
    result = espalier("idea", "predictions", "scripted").out
    assert "predicted 1.50×" in result
    assert "script: right direction in" in result


def test_an_open_call_is_cancelled_once(espalier: Call, asked: Path) -> None:
    result = espalier("model", "cancel", "scripted", "c3", "--reason", "no time")
    assert result.status == 0
    assert "c3 cancelled by hand: no time" in result.out
    assert "next: espalier open scripted" in result.out
    found = state(asked).calls["c3"]
    assert (found.status, found.reason, found.cancelled) == (CallStatus.FAILED, "cancelled by hand: no time", True)
    assert "c3 has already failed (cancelled by hand: no time)" in espalier("model", "cancel", "scripted", "c3").error_line()
    assert "failed" in espalier("model", "prompts", "scripted").out.splitlines()[2]


@pytest.mark.parametrize(
    ("call", "words"), [("c9", "unknown call 'c9'"), ("c1", "c1 has already been answered"), ("x3", "unknown call 'x3'")]
)
def test_a_call_that_is_not_open_cannot_be_cancelled(espalier: Call, asked: Path, call: str, words: str) -> None:
    assert words in espalier("model", "cancel", "scripted", call).error_line()
    assert state(asked).calls["c3"].status is CallStatus.OPEN


@pytest.mark.slow
def test_a_round_with_a_cancelled_prompt_stops_then_repeats_the_call(espalier: Call, home: Path, pretended: None) -> None:
    espalier("run", "softmax", "--source", "paste", "--rounds", "1", "--session", home / "sessions" / "mine")
    folder = home / "sessions" / "mine"
    assert [(call.id, str(call.work), call.status) for call in state(folder).calls.values()] == [
        ("c1", "propose:1", CallStatus.OPEN)
    ]
    assert espalier("model", "cancel", "mine", "c1").status == 0
    result = espalier("open", "mine", "--headless")
    assert result.status == AWAITING
    words = "c1 was cancelled by hand; `espalier idea add mine` adds an idea of yours, `espalier open mine` repeats the call"
    assert result.err.splitlines()[-1] == f"espalier: proposing ideas for round 1 failed: {words}"
    assert list(state(folder).calls) == ["c1"], "opening it is not asking again"
    assert espalier("open", "mine", "--headless").status == AWAITING
    assert [(call.id, str(call.work)) for call in state(folder).calls.values()] == [("c1", "propose:1"), ("c2", "propose:1")]


def test_models_servers_and_options_of_a_session_change(espalier: Call, asked: Path) -> None:
    given = [
        "--proposer", "openai:gpt-5=2,vllm:qwen=1", "--server", "vllm=http://gpu1:8000/v1,key=GATEWAY_KEY",
        "--effort", "code=high",
        "--max-output", "12000", "--patience", "2h", "--concurrency", "8",
    ]  # fmt: skip
    result = espalier("model", "set", "scripted", *given)
    assert result.status == 0, result.err
    models = state(asked).models
    assert (models.source, models.patience, models.concurrency) == ("openai:gpt-5=2,vllm:qwen=1", 7200.0, 8)
    assert models.server("vllm:qwen") == ModelServer("vllm", "http://gpu1:8000/v1", "GATEWAY_KEY")
    assert models.options_for("code") == CallOptions("high", max_output=12_000)
    assert models.options_for("ideas") == CallOptions(max_output=12_000)
    shown = espalier("model", "set", "scripted").out
    assert "vllm at http://gpu1:8000/v1, key from GATEWAY_KEY" in shown
    assert espalier("model", "set", "scripted", "--server", "vllm=", "--effort", "code=default").status == 0
    assert state(asked).models.servers == ()
    assert state(asked).models.options_for("code").effort == ""


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--server", "vllm", "is not a server"),
        ("--server", "vllm=http://h/v1,key=sk-0123456789abcdef0123", "names the environment variable"),
        ("--server", "mistral=http://h/v1", "unknown proposer 'mistral'"),
        ("--server", "anthropic=http://h,api=chat", "is for servers with OpenAI's protocols"),
        ("--effort", "huge", "unknown value 'huge'"),
        ("--effort", "poetry=high", "unknown value 'poetry'"),
        ("--temperature", "=1", "unknown value ''"),
        ("--temperature", "3", "3"),
        ("--patience", "soon", "not a duration"),
        ("--proposer", "nobody", "unknown proposer"),
        ("--proposer", "command:/nowhere/agent", "is not installed"),
    ],
)
def test_settings_of_models_that_make_no_sense_are_refused(
    espalier: Call, asked: Path, option: str, value: str, words: str
) -> None:  # fmt: skip
    result = espalier("model", "set", "scripted", option, value)
    assert result.status == BAD_INPUT
    assert words in result.error_line()
    assert "sk-0123456789" not in result.err

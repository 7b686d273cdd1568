"""What a headless search prints about a model that does not answer: each wait once, each failure once, in one sentence."""

from __future__ import annotations

import re

import pytest
from support.model_servers import OPENAI_KEY, Fails, Limited, OpenAIServer, Says, Script
from support.program import Call, CommandResult

from engine.cli.exit_codes import AWAITING

pytestmark = pytest.mark.usefixtures("home", "pretended")


def searched(espalier: Call, monkeypatch: pytest.MonkeyPatch, script: Script, *more: object) -> CommandResult:
    monkeypatch.setenv("OPENAI_API_KEY", OPENAI_KEY)
    with OpenAIServer(script, key=OPENAI_KEY) as server:
        return espalier(
            "run", "softmax", "--headless", "--device", "cpu", "--source", "openai:some-model", "--rounds", 1,
            "--server", f"openai={server.url},key=OPENAI_API_KEY", *more,
        )  # fmt: skip


@pytest.mark.slow
def test_waits_are_printed_and_the_failure_once(espalier: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    script = [Limited(after=1), Fails(400, "The prompt is bad.")]
    result = searched(espalier, monkeypatch, script)
    assert result.status == AWAITING
    wait = "round 1 openai:some-model: rate limit: Rate limit reached for requests.; retrying in 1 s, giving up in 1:00:00"
    assert result.err.count(wait) == 1
    assert result.err.count("The prompt is bad.") == 1
    *_, failure, last = result.err.splitlines()
    assert failure.endswith("c1 failed: openai:some-model: the provider rejected the request: The prompt is bad. (2 attempts)")
    asked = "proposing ideas for round 1"
    assert re.fullmatch(rf"espalier: {asked} failed, see c1 above; resume with `espalier open \S+` once fixed", last)


@pytest.mark.slow
def test_with_quiet_the_last_line_has_the_reason(espalier: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    result = searched(espalier, monkeypatch, [Fails(400, "The prompt is bad.")], "-q")
    (line,) = result.err.splitlines()
    assert line.startswith(
        "espalier: proposing ideas for round 1 failed: openai:some-model: the provider rejected the request: "
        "The prompt is bad.; "
    )


@pytest.mark.slow
def test_a_repeated_call_says_so_after_its_failure(espalier: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    script = [Says("one two", unended=True), Fails(400, "The prompt is bad.")]
    lines = searched(espalier, monkeypatch, script).err.splitlines()
    (at,) = (n for n, line in enumerate(lines) if line.endswith("c1 failed: openai:some-model: the reply was cut off"))
    assert "round 1 repeating c1 in 1 s, giving up in 1:00:00" in lines[at + 1]


@pytest.mark.slow
def test_an_unusable_reply_is_one_line_a_call(espalier: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    result = searched(espalier, monkeypatch, [Says("no JSON")])
    calls = re.findall(r"(c\d+) failed: the reply has no JSON object", result.err)
    assert calls == ["c1", "c2", "c3"]
    assert result.err.count("the reply has no JSON object") == 3
    assert "proposing ideas for round 1 failed, see c3 above" in result.err.splitlines()[-1]

"""The same search through each protocol: from the same replies the same tree grows."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import sessions
from support.agent import reply
from support.model_servers import GEMINI_KEY, OPENAI_KEY, GeminiServer, ModelServer, OpenAIServer
from support.model_turns import Asked, Says, Turn
from support.more_model_servers import ANTHROPIC_KEY, MessagesServer, ResponsesServer

from engine.domain.settings import CallOptions, Limits, ModelSettings
from engine.domain.settings import ModelServer as ModelServerSetting
from engine.domain.state import SessionState
from engine.ideas.factory import open_ideas, open_listed
from engine.ideas.models.keys import HIDDEN
from engine.ideas.models.model import Model
from engine.journal.blobs import Blobs
from engine.session.live import LiveSession
from engine.session.outcome import SessionEnded, Until
from engine.session.scheduler import Lanes

SERVERS: dict[str, tuple[type[ModelServer], str, str, str]] = {
    "responses": (ResponsesServer, "openai", "OPENAI_API_KEY", OPENAI_KEY),
    "chat": (OpenAIServer, "vllm", "VLLM_API_KEY", OPENAI_KEY),
    "messages": (MessagesServer, "anthropic", "ANTHROPIC_API_KEY", ANTHROPIC_KEY),
    "gemini": (GeminiServer, "gemini", "GEMINI_API_KEY", GEMINI_KEY),
}
KERNELS = 24


def answer(asked: Asked) -> Turn:
    """A reply that depends on the prompt alone, without the name of the model that it is sent to."""
    return reply(replace(asked, user=re.sub(r"\b\w+:some-model\b", "MODEL", asked.user)))


def _searched(
    folder: Path,
    protocol: str,
    monkeypatch: pytest.MonkeyPatch,
    script: Callable[[Asked], Turn] = answer,
    kernels: int = KERNELS,
) -> tuple[SessionState, int]:
    server_type, provider, variable, key = SERVERS[protocol]
    monkeypatch.setenv(variable, key)
    name = f"{provider}:some-model"
    with server_type(script, key=key) as server:
        setting = ModelServerSetting(provider, server.url, variable, "responses" if protocol == "responses" else "")
        limits = Limits(rounds=20, kernels=kernels, plateau=None, light=None, tokens=10_000_000)
        opened = sessions.opened(
            source=name, ideas=3, branch=2, limits=limits, servers=(setting,), options={"code": CallOptions("high")},
        )  # fmt: skip

        async def search() -> SessionState:
            def opener(asked: str, models: ModelSettings) -> Model:
                return open_listed(asked, models)

            ideas = open_ideas(opened.settings, playbook=sessions.TREE, open_model=opener, tariff_of=lambda _: None)
            ports = sessions.ports(folder, ideas, lanes=Lanes(builds=1, models=1))
            async with LiveSession.create(folder, opened, ports) as live:
                outcome = await live.run(Until.IDLE)
                assert isinstance(outcome, SessionEnded), outcome
                return live.state

        state: SessionState = sessions.run(search)
        return state, len(server.requests)


@pytest.mark.slow
def test_the_same_replies_grow_the_same_tree_through_each_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {protocol: _searched(tmp_path / protocol, protocol, monkeypatch) for protocol in SERVERS}
    state, asked = found["responses"]
    assert len(state.kernels) == KERNELS
    assert any(kernel.attempt for kernel in state.kernels.values()), "some kernels were repaired"
    for protocol, (other, requests) in found.items():
        assert sessions.tree(other) == sessions.tree(state), protocol
        assert requests == asked, protocol
        assert all(call.usage.total and not call.estimated for call in other.calls.values()), protocol


@pytest.mark.slow
@pytest.mark.parametrize("protocol", SERVERS)
def test_a_key_in_a_reply_is_kept_nowhere(tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers send a reply in four pieces: the key lies across two of them."""
    *_, key = SERVERS[protocol]

    def echo(asked: Asked) -> Turn:
        turn = answer(asked)
        return replace(turn, text=_across(turn.text, key)) if isinstance(turn, Says) else turn

    folder = tmp_path / "s"
    state, _ = _searched(folder, protocol, monkeypatch, echo, kernels=3)
    kept = "".join(path.read_text("utf-8", "replace") for path in folder.rglob("*") if path.is_file())
    assert key not in kept
    assert state.calls
    assert all(HIDDEN in Blobs(folder).text(call.reply) for call in state.calls.values() if call.reply)


def _across(text: str, key: str) -> str:
    """The reply with keys after it, so many that borders between its four pieces fall into some."""
    return f"{text}\n" + "".join(f"// {key}\n" for _ in range(len(text) // len(key) + 2))

"""The same search through each protocol: from the same replies the same tree grows."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support import sessions
from support.agent import reply
from support.model_servers import GEMINI_KEY, OPENAI_KEY, GeminiServer, ModelServer, OpenAIServer
from support.model_turns import Asked, Turn
from support.more_model_servers import ANTHROPIC_KEY, MessagesServer, ResponsesServer

from engine.domain.settings import CallOptions, Limits, ModelSettings
from engine.domain.settings import ModelServer as ModelServerSetting
from engine.domain.state import SessionState
from engine.ideas.factory import open_ideas, open_listed
from engine.ideas.models.model import Model
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


def _searched(folder: Path, protocol: str, monkeypatch: pytest.MonkeyPatch) -> tuple[SessionState, int]:
    server_type, provider, variable, key = SERVERS[protocol]
    monkeypatch.setenv(variable, key)
    name = f"{provider}:some-model"
    with server_type(answer, key=key) as server:
        setting = ModelServerSetting(provider, server.url, variable, "responses" if protocol == "responses" else "")
        limits = Limits(rounds=20, kernels=KERNELS, plateau=None, light=None, tokens=10_000_000)
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


def test_the_same_replies_grow_the_same_tree_through_each_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {protocol: _searched(tmp_path / protocol, protocol, monkeypatch) for protocol in SERVERS}
    state, asked = found["responses"]
    assert len(state.kernels) == KERNELS
    assert any(kernel.attempt for kernel in state.kernels.values()), "some kernels were repaired"
    for protocol, (other, requests) in found.items():
        assert sessions.tree(other) == sessions.tree(state), protocol
        assert requests == asked, protocol
        assert all(call.usage.total and not call.estimated for call in other.calls.values()), protocol

"""Hides the user's keys, settings and keyring from these tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.model_servers import GEMINI_KEY, OPENAI_KEY
from support.more_model_servers import ANTHROPIC_KEY

from engine.ideas.models.keys import held_variables
from engine.ideas.models.providers import PROVIDERS


@pytest.fixture(autouse=True)
def _world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    urls = (provider.url_variable for provider in PROVIDERS.values() if provider.url_variable)
    for variable in (*urls, *held_variables()):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", OPENAI_KEY)
    monkeypatch.setenv("GEMINI_API_KEY", GEMINI_KEY)
    monkeypatch.setenv("ANTHROPIC_API_KEY", ANTHROPIC_KEY)
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(sys.modules, "keyring", None)

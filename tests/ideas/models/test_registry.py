"""Model names, and limits on concurrent requests."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from support.model_servers import OpenAIServer, Says
from support.program import ROOT

from engine.domain.errors import ProposerError
from engine.domain.settings import ModelServer
from engine.ideas.models.model import Prompt
from engine.ideas.models.providers import PROVIDERS, endpoint
from engine.ideas.models.registry import ModelSpec, ProviderLimits, open_model, parse_spec
from engine.ideas.models.retry_policy import RetryPolicy


@pytest.mark.parametrize(
    ("spec", "provider", "name"),
    [
        ("openai:gpt-5", "openai", "gpt-5"),
        ("openai:meta-llama/Llama-3.3-70B:free", "openai", "meta-llama/Llama-3.3-70B:free"),
        ("gemini:gemini-2.5-pro", "gemini", "gemini-2.5-pro"),
        ("command:llm -m 'a b'", "command", "llm -m 'a b'"),
    ],
)
def test_a_model_name_is_split_into_provider_and_name(spec: str, provider: str, name: str) -> None:
    assert parse_spec(spec) == ModelSpec(provider, name)
    assert str(parse_spec(spec)) == spec


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("", "unknown model"),
        ("gpt-5", "write openai:MODEL"),
        ("claude:opus", "unknown model 'claude:opus'"),
        ("OPENAI:gpt-5", "unknown model"),
        ("openai:", "no model name: write openai:NAME"),
        ("gemini:two words", "must not contain spaces"),
        ("openai:gpt\n5", "must not contain spaces"),
        ("openai:gpt\x1b5", "must not contain spaces"),
        ("command:", "names no command"),
        ("command:agent 'x", "no closing quotation"),
    ],
)
def test_an_invalid_model_name_is_refused_in_one_line(spec: str, words: str) -> None:
    with pytest.raises(ProposerError) as caught:
        parse_spec(spec)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("url", ["localhost:8000/v1", "ftp://host/v1", "http://", "http://host:port/v1", "http://[::1/v1"])
def test_invalid_base_urls_are_rejected(url: str) -> None:
    with pytest.raises(ProposerError, match="invalid base URL"):
        open_model("openai:m", server=ModelServer("openai", url))


def test_a_command_does_not_take_a_base_url() -> None:
    with pytest.raises(ProposerError, match="does not take a server"):
        open_model("command:cat", server=ModelServer("command:cat", "http://localhost/v1"))


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 2])
def test_requests_share_the_limit_of_their_provider(width: int) -> None:
    async def body() -> None:
        models = [server.open(f"openai:m{number}", limits=limits) for number in range(3)]
        await asyncio.gather(*(model.ask(Prompt("", "x"), lambda _: None) for model in models for _ in range(4)))
        for model in models:
            await model.close()

    limits = ProviderLimits({"openai": width})
    with OpenAIServer([Says("some words to say")]) as server:
        asyncio.run(body())
    assert len(server.requests) == 12
    assert server.most_at_once <= width


def test_a_cancelled_request_frees_its_slot() -> None:
    async def body() -> str:
        first = open_model("command:sleep 60", limits=limits)
        call = asyncio.create_task(first.ask(Prompt("", "x"), lambda _: None))
        await asyncio.sleep(0.05)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        return (
            await open_model("command:echo next", limits=limits, policy=RetryPolicy(seconds=5)).ask(Prompt("", "x"), str)
        ).text

    limits = ProviderLimits(default=1)
    assert asyncio.run(body()) == "next\n"


@pytest.mark.slow
def test_no_sdk_is_imported_before_a_model_of_its_kind_is_opened() -> None:
    code = (
        "import sys; import engine.ideas.models.registry as r, engine.ideas.models.prices; r.parse_spec('openai:m'); "
        "r.parse_spec('gemini:m'); r.open_model('command:cat'); "
        "print([name for name in ('openai', 'anthropic', 'google.genai', 'httpx2', 'keyring', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


AZURE = "https://mine.openai.azure.com"


@pytest.mark.parametrize(
    ("provider", "url", "variable", "expected"),
    [
        ("azure", "", AZURE, f"{AZURE}/openai/v1"),
        ("azure", "", f"{AZURE}/openai/v1/", f"{AZURE}/openai/v1"),
        ("azure", AZURE, "", f"{AZURE}/openai/v1"),
        ("azure", f"{AZURE}/", "", f"{AZURE}/openai/v1"),
        ("azure", f"{AZURE}/openai/v1", "", f"{AZURE}/openai/v1"),
        ("azure", "https://gateway.example/v1", "", "https://gateway.example/v1"),
        ("openrouter", "", "", "https://openrouter.ai/api/v1"),
        ("vllm", "", "", "http://localhost:8000/v1"),
        ("vllm", "http://gpu1:9000/v1", "", "http://gpu1:9000/v1"),
        ("ollama", "", "", "http://localhost:11434/v1"),
        ("vertex", "", "", None),
    ],
)
def test_where_a_preset_asks(
    provider: str, url: str, variable: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    preset = PROVIDERS[provider]
    if variable:
        monkeypatch.setenv(preset.url_variable, variable)
    assert endpoint(preset, ModelServer(provider, url) if url else None).url == expected

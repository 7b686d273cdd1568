"""Keys never reach an error, a log, a ``repr``, the screen, or a user's command."""

from __future__ import annotations

import asyncio
import copy
import logging
import pickle
import sys
import traceback
from types import ModuleType

import pytest
from support.model_servers import GEMINI_KEY, OPENAI_KEY, Fails, FailsInside, GeminiServer, ModelServer, OpenAIServer, Refuses

from engine.domain.errors import ProposerError
from engine.ideas.models import keys
from engine.ideas.models.command import CommandModel
from engine.ideas.models.keys import Secret, find_key, require_key, scrub
from engine.ideas.models.model import ModelError, Prompt, Trouble
from engine.ideas.models.registry import open_model
from engine.ideas.models.retry_policy import RetryPolicy

QUICK = RetryPolicy(attempts=2, first_wait=0.01, seconds=5.0)
SERVERS: dict[str, tuple[type[ModelServer], str]] = {"openai": (OpenAIServer, OPENAI_KEY), "gemini": (GeminiServer, GEMINI_KEY)}


def everything(error: BaseException) -> str:
    """All text of an error, including chained ones."""
    texts: list[str] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None:
            texts += [str(one), repr(one), repr(vars(one)), *traceback.format_exception(one)]
            waiting += [one.__cause__, one.__context__]
    return "\n".join(texts)


@pytest.mark.parametrize("kind", SERVERS)
def test_a_key_in_a_provider_error_is_removed(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server_type, key = SERVERS[kind]
    echo = f"we received the key {key} from you"
    turns = [
        Fails(401, echo),
        Fails(400, echo),
        Fails(404, echo),
        Fails(429, echo),
        Fails(500, echo),
        FailsInside(echo),
        Refuses(),
    ]
    shown: list[str] = []

    async def body() -> None:
        for turn in turns:
            with server_type([turn]) as server:
                model = open_model(f"{kind}:m", base_url=server.url, policy=QUICK)
                shown.extend([repr(model), str(vars(model))])
                try:
                    shown.append(repr(await model.ask(Prompt("", "x"), shown.append)))
                except ModelError as error:
                    shown.append(everything(error))
                await model.close()
            assert server.requests[0].key == key

    asyncio.run(body())
    assert len(shown) > 2 * len(turns)
    assert key not in "\n".join(shown)
    assert key not in caplog.text
    assert keys.HIDDEN in "\n".join(shown)


@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_error_about_a_wrong_key_contains_no_key(kind: str) -> None:
    server_type, key = SERVERS[kind]

    async def body() -> None:
        with server_type(key="the right one") as server:
            model = open_model(f"{kind}:m", base_url=server.url, policy=QUICK)
            with pytest.raises(ModelError) as caught:
                await model.ask(Prompt("", "x"), lambda _: None)
            await model.close()
        assert caught.value.trouble is Trouble.KEY
        assert key not in everything(caught.value)

    asyncio.run(body())


def test_a_secret_is_never_displayed() -> None:
    secret = Secret(OPENAI_KEY)
    assert OPENAI_KEY not in f"{secret} {secret!r} {[secret]} {secret!s:>5}"
    for write in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError):
            write(secret)
    assert secret.reveal() == OPENAI_KEY


def test_scrubbing() -> None:
    given = Secret("a-key-of-another-shape")
    text = f"{OPENAI_KEY}, {GEMINI_KEY}, a-key-of-another-shape, sk-proj-****************abcd, sk-ant-api03-abcdefghijkl"
    assert scrub(text, (given,)) == ", ".join([keys.HIDDEN] * 5)
    assert scrub("none of the task-runners is EMPTY", (Secret("EMPTY"), Secret("none"))) == "none of the task-runners is EMPTY"


@pytest.mark.parametrize(("provider", "variable"), [("openai", "OPENAI_API_KEY"), ("gemini", "GEMINI_API_KEY")])
def test_a_missing_key_names_the_variable_to_set(provider: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "  ")
    with pytest.raises(ModelError, match=f"set {variable}") as caught:
        open_model(f"{provider}:m")
    assert caught.value.trouble is Trouble.KEY


def test_where_keys_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f" {OPENAI_KEY}\n")
    assert require_key("openai").reveal() == OPENAI_KEY
    monkeypatch.delenv("GEMINI_API_KEY")
    assert find_key("gemini") is None
    monkeypatch.setenv("GOOGLE_API_KEY", "from-the-other-variable")
    assert require_key("gemini").reveal() == "from-the-other-variable"


@pytest.mark.parametrize("works", [True, False])
def test_the_platform_keyring_is_used_last(works: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class KeyringError(Exception):
        pass

    def get_password(service: str, user: str) -> str:
        if not works:
            raise KeyringError
        return f"{service}-{user}-from-the-keyring"

    ring, errors = ModuleType("keyring"), ModuleType("keyring.errors")
    vars(ring).update(get_password=get_password, errors=errors)
    vars(errors).update(KeyringError=KeyringError)
    monkeypatch.setitem(sys.modules, "keyring", ring)
    monkeypatch.setitem(sys.modules, "keyring.errors", errors)
    assert require_key("openai").reveal() == OPENAI_KEY
    monkeypatch.delenv("OPENAI_API_KEY")
    found = find_key("openai")
    assert (found.reveal() if found else None) == ("espalier-openai-from-the-keyring" if works else None)


def environment_of(command: str) -> str:
    return asyncio.run(CommandModel(command).ask(Prompt("", "x"), lambda _: None)).text


def test_a_command_receives_only_named_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "AIzaSecond0123456789abcdef")
    monkeypatch.setenv("THE_AGENTS_OWN_KEY", "its own")
    seen = environment_of("env")
    assert "THE_AGENTS_OWN_KEY=its own\n" in seen
    for key in (OPENAI_KEY, GEMINI_KEY, "AIzaSecond0123456789abcdef"):
        assert key not in seen
    granted = environment_of("OPENAI_API_KEY=$OPENAI_API_KEY env")
    assert f"OPENAI_API_KEY={OPENAI_KEY}\n" in granted
    assert GEMINI_KEY not in granted
    assert GEMINI_KEY in environment_of("OPENAI_API_KEY=$OPENAI_API_KEY GEMINI_API_KEY=${GEMINI_API_KEY} env")


def test_a_command_that_prints_a_key_on_standard_error_is_not_quoted() -> None:
    model = CommandModel("OPENAI_API_KEY=$OPENAI_API_KEY sh -c 'echo bad key $OPENAI_API_KEY >&2; exit 1'")
    with pytest.raises(ModelError, match="bad key") as caught:
        asyncio.run(model.ask(Prompt("", "x"), lambda _: None))
    assert OPENAI_KEY not in everything(caught.value)


def test_a_key_given_as_a_model_name_is_not_recorded() -> None:
    with pytest.raises(ProposerError) as caught:
        open_model(f"openai:{OPENAI_KEY}")
    assert OPENAI_KEY not in everything(caught.value)

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
from support.more_model_servers import ANTHROPIC_KEY, MessagesServer, ResponsesServer

from engine.domain.errors import ProposerError
from engine.domain.settings import ModelServer as ModelServerSetting
from engine.ideas.models import keys
from engine.ideas.models.command import CommandModel
from engine.ideas.models.keys import Secret, endpoint_key, find_key, scrub
from engine.ideas.models.model import ModelError, Prompt, Trouble
from engine.ideas.models.providers import PROVIDERS, Protocol, endpoint
from engine.ideas.models.registry import open_model
from engine.ideas.models.retry_policy import RetryPolicy

QUICK = RetryPolicy(attempts=2, first_wait=0.01, seconds=5.0)
SERVERS: dict[str, tuple[type[ModelServer], str]] = {
    "openai": (OpenAIServer, OPENAI_KEY),
    "responses": (ResponsesServer, OPENAI_KEY),
    "anthropic": (MessagesServer, ANTHROPIC_KEY),
    "gemini": (GeminiServer, GEMINI_KEY),
}
VARIABLES = {
    "openai": "OPENAI_API_KEY", "responses": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY", "gemini": "GEMINI_API_KEY",
}  # fmt: skip
API = {"responses": "responses"}


def name_of(kind: str) -> str:
    return f"{'openai' if kind == 'responses' else kind}:m"


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


@pytest.mark.slow
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
                model = server.open(name_of(kind), key=VARIABLES[kind], api=API.get(kind, ""), policy=QUICK)
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
            model = server.open(name_of(kind), key=VARIABLES[kind], api=API.get(kind, ""), policy=QUICK)
            with pytest.raises(ModelError) as caught:
                await model.ask(Prompt("", "x"), lambda _: None)
            await model.close()
        assert caught.value.trouble is Trouble.KEY
        assert key not in everything(caught.value)

    asyncio.run(body())


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize(("named", "with_key"), [(True, False), (False, True)], ids=["not allowed", "no key named"])
def test_a_server_gets_no_key_that_is_not_named_with_it(
    kind: str, named: bool, with_key: bool, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    variable = VARIABLES[kind] if named else ""
    monkeypatch.setenv("OPENAI_ORG_ID", "the-users-organisation")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Gateway-Key: the-users-gateway-key")
    server_type, key = SERVERS[kind]

    async def body() -> None:
        with server_type() as server:
            model = server.open(name_of(kind), key=variable, api=API.get(kind, ""), with_key=with_key, policy=QUICK)
            assert (await model.ask(Prompt("", "x"), lambda _: None)).text == "ok"
            await model.close()
        (request,) = server.requests
        assert request.key == "none"
        headers = str(request.headers)
        assert key not in headers
        assert "the-users" not in headers

    asyncio.run(body())


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_to_another_server_is_not_followed(kind: str, status: int) -> None:
    server_type, key = SERVERS[kind]

    async def body() -> None:
        with server_type() as other:
            away = Fails(status, "moved", headers=(("Location", f"{other.url}/chat/completions"),))
            with server_type([away]) as server:
                model = server.open(name_of(kind), key=VARIABLES[kind], api=API.get(kind, ""), policy=QUICK)
                with pytest.raises(ModelError, match=f"redirects to {other.root}: correct the base URL") as caught:
                    await model.ask(Prompt("", "x"), lambda _: None)
                await model.close()
        assert caught.value.trouble is Trouble.REQUEST
        assert [request.key for request in server.requests] == [key]
        assert other.requests == []

    asyncio.run(body())


def test_a_redirect_on_the_same_server_is_followed() -> None:
    async def body() -> None:
        with OpenAIServer([Fails(307, "moved", headers=(("Location", "/v1/chat/completions"),)), "ok"]) as server:
            model = server.open("openai:m", policy=QUICK)
            assert (await model.ask(Prompt("", "x"), lambda _: None)).text == "ok"
            await model.close()
        assert len(server.requests) == 2

    asyncio.run(body())


def test_a_secret_is_never_displayed() -> None:
    secret = Secret(OPENAI_KEY)
    assert OPENAI_KEY not in f"{secret} {secret!r} {[secret]} {secret!s:>5}"
    for write in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError):
            write(secret)
    assert secret.reveal() == OPENAI_KEY


def test_known_keys_are_scrubbed_from_text() -> None:
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


def own_key(provider: str) -> Secret:
    found = endpoint_key(endpoint(PROVIDERS[provider], None))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "url", "key", "variables"),
    [
        ("openai", "", "", ("OPENAI_API_KEY",)),
        ("openai", "https://eu.api.openai.com/v1", "", ("OPENAI_API_KEY",)),
        ("openai", "https://api.openai.com.evil.example/v1", "", ()),
        ("openai", "http://api.openai.com/v1", "", ()),
        ("openai", "https://gateway.example/v1", "", ()),
        ("openai", "https://gateway.example/v1", "GATEWAY_KEY", ("GATEWAY_KEY",)),
        ("openai", "https://user@api.openai.com@evil.example/v1", "", ()),
        ("azure", "https://mine.openai.azure.com/openai/v1", "", ("AZURE_OPENAI_API_KEY",)),
        ("openrouter", "", "", ("OPENROUTER_API_KEY",)),
        ("openrouter", "https://evil.example/api/v1", "", ()),
        ("vllm", "http://gpu1:8000/v1", "", ()),
        ("anthropic", "https://api.anthropic.com", "", ("ANTHROPIC_API_KEY",)),
        ("gemini", "http://localhost:9", "", ()),
    ],
)
def test_a_key_goes_only_to_the_hosts_that_it_belongs_to(name: str, url: str, key: str, variables: tuple[str, ...]) -> None:
    server = ModelServerSetting(name, url, key) if url or key else None
    assert endpoint(PROVIDERS[name], server).variables == variables


def test_a_server_that_the_environment_names_gets_the_key_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "https://gateway.example/v1/")
    place = endpoint(PROVIDERS["openai"], None)
    assert (place.url, place.variables, place.protocol) == ("https://gateway.example/v1", ("OPENAI_API_KEY",), Protocol.CHAT)


def test_the_variable_of_a_named_key_is_a_secret_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_GATEWAY_KEY", "gw-0123456789")
    endpoint_key(endpoint(PROVIDERS["openai"], ModelServerSetting("openai", "https://gateway.example/v1", "MY_GATEWAY_KEY")))
    assert scrub("the key is gw-0123456789") == f"the key is {keys.HIDDEN}"
    assert "gw-0123456789" not in environment_of("env")


def test_where_keys_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f" {OPENAI_KEY}\n")
    assert own_key("openai").reveal() == OPENAI_KEY
    monkeypatch.delenv("GEMINI_API_KEY")
    assert find_key("gemini", PROVIDERS["gemini"].keys) is None
    monkeypatch.setenv("GOOGLE_API_KEY", "from-the-other-variable")
    assert own_key("gemini").reveal() == "from-the-other-variable"


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
    assert own_key("openai").reveal() == OPENAI_KEY
    monkeypatch.delenv("OPENAI_API_KEY")
    found = find_key("openai", ("OPENAI_API_KEY",))
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

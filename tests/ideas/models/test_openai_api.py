"""Specific to OpenAI: options that compatible servers lack, error codes, the base URL."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest
from support.model_servers import OPENAI_KEY, Fails, FailsInside, OpenAIServer, Says

from engine.domain.model import Usage
from engine.ideas.models.model import Finish, Model, ModelError, Prompt, Reply, Trouble
from engine.ideas.models.openai_model import is_closed
from engine.ideas.models.registry import open_model
from engine.ideas.models.retry_policy import RetryPolicy

QUICK = RetryPolicy(attempts=3, first_wait=0.01, longest_wait=0.5, silence=5.0, seconds=10.0)
OPEN = {"type": "object", "properties": {"title": {"type": "string"}}}
CLOSED = {**OPEN, "required": ["title"], "additionalProperties": False}
OPTIONS = ("response_format", "max_completion_tokens", "stream_options")


def ignore(piece: str) -> None:
    pass


async def ask_all(model: Model, *prompts: Prompt) -> list[Reply]:
    try:
        return [await model.ask(prompt, ignore) for prompt in prompts]
    finally:
        await model.close()


def outcome(server: OpenAIServer, prompt: Prompt = Prompt("", "x")) -> Reply | ModelError:  # noqa: B008
    async def body() -> Reply | ModelError:
        try:
            return (await ask_all(server.open("openai:m", key="OPENAI_API_KEY", policy=QUICK), prompt))[0]
        except ModelError as error:
            return error

    return asyncio.run(body())


def test_a_schema_is_strict_only_if_it_is_closed() -> None:
    with OpenAIServer(["{}"]) as server:
        asyncio.run(ask_all(server.open("openai:m"), Prompt("", "x", OPEN), Prompt("", "x", CLOSED)))
    loose, strict = (request.body["response_format"]["json_schema"] for request in server.requests)
    assert (loose["strict"], strict["strict"]) == (False, True)
    assert not is_closed({"type": "array", "items": OPEN})
    assert is_closed({"type": "array", "items": CLOSED})


@pytest.mark.parametrize(
    "refused", [names for size in range(1, 4) for names in itertools.combinations(OPTIONS, size)], ids="+".join
)
def test_unknown_options_are_omitted_from_later_requests(refused: tuple[str, ...]) -> None:
    with OpenAIServer(["{}"], refuses=refused) as server:
        model = server.open("openai:m", key="OPENAI_API_KEY", policy=QUICK)
        replies = asyncio.run(ask_all(model, Prompt("", "One idea.", CLOSED, 99), Prompt("", "One more.", CLOSED, 99)))
    answered = [request for request in server.requests if not request.options & set(refused)]
    assert len(server.requests) == len(refused) + 2
    assert len(answered) == 2
    assert {reply.counted for reply in replies} == {"stream_options" not in refused}
    for request in answered:
        assert request.max_output == 99
        assert json.dumps(CLOSED) in (request.user if "response_format" in refused else json.dumps(request.schema))


@pytest.mark.parametrize(
    "message",
    [
        "'response_format.type' must be one of 'text' or 'json_object'",
        "This response_format type is unavailable now",
        "Failed to compile the guided decoding grammar",
        "json_schema is not supported by this model",
    ],
)
def test_server_errors_about_the_schema_are_recognised(message: str) -> None:
    with OpenAIServer([Fails(400, message), '{"title": "x"}']) as server:
        reply = outcome(server, Prompt("", "x", CLOSED))
    assert isinstance(reply, Reply)
    assert "JSON only" in server.requests[1].user


def test_an_unrelated_server_error_is_reported() -> None:
    with OpenAIServer([Fails(400, "Invalid value for 'messages'.")]) as server:
        error = outcome(server, Prompt("", "x", CLOSED))
    assert isinstance(error, ModelError)
    assert error.trouble is Trouble.REQUEST
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("turn", "trouble"),
    [
        (Fails(402, "Insufficient balance"), Trouble.QUOTA),
        (Fails(429, "Billing hard limit has been reached", "billing_hard_limit_reached"), Trouble.QUOTA),
        (Fails(400, "The model `m` does not exist", "model_not_found"), Trouble.MODEL),
        (FailsInside("You exceeded your quota", "insufficient_quota"), Trouble.QUOTA),
        (Fails(503, "Not today", headers=(("x-should-retry", "false"),)), Trouble.UNREACHABLE),
    ],
    ids=str,
)
def test_a_final_error_is_classified_and_not_retried(turn: Fails | FailsInside, trouble: Trouble) -> None:
    with OpenAIServer([turn]) as server:
        error = outcome(server)
    assert isinstance(error, ModelError)
    assert error.trouble is trouble
    assert len(server.requests) == 1


def test_a_filtered_prompt_is_a_refusal() -> None:
    with OpenAIServer([Fails(400, "The prompt triggered the content policy.", "content_filter")]) as server:
        reply = outcome(server)
    assert isinstance(reply, Reply)
    assert reply.finish is Finish.REFUSED
    assert "content policy" in reply.text


def test_the_base_url_of_the_environment_is_used_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with OpenAIServer([Says("hello", usage=Usage(5, 0, 2))]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        (reply,) = asyncio.run(ask_all(open_model("openai:llama"), Prompt("", "x")))
    assert reply.usage == Usage(5, 0, 2)
    assert server.requests[0].key == "none"


def test_a_key_is_sent_to_a_custom_server_if_there_is_one() -> None:
    with OpenAIServer(key=OPENAI_KEY) as server:
        assert isinstance(outcome(server), Reply)

"""Specific to Gemini: the request, retry delays, finish reasons."""

from __future__ import annotations

import asyncio

import pytest
from support.model_servers import Fails, GeminiServer, Limited, Says

from engine.domain.model import Usage
from engine.ideas.models.model import Finish, ModelError, Prompt, Reply, Retry, Trouble
from engine.ideas.models.registry import open_model
from engine.ideas.models.retry_policy import RetryPolicy

QUICK = RetryPolicy(attempts=3, first_wait=0.01, longest_wait=0.5, silence=5.0, seconds=10.0)
SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}


def ask(server: GeminiServer, *prompts: Prompt) -> list[Reply | ModelError]:
    async def body() -> list[Reply | ModelError]:
        model = server.open("gemini:gemini-test", key="GEMINI_API_KEY", policy=QUICK)
        outcomes: list[Reply | ModelError] = []
        for prompt in prompts:
            try:
                outcomes.append(await model.ask(prompt, lambda _: None))
            except ModelError as error:
                outcomes.append(error)
        await model.close()
        return outcomes

    return asyncio.run(body())


def test_the_schema_goes_with_the_request_and_the_system_prompt_in_its_place() -> None:
    with GeminiServer(["{}"]) as server:
        ask(server, Prompt("You write kernels.", "One idea.", SCHEMA, 777))
    (request,) = server.requests
    assert request.body["generationConfig"]["responseMimeType"] == "application/json"
    assert (request.schema, request.system, request.user, request.max_output) == (
        SCHEMA,
        "You write kernels.",
        "One idea.",
        777,
    )


def test_a_rejected_schema_moves_to_the_prompt() -> None:
    with GeminiServer(["{}"], refuses=["response_json_schema"]) as server:
        ask(server, Prompt("", "One idea.", SCHEMA), Prompt("", "One more.", SCHEMA))
    assert [request.schema for request in server.requests] == [SCHEMA, None, None]
    assert all("JSON only" in request.user for request in server.requests[1:])


def test_thoughts_are_counted_but_not_displayed() -> None:
    with GeminiServer([Says("four words are here", reasoning=50, cached=1)]) as server:
        (reply,) = ask(server, Prompt("", "one two"))
    assert isinstance(reply, Reply)
    assert reply.text == "four words are here"
    assert reply.usage == server.counted == Usage(input=2, cached=1, output=54)


def test_the_retry_delay_in_the_details_is_honoured() -> None:
    with GeminiServer([Limited(after=0.3, detail=True), "ok"]) as server:
        (error,) = ask(server, Prompt("", "x"))
    assert isinstance(error, ModelError)
    assert error.retry == Retry(0.3)


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        ("RECITATION", Finish.REFUSED),
        ("SPII", Finish.REFUSED),
        ("CONTINUATION", Finish.LENGTH),
        ("OTHER", Trouble.REPLY),
        ("BRAND_NEW", Trouble.REPLY),
    ],
)
def test_every_finish_reason_is_an_outcome(finish: str, expected: Finish | Trouble) -> None:
    with GeminiServer([Says("text", finish=finish)]) as server:
        (outcome,) = ask(server, Prompt("", "x"))
    assert (outcome.finish if isinstance(outcome, Reply) else outcome.trouble) == expected


def test_a_reply_blocked_before_its_first_token_has_the_reason() -> None:
    with GeminiServer([Says("", finish="filtered")]) as server:
        (outcome,) = ask(server, Prompt("", "x"))
    assert isinstance(outcome, Reply)
    assert (outcome.finish, outcome.text) == (Finish.REFUSED, "the reply was blocked: SAFETY")


def test_vertex_ai_is_asked_with_its_own_key_or_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    with GeminiServer(["from vertex"], key="a-vertex-key") as server:
        monkeypatch.setenv("VERTEX_API_KEY", "a-vertex-key")
        model = server.open("vertex:gemini-test", key="VERTEX_API_KEY")

        async def body() -> Reply:
            try:
                return await model.ask(Prompt("", "x"), lambda _: None)
            finally:
                await model.close()

        assert asyncio.run(body()).text == "from vertex"
    monkeypatch.delenv("VERTEX_API_KEY")
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    with pytest.raises(ModelError, match="set GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION, or VERTEX_API_KEY"):
        open_model("vertex:gemini-test")


def test_settings_for_vertex_ai_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "a-project")
    with GeminiServer(["ok"]) as server:
        (reply,) = ask(server, Prompt("", "x"))
    assert isinstance(reply, Reply)


def test_the_base_url_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> Reply:
        model = open_model("gemini:gemini-test", policy=QUICK)
        try:
            return await model.ask(Prompt("", "x"), lambda _: None)
        finally:
            await model.close()

    with GeminiServer(["from here"]) as server:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
        assert asyncio.run(body()).text == "from here"


def test_other_errors_are_classified() -> None:
    with GeminiServer([Fails(400, "User location is not supported.", "FAILED_PRECONDITION")]) as server:
        (error,) = ask(server, Prompt("", "x"))
    assert isinstance(error, ModelError)
    assert error.trouble is Trouble.REQUEST

"""Provider failures: which are retried, and how they are classified. The same cases for both protocols."""

from __future__ import annotations

import asyncio
import re
import time
from email.utils import formatdate

import pytest
from support.model_servers import (
    Asked,
    BreaksOff,
    Fails,
    FailsInside,
    Garbled,
    GeminiServer,
    Hangs,
    Limited,
    ModelServer,
    OpenAIServer,
    OutOfCredit,
    Refuses,
    Says,
    Script,
    Stranger,
    Turn,
)
from support.more_model_servers import MessagesServer, ResponsesServer

from engine.domain.settings import CallOptions
from engine.ideas.models.model import Finish, Model, ModelError, Prompt, Reply, Spent, Trouble
from engine.ideas.models.retry_policy import Persistence, RetryPolicy, retry_after

QUICK = RetryPolicy(attempts=3, first_wait=0.01, longest_wait=0.5, silence=5.0, seconds=10.0)
KEYS = {"gemini": "GEMINI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
PROMPT = Prompt(system="You write kernels.", user="Make it fast.")
SERVERS: dict[str, type[ModelServer]] = {
    "openai": OpenAIServer, "responses": ResponsesServer, "anthropic": MessagesServer, "gemini": GeminiServer,
}  # fmt: skip
"""``openai``: Chat Completions; ``responses``: OpenAI's other protocol."""

pytestmark = pytest.mark.parametrize("kind", SERVERS)


def ignore(piece: str) -> None:
    pass


def ask(
    kind: str,
    script: Script,
    policy: RetryPolicy = QUICK,
    on_text: list[str] | None = None,
    patience: float = 1.0,
    **options: object,
) -> tuple[Reply | ModelError, ModelServer]:
    """Send one prompt to a server that follows the script."""

    async def body() -> Reply | ModelError:
        model = opened(server, kind, policy)
        try:
            return await persist(model, policy, on_text if on_text is not None else [], patience)
        finally:
            await model.close()

    with SERVERS[kind](script, **options) as server:  # type: ignore[arg-type]
        outcome = asyncio.run(body())
    return outcome, server


def name_of(kind: str) -> str:
    return f"{'openai' if kind == 'responses' else kind}:some-model"


def opened(server: ModelServer, kind: str, policy: RetryPolicy) -> Model:
    return server.open(
        name_of(kind), key=KEYS.get(kind, "OPENAI_API_KEY"), api="responses" * (kind == "responses"), policy=policy
    )


async def persist(model: Model, policy: RetryPolicy, on_text: list[str], patience: float = 1.0) -> Reply | ModelError:
    """Ask as a session does, without its budget."""
    persistence = Persistence(patience, policy)
    while True:
        try:
            return await model.ask(PROMPT, on_text.append)
        except ModelError as error:
            wait = persistence.wait_after(error)
            if wait is None:
                return persistence.given_up(error)
            await asyncio.sleep(wait)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        Limited(),
        Limited(after=0),
        Limited(after=0.05),
        Fails(500),
        Fails(503, "The model is overloaded.", "UNAVAILABLE"),
        Fails(408),
        Fails(409),
        FailsInside(),
        BreaksOff("one two three four", after=0),
        BreaksOff("one two three four", after=3),
        Garbled("one two three four"),
        Garbled("one two three four", '{"choices": 5, "candidates": 5}'),
        Garbled("one two three four", "[1]"),
        Garbled("one two three four", '"error"'),
        Garbled("one two three four", '{"error": {}}'),
        Garbled("one two three four", '{"error": "no"}'),
        Says("one two three four", unended=True),
        Stranger(),
    ],
    ids=str,
)
def test_transient_failures_are_retried(kind: str, fault: Turn) -> None:
    on_text: list[str] = []
    outcome, server = ask(kind, [fault, "a good reply"], on_text=on_text)
    assert isinstance(outcome, Reply), outcome
    assert (outcome.text, outcome.finish) == ("a good reply", Finish.STOP)
    assert len(server.requests) == 2
    assert "".join(on_text).endswith("a good reply")


@pytest.mark.parametrize(
    ("fault", "trouble", "words"),
    [
        (FailsInside(), Trouble.UNREACHABLE, "3 attempts"),
        (BreaksOff("one two three four"), Trouble.UNREACHABLE, "3 attempts"),
        (Garbled("one two three four"), Trouble.REPLY, "3 attempts"),
        (Stranger(), Trouble.REPLY, "3 attempts"),
    ],
    ids=str,
)
def test_attempts_are_bounded(kind: str, fault: Turn, trouble: Trouble, words: str) -> None:
    outcome, server = ask(kind, [fault])
    assert isinstance(outcome, ModelError)
    assert outcome.trouble is trouble
    assert words in str(outcome)
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("fault", "trouble", "words"),
    [
        (OutOfCredit(), Trouble.QUOTA, "exceeded your current quota"),
        (Limited(after=300), Trouble.QUOTA, "retry after 300 s"),
        (Fails(400, "This model's maximum context length is 8192 tokens."), Trouble.REQUEST, "maximum context length"),
        (Fails(403, "Your region is not supported."), Trouble.KEY, "region is not supported"),
        (Fails(413, "Too large."), Trouble.REQUEST, "Too large."),
        (Fails(404, "The model `x` does not exist."), Trouble.MODEL, "does not exist"),
    ],
    ids=str,
)
def test_permanent_failures_are_not_retried(kind: str, fault: Turn, trouble: Trouble, words: str) -> None:
    outcome, server = ask(kind, [fault])
    assert isinstance(outcome, ModelError)
    assert outcome.trouble is trouble
    assert words in str(outcome)
    assert str(outcome).startswith(f"{name_of(kind)}: ")
    assert "\n" not in str(outcome)
    assert len(server.requests) == 1


def test_a_wrong_key_and_an_unknown_model(kind: str) -> None:
    wrong, _ = ask(kind, ["ok"], key="another key")
    assert isinstance(wrong, ModelError)
    assert wrong.trouble is Trouble.KEY
    unknown, _ = ask(kind, ["ok"], models=["another-model"])
    assert isinstance(unknown, ModelError)
    assert unknown.trouble is Trouble.MODEL
    assert "some-model" in str(unknown)


@pytest.mark.slow
def test_a_web_page_is_not_quoted(kind: str) -> None:
    outcome, _ = ask(kind, [Fails(502, "<html><body>Bad gateway</body></html>")])
    assert isinstance(outcome, ModelError)
    assert "status 502" in str(outcome)
    assert "<" not in str(outcome)


@pytest.mark.slow
def test_retry_after_is_honoured(kind: str) -> None:
    began = time.monotonic()
    outcome, _ = ask(kind, [Limited(after=0.4), "ok"])
    assert isinstance(outcome, Reply)
    assert time.monotonic() - began >= 0.4


def test_truncated_and_filtered_replies(kind: str) -> None:
    cut, _ = ask(kind, [Says("half a rep", finish="length")])
    assert isinstance(cut, Reply)
    assert (cut.text, cut.finish) == ("half a rep", Finish.LENGTH)
    filtered, _ = ask(kind, [Says("half a rep", finish="filtered")])
    assert isinstance(filtered, Reply)
    assert filtered.finish is Finish.REFUSED


def test_a_refusal_is_a_reply_with_that_finish(kind: str) -> None:
    outcome, server = ask(kind, [Refuses()])
    assert isinstance(outcome, Reply)
    assert outcome.finish is Finish.REFUSED
    assert outcome.text
    assert len(server.requests) == 1


def test_silence_counts_as_a_dead_connection(kind: str) -> None:
    outcome, server = ask(kind, [Hangs(), "ok"], RetryPolicy(attempts=2, first_wait=0.01, silence=0.2, seconds=10.0))
    assert isinstance(outcome, Reply), outcome
    assert len(server.requests) == 2


def test_the_limits_of_a_prompt_are_sent(kind: str) -> None:
    _, server = ask(kind, ["ok"])
    (request,) = server.requests
    assert request.max_output == PROMPT.max_output
    assert request.model == "some-model"


@pytest.mark.slow
def test_free_failures_are_repeated_until_the_patience_ends(kind: str) -> None:
    outcome, server = ask(kind, [Fails(503)], RetryPolicy(attempts=2, first_wait=0.05, longest_wait=0.2, seconds=10.0))
    assert isinstance(outcome, ModelError)
    assert outcome.spent is Spent.NOTHING
    assert len(server.requests) > 4
    assert f"({len(server.requests)} attempts)" in str(outcome)


@pytest.mark.parametrize(
    ("turn", "spent"),
    [
        (Limited(), Spent.NOTHING),
        (Fails(500), Spent.NOTHING),
        (Fails(529, "Overloaded", "overloaded_error"), Spent.NOTHING),
        (OutOfCredit(), Spent.NOTHING),
        (BreaksOff("one two three four"), Spent.UNKNOWN),
        (Garbled("one two three four"), Spent.UNKNOWN),
        (FailsInside(), Spent.UNKNOWN),
        (Says("one two three four", unended=True), Spent.UNKNOWN),
        (Stranger(), Spent.UNKNOWN),
        (Hangs(), Spent.UNKNOWN),
    ],
    ids=str,
)
def test_an_attempt_says_whether_it_may_have_cost_something(kind: str, turn: Turn, spent: Spent) -> None:
    outcome, server = ask(kind, [turn], RetryPolicy(attempts=1, first_wait=0.01, seconds=0.5), patience=0.0)
    assert isinstance(outcome, ModelError)
    assert outcome.spent is spent
    assert len(server.requests) == 1


def test_a_reply_without_usage_says_so(kind: str) -> None:
    outcome, _ = ask(kind, [Says("ok", counts=False)])
    assert isinstance(outcome, Reply)
    assert outcome.counted is (kind == "anthropic"), "every message has a usage"


LIMITS = {
    "openai": "max_tokens is too large: 16000. This model supports at most 4096 completion tokens, whereas you provided 16000.",
    "responses": "Invalid 'max_output_tokens': integer above maximum value. Expected a value <= 4096, but got 16000 instead.",
    "anthropic": "max_tokens: 16000 > 4096, which is the maximum allowed number of output tokens for some-model",
    "gemini": "Unable to submit request because it has a maxOutputTokens value of 16000 but the supported range is from 1 "
    "(inclusive) to 4097 (exclusive). Update the value and try again.",
}
"""As the providers word it."""


def test_the_longest_reply_is_learnt_from_the_servers_error(kind: str) -> None:
    async def body() -> tuple[int | None, list[Reply | ModelError]]:
        model = opened(server, kind, QUICK)
        replies = [await persist(model, QUICK, []) for _ in range(2)]
        await model.close()
        return model.output_limit, replies

    def script(asked: Asked) -> Turn | str:
        return "a reply" if asked.max_output <= 4096 else Fails(400, LIMITS[kind], "invalid_request_error")

    with SERVERS[kind](script) as server:
        limit, replies = asyncio.run(body())
    assert limit == 4096
    assert [reply.text for reply in replies if isinstance(reply, Reply)] == ["a reply"] * 2
    assert [request.max_output for request in server.requests] == [16_000, 4096, 4096]


def test_a_full_window_shortens_only_this_reply(kind: str) -> None:
    message = (
        "This model's maximum context length is 8192 tokens. However, you requested 20000 tokens (4000 in the messages, 16000 "
        "in the completion). Please reduce the length of the messages or completion."
    )

    def script(asked: Asked) -> Turn | str:
        return "a reply" if asked.max_output <= 4192 else Fails(400, message, "invalid_request_error")

    outcome, server = ask(kind, script)
    assert isinstance(outcome, Reply)
    assert [request.max_output for request in server.requests] == [16_000, 4192]


def test_the_options_of_a_call_are_sent_and_left_out_once_rejected(kind: str) -> None:
    options = CallOptions(effort="high", temperature=0.3)
    prompt = Prompt("You write kernels.", "Make it fast.", options=options)
    names = {
        "openai": ("reasoning_effort", "temperature"), "responses": ("reasoning", "temperature"),
        "anthropic": ("output_config", "temperature"), "gemini": ("thinkingConfig", "temperature"),
    }[kind]  # fmt: skip

    def sent(asked: Asked) -> set[str]:
        body = asked.body.get("generationConfig", {}) if kind == "gemini" else asked.body
        return set(names) & set(body)

    def script(asked: Asked) -> Turn | str:
        if "temperature" in sent(asked):
            return Fails(400, "Unsupported parameter: 'temperature' is not supported with this model.", "unsupported_parameter")
        return "a reply"

    async def body() -> list[str]:
        model = opened(server, kind, QUICK)
        said: list[str] = []
        for _ in range(2):
            await model.ask(prompt, said.append)
        await model.close()
        return said

    with SERVERS[kind](script) as server:
        said = asyncio.run(body())
    assert [sent(request) for request in server.requests] == [set(names), {names[0]}, {names[0]}]
    assert sum("temperature" in piece for piece in said) == 1


EFFORTS_KNOWN = "Unsupported value: effort 'minimal' is not supported with this model. Supported values are: 'low' and 'high'."


@pytest.mark.parametrize(
    ("message", "temperature", "effort"),
    [("temperature is not supported with this model", False, "minimal"), (EFFORTS_KNOWN, True, "low")],
    ids=["temperature", "effort"],
)
def test_requests_that_are_rejected_at_the_same_time_learn_the_same(
    kind: str, message: str, temperature: bool, effort: str
) -> None:
    """Both were sent before either was answered: the second rejection is about an option that is left out already."""
    prompt = Prompt("You write kernels.", "Make it fast.", options=CallOptions(effort="minimal", temperature=0.3))

    def script(asked: Asked) -> Turn | str:
        return Fails(400, message, "invalid_request_error") if len(server.requests) <= 2 else "a reply"

    async def body() -> list[Reply]:
        model = opened(server, kind, QUICK)
        try:
            return await asyncio.gather(*(model.ask(prompt, lambda _: None) for _ in range(2)))
        finally:
            await model.close()

    with SERVERS[kind](script, together=2) as server:
        replies = asyncio.run(body())
    assert [reply.text for reply in replies] == ["a reply"] * 2
    assert len(server.requests) == 4
    named = "low" if kind == "anthropic" else effort
    for request in server.requests[2:]:
        assert re.search(rf"'{named}'", str(request.body), re.IGNORECASE), "the effort that the server accepts"
        assert ("'temperature'" in str(request.body)) is temperature


def test_a_retry_after_may_be_a_date(kind: str) -> None:
    wait = retry_after({"retry-after": formatdate(time.time() + 60, usegmt=True)})
    assert wait is not None
    assert 55 <= wait <= 61
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({"retry-after-ms": "1500"}) == 1.5

"""Provider failures: which are retried, and how they are classified. The same cases for both protocols."""

from __future__ import annotations

import asyncio
import random
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

from engine.domain.model import Usage
from engine.ideas.models.model import Finish, Model, ModelError, Prompt, Reply, Trouble
from engine.ideas.models.registry import open_model
from engine.ideas.models.retry_policy import RetryPolicy, retry_after

QUICK = RetryPolicy(attempts=3, first_wait=0.01, longest_wait=0.5, silence=5.0, seconds=10.0)
PROMPT = Prompt(system="You write kernels.", user="Make it fast.")
SERVERS: dict[str, type[ModelServer]] = {"openai": OpenAIServer, "gemini": GeminiServer}

pytestmark = pytest.mark.parametrize("kind", SERVERS)


def ignore(piece: str) -> None:
    pass


def ask(
    kind: str, script: Script, policy: RetryPolicy = QUICK, on_text: list[str] | None = None, **options: object
) -> tuple[Reply | ModelError, ModelServer]:
    """Send one prompt to a server that follows the script."""

    async def body() -> Reply | ModelError:
        model = open_model(f"{kind}:some-model", base_url=server.url, policy=policy)
        try:
            return await model.ask(PROMPT, (on_text if on_text is not None else []).append)
        except ModelError as error:
            return error
        finally:
            await model.close()

    with SERVERS[kind](script, **options) as server:  # type: ignore[arg-type]
        outcome = asyncio.run(body())
    assert outcome.usage == server.counted
    return outcome, server


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
    assert "retrying in" in "".join(on_text)
    assert "".join(on_text).endswith("a good reply")


@pytest.mark.parametrize(
    ("fault", "trouble", "words"),
    [
        (Limited(after=0), Trouble.QUOTA, "3 attempts"),
        (Fails(500), Trouble.UNREACHABLE, "3 attempts"),
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
    assert str(outcome).startswith(f"{kind}:some-model: ")
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


def test_a_web_page_is_not_quoted(kind: str) -> None:
    outcome, _ = ask(kind, [Fails(502, "<html><body>Bad gateway</body></html>")])
    assert isinstance(outcome, ModelError)
    assert "status 502" in str(outcome)
    assert "<" not in str(outcome)


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


def test_usage_is_kept_on_a_time_out(kind: str) -> None:
    outcome, _ = ask(kind, [BreaksOff("one two three four"), Hangs()], RetryPolicy(first_wait=0.01, seconds=0.5))
    assert isinstance(outcome, ModelError)
    assert outcome.trouble is Trouble.UNREACHABLE


def test_seven_million_tokens_are_counted_exactly_under_random_faults(kind: str) -> None:
    chance = random.Random(7)

    def script(asked: Asked) -> Turn | str:
        if chance.random() < 0.25:
            return chance.choice(
                [
                    Limited(after=0),
                    Fails(500),
                    BreaksOff("one two three four five", after=3),
                    Garbled("one two three"),
                    FailsInside(),
                    OutOfCredit(),
                    Says("cut", finish="length"),
                    Refuses(),
                    Stranger(),
                ]
            )
        size = chance.randrange(40_000, 80_000)
        return Says("a kernel in full", usage=Usage(input=size, cached=size // 3, output=size // 2))

    async def one(model: Model) -> Usage:
        try:
            return (await model.ask(PROMPT, ignore)).usage
        except ModelError as error:
            return error.usage

    async def body() -> Usage:
        model = open_model(f"{kind}:some-model", base_url=server.url, policy=QUICK)
        try:
            return sum(await asyncio.gather(*(one(model) for _ in range(120))), Usage())
        finally:
            await model.close()

    with SERVERS[kind](script) as server:
        spent = asyncio.run(body())
    assert spent == server.counted
    assert spent.total > 7_000_000
    assert server.most_at_once <= 4


def test_a_retry_after_may_be_a_date(kind: str) -> None:
    wait = retry_after({"retry-after": formatdate(time.time() + 60, usegmt=True)})
    assert wait is not None
    assert 55 <= wait <= 61
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({"retry-after-ms": "1500"}) == 1.5

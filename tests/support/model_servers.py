"""Loopback servers that speak the protocols of OpenAI and Gemini as the real ones do, faults included.

What a server does with each request is scripted: a list of turns, one for each request, the last one repeated, or a function
of what was asked. A plain string is the text of a reply. ::

    with OpenAIServer([Limited(after=0), "a reply"]) as server:
        model = server.open("openai:some-model")

``server.requests`` holds every request, ``server.counted`` the tokens that the server has told its clients about.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from support.model_turns import (
    Asked,
    BreaksOff,
    Fails,
    FailsInside,
    Garbled,
    Hangs,
    Limited,
    OutOfCredit,
    Refuses,
    Says,
    Script,
    Stranger,
    Turn,
    in_turn,
    pieces,
    usage_of,
)

from engine.domain.model import Usage
from engine.domain.settings import ModelServer as ModelServerSetting
from engine.ideas.models.model import Model
from engine.ideas.models.registry import open_model
from engine.ideas.models.retry_policy import DEFAULT_POLICY, RetryPolicy

OPENAI_KEY = "sk-test-openai-0123456789abcdef"
GEMINI_KEY = "AIzaTestGemini0123456789abcdef"
"""Fake keys for servers that require one."""


class ModelServer:
    """The common part of both servers: a port, a script, and a log of requests."""

    def __init__(
        self,
        script: Script = ("ok",),
        *,
        key: str | None = None,
        models: Iterable[str] | None = None,
        refuses: Iterable[str] = (),
        together: int = 1,
    ) -> None:
        """``key``: the only accepted one, else any. ``models``: the known ones, else any. ``refuses``: unknown options.
        ``together``: so many first requests are answered once all of them have arrived."""
        self.requests: list[Asked] = []
        self.most_at_once = 0
        self._key = key
        self._models = None if models is None else frozenset(models)
        self._refuses = frozenset(refuses)
        self._next = script if callable(script) else in_turn(script)
        self._told: dict[int, Usage] = {}
        self._at_once = 0
        self._lock = threading.Lock()
        self.first = together
        self.all_arrived = threading.Barrier(together, timeout=10)
        self.closing = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"owner": self}))
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    @property
    def url(self) -> str:
        """The client's base URL."""
        raise NotImplementedError

    def open(self, name: str, *, key: str = "", api: str = "", policy: RetryPolicy = DEFAULT_POLICY, **given: Any) -> Model:
        """A model on this server. ``key``: the variable of the key that it gets."""
        return open_model(name, server=ModelServerSetting(name, self.url, key, api), policy=policy, **given)

    @property
    def counted(self) -> Usage:
        """Tokens of all requests, as reported to clients."""
        with self._lock:
            return sum(self._told.values(), Usage())

    def told(self, request: int, usage: Usage) -> None:
        with self._lock:
            self._told[request] = usage

    def take(self, asked: Asked) -> tuple[int, Turn]:
        """Log a request and decide how to handle it."""
        with self._lock:
            self.requests.append(asked)
            number = len(self.requests)
            if self._key is not None and asked.key != self._key:
                return number, self.wrong_key(asked.key)
            if self._models is not None and asked.model not in self._models:
                return number, self.no_model(asked.model)
            if unknown := sorted(asked.options & self._refuses):
                return number, Fails(400, f"Unknown parameter: '{unknown[0]}'.", "unknown_parameter")
            turn = self._next(asked)
        return number, Says(turn) if isinstance(turn, str) else turn

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            yield
        finally:
            with self._lock:
                self._at_once -= 1

    def read(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> Asked:
        raise NotImplementedError

    def stream(self, number: int, asked: Asked, turn: Turn) -> Iterator[str | bytes]:
        """The stream of a turn as chunks; ``bytes`` for anything but an event."""
        raise NotImplementedError

    def refusal(self, turn: Limited | Fails | OutOfCredit) -> tuple[Fails, Any]:
        """An HTTP error and its body."""
        raise NotImplementedError

    def wrong_key(self, key: str) -> Fails:
        raise NotImplementedError

    def no_model(self, model: str) -> Fails:
        raise NotImplementedError


class LostError(Exception):
    """The script drops the connection here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    owner: ModelServer

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing; requests are in the log."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            asked = self.owner.read(urlsplit(self.path).path, self.headers, body)
        except LookupError as error:
            self._whole(404, f"no such endpoint or field: {error}", "text/plain", ())
            return
        with self.owner.at_work(), contextlib.suppress(BrokenPipeError, ConnectionResetError):
            number, turn = self.owner.take(asked)
            if number <= self.owner.first:
                self.owner.all_arrived.wait()
            match turn:
                case Hangs():
                    self.owner.closing.wait()
                    self._cut()
                case Limited() | Fails() | OutOfCredit():
                    failure, content = self.owner.refusal(turn)
                    self._whole(failure.status, json.dumps(content), "application/json", failure.headers)
                case Stranger():
                    self._whole(turn.status, turn.body, turn.kind, ())
                case _:
                    self._stream(self.owner.stream(number, asked, turn))

    def _whole(self, status: int, text: str, kind: str, headers: tuple[tuple[str, str], ...]) -> None:
        content = text.encode()
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(content))), *headers):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, events: Iterator[str | bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for event in events:
                content = event if isinstance(event, bytes) else f"data: {event}\n\n".encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))
                self.wfile.flush()
        except LostError:
            self._cut()
        else:
            self.wfile.write(b"0\r\n\r\n")

    def _cut(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


class ChatErrors:
    """The errors of OpenAI, in both of its protocols."""

    def refusal(self, turn: Limited | Fails | OutOfCredit) -> tuple[Fails, Any]:
        match turn:
            case Limited(after=after):
                wait = () if after is None else (("Retry-After", f"{after:g}"),)
                failure = Fails(429, "Rate limit reached for requests.", "rate_limit_exceeded", wait)
            case OutOfCredit():
                failure = Fails(429, "You exceeded your current quota, please check your plan.", "insufficient_quota")
            case Fails():
                failure = turn
        body = {"message": failure.message, "type": failure.kind or None, "code": failure.kind or None, "param": None}
        return failure, {"error": body}

    def wrong_key(self, key: str) -> Fails:
        return Fails(401, f"Incorrect API key provided: {key}. You can find your API key at ...", "invalid_api_key")

    def no_model(self, model: str) -> Fails:
        return Fails(404, f"The model `{model}` does not exist or you do not have access to it.", "model_not_found")


class OpenAIServer(ChatErrors, ModelServer):
    """Chat completions, streamed."""

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    def read(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> Asked:
        if path != "/v1/chat/completions" or not body["stream"]:
            raise LookupError(path)
        texts = {message["role"]: message["content"] for message in body["messages"]}
        form = body.get("response_format")
        return Asked(
            model=body["model"],
            system=texts.get("system", ""),
            user=texts["user"],
            schema=form["json_schema"]["schema"] if form else None,
            max_output=body.get("max_completion_tokens") or body["max_tokens"],
            key=headers["Authorization"].removeprefix("Bearer "),
            options=frozenset(body)
            & {"response_format", "max_completion_tokens", "stream_options", "reasoning_effort", "temperature"},
            body=body,
            headers=dict(headers),
        )

    def stream(self, number: int, asked: Asked, turn: Turn) -> Iterator[str | bytes]:
        def chunk(delta: Mapping[str, Any], finish: str | None = None) -> str:
            return json.dumps({**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

        frame = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": 1, "model": asked.model}
        yield chunk({"role": "assistant", "content": ""})
        match turn:
            case Says(text=text):
                yield from (chunk({"content": piece}) for piece in pieces(text))
                if turn.unended:
                    return
                yield chunk({}, {"filtered": "content_filter"}.get(turn.finish, turn.finish))
                yield from self._usage(number, asked, usage_of(asked, turn, text), turn, frame)
            case Refuses(text=text):
                yield from (chunk({"refusal": piece}) for piece in pieces(text))
                yield chunk({}, "stop")
                yield from self._usage(number, asked, usage_of(asked, Says(text), text), Says(text), frame)
            case BreaksOff(text=text, after=after):
                yield from (chunk({"content": piece}) for piece in pieces(text)[:after])
                raise LostError
            case Garbled(text=text, chunk=garbage):
                yield chunk({"content": pieces(text)[0]})
                yield garbage
            case FailsInside(message=message, kind=kind):
                yield chunk({"content": "x"})
                yield json.dumps({"error": {"message": message, "type": kind, "code": kind, "param": None}})
            case _:
                raise AssertionError(turn)
        yield "[DONE]"

    def _usage(self, number: int, asked: Asked, usage: Usage, turn: Says, frame: Mapping[str, Any]) -> Iterator[str]:
        if not turn.counts or not asked.body.get("stream_options", {}).get("include_usage"):
            return
        self.told(number, usage)
        told = {
            "prompt_tokens": usage.input,
            "completion_tokens": usage.output,
            "total_tokens": usage.total,
            "prompt_tokens_details": {"cached_tokens": usage.cached},
            "completion_tokens_details": {"reasoning_tokens": turn.reasoning},
        }
        yield json.dumps({**frame, "choices": [], "usage": told})


_GOOGLE = "type.googleapis.com/google.rpc"


class GeminiServer(ModelServer):
    """``streamGenerateContent`` with server-sent events; every chunk has the running total of tokens."""

    @property
    def url(self) -> str:
        return self.root

    def read(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> Asked:
        found = re.fullmatch(r"/v1(?:beta1?)?/(?:publishers/google/)?models/([^:]+):streamGenerateContent", path)
        if not found:
            raise LookupError(path)
        config = body.get("generationConfig", {})
        return Asked(
            model=found[1],
            system=_text(body.get("systemInstruction", {})),
            user="".join(_text(content) for content in body["contents"]),
            schema=config.get("responseJsonSchema"),
            max_output=config["maxOutputTokens"],
            key=headers["x-goog-api-key"],
            options=frozenset({"response_json_schema"}) if "responseJsonSchema" in config else frozenset(),
            body=body,
            headers=dict(headers),
        )

    def stream(self, number: int, asked: Asked, turn: Turn) -> Iterator[str | bytes]:
        match turn:
            case Says():
                yield from self._reply(number, asked, turn, len(pieces(turn.text)))
            case Refuses():
                self.told(number, Usage(input=asked.tokens))
                yield json.dumps(
                    {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, **_usage_metadata(self._told[number], 0)}
                )
            case BreaksOff(text=text, after=after):
                yield from self._reply(number, asked, Says(text, unended=True), after)
                raise LostError
            case Garbled(text=text, chunk=garbage):
                yield from self._reply(number, asked, Says(text, unended=True), 1)
                yield garbage
            case FailsInside(message=message, status=status):
                yield from self._reply(number, asked, Says("x", unended=True), 1)
                yield json.dumps({"error": {"code": status, "message": message, "status": "UNAVAILABLE"}})
            case _:
                raise AssertionError(turn)

    def _reply(self, number: int, asked: Asked, turn: Says, most: int) -> Iterator[str]:
        finish = {"stop": "STOP", "length": "MAX_TOKENS", "filtered": "SAFETY"}.get(turn.finish, turn.finish)
        so_far = ""
        shown = pieces(turn.text)[:most] or [""]
        for place, piece in enumerate(shown, start=1):
            so_far += piece
            usage = usage_of(asked, turn, so_far)
            parts = [{"text": "weighing it", "thought": True}] if turn.reasoning and place == 1 else []
            candidate: dict[str, Any] = {"content": {"role": "model", "parts": [*parts, {"text": piece}]}, "index": 0}
            if place == len(shown) and not turn.unended:
                candidate["finishReason"] = finish
            counts: Mapping[str, Any] = {}
            if turn.counts:
                self.told(number, usage)
                counts = _usage_metadata(usage, turn.reasoning)
            yield json.dumps({"candidates": [candidate], "modelVersion": asked.model, **counts})

    def refusal(self, turn: Limited | Fails | OutOfCredit) -> tuple[Fails, Any]:
        match turn:
            case Limited(after=after, detail=detail):
                info = ({"@type": f"{_GOOGLE}.RetryInfo", "retryDelay": f"{after or 0:g}s"},) if detail else ()
                wait = () if detail or after is None else (("Retry-After", f"{after:g}"),)
                failure = Fails(429, "Resource has been exhausted.", "RESOURCE_EXHAUSTED", wait, info)
            case OutOfCredit():
                quota = {"quotaId": "GenerateRequestsPerDayPerProjectPerModel", "quotaValue": "20"}
                violated = ({"@type": f"{_GOOGLE}.QuotaFailure", "violations": [quota]},)
                failure = Fails(429, "You exceeded your current quota.", "RESOURCE_EXHAUSTED", (), violated)
            case Fails():
                failure = turn
        body = {"code": failure.status, "message": failure.message, "status": failure.kind, "details": list(failure.details)}
        return failure, {"error": body}

    def wrong_key(self, key: str) -> Fails:
        info = {"@type": f"{_GOOGLE}.ErrorInfo", "reason": "API_KEY_INVALID", "domain": "googleapis.com"}
        return Fails(400, f"API key not valid: {key}. Please pass a valid API key.", "INVALID_ARGUMENT", (), (info,))

    def no_model(self, model: str) -> Fails:
        return Fails(404, f"models/{model} is not found for API version v1beta.", "NOT_FOUND")


def _text(content: Mapping[str, Any]) -> str:
    return "".join(part.get("text", "") for part in content.get("parts", ()))


def _usage_metadata(usage: Usage, reasoning: int) -> Mapping[str, Any]:
    told = {"promptTokenCount": usage.input, "candidatesTokenCount": usage.output - reasoning, "totalTokenCount": usage.total}
    if reasoning:
        told["thoughtsTokenCount"] = reasoning
    if usage.cached:
        told["cachedContentTokenCount"] = usage.cached
    return {"usageMetadata": told}

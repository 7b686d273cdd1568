"""Fake models, and a call recorder that can stop after any event."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from engine.domain import events as e
from engine.domain.errors import JournalCorrupt
from engine.domain.folds import advance
from engine.domain.model import CATEGORIES, ENGINE, Blob, Usage
from engine.domain.state import SessionState
from engine.domain.work import WorkKey
from engine.ideas.models.model import Finish, OnText, Prompt, Reply
from engine.session.calls import WorkCalls

LAUNCH = '#include "problem.h"\nextern "C" void launch(const float* x, float* out, void* workspace) {}\n'


class Killed(BaseException):
    """The process was killed: nothing further is recorded."""


class Shelf:
    """Blobs in memory."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def put(self, payload: bytes) -> Blob:
        name = hashlib.sha256(payload).hexdigest()
        self._kept[name] = payload
        return name

    def text(self, name: Blob) -> str:
        if name not in self._kept:
            raise JournalCorrupt(f"blob {name} is missing")
        return self._kept[name].decode("utf-8", "replace")


class Tape:
    """A ``CallRecorder`` that keeps events, optionally a limited number; ``calls_by_hand`` answers pasted prompts."""

    def __init__(self, state: SessionState | None = None, *, room: int | None = None, blobs: Shelf | None = None) -> None:
        self.state = state or SessionState()
        self.blobs = blobs or Shelf()
        self.events: list[e.Event] = []
        self.room = room
        self.by_hand: Callable[[Tape], None] | None = None
        self.waited: list[str] = []
        self.waits: list[str] = []
        self._at = count(1)

    def record(self, events: Sequence[e.Event]) -> None:
        for event in events:
            if self.room is not None and len(self.events) >= self.room:
                raise Killed
            self.events.append(event)
            self.state = advance(self.state, [e.Entry(self.state.seq + 1, float(next(self._at)), ENGINE, event)])

    async def wait_for_engineer(self, condition: Callable[[SessionState], bool], work: WorkKey) -> None:
        self.waited.append(str(work))
        while not condition(self.state):
            assert self.by_hand is not None, f"nobody answers {work}"
            self.by_hand(self)
            await asyncio.sleep(0)

    async def wait_for_provider(self, seconds: float, words: Callable[[float], str], work: WorkKey) -> None:
        self.waits.append(words(seconds))
        await asyncio.sleep(0)

    async def wait_until(self, condition: Callable[[SessionState], bool]) -> None:
        while not condition(self.state):
            await asyncio.sleep(0.05)

    def calls(self, work: str = "propose:1", progress: list[str] | None = None) -> WorkCalls:
        return WorkCalls(WorkKey.parse(work), self, self.blobs, (progress if progress is not None else []).append)  # type: ignore[arg-type]

    def kinds(self) -> list[str]:
        return [event.KIND for event in self.events]


@dataclass
class FakeModel:
    """Answers from a list in turn, repeating the last: texts, whole replies or exceptions. Or answers by a function."""

    answers: Sequence[str | Reply | BaseException | Callable[[Prompt], str]] = ("nothing",)
    name: str = "openai:fake"
    counted: bool = True
    output_limit: int | None = None
    usage: Usage = field(default_factory=lambda: Usage(100, 10, 20))
    asked: list[Prompt] = field(default_factory=list)
    closed: bool = False
    before: Callable[[], Any] | None = None

    async def ask(self, prompt: Prompt, on_text: OnText) -> Reply:
        answer = self.answers[min(len(self.asked), len(self.answers) - 1)]
        self.asked.append(prompt)
        on_text("...")
        await asyncio.sleep(0)
        if self.before is not None:
            await self.before()
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, Reply):
            return answer
        return Reply(answer if isinstance(answer, str) else answer(prompt), self.usage, counted=self.counted)

    async def close(self) -> None:
        self.closed = True


def ideas_reply(*titles: str, **others: Any) -> str:
    """A reply with ideas of these titles, each in a different category if possible."""
    made = [
        {
            "title": title, "category": CATEGORIES[n % len(CATEGORIES)], "parent": "k1", "rationale": f"Because of {title}.",
            "expected_effect": "less time", "predicted_speedup": 1.5, "risks": "none", **others,
        }
        for n, title in enumerate(titles)
    ]  # fmt: skip
    return json.dumps({"ideas": made})


def code_reply(text: str = LAUNCH, language: str = "cpp") -> str:
    return f"Here it is.\n\n```{language}\n{text}```\n"


def truncated(text: str = "half", usage: Usage = Usage(100, 0, 50)) -> Reply:  # noqa: B008
    return Reply(text, usage, Finish.LENGTH)


def refused(usage: Usage = Usage(100, 0, 5)) -> Reply:  # noqa: B008
    return Reply("I cannot help with that.", usage, Finish.REFUSED)

"""Several sources in one session: who is asked for how many ideas, who writes an idea's code, who repairs it.

The first port is never asked of a model: every session starts from the playbook's, or the one generated from the reference.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from engine.domain.errors import BudgetExhausted, IdeaSourceError
from engine.domain.model import Author
from engine.domain.work import Proposal
from engine.ideas.models.registry import check_spec
from engine.ideas.source import Calls, CodeRequest, IdeaRequest, IdeaSource, Implementation, RepairRequest
from engine.ideas.tuning import is_tuning
from engine.ideas.written import ROOT

PLAYBOOK = "playbook"
PASTE = "paste"
_LARGEST_SHARE = 1_000
_MOST_SOURCES = 16
_BETWEEN = re.compile(r",(?=\s*(?:openai:|gemini:|command:|playbook\s*(?:=|,|$)|paste\s*(?:=|,|$)))")
_SHARE = re.compile(r"(.+?)\s*=\s*([0-9]+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Share:
    """One source of a mix and how much of every round is its own."""

    source: str
    weight: int = 1


def parse_mix(spec: str) -> tuple[Share, ...]:
    """``openai:A=2,gemini:B=1,playbook=1``: sources with their shares; without a number the share is 1.

    A single ``command:`` takes no share: whatever stands behind an equals sign is its own.

    Raises:
        IdeaSourceError: no source, one that is unknown or named twice, or a share that is no whole number from 1 to 1000.
    """
    parts = [part.strip() for part in _BETWEEN.split(spec)]
    if len(parts) > _MOST_SOURCES:
        raise IdeaSourceError(f"{len(parts)} sources are too many to share a round: {_MOST_SOURCES} at most")
    alone = len(parts) == 1 and parts[0].startswith("command:")
    shares = tuple(Share(check_source(parts[0])) if alone else _share(part) for part in parts)
    names = [share.source for share in shares]
    for name in names:
        if names.count(name) > 1:
            raise IdeaSourceError(f"the source {name} is named twice: name it once, with its whole share")
    return shares


def _share(part: str) -> Share:
    match = _SHARE.fullmatch(part)
    if match is None:
        return Share(check_source(part))
    weight = int(match.group(2)) if len(match.group(2)) < 6 else 0
    if not 1 <= weight <= _LARGEST_SHARE:
        raise IdeaSourceError(f"the share of {match.group(1)} is {match.group(2)[:20]}: use 1 to {_LARGEST_SHARE}")
    return Share(check_source(match.group(1).strip()), weight)


def check_source(source: str) -> str:
    """The name of one source, as authors are named. Raises IdeaSourceError for what is none."""
    if source in (PLAYBOOK, PASTE):
        return source
    if "," in source and not source.startswith("command:"):
        raise IdeaSourceError(
            f"what stands behind a comma in {source[:80]!r} is no source: write openai:A=2,gemini:B=1,playbook=1"
        )
    if ":" not in source:
        known = f"{PLAYBOOK}, {PASTE}, openai:MODEL, gemini:MODEL or command:CMD"
        raise IdeaSourceError(f"there is no source of ideas {source[:80]!r}: use {known}")
    return str(check_spec(source))


def apportion(shares: Sequence[Share], count: int, round_number: int) -> tuple[int, ...]:
    """How many of a round's ``count`` ideas each source is asked for.

    Places are dealt out in one endless row (highest averages, Webster's divisors), and each round takes the next ``count`` of
    it. So even rounds of one idea keep to the shares in the long run, which rounding every round by itself would not.
    """
    held = [0] * len(shares)
    before = [0] * len(shares)
    start = max(0, round_number - 1) * count
    for place in range(start + count):
        if place == start:
            before = list(held)
        best = max(range(len(shares)), key=lambda n: (shares[n].weight / (2 * held[n] + 1), -n))
        held[best] += 1
    return tuple(now - then for now, then in zip(held, before, strict=True)) if count else tuple(held)


class Sources(Protocol):
    """Sources by their names."""

    def open(self, name: str) -> IdeaSource:
        """The source, opened when it is first asked for. Raises IdeaSourceError."""
        ...

    async def close(self) -> None: ...


class Mix:
    """An ``IdeaSource`` that asks each of several for its share."""

    def __init__(self, shares: Sequence[Share], writer: str, sources: Sources) -> None:
        """``writer``: who writes code where an idea names nobody; empty for whoever had the idea."""
        self._shares = tuple(shares)
        self._writer = writer
        self._sources = sources

    @property
    def author(self) -> Author:
        return Author(self._shares[0].source)

    def open_all(self) -> None:
        """Open every source that is named, so that what is missing is found early. Raises IdeaSourceError."""
        for name in (*(share.source for share in self._shares), *filter(None, [self._writer])):
            self._sources.open(name)

    async def propose(self, request: IdeaRequest, calls: Calls) -> tuple[Proposal, ...]:
        """The shares of all sources, those asked at the same time; a source that fails leaves its places empty.

        Raises what the first source raised, where none had an answer.
        """
        if request.round == 0:
            return await self._sources.open(PLAYBOOK).propose(request, calls)
        wanted = zip(self._shares, apportion(self._shares, request.count, request.round), strict=True)
        asked = [self._proposed(share.source, replace(request, count=count), calls) for share, count in wanted if count]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        given = tuple(proposal for answer in answers if not isinstance(answer, BaseException) for proposal in answer)
        for answer in answers:
            if isinstance(answer, BaseException) and not (given and isinstance(answer, IdeaSourceError | BudgetExhausted)):
                raise answer
        return given

    async def _proposed(self, source: str, request: IdeaRequest, calls: Calls) -> tuple[Proposal, ...]:
        return await self._sources.open(source).propose(request, calls)

    async def implement(self, request: CodeRequest, calls: Calls) -> Implementation:
        """By the idea's writer, else the session's, else its author; written entries and tunings are the playbook's own."""
        source = self._sources.open(self._writer_of(request))
        answer = await source.implement(request, calls)
        return Implementation(answer.drafts, answer.note, answer.author or source.author)

    def _writer_of(self, request: CodeRequest) -> str:
        idea = request.idea
        if idea.text.key == ROOT or is_tuning(idea.text.key):
            return PLAYBOOK
        if idea.writer:
            return check_source(idea.writer)
        return self._writer or self._had_by(idea.author)

    def _had_by(self, author: Author) -> str:
        """The source that an idea's author is; for an idea of the engineer's own the first that can write, if any."""
        if not author.is_engineer:
            return check_source(author.name)
        return next((share.source for share in self._shares if share.source != PLAYBOOK), PLAYBOOK)

    async def repair(self, request: RepairRequest, calls: Calls) -> str | None:
        """By whoever wrote the kernel."""
        return await self._sources.open(check_source(request.kernel.author.name)).repair(request, calls)

    async def close(self) -> None:
        """Let go of what was opened."""
        await self._sources.close()

"""Several proposers in one session: how many ideas each is asked for, who writes an idea's code, who repairs it.

No model is asked for the naive port: every session starts from the playbook's, or from one generated from the reference.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engine.domain.errors import BudgetExhausted, ProposerError
from engine.domain.model import Author
from engine.domain.work import Proposal
from engine.ideas.models.registry import parse_spec
from engine.ideas.playbook_file import ROOT
from engine.ideas.proposer import Calls, CodeRequest, IdeaRequest, Implementation, Proposer, RepairRequest
from engine.ideas.tuning import is_tuning

PLAYBOOK = "playbook"
PASTE = "paste"
_MAX_SHARE = 1_000
_MAX_PROPOSERS = 16
_BETWEEN = re.compile(r",(?=\s*(?:openai:|gemini:|command:|playbook\s*(?:=|,|$)|paste\s*(?:=|,|$)))")
_SHARE = re.compile(r"(.+?)\s*=\s*([0-9]+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Share:
    """One proposer of a mix, and its share of every round."""

    proposer: str
    weight: int = 1


def parse_mix(spec: str) -> tuple[Share, ...]:
    """``openai:A=2,gemini:B=1,playbook=1``: proposers with their shares; without a number the share is 1.

    A single ``command:`` takes no share: text after an equals sign belongs to the command.

    Raises:
        ProposerError: no proposer, an unknown one, one named twice, or a share that is no whole number from 1 to 1000.
    """
    parts = [part.strip() for part in _BETWEEN.split(spec)]
    if len(parts) > _MAX_PROPOSERS:
        raise ProposerError(f"{len(parts)} sources are too many to share a round: {_MAX_PROPOSERS} at most")
    alone = len(parts) == 1 and parts[0].startswith("command:")
    shares = tuple(Share(check_proposer(parts[0])) if alone else _share(part) for part in parts)
    names = [share.proposer for share in shares]
    for name in names:
        if names.count(name) > 1:
            raise ProposerError(f"the source {name} is named twice: name it once, with its whole share")
    return shares


def _share(part: str) -> Share:
    match = _SHARE.fullmatch(part)
    if match is None:
        return Share(check_proposer(part))
    weight = int(match.group(2)) if len(match.group(2)) < 6 else 0
    if not 1 <= weight <= _MAX_SHARE:
        raise ProposerError(f"the share of {match.group(1)} is {match.group(2)[:20]}: use 1 to {_MAX_SHARE}")
    return Share(check_proposer(match.group(1).strip()), weight)


def check_proposer(name: str) -> str:
    """The name of one proposer, as authors are named. Raises ProposerError for an unknown one."""
    if name in (PLAYBOOK, PASTE):
        return name
    if "," in name and not name.startswith("command:"):
        raise ProposerError(f"what stands behind a comma in {name[:80]!r} is no source: write openai:A=2,gemini:B=1,playbook=1")
    if ":" not in name:
        known = f"{PLAYBOOK}, {PASTE}, openai:MODEL, gemini:MODEL or command:CMD"
        raise ProposerError(f"there is no source of ideas {name[:80]!r}: use {known}")
    return str(parse_spec(name))


def apportion(shares: Sequence[Share], count: int, round_number: int) -> tuple[int, ...]:
    """How many of a round's ``count`` ideas each proposer is asked for.

    Places form one endless sequence (highest averages, Webster's divisors); each round takes its next ``count``. So rounds of
    one idea still keep to the shares in the long run; rounding each round by itself would not.
    """
    places = [0] * len(shares)
    before = [0] * len(shares)
    start = max(0, round_number - 1) * count
    for place in range(start + count):
        if place == start:
            before = list(places)
        best = max(range(len(shares)), key=lambda n: (shares[n].weight / (2 * places[n] + 1), -n))
        places[best] += 1
    return tuple(now - then for now, then in zip(places, before, strict=True))


class Mix:
    """A ``Proposer`` that asks each of several for its share."""

    def __init__(self, shares: Sequence[Share], writer: str, open_proposer: Callable[[str], Proposer]) -> None:
        """``writer``: who writes code where an idea names nobody; empty for the idea's author.

        ``open_proposer`` makes a proposer by its name when it is first needed; it raises ProposerError.
        """
        self._shares = tuple(shares)
        self._writer = writer
        self._open_proposer = open_proposer
        self._opened: dict[str, Proposer] = {}

    @property
    def author(self) -> Author:
        return Author(self._shares[0].proposer)

    def open_all(self) -> None:
        """Open every proposer that is named, so that a missing key is found early. Raises ProposerError."""
        for name in (*(share.proposer for share in self._shares), *filter(None, [self._writer])):
            self._proposer(name)

    def _proposer(self, name: str) -> Proposer:
        if name not in self._opened:
            self._opened[name] = self._open_proposer(name)
        return self._opened[name]

    async def propose(self, request: IdeaRequest, calls: Calls) -> tuple[Proposal, ...]:
        """The shares of all proposers, asked concurrently; one that fails leaves its places empty.

        Raises what the first proposer raised, where none had an answer.
        """
        if request.round == 0:
            return await self._proposer(PLAYBOOK).propose(request, calls)
        counts = apportion(self._shares, request.count, request.round)
        questions = [
            self._ask(share.proposer, replace(request, count=count), calls)
            for share, count in zip(self._shares, counts, strict=True)
            if count
        ]
        answers = await asyncio.gather(*questions, return_exceptions=True)
        proposals = tuple(proposal for answer in answers if not isinstance(answer, BaseException) for proposal in answer)
        for answer in answers:
            if isinstance(answer, BaseException) and not (proposals and isinstance(answer, ProposerError | BudgetExhausted)):
                raise answer
        return proposals

    async def _ask(self, name: str, request: IdeaRequest, calls: Calls) -> tuple[Proposal, ...]:
        return await self._proposer(name).propose(request, calls)

    async def implement(self, request: CodeRequest, calls: Calls) -> Implementation:
        """By the idea's writer, else the session's, else its author; the naive port and tunings are the playbook's own."""
        writer = self._proposer(self._writer_of(request))
        answer = await writer.implement(request, calls)
        return Implementation(answer.drafts, answer.note, answer.author or writer.author)

    def _writer_of(self, request: CodeRequest) -> str:
        idea = request.idea
        if idea.text.key == ROOT or is_tuning(idea.text.key):
            return PLAYBOOK
        if idea.writer:
            return check_proposer(idea.writer)
        return self._writer or self._author_as_writer(idea.author)

    def _author_as_writer(self, author: Author) -> str:
        """The proposer that an idea's author is; for an idea of the engineer's own the first that can write, if any."""
        if not author.is_engineer:
            return check_proposer(author.name)
        return next((share.proposer for share in self._shares if share.proposer != PLAYBOOK), PLAYBOOK)

    async def repair(self, request: RepairRequest, calls: Calls) -> str | None:
        """By the kernel's author."""
        return await self._proposer(check_proposer(request.kernel.author.name)).repair(request, calls)

    async def close(self) -> None:
        """Close what was opened."""
        while self._opened:
            await self._opened.popitem()[1].close()

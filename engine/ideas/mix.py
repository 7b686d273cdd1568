"""Splits the ideas of a round among several proposers by share, and chooses who writes and repairs each kernel.

Models do not write the naive port: it comes from the playbook, or is generated from the reference.
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
    """One proposer of a mix, with its share of every round."""

    proposer: str
    weight: int = 1


def parse_mix(spec: str) -> tuple[Share, ...]:
    """Parse ``openai:A=2,gemini:B=1,playbook=1``: proposers with their shares; the default share is 1.

    A single ``command:`` takes no share: text after an equals sign belongs to the command.

    Raises:
        ProposerError: no proposer, an unknown one, a duplicate, or a share that is not an integer from 1 to 1000.
    """
    parts = [part.strip() for part in _BETWEEN.split(spec)]
    if len(parts) > _MAX_PROPOSERS:
        raise ProposerError(f"too many proposers: {len(parts)}, at most {_MAX_PROPOSERS}")
    alone = len(parts) == 1 and parts[0].startswith("command:")
    shares = tuple(Share(check_proposer(parts[0])) if alone else _share(part) for part in parts)
    names = [share.proposer for share in shares]
    for name in names:
        if names.count(name) > 1:
            raise ProposerError(f"duplicate proposer {name}: name it once, with its total share")
    return shares


def _share(part: str) -> Share:
    match = _SHARE.fullmatch(part)
    if match is None:
        return Share(check_proposer(part))
    weight = int(match.group(2)) if len(match.group(2)) < 6 else 0
    if not 1 <= weight <= _MAX_SHARE:
        raise ProposerError(f"invalid share {match.group(2)[:20]} for {match.group(1)}: use 1 to {_MAX_SHARE}")
    return Share(check_proposer(match.group(1).strip()), weight)


def check_proposer(name: str) -> str:
    """The normalised name of one proposer. Raises ProposerError for an unknown one."""
    if name in (PLAYBOOK, PASTE):
        return name
    if "," in name and not name.startswith("command:"):
        raise ProposerError(f"unknown proposer after a comma in {name[:80]!r}: write openai:A=2,gemini:B=1,playbook=1")
    if ":" not in name:
        known = f"{PLAYBOOK}, {PASTE}, openai:MODEL, gemini:MODEL or command:CMD"
        raise ProposerError(f"unknown proposer {name[:80]!r}: use {known}")
    return str(parse_spec(name))


def apportion(shares: Sequence[Share], count: int, round_number: int) -> tuple[int, ...]:
    """How many of a round's ``count`` ideas each proposer is asked for.

    Places form one endless sequence (highest averages with Webster's divisors), and each round takes the next ``count`` of
    them. This keeps the shares over many rounds, even with one idea a round; rounding each round separately would not.
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
    """A ``Proposer`` that asks several proposers, each for its share."""

    def __init__(self, shares: Sequence[Share], writer: str, open_proposer: Callable[[str], Proposer]) -> None:
        """``writer`` writes the code of ideas that name no writer; if empty, the idea's author does.

        ``open_proposer`` opens a proposer by its name on first use; it raises ProposerError.
        """
        self._shares = tuple(shares)
        self._writer = writer
        self._open_proposer = open_proposer
        self._opened: dict[str, Proposer] = {}

    @property
    def author(self) -> Author:
        return Author(self._shares[0].proposer)

    def open_all(self) -> None:
        """Open all named proposers, to report a missing key early. Raises ProposerError."""
        for name in (*(share.proposer for share in self._shares), *filter(None, [self._writer])):
            self._proposer(name)

    def _proposer(self, name: str) -> Proposer:
        if name not in self._opened:
            self._opened[name] = self._open_proposer(name)
        return self._opened[name]

    async def propose(self, request: IdeaRequest, calls: Calls) -> tuple[Proposal, ...]:
        """The ideas of all proposers, asked concurrently. The places of a proposer that fails stay empty.

        If all fail, raises the error of the first one.
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
        """Asks the idea's writer, else the session's writer, else the idea's author. The playbook writes the naive port and
        tuning ideas."""
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
        """The idea's author; for an idea of the engineer, the first proposer that can write code."""
        if not author.is_engineer:
            return check_proposer(author.name)
        return next((share.proposer for share in self._shares if share.proposer != PLAYBOOK), PLAYBOOK)

    async def repair(self, request: RepairRequest, calls: Calls) -> str | None:
        """Asks the kernel's author."""
        return await self._proposer(check_proposer(request.kernel.author.name)).repair(request, calls)

    async def close(self) -> None:
        """Close all opened proposers."""
        while self._opened:
            await self._opened.popitem()[1].close()

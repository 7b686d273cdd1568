"""Splits the ideas of a round among several proposers by share, and chooses who writes and repairs each kernel.

Models do not write the naive port: it comes from the playbook, or is generated from the reference.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engine.domain.errors import BudgetExhausted, ProposerError
from engine.domain.model import AGENT, PLAYBOOK, Author, CallRole
from engine.domain.settings import ALL_ROLES, EFFORTS, ModelServer, ModelSettings
from engine.domain.work import Proposal
from engine.ideas.models.providers import NAMES, PROVIDERS, endpoint
from engine.ideas.models.registry import parse_spec
from engine.ideas.playbook_file import ROOT
from engine.ideas.proposer import Calls, CodeRequest, IdeaRequest, Implementation, Proposer, RepairRequest
from engine.ideas.tuning import is_tuning

PASTE = "paste"
_MAX_SHARE = 1_000
_MAX_PROPOSERS = 16
_BETWEEN = re.compile(rf",(?=\s*(?:(?:{'|'.join(PROVIDERS)}):|(?:playbook|paste|agent)\s*(?:=|,|$)))")
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
    if AGENT in names and len(names) > 1:
        raise ProposerError(f"{AGENT} takes no share: coding agents may propose in every session")
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
    if name in (PLAYBOOK, PASTE, AGENT):
        return name
    if "," in name and not name.startswith("command:"):
        raise ProposerError(f"unknown proposer after a comma in {name[:80]!r}: write openai:A=2,gemini:B=1,playbook=1")
    if ":" not in name:
        known = f"{PLAYBOOK}, {PASTE}, {AGENT}, {NAMES}"
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


def check_models(models: ModelSettings) -> None:
    """Raises ProposerError for an unknown proposer, writer, role or server."""
    parse_mix(models.source)
    if models.writer:
        check_proposer(models.writer)
    for server in models.servers:
        name, _, model = server.proposer.partition(":")
        if name not in PROVIDERS:
            raise ProposerError(
                f"unknown proposer {server.proposer[:80]!r} of a server: name {', '.join(PROVIDERS)}, or a model"
            )
        if model:
            check_proposer(server.proposer)
        endpoint(PROVIDERS[name], server)
    for role, options in models.options.items():
        if role not in (ALL_ROLES, *CallRole):
            raise ProposerError(f"unknown role {role[:40]!r}: use {ALL_ROLES}, {', '.join(CallRole)}")
        if options.effort and options.effort not in EFFORTS:
            raise ProposerError(f"unknown effort {options.effort[:40]!r}: use {', '.join(EFFORTS)}")


def proposers_of(models: ModelSettings) -> tuple[str, ...]:
    """All proposers and the writer, each once."""
    named = (*(share.proposer for share in parse_mix(models.source)), *filter(None, [models.writer]))
    return tuple(dict.fromkeys(check_proposer(name) for name in named))


class Mix:
    """A ``Proposer`` that asks the proposers of the session's settings, each for its share.

    The settings are those of the session's state at each question, so they can change while it runs.
    """

    def __init__(self, models: ModelSettings, open_proposer: Callable[[str, ModelSettings], Proposer]) -> None:
        """``open_proposer`` opens a proposer by its name on first use, and again once its server has changed; it raises
        ProposerError. Raises ProposerError if ``models`` name an unknown one."""
        check_models(models)
        self._models = models
        self._open_proposer = open_proposer
        self._opened: dict[str, tuple[ModelServer | None, Proposer]] = {}
        self._replaced: list[Proposer] = []

    @property
    def models(self) -> ModelSettings:
        """The settings that it was made with."""
        return self._models

    @property
    def author(self) -> Author:
        return Author(parse_mix(self._models.source)[0].proposer)

    def open_all(self) -> None:
        """Open all named proposers, to report a missing key early. Raises ProposerError."""
        for name in proposers_of(self._models):
            self._proposer(name, self._models)

    def _proposer(self, name: str, models: ModelSettings) -> Proposer:
        server = models.server(name)
        known = self._opened.get(name)
        if known is not None and known[0] == server:
            return known[1]
        opened = self._open_proposer(name, models)
        if known is not None:
            self._replaced.append(known[1])
        self._opened[name] = (server, opened)
        return opened

    async def propose(self, request: IdeaRequest, calls: Calls) -> tuple[Proposal, ...]:
        """The ideas of all proposers, asked concurrently. The places of a proposer that fails stay empty.

        If all fail, raises the error of the first one.
        """
        models = request.state.models
        if request.round == 0:
            return await self._proposer(PLAYBOOK, models).propose(request, calls)
        shares = parse_mix(models.source)
        counts = apportion(shares, request.count, request.round)
        questions = [
            self._ask(share.proposer, replace(request, count=count), calls)
            for share, count in zip(shares, counts, strict=True)
            if count
        ]
        answers = await asyncio.gather(*questions, return_exceptions=True)
        proposals = tuple(proposal for answer in answers if not isinstance(answer, BaseException) for proposal in answer)
        for answer in answers:
            if isinstance(answer, BaseException) and not (proposals and isinstance(answer, ProposerError | BudgetExhausted)):
                raise answer
        return proposals

    async def _ask(self, name: str, request: IdeaRequest, calls: Calls) -> tuple[Proposal, ...]:
        return await self._proposer(name, request.state.models).propose(request, calls)

    async def implement(self, request: CodeRequest, calls: Calls) -> Implementation:
        """Asks the idea's writer, else the session's writer, else the idea's author. The playbook writes the naive port and
        tuning ideas."""
        writer = self._proposer(self._writer_of(request), request.state.models)
        answer = await writer.implement(request, calls)
        return Implementation(answer.drafts, answer.note, answer.author or writer.author)

    def _writer_of(self, request: CodeRequest) -> str:
        idea = request.idea
        if idea.text.key == ROOT or is_tuning(idea.text.key):
            return PLAYBOOK
        if idea.writer:
            return check_proposer(idea.writer)
        models = request.state.models
        if models.writer:
            return check_proposer(models.writer)
        return self._author_as_writer(idea.author, models)

    def _author_as_writer(self, author: Author, models: ModelSettings) -> str:
        """The idea's author; for an idea of a person or an agent, the first proposer that can write code."""
        if not (author.decides or author.is_agent):
            return check_proposer(author.name)
        return next((share.proposer for share in parse_mix(models.source) if share.proposer != PLAYBOOK), PLAYBOOK)

    async def repair(self, request: RepairRequest, calls: Calls) -> str | None:
        """Asks the kernel's author."""
        author = check_proposer(request.kernel.author.name)
        return await self._proposer(author, request.state.models).repair(request, calls)

    async def close(self) -> None:
        """Close all opened proposers."""
        self._replaced += [proposer for _, proposer in self._opened.values()]
        self._opened.clear()
        while self._replaced:
            await self._replaced.pop().close()

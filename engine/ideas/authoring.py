"""A model, or whoever stands in for one, as a source: ideas in words first, then code for one idea, then repairs of it.

Knows what is done with replies: which ideas are kept, how many implementations are written and how many are variants of their
tunables. What is asked is questions.py's, how replies are read is replies.py's, who pays is asking.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from engine.build.tunables import parse_requires, parse_tunables, variants
from engine.domain.errors import BudgetExhausted, CallCancelled, JournalError, SourceError
from engine.domain.model import Author, CallRole, Dialect, Draft
from engine.domain.similarity import near_duplicate
from engine.domain.state import SessionState
from engine.domain.work import Proposal
from engine.ideas import questions
from engine.ideas.asking import ByHand, Desk, Question, Respondent, Sitting
from engine.ideas.fanning import chosen, in_turn
from engine.ideas.replies import SUFFIXES, ReadCode, ReplyError, read_code, read_ideas
from engine.ideas.source import Calls, CodeRequest, IdeaRequest, Implementation, RepairRequest
from engine.ideas.spread import spread
from engine.ideas.tuning import constants

SPARE = 2
"""Ideas asked for beyond what a round takes, so that it stays full when some repeat earlier ones or crowd one category."""

_IDEAS_REASKS = 2
"""Ideas that cannot be read stop the session, so a model is given one chance more than for code."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """An ``IdeaSource`` over one model. The first port is not its business: see ``mix``."""

    respondent: Respondent
    desk: Desk

    @property
    def author(self) -> Author:
        return Author(self.respondent.name)

    async def propose(self, request: IdeaRequest, calls: Calls) -> tuple[Proposal, ...]:
        """Ideas spread over the categories, new ones only; behind them the titles that say something known again, so that
        the session records them as dropped.

        Raises ReplyError, ModelError, CallCancelled, BudgetExhausted.
        """
        if request.count < 1:
            return ()
        prompt = questions.ideas(request, self.author, request.count + SPARE, _remarks(request, calls))
        read = partial(self._read_ideas, request)
        question = Question(CallRole.IDEAS, prompt, read, _IDEAS_REASKS, anew=True)
        return await self.desk.sit(self.respondent, calls).ask(question)

    def _read_ideas(self, request: IdeaRequest, reply: str) -> tuple[Proposal, ...]:
        found = [Proposal(idea.text, idea.parent, self.author) for idea in read_ideas(reply, request.parents)]
        fresh, known = _told_apart(request.state, found)
        if not fresh:
            titles = "; ".join(proposal.text.title for proposal in known)
            raise ReplyError(f"every idea repeats one that was tried or proposed before: {titles}")
        chosen = spread(fresh, request.count, category=lambda p: p.text.category, worth=lambda p: p.text.predicted or 1.0)
        return (*chosen, *known)

    async def implement(self, request: CodeRequest, calls: Calls) -> Implementation:
        """Half of the implementations, rounded up, are written, each told to differ from those before; the rest are variants
        of their tunables, or written too where there are too few. By hand one is written.

        What could not be written is said in the note; a call that someone cancels ends the writing, and what is written stays.
        Raises ModelError; BudgetExhausted while nothing is written.
        """
        sitting = self.desk.sit(self.respondent, calls)
        by_hand = isinstance(self.respondent, ByHand)
        branch = request.idea.branch
        enough, most = (1, 1) if by_hand else ((branch + 1) // 2, branch)
        written: list[ReadCode] = []
        notes: list[str] = []
        drafts: tuple[Draft, ...] = ()
        for number in range(1, most + 1):
            if number > enough and len(drafts) >= branch:
                break
            try:
                turn = questions.Turn(number, most, tuple(code.text for code in written))
                written.append(await self._write(request, sitting, turn))
            except ReplyError as error:
                notes.append(f"implementation {number}: {error}")
                continue
            except CallCancelled as error:
                notes.append(f"implementation {number}: {error}")
                break
            except BudgetExhausted as error:
                if not written:
                    raise
                notes.append(str(error))
                break
            drafts = fan_out(request, written)
        return Implementation(drafts, "; ".join(notes), self.author)

    async def _write(self, request: CodeRequest, sitting: Sitting, turn: questions.Turn) -> ReadCode:
        def read(reply: str) -> ReadCode:
            code = read_code(reply, request.dialect)
            if code.text in turn.written:
                raise ReplyError("the code is that of an earlier implementation: write a different one")
            if code.text.strip() == (request.parent_source or "").strip():
                raise ReplyError("the code is that of the kernel to improve: write the idea into it")
            _check_tunables(request.state, code.text, request.dialect)
            return code

        return await sitting.ask(Question(CallRole.CODE, questions.code(request, turn), read))

    async def repair(self, request: RepairRequest, calls: Calls) -> str | None:
        """A new source under the same contract with the same tunables; ``None`` where no usable one came, or the question was
        cancelled by hand."""
        question = Question(CallRole.REPAIR, questions.repair(request), partial(_read_repair, request))
        try:
            return await self.desk.sit(self.respondent, calls).ask(question)
        except (ReplyError, CallCancelled):
            return None

    async def close(self) -> None:
        """The model is let go of by whoever opened it."""


def _remarks(request: IdeaRequest, calls: Calls) -> dict[str, str]:
    """What the compilers of the round's parents had to say; one whose log is lost is described without."""
    found: dict[str, str] = {}
    for name in request.parents:
        kernel = request.state.kernels.get(name)
        if kernel is None or not kernel.build_log:
            continue
        try:
            found[name] = calls.text(kernel.build_log)
        except JournalError:
            continue
    return found


def _told_apart(state: SessionState, found: Sequence[Proposal]) -> tuple[list[Proposal], list[Proposal]]:
    """(new ones, ones that say what an earlier idea of the session or of the same reply says)."""
    earlier = [(idea.text, idea.parent) for idea in state.ideas.values()]
    fresh: list[Proposal] = []
    known: list[Proposal] = []
    for proposal in found:
        before = [*earlier, *((p.text, p.parent) for p in fresh)]
        repeats = any(near_duplicate(text, proposal.text, same_parent=parent == proposal.parent) for text, parent in before)
        (known if repeats else fresh).append(proposal)
    return fresh, known


def _check_tunables(state: SessionState, source: str, dialect: Dialect) -> None:
    """Raises ReplyError where a tunable has the name of a constant, or no combination of values is allowed."""
    names = constants(state)
    tunables = parse_tunables(source, dialect)
    for tunable in tunables:
        if tunable.name in names:
            raise ReplyError(f"the tunable {tunable.name} has the name of a constant of problem.h: choose another")
    try:
        variants(tunables, parse_requires(source, dialect), names, 1, 0)
    except SourceError as error:
        raise ReplyError(f"the code cannot be used: {error}") from error


def fan_out(request: CodeRequest, written: Sequence[ReadCode]) -> tuple[Draft, ...]:
    """Variants of all that was written."""
    return in_turn(request, [_drafts(request, code, number) for number, code in enumerate(written, 1)])


def _drafts(request: CodeRequest, code: ReadCode, number: int) -> list[Draft]:
    dialect = request.dialect
    found = chosen(request, code.text, parse_tunables(code.text, dialect), parse_requires(code.text, dialect))
    name = f"{request.idea.id}-{number}{SUFFIXES[dialect]}"
    return [Draft(code.text, dialect, code.contract, name, dict(one)) for one in found]


def _read_repair(request: RepairRequest, reply: str) -> str:
    kernel = request.kernel
    code = read_code(reply, kernel.dialect)
    if code.text.strip() == request.source.strip():
        raise ReplyError("the code is the one that failed, unchanged")
    if code.contract is not kernel.contract:
        raise ReplyError(
            f"the code is under the {code.contract.value} contract: the kernel stays under {kernel.contract.value}"
        )
    declared = {tunable.name for tunable in parse_tunables(code.text, kernel.dialect)}
    if declared != set(kernel.tunables):
        kept = ", ".join(kernel.tunables) or "none"
        raise ReplyError(f"the code declares other tunables than the kernel it mends: keep {kept}")
    return code.text

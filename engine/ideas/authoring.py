"""A proposer and writer backed by a model or by a person: asks for ideas, then for the code of one idea, then for repairs.

Decides which ideas of a reply are kept, how many implementations are written and how many are variants of their tunables.
``prompts`` composes the prompts, ``replies`` parses replies, ``model_calls`` makes the calls and enforces the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from engine.domain.errors import BudgetExhausted, CallCancelled, JournalError, KernelCodeError
from engine.domain.model import Author, CallRole, Dialect, Draft
from engine.domain.queries import is_surplus
from engine.domain.similarity import near_duplicate
from engine.domain.state import ModelCall, SessionState
from engine.domain.work import Proposal
from engine.ideas.model_calls import ByHand, Conversation, ModelCalls, Question, Respondent
from engine.ideas.prompts import compose
from engine.ideas.proposer import Calls, CodeRequest, IdeaRequest, Implementation, RepairRequest
from engine.ideas.replies import ReadCode, ReplyError, read_code, read_ideas
from engine.ideas.selection import pick_diverse, take_in_turn, variant_drafts
from engine.ideas.tuning import constants
from engine.toolchain.kernel_file import KernelCode
from engine.toolchain.tunables import parse_requires, parse_tunables, variants

SPARE = 2
"""Ideas requested beyond those of a round, to fill it even if some repeat earlier ideas or share a category."""

_IDEAS_REASKS = 2
"""How often a model is asked again for ideas: once more than for code, because without ideas the session stops."""


@dataclass(frozen=True, slots=True)
class ModelProposer:
    """A ``Proposer`` backed by one model or person. It does not write the naive port: see ``mix``."""

    respondent: Respondent
    model_calls: ModelCalls

    @property
    def author(self) -> Author:
        return Author(self.respondent.name)

    async def propose(self, request: IdeaRequest, calls: Calls) -> tuple[Proposal, ...]:
        """New ideas spread over the categories, followed by the surplus, which the session parks, and by those that repeat
        earlier ideas, which it records as dropped.

        Raises ReplyError, ModelError, CallCancelled, BudgetExhausted.
        """
        if request.count < 1:
            return ()
        prompt = compose.ideas(request, self.author, request.count + SPARE, _remarks(request, calls))
        read = partial(self._read_ideas, request)
        question = Question(CallRole.IDEAS, prompt, read, _IDEAS_REASKS, retry_failed=True, read_cut=read)
        return await self.model_calls.conversation(self.respondent, calls).ask(question)

    def _read_ideas(self, request: IdeaRequest, reply: str) -> tuple[Proposal, ...]:
        proposals = [Proposal(idea.text, idea.parent, self.author) for idea in read_ideas(reply, request.parents)]
        fresh, repeated = _split_repeated(request.state, proposals)
        if not fresh:
            titles = "; ".join(proposal.text.title for proposal in repeated)
            raise ReplyError(f"every idea repeats an earlier one: {titles}")
        picked = pick_diverse(fresh, request.count)
        surplus = (replace(proposal, surplus=True) for proposal in fresh if proposal not in picked)
        return (*picked, *surplus, *repeated)

    async def implement(self, request: CodeRequest, calls: Calls) -> Implementation:
        """Half of the implementations, rounded up, are written, each different from the others. The rest are variants of
        their tunables; where there are too few variants, more are written. A person writes one.

        The note lists the implementations that failed. After a cancelled call no more are written; those written are kept.
        Raises ModelError; BudgetExhausted if nothing was written.
        """
        conversation = self.model_calls.conversation(self.respondent, calls)
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
                turn = compose.Turn(number, most, tuple(code.text for code in written))
                written.append(await self._write(request, conversation, turn))
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
            drafts = drafts_of(request, written)
        return Implementation(drafts, "; ".join(notes), self.author)

    async def _write(self, request: CodeRequest, conversation: Conversation, turn: compose.Turn) -> ReadCode:
        def read(reply: str) -> ReadCode:
            code = read_code(reply, request.dialect)
            if code.text in turn.written:
                raise ReplyError("the code is identical to an earlier implementation: write a different one")
            if code.text.strip() == (request.parent_code or "").strip():
                raise ReplyError("the code is identical to the parent kernel: implement the idea")
            _check_tunables(request.state, code.text, request.dialect)
            return code

        return await conversation.ask(Question(CallRole.CODE, compose.code(request, turn), read))

    async def repair(self, request: RepairRequest, calls: Calls) -> str | None:
        """Revised code under the same contract with the same tunables; ``None`` if there was no usable reply or the call was
        cancelled."""
        question = Question(CallRole.REPAIR, compose.repair(request), partial(_read_repair, request))
        try:
            return await self.model_calls.conversation(self.respondent, calls).ask(question)
        except (ReplyError, CallCancelled):
            return None

    async def close(self) -> None:
        if not isinstance(self.respondent, ByHand):
            await self.respondent.close()


def _remarks(request: IdeaRequest, calls: Calls) -> dict[str, str]:
    """Compiler output of the round's parents, by kernel id; missing logs are skipped."""
    remarks: dict[str, str] = {}
    for name in request.parents:
        kernel = request.state.kernels.get(name)
        if kernel is None or not kernel.build_log:
            continue
        try:
            remarks[name] = calls.text(kernel.build_log)
        except JournalError:
            continue
    return remarks


def _split_repeated(state: SessionState, proposals: Sequence[Proposal]) -> tuple[list[Proposal], list[Proposal]]:
    """(new ideas, near-duplicates of an earlier idea of the session or of the same reply)."""
    earlier = [(idea.text, idea.parent) for idea in state.ideas.values() if not is_surplus(idea)]
    fresh: list[Proposal] = []
    repeated: list[Proposal] = []
    for proposal in proposals:
        before = [*earlier, *((p.text, p.parent) for p in fresh)]
        repeats = any(near_duplicate(text, proposal.text, same_parent=parent == proposal.parent) for text, parent in before)
        (repeated if repeats else fresh).append(proposal)
    return fresh, repeated


def _check_tunables(state: SessionState, code: str, dialect: Dialect) -> None:
    """Raises ReplyError if a tunable has the name of a constant, or if no combination of values meets the requirements."""
    names = constants(state)
    tunables = parse_tunables(code, dialect)
    for tunable in tunables:
        if tunable.name in names:
            raise ReplyError(f"the tunable {tunable.name} has the name of a problem.h constant: choose another name")
    try:
        variants(tunables, parse_requires(code, dialect), names, 1, 0)
    except KernelCodeError as error:
        raise ReplyError(f"the code is not valid: {error}") from error


def unusable_reply(state: SessionState, call: ModelCall, reply: str) -> str:
    """Why a reply that a person gives does not answer the call; empty if it does."""
    dialect = dialect_of(state)
    kernel = state.kernels.get(call.work.subject)
    try:
        match call.role:
            case CallRole.IDEAS:
                read_ideas(reply, tuple(state.kernels))
            case CallRole.CODE:
                _check_tunables(state, read_code(reply, dialect).text, dialect)
            case CallRole.REPAIR:
                read_code(reply, kernel.dialect if kernel is not None else dialect)
    except ReplyError as error:
        return str(error)
    return ""


def dialect_of(state: SessionState) -> Dialect:
    """The dialect of new kernels: what the session asks for, else that of its device; ``python`` where no other can receive the
    arguments."""
    if state.preparation is not None and not state.preparation.signature.scalar_only:
        return Dialect.PYTHON
    if state.opened is not None and state.opened.settings.dialect:
        return Dialect(state.opened.settings.dialect)
    return Dialect.CUDA if state.device is not None and state.device.kind == "cuda" else Dialect.CPP


def drafts_of(request: CodeRequest, written: Sequence[ReadCode]) -> tuple[Draft, ...]:
    """Variants of all written implementations."""
    return take_in_turn(request, [_variants(request, code, number) for number, code in enumerate(written, 1)])


def _variants(request: CodeRequest, code: ReadCode, number: int) -> list[Draft]:
    dialect = request.dialect
    kernel = KernelCode(code.text, dialect, code.contract, f"{request.idea.id}-{number}{dialect.suffix}")
    return variant_drafts(
        request, kernel, parse_tunables(code.text, dialect), parse_requires(code.text, dialect), salt=code.text
    )


def _read_repair(request: RepairRequest, reply: str) -> str:
    kernel = request.kernel
    code = read_code(reply, kernel.dialect)
    if code.text.strip() == request.code.strip():
        raise ReplyError("the code is identical to the failed kernel")
    if code.contract is not kernel.contract:
        raise ReplyError(f"the code uses the {code.contract.value} contract: keep the {kernel.contract.value} contract")
    declared = {tunable.name for tunable in parse_tunables(code.text, kernel.dialect)}
    if declared != set(kernel.tunables):
        kept = ", ".join(kernel.tunables) or "none"
        raise ReplyError(f"the code changes the tunables of the kernel: keep {kept}")
    return code.text

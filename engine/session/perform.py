"""Performs work: ``perform(work, …) -> result`` is the only place with effects, each under a time limit.

Chooses the port and its arguments; decides nothing about results. If a port raises or times out, the work is ``Impossible``,
which is not a verdict on a kernel.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from engine.domain import queries, races
from engine.domain import work as w
from engine.domain.device_waits import is_waiting
from engine.domain.errors import BudgetExhausted, CallCancelled, EspalierError
from engine.domain.model import Blob, Contract, Dialect, Failure, FailureKind
from engine.domain.state import Kernel, SessionState
from engine.domain.strategy.evidence import combines
from engine.ideas.authoring import dialect_of
from engine.ideas.proposer import Calls, CodeRequest, IdeaRequest, Proposer, RepairRequest
from engine.journal.blobs import Blobs
from engine.session.dispatch import dispatch_draft
from engine.session.ports import Bench, Say
from engine.session.tuning import tune
from engine.toolchain.kernel_file import KernelCode

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Time limits in seconds after which a port counts as stuck. Generous, because the ports have their own limits.

    ``model`` is ``None``: a person may have to answer, an outage may be waited out, and each attempt has its own limit.
    """

    prepare: float = 1800.0
    build: float = 1200.0
    verify: float = 1800.0
    measure: float = 3600.0
    profile: float = 900.0
    tune: float = 14_400.0
    model: float | None = None


@dataclass(frozen=True, slots=True)
class Effects:
    """The ports and stores that work needs."""

    bench: Bench
    ideas: Proposer
    blobs: Blobs
    ceilings: Ceilings = field(default_factory=Ceilings)
    session: Path | None = None
    """The session's folder, for writers that work in a workspace."""
    form: Callable[[str, Dialect, Contract], str] = lambda code, dialect, contract: ""
    """Digest of the normal form of code; empty where there is none."""


async def perform(work: w.Work, state: SessionState, effects: Effects, calls: Calls, say: Say) -> w.Result:
    """Do the work and return its result. Raises only CancelledError."""
    seconds = _ceiling(work, effects.ceilings)
    try:
        async with asyncio.timeout(seconds) as limit:
            return await _perform(work, state, effects, calls, _without_waits(say, limit, seconds))
    except TimeoutError as error:
        if limit.expired():
            return w.Impossible(f"timed out after {seconds:g} s")
        return _unexpected_error(work, error)
    except BudgetExhausted as error:
        return w.Unaffordable(str(error))
    except CallCancelled as error:
        return w.Impossible(str(error), called_off=True)
    except EspalierError as error:
        return w.Impossible(str(error))
    except Exception as error:
        return _unexpected_error(work, error)


def _without_waits(say: Say, limit: asyncio.Timeout, seconds: float | None) -> Say:
    """``say``, which restarts the time limit while it tells whom the device is waited for: a wait is no work."""

    def say_or_extend(text: str) -> None:
        if seconds is not None and is_waiting(text) and not limit.expired():
            limit.reschedule(asyncio.get_running_loop().time() + seconds)
        say(text)

    return say_or_extend


def _unexpected_error(work: w.Work, error: Exception) -> w.Impossible:
    _LOG.error("%s raised", work.key, exc_info=error)
    message = " ".join(str(error).split())
    return w.Impossible(f"{type(error).__name__}: {message}" if message else type(error).__name__)


def _ceiling(work: w.Work, ceilings: Ceilings) -> float | None:
    match work:
        case w.Prepare():
            return ceilings.prepare
        case w.Build():
            return ceilings.build
        case w.Verify():
            return ceilings.verify
        case w.Measure() | w.Sustain() | w.Sanitize() | w.Race():
            return ceilings.measure
        case w.ReadCounters():
            return ceilings.profile
        case w.Tune():
            return ceilings.tune
        case w.Propose() | w.Implement() | w.Repair():
            return ceilings.model


async def _perform(work: w.Work, state: SessionState, effects: Effects, calls: Calls, say: Say) -> w.Result:
    match work:
        case w.Prepare():
            return await effects.bench.prepare(say)
        case w.Build():
            return await effects.bench.build(*_kernel_and_code(work.kernel, state, effects), say)
        case w.Verify():
            return await effects.bench.verify(*_kernel_and_code(work.kernel, state, effects), say)
        case w.Measure():
            return await effects.bench.measure(*_kernel_and_code(work.kernel, state, effects), say)
        case w.Race():
            pair = (*_kernel_and_code(work.kernel, state, effects), *_kernel_and_code(work.against, state, effects))
            return await effects.bench.race(*pair, work.effort, races.deciding_regime(state), say)
        case w.Sustain():
            return await effects.bench.sustain(*_kernel_and_code(work.kernel, state, effects), say)
        case w.Sanitize():
            return await effects.bench.sanitize(*_kernel_and_code(work.kernel, state, effects), say)
        case w.ReadCounters():
            return await effects.bench.read_counters(*_kernel_and_code(work.kernel, state, effects), say)
        case w.Tune():
            kernel, code = _kernel_and_code(work.kernel, state, effects)
            return await tune(kernel, code, state, effects.bench, effects.blobs.put, say)
        case w.Propose():
            return await _propose(work, state, effects, calls)
        case w.Implement():
            return await _implement(work, state, effects, calls)
        case w.Repair():
            return await _repair(work, state, effects, calls)


def _kernel_and_code(kernel_id: str, state: SessionState, effects: Effects) -> tuple[Kernel, str]:
    kernel = state.kernels[kernel_id]
    return kernel, effects.blobs.text(kernel.source)


def _code(kernel: Kernel, effects: Effects) -> KernelCode:
    return KernelCode(effects.blobs.text(kernel.source), kernel.dialect, kernel.contract, kernel.name)


async def _propose(work: w.Propose, state: SessionState, effects: Effects, calls: Calls) -> w.Result:
    known = dict.fromkeys((*work.parents, *(k.id for k in queries.frontier(state))))
    code = {k: effects.blobs.text(state.kernels[k].source) for k in known}
    request = IdeaRequest(state, work.round, work.parents, work.count, dialect_of(state), code)
    return w.Proposals(await effects.ideas.propose(request, calls))


async def _implement(work: w.Implement, state: SessionState, effects: Effects, calls: Calls) -> w.Result:
    idea = state.ideas[work.idea]
    if combines(idea):
        return dispatch_draft(state, lambda one: _code(one, effects), effects.blobs.put)
    parent = state.kernels.get(idea.parent or "")
    code = effects.blobs.text(parent.source) if parent else None
    materials = {k: effects.blobs.text(state.kernels[k].source) for k in idea.materials if k in state.kernels}
    answer = await effects.ideas.implement(CodeRequest(state, idea, dialect_of(state), code, materials, effects.session), calls)
    author = answer.author or effects.ideas.author
    drafts = [
        w.StoredDraft(
            d.name, d.dialect, d.contract, _store(effects, d.source), author, d.tunables,
            effects.form(d.source, d.dialect, d.contract),
        )
        for d in answer.drafts[: idea.branch]
    ]  # fmt: skip
    return w.Drafts(tuple(drafts), answer.note)


async def _repair(work: w.Repair, state: SessionState, effects: Effects, calls: Calls) -> w.Result:
    kernel, code = _kernel_and_code(work.kernel, state, effects)
    failure = kernel.failure or Failure(FailureKind.BUILD_FAILED, "the reason was not recorded")
    log = effects.blobs.text(failure.log) if failure.log else ""
    past = zip(kernel.earlier, kernel.failures, strict=False)
    earlier = tuple((effects.blobs.text(source), failed) for source, failed in past)
    request = RepairRequest(state, kernel, code, failure.reason, log, effects.session, earlier)
    revised = await effects.ideas.repair(request, calls)
    return w.Failed(failure) if revised is None else w.Repaired(_store(effects, revised))


def _store(effects: Effects, text: str) -> Blob:
    return effects.blobs.put(text.encode("utf-8", "replace"))

"""``perform(work, state, ports, say) -> result``: the one place where effects happen, each under a time limit.

Knows which port does which work and what it must be told; decides nothing about what a result means. A port that raises,
or that does not come back in time, makes the work ``Impossible``: that says nothing about any kernel.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from engine.domain import queries
from engine.domain import work as w
from engine.domain.errors import BudgetExhausted, CallCancelled, EspalierError
from engine.domain.model import Blob, Dialect, Failure, FailureKind
from engine.domain.state import Kernel, SessionState
from engine.ideas.source import Calls, CodeRequest, IdeaRequest, IdeaSource, RepairRequest
from engine.journal.blobs import Blobs
from engine.session.ports import Bench, Say

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Seconds after which a port is taken to be stuck. Generous: what is slow by nature has limits of its own below.

    ``thought`` is ``None`` where a person answers.
    """

    prepare: float = 1800.0
    build: float = 1200.0
    verify: float = 1800.0
    measure: float = 3600.0
    thought: float | None = 1800.0


@dataclass(frozen=True, slots=True)
class Effects:
    """All that can be acted with."""

    bench: Bench
    ideas: IdeaSource
    blobs: Blobs
    ceilings: Ceilings = field(default_factory=Ceilings)


async def perform(work: w.Work, state: SessionState, ports: Effects, calls: Calls, say: Say) -> w.Result:
    """Do the work and return what came of it; raises nothing but cancellation."""
    seconds = _ceiling(work, ports.ceilings)
    try:
        async with asyncio.timeout(seconds) as limit:
            return await _perform(work, state, ports, calls, say)
    except TimeoutError as error:
        if limit.expired():
            return w.Impossible(f"{work.key} did not come back within {seconds:g} s")
        return _unexpected(work, error)
    except BudgetExhausted as error:
        return w.Unaffordable(str(error))
    except CallCancelled as error:
        return w.Impossible(str(error), called_off=True)
    except EspalierError as error:
        return w.Impossible(str(error))
    except Exception as error:
        return _unexpected(work, error)


def _unexpected(work: w.Work, error: Exception) -> w.Impossible:
    _LOG.error("%s raised", work.key, exc_info=error)
    words = " ".join(str(error).split())
    return w.Impossible(f"{type(error).__name__}: {words}" if words else type(error).__name__)


def _ceiling(work: w.Work, ceilings: Ceilings) -> float | None:
    match work:
        case w.Prepare():
            return ceilings.prepare
        case w.Build():
            return ceilings.build
        case w.Verify():
            return ceilings.verify
        case w.Measure() | w.Sanitize() | w.Race():
            return ceilings.measure
        case w.Propose() | w.Implement() | w.Repair():
            return ceilings.thought


async def _perform(work: w.Work, state: SessionState, ports: Effects, calls: Calls, say: Say) -> w.Result:
    match work:
        case w.Prepare():
            return await ports.bench.prepare(say)
        case w.Build():
            return await ports.bench.build(*_subject(work.kernel, state, ports), say)
        case w.Verify():
            return await ports.bench.verify(*_subject(work.kernel, state, ports), say)
        case w.Measure():
            return await ports.bench.measure(*_subject(work.kernel, state, ports), say)
        case w.Race():
            pair = (*_subject(work.kernel, state, ports), *_subject(work.against, state, ports))
            return await ports.bench.race(*pair, work.effort, say)
        case w.Sanitize():
            return await ports.bench.sanitize(*_subject(work.kernel, state, ports), say)
        case w.Propose():
            return await _propose(work, state, ports, calls)
        case w.Implement():
            return await _implement(work, state, ports, calls)
        case w.Repair():
            return await _repair(work, state, ports, calls)


def _subject(kernel_id: str, state: SessionState, ports: Effects) -> tuple[Kernel, str]:
    kernel = state.kernels[kernel_id]
    return kernel, ports.blobs.text(kernel.source)


async def _propose(work: w.Propose, state: SessionState, ports: Effects, calls: Calls) -> w.Result:
    known = dict.fromkeys((*work.parents, *(k.id for k in queries.frontier(state))))
    sources = {k: ports.blobs.text(state.kernels[k].source) for k in known}
    request = IdeaRequest(state, work.round, work.parents, work.count, dialect_of(state), sources)
    return w.Proposals(await ports.ideas.propose(request, calls))


async def _implement(work: w.Implement, state: SessionState, ports: Effects, calls: Calls) -> w.Result:
    idea = state.ideas[work.idea]
    parent = state.kernels.get(idea.parent or "")
    source = ports.blobs.text(parent.source) if parent else None
    materials = {k: ports.blobs.text(state.kernels[k].source) for k in idea.materials if k in state.kernels}
    answer = await ports.ideas.implement(CodeRequest(state, idea, dialect_of(state), source, materials), calls)
    author = answer.author or ports.ideas.author
    drafts = [
        w.StoredDraft(d.name, d.dialect, d.contract, _store(ports, d.source), author, d.tunables)
        for d in answer.drafts[: idea.branch]
    ]
    return w.Drafts(tuple(drafts), answer.note)


async def _repair(work: w.Repair, state: SessionState, ports: Effects, calls: Calls) -> w.Result:
    kernel, source = _subject(work.kernel, state, ports)
    failure = kernel.failure or Failure(FailureKind.BUILD_FAILED, "the reason was not recorded")
    log = ports.blobs.text(failure.log) if failure.log else ""
    revised = await ports.ideas.repair(RepairRequest(state, kernel, source, failure.reason, log), calls)
    return w.Failed(failure) if revised is None else w.Repaired(_store(ports, revised))


def _store(ports: Effects, text: str) -> Blob:
    return ports.blobs.put(text.encode("utf-8", "replace"))


def dialect_of(state: SessionState) -> Dialect:
    """What the session's device builds; ``python`` where the reference takes arguments that no other dialect can receive."""
    if state.preparation is not None and not state.preparation.signature.scalar_only:
        return Dialect.PYTHON
    return Dialect.CUDA if state.device is not None and state.device.kind == "cuda" else Dialect.CPP

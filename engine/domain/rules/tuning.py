"""Tuning on each workload of a suite: when it is owed, who may ask for it, and the kernel that comes of it.

The engine tunes the best single kernel before a session on a suite closes, and any measured kernel on request. What it finds is
a kernel of its own: a dispatch of one member, which is verified, measured and raced like any other.
"""

from __future__ import annotations

from engine.domain import columns, queries
from engine.domain import events as e
from engine.domain import work as w
from engine.domain.errors import CommandRejected
from engine.domain.model import CATEGORIES, ENGINE, Contract, IdeaText
from engine.domain.rules.lookup import reopen_events
from engine.domain.state import Kernel, SessionState, Stage

_CATEGORY = CATEGORIES[4]


def decide(state: SessionState, kernel: Kernel) -> tuple[e.Event, ...]:
    """The events of a request to tune a kernel. Raises CommandRejected."""
    if kernel.id in state.tunings:
        return ()
    if reason := obstacle(state, kernel):
        raise CommandRejected(reason)
    return (*reopen_events(state), e.TuningAsked(kernel.id))


def obstacle(state: SessionState, kernel: Kernel) -> str:
    """Why a kernel cannot be tuned on each workload; empty if it can."""
    if len(columns.workloads(state)) < 2:
        return "this session has one workload: a tuning idea tries other values there"
    if kernel.contract is Contract.MODULE:
        return f"{kernel.id} is a python module: cuda, cpp and triton kernels are tuned on each workload"
    if kernel.members:
        return f"{kernel.id} is a dispatch: name one of its members ({', '.join(kernel.members)})"
    if not kernel.tunables:
        return f"{kernel.id} declares no tunables"
    if kernel.tuning is not None:
        return f"{kernel.id} was tuned already: remeasure it to tune it again"
    if kernel.stage is not Stage.MEASURED or kernel.same_as or queries.speedup(state, kernel) is None:
        return f"{kernel.id} has no measurement of its own on this device: remeasure it first"
    return ""


def requested(state: SessionState) -> tuple[Kernel, ...]:
    """The kernels whose tuning the engineer requested and that can still be tuned."""
    found = (state.kernels[name] for name in state.tunings if name in state.kernels)
    return tuple(kernel for kernel in found if not obstacle(state, kernel))


def finalist(state: SessionState) -> Kernel | None:
    """The best single kernel of a session that is about to close, if it can be tuned within the session's limits."""
    limits = state.limits
    spent = limits.seconds is not None and state.active_seconds >= limits.seconds
    full = limits.kernels is not None and len(state.kernels) >= limits.kernels
    best = columns.best_single(state)
    return best if best is not None and not spent and not full and not obstacle(state, best) else None


def events_of(state: SessionState, work: w.Tune, result: w.Result) -> tuple[e.Event, ...]:
    """What was found, and the kernel that has the values; nothing if the kernel changed meanwhile."""
    kernel = state.kernels.get(work.kernel)
    if kernel is None or kernel.attempt != work.attempt or kernel.stage is not Stage.MEASURED or kernel.tuning is not None:
        return ()
    match result:
        case w.Tuned():
            found = e.KernelTuned(
                kernel.id, work.attempt, result.by_workload, result.trials, result.note, result.seconds
            )  # fmt: skip
            return (found, *_drafted(state, kernel, result)) if result.source else (found,)
        case w.Impossible(reason) | w.Abandoned(reason):
            return (e.KernelTuned(kernel.id, work.attempt, note=reason),)
    raise TypeError(f"{type(result).__name__} is not a result of {work.key}")


def _drafted(state: SessionState, kernel: Kernel, result: w.Tuned) -> tuple[e.Event, ...]:
    current = queries.open_round(state)
    number = current.number if current is not None else queries.last_round(state) + 1
    changed = [one for one in result.by_workload if dict(one.tunables) != dict(kernel.tunables)]
    names = dict.fromkeys(n for one in changed for n, value in one.tunables.items() if kernel.tunables.get(n) != value)
    text = IdeaText(
        f"Tune {', '.join(names)} of {kernel.id} on each workload",
        _CATEGORY,
        f"Other values of its tunables were faster on {len(changed)} of {len(result.by_workload)} workloads. The code stays "
        "the same; the values of the nearest workload serve shapes between.",
        key=f"tune:{kernel.id}:suite",
    )
    idea, made = f"i{state.next_idea}", f"k{state.next_kernel}"
    return (
        e.IdeasProposed(number, (e.ProposedIdea(idea, text, kernel.id, ENGINE, 1),), from_source=False),
        e.IdeaSelected(idea),
        e.KernelDrafted(
            made, idea, kernel.id, number, ENGINE, f"{kernel.id}-tuned{kernel.dialect.suffix}", kernel.dialect, kernel.contract,
            result.source, members=(kernel.id,), choices=result.choices,
        ),
        e.IdeaImplemented(idea, (made,)),
    )  # fmt: skip

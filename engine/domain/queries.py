"""Queries on a session's state, shared by rules, screens and reports. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar, cast

from engine.domain import suite
from engine.domain.model import AGENT, PLAYBOOK, Device, Interval, Usage
from engine.domain.state import Idea, IdeaStatus, Kernel, ModelCall, Round, SessionState, Stage
from engine.domain.work import WorkKind

_Row = TypeVar("_Row")


def problem_and_workload(state: SessionState) -> tuple[str, str]:
    """(problem name, name of the workload, or of the suite as ``suite NAME``) of an opened session."""
    opened = state.opened
    if opened is None:
        return ("", "")
    return (opened.problem.name, suite.label(opened.settings.suite, opened.settings.workload))


def ranking_baseline(state: SessionState) -> str:
    """The baseline that speedups are ranked by."""
    return state.opened.settings.baseline if state.opened else "eager"


def device_label(state: SessionState) -> str:
    """The session's device; before it is prepared, the requested one."""
    return state.device.label if state.device else state.opened.device if state.opened else ""


def same_device(recorded: Device, here: Device) -> bool:
    """Whether measurements on the two devices are comparable."""
    return (recorded.kind, recorded.name, recorded.arch, recorded.units, recorded.software) == (
        here.kind, here.name, here.arch, here.units, here.software,
    )  # fmt: skip


def speedup(state: SessionState, kernel: Kernel) -> Interval | None:
    """The kernel's speedup over the ranking baseline as it was last prepared, or ``None``."""
    excluded = (Stage.QUARANTINED, Stage.FAILED, Stage.CANCELLED)
    if kernel.measurement is None or kernel.epoch != state.epoch or kernel.stage in excluded:
        return None
    return kernel.measurement.speedup.get(ranking_baseline(state))


def title(state: SessionState, kernel: Kernel) -> str:
    """The title of the kernel's idea, or the kernel's name."""
    idea = state.ideas.get(kernel.idea)
    return idea.text.title if idea else kernel.name


def idea_author(state: SessionState, kernel: Kernel) -> str:
    """Who proposed the kernel's idea, or who wrote the kernel."""
    idea = state.ideas.get(kernel.idea)
    return idea.author.name if idea else kernel.author.name


def is_precise(kernel: Kernel) -> bool:
    return kernel.measurement is not None and kernel.measurement.depth == "precise"


def is_pruned(state: SessionState, kernel_id: str) -> bool:
    """Whether the kernel or one of its ancestors was pruned."""
    return any(k in state.pruned for k in _upwards(state, kernel_id))


def _upwards(state: SessionState, kernel_id: str | None) -> Iterator[str]:
    seen: set[str] = set()
    while kernel_id is not None and kernel_id in state.kernels and kernel_id not in seen:
        seen.add(kernel_id)
        yield kernel_id
        kernel_id = state.kernels[kernel_id].parent


def lineage(state: SessionState, kernel_id: str) -> tuple[Kernel, ...]:
    """The kernel's ancestors and itself, root first."""
    return tuple(state.kernels[k] for k in reversed(tuple(_upwards(state, kernel_id))))


def descendants(state: SessionState, kernel_id: str) -> tuple[str, ...]:
    """The kernel and all its descendants, parents before children."""
    below: dict[str, None] = {}
    todo = [kernel_id]
    while todo:
        current = todo.pop()
        if current in state.kernels and current not in below:
            below[current] = None
            todo.extend(state.kernels[current].children)
    return tuple(below)


def verified(state: SessionState) -> tuple[Kernel, ...]:
    """Kernels that were verified, on this device or another, and did not fail later."""
    return tuple(k for k in state.kernels.values() if _is_verified(k))


def _is_verified(kernel: Kernel) -> bool:
    return kernel.verification is not None and kernel.stage not in (Stage.QUARANTINED, Stage.FAILED, Stage.CANCELLED)


@lru_cache(maxsize=4)  # one state is asked for several times, and its kernels may be ten thousand
def ranked(state: SessionState) -> tuple[Kernel, ...]:
    """Measured kernels of the present device, best first; precise measurements rank above screens of the same value.

    The lower end of the interval decides: a lucky screen with a wide interval ranks low. Kernels whose time is not corroborated
    rank below all others, whatever they claim.
    """
    rated = [(rating(k, s), k) for k in verified(state) if (s := speedup(state, k)) is not None]
    rated.sort(key=lambda pair: pair[0])
    return tuple(kernel for _, kernel in rated)


Rating = tuple[bool, float, bool, float, int, str]
"""The sort key of the ranking: smaller is better."""


def rating(kernel: Kernel, ratio: Interval) -> Rating:
    """The rating of a kernel with this speedup; of two equal kernels the older one is better."""
    return (not is_sound(kernel), -ratio.low, not is_precise(kernel), -ratio.value, len(kernel.id), kernel.id)


def incumbent(state: SessionState) -> Kernel | None:
    """The kernel of the last ``IncumbentChanged``, or its successor if that kernel is no longer eligible."""
    last = state.kernels.get(state.incumbent)
    return last if last is not None and may_lead(state, last) else successor(state)


@lru_cache(maxsize=4)  # a report asks for every event of one state, and ranking looks at all kernels
def successor(state: SessionState) -> Kernel | None:
    """The next incumbent without a race: the latest former incumbent that is still eligible.

    Without one, the best corroborated kernel, precisely measured before screened. In a journal from before races existed, that
    kernel is always the incumbent.
    """
    former = (state.kernels.get(name) for name in reversed(state.reigns) if name != state.incumbent)
    again = next((k for k in former if k is not None and may_lead(state, k)), None)
    if again is not None:
        return again
    sound = [k for k in ranked(state) if is_sound(k)]
    return next((k for k in sound if is_precise(k)), sound[0] if sound else None)


def is_sound(kernel: Kernel) -> bool:
    """Whether its time is corroborated, or the engineer accepted it."""
    return bool(kernel.accepted) or (kernel.measurement is not None and kernel.measurement.corroborated)


def may_lead(state: SessionState, kernel: Kernel) -> bool:
    """Whether it is eligible as the incumbent: verified, precisely measured on the present device, sound, with a verdict of
    its own."""
    eligible = _is_verified(kernel) and is_precise(kernel) and is_sound(kernel) and speedup(state, kernel) is not None
    return eligible and not kernel.same_as


def frontier(state: SessionState) -> tuple[Kernel, ...]:
    """Possible parents, best first: measured, with a verdict of their own, no dispatch, and not in a pruned branch."""
    measured = (k for k in ranked(state) if k.stage is Stage.MEASURED and not k.same_as and not k.members)
    return tuple(k for k in measured if not is_pruned(state, k.id))


def default_parent(state: SessionState) -> str | None:
    """The incumbent; where that is a dispatch, the best single kernel that it was made from."""
    best = incumbent(state)
    while best is not None and best.members:
        best = state.kernels.get(best.parent or "")
    return best.id if best is not None else None


def twin(state: SessionState, kernel: Kernel) -> Kernel | None:
    """The kernel whose verdict holds for ``kernel`` too: of the same machine code, contract and dialect, verified and
    corroborated on the present device.

    ``None`` for a kernel that is measured in any case: a root, a seed, one that is pinned or remeasured.
    """
    if not kernel.machine_code or kernel.seed or kernel.parent is None or kernel.id in state.pinned or kernel.again:
        return None
    same = (k for k in state.kernels.values() if k.machine_code == kernel.machine_code and k.id != kernel.id)
    return next((k for k in same if _lends_verdict(state, kernel, k)), None)


def _lends_verdict(state: SessionState, kernel: Kernel, other: Kernel) -> bool:
    same = (other.contract, other.dialect) == (kernel.contract, kernel.dialect)
    sound = other.stage is Stage.MEASURED and not other.same_as and not other.accepted and is_sound(other)
    return same and sound and _is_verified(other) and speedup(state, other) is not None


def newest_first(table: Mapping[Any, _Row]) -> Iterator[_Row]:
    """The rows of one of a state's tables, which are dictionaries. Their number costs nothing."""
    return reversed(cast(dict[Any, _Row], table).values())


def open_round(state: SessionState) -> Round | None:
    return next((r for r in newest_first(state.rounds) if not r.closed), None)


def parents_without_counters(state: SessionState, current: Round) -> Iterator[Kernel]:
    """Parents of a round whose hardware counters are still to be read for a model's prompt.

    None where no model proposes, and none once a reading failed on this device and none succeeded: the reason lies with the
    machine.
    """
    proposes = state.models.source not in (PLAYBOOK, AGENT)
    here = [k.profile for k in state.kernels.values() if k.profile is not None and k.epoch == state.epoch]
    readable = not here or any(profile.was_read for profile in here)
    if not (state.models.profiling and proposes and readable):
        return
    for kernel in map(state.kernels.get, current.parents):
        if kernel is not None and kernel.stage is Stage.MEASURED and kernel.profile is None:
            yield kernel


def last_round(state: SessionState) -> int:
    return max(state.rounds, default=-1)


def ideas_of(state: SessionState, round_number: int) -> tuple[Idea, ...]:
    return tuple(i for i in state.ideas.values() if i.round == round_number)


def kernels_of(state: SessionState, round_number: int) -> tuple[Kernel, ...]:
    return tuple(k for k in state.kernels.values() if k.round == round_number)


def pending_ideas(state: SessionState) -> tuple[Idea, ...]:
    """Ideas awaiting approval, in the engineer's order if there is one."""
    return tuple(sorted((i for i in state.ideas.values() if i.status is IdeaStatus.PROPOSED), key=lambda i: i.rank))


def parked_ideas(state: SessionState) -> tuple[Idea, ...]:
    """Ideas put aside, by a person or by the strategy. An approval of one reopens a session that has ended."""
    return tuple(idea for idea in state.ideas.values() if idea.status is IdeaStatus.PARKED)


def awaits_agent(state: SessionState, idea: Idea) -> bool:
    """Whether a coding agent is expected to write this approved idea: no model of the session is asked for it.

    So it is for an agent's own idea, and in a session without other proposers, unless the engineer named a writer. The code of
    the engine's ideas is made from kernels of the tree.
    """
    if idea.status is not IdeaStatus.SELECTED or idea.implemented or idea.writer or idea.author.is_engine:
        return False
    own = state.models.source == AGENT and not state.models.writer and (idea.round > 0 or idea.author.decides)
    return idea.author.is_agent or own


def finalist(state: SessionState) -> Kernel | None:
    """The incumbent, if the sanitizers have not run on its present code yet."""
    best = incumbent(state)
    if best is None or best.accepted or (best.sanitizing is not None and best.sanitizing.attempt == best.attempt):
        return None
    return best


def unsettled(state: SessionState) -> tuple[Kernel, ...]:
    return tuple(k for k in state.kernels.values() if not k.stage.settled)


@lru_cache(maxsize=4)
def incumbents(state: SessionState) -> tuple[Kernel, ...]:
    """All incumbents with a sound speedup on the present device, in order; the last is the present one.

    A journal from before races existed names none: there, every kernel that ranked above all earlier ones was the incumbent.
    """
    best = incumbent(state)
    if best is None:
        return ()
    if state.reigns:
        former = (state.kernels[name] for name in state.reigns if name in state.kernels and name != best.id)
        return (*(kernel for kernel in former if speedup(state, kernel) is not None and is_sound(kernel)), best)
    eligible = {k.id: place for place, k in enumerate(ranked(state)) if is_sound(k) and is_precise(k) == is_precise(best)}
    led: list[Kernel] = []
    for kernel in state.kernels.values():
        if kernel.id in eligible and (not led or eligible[kernel.id] < eligible[led[-1].id]):
            led.append(kernel)
    return tuple(led)


def incumbent_by_round(state: SessionState) -> tuple[tuple[int, float], ...]:
    """(round, speedup of the incumbent at its end), from the first round with an incumbent on.

    A kernel that replaced an incumbent of a later round counts from that round on.
    """
    by_round: dict[int, float] = {}
    since = -1
    for kernel in incumbents(state):
        since = max(since, kernel.round)
        if (ratio := speedup(state, kernel)) is not None:
            by_round[since] = ratio.value
    rows: list[tuple[int, float]] = []
    for number in sorted({*state.rounds, *by_round}):
        if number in by_round or rows:
            rows.append((number, by_round.get(number, rows[-1][1] if rows else 0.0)))
    return tuple(rows)


def rounds_done(state: SessionState) -> int:
    """Closed rounds after the naive port. The adaptive strategy opens a round for each of its decisions: there, as many kernels
    as ideas times implementations count as a round."""
    if (size := _adaptive_round(state)) is not None:
        return len([k for k in state.kernels.values() if k.round > 0]) // size
    return sum(1 for r in state.rounds.values() if r.closed and r.number > 0)


def kernels_left(state: SessionState) -> int | None:
    """How many kernels can follow until the limit of kernels ends the session, or that of rounds where rounds are counted in
    kernels; ``None`` without such a limit, and where it is one turn's share, which a later turn raises."""
    limits, size = state.limits, _adaptive_round(state)
    if limits.raised_later:
        return None
    left = [] if limits.kernels is None else [limits.kernels - len(state.kernels)]
    if limits.rounds is not None and size is not None:
        left.append(limits.rounds * size - len([k for k in state.kernels.values() if k.round > 0]))
    return max(0, min(left)) if left else None


def _adaptive_round(state: SessionState) -> int | None:
    settings = state.opened.settings if state.opened is not None else None
    return settings.ideas * settings.branch if settings is not None and settings.strategy == "adaptive" else None


SURPLUS = "beyond the ideas of its round"


def is_surplus(idea: Idea) -> bool:
    """Whether the engine parked the idea because its round was full; it may be proposed again."""
    return idea.status is IdeaStatus.PARKED and idea.reason == SURPLUS


def total_usage(state: SessionState) -> Usage:
    """Tokens of all calls so far; recalled replies do not count."""
    return sum((c.usage for c in state.calls.values() if not c.recalled), Usage())


def total_usd(state: SessionState) -> tuple[float, int]:
    """(dollars of the calls with a known price, number of calls with an unknown price)."""
    paid = [c for c in state.calls.values() if not c.recalled and c.usage.total]
    return sum(c.usd for c in paid if c.usd is not None), sum(1 for c in paid if c.usd is None)


def round_of_call(state: SessionState, call: ModelCall) -> int | None:
    """The round that a call served."""
    subject = call.work.subject
    if call.work.kind == WorkKind.PROPOSE:
        return call.work.number
    served = state.ideas.get(subject) or state.kernels.get(subject)
    return served.round if served is not None else None


def pause_reason(state: SessionState) -> str | None:
    """The engineer's pause condition that holds, as text; ``None`` if there is none."""
    pauses = state.pauses
    dollars, _ = total_usd(state)
    if pauses.usd is not None and dollars > pauses.usd:
        return f"${dollars:.2f} spent, above ${pauses.usd:g}"
    if pauses.tokens is not None and total_usage(state).total > pauses.tokens:
        return f"{total_usage(state).total:,} tokens spent, above {pauses.tokens:,}"
    due = open_round(state) is None and last_round(state) + 1 == pauses.round
    return f"before round {pauses.round}" if due else None


def stalled_rounds(state: SessionState) -> int:
    """Closed rounds after the one that the incumbent came from; with the adaptive strategy, kernels for as many."""
    return rounds_after(state, incumbent(state))


def rounds_after(state: SessionState, best: Kernel | None) -> int:
    """Closed rounds after the kernel's, or all; with the adaptive strategy, kernels for as many."""
    if (size := _adaptive_round(state)) is not None:
        since = best.round if best is not None else 0
        return len([k for k in state.kernels.values() if k.round > since]) // size
    closed = [r.number for r in state.rounds.values() if r.closed and r.number > 0]
    return sum(1 for n in closed if best is None or n > best.round)

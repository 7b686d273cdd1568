"""Questions about a state that rules, screens and reports share. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from engine.domain.model import Device, Interval, Limits, Usage
from engine.domain.state import Call, Idea, IdeaStatus, Kernel, Round, SessionState, Stage


def settings_of(state: SessionState) -> tuple[str, str]:
    """(problem name, workload name) of an opened session."""
    opened = state.opened
    if opened is None:
        return ("", "")
    return (opened.problem.name, opened.settings.workload)


def ranking_baseline(state: SessionState) -> str:
    """The baseline that speedups are ranked by."""
    return state.opened.settings.baseline if state.opened else "eager"


def same_device(recorded: Device, here: Device) -> bool:
    """Whether figures measured on the one may stand beside figures measured on the other."""
    return (recorded.kind, recorded.name, recorded.arch, recorded.units, recorded.software) == (
        here.kind, here.name, here.arch, here.units, here.software,
    )  # fmt: skip


def speedup(state: SessionState, kernel: Kernel) -> Interval | None:
    """The kernel's speedup over the ranking baseline on the session's present device, or ``None``."""
    gone = (Stage.QUARANTINED, Stage.FAILED, Stage.CANCELLED)
    if kernel.measurement is None or kernel.epoch != state.epoch or kernel.stage in gone:
        return None
    return kernel.measurement.speedup.get(ranking_baseline(state))


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
    """The kernel and everything below it, parents before children."""
    found: dict[str, None] = {}
    todo = [kernel_id]
    while todo:
        current = todo.pop()
        if current in state.kernels and current not in found:
            found[current] = None
            todo.extend(state.kernels[current].children)
    return tuple(found)


def verified(state: SessionState) -> tuple[Kernel, ...]:
    """Kernels that passed verification on the present device and were not failed later."""
    return tuple(k for k in state.kernels.values() if _is_verified(k) and k.epoch == state.epoch)


def _is_verified(kernel: Kernel) -> bool:
    return kernel.verification is not None and kernel.stage not in (Stage.QUARANTINED, Stage.FAILED, Stage.CANCELLED)


def ranked(state: SessionState) -> tuple[Kernel, ...]:
    """Measured kernels of the present device, best first; precise measurements outrank screens of the same value.

    Ranked by the lower end of the interval: a lucky screen with a wide interval does not lead.
    """
    rated = [(rating(k, s), k) for k in verified(state) if (s := speedup(state, k)) is not None]
    rated.sort(key=lambda found: found[0])
    return tuple(kernel for _, kernel in rated)


def rating(kernel: Kernel, ratio: Interval) -> tuple[float, bool, float, int, str]:
    """What kernels are ranked by; the smaller is ahead, and equals stand by age."""
    return (-ratio.low, not is_precise(kernel), -ratio.value, len(kernel.id), kernel.id)


def incumbent(state: SessionState) -> Kernel | None:
    """The kernel that leads: the last that was said to (``IncumbentChanged``) for as long as it can, then its successor."""
    named = state.kernels.get(state.incumbent)
    return named if named is not None and may_lead(state, named) else successor(state)


def successor(state: SessionState) -> Kernel | None:
    """Who leads where nobody is said to, or who was can no longer: the latest of those who led before and still can.

    Without any it is the best verified kernel with a precise, corroborated measurement, and while there is none the best
    screened one. In a journal from before there were races that is who led.
    """
    former = (state.kernels.get(name) for name in reversed(state.reigns) if name != state.incumbent)
    found = next((k for k in former if k is not None and may_lead(state, k)), None)
    if found is not None:
        return found
    sound = [k for k in ranked(state) if is_sound(k)]
    return next((k for k in sound if is_precise(k)), sound[0] if sound else None)


def is_sound(kernel: Kernel) -> bool:
    """Whether its time is believed. The engineer's word stands in for the judge's clock where they accepted the kernel."""
    return bool(kernel.accepted) or (kernel.measurement is not None and kernel.measurement.corroborated)


def may_lead(state: SessionState, kernel: Kernel) -> bool:
    """Whether it is verified, measured precisely on the present device, and believed."""
    return _is_verified(kernel) and is_precise(kernel) and is_sound(kernel) and speedup(state, kernel) is not None


def frontier(state: SessionState) -> tuple[Kernel, ...]:
    """Kernels that may be a parent, best first: measured, and in no pruned branch."""
    return tuple(k for k in ranked(state) if k.stage is Stage.MEASURED and not is_pruned(state, k.id))


def open_round(state: SessionState) -> Round | None:
    return next((r for r in reversed(tuple(state.rounds.values())) if not r.closed), None)


def last_round(state: SessionState) -> int:
    return max(state.rounds, default=-1)


def ideas_of(state: SessionState, round_number: int) -> tuple[Idea, ...]:
    return tuple(i for i in state.ideas.values() if i.round == round_number)


def kernels_of(state: SessionState, round_number: int) -> tuple[Kernel, ...]:
    return tuple(k for k in state.kernels.values() if k.round == round_number)


def pending_ideas(state: SessionState) -> tuple[Idea, ...]:
    """Ideas that await a decision, in the engineer's order where there is one.

    Non-empty means: the session is awaiting the engineer (or the policy).
    """
    return tuple(sorted((i for i in state.ideas.values() if i.status is IdeaStatus.PROPOSED), key=lambda i: i.rank))


def finalist(state: SessionState) -> Kernel | None:
    """The incumbent where the sanitizers have not seen its present source yet."""
    best = incumbent(state)
    if best is None or best.accepted or (best.sanitizing is not None and best.sanitizing.attempt == best.attempt):
        return None
    return best


def unsettled(state: SessionState) -> tuple[Kernel, ...]:
    return tuple(k for k in state.kernels.values() if not k.stage.settled)


def best_by_round(state: SessionState) -> tuple[tuple[int, float], ...]:
    """(round, best speedup so far) for each round with at least one measured kernel up to it."""
    best = 0.0
    rows: list[tuple[int, float]] = []
    for number in sorted(state.rounds):
        here = [s.value for k in kernels_of(state, number) if (s := speedup(state, k)) is not None]
        best = max([best, *here])
        if best > 0:
            rows.append((number, best))
    return tuple(rows)


def stop_reason(state: SessionState) -> str | None:
    """Which limit holds, in words; ``None`` while there is none. Round 0 (the first port) is not counted."""
    limits = state.limits
    done = sum(1 for r in state.rounds.values() if r.closed and r.number > 0)
    best = incumbent(state)
    light = best.measurement.light if best and best.measurement else None
    if limits.rounds is not None and done >= limits.rounds:
        return f"{done} of {limits.rounds} rounds done"
    if limits.seconds is not None and state.active_seconds >= limits.seconds:
        return f"time limit of {limits.seconds:g} s reached"
    if limits.kernels is not None and len(state.kernels) >= limits.kernels:
        return f"limit of {limits.kernels} kernels reached"
    if state.capped is not None:
        return state.capped
    if light is not None and limits.light is not None and light.fraction >= limits.light:
        return f"{light.fraction:.0%} of the speed of light reached"
    if stalled_rounds(state) >= (limits.plateau or 10**9):
        return f"no new incumbent in {stalled_rounds(state)} rounds"
    return _exhausted(state, limits)


def spent(state: SessionState) -> Usage:
    """Tokens of all calls so far; recalled replies cost nothing."""
    return sum((c.usage for c in state.calls.values() if not c.recalled), Usage())


def spent_usd(state: SessionState) -> tuple[float, int]:
    """(dollars of the calls whose price is known, calls with tokens whose price is not)."""
    paid = [c for c in state.calls.values() if not c.recalled and c.usage.total]
    return sum(c.usd for c in paid if c.usd is not None), sum(1 for c in paid if c.usd is None)


def round_of_call(state: SessionState, call: Call) -> int | None:
    """The round that a call served, by its work's key."""
    stage, _, rest = call.work.partition(":")
    target = rest.partition(":")[0]
    match stage:
        case "propose":
            return int(target)
        case "implement":
            return state.ideas[target].round if target in state.ideas else None
        case _:
            return state.kernels[target].round if target in state.kernels else None


def pause_reason(state: SessionState) -> str | None:
    """Which soft condition holds, in words."""
    pauses = state.pauses
    dollars, _ = spent_usd(state)
    if pauses.usd is not None and dollars > pauses.usd:
        return f"${dollars:.2f} spent: above ${pauses.usd:g}"
    if pauses.tokens is not None and spent(state).total > pauses.tokens:
        return f"{spent(state).total:,} tokens spent: above {pauses.tokens:,}"
    due = open_round(state) is None and last_round(state) + 1 == pauses.round
    return f"before round {pauses.round}" if due else None


def stalled_rounds(state: SessionState) -> int:
    """Closed rounds since the one that the incumbent came from."""
    best = incumbent(state)
    closed = [r.number for r in state.rounds.values() if r.closed and r.number > 0]
    return sum(1 for n in closed if best is None or n > best.round)


def _exhausted(state: SessionState, limits: Limits) -> str | None:
    last = state.rounds.get(last_round(state))
    if last is None or not last.closed or last.number == 0:
        return None
    if not ideas_of(state, last.number):
        return "no further ideas"
    return None

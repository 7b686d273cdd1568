"""The banner of a session: its most important message, and the keys that act on it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from engine.domain import queries, races, stopping
from engine.domain.state import RaceRecord, SessionState
from engine.domain.work import WorkKey, WorkKind
from engine.report.text.races import seen_by
from engine.report.text.work import work_words
from tui.viewmodel import kernels
from tui.viewmodel.cells import Cell, Ink, Line, cut, line, one_line, width
from tui.viewmodel.fmt import capitalised
from tui.viewmodel.stages import awaiting_answer, calls_by_hand
from tui.viewmodel.tree_facts import tree_facts

Remedy = tuple[str, str]
"""(id of an action, what it does); a command line has no id."""
_GAP = "  ·  "
_LEAST_WORDS = 16
"""The cells of a message that stay beside its first remedy."""


@dataclass(frozen=True, slots=True)
class Banner:
    """A message with its remedies, the most useful first."""

    words: str
    remedies: tuple[Remedy, ...]
    ink: Ink
    heading: str = ""
    """Precedes the remedies of a message that is complete without them."""


@dataclass(frozen=True, slots=True)
class Source:
    """What the banner needs to know of the session's source."""

    fault: str = ""
    stopped: Mapping[WorkKey, str] | None = None
    """Work that the engine here failed to do → reason."""
    steers: bool = True
    runs_here: bool = True
    replays: bool = False
    at_end: bool = True
    """A replay shows its end."""
    shell_name: str = ""
    ships: bool = False
    """A recording that ships with the program: only a fork of it can be continued."""
    is_run: bool = True
    """Some process runs the session."""


def banner(state: SessionState, source: Source) -> Banner | None:
    """The most important message; ``None`` if there is none. Ideas that await approval are in the heading and the footer."""
    if source.fault:
        return Banner(source.fault, (("session.home", "home, then open it again"),), Ink.BAD)
    if not source.is_run and state.closed is None:
        return Banner("No process runs this session", (*_resumed(source), ("session.fork", "fork")), Ink.WARN)
    if not source.steers:
        return _ended_elsewhere(state, source)
    if state.called_off:
        reason = next(iter(state.called_off.values()))
        return Banner(reason, (("steer.idea", "add an idea"), *_retry(source)), Ink.WARN)
    if stopped := source.stopped or ({} if state.closed is not None else state.broken):
        work, reason = next(iter(stopped.items()))
        return Banner(f"{capitalised(work_words(work))} failed: {one_line(reason)}", _remedies(work, source), Ink.BAD)
    if state.closed is not None:
        return _ended(state, source)
    if prompts := calls_by_hand(state):
        return Banner(awaiting_answer(len(prompts)), (("steer.answer", "answer"),), Ink.WARN)
    if held := kernels.quarantined(state):
        return Banner(f"Quarantined: {_names(kernel.id for kernel in held)}", _ON_QUARANTINED, Ink.WARN)
    if state.paused is not None:
        return Banner(f"Paused: {one_line(state.paused)}", (("steer.pause", "resume"),), Ink.WARN)
    if undecided := _undecided(state):
        return Banner(undecided, (("session.race", "race again, on the incumbent"),), Ink.WARN)
    return None


_ON_QUARANTINED: tuple[Remedy, ...] = (
    ("session.checks", "checks"), ("session.accept", "accept"), ("session.discard", "discard"),
)  # fmt: skip


def _names(ids: Iterable[str]) -> str:
    return ", ".join(list(ids)[:4])


def _retry(source: Source) -> tuple[Remedy, ...]:
    """Failed work is retried by the process that runs the session."""
    return (("steer.retry", "retry"),) if source.runs_here else (("", "retry where the session runs"),)


def _remedies(work: WorkKey, source: Source) -> tuple[Remedy, ...]:
    """What helps after failed work of this kind."""
    retry = _retry(source)
    match work.kind:
        case WorkKind.IMPLEMENT:
            return (*retry, ("session.gate", "choose another writer or write it yourself"), ("steer.models", "models"))
        case WorkKind.PROPOSE:
            return (*retry, ("steer.models", "choose another proposer"), ("steer.idea", "add an idea"))
        case WorkKind.REPAIR:
            return (*retry, ("steer.models", "models"), ("session.cancel", f"cancel {work.subject}"))
        case WorkKind.BUILD | WorkKind.VERIFY | WorkKind.MEASURE:
            return (*retry, ("session.cancel", f"cancel {work.subject}"), ("session.log", "log"))
        case _:
            return (*retry, ("steer.end", "end the session"))


def _undecided(state: SessionState) -> str:
    """The undecided races, and which of them only the judge's clock leaves open."""
    best = kernels.incumbent(state)
    facts = tree_facts(state)
    racing = facts.racing if best is not None and best.id in facts.racing else frozenset()
    found = sorted(facts.undecided - racing)
    if not found or best is None:
        return ""
    open_races = ((name, races.race_against_incumbent(state, name)) for name in found)
    ahead = [name for name, race in open_races if race is not None and _is_ahead(race, name)]
    doubted = f": {_names(ahead)} measured faster, but not corroborated" if ahead else ""
    return f"≈ {_names(found)} undecided against {best.id}{doubted}"


def _is_ahead(race: RaceRecord, kernel: str) -> bool:
    """Whether the whole interval is in the kernel's favour."""
    ratio = seen_by(race, kernel)[2]
    return ratio is not None and ratio.low > 1


def _ended(state: SessionState, source: Source) -> Banner:
    """Why the session ended, what is left to decide, and what to do next."""
    held = kernels.quarantined(state)
    parts = (f"Ended: {state.closed}", f"Quarantined: {_names(k.id for k in held)}" if held else "", _undecided(state))
    name = source.shell_name
    remedies: tuple[Remedy, ...] = (
        *(_ON_QUARANTINED if held else ()), *_continuations(state), *_export(state, name),
        ("", f"espalier replay {name}"), ("steer.idea", "add an idea"), ("steer.seed", "seed a kernel"),
    )  # fmt: skip
    return Banner(_GAP.join(filter(None, parts)), remedies, Ink.STRONG, "Next")


def _continuations(state: SessionState) -> tuple[Remedy, ...]:
    """What lets an ended session go on as it is: more rounds only where ideas are left for them."""
    if stopping.may_go_on(state):
        return (("steer.limits", "more rounds"),)
    return (("session.gate", "parked ideas"),) if queries.parked_ideas(state) else ()


def _ended_elsewhere(state: SessionState, source: Source) -> Banner | None:
    """What to do with an ended session that is replayed or followed; nothing before its end."""
    if state.closed is None or not source.at_end:
        return None
    play: tuple[Remedy, ...] = (("replay.play", "play"),) if source.replays else ()
    name = source.shell_name
    remedies = (*play, ("session.fork", "fork"), *_export(state, name), *_resumed(source))
    return Banner("", remedies, Ink.FAINT, "Next")


def _resumed(source: Source) -> tuple[Remedy, ...]:
    """How to go on with the session itself."""
    return () if source.ships else (("", f"espalier open {source.shell_name}"),)


def _export(state: SessionState, name: str) -> tuple[Remedy, ...]:
    return (("", f"espalier export {name}"),) if queries.incumbent(state) is not None else ()


def lines(shown: Banner, key: Callable[[str], str], room: int, rows: int = 2) -> tuple[Line, ...]:
    """The banner as one line, or two where the remedies would be cut off. ``key``: the user's key of an action.

    In one row the words give way to the first remedy, and remedies alone have none: the footer has their keys.
    """
    remedies = [f"{key(action)}: {words}" if action else words for action, words in shown.remedies]
    hints = _GAP.join(remedies)
    headed = cut(f" {_GAP.join(filter(None, (shown.heading, hints)))}", room)
    if not shown.words:
        return (line(Cell(headed, shown.ink)),) if rows > 1 else ()
    words = f" {shown.words}"
    if not shown.heading and width(words) + len(_GAP) + width(hints) < room:
        return (line(Cell(f"{words}{_GAP}{hints}", shown.ink)),)
    if rows == 1:
        while len(remedies) > 1 and width(words) + len(_GAP) + width(_GAP.join(remedies)) > room:
            remedies.pop()
        hints = cut(_GAP.join(remedies), room - _LEAST_WORDS)
        return (line(Cell(f"{cut(words, room - len(_GAP) - width(hints))}{_GAP}{hints}", shown.ink)),)
    return (
        line(Cell(cut(words, room), shown.ink)),
        line(Cell(headed, Ink.FAINT if shown.heading else shown.ink)),
    )

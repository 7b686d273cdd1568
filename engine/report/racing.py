"""Races in words: how two kernels fared against each other, and how the incumbent came to lead. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from engine.domain import queries, races
from engine.domain.model import Interval, RaceOutcome
from engine.domain.state import Kernel, Race, SessionState
from engine.report.text import Span, Tone, counted, times

GLYPHS = {RaceOutcome.FASTER: "▲", RaceOutcome.SLOWER: "▼", RaceOutcome.UNDECIDED: "≈"}
"""Outcome → its sign, so that no colour is needed to tell them apart."""
TONES = {RaceOutcome.FASTER: Tone.GOOD, RaceOutcome.SLOWER: Tone.WARN, RaceOutcome.UNDECIDED: Tone.WARN}

_TURNED = {RaceOutcome.FASTER: RaceOutcome.SLOWER, RaceOutcome.SLOWER: RaceOutcome.FASTER}


def seen_by(race: Race, kernel: str) -> tuple[str, RaceOutcome, Interval | None]:
    """(the other kernel, outcome, speedup over the other) as one of the two sees the race."""
    if race.kernel == kernel:
        return race.against, race.outcome, race.ratio
    turned = races.turned(race.ratio) if race.ratio is not None else None
    return race.kernel, _TURNED.get(race.outcome, race.outcome), turned


def told(race: Race, kernel: str) -> str:
    """``≈ undecided against k1``; ``▼ slower than k1``."""
    other, outcome, _ = seen_by(race, kernel)
    return f"{GLYPHS[outcome]} {outcome.value} {'against' if outcome is RaceOutcome.UNDECIDED else 'than'} {other}"


def figures(race: Race, kernel: str) -> str:
    """``1.02× [0.99, 1.05], 3 process pairs``, and what a sceptic must know; why there are none where it was given up."""
    ratio = seen_by(race, kernel)[2]
    if ratio is None:
        return race.note
    return f"{times(ratio)}, {counted(race.pairs, 'process pair')}"


def standing(state: SessionState, kernel: Kernel) -> str:
    """How the kernel last fared against the incumbent, in few words; empty where they have not raced."""
    race = races.against_incumbent(state, kernel.id) if state.races else None
    return told(race, kernel.id) if race is not None else ""


def remark(state: SessionState, kernel: Kernel) -> str:
    """The same with its figures."""
    race = races.against_incumbent(state, kernel.id) if state.races else None
    return f"{told(race, kernel.id)}: {figures(race, kernel.id)}" if race is not None else ""


def evidence(state: SessionState) -> Iterator[tuple[str, Span]]:
    """How the incumbent came to lead, and what is still undecided; nothing where there were no races."""
    if not state.races:
        return
    best = queries.incumbent(state)
    won = races.accession(state)
    if best is not None and best.id == state.incumbent:
        way = "had nothing to race against"
        if won is not None:
            way = f"raced for it: {told(won, best.id)}, {figures(won, best.id)}"
        yield ("lead", Span(f"{best.id} {way}"))
    for race in races.undecided(state):
        kernel = race.kernel if best is None or race.kernel != best.id else race.against
        words = f"{kernel} {told(race, kernel)}: {figures(race, kernel)}; `espalier race` spends more"
        yield ("undecided", Span(words, Tone.WARN))

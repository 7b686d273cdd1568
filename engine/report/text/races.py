"""Races as text: how two kernels compare, and how the incumbent took the lead. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from engine.domain import queries, races
from engine.domain.model import Interval, RaceOutcome
from engine.domain.state import Kernel, RaceRecord, SessionState
from engine.report.text.lines import Span, Tone, counted, one_line, times

GLYPHS = {RaceOutcome.FASTER: "▲", RaceOutcome.SLOWER: "▼", RaceOutcome.UNDECIDED: "≈"}
"""Outcome → its sign, readable without colour."""
TONES = {RaceOutcome.FASTER: Tone.GOOD, RaceOutcome.SLOWER: Tone.WARN, RaceOutcome.UNDECIDED: Tone.WARN}

_TURNED = {RaceOutcome.FASTER: RaceOutcome.SLOWER, RaceOutcome.SLOWER: RaceOutcome.FASTER}


def seen_by(race: RaceRecord, kernel: str) -> tuple[str, RaceOutcome, Interval | None]:
    """(other kernel, outcome, speedup over the other), from the point of view of ``kernel``."""
    if race.kernel == kernel:
        return race.against, race.outcome, race.ratio
    turned = races.inverted(race.ratio) if race.ratio is not None else None
    return race.kernel, _TURNED.get(race.outcome, race.outcome), turned


def outcome_words(race: RaceRecord, kernel: str) -> str:
    """``≈ undecided against k1``; ``▼ slower than k1``."""
    other, outcome, _ = seen_by(race, kernel)
    return f"{GLYPHS[outcome]} {outcome.value} {'against' if outcome is RaceOutcome.UNDECIDED else 'than'} {other}"


def ratio_words(race: RaceRecord, kernel: str) -> str:
    """``1.02× [0.99, 1.05], 3 process pairs``, or the reason why the race was abandoned."""
    ratio = seen_by(race, kernel)[2]
    if ratio is None:
        return race.note
    doubted = f", {one_line('; '.join(race.doubts))}" if race.doubts else ""
    return f"{times(ratio)}, {counted(race.pairs, 'process pair')}{doubted}"


def standing(state: SessionState, kernel: Kernel) -> str:
    """The outcome of the kernel's last race against the incumbent; empty if there was none."""
    race = races.race_against_incumbent(state, kernel.id) if state.races else None
    return outcome_words(race, kernel.id) if race is not None else ""


def remark(state: SessionState, kernel: Kernel) -> str:
    """``standing`` with its figures."""
    race = races.race_against_incumbent(state, kernel.id) if state.races else None
    return f"{outcome_words(race, kernel.id)}: {ratio_words(race, kernel.id)}" if race is not None else ""


def lead_evidence(state: SessionState) -> Iterator[tuple[str, Span]]:
    """How the incumbent took the lead, and which races are undecided. Empty without races."""
    if not state.races:
        return
    best = queries.incumbent(state)
    won = races.winning_race(state)
    if best is not None and best.id == state.incumbent:
        way = "leads without a race"
        if won is not None:
            way = f"{outcome_words(won, best.id)}: {ratio_words(won, best.id)}"
        yield ("race", Span(f"{best.id} {way}"))
    for race in races.undecided_races(state):
        kernel = race.kernel if best is None or race.kernel != best.id else race.against
        yield ("undecided", Span(f"{kernel} against {seen_by(race, kernel)[0]}: {ratio_words(race, kernel)}", Tone.WARN))

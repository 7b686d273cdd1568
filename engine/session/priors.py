"""What categories of ideas gained in earlier sessions: the prior of the adaptive strategy.

Read from the journals of this machine and of the sessions that ship, for the same architecture; where none has it, for the same
kind of device. Sessions that cannot be read are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from engine.domain import predictions
from engine.domain.errors import EspalierError
from engine.domain.model import Device
from engine.domain.plan import CategoryRate
from engine.domain.state import SessionState
from engine.domain.stats import significant
from engine.domain.strategy.evidence import bottleneck
from engine.journal import store


def learnt(device: Device) -> tuple[CategoryRate, ...]:
    """The rates of all sessions on devices like this one."""
    states = [state for state in _states() if state.device is not None and state.device.kind == device.kind]
    same = [state for state in states if state.device is not None and state.device.arch == device.arch]
    return rates(same or states)


def _states() -> Iterator[SessionState]:
    for folder in store.folders():
        try:
            yield store.state_of(folder)
        except EspalierError:
            continue


def rates(states: Iterable[SessionState]) -> tuple[CategoryRate, ...]:
    """Category × bottleneck → what its ideas gained over their parents."""
    found: dict[tuple[str, str], list[tuple[bool, float | None]]] = {}
    for state in states:
        for idea in state.ideas.values():
            if idea.round == 0 or not idea.implemented:
                continue
            gain = predictions.best_gain(state, idea)
            if gain is None and not predictions.is_dead(state, idea):
                continue
            faster = gain is not None and significant(gain) == "faster"
            outcome = (faster, math.log(gain.value) if gain is not None else None)
            found.setdefault((idea.text.category, bottleneck(state)), []).append(outcome)
    return tuple(_rate(category, bound, own) for (category, bound), own in sorted(found.items()))


def _rate(category: str, bound: str, own: list[tuple[bool, float | None]]) -> CategoryRate:
    gains = [gain for _, gain in own if gain is not None]
    mean = sum(gains) / len(gains) if gains else 0.0
    return CategoryRate(category, len(own), sum(faster for faster, _ in own), mean, bound)


def words(prior: Iterable[CategoryRate]) -> str:
    """The prior in one line."""
    parts = [f"{r.category} ({r.bottleneck}) {r.gained} of {r.tried}, {math.exp(r.gain):.2f}×" for r in prior]
    return f"prior of earlier sessions, ideas that gained: {'; '.join(parts)}" if parts else "no earlier session gives a prior"

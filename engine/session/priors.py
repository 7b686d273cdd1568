"""What categories of ideas gained in earlier sessions: the prior of the adaptive strategy.

Read from the journals of this machine and of the sessions that ship, for the same architecture; where none has it, for the same
kind of device. Sessions that cannot be read are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from engine.domain.errors import EspalierError
from engine.domain.model import Device
from engine.domain.round_plan import CategoryRate
from engine.domain.state import SessionState
from engine.domain.strategy.rates import rates
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


def words(prior: Iterable[CategoryRate]) -> str:
    """The prior in one line."""
    parts = [f"{r.category} ({r.bottleneck}) {r.gained} of {r.tried}, {math.exp(r.gain):.2f}×" for r in prior]
    return f"prior of earlier sessions, ideas that gained: {'; '.join(parts)}" if parts else "no earlier session gives a prior"

"""The plans of the adaptive strategy and the rates that it starts from, as the journal records them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CategoryRate:
    """What ideas of one category gained in other sessions: the prior of a new session."""

    category: str
    tried: int
    """Ideas with a settled implementation."""
    gained: int
    """Those whose best kernel was faster than its parent."""
    gain: float
    """Mean logarithm of the gains of those that were measured."""
    bottleneck: str = ""
    """What bound the problems: ``bytes`` or ``operations``; empty if unknown."""


@dataclass(frozen=True, slots=True)
class Focus:
    """A restarted lineage: only its kernels are parents until its budget is spent."""

    root: str
    """The kernel left behind from which the search restarts."""
    left: float
    """Ideas that it may still try."""
    tried: int = 0
    """Ideas tried in the session at this point."""
    best: float | None = None
    """Logarithm of the best speedup of the restarted lineage so far."""


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """Why a round of the adaptive strategy has its parents, and what it asks of the proposer."""

    reason: str
    each: int = 0
    """Ideas asked for each parent; 0: none, because ideas at hand promise more."""
    focus: Focus | None = None

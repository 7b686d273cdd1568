"""Going on from the latest kernel, as sequential revision does, where gains depend on what else a kernel contains. Pure.

Where one idea gains on one kernel and loses on another, what was measured elsewhere tells little about the next gain. The best
kernel is then a local optimum whose neighbours were soon tried, and a better one lies several ideas away, some of which lose.
The author sees the kernel in front of it, so its first idea for the latest kernel counts, not what is expected from other
parents. This pays only where later ideas regain what kernels lost; how often they do is counted in the session.
"""

from __future__ import annotations

from engine.domain.round_plan import Focus
from engine.domain.strategy.belief import Belief
from engine.domain.strategy.evidence import TUNE
from engine.domain.strategy.steps import MOST_ASKED, Ask, NextStep, belief_pair

_STALLED = 3
"""Ideas without an improvement of the best before the search goes on from the latest kernel."""
_LOST = 0.1
"""Logarithm of the loss from which a kernel counts as one that lost."""
_RECOVERED = 0.3
"""The share of ideas on such kernels that must regain at least half of the loss; one success and one failure are assumed."""


def step_from_latest(belief: Belief, focus: Focus | None, *, may_ask: bool) -> NextStep | None:
    """The author's first idea for the latest kernel; ``None`` where going on from it does not pay."""
    evidence = belief.evidence
    if focus is not None or not evidence.invents or not _pays(belief):
        return None
    if any(kernel.pinned for kernel in evidence.kernels.values()):  # the engineer says where to build
        return None
    latest = next((trial.child for trial in reversed(evidence.trials) if trial.child is not None), None)
    if latest is None or evidence.kernels[latest].copy or evidence.kernels[latest].combined:
        return None
    if may_ask:
        fresh = evidence.asked.get(latest, 0) < MOST_ASKED
        return NextStep(belief, Ask((latest,), 1), None, None, (latest,), from_latest=True) if fresh else None
    idea = next((one for one in reversed(evidence.open) if one.parent == latest), None)
    return NextStep(belief, None, belief_pair(belief, idea), None, (latest,), from_latest=True) if idea is not None else None


def _pays(belief: Belief) -> bool:
    """Whether the best has not improved for a while, gains depend on the parent, and losses are recovered."""
    return (
        belief.stalled >= _STALLED
        and interacting(belief) is not None
        and not belief.exhausted
        and recovery(belief) >= _RECOVERED
    )


def interacting(belief: Belief) -> str | None:
    """An idea that gained far more on one parent than on another; ``None`` if no idea did."""
    return next((stem for stem, record in belief.stems.items() if stem != TUNE and record.differs), None)


def recovery(belief: Belief) -> float:
    """The share of ideas on kernels that had lost which regained half of it, as Beta(1, 1) expects it after those measured."""
    kernels, parents = belief.evidence.kernels, belief.parents
    regained = tried = 0
    for trial in belief.evidence.trials:
        if trial.child is None or trial.parent not in parents:
            continue
        above = parents.get(kernels[trial.parent].parent or "")
        loss = above.value - parents[trial.parent].value if above is not None else 0.0
        if loss > _LOST:
            tried += 1
            regained += parents[trial.child].value - parents[trial.parent].value > 0.5 * loss
    return (regained + 1.0) / (tried + 2.0)

"""Selects the ideas of a round and the tunable variants that implement an idea. Pure and deterministic."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from itertools import islice, zip_longest

from engine.domain.model import Draft, Tunable
from engine.domain.work import Proposal
from engine.ideas.proposer import CodeRequest
from engine.ideas.tuning import constants
from engine.toolchain.kernel_file import KernelCode
from engine.toolchain.tunables import Rule, variants


def pick_diverse(proposals: Sequence[Proposal], count: int) -> tuple[Proposal, ...]:
    """At most ``count`` proposals. Each step takes, from the least used category, the one with the highest predicted speedup;
    ties keep their order."""
    remaining = list(proposals)
    taken: list[Proposal] = []
    by_category: Counter[str] = Counter()
    while remaining and len(taken) < count:
        best = min(remaining, key=lambda p: (by_category[p.text.category], -(p.text.predicted or 1.0)))
        remaining.remove(best)
        by_category[best.text.category] += 1
        taken.append(best)
    return tuple(taken)


def variant_drafts(
    request: CodeRequest, kernel: KernelCode, tunables: Sequence[Tunable], requires: Sequence[Rule], salt: str
) -> list[Draft]:
    """At most ``idea.branch`` variants of one kernel, spread over its tunables; the choice depends only on the session's seed
    and on ``salt``.

    Raises KernelCodeError if no combination of its tunables meets its requirements.
    """
    opened = request.state.opened
    text = f"{opened.settings.seed if opened is not None else 0}:{salt}"
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    combinations = variants(tunables, requires, constants(request.state), request.idea.branch, seed)
    return [Draft(kernel.text, kernel.dialect, kernel.contract, kernel.name, dict(values)) for values in combinations]


def take_in_turn(request: CodeRequest, offered: Sequence[Sequence[Draft]]) -> tuple[Draft, ...]:
    """The first variant of every kernel, then the second of every kernel, and so on, at most ``idea.branch`` in all."""
    turns = (draft for turn in zip_longest(*offered) for draft in turn if draft is not None)
    return tuple(islice(turns, request.idea.branch))

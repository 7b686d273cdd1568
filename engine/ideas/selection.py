"""Which ideas of many a round takes, and which variants become an idea's implementations. Pure, and deterministic."""

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
from engine.toolchain.tunables import Requirement, variants


def pick_diverse(proposals: Sequence[Proposal], count: int) -> tuple[Proposal, ...]:
    """At most ``count`` proposals: each time the highest predicted one of the category taken least; ties keep their order."""
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
    request: CodeRequest, kernel: KernelCode, tunables: Sequence[Tunable], requires: Sequence[Requirement], salt: str
) -> list[Draft]:
    """At most ``idea.branch`` variants of one kernel, far apart; the choice depends on the session's seed and ``salt`` alone.

    Raises KernelCodeError when no combination of its tunables meets its requirements.
    """
    opened = request.state.opened
    text = f"{opened.settings.seed if opened is not None else 0}:{salt}"
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    combinations = variants(tunables, requires, constants(request.state), request.idea.branch, seed)
    return [Draft(kernel.text, kernel.dialect, kernel.contract, kernel.name, dict(values)) for values in combinations]


def take_in_turn(request: CodeRequest, offered: Sequence[Sequence[Draft]]) -> tuple[Draft, ...]:
    """Every kernel's first variant, then every kernel's second, and so on up to ``idea.branch``."""
    turns = (draft for turn in zip_longest(*offered) for draft in turn if draft is not None)
    return tuple(islice(turns, request.idea.branch))

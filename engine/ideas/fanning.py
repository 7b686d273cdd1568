"""Which variants of an idea's sources are taken as its implementations: as far apart as can be, every source in turn."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import islice, zip_longest

from engine.build.tunables import Combination, Requirement, variants
from engine.domain.model import Draft, Tunable
from engine.ideas.source import CodeRequest
from engine.ideas.tuning import constants


def chosen(
    request: CodeRequest, of: str, tunables: Sequence[Tunable], requires: Sequence[Requirement]
) -> tuple[Combination, ...]:
    """As many variants of one source as the idea may have; which, depends on the session's seed and ``of`` alone.

    Raises SourceError when no combination of its tunables meets what it requires.
    """
    opened = request.state.opened
    text = f"{opened.settings.seed if opened is not None else 0}:{of}"
    own_seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    return variants(tunables, requires, constants(request.state), request.idea.branch, own_seed)


def in_turn(request: CodeRequest, offered: Sequence[Sequence[Draft]]) -> tuple[Draft, ...]:
    """Every source's first variant, then every source's second, and so on up to the branch."""
    turns = (draft for turn in zip_longest(*offered) for draft in turn if draft is not None)
    return tuple(islice(turns, request.idea.branch))

"""Work in words, for people: the journal names it by keys, ``build:k3:0``."""

from __future__ import annotations

from collections.abc import Iterable

from engine.domain.work_key import WorkKey, WorkKind

VERBS = {
    "build": "building", "verify": "verifying", "measure": "measuring", "repair": "repairing", "sanitize": "sanitizing",
    "race": "racing", "profile": "profiling", "tune": "tuning", "sustain": "measuring back to back",
    "propose": "proposing ideas", "implement": "writing code", "prepare": "preparing",
}  # fmt: skip
_MOST_NAMED = 3


def subject_words(key: WorkKey) -> str:
    """What the work is about: ``k3``, ``i2``, ``round 1``; nothing for the preparation."""
    return f"round {key.subject}" if key.kind == WorkKind.PROPOSE else key.subject


def work_words(key: WorkKey) -> str:
    """What the work does, to what: ``building k3``, ``racing k3, k2``, ``writing code for i2``."""
    match key.kind:
        case WorkKind.PROPOSE:
            return f"proposing ideas for {subject_words(key)}"
        case WorkKind.IMPLEMENT:
            return f"writing code for {key.subject}"
        case WorkKind.PREPARE:
            return "preparing the session"
        case WorkKind.SUSTAIN:
            return f"measuring {key.subject} back to back"
        case _:
            return f"{VERBS.get(key.kind, key.kind)} {', '.join(key.subjects)}".rstrip()


def works_words(keys: Iterable[WorkKey]) -> str:
    """``building k3, measuring k2``; of many the first."""
    words = list(map(work_words, keys))
    more = f" and {len(words) - _MOST_NAMED} more" if len(words) > _MOST_NAMED else ""
    return f"{', '.join(words[:_MOST_NAMED])}{more}"

"""Detects near-duplicate ideas by word overlap: no embeddings, no models, deterministic."""

from __future__ import annotations

import re

from engine.domain.model import IdeaText

_WORD = re.compile(r"[a-z0-9_]+")
_STOP = frozenset("a an and as at by each for from in into is it of on one or per that the this to use using with".split())
_SAME_TITLE = 0.8
_SAME_WORDS = 0.7


def near_duplicate(a: IdeaText, b: IdeaText, *, same_parent: bool) -> bool:
    """Whether the two ideas are nearly the same.

    Ideas with keys are the same if key and parent agree, and only then. Free text is compared by the Jaccard index of its
    words: the titles, or titles and rationales within one category.
    """
    if a.key and b.key:
        return a.key == b.key and same_parent
    if jaccard_index(_words(a.title), _words(b.title)) >= _SAME_TITLE:
        return True
    both = jaccard_index(_words(f"{a.title} {a.rationale}"), _words(f"{b.title} {b.rationale}"))
    return a.category == b.category and both >= _SAME_WORDS


def jaccard_index(a: frozenset[str], b: frozenset[str]) -> float:
    """|a ∩ b| ÷ |a ∪ b|; 1 for two empty sets."""
    union = a | b
    return len(a & b) / len(union) if union else 1.0


def _words(text: str) -> frozenset[str]:
    return frozenset(_stem(word) for word in _WORD.findall(text.lower()) if word not in _STOP)


def _stem(word: str) -> str:
    """The word without a plural or participle ending; sufficient for titles."""
    for ending in ("ising", "izing", "ised", "ized", "ise", "ize", "ing", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word

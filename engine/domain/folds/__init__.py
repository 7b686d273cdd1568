"""Folds a session's events into its state: ``advance(state, entries) -> state``.

Pure, and total on every journal that ``rules`` produced. The fold decides nothing and copies each table at most once a batch.
Each kind of event has one fold of a few lines, in the module of its subject.
"""

from engine.domain.folds.advance import advance

__all__ = ["advance"]

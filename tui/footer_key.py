"""A key of the footer. Imports neither the engine nor a toolkit: home shows keys first, and view models choose them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FooterKey:
    """An action in the footer. ``label``: what it does now; empty: the action's own label.

    ``key``: the key to show; empty: the action's first. Without an action it is a key of the focused field, with its label.
    """

    action: str
    label: str = ""
    key: str = ""


def footer_keys(*ids: str) -> tuple[FooterKey, ...]:
    """Keys of a screen whose footer is always the same, by the ids of their actions."""
    return tuple(FooterKey(one) for one in ids)

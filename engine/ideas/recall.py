"""Replies that a session has recorded, found again by the model asked and the words of the prompt.

For what-if: a session that is opened again with other decisions is answered from them wherever it asks the same. Kernels and
ideas are numbered in the order in which answers happened to come, so prompts are compared with every kernel named by what it is
instead of by its number, and a reply that names a parent is read with the numbers of the session that asks.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from engine.domain.model import Blob, Usage
from engine.domain.state import CallStatus, SessionState

_NUMBER = re.compile(r"\b[ki][0-9]{1,9}\b")
_PARENT = re.compile(r'("parent"\s*:\s*")(k[0-9]{1,9})(?=")')
_FENCE = re.compile(r"^(?:```|~~~)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One reply as it came, with what it cost then."""

    reply: str
    usage: Usage
    finish: str
    names: Mapping[str, str] = field(default_factory=dict)
    """Numbers of the recorded session → what they stand for."""


class Recall:
    """The replies of one recorded session; false where there is none."""

    def __init__(self, replies: Mapping[tuple[str, Blob], Recorded] | None = None) -> None:
        """``replies``: (model, ``digest`` of the prompt) → reply."""
        self._replies = replies or {}

    def __len__(self) -> int:
        return len(self._replies)

    def find(self, model: str, prompt: str, state: SessionState) -> Recorded | None:
        """What the model once replied to this prompt of a session in this state, in the words of that session."""
        names = _names(state)
        found = self._replies.get((model, digest(prompt, names)))
        if found is None:
            return None
        numbers = {name: number for number, name in names.items()}

        def here(match: re.Match[str]) -> str:
            return f"{match.group(1)}{numbers.get(found.names.get(match.group(2), ''), match.group(2))}"

        return replace(found, reply=_PARENT.sub(here, found.reply))


def recorded_replies(state: SessionState, text: Callable[[Blob], str]) -> Recall:
    """Every reply of a session that could be used; of several to one prompt the first.

    ``text`` reads the session's blobs. A call that failed, or whose reply could not be used, is asked anew. Raises
    JournalCorrupt where a blob is missing or damaged.
    """
    names = _names(state)
    found: dict[tuple[str, Blob], Recorded] = {}
    for call in state.calls.values():
        if call.status is CallStatus.ANSWERED:
            key = (call.model, digest(text(call.prompt), names))
            found.setdefault(key, Recorded(text(call.reply), call.usage, call.finish, names))
    return Recall(found)


def digest(prompt: str, names: Mapping[str, str]) -> Blob:
    """What a prompt is known by: its words with every number replaced by what it stands for, code left as it is."""
    outside = True
    pieces: list[str] = []
    for piece in _FENCE.split(prompt):
        pieces.append(_NUMBER.sub(lambda match: names.get(match.group(), match.group()), piece) if outside else piece)
        outside = not outside
    return hashlib.sha256("```".join(pieces).encode("utf-8", "replace")).hexdigest()


def _names(state: SessionState) -> dict[str, str]:
    """Numbers of kernels and ideas → what they stand for: a source with its tunables, a title in its round."""
    kernels = {k.id: f"kernel {k.source[:16]} {sorted(k.tunables.items())}" for k in state.kernels.values()}
    ideas = {i.id: f"idea of round {i.round}: {i.text.title}" for i in state.ideas.values()}
    return {**kernels, **ideas}

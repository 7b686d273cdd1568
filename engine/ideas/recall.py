"""Looks up a session's recorded replies by model and prompt, to reuse them at no cost.

For forks and repeated sessions: the same prompt to the same model gets the recorded reply. The ids of kernels and ideas depend
on the order in which replies arrive, so prompts are compared with each id replaced by what it refers to, and parents named in a
reply are translated into the ids of the asking session.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from engine.domain.model import Blob, Usage
from engine.domain.state import CallStatus, SessionState

_ID = re.compile(r"\b[ki][0-9]{1,9}\b")
_PARENT = re.compile(r'("parent"\s*:\s*")(k[0-9]{1,9})(?=")')
_FENCE = re.compile(r"^(?:```|~~~)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recorded reply, with its usage."""

    reply: str
    usage: Usage
    finish: str
    names: Mapping[str, str] = field(default_factory=dict)
    """Ids of the recorded session → what they refer to."""


class Recall:
    """The replies of one recorded session; false if there are none."""

    def __init__(self, replies: Mapping[tuple[str, Blob], Recorded] | None = None) -> None:
        """``replies``: (model, ``digest`` of the prompt) → reply."""
        self._replies = replies or {}

    def __len__(self) -> int:
        return len(self._replies)

    def find(self, model: str, prompt: str, state: SessionState) -> Recorded | None:
        """The model's recorded reply to this prompt, with its parents translated into ids of this session."""
        names = _names(state)
        recorded = self._replies.get((model, digest(prompt, names)))
        if recorded is None:
            return None
        ids = {name: identity for identity, name in names.items()}

        def translate(match: re.Match[str]) -> str:
            return f"{match.group(1)}{ids.get(recorded.names.get(match.group(2), ''), match.group(2))}"

        return replace(recorded, reply=_PARENT.sub(translate, recorded.reply))


def recorded_replies(state: SessionState, text: Callable[[Blob], str]) -> Recall:
    """All usable replies of a session; of several to one prompt, the first.

    ``text`` reads the session's blobs. Raises JournalCorrupt if a blob is missing or damaged.
    """
    names = _names(state)
    replies: dict[tuple[str, Blob], Recorded] = {}
    for call in state.calls.values():
        if call.status is CallStatus.ANSWERED:
            key = (call.model, digest(text(call.prompt), names))
            replies.setdefault(key, Recorded(text(call.reply), call.usage, call.finish, names))
    return Recall(replies)


def digest(prompt: str, names: Mapping[str, str]) -> Blob:
    """Digest of a prompt, with every id outside code fences replaced by what it refers to."""
    outside = True
    pieces: list[str] = []
    for piece in _FENCE.split(prompt):
        pieces.append(_ID.sub(lambda match: names.get(match.group(), match.group()), piece) if outside else piece)
        outside = not outside
    return hashlib.sha256("```".join(pieces).encode("utf-8", "replace")).hexdigest()


def _names(state: SessionState) -> dict[str, str]:
    """Ids of kernels and ideas → what they refer to: code with its tunables; round and title."""
    kernels = {k.id: f"kernel {k.source[:16]} {sorted(k.tunables.items())}" for k in state.kernels.values()}
    ideas = {i.id: f"idea of round {i.round}: {i.text.title}" for i in state.ideas.values()}
    return {**kernels, **ideas}

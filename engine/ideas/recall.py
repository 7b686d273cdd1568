"""Replies that a session has recorded, found again by the model asked and the very words of the prompt.

For what-if: a session that is opened again with other decisions is answered from them wherever it asks the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.domain.model import Blob, Usage
from engine.domain.state import CallStatus, SessionState


@dataclass(frozen=True, slots=True)
class Recorded:
    """One reply as it came, with what it cost then."""

    reply: str
    usage: Usage
    finish: str


Recall = Mapping[tuple[str, Blob], Recorded]
"""(model, SHA-256 of the prompt) → its reply."""


def recorded_replies(state: SessionState, text: Callable[[Blob], str]) -> Recall:
    """Every reply of a session that could be used; of several to one prompt the first.

    ``text`` reads the session's blobs. A call that failed, or whose reply could not be used, is asked anew. Raises
    JournalCorrupt where a blob is missing or damaged.
    """
    found: dict[tuple[str, Blob], Recorded] = {}
    for call in state.calls.values():
        if call.status is CallStatus.ANSWERED and (call.model, call.prompt) not in found:
            found[call.model, call.prompt] = Recorded(text(call.reply), call.usage, call.finish)
    return found


def digest(prompt: str) -> Blob:
    """The name that a prompt has as a blob."""
    return hashlib.sha256(prompt.encode("utf-8", "replace")).hexdigest()

"""The limits of a workspace's ``espalier``: one session, a few commands, a budget of evaluations."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from engine.cli.exit_codes import BAD_INPUT, CommandExit
from engine.ideas.models.workspace import LIMITS, VARIABLE
from engine.journal import store

_COMMANDS = ("idea", "kernel", "session", "model", "eval", "problems", "scaffold", "doctor", "mcp")
_REFUSED = (("session", "delete"), ("session", "import"), ("session", "compare"))


def obey_workspace(arguments: Sequence[str]) -> None:
    """Apply the limits of the workspace that this command runs in, if it runs in one. Raises CommandExit."""
    place = os.environ.get(VARIABLE)
    if not place:
        return
    file = Path(place) / LIMITS
    try:
        limits = json.loads(file.read_text(encoding="utf-8"))
        session, left = Path(limits["session"]), int(limits["evaluations"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandExit(BAD_INPUT, f"the limits of the workspace {place} cannot be read: {error}") from error
    words = [word for word in arguments if not word.startswith("-")]
    if words and (words[0] not in _COMMANDS or tuple(words[:2]) in _REFUSED):
        raise CommandExit(
            BAD_INPUT, f"`espalier {' '.join(words[:2])}` is not available in a workspace: use {', '.join(_COMMANDS)}"
        )
    store.serve_only(session)
    if words[:1] == ["eval"] and "--help" not in arguments:
        if left < 1:
            raise CommandExit(BAD_INPUT, "the evaluations of this workspace are used up: leave the kernel as kernel.*")
        aside = file.with_suffix(".new")
        aside.write_text(json.dumps({**limits, "evaluations": left - 1}), encoding="utf-8")
        os.replace(aside, file)

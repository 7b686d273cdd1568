"""``espalier`` in a process of its own over a pretended bench: ``python -m support.pretended_program PAUSE mcp ...``.

Every stage of a kernel takes PAUSE seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from support.pretended import PretendedBench

from engine.session import benches
from engine.trial.bench import Assignment
from espalier import main

PAUSE = float(sys.argv[1])


class SlowBench(PretendedBench):
    """A pretended bench that takes its time."""

    def __init__(self, assignment: Assignment, store: Callable[[bytes], str]) -> None:
        super().__init__(assignment, store)
        self._pause = PAUSE


benches.TrialBench = SlowBench  # type: ignore[assignment,misc]
sys.exit(main(sys.argv[2:]))

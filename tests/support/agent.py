"""A scripted model for whole searches: ideas and code for the fake bench, derived from the prompt.

Its replies depend on nothing but what it is asked, so that a search can be done again and compared.
"""

from __future__ import annotations

import hashlib
import json
import random
import threading
from collections.abc import Callable, Sequence

from support.model_turns import (
    Asked,
    BreaksOff,
    Fails,
    FailsInside,
    Garbled,
    Limited,
    Refuses,
    Says,
    Turn,
)

from engine.domain.model import CATEGORIES

VERBS = ("Widen", "Fuse", "Split", "Reorder", "Prefetch", "Unroll", "Transpose", "Batch", "Skew", "Double")
THINGS = ("loads", "loops", "reductions", "stores", "tiles", "exponentials", "rows", "buffers", "barriers", "panels")

FAULTS: tuple[Callable[[Turn], Turn], ...] = (
    lambda said: Limited(after=0),
    lambda said: Fails(500),
    lambda said: BreaksOff(_text(said)),
    lambda said: Garbled(_text(said)),
    lambda said: FailsInside(),
    lambda said: Refuses(),
    lambda said: Says("I would rather talk about the weather."),
    lambda said: Says(_text(said)[: len(_text(said)) // 2], finish="length"),
    lambda said: Says('```cpp\n#include <cmath>\nextern "C" void launch(const float* x,'),
)
"""Every failure of a call that a retry can fix."""


def _text(turn: Turn) -> str:
    return turn.text if isinstance(turn, Says) else "ok"


def _number(asked: Asked) -> int:
    return int.from_bytes(hashlib.sha256(f"{asked.system}\0{asked.user}".encode()).digest()[:8], "big")


def wants_ideas(asked: Asked) -> bool:
    return "Propose " in asked.user.rpartition("# Task")[2]


def reply(asked: Asked, write: Callable[[random.Random], str] | None = None) -> Turn:
    """Four ideas with different words, or one kernel: ``write``'s, or one for the fake bench with its own time."""
    dice = random.Random(_number(asked))
    if not wants_ideas(asked):
        return Says(f"Here it is.\n\n```cpp\n{(write or kernel)(dice)}```\n", reasoning=dice.randint(0, 500))
    offered = asked.user.rpartition("one of these kernels: ")[2].partition(".")[0].split(", ")
    return Says(json.dumps({"ideas": [_idea(dice, offered) for _ in range(4)]}), reasoning=dice.randint(0, 500))


def _idea(dice: random.Random, offered: Sequence[str]) -> dict[str, object]:
    words = " ".join(dice.sample(VERBS, 2) + dice.sample(THINGS, 3))
    return {
        "title": words, "category": dice.choice(CATEGORIES), "parent": dice.choice(offered), "rationale": f"because of {words}",
        "expected_effect": "fewer bytes", "predicted_speedup": round(dice.uniform(0.8, 3.0), 2), "risks": "none",
    }  # fmt: skip


def kernel(dice: random.Random) -> str:
    """Code with a time for the fake bench; one in three fails, so that repairs occur."""
    mark = dice.choice(["build_failed", "mismatch"]) if dice.random() < 1 / 3 else f"time_us = {dice.randint(60, 1500)}"
    return (
        f"// FAKE: {mark}\n// {dice.random()}\n"
        'extern "C" void launch(const float* x, float* out, void* workspace) {}\n'
    )  # fmt: skip


class Troubled:
    """``reply`` with a ``share`` of faults, at most two in a row per prompt."""

    def __init__(self, seed: int, share: float = 0.3, write: Callable[[random.Random], str] | None = None) -> None:
        self._write = write
        self._dice = random.Random(seed)
        self._share = share
        self._lock = threading.Lock()
        self._faults: dict[int, int] = {}
        self.kinds: set[str] = set()

    def __call__(self, asked: Asked) -> Turn:
        said = reply(asked, self._write)
        with self._lock:
            before = self._faults.get(_number(asked), 0)
            if before >= 1 or self._dice.random() >= self._share:
                return said
            self._faults[_number(asked)] = before + 1
            number = self._dice.randrange(len(FAULTS))
        self.kinds.add(str(number))
        return FAULTS[number](said)

"""How a session searches: its settings, when it stops or pauses by itself, and who approves its ideas."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_MODE = re.compile(r"(ask|autopilot)|ask:([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Mode:
    """Who approves ideas: the engineer, the policy once the engineer was away for ``seconds``, or the policy at once."""

    name: str = "ask"
    """``ask`` or ``autopilot``."""
    seconds: int | None = None

    @classmethod
    def parse(cls, text: str) -> Mode | None:
        """Reads ``ask``, ``ask:SECONDS`` or ``autopilot``; ``None`` for anything else."""
        match = _MODE.fullmatch(text)
        if match is None or (match[2] is not None and int(match[2]) == 0):
            return None
        return cls(match[1]) if match[1] is not None else cls("ask", int(match[2]))

    def __str__(self) -> str:
        return self.name if self.seconds is None else f"{self.name}:{self.seconds}"

    @property
    def is_autopilot(self) -> bool:
        return self.name == "autopilot"


@dataclass(frozen=True, slots=True)
class Limits:
    """When a session stops by itself. ``None`` is no limit."""

    rounds: int | None = 3
    seconds: float | None = None
    kernels: int | None = None
    tokens: int | None = None
    usd: float | None = None
    plateau: int | None = 3
    """Rounds without a new incumbent."""
    light: float | None = 0.95
    """Fraction of the speed of light (SOL) at which nothing is left to gain."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """When a session stops asking for ideas and code until the engineer resumes it. ``None`` is never."""

    tokens: int | None = None
    """Above this many tokens spent."""
    usd: float | None = None
    """Above this many dollars spent."""
    round: int | None = None
    """Before this round opens."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a session searches; frozen in its journal when it opens."""

    strategy: str = "branching"
    """``branching`` or ``sequential``."""
    ideas: int = 3
    """Ideas a round (K)."""
    branch: int = 3
    """Implementations of each idea (B)."""
    beam: int = 2
    """Best kernels that seed the next round."""
    repairs: int = 2
    """Repairs of a kernel that does not build or verify, where its author can repair."""
    source: str = "playbook"
    """Who has the ideas: one proposer, or several with their shares (``openai:A=2,gemini:B=1``)."""
    writer: str = ""
    """Who writes the code; empty for who had the idea."""
    base_url: str = ""
    """Server that answers for ``openai:`` models; empty for the provider's own."""
    recall: str = ""
    """Folder of a session whose recorded replies answer the same prompts, so that nothing is paid for twice."""
    workload: str = "small"
    tolerance: str = "class"
    """``class``, ``class:fp32|tf32|half``, ``crfm`` or ``kernelbench``."""
    baseline: str = "eager"
    others: tuple[str, ...] = ()
    """Further baselines."""
    cold: bool = True
    """Time with cold caches."""
    seed: int = 0
    """Seed of the search's own choices (never of a trial's inputs)."""
    accept_unverifiable: bool = False
    """Search although a trivial model passes the correctness check; every verdict then says so."""
    limits: Limits = field(default_factory=Limits)
    pauses: Pauses = field(default_factory=Pauses)

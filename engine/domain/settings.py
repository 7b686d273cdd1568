"""The settings of a session: how it searches, when it stops or pauses automatically, and who approves ideas."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_MODE = re.compile(r"(ask|autopilot)|ask:([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Mode:
    """Who approves ideas: the engineer, the policy after ``seconds`` without an action, or the policy immediately."""

    name: str = "ask"
    """``ask`` or ``autopilot``."""
    seconds: int | None = None

    @classmethod
    def parse(cls, text: str) -> Mode | None:
        """Parse ``ask``, ``ask:SECONDS`` or ``autopilot``; ``None`` for anything else."""
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
    """When a session closes automatically. ``None`` is no limit."""

    rounds: int | None = 3
    seconds: float | None = None
    kernels: int | None = None
    tokens: int | None = None
    usd: float | None = None
    plateau: int | None = 3
    """Rounds without a new incumbent."""
    light: float | None = 0.95
    """Fraction of the speed of light (SOL) at which the search stops."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """When a session pauses automatically until the engineer resumes it. ``None`` is never."""

    tokens: int | None = None
    """Above this many tokens spent."""
    usd: float | None = None
    """Above this many dollars spent."""
    round: int | None = None
    """Before this round opens."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a session, recorded in its journal when it is created."""

    strategy: str = "branching"
    """``branching`` or ``sequential``."""
    ideas: int = 3
    """Ideas per round (K)."""
    branch: int = 3
    """Implementations of each idea (B)."""
    beam: int = 2
    """Number of best kernels that become parents of the next round."""
    repairs: int = 2
    """Most repairs of a kernel that fails to build or verify, if its author can repair."""
    source: str = "playbook"
    """The proposer, or several with their shares (``openai:A=2,gemini:B=1``)."""
    writer: str = ""
    """Who writes the code; empty for the idea's author."""
    base_url: str = ""
    """Server for ``openai:`` models; empty for the provider's own."""
    recall: str = ""
    """Folder of a session whose recorded replies are reused for the same prompts at no cost."""
    workload: str = "small"
    tolerance: str = "class"
    """``class``, ``class:fp32|tf32|half``, ``crfm`` or ``kernelbench``."""
    baseline: str = "eager"
    others: tuple[str, ...] = ()
    """Further baselines."""
    cold: bool = True
    """Measure with cold caches."""
    seed: int = 0
    """Random seed of the search (not of a trial's inputs)."""
    accept_unverifiable: bool = False
    """Search even if a trivial model passes the correctness check; every verdict is marked then."""
    limits: Limits = field(default_factory=Limits)
    pauses: Pauses = field(default_factory=Pauses)

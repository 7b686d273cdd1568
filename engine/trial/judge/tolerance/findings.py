"""What the check of one call found."""

from __future__ import annotations

from dataclasses import dataclass

from engine.trial.judge.tolerance.policy import CheckResult


@dataclass(frozen=True, slots=True)
class Findings:
    """The result of checking one call: the policy's ruling, or the rule of the trial that was broken."""

    ruling: CheckResult
    violation: str = ""
    partly: bool = False
    """Whether only some of the inputs were perturbed."""

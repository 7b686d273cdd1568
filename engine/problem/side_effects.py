"""What a forward does beside returning its outputs. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SideEffects:
    """Side effects of a forward, observed in its first call."""

    changes_inputs: bool
    changes_state: bool
    changes_parameters: bool
    """Part of its state that most references leave alone."""
    draws_random: bool

    def caveats(self) -> tuple[str, ...]:
        """One sentence for each."""
        caveats = []
        if self.changes_inputs:
            caveats.append("the reference changes its inputs in place; kernels may do so too")
        if self.changes_state:
            caveats.append("the reference changes its own state; every call starts from the initial state")
        if self.draws_random:
            caveats.append("the reference draws random numbers in forward")
        return tuple(caveats)

"""What a forward does beside returning its outputs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SideEffects:
    """Side effects of a forward, observed in its first call."""

    changed_inputs: frozenset[int]
    """Which tensors among the inputs it writes to, counted in their order."""
    changes_state: bool
    changes_parameters: bool
    """Part of its state that most references leave alone."""
    draws_random: bool

    def caveats(self, inputs: Sequence[str]) -> tuple[str, ...]:
        """One sentence for each. ``inputs``: names of the tensors among the inputs."""
        caveats = []
        if self.changed_inputs:
            changed = ", ".join(name for index, name in enumerate(inputs) if index in self.changed_inputs)
            caveats.append(
                f"the reference changes {changed} in place; kernels may do so too, and only what forward returns is compared"
            )
        if self.changes_state:
            caveats.append("the reference changes its own state; every call starts from the initial state")
        if self.draws_random:
            caveats.append("the reference draws random numbers in forward")
        return tuple(caveats)

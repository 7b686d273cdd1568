"""Which weights a module is judged on: the reference's or its constructor's own, and with constants varied or not.

A module constructs its own weights, from the same seed as the reference's. Then it is lent the reference's, which replace those
of the same name and shape: layers that are made in another order, or from other random numbers, do not matter. A constructor
may also change its weights, as KernelBench allows: it folds a scale into them, or transposes them. The lent ones would undo
that. Such a module is right with its own, is judged on them in every later call, and the verdict says so. No less is asked of
it than of one with other names, which is lent nothing: its weights come from a seed that is new for each process.

Parameters and buffers that a model's constructor fills with one number vary, so that leaving them out shows, and taking one for
another, or ones for positive; so do copies of a parameter, and norms of another one. Kernels with a C launcher and plans are
given them. A module whose names and shapes differ from the reference's may not get them. If it registers them in another order,
it is right only where those of one number and size are alike, which the verdict says; else it is judged on the constructor's
own. That may be because it leaves them out: it is measured, and not corroborated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from engine.domain.model import FailureKind, Measurement, Role, Signature
from engine.domain.regimes import Sustained
from engine.problem.arguments.constant_parameters import Varied
from engine.trial.judge.failures import TrialFailed
from engine.trial.judge.judged_calls import CheckTally, fresh_call
from engine.trial.judge.runners.runner_client import RunnerClient
from engine.trial.judge.test_bed import TestBed
from engine.trial.protocol import Candidate

_MOST_NAMES = 4
Found = TypeVar("Found", Measurement, Sustained)


@dataclass(frozen=True, slots=True)
class _Decision:
    """What one module is judged on, with caveats; empty ones for the reference's weights, with all constants apart."""

    constants: Varied = Varied.APART
    why: str = ""
    """The caveat where they are not apart."""
    own: str = ""


class ModuleWeights:
    """The decision for every module of one judge."""

    def __init__(self) -> None:
        self._decisions: dict[str, _Decision] = {}
        """By source."""
        self._tried: str | None = None
        """The source of the module that is being tried with its own weights."""

    def knows(self, candidate: Candidate) -> bool:
        """Whether nothing is left to decide."""
        return candidate.contract != "module" or candidate.source in self._decisions

    def constants(self, *candidates: Candidate) -> Varied:
        """What constants hold for these kernels, as far as is known: what all of them are right with."""
        decided = (self._decision(candidate).constants for candidate in candidates)
        return max(decided, key=_LEVELS.index, default=Varied.APART)

    def are_own(self, candidate: Candidate) -> bool:
        """Whether this kernel keeps the weights of its constructor."""
        return bool(self._decision(candidate).own) or (candidate.contract == "module" and candidate.source == self._tried)

    def caveats(self, candidate: Candidate) -> tuple[str, ...]:
        """What a verdict on this kernel does not say of other weights."""
        decision = self._decision(candidate)
        return tuple(filter(None, (decision.own, decision.why)))

    def _decision(self, candidate: Candidate) -> _Decision:
        found = self._decisions.get(candidate.source) if candidate.contract == "module" else None
        return found or _Decision()

    def marked(self, found: Found, *candidates: Candidate) -> Found:
        """``found``, not corroborated where one of these kernels is not known to be right with other constants."""
        decisions = (self._decision(one) for one in candidates)
        doubts = tuple(f"not corroborated: {one.why}" for one in decisions if one.constants is Varied.KEPT)
        return replace(found, corroborated=False, doubts=found.doubts + doubts) if doubts else found

    def renew(self, bed: TestBed, *candidates: Candidate, scalars: bool = False) -> None:
        """Fresh weights on ``bed`` for these kernels; with ``scalars``, modules are also called with other ones."""
        modules = any(one.contract == "module" for one in candidates)
        bed.new_model(constants=self.constants(*candidates), scalars=scalars and modules, constructed=modules)

    def settle(self, bed: TestBed, runner: RunnerClient, candidate: Candidate, reload: Callable[[], None]) -> CheckTally:
        """Call a loaded module once on the reference's weights. If it is wrong, ``reload`` it and call it on its own; if it is
        wrong on these too, the same with constants that are alike, and as they are.

        Returns the check of the right call. Raises TrialFailed if none is right, or if it takes every parameter and is right
        with such constants only.
        """
        if self.knows(candidate) or not has_weights(bed.signature):
            return CheckTally()
        first: TrialFailed | None = None
        try:
            for constants in _tried_on(bed):
                if constants is not Varied.APART:
                    bed.new_model(constants=constants, scalars=bed.varies_scalars)
                for own in (False, True):
                    self._tried = candidate.source if own else None
                    if own or constants is not Varied.APART:
                        reload()
                    if own and not runner.different:  # the same again
                        continue
                    found = _call(bed, runner)
                    if isinstance(found, CheckTally):
                        self._decisions[candidate.source] = _decided(bed, runner, first, constants, own=own)
                        return found
                    first = first or found
        finally:
            self._tried = None
        assert first is not None
        raise _wrong_on_own(first, _some(bed, runner.different))


_LEVELS = tuple(Varied)
"""From the most demanding one."""


def _tried_on(bed: TestBed) -> Sequence[Varied]:
    """What constants hold as a module is tried, one after the other."""
    if not bed.varied_constants:
        return (Varied.APART,)
    several = max(bed.reference.constants.values()) > 1
    return _LEVELS if several else (Varied.APART, Varied.KEPT)


def has_weights(signature: Signature) -> bool:
    """Whether a reference has parameters or buffers, so that there is something to decide."""
    return any(operand.role in (Role.PARAMETER, Role.BUFFER) for operand in signature.operands)


def _call(bed: TestBed, runner: RunnerClient) -> CheckTally | TrialFailed:
    """One call, and how it was wrong if its outputs can be compared. Raises TrialFailed for every other failure."""
    tally = CheckTally()
    try:
        fresh_call(bed, runner, 0, tally)
    except TrialFailed as failed:
        if failed.failure.kind is not FailureKind.MISMATCH or not runner.alive:  # outputs that cannot be compared end it
            raise
        return failed
    return tally


def _decided(bed: TestBed, runner: RunnerClient, first: TrialFailed | None, constants: Varied, *, own: bool) -> _Decision:
    """The decision on a module that is right like this. Raises TrialFailed if it has left out constants that it takes, or taken
    one for another."""
    names = _some(bed, runner.different)
    kept = f"judged with its constructor's own {names}: wrong with the reference's, as load_state_dict sets them" if own else ""
    if constants is Varied.APART or first is None:
        return _Decision(own=kept)
    are_alike = constants is Varied.ALIKE
    if not runner.unmatched and not (are_alike and own):
        found = _TAKEN_FOR_ANOTHER if are_alike else _LEFT_OUT
        reason = f"{first.failure.reason}, with constant parameters varied; {found}"
        raise TrialFailed(FailureKind.MISMATCH, reason, first.log, first.failure.mismatches)
    given = f"the module does not take {_some(bed, runner.unmatched)}" if runner.unmatched else "its order is another one"
    if are_alike:
        return _Decision(constants, f"weights of one size that start as one number, or as copies, were alike: {given}", kept)
    return _Decision(constants, f"constant parameters were not varied: {given}", kept)


_LEFT_OUT = "right with the constructor's own: left out? taken for positive?"
_TAKEN_FOR_ANOTHER = "right where those of one size are alike, and ones positive: one taken for another? taken for positive?"


def _wrong_on_own(first: TrialFailed, different: str) -> TrialFailed:
    """The failure of a module that is right on no weights: the first one, with which ones its constructor makes different."""
    if different:
        also = f"; its constructor makes other {different} than the reference's, and it is wrong with these too"
        first.failure = replace(first.failure, reason=first.failure.reason + also)
    return first


def _some(bed: TestBed, claimed: Sequence[str]) -> str:
    """The first of the operands that a runner names; nothing else that it may say."""
    names = [operand.name for operand in bed.signature.operands if operand.name in claimed]
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(name[:40] for name in names[:_MOST_NAMES]) + more

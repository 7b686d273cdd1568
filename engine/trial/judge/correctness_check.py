"""The correctness check of a session: its limits as journaled, and the trivial models that it must reject. Imports torch.

A trivial model computes nothing. A check that a trivial model passes is too loose for its verdicts to mean anything.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.domain.model import PrecisionClass
from engine.domain.preparation import CorrectnessCheck, TrivialModel
from engine.problem.reference import Reference
from engine.problem.values import tensors
from engine.trial.judge.calibration import Calibration, Case, default_class, make_case, output_dtype, output_names
from engine.trial.judge.perturbations import OWN
from engine.trial.judge.tolerance import FACTORS, Policy, spread

_TILES = 64
"""One tile in this many is left unwritten."""
ECHO = "input echo"


def try_trivial_models(reference: Reference, calibration: Calibration) -> tuple[TrivialModel, ...]:
    """Judge models that compute nothing, on the problem's own inputs.

    Where the right output is the input (ReLU on non-negative numbers), an echo of the input passes and gains nothing, since it
    moves as many bytes. It counts as rejected if perturbed inputs, which are part of every verdict, reject it. The constant is
    the mean of the right output, or of another input's output where the right output is constant itself.
    """
    policy = calibration.policy
    case, other = make_case(reference, OWN), make_case(reference, OWN)
    expected = _eager_or_exact(reference, case, policy)
    elsewhere = _eager_or_exact(reference, other, policy)
    dtypes = [getattr(torch, o.dtype) for o in reference.signature().operands if o.role == "output"]
    names = output_names(reference)
    models: dict[str, Sequence[torch.Tensor]] = {
        "zeros": [torch.zeros_like(e) for e in expected],
        "constant": [torch.full_like(e, _constant(e, o)) for e, o in zip(expected, elsewhere, strict=True)],
        "other input's output": elsewhere,
        "one tile unwritten": [_without_a_tile(e) for e in expected],
    }
    rows = []
    for name, outputs in models.items():
        ruling = policy.rule([o.to(d) for o, d in zip(outputs, dtypes, strict=True)], expected, names, OWN)
        rows.append(TrivialModel(name, ruling.passed, ruling.errors.rel_fro))
    for distribution in calibration.distributions:
        perturbed = case if distribution == OWN else make_case(reference, distribution)
        right = _eager_or_exact(reference, perturbed, policy)
        if (echo := _echo(perturbed, right)) is None:
            break
        ruling = policy.rule([o.to(d) for o, d in zip(echo, dtypes, strict=True)], right, names, distribution)
        found = TrivialModel(ECHO, ruling.passed, ruling.errors.rel_fro)
        if not found.passed or distribution == calibration.distributions[-1]:
            rows.append(found)
            break
    return tuple(rows)


def _eager_or_exact(reference: Reference, case: Case, policy: Policy) -> Sequence[torch.Tensor]:
    return reference.call(case.model, case.inputs) if policy.against_eager else case.expected


def _constant(expected: torch.Tensor, other: torch.Tensor) -> float:
    finite = expected[torch.isfinite(expected)]
    wide = finite if finite.is_complex() else finite.double()
    return _typical(expected if wide.numel() and spread(wide) else other)


def _typical(expected: torch.Tensor) -> float:
    finite = expected[torch.isfinite(expected)] if expected.dtype.is_floating_point else expected
    if not finite.numel():
        return 0.0
    if not expected.dtype.is_floating_point:
        return float(torch.mode(finite.reshape(-1).to(torch.int64)).values)
    return float(finite.double().mean())


def _without_a_tile(expected: torch.Tensor) -> torch.Tensor:
    """The right output with 1/64 of its elements, in the middle, set to zero."""
    flat = expected.clone().reshape(-1)
    size = max(1, flat.numel() // _TILES)
    start = (flat.numel() - size) // 2
    flat[start : start + size] = 0
    return flat.reshape(expected.shape)


def _echo(case: Case, expected: Sequence[torch.Tensor]) -> Sequence[torch.Tensor] | None:
    given = list(tensors(list(case.inputs)))
    found = [next((g for g in given if g.numel() == e.numel() and not g.dtype.is_complex), None) for e in expected]
    if any(f is None for f in found):
        return None
    return [f.reshape(e.shape).to(e.dtype) for f, e in zip(found, expected, strict=True) if f is not None]


def describe_check(reference: Reference, calibration: Calibration) -> CorrectnessCheck:
    """The check as journaled."""
    policy = calibration.policy
    limit = policy.limit(OWN)
    allowed = default_class(reference) if policy.against_eager else policy.allowed  # type: ignore[union-attr]
    if not output_dtype(reference).is_floating_point:
        allowed = PrecisionClass.EXACT
    perturbed = [d for d in calibration.distributions if d != OWN]
    notes = (*calibration.notes, f"inputs: own{''.join(', ' + b for b in perturbed)}")
    return CorrectnessCheck(
        policy.name, allowed, limit.rel_fro, limit.max_scaled, FACTORS.get(allowed, 1.0), dict(policy.classes[OWN]),
        try_trivial_models(reference, calibration), notes,
    )  # fmt: skip

"""The correctness check of a session: its limits as journaled, and the trivial models that it must reject. Imports torch.

A trivial model computes nothing. A check that a trivial model passes is too loose for its verdicts to mean anything.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

from engine.domain.model import PrecisionClass, Role
from engine.domain.preparation import ClassErrors, CorrectnessCheck, TrivialModel
from engine.problem.arguments.values import equal_values, tensors
from engine.problem.reference import Reference
from engine.trial.judge.inputs.cases import Case, default_class, fresh_seed, make_case, output_dtype, output_names
from engine.trial.judge.inputs.perturbations import OWN
from engine.trial.judge.outputs.blocks import Moments
from engine.trial.judge.outputs.comparison import finite_moments, spread_of
from engine.trial.judge.tolerance.calibration import Calibration
from engine.trial.judge.tolerance.class_policy import ClassPolicy
from engine.trial.judge.tolerance.format_check import refuses
from engine.trial.judge.tolerance.policies import AllclosePolicy, Policy, allowed_class
from engine.trial.judge.tolerance.policy import FACTORS, HOPELESS, factor_of

_TILES = 64
"""One tile in this many is left unwritten."""
ECHO = "input echo"
_REJECT_ECHOES = ("x-64", "negated")
"""Distributions on which an echo is wrong where the reference keeps positive numbers only."""


Complete = Callable[[str], Calibration]
"""Measures the reference's errors on a distribution, which a calibration lacks."""


def try_trivial_models(
    reference: Reference, calibration: Calibration, complete: Complete | None = None
) -> tuple[TrivialModel, ...]:
    """Judge models that compute nothing, on the problem's own inputs.

    Where the right output is the input (ReLU on non-negative numbers), an echo of the input passes and gains nothing, since it
    moves as many bytes. It counts as rejected if perturbed inputs, which are part of every verdict, reject it. The constant is
    the mean of the right output, or of another input's output where the right output is constant itself.
    ``complete`` is needed where the calibration lacks the reference's errors on a distribution.
    """
    rows = (*_of_outputs(reference, calibration), *_of_undecided_outputs(reference, calibration))
    # First those that reject the echo of positive numbers: each one tried costs a float64 run.
    names, echo = sorted(calibration.distributions, key=lambda name: (name != OWN, name not in _REJECT_ECHOES)), None
    for distribution in names:
        if distribution in calibration.unmeasured:
            assert complete is not None
            calibration = complete(distribution)
            names += [name for name in calibration.distributions if name not in names]
        if distribution not in calibration.distributions:
            continue
        echo = _of_inputs(reference, calibration, distribution)
        if echo is None or not echo.passed:
            break
    return rows if echo is None else (*rows, echo)


def _of_outputs(reference: Reference, calibration: Calibration) -> tuple[TrivialModel, ...]:
    """The models made from outputs, one after the other."""
    policy, dtypes = calibration.policy, _output_dtypes(reference)
    # In the reference's own arithmetic: it is compared with another input's output, and float64 may take seconds.
    elsewhere = reference.call(reference.judged_model(fresh_seed(), sample=True), reference.inputs(fresh_seed()))
    case = make_case(reference, OWN)
    expected = _eager_or_exact(reference, case, policy)
    rows = []
    for name, model in _MODELS.items():
        outputs = [model(e, o, d) for e, o, d in zip(expected, elsewhere, dtypes, strict=True)]
        ruling = policy.rule(outputs, expected, output_names(reference), OWN)
        passed = (ruling.passed or bool(calibration.several)) and not refuses(reference, case.inputs, outputs)
        rows.append(TrivialModel(name, passed, ruling.errors.rel_fro))
        del outputs  # before the next model's are made
    return tuple(rows)


def _of_undecided_outputs(reference: Reference, calibration: Calibration) -> Iterator[TrivialModel]:
    """The models as one of several outputs alone, where rounding decides that output: nothing else would tell that the check
    is worthless for it. The signs of eigenvectors differ between float32 and float64, and those beside them do not."""
    policy = calibration.policy
    if not isinstance(policy, ClassPolicy) or calibration.several:
        return
    floating = [index for index, dtype in enumerate(policy.dtypes) if dtype.is_floating_point]
    hopeless = [index for index in floating if policy.of_output(index).limit(OWN).rel_fro > HOPELESS]
    if not hopeless:
        return
    elsewhere = reference.call(reference.judged_model(fresh_seed(), sample=True), reference.inputs(fresh_seed()))
    expected, dtypes, names = make_case(reference, OWN).expected, _output_dtypes(reference), output_names(reference)
    for index, (name, model) in itertools.product(hopeless, _MODELS.items()):
        right = [expected[index]]
        ruling = policy.of_output(index).rule([model(right[0], elsewhere[index], dtypes[index])], right, [names[index]], OWN)
        yield TrivialModel(f"{name} as {names[index]}", ruling.passed, ruling.errors.rel_fro)


def _of_inputs(reference: Reference, calibration: Calibration, distribution: str) -> TrivialModel | None:
    """The echo of the input on one distribution; ``None`` where no input has the output's size."""
    operands = reference.signature().operands
    given = {math.prod(o.shape) for o in operands if o.role is Role.INPUT and not getattr(torch, o.dtype).is_complex}
    if not given.issuperset(math.prod(o.shape) for o in operands if o.role is Role.OUTPUT):
        return None  # without a float64 run
    case = make_case(reference, distribution)
    right = _eager_or_exact(reference, case, calibration.policy)
    echo = _echo(case, right, _output_dtypes(reference))
    ruling = calibration.policy.rule(echo, right, output_names(reference), distribution)
    passed = (ruling.passed or bool(calibration.several)) and not refuses(reference, case.inputs, echo)
    return TrivialModel(ECHO, passed, ruling.errors.rel_fro)


def _output_dtypes(reference: Reference) -> list[torch.dtype]:
    return [getattr(torch, o.dtype) for o in reference.signature().operands if o.role is Role.OUTPUT]


def _eager_or_exact(reference: Reference, case: Case, policy: Policy) -> Sequence[torch.Tensor]:
    return reference.call(case.model, case.inputs) if isinstance(policy, AllclosePolicy) else case.expected


def _constant(expected: torch.Tensor, other: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The mean of the right output, or of another one where it is constant itself."""
    found = _real_moments(expected)
    typical = _typical(expected, found) if spread_of(found) else _typical(other, _real_moments(other))
    value = torch.tensor(typical, dtype=torch.float64, device=expected.device)
    return value.to(dtype).expand(expected.shape).contiguous()


def _real_moments(tensor: torch.Tensor) -> Moments:
    return finite_moments(tensor.real if tensor.is_complex() else tensor)


def _typical(tensor: torch.Tensor, found: Moments) -> float:
    if tensor.dtype.is_floating_point or tensor.is_complex():
        return found.scale * found.mean
    return float(torch.mode(tensor.reshape(-1).to(torch.int64)).values) if tensor.numel() else 0.0


def _without_a_tile(expected: torch.Tensor, _: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The right output with 1/64 of its elements set to zero: in the middle, or next to it where those are zero anyway."""
    flat = expected.to(dtype, copy=True).reshape(-1)
    size = max(1, flat.numel() // _TILES)
    middle = (flat.numel() - size) // 2
    starts = sorted(range(middle % size, flat.numel(), size), key=lambda start: abs(start - middle))
    start = next((start for start in (*starts, 0) if _has_numbers(flat[start : start + size])), middle)
    flat[start : start + size] = 0
    return flat.reshape(expected.shape)


def _has_numbers(tile: torch.Tensor) -> bool:
    """Whether an element is not zero."""
    return bool((tile.float() if tile.dtype.itemsize == 1 else tile).any())


Model = Callable[[torch.Tensor, torch.Tensor, torch.dtype], torch.Tensor]
_MODELS: dict[str, Model] = {
    "zeros": lambda expected, _, dtype: torch.zeros_like(expected, dtype=dtype),
    "constant": _constant,
    "other input's output": lambda _, other, __: other,
    "one tile unwritten": _without_a_tile,
}
"""What each makes of the right output, the output for another input and the output's type."""


def _echo(case: Case, expected: Sequence[torch.Tensor], dtypes: Sequence[torch.dtype]) -> Sequence[torch.Tensor]:
    """For each output an input of its size."""
    given = list(tensors(list(case.inputs)))
    found = [next(g for g in given if g.numel() == e.numel() and not g.dtype.is_complex) for e in expected]
    return [f.reshape(e.shape).to(d) for f, e, d in zip(found, expected, dtypes, strict=True)]


def _factor(policy: Policy, allowed: PrecisionClass, reference: Reference) -> float:
    if allowed not in FACTORS:
        return 1.0
    return policy.factor if isinstance(policy, ClassPolicy) else factor_of(allowed, output_dtype(reference))


def _seed_notes(reference: Reference) -> tuple[str, ...]:
    """Caveats where the problem's own inputs or its model's parameters do not depend on the seed."""
    return (*_input_notes(reference), *_parameter_notes(reference))


def _parameter_notes(reference: Reference) -> tuple[str, ...]:
    """Those of one number vary in judged models, and buffers are mostly tables that are meant to be what they are."""
    one, other = (_first_elements(reference, fresh_seed()) for _ in range(2))
    fixed = [name for name, values in one.items() if name in other and equal_values(values, other[name])]
    if not fixed:
        return ()
    return (f"parameters that are the same for every seed: {', '.join(fixed)}: a kernel may contain what follows from them",)


def _first_elements(reference: Reference, seed: int) -> dict[str, torch.Tensor]:
    """The first elements of each parameter of a judged model."""
    model = reference.judged_model(seed, sample=True)
    made = [(name, tensor.detach()) for name, tensor in model.named_parameters() if not nn.parameter.is_lazy(tensor)]
    return {name: tensor.reshape(-1)[:_COMPARED].cpu() for name, tensor in made}


_COMPARED = 1024
"""Elements of a parameter that differ between two seeds if it is random."""


def _input_notes(reference: Reference) -> tuple[str, ...]:
    one, other = (list(tensors(list(reference.inputs(fresh_seed())))) for _ in range(2))
    same = [equal_values(a, b) for a, b in zip(one, other, strict=True)]
    if not same or not any(same):
        return ()
    if all(same):
        return (
            "the problem's own inputs are the same for every seed: a kernel that remembers outputs by content "
            "would pass on them; only perturbed inputs are fresh",
        )
    names = [o.name for o in reference.signature().operands if o.role is Role.INPUT]
    fixed = ", ".join(name for name, equal in zip(names, same, strict=True) if equal)
    return (f"inputs that are the same for every seed: {fixed}",)


def describe_check(reference: Reference, calibration: Calibration, complete: Complete | None = None) -> CorrectnessCheck:
    """The check as journaled. ``complete``: as in ``try_trivial_models``."""
    policy = calibration.policy
    limit = policy.limit(OWN)
    allowed = allowed_class(policy, default_class(reference))
    if not output_dtype(reference).is_floating_point:
        allowed = PrecisionClass.EXACT
    perturbed = [d for d in calibration.distributions if d != OWN]
    notes = (*calibration.notes, *_seed_notes(reference), f"inputs: own{''.join(', ' + b for b in perturbed)}")
    classes = {name: ClassErrors(errors.rel_fro, errors.max_scaled) for name, errors in policy.classes[OWN].items()}
    return CorrectnessCheck(
        policy.name, allowed, limit.rel_fro, limit.max_scaled, _factor(policy, allowed, reference), classes,
        try_trivial_models(reference, calibration, complete), notes,
    )  # fmt: skip

"""The verdict of a problem's own format on one call's outputs, beside Espalier's: its tolerance or its checker. Uses torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from engine.domain.errors import ProblemError
from engine.domain.model import FailureKind
from engine.domain.problem_format import FormatTolerance, FormatVerdict
from engine.problem.reference import Reference
from engine.trial.judge.failures import TrialFailed
from engine.trial.judge.inputs.cases import Case
from engine.trial.judge.outputs.comparison import NO_ERROR, Errors
from engine.trial.judge.outputs.relative_errors import RelativeErrors
from engine.trial.judge.tolerance.policy import CheckResult

_LONGEST = 200
_BLOCK = 1 << 22
_APART = 0.25
"""Errors above this are none of rounding: of a whole output, or of one element in units of its scale."""
_ACCEPTED = (
    "an output differs from float64's, and the format's checker accepts it: its error is unknown, and does not count for the "
    "precision class"
)


def format_verdict(
    reference: Reference, model: nn.Module, inputs: tuple[object, ...], outputs: Sequence[Tensor], limit: RelativeErrors
) -> FormatVerdict | None:
    """What the format says of ``outputs``; ``None`` if it has neither a tolerance nor a checker. ``limit``: Espalier's.

    Raises TrialFailed if the checker refuses outputs of which several would be right: then it decides, too. Raises ProblemError
    if the checker raises.
    """
    declared = reference.problem.origin_format
    if declared is None:
        return None
    tolerance = declared.tolerances.get(reference.workload.name)
    if declared.checker:
        passed, detail = reference.format_check(inputs, outputs)
        if not passed and decides(reference):
            reason = f"{declared.name}'s {declared.checker} refuses the output: {detail[:_LONGEST]}"
            raise TrialFailed(FailureKind.MISMATCH, reason)
        stricter = ""
        if tolerance is not None:
            stricter = _stricter(tolerance, limit, reference.call(model, inputs))
        words = f"{declared.checker}, {tolerance.text}" if tolerance is not None else declared.checker
        return FormatVerdict(declared.name, words, passed, detail[:_LONGEST], stricter, declared.unique)
    if tolerance is None:
        return None
    expected = reference.call(model, inputs)
    matched = min((_matched(tolerance, o, e) for o, e in zip(outputs, expected, strict=True)), default=1.0)
    passed = matched >= tolerance.matched and _under_cap(tolerance, outputs, expected)
    detail = f"{100 * matched:.6g}% of the elements match"
    return FormatVerdict(declared.name, tolerance.text, passed, detail, _stricter(tolerance, limit, expected), True)


def decides(reference: Reference) -> bool:
    """Whether the format's checker decides beside Espalier's check: where several outputs are right."""
    declared = reference.problem.origin_format
    return declared is not None and bool(declared.checker) and not declared.unique


def several_right(reference: Reference, case: Case, errors: RelativeErrors, called: Callable[[], Sequence[Tensor]]) -> bool:
    """Whether the format accepts both of the reference's outputs on a case, in its own arithmetic and in float64, although they
    differ by more than rounding explains. ``errors``: how they differ. ``called``: gives the former.

    Then a comparison with one of them cannot tell whether an output is right: a pivot next to zero decides a sign.
    """
    if not decides(reference) or case.note or max(errors.rel_fro, errors.max_scaled) <= _APART:
        return False
    own = called()
    exact = [e.to(o.dtype) for e, o in zip(case.expected, own, strict=True)]
    return not refuses(reference, case.inputs, own) and not refuses(reference, case.inputs, exact)


def ruling_of_several(
    reference: Reference, model: nn.Module, inputs: tuple[object, ...], outputs: Sequence[Tensor],
    compared: Callable[[], CheckResult], *, own: bool,
) -> CheckResult | None:  # fmt: skip
    """The ruling where several outputs are right: the checker must accept them, and decides where they differ from float64's.

    ``compared`` compares them with float64's. ``None`` where the checker refuses the reference's own
    output too, as it may on perturbed inputs: then float64 decides. ``own``: the inputs are the problem's own.
    """
    if refused := refusal(reference, inputs, outputs):
        if not own and refuses(reference, inputs, reference.call(model, inputs)):
            return None
        return CheckResult(Errors(math.inf, math.inf, math.inf, refused), passed=False)
    found = compared()
    if found.passed or found.errors.flaw:
        return found
    return CheckResult(NO_ERROR, passed=True, caveat=_ACCEPTED)


def refusal(reference: Reference, inputs: tuple[object, ...], outputs: Sequence[Tensor]) -> str:
    """Why the format's checker refuses ``outputs``; empty if it accepts them."""
    declared = reference.problem.origin_format
    assert declared is not None, "the format has a checker"
    try:
        passed, detail = reference.format_check(inputs, outputs)
    except ProblemError as error:
        passed, detail = False, str(error)
    return "" if passed else f"{declared.name}'s {declared.checker} refuses the output: {detail[:_LONGEST]}"


def refuses(reference: Reference, inputs: tuple[object, ...], outputs: Sequence[Tensor]) -> bool:
    """Whether the format's checker decides, and refuses ``outputs`` or raises on them."""
    return decides(reference) and bool(refusal(reference, inputs, outputs))


def _matched(tolerance: FormatTolerance, output: Tensor, expected: Tensor) -> float:
    """The share of elements within the tolerance, of one output. NaN and infinities match only an equal infinity."""
    if not output.numel():
        return 1.0
    count = 0
    for mine, right in _blocks(output, expected):
        close = (mine - right).abs() <= tolerance.atol + tolerance.rtol * right.abs()
        if tolerance.negative_infinity:
            close |= (mine == -torch.inf) & (right == -torch.inf)
        count += int(close.sum())
    return count / output.numel()


def _blocks(output: Tensor, expected: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Both in float64, a part at a time: a copy of a whole output may not fit on the device."""
    mine, right = output.reshape(-1), expected.reshape(-1)
    for start in range(0, mine.numel(), _BLOCK):
        yield mine[start : start + _BLOCK].double(), right[start : start + _BLOCK].double()


def _under_cap(tolerance: FormatTolerance, outputs: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    if tolerance.cap is None:
        return True
    pairs = (pair for o, e in zip(outputs, expected, strict=True) for pair in _blocks(o, e))
    return all(float((mine - right).abs().max()) <= tolerance.cap for mine, right in pairs)


def _stricter(tolerance: FormatTolerance, limit: RelativeErrors, expected: Sequence[Tensor]) -> str:
    """Whose limit on a single element is lower, for most elements: ``espalier``, ``format``, or empty if it depends."""
    shares = []
    for one in expected:
        if not one.is_floating_point() or not one.numel():
            continue
        wide = one.reshape(-1)[:_BLOCK].double()
        wide = wide[torch.isfinite(wide)]
        if not wide.numel():
            continue
        scale = wide.abs() + (wide - wide.mean()).square().mean().sqrt()
        shares.append(float((limit.max_scaled * scale < tolerance.atol + tolerance.rtol * wide.abs()).double().mean()))
    if not shares:
        return ""
    return "espalier" if min(shares) > 0.5 else "format" if max(shares) < 0.5 else ""

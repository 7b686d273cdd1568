"""Where infinite and NaN inputs decide what a kernel must return."""

from __future__ import annotations

import pytest

from engine.trial.judge.perturbations import INFINITIES, NANS, OWN
from engine.trial.judge.special_values import is_usable, only_adds_and_multiplies


@pytest.mark.parametrize(
    ("operators", "defined"),
    [
        ("mm add relu_", False),  # fmaxf(x, 0) drops a NaN
        ("mm add", True),
        ("sub integer_pow mean", True),  # a mean squared error
        ("sub_ square_ sum", True),
        ("mse_loss", True),
        ("var_mean", False),  # fmaxf(mean of squares - square of the mean, 0) drops a NaN
        ("cumprod", True),
        ("exp sum div", False),  # the usual vector exponential clamps its argument
        ("pow mean", False),  # exponents of any kind,
        ("unheard_of", False),
    ],
)
def test_arithmetic_defines_the_answer_where_operators_only_add_and_multiply(operators: str, defined: bool) -> None:
    assert only_adds_and_multiplies(frozenset(operators.split())) is defined


@pytest.mark.parametrize(
    ("operators", "usable"),
    [
        ("exp sum pow integer_pow", {INFINITIES: True, NANS: True, OWN: True}),
        ("relu pow", {INFINITIES: True, NANS: False, OWN: True}),
        ("embedding", {INFINITIES: False, NANS: False, OWN: True}),
    ],
)
def test_operators_decide_which_special_inputs_are_tried(operators: str, usable: dict[str, bool]) -> None:
    assert {name: is_usable(name, frozenset(operators.split())) for name in usable} == usable

"""A kernel of half precision that rounds what it multiplies passes, and a wrong one does not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from trial.test_rounded_results import calibrated, passes

from engine.trial.judge.inputs import cases
from engine.trial.judge.inputs.perturbations import OWN
from engine.trial.judge.rounding.rounded_operands import RoundedOperands
from engine.trial.judge.tolerance import class_errors, reference_on_case

BACKWARD = """
        q, k, v, do = (t.float() for t in (q, k, v, do))
        p = torch.softmax(q @ k.mT * 0.25, -1)
        dp = do @ v.mT
        ds = p * (dp - (dp * p).sum(-1, keepdim=True))
        return (ds @ k * 0.25).bfloat16(), (ds.mT @ q * 0.25).bfloat16(), (p.mT @ do).bfloat16()
"""
MODULATED = """
        y = F.layer_norm(x.float(), (128,)) * (1 + scale.float()) + shift.float()
        return (r.float() + gate.float() * y).bfloat16()
"""
PRODUCT = "        return a @ b"
CONVOLUTION = """
        weight = torch.sin(torch.arange(12.0 * 16 * 9, dtype=torch.float32)).reshape(12, 16, 3, 3).half()
        return F.conv2d(x, weight.to(x.dtype), padding=1)
"""

RECURRENCE = """
        q, k, v, g = (t.float() for t in (q, k, v, g))
        decay, state, found = torch.sigmoid(g[..., :1, None] + 3), torch.zeros_like(k[:, 0, :, None] * v[:, 0, None, :]), []
        for t in range(64):
            state = state * decay[:, t] + k[:, t, :, None] * v[:, t, None, :]
            found.append(q[:, t, None, :] @ state)
        return torch.cat(found, 1).bfloat16()
"""
NORMALISED = """
        x = x.float()
        mean = x.mean(-1, keepdim=True)
        variance = (x * x).mean(-1, keepdim=True) - mean * mean
        return ((x - mean) * torch.rsqrt(variance + 1e-5)).bfloat16()
"""


def rounded(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def in_eight_sums(a: Tensor, b: Tensor) -> Tensor:
    total = torch.zeros(())
    for left, right in zip(a.chunk(8, -1), b.chunk(8, -2), strict=True):
        total = rounded(total + left @ right)
    return total


def flash(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, delta: bool = True,
    product: Callable[[Tensor, Tensor], Tensor] = product,
) -> list[Tensor]:  # fmt: skip
    """The backward pass of FlashAttention-2: the probabilities, their gradients and the output are kept in bf16."""
    q, k, v, do = (t.float() for t in (q, k, v, do))
    scores = q @ k.mT * 0.25
    top = scores.amax(-1, keepdim=True)
    total = torch.exp(scores - top).sum(-1, keepdim=True)
    o = rounded(rounded(torch.exp(scores - top)) @ v / total)
    p = torch.exp(scores - (top + torch.log(total)))
    ds = rounded(p * (do @ v.mT - ((do * o).sum(-1, keepdim=True) if delta else 0)))
    return [
        (t * f).bfloat16() for t, f in ((product(ds, k), 0.25), (product(ds.mT, q), 0.25), (product(rounded(p).mT, do), 1.0))
    ]


def normalised(x: Tensor, scale: Tensor, shift: Tensor, gate: Tensor, r: Tensor, *, one: float = 1.0) -> list[Tensor]:
    y = rounded(F.layer_norm(x.float(), (128,))) * (one + scale.float()) + shift.float()
    return [(r.float() + gate.float() * y).bfloat16()]


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, state: Callable[[Tensor], Tensor] = Tensor.float,
    decay: Callable[[Tensor], Tensor] = Tensor.float,
) -> list[Tensor]:  # fmt: skip
    """Linear attention with the state as an operand in bf16, kept in fp32."""
    q, k, v, g = (t.float() for t in (q, k, v, g))
    kept, found = torch.zeros(k.shape[0], 16, 16), []
    for t in range(64):
        kept = state(kept * decay(torch.sigmoid(g[:, t, :1, None] + 3)) + k[:, t, :, None] * v[:, t, None, :])
        found.append(q[:, t, None, :] @ rounded(kept))
    return [torch.cat(found, 1).bfloat16()]


def centred(x: Tensor, *, mean: Callable[[Tensor], Tensor] = Tensor.float) -> list[Tensor]:
    x = x.float()
    x = x - mean(x.mean(-1, keepdim=True))
    return [(x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)).bfloat16()]


def in_two_sums(a: Tensor, b: Tensor) -> list[Tensor]:
    return [(a[:, :256].float() @ b[:256].float()).half() + (a[:, 256:].float() @ b[256:].float()).half()]


def in_half_precision(a: Tensor, b: Tensor) -> list[Tensor]:
    total = torch.zeros(512, 512, dtype=torch.float16)
    for k in range(0, 512, 16):
        total = (total.float() + a[:, k : k + 16].float() @ b[k : k + 16].float()).half()
    return [total]


WEIGHT = torch.sin(torch.arange(12.0 * 16 * 9)).reshape(12, 16, 3, 3).half()
TO_INPUT = torch.tensor([[1.0, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
TO_WEIGHT = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
TO_OUTPUT = torch.tensor([[1.0, 1, 1, 0], [0, 1, -1, -1]])


def winograd(x: Tensor) -> list[Tensor]:
    """Winograd's F(2x2, 3x3) with transforms in fp16 and sums in fp32."""
    tiles = F.pad(x.float(), (1, 1, 1, 1)).unfold(2, 4, 2).unfold(3, 4, 2)
    tiles = torch.einsum("ij,bchwjk,lk->bchwil", TO_INPUT, tiles, TO_INPUT).half().float()
    weight = torch.einsum("ij,ocjk,lk->ocil", TO_WEIGHT, WEIGHT.float(), TO_WEIGHT).half().float()
    products = torch.einsum("ocil,bchwil->bohwil", weight, tiles)
    return [torch.einsum("ai,bohwil,cl->bohawc", TO_OUTPUT, products, TO_OUTPUT).reshape(2, 12, 12, 14).half()]


def convolution_in_half_precision(x: Tensor) -> list[Tensor]:
    columns, weight = F.unfold(x.float(), 3, padding=1), WEIGHT.float().flatten(1)
    total = torch.zeros(2, 12, 168, dtype=torch.float16)
    for k in range(0, 144, 4):
        total = (total.float() + weight[:, k : k + 4] @ columns[:, k : k + 4]).half()
    return [total.reshape(2, 12, 12, 14)]


@pytest.mark.parametrize(
    ("names", "body", "shape", "distribution", "right", "wrong"),
    [
        *(
            pytest.param(
                "q, k, v, do",
                BACKWARD,
                "2, 2, 64, 16, dtype=torch.bfloat16",
                name,
                flash,
                lambda *x: flash(*x, delta=False),
                marks=[pytest.mark.slow] if name != OWN else [],
            )
            for name in (OWN, "few x30", "spiked", "shifted", "edges x5", "copies")
        ),
        *(
            (
                "x, scale, shift, gate, r",
                MODULATED,
                "20, 128, dtype=torch.bfloat16",
                name,
                normalised,
                lambda *x: normalised(*x, one=0.0),
            )
            for name in (OWN, "few x30")
        ),
        pytest.param(
            "q, k, v, do",
            BACKWARD,
            "2, 2, 64, 16, dtype=torch.bfloat16",
            OWN,
            flash,
            lambda *x: flash(*x, product=in_eight_sums),
            marks=pytest.mark.slow,
        ),
        *(
            pytest.param(
                "q, k, v, g", RECURRENCE, "8, 64, 16, dtype=torch.bfloat16", OWN, recurrent, wrong, marks=pytest.mark.slow
            )
            for wrong in (lambda *x: recurrent(*x, state=rounded), lambda *x: recurrent(*x, decay=rounded))
        ),
        ("x", NORMALISED, "20, 128, dtype=torch.bfloat16", "shifted", centred, lambda x: centred(x, mean=rounded)),
        pytest.param(
            "a, b", PRODUCT, "512, 512, dtype=torch.float16", OWN, in_two_sums, in_half_precision, marks=pytest.mark.slow
        ),
        ("x", CONVOLUTION, "2, 16, 12, 14, dtype=torch.float16", OWN, winograd, convolution_in_half_precision),
    ],
)
def test_rounding_what_is_multiplied_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str, body: str, shape: str, distribution: str,
    right: Callable[..., Sequence[Tensor]], wrong: Callable[..., Sequence[Tensor]],
) -> None:  # fmt: skip
    seeds = itertools.count()
    for module in (cases, class_errors, reference_on_case):
        monkeypatch.setattr(module, "fresh_seed", lambda: next(seeds))
    reference, calibration = calibrated(tmp_path, names, body, shape)
    assert all(passes(reference, calibration, distribution, right, *range(12)))
    assert not any(passes(reference, calibration, distribution, wrong, *range(3)))


def test_only_what_half_precision_cannot_hold_moves_before_a_product() -> None:
    held, other = torch.randn(40, 50).half().double(), torch.randn(50, 60, dtype=torch.float64)
    with RoundedOperands(torch.float16, 5):
        kept = [held @ held.mT, other * 0.3, other + other, other.exp(), other.mean(0), other.clone().mul_(0.3)]
        moved = [other * 1.0 * other, held @ other, other.clone().mul_(other)]
    for mine, exact in zip(
        kept, [held @ held.mT, other * 0.3, other + other, other.exp(), other.mean(0), other * 0.3], strict=True
    ):
        assert torch.equal(mine, exact)
    for mine, exact in zip(moved, [other * other, held @ other, other * other], strict=True):
        assert 0 < ((mine - exact).norm() / exact.norm()).item() < torch.finfo(torch.float16).eps

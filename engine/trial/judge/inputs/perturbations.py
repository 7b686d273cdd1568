"""Input distributions of a trial: the problem's own, and perturbed ones that expose shortcuts. Imports torch.

A kernel that skips the maximum in a softmax, starts a maximum at 0, leaves out the lower bound of a clamp, sums squares without
centring, or works in a narrower range fails on one of them. A perturbation is used only where the reference itself stays finite
and accurate (see ``perturbed_calibration``); those with infinities and NaN follow their own rule (see ``special_values``).
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Sequence
from random import Random

import torch

from engine.domain.model import Operand, Role
from engine.problem.arguments.drawn_integers import Range
from engine.problem.arguments.values import map_arguments, tensors
from engine.trial.judge.inputs import copied_rows, ends, equal_numbers, graded, opposed, range_ends, structure
from engine.trial.judge.inputs.replaced_elements import Change, largest, meeting, with_denormals, with_ones, with_zeros
from engine.trial.judge.outputs.blocks import in_blocks

OWN = "own"


def _scaled(factor: float) -> Change:
    return lambda tensor, _: tensor.mul_(factor)


def _shifted(by: float) -> Change:
    return lambda tensor, _: tensor.add_(by)


def _near_one(tensor: torch.Tensor, _: Random) -> torch.Tensor:
    """The mean becomes 1, the largest deviation from it 1/64: products of thousands neither vanish nor overflow."""
    if not tensor.numel():
        return tensor
    mean = float(tensor.mean(dtype=torch.float64))
    deviation = max(float(tensor.amax()) - mean, mean - float(tensor.amin()))
    if not (math.isfinite(deviation) and deviation > 0):
        return tensor
    return tensor.sub_(mean).mul_(1 / (64 * deviation)).add_(1)


def _alternating(tensor: torch.Tensor, _: Random) -> torch.Tensor:
    """Signs alternate along the last dimension: sums cancel."""
    signs = torch.ones(tensor.shape[-1] if tensor.dim() else 1, dtype=tensor.dtype, device=tensor.device)
    signs[1::2] = -1
    return tensor.mul_(signs if tensor.dim() else signs[0])


def _spiked(tensor: torch.Tensor, rng: Random) -> torch.Tensor:
    """Every 97th element, from a random offset on, is multiplied by 40."""
    return _larger(tensor, 97, 40, rng)


def _with_outliers(tensor: torch.Tensor, rng: Random) -> torch.Tensor:
    """Every 997th element, from a random offset on, is multiplied by 1000."""
    return _larger(tensor, 997, 1000, rng)


def _larger(tensor: torch.Tensor, every: int, factor: float, rng: Random) -> torch.Tensor:
    flat = tensor.view(-1)
    flat[rng.randrange(max(1, min(every, flat.numel()))) :: every] *= factor
    return tensor


def _with_few_outliers(tensor: torch.Tensor, rng: Random) -> torch.Tensor:
    """Three random elements are multiplied by 1000: too few for a kernel to find by sampling."""
    flat = tensor.view(-1)
    flat[_few_places(flat, rng)] *= 1000
    return tensor


def _few_set_to(least: float, most: float) -> Change:
    """Three random elements get the largest magnitude times a random factor, with their sign."""

    def change(tensor: torch.Tensor, rng: Random) -> torch.Tensor:
        flat = tensor.view(-1)
        if places := _few_places(flat, rng):
            flat[places] = (largest(flat) * rng.uniform(least, most)).expand(len(places)).copysign(flat[places])
        return tensor

    return change


def _with_few_zeros(tensor: torch.Tensor, rng: Random) -> torch.Tensor:
    """Three random elements are 0. Of a few numbers none is: one temperature of zero would leave nothing to compare."""
    flat = tensor.view(-1)
    if flat.numel() >= _MANY:
        flat[_few_places(flat, rng)] = 0
    return tensor


def _with_few_ones(tensor: torch.Tensor, rng: Random) -> torch.Tensor:
    """Three random elements are 1 or −1, with their sign; not of a few numbers."""
    flat = tensor.view(-1)
    if flat.numel() >= _MANY:
        places = _few_places(flat, rng)
        flat[places] = torch.ones_like(flat[places]).copysign(flat[places])
    return tensor


def _few_places(flat: torch.Tensor, rng: Random) -> list[int]:
    return sorted({rng.randrange(flat.numel()) for _ in range(_FEW if flat.numel() else 0)})


_FEW = 3
_MANY = 64
"""Elements of a tensor of which three are few."""


def _at_edges(tensor: torch.Tensor, rng: Random) -> torch.Tensor:
    """The first and the last place of a random dimension are raised, one by 1000 and one by 750: a loop that misses one shows.

    A maximum that misses the larger one is no bound for it, and an exponential overflows. Which one is larger is drawn for each
    line along the dimension: a softmax that leaves its last element out of the maximum is wrong in every other row.
    Not of a dimension of one place: an offset of the whole tensor is no edge, and ``shifted`` and ``raised`` have it.
    """
    return _edges_raised(tensor, rng, 1000.0)


def _at_edges_by_largest(tensor: torch.Tensor, rng: Random) -> torch.Tensor:
    """The same, raised by the largest magnitude times a factor from 3 to 8, and by three quarters of that."""
    return _edges_raised(tensor, rng, float(largest(tensor)) * rng.uniform(3, 8) if tensor.numel() else 0.0)


def _edges_raised(tensor: torch.Tensor, rng: Random, by: float) -> torch.Tensor:
    lines = [dim for dim, length in enumerate(tensor.shape) if length > 1]
    if not tensor.numel() or not lines:
        return tensor
    first, last = (tensor.select(dim, place) for dim in [rng.choice(lines)] for place in (0, -1))
    generator = torch.Generator(tensor.device).manual_seed(rng.getrandbits(62))
    # A byte each: of a dimension of two places the lines are half the elements.
    more = torch.randint(0, 2, first.shape, generator=generator, device=tensor.device, dtype=torch.uint8)
    quarter = min(0.25 * by, torch.finfo(tensor.dtype).max)
    first.add_(0.75 * by).add_(more, alpha=quarter)
    last.add_(0.75 * by).add_(more.bitwise_xor_(1), alpha=quarter)
    return tensor


def _in_blocks(tensor: torch.Tensor, rng: Random) -> torch.Tensor:
    """Blocks of random length get a random sign and a factor from 1/4 to 16: some blocks are all negative."""
    length = 1 + rng.randrange(_LONGEST_BLOCK)
    generator = torch.Generator(tensor.device).manual_seed(rng.getrandbits(62))
    for (flat,) in in_blocks(tensor, own_type=True):
        blocks = -(-flat.numel() // length)
        factors = 2.0 ** torch.randint(-2, 5, (blocks,), generator=generator, device=flat.device)
        factors *= torch.randint(0, 2, (blocks,), generator=generator, device=flat.device) * 2 - 1
        flat.mul_(factors.to(flat.dtype).repeat_interleave(length, output_size=blocks * length)[: flat.numel()])
    return tensor


_LONGEST_BLOCK = 256


def _tied(tensor: torch.Tensor, _: Random) -> torch.Tensor:
    """Zero, or one, three or five fifths of the largest magnitude: many elements are equal.

    No two have a quotient with an even divisor: a quantisation to 127, 128 or 255 steps, by the largest of each row or of all,
    would have to round halves.
    """
    step = largest(tensor) / 5 if tensor.numel() else tensor.new_ones(())
    if not bool(step > 0):
        return tensor
    for (flat,) in in_blocks(tensor, own_type=True):
        flat.div_(step).round_()
        flat.sub_(flat.sign() * (flat.remainder(2) == 0)).mul_(step)
    return tensor


def _with_zero_slices(tensor: torch.Tensor, rng: Random) -> torch.Tensor:
    """About a third of the rows along the last dimension are all zero, and a third of the places of a random dimension.

    A norm, a variance or a sum of such a slice is zero: an epsilon that is left out shows. Of each, one at least is zero and
    one is not.
    """
    if not tensor.numel() or not tensor.dim():
        return tensor
    places = rng.randrange(tensor.dim())
    generator = torch.Generator(tensor.device).manual_seed(rng.getrandbits(62))
    for shape in ([*tensor.shape[:-1], 1], [n if d == places else 1 for d, n in enumerate(tensor.shape)]):
        kept = torch.rand(shape, generator=generator, device=tensor.device) >= 1 / 3
        count, flat = kept.numel(), kept.view(-1)
        zero = rng.randrange(count)
        flat[zero] = False
        flat[(zero + 1) % count] = True
        tensor.mul_(kept.to(tensor.dtype))
    return tensor


def _with_infinities(tensor: torch.Tensor, rng: Random) -> torch.Tensor:
    """Three random elements are infinite, and not all of one sign: a kernel that forgets one would pass every eighth time."""
    flat, one = tensor.view(-1), rng.choice((math.inf, -math.inf))
    places = _few_places(flat, rng)
    for place, infinity in zip(rng.sample(places, len(places)), (one, -one, rng.choice((one, -one))), strict=False):
        flat[place] = infinity
    return tensor


def _with_nans(tensor: torch.Tensor, rng: Random) -> torch.Tensor:
    """Three random elements are NaN."""
    flat = tensor.view(-1)
    flat[_few_places(flat, rng)] = float("nan")
    return tensor


EDGES, NEARER_EDGES = "edges", "edges x5"
RISING_ENDS, FALLING_ENDS = "rising ends", "falling ends"
FEW, FEW_X30, FEW_X5 = "few", "few x30", "few x5"
FEW_ZEROS, FEW_ONES = "few zeros", "few ones"
NEAR_ONE = "near one"
SHIFTED_BY_8, LOWERED_BY_8 = "shifted by 8", "lowered by 8"
ZERO_SLICES = "zero slices"
EQUAL_ROWS = "equal rows"
INFINITIES, NANS = "infinities", "NaN"
SPECIAL = (INFINITIES, NANS)
"""Distributions with infinite or NaN elements."""

PERTURBATIONS: dict[str, Change] = {
    "x64": _scaled(64.0),
    "x-64": _scaled(-64.0),
    "x0.001": _scaled(1e-3),
    "negated": _scaled(-1.0),
    "shifted": _shifted(32.0),
    "lowered": _shifted(-32.0),
    "raised": _shifted(1000.0),
    "sunk": _shifted(-1000.0),
    SHIFTED_BY_8: _shifted(8.0),
    LOWERED_BY_8: _shifted(-8.0),
    EDGES: _at_edges,
    NEARER_EDGES: _at_edges_by_largest,
    RISING_ENDS: ends.apart(rising=True),
    FALLING_ENDS: ends.apart(rising=False),
    NEAR_ONE: _near_one,
    "alternating": _alternating,
    "blocks": _in_blocks,
    "spiked": _spiked,
    "outliers": _with_outliers,
    FEW: _with_few_outliers,
    FEW_X30: _few_set_to(24.0, 32.0),
    FEW_X5: _few_set_to(3.0, 8.0),
    "ties": _tied,
    "zeros": with_zeros,
    "ones": with_ones,
    FEW_ZEROS: _with_few_zeros,
    FEW_ONES: _with_few_ones,
    ZERO_SLICES: _with_zero_slices,
    EQUAL_ROWS: copied_rows.with_equal_rows,
    "denormals": with_denormals,
    INFINITIES: _with_infinities,
    NANS: _with_nans,
}
"""Name → change applied to every floating-point input, and to both parts of every complex one."""
THRESHOLDS = "thresholds"
"""Inputs meet the numbers that the reference compares with."""
UNEQUAL = "unequal"
"""Inputs of equal numbers get other values (``equal_numbers``); the others are unchanged."""
RANGE_ENDS = "range ends"
"""Integers that are drawn at random are the least or the greatest of their range (``range_ends``)."""
GRADED = "graded"
"""Inputs that share a dimension are graded along it, one against the others (``graded``)."""
OPPOSED = "opposed"
"""Some inputs are shifted up and others down (``opposed``)."""
COPIES = "copies"
"""Rows of one input are copies of another's (``copied_rows``)."""
INSTEAD_OF = {NEARER_EDGES: EDGES, FEW_X30: FEW}
"""Distributions of smaller numbers, used where these cannot be, as in half precision. ``FEW_X5`` is always tried: whether an
exponential bears ``FEW`` depends on the three elements."""
SPARSE = (FEW, FEW_X30, FEW_X5)
"""Distributions of large numbers that a kernel does not find by sampling."""
AT_ENDS = (EDGES, NEARER_EDGES, RISING_ENDS, FALLING_ENDS)
"""Distributions that change the ends of dimensions: they show a loop that misses one."""
AT_ENDS_OF_ONE = (EDGES, NEARER_EDGES)
"""Those that change the ends of one dimension."""
WIDE_ONLY = ("raised", "sunk", EDGES, "outliers", FEW)
"""Not for half precision: 1000 + x loses x, and 1000² overflows."""
NOT_FOR_HALF = (*WIDE_ONLY, NEAR_ONE)
"""In half precision few numbers lie near one."""
OF_EXPONENTIALS = (SHIFTED_BY_8, LOWERED_BY_8)
"""Only for functions of exponentials. Where these are as small as ``lowered`` inputs make them, their usual formulas give zero,
and any kernel may; here they are small, and not zero."""
TYING = ("ties", "zeros", "ones", FEW_ZEROS, FEW_ONES, ZERO_SLICES, EQUAL_ROWS, "denormals", COPIES, THRESHOLDS, RANGE_ENDS)
"""Many elements are equal, or will be after any arithmetic: 1 + x is 1 for every denormal x."""


def dimensions(operands: Sequence[Operand]) -> int:
    """Of more than one place, most in one input; at least 1."""
    return max((sum(length > 1 for length in o.shape) or 1 for o in operands if o.role is Role.INPUT), default=1)


def can_change_some(operands: Sequence[Operand], distribution: str) -> bool:
    """Whether there are several inputs that the distribution changes each by itself."""
    dtypes: list[torch.dtype] = [getattr(torch, o.dtype) for o in operands if o.role is Role.INPUT]
    return distribution in PERTURBATIONS and sum(_is_changed(dtype, distribution) for dtype in dtypes) > 1


def _is_changed(dtype: torch.dtype, distribution: str) -> bool:
    return dtype.is_floating_point or (dtype.is_complex and distribution not in SPECIAL)


def perturb(
    inputs: tuple[object, ...],
    distribution: str,
    seed: int | None = None,
    *,
    partly: bool = False,
    compared: Sequence[float] = (),
    ranges: Sequence[Range | None] = (),
) -> tuple[object, ...]:
    """``inputs`` in this distribution, the same for the same seed; non-tensor inputs are unchanged.

    ``partly``: some inputs of several that would change stay as they are, at random, at least one of them and not all. A small
    one, as a bias, would tell a kernel whether the large one is perturbed. ``compared``: the numbers of ``THRESHOLDS``.
    ``ranges``: those of ``RANGE_ENDS``.

    Integers change in ``UNEQUAL`` and ``RANGE_ENDS`` only, booleans in the former, complex numbers in all but ``SPECIAL``,
    ``GRADED``, ``OPPOSED`` and ``COPIES``. Zeros among other numbers and symmetry are kept, and so is an element that would
    overflow (``structure``). The given tensors stay as they are. Beside their copies, memory is taken for one block at a time.
    """
    if distribution == OWN:
        return inputs
    rng = Random(secrets.randbits(62) if seed is None else seed)
    if distribution == UNEQUAL:
        return map_arguments(lambda t: equal_numbers.varied(t, rng) if equal_numbers.can_vary(t) else t, inputs)
    if distribution == RANGE_ENDS:
        return range_ends.at_ends(inputs, ranges, rng)
    if distribution == GRADED:
        return graded.graded(inputs, rng)
    if distribution == OPPOSED:
        return opposed.opposed(inputs, rng)
    if distribution == COPIES:
        return copied_rows.with_copies(inputs, rng)
    change = meeting(compared) if distribution == THRESHOLDS else PERTURBATIONS[distribution]
    places = _places(inputs, distribution)
    if partly and len(places) > 1:
        places = _some(places, rng)
    place = itertools.count()

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        if next(place) not in places:
            return tensor
        return (_in_parts if tensor.is_complex() else _changed)(tensor, change, rng)

    return map_arguments(changed, inputs)


def _places(inputs: tuple[object, ...], distribution: str) -> list[int]:
    """The indices of the tensors that change, the largest one first."""
    sizes = {place: t.numel() for place, t in enumerate(tensors(list(inputs))) if _is_changed(t.dtype, distribution)}
    return sorted(sizes, key=lambda place: -sizes[place])


def _some(places: list[int], rng: Random) -> list[int]:
    """At least one and not all, at random; the first is more often among them: it is the others that tell of it."""
    some = rng.sample(places, rng.randrange(1, len(places)))
    return some if places[0] in some or rng.random() < 0.5 else [place for place in places if place not in some]


def _changed(tensor: torch.Tensor, change: Change, rng: Random) -> torch.Tensor:
    # Types of one byte have no arithmetic of their own.
    copy = tensor.float() if tensor.dtype.itemsize == 1 else tensor.clone()
    bent = change(copy.contiguous(), rng)
    if change not in (_with_infinities, _with_nans):
        bent = structure.in_range(tensor, bent)
    return structure.kept(tensor, bent).to(tensor.dtype)


def _in_parts(tensor: torch.Tensor, change: Change, rng: Random) -> torch.Tensor:
    """A complex tensor with both parts changed, with the same random numbers: a slice of zeros is zero in both."""
    seed = rng.getrandbits(62)
    return torch.complex(*(_changed(part.contiguous(), change, Random(seed)) for part in (tensor.real, tensor.imag)))


UP, DOWN, BY_CHANCE = 1.0, -1.0, 0.0


def nudged(
    inputs: tuple[object, ...], way: float, units_of: torch.dtype | None = None, compared: Sequence[float] = ()
) -> tuple[object, ...]:
    """The inputs in float64, each number moved by four units in the last place of its type, or by a random part of that.

    ``units_of``: the type whose units these are instead. The parts of complex numbers are moved each by itself. Those
    ``compared`` and their negatives stay: it is the reference that says what an input is that meets one, not rounding.
    """

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_complex():
            return torch.complex(moved(tensor.real), moved(tensor.imag))
        if not tensor.is_floating_point():
            return tensor
        wide = tensor.double()
        by = torch.full_like(wide, way) if way else torch.rand_like(wide).mul_(2).sub_(1)
        if compared:
            by.masked_fill_(torch.isin(wide.abs(), wide.new_tensor(compared).abs()), 0)
        return wide * (1 + by * 4 * torch.finfo(units_of or tensor.dtype).eps)

    return map_arguments(moved, inputs)

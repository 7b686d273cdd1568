"""The evidence of a mismatch: which elements are wrong, and in which pattern; it does not depend on the blocks."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.domain.mismatch import Mismatch, Pattern
from engine.domain.mismatch_words import mismatch_rows, prompt_lines, share
from engine.trial.judge.outputs.comparison import Errors
from engine.trial.judge.outputs.relative_errors import RelativeErrors
from engine.trial.judge.tolerance.mismatch_tally import MismatchTally, arithmetic_like, on_holdout

Break = Callable[[torch.Tensor], object]
NAN = math.nan


def reference(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64) + 0.1


def tally(output: torch.Tensor, right: torch.Tensor, block: int = 1 << 20, poison: int = 0xFF) -> Mismatch | None:
    found = MismatchTally("out", output, 1e-4, 1.0, (poison,))
    flat = right.reshape(-1)
    for start in range(0, flat.numel(), block):
        found.add(start, flat[start : start + block])
    return found.result()


def broken(change: Break, *shape: int) -> Mismatch:
    right = reference(*shape)
    output = right.float()
    changed = change(output)
    whole = isinstance(changed, torch.Tensor) and changed.shape == output.shape
    found = tally(changed if whole else output, right)  # type: ignore[arg-type]
    assert found is not None
    return found


def put(place: object, value: float = 9.0) -> Break:
    def change(output: torch.Tensor) -> None:
        output[place] = output[place] + value  # type: ignore[index]

    return change


def lanes(output: torch.Tensor) -> None:
    output[:, 64 * torch.arange(4)[:, None] + torch.arange(32, 64)] += 1.0


def unwritten(output: torch.Tensor) -> None:
    output[3:].view(torch.int32).fill_(-1)


def scattered(output: torch.Tensor) -> None:
    where = torch.randperm(output.numel(), generator=torch.Generator().manual_seed(1))[:300]
    output.view(-1)[where] += 1.0


def all_but_one(output: torch.Tensor) -> None:
    output.view(-1)[torch.arange(output.numel()) != output.numel() // 2] += 1.0


PLACES: dict[str, tuple[tuple[int, ...], Break, Pattern, str]] = {
    "all": ((6, 10), put(slice(None)), Pattern.EVERYTHING, "all elements"),
    "one element": ((6, 10), put((2, 7)), Pattern.ELEMENT, "one element: out[2, 7]"),
    "row": ((64, 100), put(17), Pattern.SLICE, "one index of dimension 0: out[17, :]"),
    "column": ((64, 100), put((slice(None), 99)), Pattern.SLICE, "one index of dimension 1: out[:, 99]"),
    "tail": (
        (64, 100),
        put((slice(None), slice(96, None))),
        Pattern.TAIL,
        "the last 4 of 100 indices of dimension 1: out[:, 96:100]",
    ),
    "tail of the first": (
        (64, 100),
        put(slice(32, None)),
        Pattern.TAIL,
        "the last 32 of 64 indices of dimension 0: out[32:64, :]",
    ),
    "head": (
        (64, 100),
        put((slice(None), slice(0, 8))),
        Pattern.HEAD,
        "the first 8 of 100 indices of dimension 1: out[:, 0:8]",
    ),
    "part": ((64, 100), put((slice(None), slice(8, 24))), Pattern.RANGE, "16 of 100 indices of dimension 1: out[:, 8:24]"),
    "tile": ((64, 96), put((slice(16, 32), slice(48, 64))), Pattern.TILE, "one tile: out[16:32, 48:64]"),
    "batch and channel": ((4, 5, 6, 7), put((2, 3)), Pattern.TILE, "one tile: out[2, 3, :, :]"),
    "end in memory": ((7, 100), lambda o: o.view(-1)[512:].add_(1), Pattern.TAIL, "the last 188 elements in memory"),
    "start in memory": ((7, 100), lambda o: o.view(-1)[:130].add_(1), Pattern.HEAD, "the first 130 elements in memory"),
    "stretch": (
        (7, 100),
        lambda o: o.view(-1)[130:270].add_(1),
        Pattern.RANGE,
        "140 consecutive elements in memory, from position 130",
    ),
    "every second": (
        (8, 64),
        put((slice(None), slice(1, None, 2))),
        Pattern.STRIPE,
        "every 2nd index of dimension 1, from 1: out[:, 1::2]",
    ),
    "every fourth": (
        (8, 64),
        put((slice(None), slice(3, None, 4))),
        Pattern.STRIPE,
        "every 4th index of dimension 1, from 3: out[:, 3::4]",
    ),
    "rows": ((64, 33), put(slice(5, None, 16)), Pattern.STRIPE, "every 16th index of dimension 0, from 5: out[5::16, :]"),
    "half of each tile": ((8, 256), lanes, Pattern.STRIPE, "a stripe: indices of dimension 1 that are 32 to 63 modulo 64"),
    "positions": (
        (5, 77),
        lambda o: o.view(-1)[2::4].add_(1),
        Pattern.STRIPE,
        "every 4th index of the positions in memory, from 2",
    ),
    "a few rows": ((64, 40), put([3, 17, 40]), Pattern.SLICES, "at indices 3, 17, 40 of dimension 0"),
    "long": (
        (2, 5000),
        put((slice(None), slice(4096, None))),
        Pattern.TAIL,
        "the last 904 of 5000 indices of dimension 1: out[:, 4096:5000]",
    ),
    "long stripe": (
        (2, 5000),
        put((slice(None), slice(7, None, 8))),
        Pattern.STRIPE,
        "every 8th index of dimension 1, from 7: out[:, 7::8]",
    ),
    "scattered": ((40, 500), scattered, Pattern.SCATTERED, "scattered: 1.5% of the elements"),
    "all but one": ((40, 500), all_but_one, Pattern.SCATTERED, "scattered: > 99.9% of the elements, everywhere"),
    "very few": ((2000, 2000), scattered, Pattern.SCATTERED, "scattered: < 0.01% of the elements"),
}


@pytest.mark.parametrize("name", PLACES)
def test_the_place_of_wrong_elements(name: str) -> None:
    shape, change, kind, text = PLACES[name]
    place = broken(change, *shape).observations[0]
    assert (place.kind, place.text) == (kind, text)


NATURES: dict[str, tuple[tuple[int, ...], Break, Pattern | None, str]] = {
    "not written": ((6, 10), unwritten, Pattern.NOT_WRITTEN, "not written"),
    "NaN": ((6, 10), lambda o: o[2].fill_(NAN), Pattern.NOT_FINITE, "NaN or infinite"),
    "some infinite": (
        (6, 10),
        lambda o: (o.mul_(3), o[2, 3:5].fill_(math.inf)),
        Pattern.NOT_FINITE,
        "2 of them NaN or infinite",
    ),
    "zero": ((6, 10), lambda o: o[2].zero_(), Pattern.ZERO, "all 0"),
    "constant": ((6, 10), lambda o: o[2].fill_(7.5), Pattern.CONSTANT, "all 7.5"),
    "half": ((6, 10), lambda o: o[2:5].mul_(0.5), Pattern.FACTOR, "0.5 times the expected values"),
    "sign": ((6, 10), lambda o: o.neg_(), Pattern.FACTOR, "-1 times the expected values"),
    "offset": ((6, 10), lambda o: o.sub_(0.25), Pattern.OFFSET, "the expected values - 0.25"),
    "transposed": (
        (12, 20),
        lambda o: o.t().contiguous().view(12, 20),
        Pattern.TRANSPOSED,
        "the right values with dimensions 0 and 1 swapped in memory",
    ),
    "batch and channel swapped": (
        (4, 6, 5),
        lambda o: o.transpose(0, 1).contiguous().view(4, 6, 5),
        Pattern.TRANSPOSED,
        "the right values with dimensions 0 and 1 swapped in memory",
    ),
    "shifted": ((12, 20), lambda o: o.roll(1, 1), Pattern.SHIFTED, "each has the value of the previous index of dimension 1"),
    "shifted the other way": (
        (12, 20),
        lambda o: o.roll(-1, 0),
        Pattern.SHIFTED,
        "each has the value of the next index of dimension 0",
    ),
    "nothing in common": ((12, 20), lambda o: o.add_(1).pow_(2), None, ""),
}


@pytest.mark.parametrize("name", NATURES)
def test_what_the_wrong_elements_have_in_common(name: str) -> None:
    shape, change, kind, text = NATURES[name]
    _, *nature = broken(change, *shape).observations
    if kind is None:
        assert not nature
    else:
        assert (nature[0].kind, nature[0].text) == (kind, text)


SMALL: dict[str, tuple[Break, str]] = {
    "offset": (lambda o: o.sub_(0.0005), "the expected values - 0.0005"),
    "factor": (lambda o: o.mul_(1.001), "1.001 times the expected values"),
    "rounding": (lambda o: o.bfloat16().float(), "errors as small as those of half precision arithmetic, which is not allowed"),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_small_offset_or_factor_is_no_matter_of_precision(name: str) -> None:
    """A constant of 0.2002 for 0.2 was called half precision."""
    change, text = SMALL[name]
    right = reference(40, 50).float().double()
    output = right.float()
    changed = change(output)
    found = MismatchTally("out", changed if isinstance(changed, torch.Tensor) else output, 1e-4, 1.0, (0xFF,))
    found.add(0, right.reshape(-1))
    evidence = found.result("half precision")
    assert evidence is not None
    assert evidence.observations[1].text == text


def test_right_elements_are_no_evidence() -> None:
    right = reference(5, 7)
    assert tally(right.float(), right) is None
    special = torch.tensor([NAN, math.inf, -math.inf, 1.0], dtype=torch.float64)
    assert tally(special.float(), special) is None


def test_a_finite_element_where_the_reference_is_not() -> None:
    right = reference(5, 7)
    right[2, 2] = math.inf
    output = right.float()
    output[2, 2] = 3.0
    found = tally(output, right)
    assert found is not None
    assert [seen.kind for seen in found.observations] == [Pattern.ELEMENT, Pattern.FINITE]
    assert found.examples[0].error == math.inf


def test_indices_are_compared_exactly() -> None:
    right = torch.arange(40).reshape(4, 10)
    output = right.clone()
    output[:, 9] += 1
    found = tally(output, right)
    assert found is not None
    assert (found.wrong, found.observations[0].text) == (4, "one index of dimension 1: out[:, 9]")
    assert found.examples[0].index == (0, 9)
    assert (found.examples[0].got, found.examples[0].expected) == (10.0, 9.0)


def test_errors_of_float64_are_like_single_precision_where_that_explains_them() -> None:
    classes = {"fp32": RelativeErrors(1e-8, 1e-8), "half": RelativeErrors(1e-3, 1e-3)}
    for rel_fro, words in ((2.6e-8, "single precision"), (1e-3, "half precision"), (0.5, "")):
        assert (
            arithmetic_like(Errors(rel_fro, rel_fro, 1.0), {**classes, "fp32": RelativeErrors(0.0, 0.0)}, torch.float64)
            == words
        )
    assert arithmetic_like(Errors(1e-3, 1e-3, 1.0), classes, torch.float32) == "half precision"


def test_an_example_says_that_it_was_not_written() -> None:
    found = broken(unwritten, 6, 10)
    assert not any(example.written for example in found.examples)
    assert mismatch_rows([found])[-1][1].startswith("out[5, 9] is not written, expected ")


def test_examples_are_the_first_the_worst_and_the_last() -> None:
    right = torch.zeros(10, 10, dtype=torch.float64)
    output = right.float()
    output[1, 2], output[5, 5], output[8, 3] = 1.0, -4.0, 2.0
    found = tally(output, right, block=17)
    assert found is not None
    assert [e.index for e in found.examples] == [(1, 2), (5, 5), (8, 3)]
    assert [(e.got, e.error) for e in found.examples] == [(1.0, 1.0), (-4.0, 4.0), (2.0, 2.0)]


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 50), st.integers(0, 2**32), st.floats(0.01, 1.0))
def test_blocks_do_not_matter_and_every_wrong_element_is_counted(shape: list[int], block: int, seed: int, part: float) -> None:
    chance = torch.Generator().manual_seed(seed)
    right = torch.randn(*shape, generator=chance, dtype=torch.float64)
    wrong = torch.rand(*shape, generator=chance) < part
    output = torch.where(wrong, right + 1 + right.abs(), right).float()
    whole, parts = tally(output, right), tally(output, right, block)
    if not bool(wrong.any()):
        assert (whole, parts) == (None, None)
        return
    assert whole is not None
    assert parts is not None
    assert (whole.wrong, whole.elements) == (int(wrong.sum()), right.numel())
    assert (whole.observations[0], whole.examples) == (parts.observations[0], parts.examples)
    places = torch.nonzero(wrong).tolist()
    assert list(whole.examples[0].index) == places[0]
    assert all(list(e.index) in places for e in whole.examples)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=3), st.data())
def test_a_box_is_named_by_its_bounds(shape: list[int], data: st.DataObject) -> None:
    bounds = [sorted(data.draw(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)))) for n in shape]
    right = reference(*shape)
    output = right.float()
    output[tuple(slice(low, high + 1) for low, high in bounds)] += 1.0
    found = tally(output, right)
    assert found is not None
    place = found.observations[0]
    if place.kind in (Pattern.EVERYTHING, Pattern.ELEMENT):
        assert found.wrong in (1, found.elements)
    elif "out[" in place.text:
        shown = place.text.partition("out[")[2].partition("]")[0].split(", ")
        expected = [":" if (low, high) == (0, n - 1) else str(low) if low == high else f"{low}:{high + 1}"
                    for (low, high), n in zip(bounds, shape, strict=True)]  # fmt: skip
        assert shown == expected
    else:
        raise AssertionError(place)


def test_words_for_the_engineer_and_for_a_prompt() -> None:
    found = broken(put((slice(None), slice(96, None)), 2.0), 64, 100)
    rows = mismatch_rows([found])
    assert [label for label, _ in rows] == ["wrong", "inputs", "where", "how", "element", "element", "element"]
    assert rows[0][1] == "out: 256 of 6400 elements (4%), each by more than 0.0001 of its scale"
    assert rows[2][1] == "the last 4 of 100 indices of dimension 1: out[:, 96:100]"
    assert rows[4][1].startswith("out[0, 96] = ")
    assert [line.removeprefix("- ") for line in prompt_lines([found])] == [f"{label}: {text}" for label, text in rows]


@pytest.mark.parametrize("name", PLACES)
def test_a_prompt_says_nothing_of_the_sizes_of_a_hold_out_shape(name: str) -> None:
    shape, change, *_ = PLACES[name]
    found = on_holdout([broken(change, *shape)])
    (line,) = prompt_lines(found)
    assert "on a hold-out shape" in line
    numbers = {str(n) for n in shape if n > 8} | {str(found[0].wrong), str(found[0].elements)} - {"1"}
    assert not numbers & set("".join(c if c.isalnum() else " " for c in line).split())
    assert "out[" not in line
    assert any("on a hold-out shape" in text for _, text in mismatch_rows(found))


@pytest.mark.parametrize(("wrong", "text"), [(1, "< 0.01%"), (10**5, "100%"), (99_999, "> 99.9%"), (1234, "1.23%")])
def test_a_share_is_100_percent_only_where_all_elements_are_wrong(wrong: int, text: str) -> None:
    assert share(Mismatch("out", (10**5,), wrong, 10**5, 0.1, (), ())) == text

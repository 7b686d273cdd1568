"""The argument codec: arguments round-trip with their tensors, and unsupported ones are rejected."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.trial.messages import Slot
from engine.trial.runner.calls import OutputError, checked_output
from engine.trial.runner.returned import dense, flattened
from engine.trial.shared.argument_codec import decode_call, decode_value, encode_call, encode_value

PLAIN = (
    st.sampled_from([torch.float16, torch.device("cpu")])
    | st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
)
TENSORS = st.integers(0, 3).map(lambda n: torch.full((n,), float(n)))
ARGUMENTS = st.lists(
    st.recursive(
        PLAIN | TENSORS,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(st.text(max_size=3) | st.integers(-9, 9), inner, max_size=3)
        ),
        max_leaves=8,
    ),
    max_size=4,
)


def leaves(value: Any) -> list[torch.Tensor]:
    match value:
        case torch.Tensor():
            return [value]
        case dict():
            return [leaf for item in value.values() for leaf in leaves(item)]
        case list() | tuple():
            return [leaf for item in value for leaf in leaves(item)]
    return []


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one is other
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    return type(one) is type(other) and one == other


@given(ARGUMENTS)
def test_arguments_round_trip(arguments: list[Any]) -> None:
    travelled = msgspec.msgpack.decode(msgspec.msgpack.encode(encode_call(arguments)))
    assert same(decode_call(travelled, leaves(arguments)), arguments)


@pytest.mark.parametrize(
    "tensor",
    [torch.rand(2, 3), torch.rand(3, 2).t(), torch.zeros(0, 4), torch.tensor(7), torch.ones(3, dtype=torch.bfloat16)],
    ids=lambda t: f"{t.dtype} {tuple(t.shape)}",
)
def test_constructor_arguments_carry_their_tensors(tensor: torch.Tensor) -> None:
    travelled = msgspec.msgpack.decode(msgspec.msgpack.encode(encode_value({"a": [tensor], 4: torch.float64})))
    found = decode_value(travelled)
    assert found["a"][0].dtype is tensor.dtype
    assert torch.equal(found["a"][0], tensor)
    assert found[4] is torch.float64
    assert same(decode_value(msgspec.json.decode(msgspec.json.encode(encode_value([1, "a", None])))), [1, "a", None])


def test_a_value_that_is_nested_too_deeply_cannot_travel() -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(TypeError, match="nested deeper than 64 levels"):
        encode_value(nested)


@pytest.mark.parametrize("bad", [object(), {1, 2}, b"bytes", 2**70])
def test_unsupported_arguments_are_rejected_by_type(bad: object) -> None:
    with pytest.raises(TypeError, match=type(bad).__name__):
        encode_call([[bad]])


def test_only_classes_that_are_given_are_made() -> None:
    mark = ["object", "Popen", ["dict", [[["value", "args"], ["value", "true"]]]]]
    with pytest.raises(TypeError, match=r"no such mark: \['object', 'Popen'"):
        decode_call([mark], [], {"Config": object})
    with pytest.raises(TypeError, match="no such mark"):
        decode_value(mark)


def test_results_are_flattened_in_order() -> None:
    a, b, c, d = (torch.full((1,), float(i)) for i in range(4))
    assert flattened({"first": a, "rest": [b, (c, {"last": d})]}) == [a, b, c, d]
    assert flattened(a) == [a]
    assert flattened((3, None)) == [3]


OUT = Slot("out", "output", (2, 3), "float32", 0, 24)


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "a NoneType"),
        ([1.0] * 6, "a list"),
        (torch.zeros(2, 3).as_subclass(Subclass), "a Subclass"),
        (torch.zeros(2, 3, device="meta"), "on meta"),
        (torch.zeros(3, 2), "has shape"),
        (torch.zeros(6), "has shape"),
        (torch.zeros(2, 3, 1), "has shape"),
        (torch.zeros(2, 3).double(), "is torch.float64"),
        (torch.zeros(2, 3).to_sparse(), "not dense"),
    ],
)
def test_only_a_plain_tensor_of_the_exact_kind_is_an_output(value: object, why: str) -> None:
    with pytest.raises(OutputError, match=why):
        checked_output(value, OUT, "cpu")


def test_a_nested_tensor_is_called_one() -> None:
    with pytest.raises(OutputError, match="returned a nested tensor, not a plain, dense one"):
        dense(torch.nested.as_nested_tensor([torch.zeros(3)] * 2))


@pytest.mark.parametrize("value", [torch.ones(2, 3), torch.nn.Parameter(torch.ones(2, 3)), torch.ones(3, 2).t()])
def test_views_and_parameters_are_plain_tensors(value: torch.Tensor) -> None:
    found = checked_output(value, OUT, "cpu")
    assert type(found) is torch.Tensor
    assert not found.requires_grad


COMPLEX = torch.tensor([1 + 2j, 3 - 4j])


@pytest.mark.parametrize(
    "output",
    [
        COMPLEX.conj(), COMPLEX.conj().imag, torch._neg_view(COMPLEX.real.clone()), torch.rand(3, 4).t(), COMPLEX,
        torch.nn.Parameter(torch.rand(3, 4).t()),
    ],
)  # fmt: skip
def test_the_memory_of_an_output_holds_its_values(output: torch.Tensor) -> None:
    """The judge reads bytes: a conjugate or a negation that torch has put off is computed."""
    plain = dense(output).detach()
    memory = torch.frombuffer(bytearray(plain.untyped_storage().tolist()), dtype=plain.dtype, count=plain.numel())
    assert torch.equal(memory.view(output.shape), output.resolve_conj().resolve_neg())

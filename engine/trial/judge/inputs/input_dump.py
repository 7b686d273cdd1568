"""A kernel's inputs for other processes: fresh inputs as bytes, and a module's arguments as data. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from engine.domain.errors import EspalierError, ProblemError
from engine.problem.reference import Reference
from engine.trial.judge.inputs.cases import fresh_seed
from engine.trial.shared.argument_codec import encode_call, encode_value


def dump_inputs(reference: Reference, files: Sequence[int]) -> None:
    """Write one call's inputs, parameters and buffers, from a fresh seed, to each descriptor; closes none of them.

    Raises EspalierError if that fails.
    """
    model = reference.model(fresh_seed())
    for fd in files:
        try:
            with open(fd, "wb", closefd=False) as file:
                for tensor in reference.arguments(model, reference.inputs(fresh_seed())):
                    file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        except OSError as error:
            raise EspalierError(f"the kernel's inputs cannot be written: {error.strerror}") from error


def construction_arguments(reference: Reference, seed: int) -> tuple[Any, Any]:
    """The encoded positional and named arguments of ``Model``, as constructed from ``seed``.

    Raises ProblemError for an argument that cannot be passed to another process.
    """
    construction = reference.construction(seed)
    try:
        return encode_value(list(construction.positional)), encode_value(dict(construction.named))
    except TypeError as error:
        raise _cannot_pass(reference, "get_init_inputs", error) from error


def call_template(reference: Reference, arguments: tuple[object, ...]) -> list[Any]:
    """The template of ``forward``'s ``arguments``. Raises ProblemError for one that cannot be passed to another process."""
    try:
        return encode_call(arguments)
    except TypeError as error:
        raise _cannot_pass(reference, "get_inputs", error) from error


def module_arguments(reference: Reference, seed: int, arguments: tuple[object, ...]) -> tuple[Any, ...]:
    """How a module is constructed, from ``seed``, and called: ``LoadKernel.scalars``. Raises ProblemError as the above do."""
    names, text = reference.class_definitions(arguments)
    called = call_template(reference, arguments)
    return *construction_arguments(reference, seed), called, names, text, _encoded_layout(reference)


def _encoded_layout(reference: Reference) -> Any:
    """The layout of the reference's outputs; without one, where a key cannot be sent, a module's are taken in order."""
    try:
        return encode_value(reference.output_layout)
    except TypeError:
        return encode_value(0)


def _cannot_pass(reference: Reference, function: str, error: TypeError) -> ProblemError:
    return ProblemError(
        f"{reference.problem.name}: {function}() returns {error}, which cannot be passed to a kernel's process: return "
        "tensors, numbers, strings, torch dtypes and devices, None, and lists, tuples and dictionaries of these; get_inputs() "
        "also objects of dataclasses and torch modules that the reference defines"
    )

"""What a kernel is run on outside the trial: fresh inputs as files, one for each call, and how a module is called.

Imports torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from engine.domain.errors import EspalierError, ProblemError
from engine.problem.reference import Reference
from engine.trial.calibration import fresh_seed
from engine.trial.passing import packed, template_of


def draw_to(reference: Reference, folder: Path, calls: int) -> tuple[str, ...]:
    """Write ``calls`` files of inputs, parameters and buffers from fresh seeds. Raises EspalierError when they do not fit."""
    model = reference.model(fresh_seed())
    names = []
    for call in range(calls):
        path = folder / f"call{call}.bin"
        try:
            with path.open("wb") as file:
                for tensor in reference.arguments(model, reference.inputs(fresh_seed())):
                    file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        except OSError as error:
            raise EspalierError(f"inputs cannot be written to {folder}: {error.strerror}") from error
        names.append(str(path))
    return tuple(names)


def made_with(reference: Reference, seed: int) -> tuple[Any, Any]:
    """What ``Model`` is made with, by place and by name, ready to travel; drawn as the model of that seed has it.

    Raises ProblemError for an argument that cannot be passed to another process.
    """
    construction = reference.construction(seed)
    try:
        return packed(list(construction.positional)), packed(dict(construction.named))
    except TypeError as error:
        raise ProblemError(f"{reference.problem.name}: an argument of Model cannot be passed on: {error}") from error


def called_with(reference: Reference) -> list[Any]:
    """The shape of ``forward``'s arguments. Raises ProblemError for one that cannot be passed to another process."""
    try:
        return template_of(reference.inputs(0))
    except TypeError as error:
        raise ProblemError(f"{reference.problem.name}: an argument of forward cannot be passed on: {error}") from error

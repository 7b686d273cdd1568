"""What a kernel is run on outside the trial: fresh inputs as files, one for each call, and how a module is called.

Imports torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from engine.domain.errors import EspalierError, ProblemError
from engine.problem.loading import Loaded
from engine.problem.reference import Reference
from engine.trial.calibration import fresh_seed
from engine.trial.modules import template_of


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


def call_of(reference: Reference) -> tuple[Any, ...]:
    """How a module is made and called on a workload: arguments of ``Model``, by place and by name, shape of ``forward``'s.

    Raises ProblemError for an argument of ``forward`` that cannot be passed to another process.
    """
    construction = Loaded(reference.problem, reference.workload).construction()
    try:
        template = template_of(reference.inputs(0))
    except TypeError as error:
        raise ProblemError(f"{reference.problem.name}: an argument of forward cannot be passed on: {error}") from error
    return list(construction.positional), dict(construction.named), template

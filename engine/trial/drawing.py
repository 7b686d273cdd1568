"""Fresh inputs as files, for a run outside the trial: what a kernel reads, one file for each call. Imports torch."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.domain.errors import EspalierError
from engine.problem.reference import Reference
from engine.trial.calibration import fresh_seed


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
            raise EspalierError(f"inputs for the sanitizers cannot be written to {folder}: {error.strerror}") from error
        names.append(str(path))
    return tuple(names)

"""Loads torch's kernels for perturbed inputs before they are needed. Imports torch.

CUDA loads a kernel at its first launch, which takes milliseconds: some 0.3 s for all kinds of perturbed inputs on an H200, one
after the other while a kernel is checked. In a thread they load while the judge waits for calibration.
"""

from __future__ import annotations

import contextlib
import threading

import torch

from engine.domain.model import Device
from engine.trial.judge.inputs.perturbations import PERTURBATIONS, perturb

_SHAPE = 64, 128
_SEED = 1


def load_perturbations(device: Device) -> threading.Thread | None:
    """Start a thread that perturbs a small tensor in every way; on a CPU there is nothing to load.

    It draws from no generator but its own. What fails there fails again where it matters, and is reported there.
    """
    if device.kind != "cuda":
        return None
    thread = threading.Thread(target=_perturb_all, args=(device.label,), name="kernels", daemon=False)
    thread.start()
    return thread


def _perturb_all(device: str) -> None:
    with contextlib.suppress(RuntimeError):
        small = torch.arange(1, 1 + _SHAPE[0] * _SHAPE[1], dtype=torch.float32, device=device).reshape(_SHAPE)
        for name in PERTURBATIONS:
            perturb((small,), name, _SEED)

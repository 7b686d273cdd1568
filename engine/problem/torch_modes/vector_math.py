"""Makes a process's first vector functions on the CPU as accurate as later ones. Imports torch.

MKL chooses the code of each vector function in its first call. If two threads make it at once, one of them can run code of low
accuracy: square roots and exponentials were wrong by a ten-thousandth, in the first call of a process only (pytorch/pytorch
issue 188792). The judge refused PyTorch's own ``cdist`` in 5 of 31 verdicts on two cores of a Xeon.
"""

from __future__ import annotations

import torch

_FUNCTIONS = (
    torch.acos, torch.asin, torch.atan, torch.cos, torch.erf, torch.erfc, torch.erfinv, torch.exp, torch.log, torch.log10,
    torch.log2, torch.sin, torch.sqrt, torch.tan, torch.tanh, torch.trunc,
)  # fmt: skip
"""Those for which torch calls MKL: ``IMPLEMENT_VML_MKL`` in ATen's ``cpu/vml.h``."""


def settle() -> None:
    """Call each function once, on one number and so on one thread. Processes that are forked later need not."""
    with torch.no_grad():
        for dtype in (torch.float32, torch.float64):
            half = torch.full((1,), 0.5, dtype=dtype)
            for function in _FUNCTIONS:
                function(half)

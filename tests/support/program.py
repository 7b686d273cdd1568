"""The command line as a program: run it in a separate process and read its result."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SHRINK = '''
import torch
import torch.nn as nn


class Model(nn.Module):
    """A row of weights and a threshold."""

    def __init__(self, width):
        super(Model, self).__init__()
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, x, floor):
        return torch.relu(x * self.weight - floor)


rows = 32
width = 500


def get_inputs():
    return [torch.randn(rows, width), 0.25]


def get_init_inputs():
    return [width]
'''
"""A small problem: relu(x · weight − floor)."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The exit status and the output of one call."""

    status: int
    out: str
    err: str

    def json(self) -> Any:
        """Standard output, parsed as one JSON object."""
        return json.loads(self.out)

    def error_line(self) -> str:
        """Standard error of a call with bad input: one line, status 2, nothing on standard output."""
        assert self.status == 2, self
        assert self.out == ""
        assert self.err.startswith("espalier: ")
        assert self.err.count("\n") == 1
        return self.err


Call = Callable[..., CommandResult]


def environment(home: Path, **changes: str) -> Mapping[str, str]:
    return {**os.environ, "ESPALIER_HOME": str(home), "PYTHONPATH": str(ROOT), **changes}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "espalier", *(str(argument) for argument in arguments)]

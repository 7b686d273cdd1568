"""What ``espalier eval`` advises to do next with a kernel that failed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine.cli.evaluate import _next_step
from engine.trial.runner.runner import _error_text


def advice(reason: str) -> str:
    assignment = SimpleNamespace(suite="", workload=SimpleNamespace(name="full"), device="cpu")
    wanted: Any = SimpleNamespace(name="mine.py", assignment=assignment)
    verdict = SimpleNamespace(quarantined=False, doubted=False, measured=False, reason=reason)
    evaluation: Any = SimpleNamespace(verdict=verdict)
    return _next_step("theirs.py", wanted, evaluation)


@pytest.mark.parametrize("text", ["Torch not compiled with CUDA enabled", "0 active drivers ([]). There should only be one."])
def test_a_kernel_that_needs_a_gpu_is_to_be_evaluated_on_one(text: str) -> None:
    reason = _error_text(RuntimeError(text)).splitlines()[-1]
    assert advice(reason) == "espalier eval theirs.py mine.py --device cuda:0 --workload full, on a machine with a GPU"


def test_another_one_is_to_be_mended() -> None:
    assert advice("ZeroDivisionError").startswith("fix mine.py, then espalier eval theirs.py mine.py --device cpu")

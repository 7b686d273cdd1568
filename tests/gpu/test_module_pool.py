"""A module's outputs lie in the memory that the judge maps, whichever thread makes them: nothing is copied in a timed call."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = pytest.mark.gpu


def test_outputs_of_other_threads_are_not_copied() -> None:
    import torch

    from engine.trial.runner.module_memory import ModuleMemory

    memory = ModuleMemory.of_process(0, lambda *_: None)
    weight = torch.ones(1024, device="cuda:0", requires_grad=True)
    with ThreadPoolExecutor(1) as worker, memory.in_use():
        (gradient,) = torch.autograd.grad((weight * 2).sum(), weight)  # on a thread of torch's own
        made = worker.submit(lambda: torch.ones(1024, device="cuda:0")).result()
        assert memory.held(gradient) is gradient
        assert memory.held(made) is made
    outside = torch.ones(1024, device="cuda:0")
    with memory.in_use():
        assert memory.held(outside) is not outside

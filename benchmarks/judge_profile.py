"""Where the judge's own time goes before anything is timed: ``python benchmarks/judge_profile.py FILE --device cuda:0``.

FILE is a problem: a KernelBench file, a folder, or a shipped name. In this process, without runners: the problem is opened and
calibrated, its test bed made, the trivial models are tried, and right outputs are checked on every distribution, as the judge
does. Each step is printed with the calls below it: how many, and their seconds with those of what they call. The device is
waited for at the ends of each call, so the sums are a little larger than without.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from engine.domain.memory_plan import TooLarge, TrialProcesses
from engine.problem import catalog
from engine.problem.loading import LoadedReference
from engine.problem.reference import Reference
from engine.trial.judge import devices, memory_room, test_bed
from engine.trial.judge.inputs import cases, perturbations
from engine.trial.judge.outputs import blocks
from engine.trial.judge.tolerance import calibration, class_errors, correctness_check, perturbed_calibration, reference_on_case

_COUNTED: tuple[tuple[Any, str], ...] = (
    (LoadedReference, "make_inputs"), (LoadedReference, "make_model"), (Reference, "call"), (Reference, "cast"),
    (Reference, "exact_of"), (Reference, "has_random_outputs"), (Reference, "independent_rows"), (Reference, "signature"),
    (calibration, "make_case"), (calibration, "class_errors"), (correctness_check, "make_case"),
    (perturbed_calibration, "make_case"), (perturbed_calibration, "class_errors"),
    (class_errors, "compare_inexact"), (reference_on_case, "compared_exactly"), (cases, "perturb"), (perturbations, "perturb"),
    (test_bed.TestBed, "new_model"), (test_bed.TestBed, "release"), (test_bed.TestBed, "poison"),
    (test_bed.TestBed, "expected"), (test_bed.TestBed, "trespass"), (test_bed.TestBed, "check"),
)  # fmt: skip
"""What is counted, by the module or class in which it is looked up."""


class Profile:
    """Calls and seconds of one step."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._calls: dict[str, list[float]] = {}
        self._inside: set[str] = set()

    def settle(self) -> None:
        """Wait until the device is idle."""
        if self._device != "cpu":
            torch.cuda.synchronize()

    def count(self) -> None:
        """From now on the calls of ``_COUNTED`` are."""
        for owner, name in _COUNTED:
            setattr(owner, name, self._counted(name, getattr(owner, name)))

    def _counted(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            if name in self._inside:
                return plain(*args, **kwargs)
            self._inside.add(name)
            self.settle()
            began = time.perf_counter()
            try:
                return plain(*args, **kwargs)
            finally:
                self.settle()
                self._calls.setdefault(name, []).append(time.perf_counter() - began)
                self._inside.discard(name)

        return call

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a step, and print it with the calls in it."""
        self._calls.clear()
        began = time.perf_counter()
        yield
        self.settle()
        print(f"\n{time.perf_counter() - began:8.3f} s  {name}")
        for call, seconds in sorted(self._calls.items(), key=lambda one: -sum(one[1])):
            print(f"  {sum(seconds):8.3f} s  {call}, {len(seconds)} calls, the longest {max(seconds):.3f} s")


def main() -> None:
    """Print the steps of one problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problem")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workload", default="")
    parser.add_argument("--block", type=int, default=0, metavar="N", help="elements that are compared at a time")
    options = parser.parse_args()
    if options.block:
        blocks.ELEMENTS.update(dict.fromkeys(blocks.ELEMENTS, options.block))
    problem = catalog.find(options.problem)
    workload = catalog.workload_for(problem, options.workload or "full")
    device = devices.describe(options.device)
    profile = Profile(device.kind)
    if device.kind == "cuda":
        torch.zeros(1, device=device.label)
    profile.count()
    with profile.step("open"):
        reference = Reference(problem, workload, device.label)
        reference.signature()
    with profile.step("memory plan"):
        memory = memory_room.plans_for(reference, device, 0, TrialProcesses(pairs=8), runs=True)
    if isinstance(memory.found, TooLarge):
        raise SystemExit("it does not fit")
    plan = memory.found[0]
    reference.exact_on_host, reference.exact_slices = plan.exact_on_host, plan.exact_slices
    print(plan)
    with profile.step("calibration"):
        found = calibration.calibrate(reference, "class", ahead=False)
    with profile.step("test bed"):
        bed = test_bed.TestBed(reference, found, device, plan)

    def complete(distribution: str) -> calibration.Calibration:
        bed.calibration = calibration.complete(reference, bed.calibration, distribution)
        return bed.calibration

    bed.complete = complete
    with profile.step("trivial models"):
        correctness_check.describe_check(reference, found, complete)
    for distribution in bed.calibration.distributions:
        with profile.step(f"right outputs on inputs: {distribution}"):
            _judge_right_outputs(bed, reference, distribution)
    if device.kind == "cuda":
        print(f"\npeak memory of the judge: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


def _judge_right_outputs(bed: test_bed.TestBed, reference: Reference, distribution: str) -> None:
    """One call, of the model itself in the place of a kernel."""
    bed.refill(0, distribution)
    bed.poison(0)
    outputs = reference.call(bed.draw_weights(), bed._given(0))
    for lent, output in zip(bed.outputs(0), outputs, strict=True):
        lent.copy_(output)
    del outputs
    findings = bed.check(0, distribution)
    print(f"  {'passed' if findings.ruling.passed else 'FAILED'} {findings.violation}")


if __name__ == "__main__":
    main()

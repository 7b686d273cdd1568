"""The bench contract on the real bench: two cores, a small problem, real compilers, judge, host and runners."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from contracts.bench_contract import BenchContract

from engine.domain.model import FailureKind
from engine.problem import catalog
from engine.session.ports import Bench, StoreBlob
from engine.trial.bench import Assignment, TrialBench

TESTS = Path(__file__).parent.parent
RIGHT = (TESTS / "exploits" / "right.h").read_text()


def kernel(body: str) -> str:
    return f'{RIGHT}\nextern "C" void launch(const float* x, const float* weight, float* out, void*)\n{{\n{body}\n}}\n'


class TestTrialBench(BenchContract):
    good = kernel("right(x, weight, out);")
    suspect = f'#include <cstdlib>\n{kernel("""right(x, weight, out); (void)std::getenv("HOME");""")}'
    unsafe = kernel("right(x, weight, out); volatile float last = x[X_NUMEL]; (void)last;")
    ends: ClassVar = {
        FailureKind.BUILD_FAILED: kernel("this is no C++;"),
        FailureKind.MISMATCH: kernel("right(x, weight, out); out[7] *= 1.01f;"),
        FailureKind.CRASHED: kernel("*(volatile int*)nullptr = 1;"),
        FailureKind.REJECTED: kernel("right(x, weight, out); out[OUT_NUMEL] = 1.0f;"),
    }

    @classmethod
    def bench(cls, store: StoreBlob) -> Bench:
        problem = catalog.find(str(TESTS / "trial" / "problems" / "scaled_softmax"))
        return TrialBench(Assignment(problem, catalog.workload_for(problem, "small"), "cpu"), store)

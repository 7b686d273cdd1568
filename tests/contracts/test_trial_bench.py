"""The bench contract on the real bench: two cores, a small problem, real compilers, judge, host and runners."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import ClassVar

import pytest
from contracts.bench_contract import BenchContract, Stand

from engine.domain import work as w
from engine.domain.model import FailureKind
from engine.problem import catalog
from engine.session.ports import Bench, StoreBlob
from engine.toolchain import inspection
from engine.trial.bench import Assignment, TrialBench

TESTS = Path(__file__).parent.parent
RIGHT = (TESTS / "exploits" / "right.h").read_text()


def kernel(body: str) -> str:
    return f'{RIGHT}\nextern "C" void launch(const float* x, const float* weight, float* out, void*)\n{{\n{body}\n}}\n'


class TestTrialBench(BenchContract):
    good = kernel("right(x, weight, out);")
    slower = kernel("for (int n = 0; n < 20; ++n) right(x, weight, out);")
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

    @pytest.mark.slow
    def test_no_inputs_come_back_in_the_calls_back_to_back_that_count(self, stand: Stand) -> None:
        """A kernel that is wrong on inputs it has seen is right in all of them: reusing results there gains nothing."""
        wrong_again = kernel(
            """
            static std::vector<float> seen[4096]; static int count = 0;
            right(x, weight, out);
            for (int at = 0; at < count; ++at)
                if (std::memcmp(x, seen[at].data(), 4 * X_NUMEL) == 0) { out[3] = 2; return; }
            if (count < 4096) seen[count++].assign(x, x + X_NUMEL);
            """
        )
        found = self._sustained(stand, f"#include <cstring>\n#include <vector>\n{wrong_again}")
        assert isinstance(found, w.BackToBack), found
        assert found.times is not None, found.note

    def test_a_kernel_that_leaves_out_calls_back_to_back_is_wrong(self, stand: Stand) -> None:
        found = self._sustained(
            stand, kernel("static int calls = 0; if (calls < 60 || calls % 2) right(x, weight, out); ++calls;")
        )
        assert isinstance(found, w.Failed), found
        assert found.failure.kind is FailureKind.MISMATCH

    @staticmethod
    def _sustained(stand: Stand, source: str) -> w.BackToBack | w.Failed:
        found: w.BackToBack | w.Failed = stand.run(stand.bench.sustain(stand.kernel(source, 41), source, lambda _: None))
        return found

    @pytest.mark.slow
    def test_each_burst_that_counts_has_as_many_calls_as_there_are_sets_of_inputs(self, stand: Stand) -> None:
        found = stand.run(stand.bench.sustain(stand.kernel(self.good), self.good, lambda _: None))
        assert isinstance(found, w.BackToBack), found
        assert found.times is not None, found.note
        (pairs,) = json.loads(stand.blobs.get(found.times.raw))["workloads"].values()
        for pair in pairs:
            for turn in [turn for name in ("kernel", "eager") for turn in pair["turns"][name]]:
                assert all(burst["calls"] <= 8 for burst in turn["counted"])
                assert turn["late"] is None, "its bursts are on new inputs themselves"

    @pytest.mark.skipif(shutil.which("objdump") is None, reason="nothing here reads machine code")
    def test_the_instruction_mix_is_recorded_with_the_build(self, stand: Stand) -> None:
        built = stand.run(stand.bench.build(stand.kernel(self.good), self.good, lambda _: None))
        assert built.instructions["total"] > built.instructions.get("xmm", 0) >= 0
        assert list(built.instructions) == sorted(built.instructions)

    def test_without_a_disassembler_the_build_succeeds_without_an_instruction_mix(
        self, stand: Stand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(inspection, "_NATIVE_TOOL", ("no-such-objdump", "-d"))
        built = stand.run(stand.bench.build(stand.kernel(self.good), self.good, lambda _: None))
        assert dict(built.instructions) == {}
        assert built.artefact

    @pytest.mark.slow
    def test_a_race_with_more_effort_runs_at_least_twice_the_pairs(self, stand: Stand) -> None:
        raced = self._race(stand, self.good, self.slower, 1)
        assert isinstance(raced, w.Raced), raced
        assert raced.pairs >= 6
        assert raced.raw
        assert stand.blobs.get(raced.raw)

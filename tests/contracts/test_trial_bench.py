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

    def test_a_kernel_that_reuses_results_on_inputs_it_has_seen_is_doubted_back_to_back(self, stand: Stand) -> None:
        """It computes in every single call on fresh inputs, and only reads them all when a burst comes back to them."""
        found = self._reusing(stand, "std::memcmp(x, seen[at].data(), 4 * X_NUMEL) == 0")
        assert isinstance(found, w.BackToBack), found
        assert found.times is not None, found.note
        doubts = (*found.evidence, *found.times.doubts)
        assert any("reuse earlier results" in line or "disturbed by CPU contention" in line for line in doubts), doubts

    def test_a_kernel_that_knows_inputs_by_samples_is_wrong_back_to_back(self, stand: Stand) -> None:
        found = self._reusing(stand, "x[5] == seen[at][5]")
        assert isinstance(found, w.Failed), found
        assert found.failure.kind is FailureKind.MISMATCH

    def _reusing(self, stand: Stand, known: str) -> w.BackToBack | w.Failed:
        reuses = kernel(
            f"""
            static const float* places[64]; static std::vector<float> seen[64]; static int count = 0;
            int at = 0;
            while (at < count && places[at] != x) ++at;
            if (at < count && {known} && out[3] > 0 && out[3] < 1) return;
            for (int n = 0; n < 4; ++n) right(x, weight, out);
            if (at == count && count < 63) places[count++] = x;
            seen[at].assign(x, x + X_NUMEL);
            """
        )
        reuses = f"#include <cstring>\n#include <vector>\n{reuses}"
        found: w.BackToBack | w.Failed = stand.run(stand.bench.sustain(stand.kernel(reuses, 41), reuses, lambda _: None))
        return found

    def test_each_pair_back_to_back_ends_with_checked_calls_on_new_inputs(self, stand: Stand) -> None:
        found = stand.run(stand.bench.sustain(stand.kernel(self.good), self.good, lambda _: None))
        assert isinstance(found, w.BackToBack), found
        assert found.times is not None, found.note
        (pairs,) = json.loads(stand.blobs.get(found.times.raw))["workloads"].values()
        for pair in pairs:
            for name in ("kernel", "eager"):
                first, last = pair["turns"][name]
                assert (first["late"], last["late"]["calls"]) == (None, last["fresh"]["calls"]), name

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

    def test_a_race_with_more_effort_runs_at_least_twice_the_pairs(self, stand: Stand) -> None:
        raced = self._race(stand, self.good, self.slower, 1)
        assert isinstance(raced, w.Raced), raced
        assert raced.pairs >= 6
        assert raced.raw
        assert stand.blobs.get(raced.raw)

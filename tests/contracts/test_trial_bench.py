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

    def test_a_kernel_that_reuses_results_on_inputs_it_has_seen_is_quarantined_back_to_back(self, stand: Stand) -> None:
        """It computes in every single call on fresh inputs, and nothing when a burst comes back to them."""
        reuses = kernel(
            """
            static const float* seen[64]; static float first[64]; static int count = 0;
            int at = -1;
            for (int i = 0; i < count; ++i) if (seen[i] == x) at = i;
            if (at >= 0 && first[at] == x[5] && out[3] > 0 && out[3] < 1) return;
            for (int n = 0; n < 20; ++n) right(x, weight, out);
            if (at < 0 && count < 64) at = count++;
            if (at >= 0) { seen[at] = x; first[at] = x[5]; }
            """
        )
        found = stand.run(stand.bench.sustain(stand.kernel(reuses, 41), reuses, lambda _: None))
        assert isinstance(found, w.BackToBack), found
        assert any("reuse earlier results" in line for line in found.evidence), found

    def test_each_pair_back_to_back_ends_with_checked_calls_on_new_inputs(self, stand: Stand) -> None:
        found = stand.run(stand.bench.sustain(stand.kernel(self.good), self.good, lambda _: None))
        assert isinstance(found, w.BackToBack), found
        assert found.times is not None, found.note
        (pairs,) = json.loads(stand.blobs.get(found.times.raw))["workloads"].values()
        for pair in pairs:
            first, last = pair["turns"]["kernel"]
            assert (first["late"], last["late"]["calls"]) == (None, last["fresh"]["calls"])
            assert all(turn["late"] is None for turn in pair["turns"]["eager"]), "only the judged kernel could gain by it"

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

"""On a GPU, plan kernels one after the other in the same process: each finds a fresh context, and nothing of those before."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.plan_bench import WORKSPACE, PlanBench, pid_of

from engine.domain.errors import DeviceError
from engine.domain.model import FailureKind
from engine.trial.judge.failures import TrialFailed
from engine.trial.judge.runners.host_client import Host
from engine.trial.shared import arena
from engine.trial.shared.cuda import driver
from engine.trial.shared.layout import POISONS

pytestmark = pytest.mark.gpu

LEFT = 0x77
COUNT = f"""
__device__ float runs;
extern "C" __global__ void kernel(float* out, unsigned char* workspace) {{
  out[0] = ++runs;
  out[1] = workspace[0];
  for (int i = 0; i < {WORKSPACE}; i++) workspace[i] = {LEFT};
}}
"""
FAULT = """
extern "C" __global__ void kernel(float* out, unsigned char*) { *(float*)8 = 1; out[0] = 1; }
"""
MIB = 1 << 20


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not on the PATH")
    try:
        number = driver.describe(0).arch.removeprefix("sm_")
    except DeviceError as error:
        pytest.skip(f"no CUDA device: {error}")
    made = {}
    for name, code in (("count", COUNT), ("fault", FAULT)):
        folder: Path = tmp_path_factory.mktemp(name)
        (folder / "k.cu").write_text(code, encoding="utf-8")
        command = ["nvcc", "-cubin", f"-gencode=arch=compute_{number},code=sm_{number}", "-o", "k.cubin", "k.cu"]
        subprocess.run(command, cwd=folder, check=True)
        made[name] = (folder / "k.cubin").read_bytes()
    return made


@pytest.fixture(scope="module")
def bench(images: dict[str, bytes]) -> Iterator[PlanBench]:
    driver.Context.open(0)
    host = Host("cuda:0", 2, confined=False)
    host.start()
    made = PlanBench(host, lambda size, writable: arena.lend("cuda:0", size, writable=writable), 3)
    yield made
    made.close()
    host.close()


def test_the_next_kernel_gets_the_same_process_and_nothing_of_the_last(bench: PlanBench, images: dict[str, bytes]) -> None:
    with bench.runner() as first:
        pid = pid_of(first)
        assert bench.call(first, images["count"], calls=3)[:2] == [3, LEFT]
    with bench.runner() as second:
        assert (pid_of(second), second.is_renewed) == (pid, True)
        runs, found = bench.call(second, images["count"])[:2]
        assert runs == 1
        assert found in POISONS


def test_many_kernels_in_one_process_take_no_more_memory_and_descriptors(bench: PlanBench, images: dict[str, bytes]) -> None:
    descriptors, resident, free = [], [], []
    for _ in range(20):
        with bench.runner() as runner:
            assert bench.call(runner, images["count"])[0] == 1
            pid = pid_of(runner)
            descriptors.append(len(os.listdir(f"/proc/{pid}/fd")))
            resident.append(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
            free.append(driver.free_bytes())
    assert descriptors[-1] <= descriptors[2]
    assert resident[-1] - resident[2] < 64 * MIB
    assert free[2] - free[-1] < 32 * MIB


def test_a_process_with_a_sticky_error_is_ended(bench: PlanBench, images: dict[str, bytes]) -> None:
    first = bench.runner()
    pid = pid_of(first)

    def judge() -> None:
        with first:
            bench.call(first, images["fault"])

    with pytest.raises(TrialFailed) as failed:
        judge()
    assert failed.value.failure.kind is FailureKind.CRASHED
    bench.host.settle()
    assert not Path(f"/proc/{pid}").exists()
    with bench.runner() as second:
        assert bench.call(second, images["count"])[0] == 1

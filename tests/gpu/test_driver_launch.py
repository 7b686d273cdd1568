"""Plans on a real device: each kind of launch works, each failure is a value, and the stopwatch times them."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from engine.domain.errors import DeviceError
from engine.domain.model import Operand, Role
from engine.toolchain.plan import parse_plan
from engine.toolchain.resolution import ResolvedPlan, resolve
from engine.trial.runner.gpu_launch import LaunchFault, Module, PreparedPlan
from engine.trial.runner.stopwatch import Sample, Stopwatch
from engine.trial.shared.cuda import driver, hold_kernel
from engine.trial.shared.cuda.device_memory import as_tensor

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

ROWS, COLS = 64, 256
KERNELS = r"""
#include <cooperative_groups.h>
#include <cuda.h>
namespace cg = cooperative_groups;
extern "C" __global__ void twice(const float* x, float* out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x; out[i] = 2 * x[i];
}
extern "C" __global__ void neighbours(float* out) {
  cg::cluster_group cluster = cg::this_cluster();
  __shared__ float mine;
  if (threadIdx.x == 0) mine = cluster.block_rank();
  cluster.sync();
  float* next = cluster.map_shared_rank(&mine, (cluster.block_rank() + 1) % cluster.num_blocks());
  if (threadIdx.x == 0) out[blockIdx.x] = *next;
  cluster.sync();
}
extern "C" __global__ void everyone(int* arrived, float* out) {
  if (threadIdx.x == 0) atomicAdd(arrived, 1);
  cg::this_grid().sync();
  if (blockIdx.x == 0 && threadIdx.x == 0) out[0] = *arrived;
}
extern "C" __global__ void tile(const __grid_constant__ CUtensorMap map, float* out) {
  constexpr int R = 8, C = 32, COLS = 256;
  __shared__ alignas(128) float staged[R * C];
  __shared__ alignas(8) unsigned long long bar;
  unsigned b = __cvta_generic_to_shared(&bar), d = __cvta_generic_to_shared(staged);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(b));
    asm volatile("fence.mbarrier_init.release.cluster;");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(b), "r"(R * C * 4));
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];"
      :: "r"(d), "l"(&map), "r"(int(blockIdx.x) * C), "r"(int(blockIdx.y) * R), "r"(b) : "memory");
  }
  __syncthreads();
  asm volatile("{ .reg .pred p; w: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra w; }" :: "r"(b) : "memory");
  for (int i = threadIdx.x; i < R * C; i += blockDim.x)
    out[(blockIdx.y * R + i / C) * COLS + blockIdx.x * C + i % C] = staged[i];
}
extern "C" __global__ void large(float* out) {
  extern __shared__ float raw[];
  raw[threadIdx.x + 50000] = threadIdx.x; __syncthreads();
  out[threadIdx.x] = raw[50000 + (threadIdx.x + 1) % blockDim.x];
}
extern "C" __global__ void slow(float* out) {
  for (int i = 0; i < 20000; i++) __nanosleep(1000);
  out[0] = 1;
}
"""


@pytest.fixture(scope="module")
def context() -> driver.Context:
    try:
        return driver.Context.open(0)
    except DeviceError as error:
        pytest.skip(f"no CUDA device: {error}")


@pytest.fixture(scope="module")
def module(context: driver.Context, tmp_path_factory: pytest.TempPathFactory) -> Module:
    arch = driver.describe(0).arch
    if context.attribute("COMPUTE_CAPABILITY_MAJOR") < 9:
        pytest.skip(f"clusters and tensor maps need compute capability 9.0, this device is {arch}")
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not on the PATH")
    folder: Path = tmp_path_factory.mktemp("kernels")
    (folder / "k.cu").write_text(KERNELS, encoding="utf-8")
    number = arch.removeprefix("sm_")
    subprocess.run(
        ["nvcc", "-cubin", "-std=c++17", f"-gencode=arch=compute_{number},code=sm_{number}", "-o", "k.cubin", "k.cu"],
        cwd=folder, check=True,
    )  # fmt: skip
    loaded = Module.load((folder / "k.cubin").read_bytes())
    assert isinstance(loaded, Module), loaded
    return loaded


def plan(lines: str) -> ResolvedPlan:
    operands = [
        Operand("x", Role.INPUT, (ROWS, COLS), "float32"), Operand("out", Role.OUTPUT, (ROWS, COLS), "float32"),
    ]  # fmt: skip
    return resolve(parse_plan(lines + KERNELS), {"SMS": driver.describe(0).units}, operands)


class Bench:
    """An input, a poisoned output, and a plan prepared for them."""

    def __init__(self, module: Module, lines: str, stream: int = 0) -> None:
        resolved = plan(lines)
        self.x = torch.randn(ROWS, COLS, device="cuda:0")
        self.out = torch.full((ROWS, COLS), float("nan"), device="cuda:0")
        self.workspace = torch.full((max(1, resolved.workspace_bytes),), 0xA5, dtype=torch.uint8, device="cuda:0")
        torch.cuda.synchronize()
        self.prepared = PreparedPlan.prepare(
            (module,), resolved, {"x": self.x.data_ptr(), "out": self.out.data_ptr()},
            workspace=self.workspace.data_ptr(), stream=stream,
        )  # fmt: skip

    def run(self) -> torch.Tensor:
        assert isinstance(self.prepared, PreparedPlan), self.prepared
        assert self.prepared() is None
        torch.cuda.synchronize()
        return self.out


def test_a_plain_launch(module: Module) -> None:
    bench = Bench(module, "// @launch twice(x, out) grid(64) block(256)\n")
    assert torch.equal(bench.run(), 2 * bench.x)


def test_a_cluster_of_sixteen_blocks(module: Module) -> None:
    bench = Bench(module, "// @launch neighbours(out) grid(32) block(32) cluster(16)\n")
    assert bench.run().flatten()[:32].tolist() == 2 * [*range(1, 16), 0]
    assert isinstance(bench.prepared, PreparedPlan)
    [occupancy] = bench.prepared.occupancy()
    assert occupancy.clusters is not None
    assert occupancy.clusters > 0


def test_a_cooperative_launch_with_a_workspace_cleared_before_every_call(module: Module) -> None:
    lines = "// @workspace 64 zero\n// @launch everyone(workspace+16, out) grid(SMS) block(64) cooperative\n"
    bench = Bench(module, lines)
    for _ in range(2):
        assert bench.run().flatten()[0].item() == driver.describe(0).units


def test_a_tensor_map_addresses_rows_and_columns(module: Module) -> None:
    bench = Bench(module, "// @tensormap t = x tile(8, 32)\n// @launch tile(t, out) grid(8, 8) block(64)\n")
    assert torch.equal(bench.run(), bench.x)


def test_dynamic_shared_memory_beyond_the_default(module: Module) -> None:
    bench = Bench(module, "// @launch large(out) grid(1) block(64) shared(220000)\n")
    assert bench.run().flatten()[:64].tolist() == [*range(1, 64), 0]


@pytest.mark.parametrize(
    ("lines", "words", "error"),
    [
        ("// @launch twice(x) grid(1) block(1)\n", "has 2 parameters", ""),
        ("// @launch everyone(x, out) grid(100000) block(64) cooperative\n", "resident at once",
         "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"),
    ],
)  # fmt: skip
def test_an_impossible_launch_is_a_value(module: Module, lines: str, words: str, error: str) -> None:
    prepared = Bench(module, lines).prepared
    found = prepared if isinstance(prepared, LaunchFault) else prepared()
    assert isinstance(found, LaunchFault)
    assert words in found.text
    assert found.error == error


def test_invalid_device_code_is_a_value(context: driver.Context) -> None:
    found = Module.load(b"\x7fELF and nothing more" + bytes(64))
    assert isinstance(found, LaunchFault)
    assert found.error.startswith("CUDA_ERROR_")


def test_an_unknown_kernel_name_is_a_value(module: Module) -> None:
    found = module.function("nothing_of_the_kind")
    assert isinstance(found, LaunchFault)
    assert found.error == "CUDA_ERROR_NOT_FOUND"


@pytest.mark.parametrize("settings", [{}, {"cold": False}, {"cold": False, "hold_us": 50.0}])
def test_a_sample_times_the_call_and_leaves_its_result(
    context: driver.Context, module: Module, settings: dict[str, float]
) -> None:
    bench = Bench(module, "// @launch twice(x, out) grid(64) block(256)\n")
    watch = Stopwatch(context)
    assert isinstance(bench.prepared, PreparedPlan)
    sample = watch.sample(bench.prepared, **settings)
    watch.close()
    assert isinstance(sample, Sample)
    assert sample.event_us > 0
    assert 0 < sample.enqueue_us <= sample.wall_us
    assert torch.equal(bench.out, 2 * bench.x)


def test_work_on_another_stream_is_idle_time_after_the_last_event(context: driver.Context, module: Module) -> None:
    other = torch.cuda.Stream()
    bench = Bench(module, "// @launch slow(out) grid(1) block(1)\n", stream=other.cuda_stream)
    assert isinstance(bench.prepared, PreparedPlan)
    watch = Stopwatch(context)
    sample = watch.sample(bench.prepared)
    watch.close()
    assert isinstance(sample, Sample)
    assert sample.idle_us > 10 * sample.event_us
    assert bench.out.flatten()[0].item() == 1


def test_a_hold_keeps_host_time_out_of_event_times(context: driver.Context, module: Module) -> None:
    bench = Bench(module, "// @launch twice(x, out) grid(64) block(256)\n")
    assert isinstance(bench.prepared, PreparedPlan)
    launch = bench.prepared

    def late() -> object:
        time.sleep(0.002)
        return launch()

    watch = Stopwatch(context, tools=hold_kernel.link())
    without, held = watch.sample(late), watch.sample(late, hold_us=5000.0)
    watch.close()
    assert isinstance(without, Sample)
    assert isinstance(held, Sample)
    assert held.held
    assert not without.held
    assert without.event_us > 1500.0
    assert held.event_us < 500.0


def test_a_hold_blocks_other_streams(context: driver.Context, module: Module) -> None:
    other = torch.cuda.Stream(priority=-1)
    bench = Bench(module, "// @launch slow(out) grid(1) block(1)\n", stream=other.cuda_stream)
    assert isinstance(bench.prepared, PreparedPlan)
    watch = Stopwatch(context)
    sample = watch.sample(bench.prepared, hold_us=30_000.0)
    watch.close()
    assert isinstance(sample, Sample)
    assert sample.held
    assert sample.idle_us > 15_000.0


def test_lent_memory_is_visible_as_a_tensor(module: Module) -> None:
    bench = Bench(module, "// @launch twice(x, out) grid(64) block(256)\n")
    bench.run()
    view = as_tensor(bench.out.data_ptr(), (ROWS, COLS), "float32", 0, bench.out)
    assert torch.equal(view, 2 * bench.x)

"""The KernelBench benchmark: which files are chosen, what is resumed, how a file ends, and what is printed."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from support import fake_worker

from benchmarks import kernelbench as suite
from benchmarks.kernelbench_files import candidate, chosen_entries
from benchmarks.kernelbench_judging import Request, Result, Status, judge, operand_bytes
from benchmarks.kernelbench_process import JudgingProcess, NextProcess
from benchmarks.peak_memory import PeakMemory, host_bytes
from engine.domain.errors import EspalierError, ProblemError
from engine.domain.model import Operand, Role, Signature
from engine.session import benches

NAMES = {1: ["1_Square", "19_ReLU", "100_Hinge", "helper"], 2: ["7_Fused"], 3: ["35_LSTM"]}
PLAN = suite.Plan("own", "full", {}, 60.0, 0.0)
OWN = """
import torch
from torch import nn

batch_size = 8

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) + 1

def get_inputs():
    return [torch.randn(batch_size, 16)]

def get_init_inputs():
    return []
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for level, names in NAMES.items():
        folder = tmp_path / "KernelBench" / f"level{level}"
        folder.mkdir(parents=True)
        for name in names:
            (folder / f"{name}.py").write_text(OWN)
    return tmp_path


CHOICES: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], list[str], list[str]]] = {
    "all": ("", (), (), [], ["level1/1_Square", "level1/19_ReLU", "level1/100_Hinge", "level2/7_Fused", "level3/35_LSTM"]),
    "a level": ("", (2,), (), [], ["level2/7_Fused"]),
    "the folder of a level": ("KernelBench/level1", (), (), [], ["level1/1_Square", "level1/19_ReLU", "level1/100_Hinge"]),
    "numbers": ("KernelBench", (), suite._numbers("1-20,35"), [],
                ["level1/1_Square", "level1/19_ReLU", "level2/7_Fused", "level3/35_LSTM"]),
    "names": ("", (), (), ["relu", "LSTM"], ["level1/19_ReLU", "level3/35_LSTM"]),
    "a file": ("KernelBench/level2/7_Fused.py", (), (), [], ["level2/7_Fused"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
def test_files_are_selected_by_level_name_and_sample(checkout: Path, name: str) -> None:
    path, levels, numbers, names, expected = CHOICES[name]
    assert [entry.name for entry in chosen_entries(checkout / path, levels, numbers, names)] == expected


def test_nothing_chosen_is_an_error(checkout: Path) -> None:
    with pytest.raises(ProblemError, match="none of 5 problem files"):
        chosen_entries(checkout, (4,), (), [])
    with pytest.raises(ProblemError, match="no problem file"):
        chosen_entries(checkout / "KernelBench" / "nowhere", (), (), [])


@pytest.mark.parametrize(
    "file", ["level1/19_ReLU.py", "19_ReLU.cu", "level_1_problem_19_sample_0_kernel.py", "level1/19_ReLU.cpp"]
)
def test_a_candidate_is_found_by_the_names_in_use(tmp_path: Path, file: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("")
    assert candidate(tmp_path, "level1/19_ReLU") == tmp_path / file
    assert candidate(tmp_path, "level2/7_Fused") is None


def result(name: str = "level1/19_ReLU", status: Status = Status.MEASURED, **more: object) -> Result:
    return Result(name, "cuda:0", "own", status, **more)  # type: ignore[arg-type]


def test_results_are_read_back_and_a_torn_line_is_skipped(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    one = result(seconds=2.5, speedup=(1.0, 0.99, 1.01), time_us=12.0)
    other = result("level1/1_Square", Status.REFUSED, reason="random")
    lines = [json.dumps(r.to_json()) for r in (result(seconds=9.0), other, one)]
    file.write_text("\n".join([*lines, lines[0][:30]]))
    assert suite.known_results(file, PLAN, "cuda") == [one, other]
    assert not suite.known_results(file, PLAN, "cpu")
    assert not suite.known_results(file, suite.Plan("port", "full", {}, 60.0, 0.0), "cuda")
    assert not suite.known_results(file, suite.Plan("own", "full", {"batch_size": 2}, 60.0, 0.0), "cuda")
    assert not suite.known_results(tmp_path / "none.jsonl", PLAN, "cuda")


def test_a_kernel_that_was_only_checked_is_still_to_be_timed(tmp_path: Path) -> None:
    file, right = tmp_path / "results.jsonl", result("level1/19_ReLU", Status.RIGHT)
    file.write_text(json.dumps(right.to_json()) + "\n")
    assert not suite.known_results(file, PLAN, "cuda")
    assert suite.known_results(file, replace(PLAN, check_only=True), "cuda") == [right]


def test_the_table_is_in_order_and_the_summary_counts_reasons() -> None:
    found = [
        result("level1/100_Hinge", seconds=3.0, speedup=(1.0, 0.98, 1.02), operand_bytes=2**31, peak_bytes=2**33),
        result("level1/19_ReLU", seconds=5.0, speedup=(1.1, 1.05, 1.15)),
        result("level2/7_Fused", Status.REFUSED, reason="fused.py: a trivial model passes (3)"),
        result("level3/35_LSTM", Status.REFUSED, reason="lstm.py: a trivial model passes (12)"),
    ]
    rows = list(suite.table(found))
    assert [row.split("|")[1].strip() for row in rows[2:]] == [
        "level1/19_ReLU", "level1/100_Hinge", "level2/7_Fused", "level3/35_LSTM"
    ]  # fmt: skip
    assert "| 8.00 | 4.0 |" in rows[3]
    lines = "\n".join(suite.summary(found))
    assert "4 files: 2 verified" in lines
    assert "refused: 2: a trivial model passes (N) (2)" in lines
    assert "A/A: 1 of 2 intervals contain 1" in lines
    assert "median 4.0 x operands" in lines


def test_operand_bytes() -> None:
    operands = (Operand("x", Role.INPUT, (4, 8), "float16"), Operand("i", Role.INPUT, (4,), "int64"))
    assert operand_bytes(Signature((*operands, Operand("out", Role.OUTPUT, (4,), "float32")), {}, 0.0, "fp32")) == 64 + 32 + 16


def test_memory_of_a_process_and_its_children() -> None:
    assert host_bytes(os.getpid()) > 2**20
    assert host_bytes(2**30) == 0


def test_sampling_memory_takes_a_hundredth_of_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 0.025)
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        raise asyncio.CancelledError

    monkeypatch.setattr("benchmarks.peak_memory.time.monotonic", lambda: next(clock))
    monkeypatch.setattr("benchmarks.peak_memory.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(PeakMemory(os.getpid(), "cpu").watch())
    assert waits == [pytest.approx(2.5)]


def test_a_file_without_a_candidate_is_skipped(checkout: Path, tmp_path: Path) -> None:
    entry = chosen_entries(checkout, (2,), (), [])[0]
    found = asyncio.run(judge(Request(str(entry.path), entry.name, "cpu", str(tmp_path / "none"), "full", {}, 0.0)))
    assert (found.status, found.reason) == (Status.SKIPPED, "no candidate in the folder")


@pytest.mark.slow
@pytest.mark.parametrize(("wrong", "status"), [("", Status.RIGHT), (".neg()", Status.MISMATCH)])
def test_outputs_alone_can_be_checked(checkout: Path, tmp_path: Path, wrong: str, status: Status) -> None:
    entry = chosen_entries(checkout, (2,), (), [])[0]
    kernel = tmp_path / "mine.py"
    own = entry.path.read_text().replace("class Model(", "class ModelNew(").replace("super(Model,", "super(ModelNew,")
    kernel.write_text(f"{own}\nright = ModelNew.forward\nModelNew.forward = lambda self, *x: right(self, *x){wrong}\n")
    request = Request(str(entry.path), entry.name, "cpu", str(kernel), "full", {}, 0.0, check_only=True)
    found = asyncio.run(judge(request))
    assert (found.status, found.speedup, found.time_us) == (status, None, 0.0)


@pytest.mark.slow
def test_the_time_limit_ends_the_judging(checkout: Path) -> None:
    entry = chosen_entries(checkout, (2,), (), [])[0]

    async def story() -> Result:
        return await suite.judged(entry, "cpu", suite.Plan("own", "full", {}, 2.0, 0.0), await JudgingProcess.start("cpu"))

    found = asyncio.run(story())
    assert found.status is Status.TIME_LIMIT
    assert "; from starting its process" in found.reason
    assert not found.reason_class.startswith("N s")
    assert found.seconds < 30


@pytest.mark.slow
def test_the_steps_of_a_file_are_told_while_it_is_judged(checkout: Path) -> None:
    entry = chosen_entries(checkout, (2,), (), [])[0]
    request = Request(str(entry.path), entry.name, "cpu", "own", "full", {}, 0.0)

    async def story() -> list[str]:
        process = await JudgingProcess.start("cpu")
        judging = asyncio.create_task(process.judge(request, 120.0))
        while len(process.said) == 1 and not judging.done():
            await asyncio.sleep(0.05)
        judging.cancel()
        await process.end()
        return list(process.said)

    first, second, *_ = asyncio.run(story())
    assert first == "starting its process"
    assert "loading torch and the problem" in second


def test_the_next_process_starts_while_a_file_is_judged_on_a_gpu_and_ends_with_the_run() -> None:
    async def story() -> None:
        for device, waits in (("cuda:0", True), ("cpu", False)):
            processes = NextProcess(device)
            first = await processes.take(more=True)
            waiting = processes._next
            assert (waiting is not None) == waits
            second = await processes.take(more=False)
            assert waiting in (second, None)
            assert first.pid != second.pid
            assert processes._next is None
            await first.end()
            await second.end()
            await processes.close()

    asyncio.run(story())


@pytest.mark.slow
def test_a_process_that_gets_no_file_ends_without_a_word() -> None:
    async def story() -> None:
        process = (await JudgingProcess.start("cpu"))._process
        assert await asyncio.wait_for(process.communicate(b""), 60) == (b"", b"")
        assert process.returncode == 0

    asyncio.run(story())


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["own", "port"])
def test_a_file_is_judged_and_then_resumed(
    checkout: Path, tmp_path: Path, kernel: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(checkout), "--levels", "2", "--device", "cpu", "--kernel", kernel, "--set", "batch_size=64"]
    assert suite.main([*arguments, "--results", str(tmp_path / "r.jsonl")]) == 0
    assert "1 files: 1 verified" in capsys.readouterr().out
    (line,) = (tmp_path / "r.jsonl").read_text().splitlines()
    found = Result.from_json(json.loads(line))
    assert (found.settings, found.operand_bytes) == ({"batch_size": 64}, 2 * 64 * 16 * 4)
    assert found.peak_bytes > 0
    assert suite.main([*arguments, "--results", str(tmp_path / "r.jsonl")]) == 0
    assert "1 judged before" in capsys.readouterr().out


def test_a_fleet_is_every_device_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benches, "gpu_names", lambda: ("H200", "H200"))
    for text, names in (("local", ["cuda:0", "cuda:1"]), ("local:1", ["cuda:0"]), ("", [])):
        places, cluster = suite._fleet(text, "cuda:0")
        assert ([*places], cluster) == (names, None)
    assert all(place.cores for place in suite._fleet("local", "cpu")[0].values())
    with pytest.raises(EspalierError, match="unknown fleet"):
        suite._fleet("nowhere", "cuda:0")


CANDIDATES = {
    "level1/1_Square": ("// FAKE: time_us = 250", Status.MEASURED),
    "level1/19_ReLU": ("// FAKE: mismatch", Status.MISMATCH),
    "level1/100_Hinge": ("// FAKE: build_failed", Status.BUILD_FAILED),
    "level2/7_Fused": ("// FAKE: suspicious", Status.QUARANTINED),
    "level3/35_LSTM": ("// LOSES 1", Status.FAILED),
}


def test_files_are_judged_on_the_workers_of_a_cluster(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("node7/cpu:0", "node8/cpu:0")
    cluster = fake_worker.MemoryLauncher(names)
    monkeypatch.setattr(suite, "launcher", lambda text, device: cluster)
    monkeypatch.setenv(fake_worker.TRIES, str(tmp_path))
    for name, (code, _) in CANDIDATES.items():
        file = tmp_path / "candidates" / f"{name}.cpp"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'{code}\nextern "C" void launch(const float* x, float* out, void*) {{}}\n')
    arguments = [str(checkout), "--fleet", "node7:6379", "--device", "cpu", "--kernel", str(tmp_path / "candidates")]
    assert suite.main([*arguments, "--results", str(tmp_path / "r.jsonl")]) == 0
    found = {one.name: one for one in map(Result.from_json, map(json.loads, (tmp_path / "r.jsonl").read_text().splitlines()))}
    assert {name: one.status for name, one in found.items()} == {name: status for name, (_, status) in CANDIDATES.items()}
    assert found["level1/1_Square"].time_us == 250.0
    assert found["level1/1_Square"].operand_bytes == 2 * 128 * 1024 * 4
    assert {one.device for one in found.values()} == {f"cpu:{name}" for name in names}
    lost = found["level3/35_LSTM"]
    assert lost.reason == f"{lost.device.removeprefix('cpu:')}: its process was killed by signal 9"
    assert sum(map(len, cluster.links.values())) == len(CANDIDATES), "a worker for each file"
    assert "5 files, 0 judged before, on node7/cpu:0, node8/cpu:0" in capsys.readouterr().out
    assert suite.main([*arguments, "--results", str(tmp_path / "r.jsonl")]) == 0
    assert "5 judged before" in capsys.readouterr().out


def test_a_worker_of_a_cluster_traces_the_reference_for_the_naive_port(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker traces the reference, and the port is written here: what it says of its pretended problem arrives."""
    monkeypatch.setattr(suite, "launcher", lambda text, device: fake_worker.MemoryLauncher(("node7/cpu:0",)))
    monkeypatch.setenv(fake_worker.TRIES, str(tmp_path))
    arguments = [str(checkout), "--fleet", "node7:6379", "--device", "cpu", "--kernel", "port", "--names", "Square"]
    assert suite.main([*arguments, "--results", str(tmp_path / "r.jsonl")]) == 0
    (found,) = map(Result.from_json, map(json.loads, (tmp_path / "r.jsonl").read_text().splitlines()))
    assert found.status is Status.REFUSED
    assert "this problem uses a pretended problem" in found.reason

"""How the judge keeps to its memory plan: redrawn inputs, float64 on the host, fallbacks, and what a trace counts."""

from __future__ import annotations

import errno
import gc
import os
import random
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from trial.ground import tiny

from engine.domain.errors import DeviceError, ProblemError
from engine.domain.memory_plan import ROOMY, MemoryPlan, TrialProcesses
from engine.domain.model import Device, Workload
from engine.problem import catalog
from engine.problem.reference import Reference
from engine.trial.judge import devices, process_pool, test_bed, test_beds
from engine.trial.judge.inputs.perturbations import PERTURBATIONS, perturb
from engine.trial.judge.memory_room import needs_of
from engine.trial.judge.outputs.taken_outputs import Left
from engine.trial.judge.process_pool import ProcessPool
from engine.trial.judge.runners.runner_client import RunnerClient
from engine.trial.judge.tolerance import calibration
from engine.trial.judge.tolerance.known_calibrations import KnownCalibrations
from engine.trial.protocol import Candidate, OpenRequest, WorkloadBinary
from engine.trial.shared import arena
from engine.trial.shared.arena import SharedArena


class FakeRunner(SimpleNamespace):
    """A runner of which only a few attributes are used."""

    __hash__ = object.__hash__
    alive = True
    few_queues = True
    is_renewed = False

    def close(self) -> None:
        self.alive = False

    def load(self, *_: object, **__: object) -> None:
        """Nothing is loaded."""


SMALL = Workload("small", {"rows": 4, "width": 32})
FRUGAL = MemoryPlan(1, keeps_inputs=False, keeps_processes=False, copies_on_host=True, exact_on_host=True)
Bed = test_bed.TestBed  # names that pytest does not collect
Beds = test_beds.TestBeds


def bed_of(reference: Reference, plan: MemoryPlan = FRUGAL) -> Bed:
    return Bed(reference, calibration.calibrate(reference, "class"), devices.describe("cpu"), plan)


@pytest.fixture
def bed() -> Iterator[Bed]:
    reference = Reference(tiny(), SMALL)
    reference.exact_on_host = True
    found = bed_of(reference)
    yield found
    found.close()


def answer(at: Bed) -> None:
    x, weight = (at._inputs.tensor(s) for s in at._read_slots(0))
    at.outputs(0)[0].copy_(torch.softmax(x * weight, 1))


@pytest.mark.slow
def test_inputs_that_are_not_kept_are_drawn_again_for_the_check(bed: Bed) -> None:
    for distribution in bed.calibration.distributions:
        bed.refill(0, distribution)
        answer(bed)
        found = bed.check(0, distribution)
        assert bed._held[0] is None
        assert found.ruling.passed, distribution
        assert found.violation == ""
        bed.refill(0, distribution)
        assert not bed.check(0, distribution).ruling.passed or distribution not in ("own", "x64")


def test_one_drawing_serves_the_check_of_the_inputs_and_the_expected_outputs(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one before the call, where the inputs are held since then."""
    drawn: list[int] = []
    bed.refill(0)
    answer(bed)
    inputs = bed.reference.inputs
    monkeypatch.setattr(bed.reference, "inputs", lambda seed: drawn.append(seed) or inputs(seed))
    for count in (0, 1):
        assert bed.check(0).ruling.passed
        assert len(drawn) == count
        assert bed._held[0] is None


def test_a_closed_bed_holds_nothing() -> None:
    """Another plan, or another shape, needs the memory then. Inputs and expected outputs stayed until a garbage collection."""
    bed = bed_of(Reference(tiny(), SMALL), replace(FRUGAL, keeps_inputs=True))
    bed.refill(0)
    held = [weakref.ref(one) for one in (*bed._given(0), *bed.expected(0), *bed.draw_weights().parameters())]
    assert all(one() is not None for one in held)
    gc.disable()
    try:
        bed.close()
        assert not [one() for one in held if one() is not None]
    finally:
        gc.enable()


def test_a_changed_input_is_found_against_redrawn_ones(bed: Bed) -> None:
    bed.refill(0)
    answer(bed)
    bed.let_go(0)
    bed._inputs.tensor(bed._read_slots(0)[0]).view(-1)[3] += 1.0
    assert "changed its input" in bed.check(0).violation


def test_outputs_wait_on_the_host_and_later_writes_do_not_count(bed: Bed) -> None:
    bed.refill(0)
    answer(bed)
    copies = bed.copy_outputs(0)
    bed.outputs(0)[0].fill_(7.0)
    assert bed.check(0, "own", copies).ruling.passed


@pytest.mark.slow
def test_outputs_that_are_left_where_they_are_must_not_change(bed: Bed) -> None:
    bed.refill(0)
    answer(bed)
    left = bed.take_outputs(0, alone=True)
    assert isinstance(left, Left)
    assert bed.check(0, "own", left) == bed.check(0)
    flat = bed.outputs(0)[0].view(-1)
    flat[[1, 2]] = flat[[2, 1]]
    assert bed.check(0, "own", left).violation == "its outputs changed after the call"


def test_a_rivals_call_needs_a_copy(bed: Bed) -> None:
    bed.refill(0)
    answer(bed)
    taken = bed.take_outputs(0, alone=False)
    bed.outputs(0)[0].fill_(7.0)
    assert bed.check(0, "own", taken).ruling.passed


def test_withdrawn_inputs_are_held_until_they_are_released(bed: Bed) -> None:
    bed.refill(0)
    right = bed._inputs.tensor(bed._read_slots(0)[0]).clone()
    bed.let_go(0)
    bed.withdraw(0)
    assert bed._held[0] is not None, "nothing is drawn within a timed call"
    assert bool(bed._inputs.tensor(bed._read_slots(0)[0]).isnan().all())
    bed.release_inputs(0)
    assert torch.equal(bed._inputs.tensor(bed._read_slots(0)[0]), right)


def test_inputs_that_no_seed_repeats_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "fresh.py"
    file.write_text(
        "import os, torch\nfrom torch import nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n"
        "        return x * 2\n\n\n"
        "def get_inputs():\n    return [torch.tensor(list(os.urandom(64)), dtype=torch.float32)]\n\n\n"
        "def get_init_inputs():\n    return []\n"
    )
    problem = catalog.find(str(file))
    bed = bed_of(Reference(problem, problem.workloads[0]))
    bed.refill(0)
    bed.outputs(0)[0].copy_(bed._inputs.tensor(bed._read_slots(0)[0]) * 2)
    assert bed.check(0).ruling.passed
    bed.close()


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_the_same_seed_perturbs_alike_and_leaves_its_input(name: str) -> None:
    x = torch.randn(33, 70)
    before, seed = x.clone(), random.getrandbits(62)
    (one,), (other,) = (cast(tuple[torch.Tensor], perturb((x,), name, seed)) for _ in range(2))
    assert torch.equal(one.view(torch.int32), other.view(torch.int32))
    assert torch.equal(x, before)


def test_float64_on_the_host_is_float64_of_the_inputs_in_their_own_type() -> None:
    reference = Reference(tiny(), SMALL)
    model, inputs = reference.model(1), reference.inputs(2)
    on_device = reference.exact(model, inputs)
    reference.exact_on_host = True
    on_host = reference.exact_of(model, lambda: reference.inputs(2))
    assert on_host.outputs[0].dtype == torch.float64
    assert torch.equal(on_device.outputs[0], on_host.outputs[0])


def opened(limit: int = 0) -> OpenRequest:
    problem = tiny()
    return OpenRequest(problem, problem.workloads[0], (), "cpu", "class", "eager", (), True, False, memory_limit=limit)


def beds(limit: int = 0) -> Beds:
    request, device = opened(limit), devices.describe("cpu")
    reference = Reference(request.problem, request.workload)
    pool = ProcessPool(request.problem, device, cold=True, confined=False)
    return Beds(request, device, reference, [], TrialProcesses(pairs=6), pool, KnownCalibrations(b"", "class"))


@pytest.mark.slow
def test_a_hold_out_s_float64_runs_in_slices_where_the_workload_s_does(monkeypatch: pytest.MonkeyPatch) -> None:
    found = beds()
    holdout = Reference(tiny(), Workload("hold-out", {"rows": 6, "width": 32}))
    found._holdouts = [holdout]
    monkeypatch.setattr(Beds, "plan", MemoryPlan(1, True, False, False, False, exact_slices=3))
    rows: list[int | None] = []
    plain = holdout.call

    def call(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        rows.append(kwargs.get("rows"))
        return plain(*args, **kwargs)

    bed = found.holdout(holdout.workload)
    monkeypatch.setattr(holdout, "call", call)
    bed.refill(0)
    answer(bed)
    assert bed.check(0).ruling.passed
    assert rows == [2, 2, 2]
    found.drop()


def test_a_limit_that_nothing_fits_refuses_before_memory_is_taken() -> None:
    with pytest.raises(DeviceError, match=r"does not fit: it needs \d+ MB of memory, and 20 MB are free, the limit set by"):
        beds(20_000_000).main()


WIDE = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x.float()


def get_inputs():
    return [torch.ones(4, dtype=torch.uint16)]


def get_init_inputs():
    return []
"""


def test_a_type_that_kernels_cannot_be_given_is_told_with_the_problem(tmp_path: Path) -> None:
    (tmp_path / "wide.py").write_text(WIDE)
    problem = catalog.find(str(tmp_path / "wide.py"))
    with pytest.raises(ProblemError, match="wide: input x is a tensor of uint16, which is not supported: only float64, "):
        needs_of(Reference(problem, problem.workloads[0]))


def test_no_reference_runs_for_the_plan_of_another_workload(tmp_path: Path) -> None:
    (tmp_path / "reference.py").write_text(
        "import time\nimport torch\nfrom torch import nn\n\nrows = 4\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n"
        "        if x.shape[0] > 8 and x.sum().item() < 1e9:\n            time.sleep(3600)\n        return x * 2\n\n\n"
        "def get_inputs():\n    return [torch.rand(rows)]\n\n\ndef get_init_inputs():\n    return []\n"
    )
    (tmp_path / "problem.toml").write_text("[workloads]\nsmall = {rows = 4}\nlarge = {rows = 16}\nfull = {rows = 8}\n")
    problem = catalog.find(str(tmp_path))
    request = OpenRequest(problem, problem.workloads[0], (), "cpu", "class", "eager", (), True, False)
    device, reference = devices.describe("cpu"), Reference(problem, problem.workloads[0])
    pool = ProcessPool(problem, device, cold=True, confined=False)
    found = Beds(request, device, reference, [], TrialProcesses(pairs=6), pool, KnownCalibrations(b"", "class"))
    assert [one.workload for one in found.other_workloads()] == ["full"]


@pytest.mark.slow
def test_each_fallback_is_more_frugal_and_still_judges() -> None:
    found = beds()
    seen = [found.plan.device_bytes]
    first = found.main()
    while found.tighten():
        seen.append(found.plan.device_bytes)
        again = found.main()
        assert again is not first
        assert again.slots == found.plan.slots
        assert again.calibration is first.calibration, "calibration is not repeated"
        again.refill(0)
        answer(again)
        assert again.check(0).ruling.passed
    assert seen == sorted(seen, reverse=True)
    assert len(seen) > 2
    assert not found.plan.keeps_processes
    assert found.note.startswith("memory: 1 slot of operands")
    found.drop()


def test_running_out_is_recognised_wherever_it_happens(tmp_path: Path) -> None:
    file = tmp_path / "huge.py"
    file.write_text(
        "import torch\nfrom torch import nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n"
        "        return x + torch.empty(1 << 60, dtype=torch.uint8)[0]\n\n\n"
        "def get_inputs():\n    return [torch.rand(4)]\n\n\ndef get_init_inputs():\n    return []\n"
    )
    problem = catalog.find(str(file))
    reference = Reference(problem, problem.workloads[0])
    with pytest.raises(Exception, match="needs more memory than") as raised:
        reference.call(reference.model(0), reference.inputs(0))
    assert test_beds.ran_out(raised.value)
    assert not test_beds.ran_out(ValueError("another error"))


@pytest.mark.parametrize(
    ("name", "own", "exact"),
    [("softmax", 1.0, 2.0), ("matmul_fp32", 1.0, 2.0), ("matmul_fp16", 1.0, 4.0), ("conv2d_relu_maxpool", 8.27, 16.54)],
)
def test_a_trace_counts_what_a_forward_holds_at_a_time(name: str, own: float, exact: float) -> None:
    """In outputs. Of the convolution's result, its ReLU and the pooled one with its indices, two are held at a time."""
    reference = Reference(catalog.find(name), next(w for w in catalog.find(name).workloads if w.name == "full"))
    needs = needs_of(reference)
    forward = reference.memory()
    assert forward.own / needs.outputs == pytest.approx(own, rel=0.02)
    assert forward.exact / needs.outputs == pytest.approx(exact, rel=0.02)


def test_needs_are_counted_without_taking_memory() -> None:
    """Operands of 16 TB are traced in no time."""
    problem = catalog.find("softmax")
    huge = Workload("huge", {"batch_size": 1 << 21, "dim": 1 << 20})
    needs = needs_of(Reference(problem, huge))
    assert needs.operands > 16e12
    assert isinstance(devices.describe("cpu"), Device)
    assert replace(FRUGAL, slots=2).holdout_slots == 2


def test_a_kernel_gets_no_process_that_has_ended() -> None:
    """A prestarted process may have died with its host, or while its context was created."""
    device = devices.describe("cpu")
    pool = ProcessPool(catalog.find("softmax"), device, cold=True, confined=False)
    living, *ended = (FakeRunner(alive=alive) for alive in (True, False, False))
    pool._spares._waiting += cast(list[RunnerClient], [*ended, living])
    assert pool.kernel("plan") is living  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(
    ("kind", "contract", "kept"),
    [("cuda", "plan", True), ("cuda", "host", False), ("cuda", "module", False), ("cpu", "plan", False)],
)
def test_what_a_kernel_without_host_code_leaves_over_serves_the_next(
    kind: str, contract: str, *, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most kernels of a round are only screened: two processes of each were ended unused."""
    monkeypatch.setattr(process_pool, "RunnerClient", lambda host, **options: FakeRunner(**options))
    pool = ProcessPool(catalog.find("softmax"), replace(devices.describe("cpu"), kind=kind), cold=True, confined=False)
    runner, candidate = pool.kernel(contract), Candidate(contract, "k", "", {}, WorkloadBinary(SMALL))
    pool.prestart(2)
    waiting = list(pool._spares._waiting)
    monkeypatch.setattr(pool, "_load", lambda *_, **__: (None, []))
    monkeypatch.setattr(pool, "_module_arguments", lambda _: ())
    pool.load_kernel(runner, cast(Bed, None), candidate, candidate.built)
    pool.discard_prestarted()
    assert pool._spares._waiting == (waiting if kept else [])
    assert (pool.kernel(contract) is waiting[0]) is kept


@pytest.mark.parametrize(
    ("kind", "contract", "options", "renewed"),
    [
        ("cuda", "plan", {}, True),
        ("cuda", "plan", {"fresh": True}, True),
        ("cuda", "plan", {"rival": True}, False),
        ("cuda", "host", {}, False),
        ("cuda", "module", {}, False),
        ("cpu", "host", {}, False),
    ],
)
@pytest.mark.parametrize("keeps_processes", [True, False])
def test_the_process_of_a_kernel_without_host_code_serves_the_next(
    kind: str, contract: str, options: dict[str, bool], *, renewed: bool, keeps_processes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, where starts and ends of processes wait for those of other GPUs; where memory is scarce, it ends."""
    monkeypatch.setattr(process_pool, "RunnerClient", lambda host, **options: FakeRunner(give_back=None, **options))
    pool = ProcessPool(catalog.find("softmax"), replace(devices.describe("cpu"), kind=kind), cold=True, confined=False)
    pool.use(replace(ROOMY, keeps_processes=keeps_processes))
    used, again = pool.kernel(contract, **options), FakeRunner(is_renewed=True, few_queues=True, stand_by=lambda: None)
    used.renewed = lambda: again  # type: ignore[method-assign, assignment, return-value]
    (used.give_back or type(used).close)(used)
    goes_on = renewed and keeps_processes
    assert (pool.kernel("plan") is again) is goes_on  # type: ignore[comparison-overlap]
    assert used.alive is goes_on  # the fake one still says so


@pytest.mark.parametrize(("kind", "up", "started"), [("cuda", True, 1), ("cuda", False, 0), ("cpu", True, 0)])
def test_the_first_process_starts_while_the_check_is_calibrated(
    kind: str, *, up: bool, started: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its context is created meanwhile. A host that still imports torch is not waited for, and a CPU's cores stay free."""
    monkeypatch.setattr(process_pool, "RunnerClient", lambda host, **options: FakeRunner(**options))
    pool = ProcessPool(catalog.find("softmax"), replace(devices.describe("cpu"), kind=kind), cold=True, confined=False)
    pool._candidate_host = SimpleNamespace(is_up=lambda: up)  # type: ignore[assignment]
    pool.start_early(None, 0)
    assert len(pool._spares._waiting) == started
    pool.discard_prestarted()  # no kernel has run
    assert len(pool._spares._waiting) == started


@pytest.mark.parametrize(("keeps", "ahead", "started"), [(True, 0, 3), (False, 0, 1), (False, 1, 2), (False, 2, 3)])
@pytest.mark.parametrize("contract", ["module", "plan"])
def test_those_of_its_measurement_start_then_too_where_the_kernel_is_known(
    keeps: bool, ahead: int, started: int, contract: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "RunnerClient", lambda host, **options: FakeRunner(**options))
    pool = ProcessPool(catalog.find("softmax"), replace(devices.describe("cpu"), kind="cuda"), cold=True, confined=False)
    pool._candidate_host = SimpleNamespace(is_up=lambda: True)  # type: ignore[assignment]
    pool.use(replace(ROOMY, keeps_processes=keeps, pairs_ahead=ahead))
    pool.start_early(contract, 2)
    waiting = list(pool._spares._waiting)
    assert len(waiting) == started
    assert pool.kernel(contract) is waiting[0], "one of the kernel's contract"


def test_the_process_of_a_checked_kernel_serves_its_verification_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """It saves a start, and a second construction of the module; another kernel must not find it beside its own process."""
    ended: list[str] = []

    def runner(name: str) -> RunnerClient:
        return cast(RunnerClient, FakeRunner(few_queues=False, close=lambda: ended.append(name)))

    monkeypatch.setattr(process_pool, "RunnerClient", lambda host, **options: runner("new"))
    pool = ProcessPool(catalog.find("softmax"), devices.describe("cpu"), cold=True, confined=False)
    one, other = (Candidate("module", name, "", {}, WorkloadBinary(SMALL)) for name in "ab")
    pool.keep_checked(one, runner("without room"))
    assert ended == ["without room"]
    pool.use(replace(ROOMY, keeps_checked=True))
    kept = runner("kept")
    pool.keep_checked(one, kept)
    assert pool.checked(other) is None
    assert pool.checked(one) is kept
    assert pool.checked(one) is None
    pool.keep_checked(one, kept)
    pool.prestart(2)
    pool.kernel("module")
    assert ended == ["without room", "kept", "new", "new"]
    assert not pool.has_checked


def test_a_kernel_with_host_code_gets_all_work_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its streams would wait for each other in a context with one queue; what was started for another contract is ended."""
    device = devices.describe("cpu")
    pool = ProcessPool(catalog.find("softmax"), device, cold=True, confined=False)
    closed: list[bool] = []
    pool._spares._waiting.append(cast(RunnerClient, FakeRunner(close=lambda: closed.append(True))))
    monkeypatch.setattr(process_pool, "RunnerClient", lambda host, **options: options)
    for contract, few_queues in (("module", False), ("host", False), ("plan", True)):
        for rival in (False, True):
            assert pool.kernel(contract, rival=rival)["few_queues"] is few_queues  # type: ignore[index]
    assert closed == [True]


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOMEM, "no memory for operands"), (errno.EFBIG, r"limit on files: raise it \(`ulimit -f unlimited`\)")],
)
def test_operands_that_cannot_be_held_name_the_limit(monkeypatch: pytest.MonkeyPatch, number: int, words: str) -> None:
    """A limit on the sizes of files, which holds for shared memory too, was told as a lack of memory."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(arena.os, "posix_fallocate", refuse)
    with pytest.raises(DeviceError, match=words):
        SharedArena(1 << 20, writable=True)

"""The test bed: secret inputs, poison, guard regions, and the watch before and after a call. The test acts as the kernel."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
import torch
from trial.ground import tiny

from engine.domain.memory_plan import ROOMY
from engine.domain.mismatch import Pattern
from engine.domain.model import Problem, Workload
from engine.problem import catalog
from engine.problem.arguments.constant_parameters import Varied
from engine.problem.reference import Reference
from engine.trial.judge import devices, guards, test_bed, workload_trial
from engine.trial.judge.failures import TrialFailed
from engine.trial.judge.inputs.cases import Case
from engine.trial.judge.inputs.perturbations import OWN
from engine.trial.judge.judged_calls import CheckTally, judge_outputs
from engine.trial.judge.outputs.taken_outputs import largest_difference
from engine.trial.judge.runners.written_memory import TRUSTED
from engine.trial.judge.timing.pair_times import KERNEL
from engine.trial.judge.tolerance import reference_on_case
from engine.trial.judge.tolerance.calibration import calibrate
from engine.trial.judge.tolerance.class_errors import class_errors
from engine.trial.judge.tolerance.findings import Findings
from engine.trial.judge.tolerance.reference_on_case import ReferenceOnCase
from engine.trial.protocol import OTHER
from engine.trial.shared.arena import SharedArena, SharedBorrowed
from engine.trial.shared.layout import NAN_BYTES

SMALL = Workload("small", {"rows": 4, "width": 32})
Bed = test_bed.TestBed  # a name that pytest does not collect


def make(problem: Problem, workload: Workload = SMALL) -> Bed:
    reference = Reference(problem, workload)
    return Bed(reference, calibrate(reference, "class"), devices.describe("cpu"))


@pytest.fixture
def bench() -> Iterator[Bed]:
    found = make(tiny())
    yield found
    found.close()


def inputs(at: Bed, slot: int) -> list[torch.Tensor]:
    return [at._inputs.tensor(s) for s in at._read_slots(slot)]


def answer(at: Bed, slot: int) -> None:
    """An honest kernel: reads and writes lent memory."""
    x, weight = inputs(at, slot)
    at.outputs(slot)[0].copy_(torch.softmax(x * weight, 1))


@pytest.mark.slow
def test_right_output_passes_and_the_previous_call_s_does_not(bench: Bed) -> None:
    bench.refill(0)
    answer(bench, 0)
    found = bench.check(0)
    assert found.ruling.passed
    assert found.violation == ""
    bench.refill(0)
    assert not bench.check(0).ruling.passed


@pytest.mark.slow
def test_inputs_are_fresh_per_call_and_weights_per_process(bench: Bed) -> None:
    seen = []
    for slot in (0, 0, 1):
        bench.refill(slot)
        seen.append([t.clone() for t in inputs(bench, slot)])
    assert len({tuple(x.flatten().tolist()) for x, _ in seen}) == 3
    assert len({tuple(w.tolist()) for _, w in seen}) == 1
    bench.new_model()
    bench.draw_weights()
    assert not torch.equal(inputs(bench, 0)[1], seen[0][1])


@pytest.mark.slow
def test_a_module_s_weights_are_lent_before_a_call_and_drawn_while_it_loads(bench: Bed) -> None:
    before = bench.draw_weights()
    bench.new_model()
    assert bench._model is None
    bench.refill(0)
    after = bench.draw_weights()
    assert after is not before
    assert after is bench.draw_weights()
    (weight,) = after.parameters()
    assert torch.equal(inputs(bench, 0)[1], weight)


CHANGING = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x, y):
        return x.relu_() + y

def get_inputs():
    return [torch.rand(8, 16), torch.rand(8, 16)]

def get_init_inputs():
    return []
"""


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[Bed]:
    """A reference whose write leaves positive inputs as they are: its own are positive."""
    file = tmp_path / "changing.py"
    file.write_text(CHANGING)
    problem = catalog.find(str(file))
    found = make(problem, next(iter(problem.workloads)))
    yield found
    found.close()


@pytest.mark.parametrize("distribution", [OWN, "negated"])
def test_a_kernel_may_change_what_the_reference_changes_and_nothing_else(changing: Bed, distribution: str) -> None:
    x, y, out = changing.layout.slots[0]

    def answered() -> Findings:
        changing.outputs(0)[0].copy_(torch.relu(changing._tensor(x)) + changing._tensor(y))
        return changing.check(0, distribution)

    assert (x.writable, y.writable, out.writable) == (True, False, True)
    changing.refill(0, distribution)
    assert answered().ruling.passed
    changing._tensor(x).relu_()
    found = answered()
    assert (found.ruling.passed, found.violation) == (True, "")
    changing._tensor(y)[3] += 1.0
    assert answered().violation == "changed its input y"


@pytest.mark.slow
def test_weights_that_no_module_constructs_are_drawn_where_that_is_fast(bench: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The expected outputs are those of the weights that were lent, wherever they were drawn."""
    drawn: list[bool] = []
    plain = bench.reference.judged_model

    def judged_model(seed: int, *, sample: bool = False, constants: Varied = Varied.APART) -> torch.nn.Module:
        drawn.append(sample)
        return plain(seed + sample, sample=sample, constants=constants)

    monkeypatch.setattr(bench.reference, "judged_model", judged_model)
    for constructed in (True, False):
        bench.new_model(constructed=constructed)
        bench.refill(0)
        answer(bench, 0)
        assert bench.check(0).ruling.passed
    assert drawn == [False, True]


@pytest.mark.slow
def test_the_reference_runs_once_for_calls_on_the_same_inputs(bench: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    exact_of = Reference.exact_of
    monkeypatch.setattr(Reference, "exact_of", lambda *given: ran.append(1) or exact_of(*given))
    bench.refill(0)
    for _ in range(2):
        answer(bench, 0)
        assert bench.check(0).ruling.passed
    assert len(ran) == 1
    for renew in (lambda: bench.refill(0), lambda: bench.swap_elements(0), bench.new_model):
        renew()
        bench.poison(0)
        assert not bench.check(0).ruling.passed
        answer(bench, 0)
        assert bench.check(0).ruling.passed
    assert len(ran) > 3


@pytest.mark.slow
@pytest.mark.parametrize("keeps", [True, False])
def test_swapped_elements_are_lent_and_expected(keeps: bool) -> None:
    reference = Reference(tiny(), SMALL)
    plan = replace(ROOMY, keeps_inputs=keeps)
    at = Bed(reference, calibrate(reference, "class"), devices.describe("cpu"), plan)
    assert at.calibration.judges_perturbed
    at.refill(0)
    at.let_go(0)
    answer(at, 0)
    seen = inputs(at, 0)[0].clone()
    for _ in range(2):
        at.swap_elements(0)
        assert not at.check(0).ruling.passed, "the output before the swap"
        answer(at, 0)
        found = at.check(0)
        assert found.ruling.passed
        assert found.violation == ""
    assert 1 <= int((inputs(at, 0)[0] != seen).sum()) <= 12
    at.refill(0)
    answer(at, 0)
    assert at.check(0).violation == ""
    at.close()


@pytest.mark.slow
def test_drawn_inputs_are_not_visible_before_release(bench: Bed) -> None:
    bench.refill(0)
    before = inputs(bench, 0)[0].clone()
    bench.draw(0)
    assert torch.equal(inputs(bench, 0)[0], before)
    bench.release(0)
    assert not torch.equal(inputs(bench, 0)[0], before)


@pytest.mark.slow
@pytest.mark.parametrize("poison", guards.POISONS)
def test_unwritten_elements_are_reported_with_their_position(bench: Bed, monkeypatch: pytest.MonkeyPatch, poison: int) -> None:
    monkeypatch.setattr(test_bed.secrets, "choice", lambda _: poison)
    bench.refill(0)
    bench.poison(0)
    whole = bench.outputs(0)[0]
    untouched = whole[2, 5:9].clone()
    answer(bench, 0)
    whole[2, 5:9] = untouched
    found = bench.check(0)
    assert not found.ruling.passed
    or_nan = " or NaN" if poison == NAN_BYTES else ""
    assert found.ruling.errors.flaw == f"out: 4 of 128 elements not written{or_nan}, the first at 69"


ALL_NAN = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x):
        return {}
def get_inputs():
    return [torch.randn(8)]
def get_init_inputs():
    return []
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "expression",
    [
        "torch.where(x > x.median(), x, torch.full_like(x, float('nan')))",
        "x > x - 1",
        "torch.full_like(x, -1, dtype=torch.int32)",
    ],
)
def test_outputs_equal_to_a_poison_must_still_be_written(expression: str) -> None:
    problem = replace(tiny(), reference=ALL_NAN.format(expression), workloads=(), holdouts={})
    at = make(problem, Workload("full", {}))
    passed = 0
    for _ in range(40):
        at.refill(0)
        at.poison(0)
        expected = at.expected(0)[0]
        kept = at.outputs(0)[0][expected.isfinite()].clone() if expected.is_floating_point() else None
        if kept is not None:
            at.outputs(0)[0][expected.isfinite()] = expected[expected.isfinite()].float()
        passed += at.check(0).ruling.passed
    at.close()
    assert passed < 40, "unwritten elements passed under every poison"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("offset", "why"),
    [
        (lambda first, size: first - 1, "wrote before the start of its output out"),
        (lambda first, size: first + size, "wrote past the end of its output out"),
        (lambda first, size: first + size + 4095, "wrote past the end of its output out"),
        (lambda first, size: first + 2 * size + 2 * 4096 + 600, "wrote far outside its outputs"),
    ],
)
def test_a_write_outside_the_outputs_is_a_violation_once(bench: Bed, offset: Callable[[int, int], int], why: str) -> None:
    bench.refill(0)
    answer(bench, 0)
    slot = bench._written_slots(0)[0]
    place = offset(slot.offset, slot.nbytes)
    bench._outputs.raw(place, place + 1).fill_(0)
    assert bench.check(0).violation == why
    assert bench.check(0).violation == ""


@pytest.mark.slow
def test_a_violation_is_not_blamed_on_the_next_kernel(bench: Bed) -> None:
    bench._outputs.raw(0, 64).fill_(0)
    bench.new_model()
    bench.refill(0)
    answer(bench, 0)
    assert bench.check(0).violation == ""


@pytest.mark.slow
def test_a_modified_input_is_a_violation(bench: Bed) -> None:
    bench.refill(0)
    answer(bench, 0)
    inputs(bench, 0)[1][3] += 1
    assert bench.check(0).violation == "changed its parameter weight"


@pytest.mark.slow
def test_outputs_written_after_the_reply_are_detected(bench: Bed) -> None:
    bench.refill(0)
    watch = bench.watch(0)
    watch.before()
    answer(bench, 0)
    watch.after()
    assert not watch.outputs_changed()
    bench.outputs(0)[0][:2] = 0
    assert watch.outputs_changed()


@pytest.mark.slow
def test_calls_of_a_burst_that_look_left_out_are_named(bench: Bed) -> None:
    """One call of a burst is checked: one of eight that was left out passed in seven of eight."""
    slots = range(bench.slots)
    poisons = []
    for slot in slots:
        bench.refill(slot)
        bench.poison(slot)
        poisons.append(bench.poisons_of(slot))

    def seen() -> tuple[int, ...]:
        watch = bench.watch(*slots)
        watch.after()
        return watch.left_out(poisons)

    for slot in slots[:-1]:
        answer(bench, slot)
    assert seen() == (slots[-1],)
    bench.outputs(slots[-1])[0].copy_(bench.outputs(0)[0])
    assert seen() == (0, slots[-1])
    answer(bench, slots[-1])
    assert seen() == ()


@pytest.mark.slow
def test_outputs_that_could_not_be_read_at_the_reply_are_not_believed_later(bench: Bed) -> None:
    bench.refill(0)
    (right,) = bench.outputs(0)
    memory = Memory(right)
    watch = bench.watch(0).of_runner(lambda: memory)
    memory.readable = False
    watch.after()
    memory.readable = True
    with pytest.raises(OSError, match="Bad address"):
        watch.outputs_changed()


@pytest.mark.slow
def test_kernels_of_a_race_write_to_memory_of_their_own(bench: Bed) -> None:
    """What one of them does to its memory must not slow the other."""
    files = []
    for party in (KERNEL, OTHER, TRUSTED):
        _, (handle, fds) = bench.handles(party, copies_outputs=False)
        files.append((os.fstat(fds[0]).st_ino, handle.writable))
        os.close(fds[0])
    assert files[0][0] != files[1][0]
    assert [writable for _, writable in files] == [True, True, False], "a baseline writes nothing there"
    bench.refill(0)
    for party in (KERNEL, OTHER):
        bench.turn_to(party)
        bench.poison(0)
        answer(bench, 0)
        assert bench.check(0).ruling.passed
        assert not bench.check(0).violation
    bench._outputs.raw(0, 8).fill_(7)
    assert "before the start" in bench.check(0).violation or "outside" in bench.check(0).violation
    bench._outputs.raw(0, 8).fill_(7)
    bench.turn_to(KERNEL)
    assert not bench.check(0).violation, "the other kernel's"


class Memory:
    """A module's output in this process, which can be read at times."""

    def __init__(self, made: torch.Tensor) -> None:
        self.made = made
        self.readable = True

    @property
    def addresses(self) -> tuple[int, ...]:
        return (self.made.data_ptr(),)

    def of_call(self, call: int, calls: int) -> Memory:
        return self

    def copy_to(self, output: int, target: torch.Tensor) -> None:
        target.copy_(self.made.view(torch.uint8))

    def elements(self, output: int, where: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        if not self.readable:
            raise OSError(errno.EFAULT, "Bad address")
        return torch.index_select(self.made.view(-1).view(words.dtype), 0, where)


@pytest.mark.slow
def test_jitter_is_zero_for_equal_bits_and_large_for_a_data_race(bench: Bed) -> None:
    bench.refill(0)
    answer(bench, 0)
    earlier = bench.copy_outputs(0)
    assert largest_difference(bench.outputs(0), earlier) == 0.0
    bench.outputs(0)[0][1, 1] *= 1.5
    assert largest_difference(bench.outputs(0), earlier) > 0.1


def test_a_borrower_cannot_write_lent_inputs() -> None:
    arena = SharedArena(8192, writable=False)
    arena.raw(0, 8192).fill_(7)
    handle, (fd,) = arena.handle()
    with pytest.raises(PermissionError):
        mmap.mmap(fd, 8192, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(PermissionError):
        os.write(fd, b"x")
    assert SharedBorrowed(handle, fd)._flat[0] == 7
    arena.close()


@pytest.mark.parametrize(("expression", "fails"), [("x + y", False), ("x + y if bool((x > y).all()) else x + y[9:]", True)])
def test_only_some_inputs_are_perturbed_where_the_reference_takes_that(expression: str, fails: bool) -> None:
    text = ALL_NAN.format(expression).replace("forward(self, x)", "forward(self, x, y)")
    text = text.replace("return [torch.randn(8)]", "return [torch.rand(8) + 2, torch.rand(8) + 1]")
    at = make(replace(tiny(), reference=text, workloads=(), holdouts={}), Workload("full", {}))
    seen = set()
    for _ in range(20):
        at.refill(0, "x0.001", partly=True)
        perturbed = tuple(bool(t.max() < 0.1) for t in inputs(at, 0))
        seen.add(perturbed)
        at.outputs(0)[0].copy_(sum(inputs(at, 0)))  # type: ignore[arg-type]
        assert at.check(0, "x0.001").ruling.passed
        at.outputs(0)[0].zero_()
        with pytest.raises(TrialFailed) as caught:
            judge_outputs(at.check(0, "x0.001"), CheckTally(), "x0.001")
        said = f"x0.001{'' if all(perturbed) else ', in some of the inputs'}"
        assert f"on perturbed inputs ({said}):" in caught.value.failure.reason
        assert {one.inputs for one in caught.value.failure.mismatches} == {said}
    assert seen == ({(True, False), (False, True)} if not fails else {(True, True), (False, True)})
    at.close()


@pytest.mark.parametrize("writable", [True, False])
def test_lent_memory_cannot_be_resized_or_resealed(writable: bool) -> None:
    arena = SharedArena(8192, writable=writable)
    _, (fd,) = arena.handle()
    for size in (0, 4096, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    os.close(fd)
    arena.raw(0, 8192).fill_(1)
    arena.close()


@pytest.mark.slow
def test_the_problem_s_own_distribution_is_always_judged(bench: Bed) -> None:
    assert bench.calibration.distributions[0] == OWN


def of(expression: str) -> Bed:
    """A test bed for a reference that returns ``expression`` of eight random numbers."""
    return make(replace(tiny(), reference=ALL_NAN.format(expression), workloads=(), holdouts={}), Workload("full", {}))


@pytest.mark.slow
@pytest.mark.parametrize(("expression", "poison"), [("(x > 9).int() - 1", 0xFF), ("(x > 9).to(torch.int8) + 0x5B", 0x5B)])
def test_a_right_output_equal_to_poison_is_not_reported_as_unwritten(
    monkeypatch: pytest.MonkeyPatch, expression: str, poison: int
) -> None:
    monkeypatch.setattr(test_bed.secrets, "choice", lambda _: poison)
    at = of(expression)
    at.refill(0)
    at.poison(0)
    at.outputs(0)[0].copy_(at.expected(0)[0])
    assert at.check(0).ruling.passed
    at.outputs(0)[0][3] = 1
    assert "1 of 8 elements differ" in at.check(0).ruling.errors.flaw
    at.close()


def test_wrong_integers_that_happen_to_equal_poison_are_not_reported_as_unwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_bed.secrets, "choice", lambda _: 0x5B)
    at = of("(x * 0).to(torch.int8)")
    at.refill(0)
    at.poison(0)
    at.outputs(0)[0].copy_(torch.arange(0x58, 0x60))
    found = at.check(0).ruling
    assert "8 of 8 elements differ" in found.errors.flaw
    assert found.evidence[0].observations[0].kind is not Pattern.NOT_WRITTEN
    assert all(example.written for example in found.evidence[0].examples)
    at.outputs(0)[0].copy_(at.expected(0)[0])
    at.outputs(0)[0][2:4] = 0x5B
    assert at.check(0).ruling.errors.flaw == "out: 2 of 8 elements not written, the first at 2"
    at.close()


def test_eager_passes_on_an_ill_conditioned_input(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    at = of("torch.floor(x * 10)")
    monkeypatch.setattr(reference_on_case, "class_errors", lambda *given: asked.append(given) or class_errors(*given))
    at.refill(0)
    x = at._given(0)[0]
    assert isinstance(x, torch.Tensor)
    x.copy_(torch.arange(8) * 100 + 0.05)
    at.release(0)
    at.outputs(0)[0].copy_(torch.floor(x * 10))
    assert at.check(0).ruling.passed
    assert not asked
    x[0] = 0.7  # slightly less in fp32, within ten times its error
    at.release(0)
    at.outputs(0)[0].copy_(torch.floor(x * 10))
    assert at.check(0).ruling.passed
    assert len(asked) == 1
    at.outputs(0)[0][5] += 50
    assert not at.check(0).ruling.passed
    at.close()


@pytest.mark.slow
def test_only_integers_decided_by_rounding_may_differ() -> None:
    at = of("torch.round(x * 100).to(torch.int32)")
    at.refill(0)
    x = at._given(0)[0]
    assert isinstance(x, torch.Tensor)
    x.copy_(torch.arange(8) / 10 + 0.033)
    x[2] = 0.505
    at.release(0)
    right = torch.tensor([3, 13, 50, 33, 43, 53, 63, 73], dtype=torch.int32)
    for number, passes in [(50, True), (51, True)]:
        right[2] = number
        at.outputs(0)[0].copy_(right)
        assert at.check(0).ruling.passed is passes
    at.outputs(0)[0][3] += 1
    assert "1 of 8 elements differ" in at.check(0).ruling.errors.flaw
    x.fill_(0.505)  # all elements: the check would not discriminate
    at.release(0)
    for number in (50, 51):
        at.outputs(0)[0].fill_(number)
        assert at.check(0).ruling.passed is (number == int(torch.round(x[0].double() * 100)))
    at.close()


UPDATED = """
import torch
rows = 16
class Model(torch.nn.Module):
    def forward(self, kept, new, places):
        kept.index_copy_(0, places, new)
        return kept.sum(1)
def get_inputs():
    return [torch.randn(rows, 4), torch.randn(3, 4), torch.randperm(rows)[:3]]
def get_init_inputs():
    return []
"""


def test_indices_beside_inputs_that_the_reference_changes_are_valid_before_the_first_call(tmp_path: Path) -> None:
    (tmp_path / "reference.py").write_text(UPDATED)
    problem = catalog.find(str(tmp_path))
    bed = make(problem, problem.workloads[0])
    try:
        bed.handles(TRUSTED, copies_outputs=False)
        for party in (KERNEL, TRUSTED):
            bed.turn_to(party)
            places = bed._tensor(bed._input_slots(0)[2])
            assert 0 <= int(places.min()) <= int(places.max()) < 16, party
    finally:
        bed.close()


IN_A_DOMAIN = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        assert bool((x >= 0).all() & (x <= 1).all()), "probabilities"
        return torch.sqrt(x), (x > 0.5).sum(-1)
def get_inputs():
    return [torch.rand(64, 32).round(decimals=2).clamp(min=0.01)]
def get_init_inputs():
    return []
"""


@pytest.fixture
def in_a_domain(tmp_path: Path) -> Iterator[Bed]:
    file = tmp_path / "reference.py"
    file.write_text(IN_A_DOMAIN)
    found = make(catalog.find(str(file)), Workload("full", {}))
    yield found
    found.close()


def test_no_call_gets_inputs_on_which_the_reference_raises(in_a_domain: Bed) -> None:
    """Of some kinds it bears one draw and not the next: the whole problem was refused then."""
    assert in_a_domain.calibration.fails_on_some
    assert "negated" not in in_a_domain.calibration.distributions
    in_a_domain.draw(0, "negated")  # as if calibration had found it usable in one draw
    in_a_domain.release(0)
    (x,) = inputs(in_a_domain, 0)
    assert bool((x >= 0).all())
    assert len(in_a_domain.expected(0)) == 2


def test_inputs_close_by_may_leave_the_domain_of_the_reference(in_a_domain: Bed) -> None:
    reference = in_a_domain.reference
    inputs = (torch.ones(64, 32),)
    case = Case(reference.model(0), lambda: inputs, reference.exact(reference.model(0), inputs).outputs)
    asked = ReferenceOnCase(reference, case)
    assert asked.rounded_inputs().rel_fro >= 0
    assert asked.undecided(1.0)[1] is not None


def test_a_hold_out_shape_is_tried_on_changed_ends_of_one_dimension_twice_as_often_as_it_has_dimensions(
    bench: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which dimension is drawn: a loop along the other one was not tried."""
    tried: list[str] = []
    monkeypatch.setattr(workload_trial, "fresh_call", lambda *given, partly: tried.append(given[-1]))
    trial = SimpleNamespace(_tools=SimpleNamespace(setup=SimpleNamespace(rng=Random(1))))
    workload_trial.WorkloadTrial._perturb_holdout(trial, bench, None)  # type: ignore[arg-type]
    counts = Counter(tried)
    assert counts.total() == 8
    assert counts["edges"] + counts["edges x5"] == 4
    assert counts["rising ends"] == counts["falling ends"] == 1

"""One workload set up on one device: lent memory, fresh secret inputs, poison, and the check of outputs. Imports torch.

Expected outputs are computed here, in the judge, and never written to lent memory.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random

import torch
from torch import nn

from engine.domain.errors import DeviceError
from engine.domain.memory_plan import ROOMY, MemoryPlan
from engine.domain.model import Device, Role
from engine.domain.problem_format import FormatVerdict
from engine.problem.arguments.constant_parameters import Varied
from engine.problem.arguments.values import contiguous, tensors
from engine.problem.reference import Reference
from engine.trial.judge.guards import PATTERN, Guards
from engine.trial.judge.inputs.cases import Case, draws_alike, fresh_seed, output_names
from engine.trial.judge.inputs.draw import Draw, draws, has_outputs
from engine.trial.judge.inputs.perturbations import OWN, can_change_some
from engine.trial.judge.inputs.swaps import swap_few, with_swaps
from engine.trial.judge.lent_weights import LentWeights
from engine.trial.judge.outputs.blocks import as_integers
from engine.trial.judge.outputs.comparison import NO_ERROR
from engine.trial.judge.outputs.taken_outputs import Left, OutputTaker, Taken
from engine.trial.judge.runners.runner_memory import Outputs
from engine.trial.judge.runners.watch import Watch
from engine.trial.judge.runners.written_memory import WrittenMemory
from engine.trial.judge.tolerance.calibration import Calibration
from engine.trial.judge.tolerance.eager_outputs import EagerOutputs
from engine.trial.judge.tolerance.findings import Findings
from engine.trial.judge.tolerance.format_check import format_verdict, ruling_of_several
from engine.trial.judge.tolerance.mismatch_tally import with_evidence
from engine.trial.judge.tolerance.policies import AllclosePolicy
from engine.trial.judge.tolerance.policy import CheckResult
from engine.trial.judge.tolerance.reference_on_case import ReferenceOnCase
from engine.trial.judge.tolerance.repeated_writes import unless_undefined
from engine.trial.messages import ArenaHandle, Slot
from engine.trial.shared import arena
from engine.trial.shared.layout import NAN_BYTES, POISONS, operand_bytes, plan_layout


class TestBed:
    """Arenas with copies (slots) of every operand, refilled for each call, as the memory plan says.

    Raises DeviceError if they do not fit.
    """

    def __init__(
        self, reference: Reference, calibration: Calibration, device: Device, plan: MemoryPlan = ROOMY, slots: int | None = None
    ) -> None:
        """``slots``: their number, if it is not the plan's."""
        self.reference = reference
        self.calibration = calibration
        self.complete: Callable[[str], Calibration] | None = None
        """Measures what ``calibration`` lacks on a distribution; needed if it lacks any."""
        self.device = device.label
        self.signature = reference.signature()
        self._names = output_names(reference)
        self.slots = slots or plan.slots
        self.operand_bytes = self.slots * operand_bytes(self.signature.operands)
        """Of all slots."""
        self.layout = plan_layout(self.signature.operands, self.slots, changed_inputs=reference.side_effects.changed_inputs)
        self._inputs = arena.lend(device.label, self.layout.input_bytes, writable=False)
        try:
            self._written = WrittenMemory(device.label, self.layout.output_bytes, PATTERN, self._fill_first_slot)
        except DeviceError:
            self._inputs.close()
            raise
        self._weights = LentWeights(self.layout.slots, self._inputs)
        self._model: nn.Module | None = None
        self._drawing: Callable[[], nn.Module] = lambda: reference.model(0)
        self._drawn = [Draw(0, 0)] * self.slots
        self._held: list[tuple[object, ...] | None] = [()] * self.slots
        """The inputs of a slot in the judge's own memory; ``None``: to be drawn again."""
        self._known: tuple[tuple[Draw, int, int | None], Sequence[torch.Tensor]] | None = None
        """The last expected outputs, and the inputs and weights that they belong to."""
        self._poisons: list[tuple[int, ...]] = [(NAN_BYTES,)] * self.slots
        self._rng = torch.Generator().manual_seed(fresh_seed())
        self._taker = OutputTaker(saves_memory=plan.copies_on_host, leaves=not reference.side_effects.changed_inputs)
        self._eager = EagerOutputs(reference, calibration, plan)
        self._guards = Guards(self.layout, self._inputs, self._written)
        self.init_seed = 0
        self._scalar_seed: int | None = None
        self.varied_constants: tuple[tuple[float, int], ...] = ()
        self.keeps_inputs = plan.keeps_inputs or not draws_alike(reference)
        self.new_model(constructed=False)
        if any(o.role is Role.INPUT and not getattr(torch, o.dtype).is_floating_point for o in self.signature.operands):
            self.refill(0)  # baselines are called once before a slot is filled; integers may be indices

    def _fill_first_slot(self, memory: arena.Arena) -> None:
        """Fill the inputs of the first slot that lie in this memory, which a baseline is called on once before any call."""
        given = tensors(list(self._given(0)))
        for operand, tensor in zip(self._input_slots(0), given, strict=False):  # none where the slot is not filled either
            if operand.writable:
                memory.tensor(operand).copy_(tensor)

    def new_model(self, *, constants: Varied = Varied.APART, scalars: bool = False, constructed: bool = True) -> None:
        """Fresh weights from a fresh seed, and intact guard regions, for the next process.

        Modules get the seed of the weights, because they construct their own; without ``constructed`` none does, and the
        weights are drawn on the device. Seeds of inputs never leave the judge. ``constants``: what parameters and buffers hold
        that the constructor fills with one number; with ``scalars``, floating-point arguments of ``forward`` vary.
        """
        self._guards.fill()
        self._eager.look_again()
        self.init_seed = fresh_seed()
        self._scalar_seed = fresh_seed() if scalars else None
        self.constants = constants
        self.varied_constants = tuple(sorted(self.reference.constants)) if constants is not Varied.KEPT else ()
        draw = self.reference.judged_model
        self._model, self._drawing = None, partial(draw, self.init_seed, sample=not constructed, constants=constants)
        if not constructed:
            self.draw_weights()

    def draw_weights(self) -> nn.Module:
        """The new model. Its weights are drawn and copied to lent memory at first use, while a module constructs its own."""
        if self._model is None:
            self._model = self._drawing()
            self._weights.copy(self.reference.arguments(self._model, ()))
            self.settle()
        return self._model

    def handles(
        self, party: str, *, copies_outputs: bool
    ) -> tuple[tuple[ArenaHandle, Sequence[int]], tuple[ArenaHandle, Sequence[int]]]:
        """Handles of (inputs, outputs) for a runner of this party, each with the descriptors to send."""
        writes = copies_outputs or bool(self.reference.side_effects.changed_inputs)
        return self._inputs.handle(), self._written.handle(party, writes=writes)

    def turn_to(self, contestant: str) -> None:
        """From now on outputs, their poison, and inputs that the reference changes are in this contestant's memory."""
        self._written.turn_to(contestant)

    @property
    def _outputs(self) -> arena.Arena:
        return self._written.now

    def draw(self, slot: int, distribution: str = OWN, *, partly: bool = False) -> None:
        """Inputs for ``slot`` from a fresh secret seed, in the judge's own memory: drawn now, or when they are needed.

        ``partly``: only some of the inputs are perturbed, if there are several. Where the reference may fail, it is tried.
        """
        self._known = None
        some = partly and can_change_some(self.signature.operands, distribution)
        for draw in draws(distribution, partly=some):
            tried = draw.distribution != OWN and (some or self.calibration.fails_on_some)
            self._drawn[slot], self._held[slot] = draw, None
            given = self._hold(slot) if self.keeps_inputs or tried else ()
            if not tried or has_outputs(self.reference, self.draw_weights(), given):
                break
        self.let_go(slot)

    def _given(self, slot: int) -> tuple[object, ...]:
        """The inputs of ``slot``, drawn again if they are not held."""
        held, draw = self._held[slot], self._drawn[slot]
        if held is not None:
            return held
        return draw.inputs(self.reference, self._scalar_seed)

    def _hold(self, slot: int) -> tuple[object, ...]:
        """Keep the inputs of ``slot`` until ``let_go``."""
        given = self._held[slot] = self._given(slot)
        return given

    def let_go(self, slot: int) -> None:
        """Free the judge's copy of the inputs of ``slot``, where the memory plan does not keep it."""
        if not self.keeps_inputs:
            self._held[slot] = None

    def _handed_over(self, slot: int) -> tuple[object, ...]:
        """The inputs of ``slot``, which from now on are held by the caller only, unless the memory plan keeps them."""
        given = self._given(slot)
        self.let_go(slot)
        return given

    def with_scalars(self, arguments: tuple[object, ...]) -> tuple[object, ...]:
        """Arguments of ``forward`` with the scalars that the current model is judged on."""
        return arguments if self._scalar_seed is None else self.reference.varied_scalars(arguments, self._scalar_seed)

    @property
    def varies_scalars(self) -> bool:
        """Whether scalar arguments differ from the problem's own where the reference allows it."""
        return self._scalar_seed is not None

    def release(self, slot: int) -> None:
        """Copy the inputs drawn for ``slot`` to lent memory, right before the call: nothing can be computed ahead."""
        self._known = None
        self.draw_weights()
        self._hold(slot)
        self.release_inputs(slot)

    def refill(self, slot: int, distribution: str = OWN, *, partly: bool = False) -> None:
        """``draw`` and ``release``."""
        self.draw(slot, distribution, partly=partly)
        self.release(slot)

    def renew(self, slot: int) -> None:
        """Copy the inputs of ``slot`` to lent memory again if the last call may have changed them, as the reference does."""
        if self.reference.side_effects.changed_inputs:
            self.release_inputs(slot)

    def swap_elements(self, slot: int) -> None:
        """Swap a few elements of the inputs of ``slot``, which a kernel has seen: one that
        recognises inputs by samples of them misses the change."""
        seed, draw, held = fresh_seed(), self._drawn[slot], self._held[slot]
        self._drawn[slot] = replace(draw, swaps=(*draw.swaps, seed))
        if held is not None:
            self._held[slot] = with_swaps(held, (seed,))
        rng = Random(seed)
        for operand in self._input_slots(slot):
            swap_few(self._tensor(operand), rng)

    def _arena(self, operand: Slot) -> arena.Arena:
        return self._outputs if operand.writable else self._inputs

    def _tensor(self, operand: Slot) -> torch.Tensor:
        return self._arena(operand).tensor(operand)

    def _read_slots(self, slot: int) -> list[Slot]:
        return [s for s in self.layout.slots[slot] if s.role != Role.OUTPUT.value]

    def _written_slots(self, slot: int) -> list[Slot]:
        return [s for s in self.layout.slots[slot] if s.role == Role.OUTPUT.value]

    def poison(self, slot: int) -> None:
        """Fill the outputs with poison to detect unwritten elements."""
        poison = secrets.choice(POISONS)
        self._poisons[slot] = (poison,)
        for operand in self._written_slots(slot):
            self._outputs.raw(operand.offset, operand.offset + operand.nbytes).fill_(poison)
        self.settle()

    def poisons_of(self, slot: int) -> tuple[int, ...]:
        """The bytes that elements of the outputs of ``slot`` hold which were not written."""
        return self._poisons[slot]

    def settle(self) -> None:
        """Wait until the device has finished the judge's work."""
        if self.device != "cpu":
            torch.cuda.synchronize()

    def outputs(self, slot: int) -> list[torch.Tensor]:
        return [self._outputs.tensor(operand) for operand in self._written_slots(slot)]

    def expected(self, slot: int) -> Sequence[torch.Tensor]:
        """The reference's outputs for the current inputs of ``slot``: in float64, or eager's for an allclose policy.

        Where the memory plan keeps inputs, the last ones are kept until others are asked for, or inputs are drawn or released.
        """
        given = self._drawn[slot], self.init_seed, self._scalar_seed
        if self._known is None or self._known[0] != given:
            self._known = None  # freed before others are computed
            found = self._compute_expected(slot)
            if not self.keeps_inputs:
                return found
            self._known = given, found
        return self._known[1]

    def _compute_expected(self, slot: int) -> Sequence[torch.Tensor]:
        if isinstance(self.calibration.policy, AllclosePolicy):
            return self.reference.call(self.draw_weights(), self._handed_over(slot))
        return self.reference.exact_of(self.draw_weights(), lambda: self._handed_over(slot)).outputs

    def check(self, slot: int, distribution: str = OWN, taken: Taken | None = None) -> Findings:
        """Judge the outputs of ``slot``, as they were ``taken`` right after the call, its guard regions and its inputs."""
        changed = self._changed_input(slot)
        actual = self.outputs(slot) if isinstance(taken, Left | None) else [o.to(self.reference.device) for o in taken]
        eager = lambda: self.reference.call(self.draw_weights(), self._given(slot))  # noqa: E731
        early = self._eager.ruling(actual, distribution, eager, timed=taken is not None, unmeasured=self.calibration.unmeasured)
        early = early or self._ruled_by_format(slot, distribution, actual, compares=taken is None)
        if early is not None and early.passed:
            self.let_go(slot)
            return Findings(early, self._violation(slot, taken) or changed)
        ruling = self._ruling(slot, distribution, actual, early)
        return Findings(ruling, self._violation(slot, taken) or changed, self._drawn[slot].partly)

    def _ruling(self, slot: int, distribution: str, actual: Sequence[torch.Tensor], early: CheckResult | None) -> CheckResult:
        """The decision on the outputs of ``slot``, with evidence. Errors of the reference that it needs are measured first.

        Inputs on which the reference proves inaccurate are not judged.
        """
        if distribution not in self.calibration.distributions:
            return CheckResult(NO_ERROR, passed=True)
        case = Case(self.draw_weights(), lambda: self._given(slot), self.expected(slot), own=distribution == OWN)
        asked, policy = ReferenceOnCase(self.reference, case), self.calibration.policy
        ruling = early or policy.rule(actual, case.expected, self._names, distribution, asked)
        if ruling.unmeasured:
            del asked, case  # freed before another case is made
            self._known = None
            self.let_go(slot)
            assert self.complete is not None
            self.calibration = self.complete(distribution)
            return self._ruling(slot, distribution, actual, None)
        ruling = unless_undefined(ruling, asked, distribution)
        if ruling.passed:
            return ruling
        return with_evidence(ruling, policy, distribution, actual, case.expected, self._names, self._poisons[slot])

    def _ruled_by_format(
        self, slot: int, distribution: str, actual: Sequence[torch.Tensor], *, compares: bool
    ) -> CheckResult | None:
        """The ruling where several outputs are right; ``None`` where only one is.

        ``compares``: whether outputs are compared with float64 even where that does not tell right ones from wrong ones.
        """
        if not self.calibration.several:
            return None

        def compared() -> CheckResult:
            if not (compares or self.calibration.float64_tells):
                return CheckResult(NO_ERROR, passed=True)
            return self.calibration.policy.rule(actual, self.expected(slot), self._names, distribution)

        model, given = self.draw_weights(), self._given(slot)
        return ruling_of_several(self.reference, model, given, actual, compared, own=distribution == OWN)

    def format_verdict(self, slot: int) -> FormatVerdict | None:
        """What the problem's own format says about the outputs of ``slot``. Raises what ``format_check`` raises."""
        limit = self.calibration.policy.limit(OWN)
        return format_verdict(self.reference, self.draw_weights(), self._given(slot), self.outputs(slot), limit)

    def _violation(self, slot: int, taken: Taken | None) -> str:
        """The rule of the trial that a call broke after or beside its outputs; empty if it broke none."""
        return "its outputs changed after the call" if self.have_changed(slot, taken) else self.trespass(slot)

    def _changed_input(self, slot: int) -> str:
        """A message on an input or weight that a call changed; empty if it changed none. Holds the inputs, for ``expected``."""
        given = self._hold(slot)
        if self._weights.are_intact(slot):
            read, right = self._input_slots(slot), tuple(map(contiguous, tensors(list(given))))
        else:
            read, right = self._read_slots(slot), self.reference.arguments(self.draw_weights(), given)
        for operand, tensor in zip(read, right, strict=True):
            if not operand.writable and not torch.equal(as_integers(self._tensor(operand)), as_integers(tensor)):
                return f"changed its {operand.role} {operand.name}"
        return ""

    def trespass(self, slot: int) -> str:
        """A message on what was written outside the outputs (empty: nothing); restores the guard regions.

        Called right after a call, it attributes the write to that call's kernel.
        """
        return self._guards.trespass(self._written_slots(slot))

    def watch(self, *slots: int) -> Watch:
        """A watch on the outputs of these slots."""
        return Watch([output for slot in slots for output in self.outputs(slot)], self._rng)

    def withdraw(self, slot: int) -> None:
        """Overwrite the inputs of ``slot`` in lent memory, until ``release_inputs``."""
        self._hold(slot)
        for operand in self._input_slots(slot):
            self._arena(operand).raw(operand.offset, operand.offset + operand.nbytes).fill_(NAN_BYTES)
        self.settle()

    def release_inputs(self, slot: int) -> None:
        """Enqueue the copy of the inputs drawn for ``slot`` to lent memory."""
        given = tensors(list(self._given(slot)))
        for operand, tensor in zip(self._input_slots(slot), given, strict=True):
            self._tensor(operand).copy_(tensor)

    def _input_slots(self, slot: int) -> list[Slot]:
        return [s for s in self.layout.slots[slot] if s.role == Role.INPUT.value]

    def receive(self, slot: int, outputs: Outputs) -> None:
        """Copy a module's outputs to ``slot`` from where it made them; its runner is frozen. Raises OSError."""
        written, self._poisons[slot] = self._written_slots(slot), POISONS
        if len(outputs.addresses) != len(written):
            raise OSError(0, f"{len(outputs.addresses)} outputs instead of {len(written)}")
        for index, operand in enumerate(written):
            if operand.nbytes:
                outputs.copy_to(index, self._outputs.raw(operand.offset, operand.offset + operand.nbytes))
        self.settle()

    def take_outputs(self, slot: int, *, alone: bool) -> Taken:
        """The outputs of ``slot`` for their check; ``alone``: whether no other kernel writes there before."""
        return self._taker.take(self.outputs(slot), alone=alone)

    def copy_outputs(self, slot: int) -> list[torch.Tensor]:
        """Copies of the outputs of ``slot``, on the host where the plan says so."""
        return self._taker.copies(self.outputs(slot))

    def have_changed(self, slot: int, taken: Taken | None) -> bool:
        """Whether the outputs of ``slot`` differ from those that were left there."""
        return self._taker.have_changed(self.outputs(slot), taken)

    def close(self) -> None:
        """Free its memory at once: lent memory refers to this bed, which therefore lives until the next garbage collection."""
        self._held, self._known, self._model = [None] * self.slots, None, None
        self._weights.forget()
        self._inputs.close()
        self._written.close()

"""One workload set up on one device: lent memory, fresh secret inputs, poison, and the check of outputs. Imports torch.

Expected outputs are computed here, in the judge, and never written to lent memory.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from engine.domain.errors import DeviceError
from engine.domain.model import Device, Operand, Role
from engine.problem.reference import Reference
from engine.trial.judge.calibration import Calibration, Case, ReferenceOnCase, fresh_seed, output_names
from engine.trial.judge.perturbations import OWN, perturb
from engine.trial.judge.tolerance import CheckResult
from engine.trial.messages import ArenaHandle, Slot
from engine.trial.shared import arena
from engine.trial.shared.layout import Layout, nbytes, plan_layout

_PATTERN = 0xA5
_NAN_BYTES = 0xFF
"""All bits set: NaN in every floating type, −1 in every signed one."""
_POISONS = (_NAN_BYTES, 0x5B)
"""Fill bytes of outputs before a call, chosen at random: NaN or a large finite number, because either can be the right
output."""
_PLACES = 128
"""Elements per operand that a ``Watch`` withholds or reads: it detects a late write of 1 % of an output in 3 of 4 calls."""
_MOST_SLOTS = 8
_WIDE = 8
"""Bytes of an ``int64``."""
_SHARE = 0.02
"""Largest share of the device's memory (the machine's on a CPU) of one copy of all operands for which eight copies are made."""


@dataclass(frozen=True, slots=True)
class Findings:
    """The result of checking one call: the policy's ruling, or the rule of the trial that was broken."""

    ruling: CheckResult
    violation: str = ""


class Watch:
    """Detects work before the order or after the reply, while the kernel is not frozen.

    A few random elements of every input hold other values until the order to run, and a few random elements of every output
    are read right after the reply. Each takes a few microseconds.
    """

    def __init__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], rng: torch.Generator) -> None:
        self._withheld = [_Places(t, rng) for t in inputs if t.numel()]
        self._read_places = [_Places(t, rng) for t in outputs if t.numel()]
        self._withheld_values = [p.read() for p in self._withheld]
        self._values_at_reply: list[torch.Tensor] = []
        for places, right in zip(self._withheld, self._withheld_values, strict=True):
            places.write(right.roll(1))

    def before(self) -> None:
        """Restore the withheld values."""
        for places, right in zip(self._withheld, self._withheld_values, strict=True):
            places.write(right)
        if any(places.on_gpu for places in self._withheld):
            torch.cuda.synchronize()

    def after(self) -> None:
        """Read the sampled elements of the outputs."""
        self._values_at_reply = [places.read() for places in self._read_places]

    def outputs_changed(self) -> bool:
        """Whether something was written after the reply."""
        return not all(
            torch.equal(seen, places.read()) for seen, places in zip(self._values_at_reply, self._read_places, strict=True)
        )


class _Places:
    """A few random elements of a tensor, as bits."""

    def __init__(self, tensor: torch.Tensor, rng: torch.Generator) -> None:
        self._flat = tensor.view(-1).view(_WORDS.get(tensor.element_size(), torch.int64))
        self._where = torch.randint(self._flat.numel(), (_PLACES,), generator=rng).to(tensor.device)
        self.on_gpu = tensor.device.type != "cpu"

    def read(self) -> torch.Tensor:
        return torch.index_select(self._flat, 0, self._where)

    def write(self, values: torch.Tensor) -> None:
        self._flat.index_copy_(0, self._where, values)


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""Integers as wide as an element."""


class TestBed:
    """Arenas with several copies (slots) of every operand, refilled for each call. Raises DeviceError if they do not fit."""

    def __init__(self, reference: Reference, calibration: Calibration, device: Device) -> None:
        self.reference = reference
        self.calibration = calibration
        self.device = device.label
        self.signature = reference.signature()
        self._names = output_names(reference)
        self.slots = _slots(self.signature.operands, device)
        self.layout = plan_layout(self.signature.operands, self.slots)
        self._inputs = arena.lend(device.label, self.layout.input_bytes, writable=False)
        try:
            self._outputs = arena.lend(device.label, self.layout.output_bytes, writable=True)
        except DeviceError:
            self._inputs.close()
            raise
        self._inputs.raw(0, self.layout.input_bytes).fill_(_NAN_BYTES)
        self._model: nn.Module | None = None
        self._given: list[tuple[object, ...]] = [()] * self.slots
        self._poison = [_NAN_BYTES] * self.slots
        self._rng = torch.Generator().manual_seed(fresh_seed())
        self._guards = _gaps(self.layout)
        self.init_seed = 0
        self.new_model()
        if any(o.role is Role.INPUT and not getattr(torch, o.dtype).is_floating_point for o in self.signature.operands):
            self.refill(0)  # baselines are called once before a slot is filled; integers may be indices

    def new_model(self) -> None:
        """Fresh weights from a fresh seed, and intact guard regions, for the next process.

        Modules get the seed of the weights, because they construct their own. Seeds of inputs never leave the judge.
        """
        for gap in self._guards:
            self._outputs.raw(*gap).fill_(_PATTERN)
        self.init_seed = fresh_seed()
        self._model = self.reference.model(self.init_seed)
        weights = self.reference.arguments(self._model, ())
        for row in self.layout.slots:
            held = [s for s in row if s.role in (Role.PARAMETER.value, Role.BUFFER.value)]
            for operand, tensor in zip(held, weights, strict=True):
                self._inputs.tensor(operand).copy_(tensor)
        self.settle()

    def handles(self) -> tuple[tuple[ArenaHandle, Sequence[int]], tuple[ArenaHandle, Sequence[int]]]:
        """Handles of (inputs, outputs), each with the descriptors to send."""
        return self._inputs.handle(), self._outputs.handle()

    def draw(self, slot: int, distribution: str = OWN) -> None:
        """Draw inputs for ``slot`` from a fresh secret seed, in the judge's own memory."""
        self._given[slot] = perturb(self.reference.inputs(fresh_seed()), distribution)

    def release(self, slot: int) -> None:
        """Copy the inputs drawn for ``slot`` to lent memory, right before the call: nothing can be computed ahead."""
        assert self._model is not None
        arguments = self.reference.arguments(self._model, self._given[slot])
        for operand, tensor in zip(self._read_slots(slot), arguments, strict=True):
            self._inputs.tensor(operand).copy_(tensor)

    def refill(self, slot: int, distribution: str = OWN) -> None:
        """``draw`` and ``release``."""
        self.draw(slot, distribution)
        self.release(slot)

    def _read_slots(self, slot: int) -> list[Slot]:
        return [s for s in self.layout.slots[slot] if s.role != Role.OUTPUT.value]

    def _written_slots(self, slot: int) -> list[Slot]:
        return [s for s in self.layout.slots[slot] if s.role == Role.OUTPUT.value]

    def poison(self, slot: int) -> None:
        """Fill the outputs with poison to detect unwritten elements."""
        self._poison[slot] = secrets.choice(_POISONS)
        for operand in self._written_slots(slot):
            self._outputs.raw(operand.offset, operand.offset + operand.nbytes).fill_(self._poison[slot])
        self.settle()

    def settle(self) -> None:
        """Wait until the device has finished the judge's work."""
        if self.device != "cpu":
            torch.cuda.synchronize()

    def outputs(self, slot: int) -> list[torch.Tensor]:
        return [self._outputs.tensor(operand) for operand in self._written_slots(slot)]

    def expected(self, slot: int) -> Sequence[torch.Tensor]:
        """The reference's outputs for the current inputs of ``slot``: in float64, or eager's for an allclose policy."""
        assert self._model is not None
        if self.calibration.policy.against_eager:
            return self.reference.call(self._model, self._given[slot])
        return self.reference.exact(self._model, self._given[slot]).outputs

    def check(self, slot: int, distribution: str = OWN, outputs: Sequence[torch.Tensor] | None = None) -> Findings:
        """Judge the outputs of ``slot`` (or a copy of them made right after the call), its guard regions and its inputs."""
        actual = self.outputs(slot) if outputs is None else outputs
        expected = self.expected(slot)
        assert self._model is not None
        case_reference = ReferenceOnCase(self.reference, Case(self._model, self._given[slot], expected))
        ruling = self.calibration.policy.rule(actual, expected, self._names, distribution, case_reference)
        if not ruling.passed and (flaw := self._unwritten(actual, expected, self._poison[slot])):
            ruling = replace(ruling, errors=replace(ruling.errors, flaw=flaw))
        return Findings(ruling, self._violation(slot))

    def _unwritten(self, outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], poison: int) -> str:
        """A message on elements of a wrong output that still hold the poison; empty if there are none.

        Right outputs can equal the poison (a byte of 0x5B, −1, NaN); they are not reported as unwritten.
        """
        for output, reference, name in zip(outputs, expected, self._names, strict=True):
            if not output.numel():
                continue
            right = reference.to(output.dtype)
            untouched = (_rows(output) == poison).all(dim=1)
            untouched &= (_rows(output) != _rows(right)).any(dim=1) & ~(output.isnan() & right.isnan()).reshape(-1)
            if bool(untouched.any()):
                first = int(torch.nonzero(untouched)[0])
                return f"{name}: {int(untouched.sum())} of {output.numel()} elements not written, the first at {first}"
        return ""

    def _violation(self, slot: int) -> str:
        if flaw := self.trespass(slot):
            return flaw
        assert self._model is not None
        arguments = self.reference.arguments(self._model, self._given[slot])
        for operand, tensor in zip(self._read_slots(slot), arguments, strict=True):
            shared = self._inputs.tensor(operand)
            if not torch.equal(_bits(shared), _bits(tensor)):
                return f"changed its {operand.role} {operand.name}"
        return ""

    def trespass(self, slot: int) -> str:
        """A message on what was written outside the outputs (empty: nothing); restores the guard regions.

        Called right after a call, it attributes the write to that call's kernel.
        """
        # All guards, not only this slot's: a write far away must not be blamed on another kernel.
        touched = [gap for gap in self._guards if not bool((self._outputs.raw(*gap) == _PATTERN).all())]
        for gap in touched:
            self._outputs.raw(*gap).fill_(_PATTERN)
        if not touched:
            return ""
        for operand in self._written_slots(slot):
            end = operand.offset + operand.nbytes
            for gap in touched:
                if gap[0] == end:
                    return f"wrote past the end of its output {operand.name}"
                if gap[1] == operand.offset:
                    return f"wrote before the start of its output {operand.name}"
        return "wrote far outside its outputs"

    def watch(self, slot: int) -> Watch:
        """A watch for one judged call on ``slot``, to be created after ``release``; ``settle`` before the call."""
        inputs = [self._inputs.tensor(s) for s in self.layout.slots[slot] if s.role == Role.INPUT.value]
        return Watch(inputs, self.outputs(slot), self._rng)

    def copy_outputs(self, slot: int) -> list[torch.Tensor]:
        return [t.clone() for t in self.outputs(slot)]

    def jitter(self, slot: int, earlier: Sequence[torch.Tensor]) -> float:
        """The largest difference between two calls on the same inputs, in units of the output's scale; 0.0: bitwise equal."""
        worst = 0.0
        for now, before in zip(self.outputs(slot), earlier, strict=True):
            if torch.equal(_bits(now), _bits(before)):
                continue
            a, b = now.to(torch.float64), before.to(torch.float64)
            scale = b.abs() + b.norm() / max(1, b.numel()) ** 0.5 + 1e-300
            worst = max(worst, float(((a - b).abs() / scale).nan_to_num(nan=float("inf")).max()))
        return worst

    def close(self) -> None:
        self._inputs.close()
        self._outputs.close()


def _gaps(layout: Layout) -> list[tuple[int, int]]:
    """The guard regions of the output arena, of all slots: start and end in bytes."""
    written = [s for row in layout.slots for s in row if s.role == Role.OUTPUT.value]
    starts = [0, *(s.offset + s.nbytes for s in written)]
    ends = [*(s.offset for s in written), layout.output_bytes]
    return list(zip(starts, ends, strict=True))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """As integers: equal NaNs compare equal. As int64 where possible, which compares many times faster than bytes."""
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    whole = flat.numel() % _WIDE == 0 and flat.storage_offset() % _WIDE == 0
    return flat.view(torch.int64) if whole else flat


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of every element, one row each."""
    return tensor.contiguous().reshape(-1, 1).view(torch.uint8)


def operand_bytes(operands: Sequence[Operand]) -> int:
    """Bytes that a kernel must move: every operand read or written once."""
    return sum(nbytes(o) for o in operands)


def _slots(operands: Sequence[Operand], device: Device) -> int:
    """The number of copies of all operands: up to eight, fewer if they are large relative to the device's memory."""
    room = int(device.memory_bytes * _SHARE * _MOST_SLOTS)
    return max(1, min(_MOST_SLOTS, room // max(1, operand_bytes(operands))))

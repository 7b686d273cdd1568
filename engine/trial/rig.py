"""One workload set up on one device: lent memory, fresh secret inputs, poison, and the check of what came back. Imports torch.

The rig belongs to the judge. Expected outputs are computed here and never written to lent memory.
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
from engine.trial import lending
from engine.trial.calibration import Calibration, Case, Own, fresh_seed, names_of
from engine.trial.distributions import OWN, bend
from engine.trial.layout import Layout, nbytes, plan_layout
from engine.trial.policy import Ruling
from engine.trial.wire import ArenaLoan, Slot

_PATTERN = 0xA5
_NAN_BYTES = 0xFF
"""All bits set: NaN in every floating type, −1 in every signed one."""
_POISONS = (_NAN_BYTES, 0x5B)
"""What outputs are filled with before a call, by chance: NaN or a large finite number, for where one of them would be right."""
_PLACES = 128
"""Elements of every operand that a ``Watch`` withholds or looks at: 1 % of an output written late shows in 3 of 4 calls."""
_MOST_SLOTS = 8
_WIDE = 8
"""Bytes of an ``int64``."""
_SHARE = 0.02
"""Of the device's memory (of the machine's on a CPU) that one copy of everything lent may take, for there to be eight."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What the check of one call found: a ruling, or a rule of the trial that was broken."""

    ruling: Ruling
    violation: str = ""


class Watch:
    """Keeps a kernel from working ahead of its call or behind its answer, while it is not frozen yet or no longer.

    A few secret places of every input hold other values until the order to run is given, and a few secret places of every
    output are looked at the moment the answer is there. A few microseconds each.
    """

    def __init__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], chance: torch.Generator) -> None:
        self._withheld = [_Places(t, chance) for t in inputs if t.numel()]
        self._looked_at = [_Places(t, chance) for t in outputs if t.numel()]
        self._right = [p.read() for p in self._withheld]
        self._seen: list[torch.Tensor] = []
        for places, right in zip(self._withheld, self._right, strict=True):
            places.write(right.roll(1))

    def before(self) -> None:
        """Hand out what was withheld."""
        for places, right in zip(self._withheld, self._right, strict=True):
            places.write(right)
        if any(places.on_gpu for places in self._withheld):
            torch.cuda.synchronize()

    def after(self) -> None:
        """Look at the outputs."""
        self._seen = [places.read() for places in self._looked_at]

    def outputs_changed(self) -> bool:
        """Whether something was written after the answer."""
        return not all(torch.equal(seen, places.read()) for seen, places in zip(self._seen, self._looked_at, strict=True))


class _Places:
    """A few elements of a tensor by chance, as bits."""

    def __init__(self, tensor: torch.Tensor, chance: torch.Generator) -> None:
        self._flat = tensor.view(-1).view(_WORDS.get(tensor.element_size(), torch.int64))
        self._where = torch.randint(self._flat.numel(), (_PLACES,), generator=chance).to(tensor.device)
        self.on_gpu = tensor.device.type != "cpu"

    def read(self) -> torch.Tensor:
        return torch.index_select(self._flat, 0, self._where)

    def write(self, values: torch.Tensor) -> None:
        self._flat.index_copy_(0, self._where, values)


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""Integers as wide as an element."""


class Rig:
    """Arenas with several copies (slots) of every operand, filled afresh for each call. Raises DeviceError when they do not
    fit."""

    def __init__(self, reference: Reference, calibration: Calibration, device: Device) -> None:
        self.reference = reference
        self.calibration = calibration
        self.device = device.label
        self.signature = reference.signature()
        self._names = names_of(reference)
        self.slots = _slots(self.signature.operands, device)
        self.layout = plan_layout(self.signature.operands, self.slots)
        self._inputs = lending.lend(device.label, self.layout.input_bytes, writable=False)
        try:
            self._outputs = lending.lend(device.label, self.layout.output_bytes, writable=True)
        except DeviceError:
            self._inputs.close()
            raise
        self._inputs.raw(0, self.layout.input_bytes).fill_(_NAN_BYTES)
        self._model: nn.Module | None = None
        self._given: list[tuple[object, ...]] = [()] * self.slots
        self._poison = [_NAN_BYTES] * self.slots
        self._chance = torch.Generator().manual_seed(fresh_seed())
        self._guards = _gaps(self.layout)
        self.init_seed = 0
        self.new_model()
        if any(o.role is Role.INPUT and not getattr(torch, o.dtype).is_floating_point for o in self.signature.operands):
            self.refill(0)  # the baseline is called once before any slot is filled, and integers may be indices

    def new_model(self) -> None:
        """Fresh weights from a fresh seed and whole guards, for the next process. The seed of the weights is told to modules,
        which must construct their own; those of the inputs never leave the judge."""
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

    def loans(self) -> tuple[tuple[ArenaLoan, Sequence[int]], tuple[ArenaLoan, Sequence[int]]]:
        """(inputs, outputs), each with the descriptors to send."""
        return self._inputs.loan(), self._outputs.loan()

    def draw(self, slot: int, distribution: str = OWN) -> None:
        """Make fresh inputs from a fresh secret seed for ``slot``, in the judge's own memory."""
        self._given[slot] = bend(self.reference.inputs(fresh_seed()), distribution)

    def release(self, slot: int) -> None:
        """Let the kernel see what was drawn for ``slot``. Only right before it is called: nothing can be computed ahead."""
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
        """Fill the outputs with what no kernel writes, so that an unwritten element shows."""
        self._poison[slot] = secrets.choice(_POISONS)
        for operand in self._written_slots(slot):
            self._outputs.raw(operand.offset, operand.offset + operand.nbytes).fill_(self._poison[slot])
        self.settle()

    def settle(self) -> None:
        """Wait until the device has done what the judge asked of it."""
        if self.device != "cpu":
            torch.cuda.synchronize()

    def outputs(self, slot: int) -> list[torch.Tensor]:
        return [self._outputs.tensor(operand) for operand in self._written_slots(slot)]

    def expected(self, slot: int) -> Sequence[torch.Tensor]:
        """The reference's outputs for what ``slot`` was last filled with: float64, or eager's for an allclose policy."""
        assert self._model is not None
        if self.calibration.policy.against_eager:
            return self.reference.call(self._model, self._given[slot])
        return self.reference.exact(self._model, self._given[slot]).outputs

    def check(self, slot: int, distribution: str = OWN, outputs: Sequence[torch.Tensor] | None = None) -> Findings:
        """Judge the outputs of ``slot`` (or a copy of them made right after the call), its guard regions and its inputs."""
        made = self.outputs(slot) if outputs is None else outputs
        expected = self.expected(slot)
        assert self._model is not None
        here = Own(self.reference, Case(self._model, self._given[slot], expected))
        ruling = self.calibration.policy.rule(made, expected, self._names, distribution, here)
        if not ruling.passed and (flaw := self._unwritten(made, expected, self._poison[slot])):
            ruling = replace(ruling, errors=replace(ruling.errors, flaw=flaw))
        return Findings(ruling, self._violation(slot))

    def _unwritten(self, outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], poison: int) -> str:
        """Which elements of a wrong output still hold the poison where something else is expected: right answers can look like
        it (a byte of 0x5B, −1, NaN), and whoever reads that they are unwritten would look in the wrong place."""
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
            lent = self._inputs.tensor(operand)
            if not torch.equal(_bits(lent), _bits(tensor)):
                return f"changed its {operand.role} {operand.name}"
        return ""

    def trespass(self, slot: int) -> str:
        """What was written outside the outputs, in words, and made whole again; empty where nothing was. Looked at right after
        a call it tells of that one, whoever may be called next."""
        # All guards, not this slot's only: whoever writes far away must not have it laid at another kernel's door.
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
        """For one judged call on what was released for ``slot``; ``settle`` before the call."""
        inputs = [self._inputs.tensor(s) for s in self.layout.slots[slot] if s.role == Role.INPUT.value]
        return Watch(inputs, self.outputs(slot), self._chance)

    def copy_outputs(self, slot: int) -> list[torch.Tensor]:
        return [t.clone() for t in self.outputs(slot)]

    def jitter(self, slot: int, earlier: Sequence[torch.Tensor]) -> float:
        """Largest difference between two calls on the same bytes, in units of the output's scale; 0.0 is bitwise equal."""
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
    """The regions of the output arena that no output takes, of all slots: start and end in bytes."""
    written = [s for row in layout.slots for s in row if s.role == Role.OUTPUT.value]
    starts = [0, *(s.offset + s.nbytes for s in written)]
    ends = [*(s.offset for s in written), layout.output_bytes]
    return list(zip(starts, ends, strict=True))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """As integers, so that equal NaNs are equal; wide ones, which are compared many times faster than bytes."""
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    whole = flat.numel() % _WIDE == 0 and flat.storage_offset() % _WIDE == 0
    return flat.view(torch.int64) if whole else flat


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of every element, a row each."""
    return tensor.contiguous().reshape(-1, 1).view(torch.uint8)


def operand_bytes(operands: Sequence[Operand]) -> int:
    """Bytes that the work must move: every operand read or written once."""
    return sum(nbytes(o) for o in operands)


def _slots(operands: Sequence[Operand], device: Device) -> int:
    """How many copies of everything lent: eight where they are small beside the device's memory, at least one."""
    room = int(device.memory_bytes * _SHARE * _MOST_SLOTS)
    return max(1, min(_MOST_SLOTS, room // max(1, operand_bytes(operands))))

"""One workload set up on one device: lent memory, fresh secret inputs, poison, and the check of what came back. Imports torch.

The rig belongs to the judge. Expected outputs are computed here and never written to lent memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from engine.domain.errors import DeviceError
from engine.domain.model import Device, Operand, Role
from engine.problem.reference import Reference
from engine.trial import lending
from engine.trial.calibration import Calibration, fresh_seed, names_of
from engine.trial.distributions import OWN, bend
from engine.trial.layout import GUARD, nbytes, plan_layout
from engine.trial.policy import Ruling
from engine.trial.wire import ArenaLoan, Slot

_PATTERN = 0xA5
_NAN_BYTES = 0xFF
"""All bits set: NaN in every floating type, −1 in every signed one."""
_MOST_SLOTS = 8
_SHARE = 0.02
"""Of the device's memory (of the machine's on a CPU) that one copy of everything lent may take, for there to be eight."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What the check of one call found: a ruling, or a rule of the trial that was broken."""

    ruling: Ruling
    violation: str = ""


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
        self._outputs.raw(0, self.layout.output_bytes).fill_(_PATTERN)
        self._model: nn.Module | None = None
        self._given: list[tuple[object, ...]] = [()] * self.slots
        self.init_seed = 0
        self.new_model()

    def new_model(self) -> None:
        """Fresh weights from a fresh seed, for the next process. The seed of the weights is told to modules, which must
        construct their own; those of the inputs never leave the judge."""
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

    def refill(self, slot: int, distribution: str = OWN) -> None:
        """Fresh inputs from a fresh secret seed, and the present weights, into ``slot``."""
        assert self._model is not None
        given = bend(self.reference.inputs(fresh_seed()), distribution)
        self._given[slot] = given
        self._write(slot, self.reference.arguments(self._model, given))

    def _write(self, slot: int, arguments: Sequence[torch.Tensor]) -> None:
        for operand, tensor in zip(self._read_slots(slot), arguments, strict=True):
            self._inputs.tensor(operand).copy_(tensor)

    def _read_slots(self, slot: int) -> list[Slot]:
        return [s for s in self.layout.slots[slot] if s.role != Role.OUTPUT.value]

    def _written_slots(self, slot: int) -> list[Slot]:
        return [s for s in self.layout.slots[slot] if s.role == Role.OUTPUT.value]

    def poison(self, slot: int) -> None:
        """Fill the outputs with what no kernel writes, so that an unwritten element shows."""
        for operand in self._written_slots(slot):
            self._outputs.raw(operand.offset, operand.offset + operand.nbytes).fill_(_NAN_BYTES)
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
        ruling = self.calibration.policy.rule(made, self.expected(slot), self._names, distribution)
        return Findings(ruling, self._violation(slot))

    def _violation(self, slot: int) -> str:
        for operand in self._written_slots(slot):
            end = operand.offset + operand.nbytes
            for where, region in (("before", (operand.offset - GUARD, operand.offset)), ("past", (end, end + GUARD))):
                guard = self._outputs.raw(*region)
                if not bool((guard == _PATTERN).all()):
                    guard.fill_(_PATTERN)
                    return f"wrote {where} the end of its output {operand.name}".replace("before the end", "before the start")
        assert self._model is not None
        arguments = self.reference.arguments(self._model, self._given[slot])
        for operand, tensor in zip(self._read_slots(slot), arguments, strict=True):
            lent = self._inputs.tensor(operand)
            if not torch.equal(_bits(lent), _bits(tensor)):
                return f"changed its {operand.role} {operand.name}"
        return ""

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


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def operand_bytes(operands: Sequence[Operand]) -> int:
    """Bytes that the work must move: every operand read or written once."""
    return sum(nbytes(o) for o in operands)


def _slots(operands: Sequence[Operand], device: Device) -> int:
    """How many copies of everything lent: eight where they are small beside the device's memory, at least one."""
    room = int(device.memory_bytes * _SHARE * _MOST_SLOTS)
    return max(1, min(_MOST_SLOTS, room // max(1, operand_bytes(operands))))

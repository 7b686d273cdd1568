"""A kernel for one workload and device: what its compiler is asked for, and how its plan is launched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from engine.domain.errors import KernelCodeError
from engine.domain.model import Contract, Device, Dialect, Number, Signature, Workload, WorkloadChoice
from engine.problem import header
from engine.toolchain import resolution
from engine.toolchain.build import BuildRequest
from engine.toolchain.dispatch import is_dispatch, parse_dispatch
from engine.toolchain.kernel_file import KernelCode
from engine.toolchain.plan import parse_plan
from engine.toolchain.triton.plan import parse_triton_plan
from engine.toolchain.triton.resolution import ResolvedTriton, encode_jobs, resolve_triton
from engine.toolchain.tunables import default_values, parse_tunables


@dataclass(frozen=True, slots=True)
class KernelBuild:
    """A kernel with the values of its tunables, for the operands of one workload on one device."""

    code: KernelCode
    tunables: Mapping[str, int]
    signature: Signature
    workload: str
    device: Device

    def request(self) -> BuildRequest:
        """Raises KernelCodeError for a Triton plan that cannot be resolved, ProblemError for an operand without a C type."""
        match self.code.dialect:
            case Dialect.PYTHON:
                text = ""
            case Dialect.TRITON:
                text = encode_jobs(self._triton().jobs)
            case _:
                text = header.render(self.signature, self.code.dialect, self.workload)
        code = self.code
        return BuildRequest(code.text, code.dialect, code.contract, text, self.tunables, self.device.arch, code.name)

    def plan(self) -> bytes:
        """The resolved launch plan, encoded; empty for other contracts. Raises KernelCodeError."""
        if self.code.contract is not Contract.PLAN:
            return b""
        if self.code.dialect is Dialect.TRITON:
            return resolution.encode(self._triton().plan)
        return resolution.encode(resolution.resolve(parse_plan(self.code.text), self._names(), self.signature.operands))

    def _triton(self) -> ResolvedTriton:
        return resolve_triton(parse_triton_plan(self.code.text), self._names(), self.signature.operands)

    def _names(self) -> dict[str, Number]:
        return {**header.plan_names(self.signature, self.device.units), **self.tunables}


def for_shape(
    code: KernelCode, tunables: Mapping[str, int], workload: Workload, signature: Signature
) -> tuple[KernelCode, Mapping[str, int]]:
    """The code that is built for a workload, and its tunables: of a dispatch, those of a member; else as given.

    Raises KernelCodeError for a dispatch that decides by settings which the workload lacks.
    """
    if not is_dispatch(code.text, code.dialect):
        return code, tunables
    choice = parse_dispatch(code.text, code.dialect).choose({**signature.constants, **workload.settings})
    member = choice.member
    declared = default_values(parse_tunables(member.code, code.dialect))
    if unknown := [name for name in choice.tunables if name not in declared]:
        raise KernelCodeError(f"member {member.name} of the dispatch declares no tunable {unknown[0]!r}")
    return replace(code, text=member.code, name=f"{member.name}{code.dialect.suffix}"), {**declared, **choice.tunables}


def choices(code: KernelCode, workloads: Sequence[Workload]) -> tuple[WorkloadChoice, ...]:
    """Of a dispatch: the member and its tunables for each workload that states what decides; empty for other kernels.

    Raises KernelCodeError for a malformed dispatch.
    """
    if not is_dispatch(code.text, code.dialect):
        return ()
    dispatch = parse_dispatch(code.text, code.dialect)
    stated = [one for one in workloads if all(name in one.settings for name in dispatch.settings)]
    found = ((one.name, dispatch.choose(one.settings)) for one in stated)
    return tuple(WorkloadChoice(name, choice.member.name, choice.tunables) for name, choice in found)

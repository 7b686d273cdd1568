"""A session's facts as text for a prompt: problem, workload, tolerance, device, limits, kernels with their evidence. Pure.

Leaves out what no author may know: hold-out shapes, which verdicts name, and seeds, which no state holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from engine.domain import bottleneck, instruction_mix, predictions, profile, queries
from engine.domain.model import Device, FailureKind, Interval, Measurement, PrecisionClass, Resources
from engine.domain.preparation import Preparation
from engine.domain.state import Kernel, SessionState, Stage
from engine.ideas.prompts.templates import fenced, part

NOTHING = "None."
_MAX_CODE = 60_000
_MAX_LOG = 6_000
_LOG_LINES = 80
_REMARK_LINES = 24
_FAMILIES = 12
_HOLDOUT = re.compile(r"on hold-out shape [^:\n]*")
_ERROR = re.compile(r"\b(?:error|fatal|undefined|mismatch|Traceback)\b", re.IGNORECASE)
_SM_LIMITS = {
    "80": (164, 163, 2048), "86": (100, 99, 1536), "89": (100, 99, 1536), "90": (228, 227, 2048), "100": (228, 227, 2048),
    "120": (100, 99, 1536),
}  # fmt: skip
"""Compute capability → KiB of shared memory per multiprocessor, KiB per block, threads per multiprocessor."""


def setting(state: SessionState) -> str:
    """The part of a prompt that is the same throughout a session: problem, workload, tolerance, device, roofline."""
    assert state.opened is not None
    return part(
        "setting",
        problem=f"{state.opened.problem.name}: {state.opened.problem.title}",
        reference=fenced(state.opened.problem.reference, "python"),
        workload=workload_facts(state),
        tolerance=tolerance(state),
        device=device_facts(state.device) if state.device else NOTHING,
        roofline=roofline(state),
    )


def workload_facts(state: SessionState) -> str:
    """Shapes, element types and constants of the measured workload only."""
    assert state.opened is not None
    measured = state.opened.problem.workload(state.opened.settings.workload)
    settings = ", ".join(f"{k} = {v:g}" for k, v in measured.settings.items()) if measured else ""
    lines = [f"`{state.opened.settings.workload}`" + (f": {settings}" if settings else "")]
    if state.preparation is not None:
        signature = state.preparation.signature
        lines += [f"- {o.name}: {o.role.value}, {_shape(o.shape)}, {o.dtype}" for o in signature.operands]
        if signature.constants:
            lines.append("- constants: " + ", ".join(f"{k} = {v}" for k, v in signature.constants.items()))
    return "\n".join(lines)


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(str(extent) for extent in shape) or "one value"


def tolerance(state: SessionState) -> str:
    """The allowed error, and the allowed precision class."""
    if state.preparation is None:
        return NOTHING
    gate = state.preparation.gate
    if not gate.policy.startswith("class"):
        return "\n".join([f"Policy {gate.policy}: outputs are compared with eager PyTorch's, element by element.", *gate.notes])
    lines = [
        f"Policy {gate.policy}: outputs are compared with the reference in float64. The centred relative Frobenius error may "
        f"be {gate.rel_fro_limit:.2g} at most, that of one element {gate.max_scaled_limit:.2g} in units of its scale."
    ]
    own = ", ".join(f"{name} {errors.rel_fro:.1g}" for name, errors in gate.classes.items())
    if own:
        lines.append(f"What the reference's own arithmetic errs in each class of precision: {own}.")
    if gate.allowed is PrecisionClass.EXACT:
        lines.append("Outputs must agree bit for bit.")
    else:
        lines.append(f"Arithmetic of class {gate.allowed.value} or better is allowed.")
    return "\n".join([*lines, *gate.notes])


def device_facts(device: Device) -> str:
    """The device, and the limits of its architecture where they are known."""
    if device.kind != "cuda":
        return (
            f"{device.name} ({device.arch}), {device.units} cores lent to a kernel, "
            f"{_bytes(device.cache_bytes)} last-level cache, {_bytes(device.memory_bytes)} memory; {device.software}"
        )
    facts = (
        f"{device.name} ({device.arch}), {device.units} multiprocessors, {_bytes(device.cache_bytes)} L2 cache, "
        f"{_bytes(device.memory_bytes)} memory; {device.software}"
    )
    limits = _SM_LIMITS.get(device.arch.removeprefix("sm_").rstrip("af"))
    if limits is None:
        return facts
    shared, block, threads = limits
    return (
        f"{facts}\nEach multiprocessor: {shared} KiB shared memory ({block} KiB a block at most), 65536 registers, "
        f"{threads} threads; a block has 1024 threads and a thread 255 registers at most."
    )


def _bytes(size: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size} bytes"


def roofline(state: SessionState) -> str:
    """The speed of light for this workload, and the baselines."""
    preparation = state.preparation
    if preparation is None:
        return NOTHING
    rates = ", ".join(f"{rate / 1e12:.3g} T/s {unit}" for unit, rate in preparation.peaks.operations_per_s.items())
    lines = [
        f"- moved at least: {preparation.bytes_moved / 1e6:.4g} MB; operations: {preparation.signature.operations / 1e9:.4g} G "
        f"({preparation.signature.unit})",
        f"- measured peaks: {preparation.peaks.copy_bytes_per_s / 1e9:.4g} GB/s copied" + (f"; {rates}" if rates else ""),
        f"- speed of light: {preparation.floor_us:.4g} us, bound by {preparation.bound}",
    ]
    return "\n".join([*lines, *_baselines(state, preparation), *(f"- {note}" for note in preparation.notes)])


def _baselines(state: SessionState, preparation: Preparation) -> Iterator[str]:
    ranking = queries.ranking_baseline(state)
    for name, measured in preparation.baselines.items():
        mark = " (speedups are over this one)" if name == ranking else ""
        yield f"- baseline {name}: {measured.time_us.value:.4g} us{mark}"


def kernel_facts(state: SessionState, kernel: Kernel, code: str, remarks: str = "") -> str:
    """One kernel with its code, measurements and the resources of its machine code; ``remarks`` are its compiler's."""
    idea = state.ideas.get(kernel.idea)
    lines = [f"## {kernel.id}: {idea.text.title if idea else kernel.name}", ""]
    lines += [f"- {line}" for line in evidence(state, kernel)]
    if remarks.strip():
        lines += ["", "What the compiler remarks:", "", fenced(head(remarks, _REMARK_LINES, _MAX_LOG))]
    return "\n".join([*lines, "", fenced(_bounded(code), kernel.dialect.value)])


def evidence(state: SessionState, kernel: Kernel) -> Iterator[str]:
    """Everything measured about a kernel, one line each."""
    yield f"{kernel.dialect.value}, contract {kernel.contract.value}, child of {kernel.parent or 'none'}"
    if kernel.tunables:
        yield "tunables: " + ", ".join(f"{name} = {value}" for name, value in kernel.tunables.items())
    if kernel.measurement is not None and kernel.stage is Stage.MEASURED:
        yield from _measured(state, kernel, kernel.measurement)
    elif kernel.failure is not None:
        yield f"failed ({kernel.failure.kind.value}): {without_holdouts(kernel.failure.reason)}"
    for use in kernel.resources:
        yield _resources(use)
    light = kernel.measurement.light if kernel.measurement is not None and kernel.stage is Stage.MEASURED else None
    if kernel.instructions:
        yield _mix(kernel.instructions)
    if kernel.profile is not None and kernel.profile.tool:
        parent = state.kernels.get(kernel.parent or "")
        moved = profile.line(kernel.profile, parent.profile if parent else None)
        yield f"the device's counters, in brackets those of its parent: {moved}"
        if words := bottleneck.summary(kernel.profile, state.preparation.bytes_moved if state.preparation else 0):
            yield f"the counters in short: {words}"
    if words := instruction_mix.summary(kernel.resources, kernel.instructions, light, before=_parent_mix(state, kernel)):
        yield f"in short: {words}"
    if kernel.verification is not None:
        proof = kernel.verification
        yield (
            f"error {proof.rel_fro:.2g} of {proof.rel_fro_limit:.2g} allowed (class {proof.precision_class.value}); "
            f"other shapes: {proof.holdouts}"
        )


def _measured(state: SessionState, kernel: Kernel, measured: Measurement) -> Iterator[str]:
    yield f"time {measured.time_us.value:.4g} us ({measured.time_us.low:.4g} to {measured.time_us.high:.4g}), {measured.depth}"
    speedups = [f"{factor(value)} over {name}" for name, value in measured.speedup.items()]
    over_parent = predictions.gain(state, kernel)
    if over_parent is not None:
        speedups.append(f"{factor(over_parent)} over its parent {kernel.parent}")
    if speedups:
        yield "speedup " + ", ".join(speedups)
    if measured.light is not None:
        yield f"{measured.light.fraction:.0%} of the speed of light, bound by {measured.light.bound}"
    if measured.conditions:
        yield "conditions: " + ", ".join(measured.conditions)


def _resources(use: Resources) -> str:
    stack = f", {use.stack_bytes} bytes of stack" if use.stack_bytes else ""
    return f"{use.function}: {use.registers} registers, {use.shared_bytes} bytes shared, {use.spill_bytes} bytes spilled{stack}"


def _mix(counts: Mapping[str, int]) -> str:
    """The most frequent instruction families of the machine code, as recorded."""
    families = sorted((name for name in counts if name != "total"), key=lambda name: (-counts[name], name))
    told = ", ".join(f"{counts[name]} {name}" for name in families[:_FAMILIES]) or "none of a known family"
    return f"instructions as they stand in the code: {counts.get('total', 0)}, of them {told}"


def _parent_mix(state: SessionState, kernel: Kernel) -> Mapping[str, int] | None:
    """The parent's instruction counts, where both are known, of one dialect and for the same device."""
    parent = state.kernels.get(kernel.parent or "")
    if parent is None or not parent.instructions or (parent.dialect, parent.epoch) != (kernel.dialect, kernel.epoch):
        return None
    return parent.instructions


def factor(value: Interval) -> str:
    """A speedup with its interval, e.g. ``1.31x (1.28 to 1.34)``."""
    return f"{value.value:.3g}x ({value.low:.3g} to {value.high:.3g})"


def failure(kind: FailureKind, reason: str, log: str) -> str:
    """Why a kernel failed, with the log from its first error on: later ones mostly follow from it."""
    words = f"{kind.value}: {without_holdouts(reason)}"
    if _HOLDOUT.search(reason) or not log.strip():
        return words
    return f"{words}\n\n{fenced(_from_first_error(log))}"


def _from_first_error(log: str) -> str:
    lines = log.splitlines()
    first = next((n for n, line in enumerate(lines) if _ERROR.search(line)), 0)
    return head(without_holdouts("\n".join(lines[max(0, first - 2) :])), _LOG_LINES, _MAX_LOG)


def without_holdouts(text: str) -> str:
    """The text without the sizes of hold-out shapes, which no author may know."""
    return _HOLDOUT.sub("on a shape that is not shown", text)


def head(text: str, lines: int, characters: int) -> str:
    """The beginning of a text, with a note on how much is left out."""
    kept = "\n".join(text.splitlines()[:lines])[:characters]
    left = len(text.splitlines()) - len(kept.splitlines())
    return f"{kept}\n... and {left} lines more" if left > 0 else kept


def _bounded(code: str) -> str:
    if len(code) <= _MAX_CODE:
        return code
    return f"{code[:_MAX_CODE]}\n... cut here: {len(code) - _MAX_CODE} characters more"

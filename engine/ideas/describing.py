"""What a session knows, in words for a prompt: problem, workload, tolerance, device, limits, kernels with their evidence. Pure.

Never says what no author may know: hold-out shapes, wherever a verdict names them, and seeds, which no state holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from engine.build.inspection import summary
from engine.domain import bottleneck, predictions, profile, queries
from engine.domain.model import Device, Dialect, FailureKind, Interval, Measurement, PrecisionClass, Resources
from engine.domain.preparation import Preparation
from engine.domain.state import Kernel, SessionState, Stage
from engine.ideas.prompting import fenced, part

LANGUAGES = {Dialect.CUDA: "cuda", Dialect.CPP: "cpp", Dialect.PYTHON: "python"}
"""What the code fence of each dialect is called."""

NOTHING = "None."
_LARGEST_SOURCE = 60_000
_LONGEST_LOG = 6_000
_LINES_OF_LOG = 80
_LINES_OF_REMARKS = 24
_FAMILIES = 12
_HOLDOUT = re.compile(r"on hold-out shape [^:\n]*")
_ERROR = re.compile(r"\b(?:error|fatal|undefined|mismatch|Traceback)\b", re.IGNORECASE)
_SM_LIMITS = {
    "80": (164, 163, 2048), "86": (100, 99, 1536), "89": (100, 99, 1536), "90": (228, 227, 2048), "100": (228, 227, 2048),
    "120": (100, 99, 1536),
}  # fmt: skip
"""Compute capability → KiB of shared memory a multiprocessor, KiB a block, threads a multiprocessor."""


def setting(state: SessionState) -> str:
    """The part of a prompt that stays the same through a session: what is asked, where, and what binds."""
    assert state.opened is not None
    return part(
        "setting",
        problem=f"{state.opened.problem.name}: {state.opened.problem.title}",
        reference=fenced(state.opened.problem.reference, "python"),
        workload=workload(state),
        tolerance=tolerance(state),
        device=device(state.device) if state.device else NOTHING,
        roofline=roofline(state),
    )


def workload(state: SessionState) -> str:
    """Shapes, element types and constants of the workload that is measured, and of no other."""
    assert state.opened is not None
    found = state.opened.problem.workload(state.opened.settings.workload)
    settings = ", ".join(f"{k} = {v:g}" for k, v in found.settings.items()) if found else ""
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
    """What error is allowed, and by which class of arithmetic."""
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


def device(found: Device) -> str:
    """What the device is, and what its architecture allows where that is known."""
    if found.kind != "cuda":
        return (
            f"{found.name} ({found.arch}), {found.units} cores lent to a kernel, {_bytes(found.cache_bytes)} last-level cache, "
            f"{_bytes(found.memory_bytes)} memory; {found.software}"
        )
    said = (
        f"{found.name} ({found.arch}), {found.units} multiprocessors, {_bytes(found.cache_bytes)} L2 cache, "
        f"{_bytes(found.memory_bytes)} memory; {found.software}"
    )
    limits = _SM_LIMITS.get(found.arch.removeprefix("sm_").rstrip("af"))
    if limits is None:
        return said
    shared, block, threads = limits
    return (
        f"{said}\nEach multiprocessor: {shared} KiB shared memory ({block} KiB a block at most), 65536 registers, "
        f"{threads} threads; a block has 1024 threads and a thread 255 registers at most."
    )


def _bytes(size: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size} bytes"


def roofline(state: SessionState) -> str:
    """The speed of light for this workload, and the baselines."""
    found = state.preparation
    if found is None:
        return NOTHING
    rates = ", ".join(f"{rate / 1e12:.3g} T/s {unit}" for unit, rate in found.peaks.operations_per_s.items())
    lines = [
        f"- moved at least: {found.bytes_moved / 1e6:.4g} MB; operations: {found.signature.operations / 1e9:.4g} G "
        f"({found.signature.unit})",
        f"- measured peaks: {found.peaks.copy_bytes_per_s / 1e9:.4g} GB/s copied" + (f"; {rates}" if rates else ""),
        f"- speed of light: {found.floor_us:.4g} us, bound by {found.bound}",
    ]
    return "\n".join([*lines, *_baselines(state, found), *(f"- {note}" for note in found.notes)])


def _baselines(state: SessionState, found: Preparation) -> Iterator[str]:
    ranking = queries.ranking_baseline(state)
    for name, measured in found.baselines.items():
        mark = " (speedups are over this one)" if name == ranking else ""
        yield f"- baseline {name}: {measured.time_us.value:.4g} us{mark}"


def kernel(state: SessionState, found: Kernel, source: str, remarks: str = "") -> str:
    """One kernel with its source, measurements and what its machine code uses; ``remarks`` are its compiler's."""
    idea = state.ideas.get(found.idea)
    lines = [f"## {found.id}: {idea.text.title if idea else found.name}", ""]
    lines += [f"- {line}" for line in evidence(state, found)]
    if remarks.strip():
        lines += ["", "What the compiler remarks:", "", fenced(head(remarks, _LINES_OF_REMARKS, _LONGEST_LOG))]
    return "\n".join([*lines, "", fenced(_bounded(source), LANGUAGES[found.dialect])])


def evidence(state: SessionState, found: Kernel) -> Iterator[str]:
    """What was found out about a kernel, a line each."""
    yield f"{found.dialect.value}, contract {found.contract.value}, child of {found.parent or 'none'}"
    if found.tunables:
        yield "tunables: " + ", ".join(f"{name} = {value}" for name, value in found.tunables.items())
    if found.measurement is not None and found.stage is Stage.MEASURED:
        yield from _measured(state, found, found.measurement)
    elif found.failure is not None:
        yield f"failed ({found.failure.kind.value}): {discreet(found.failure.reason)}"
    for use in found.resources:
        yield _resources(use)
    light = found.measurement.light if found.measurement is not None and found.stage is Stage.MEASURED else None
    if found.instructions:
        yield _mix(found.instructions)
    if found.profile is not None and found.profile.tool:
        parent = state.kernels.get(found.parent or "")
        moved = profile.line(found.profile, parent.profile if parent else None)
        yield f"the device's counters, in brackets those of its parent: {moved}"
        if said := bottleneck.summary(found.profile, state.preparation.bytes_moved if state.preparation else 0):
            yield f"the counters in short: {said}"
    if words := summary(found.resources, found.instructions, light, before=_mix_before(state, found)):
        yield f"in short: {words}"
    if found.verification is not None:
        proof = found.verification
        yield (
            f"error {proof.rel_fro:.2g} of {proof.rel_fro_limit:.2g} allowed (class {proof.precision_class.value}); "
            f"other shapes: {proof.holdouts}"
        )


def _measured(state: SessionState, found: Kernel, measured: Measurement) -> Iterator[str]:
    yield f"time {measured.time_us.value:.4g} us ({measured.time_us.low:.4g} to {measured.time_us.high:.4g}), {measured.depth}"
    speedups = [f"{factor(value)} over {name}" for name, value in measured.speedup.items()]
    over_parent = predictions.gain(state, found)
    if over_parent is not None:
        speedups.append(f"{factor(over_parent)} over its parent {found.parent}")
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
    """The families that the machine code holds most of. From the record alone: the same on every machine."""
    families = sorted((name for name in counts if name != "total"), key=lambda name: (-counts[name], name))
    told = ", ".join(f"{counts[name]} {name}" for name in families[:_FAMILIES]) or "none of a known family"
    return f"instructions as they stand in the code: {counts.get('total', 0)}, of them {told}"


def _mix_before(state: SessionState, found: Kernel) -> Mapping[str, int] | None:
    """The parent's mix, where the two can be compared: read, of one dialect, tried on the same device."""
    parent = state.kernels.get(found.parent or "")
    if parent is None or not parent.instructions or (parent.dialect, parent.epoch) != (found.dialect, found.epoch):
        return None
    return parent.instructions


def factor(value: Interval) -> str:
    """A speedup with its interval, e.g. ``1.31x (1.28 to 1.34)``."""
    return f"{value.value:.3g}x ({value.low:.3g} to {value.high:.3g})"


def failure(kind: FailureKind, reason: str, log: str) -> str:
    """Why an attempt failed, with the first that its compiler or its verifier said: what comes after is mostly consequence."""
    said = f"{kind.value}: {discreet(reason)}"
    if _HOLDOUT.search(reason) or not log.strip():
        return said
    return f"{said}\n\n{fenced(_from_first_error(log))}"


def _from_first_error(log: str) -> str:
    lines = log.splitlines()
    first = next((n for n, line in enumerate(lines) if _ERROR.search(line)), 0)
    return head(discreet("\n".join(lines[max(0, first - 2) :])), _LINES_OF_LOG, _LONGEST_LOG)


def discreet(text: str) -> str:
    """Without the sizes of hold-out shapes, which verdicts name and no author may know."""
    return _HOLDOUT.sub("on a shape that is not shown", text)


def head(text: str, lines: int, characters: int) -> str:
    """The beginning of a text, with a word about what is left out."""
    kept = "\n".join(text.splitlines()[:lines])[:characters]
    left = len(text.splitlines()) - len(kept.splitlines())
    return f"{kept}\n... and {left} lines more" if left > 0 else kept


def _bounded(source: str) -> str:
    if len(source) <= _LARGEST_SOURCE:
        return source
    return f"{source[:_LARGEST_SOURCE]}\n... cut here: {len(source) - _LARGEST_SOURCE} characters more"

"""A session's facts as text for a prompt: problem, workload, tolerance, device, roofline, measured kernels. Pure.

Hides the sizes of hold-out shapes, which verdicts name. Seeds are not part of a state.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

from engine.domain import (
    bottleneck,
    columns,
    corroboration,
    hot_code,
    instruction_mix,
    predictions,
    profile,
    python_syntax,
    queries,
    suite,
)
from engine.domain.figure_text import exact, ratio_figures
from engine.domain.mismatch import Mismatch
from engine.domain.mismatch_words import prompt_lines
from engine.domain.model import Device, FailureKind, Interval, Measurement, Number, PrecisionClass, Resources
from engine.domain.preparation import Preparation
from engine.domain.state import Kernel, SessionState, Stage
from engine.ideas.prompts import hardware
from engine.ideas.prompts.templates import fenced, part
from engine.problem import names

NOTHING = "None."
_MAX_CODE = 60_000
_MAX_LOG = 6_000
_LOG_LINES = 80
_REMARK_LINES = 24
_FAMILIES = 12
_HOLDOUT = re.compile(r"on hold-out shape [^:\n]*")
_COUNT = re.compile(r"\b\d+ of \d+\b")
_PLACE = re.compile(r", the first at \d+")
_KNOWN = re.compile(r"^ptxas info|bytes stack frame, 0 bytes spill stores, 0 bytes spill loads")
_ERROR = re.compile(r"\b(?:error|fatal|undefined|mismatch|Traceback)\b", re.IGNORECASE)
_SM_LIMITS = {
    "80": (164, 163, 2048), "86": (100, 99, 1536), "89": (100, 99, 1536), "90": (228, 227, 2048), "100": (228, 227, 2048),
    "120": (100, 99, 1536),
}  # fmt: skip
"""Compute capability → KiB of shared memory per multiprocessor, KiB per block, threads per multiprocessor."""
PERTURBED: Mapping[str, str] = {
    "unequal": "inputs that always hold one number hold different ones",
    "x64": "", "x-64": "", "x0.001": "", "negated": "", "ties": "many equal elements", "zeros": "many zeros",
    "ones": "many elements 1 or −1", "copies": "rows of one input in another",
    "zero slices": "some rows all zeros",
    "denormals": "", "shifted": "a constant added", "lowered": "a constant subtracted",
    "shifted by 8": "", "lowered by 8": "", "raised": "a large constant added", "sunk": "a large constant subtracted",
    "edges": "large values at both ends of a dimension", "edges x5": "larger values at both ends of a dimension",
    "rising ends": "the first place of each dimension smallest, the last largest", "falling ends": "the reverse",
    "near one": "",
    "alternating": "signs alternate",
    "blocks": "blocks of random sign and size", "spiked": "some elements larger", "outliers": "some elements far larger",
    "few": "single elements far larger", "few x30": "single elements far larger", "few x5": "single elements larger",
    "few zeros": "single elements 0", "few ones": "single elements 1 or −1", "equal rows": "some rows equal others",
    "graded": "one input larger where another is smaller, along a dimension that they share", "infinities": "", "NaN": "",
    "opposed": "some inputs with a constant added, the others with one subtracted",
    "thresholds": "some elements are numbers that the reference compares with",
}  # fmt: skip
"""Perturbation of the inputs → what it does; empty where the name says it."""


def setting(state: SessionState, *, operands: bool = True) -> str:
    """The part of a prompt that stays the same during a session: problem, workload, tolerance, device, roofline.

    ``operands``: whether the workload lists them; a prompt for code has them in its skeleton and in ``problem.h``.
    """
    assert state.opened is not None
    return part(
        "setting",
        problem=f"{state.opened.problem.name}: {state.opened.problem.title}",
        reference=fenced(state.opened.problem.reference, "python"),
        workload=workload_facts(state, operands=operands),
        tolerance=tolerance(state),
        device=device_facts(state.device) if state.device else NOTHING,
        roofline=roofline(state),
    )


def workload_facts(state: SessionState, *, operands: bool = True) -> str:
    """The measured workload: its settings, and shapes, element types and constants."""
    assert state.opened is not None
    measured = state.opened.problem.workload(state.opened.settings.workload)
    settings = ", ".join(f"{k} = {exact(v)}" for k, v in measured.settings.items()) if measured else ""
    lines = [f"`{state.opened.settings.workload}`" + (f": {settings}" if settings else "")]
    if measured is not None and (overridden := _overridden(state.opened.problem.reference, measured.settings)):
        lines.append(f"- these values replace those in the reference's text: {overridden}")
    if operands and state.preparation is not None:
        signature = state.preparation.signature
        for o in signature.operands:
            note = names.instead_of(o.name, signature.constants)
            lines.append(f"- {o.name}: {o.role.value}, {_shape(o.shape)}, {o.dtype}{note and f', {note}'}")
        if signature.constants:
            lines.append("- constants: " + ", ".join(f"{k} = {v}" for k, v in signature.constants.items()))
    return "\n".join([*_suite_facts(state), *lines])


def _suite_facts(state: SessionState) -> Iterator[str]:
    """The workloads of a suite, with their baselines and floors; nothing for a single workload."""
    members = columns.workloads(state)
    if state.opened is None or len(members) < 2:
        return
    prepared = {one.workload: one for one in state.preparation.by_workload} if state.preparation else {}
    base = queries.ranking_baseline(state)
    yield (
        f"Suite `{state.opened.settings.suite}`: the kernel is compiled once for each of these {len(members)} workloads, with "
        "that workload's constants in problem.h, must be right on all, and is ranked by the geometric mean of its speedups."
    )
    for name, settings in suite.distinct(members).items():
        known = prepared.get(name)
        time = known.baselines.get(base) if known is not None else None
        costs = [f"{base} {time.value:.4g} us"] if time is not None else []
        costs += [f"SOL {known.floor_us:.4g} us, bound by {known.bound}"] if known is not None else []
        shape = ", ".join(f"{key} = {exact(value)}" for key, value in settings.items())
        yield f"- `{name}`: {'; '.join(filter(None, (shape, *costs)))}"
    yield "Operands and constants of the first workload:"


def _overridden(reference: str, settings: Mapping[str, Number]) -> str:
    """The constants at the top of the reference that the workload sets to another value, with both values."""
    try:
        statements = python_syntax.parse(reference).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    written: dict[str, object] = {}
    for one in statements:
        if isinstance(one, ast.Assign) and isinstance(one.value, ast.Constant):
            written.update({name.id: one.value.value for name in one.targets if isinstance(name, ast.Name)})
    changed = [(name, written[name], value) for name, value in settings.items() if name in written and written[name] != value]
    return ", ".join(f"{name} = {exact(value)} instead of {before}" for name, before, value in changed)


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(str(extent) for extent in shape) or "scalar"


def tolerance(state: SessionState) -> str:
    """The tolerance and the allowed precision class."""
    if state.preparation is None:
        return NOTHING
    gate = state.preparation.gate
    if not gate.policy.startswith("class"):
        return "\n".join([f"Policy {gate.policy}: every output element is compared with eager PyTorch's.", *gate.notes])
    lines = [
        f"Policy {gate.policy}: outputs o are compared with the float64 reference r. Limits: {gate.rel_fro_limit:.2g} for the "
        f"centred relative Frobenius error ‖o - r‖ / ‖r - mean(r)‖, {gate.max_scaled_limit:.2g} for the error of one element "
        "divided by |r| + rms(r - mean(r))."
    ]
    own = ", ".join(f"{name} {errors.rel_fro:.1g}" for name, errors in gate.classes.items())
    if own:
        lines.append(f"Reference error by precision class: {own}.")
    if gate.allowed is PrecisionClass.EXACT:
        lines.append("Outputs must agree bit for bit.")
    else:
        lines.append(f"Allowed: arithmetic of precision class {gate.allowed.value} or better.")
    return "\n".join([*lines, *map(_note, gate.notes)])


def _note(note: str) -> str:
    """A note of the correctness check; the names of its inputs in words."""
    if not note.startswith("inputs: own"):
        return note
    drawn = [name for part in note.split(",")[1:] if (name := part.strip())]
    words = ", ".join(f"{name} ({what})" if (what := PERTURBED.get(name)) else name for name in drawn)
    return f"Checked on the problem's own inputs{f' and on perturbed ones: {words}' if words else ''}."


def device_facts(device: Device) -> str:
    """The device, with the limits of its architecture if they are known."""
    after = f"\n{offers}" if (offers := hardware.offers(device)) else ""
    after += f"\nMeasured in recorded searches on an H200:\n{found}" if (found := hardware.measured(device)) else ""
    if device.kind != "cuda":
        own = "".join(f"{_bytes(size)} L{level} data, " for level, size in enumerate(device.core_caches, 1))
        own = f"a core: {own}all cores: " if own else ""
        name = device.name.removesuffix(f" ({device.units} cores)")
        return (
            f"{name}, {device.arch}, {device.units} cores available to the kernel, "
            f"{own}{_bytes(device.cache_bytes)} last-level cache, {_bytes(device.memory_bytes)} memory; {device.software}"
            f"{after}"
        )
    facts = (
        f"{device.name} ({device.arch}), {device.units} multiprocessors, {_bytes(device.cache_bytes)} L2 cache, "
        f"{_bytes(device.memory_bytes)} memory; {device.software}"
    )
    limits = _SM_LIMITS.get(device.arch.removeprefix("sm_").rstrip("af"))
    if limits is None:
        return facts + after
    shared, block, threads = limits
    return (
        f"{facts}\nEach multiprocessor: {shared} KiB shared memory (at most {block} KiB a block), 65536 registers, "
        f"{threads} threads. At most 1024 threads a block and 255 registers a thread.{after}"
    )


def _bytes(size: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size} bytes"


def roofline(state: SessionState) -> str:
    """The speed of light (SOL) of this workload, and the baselines."""
    preparation = state.preparation
    if preparation is None:
        return NOTHING
    peaks = [f"{preparation.peaks.copy_bytes_per_s / 1e9:.4g} GB/s copy bandwidth"]
    peaks += [f"{rate / 1e12:.3g} T/s {unit}" for unit, rate in preparation.peaks.operations_per_s.items()]
    lines = [
        f"- least traffic: {preparation.bytes_moved / 1e6:.4g} MB{_operations(preparation)}",
        f"- measured peaks: {', '.join(peaks)}",
        f"- speed of light (SOL): {preparation.floor_us:.4g} us, bound by {preparation.bound}",
    ]
    return "\n".join([*lines, *_baselines(state, preparation), *(f"- {note}" for note in preparation.notes)])


def _operations(preparation: Preparation) -> str:
    """The operations that matter: of products, and of all other work."""
    signature = preparation.signature
    counts = ((signature.operations, signature.unit), (signature.vector_operations, "vector"))
    words = [f"{count / 1e9:.4g} G ({unit})" for count, unit in counts if count >= 1e6]
    return f"; operations: {', '.join(words)}" if words else ""


def _baselines(state: SessionState, preparation: Preparation) -> Iterator[str]:
    ranking = queries.ranking_baseline(state)
    for name, measured in preparation.baselines.items():
        mark = " (speedups are relative to it)" if name == ranking else ""
        yield f"- baseline {name}: {measured.time_us.value:.4g} us{mark}"
    if ranking in preparation.baselines and preparation.baselines[ranking].time_us.value < preparation.floor_us:
        yield (
            f"- {ranking} is faster than this SOL, whose peak rate was measured under a longer load: it leaves little to gain "
            "by the same arithmetic"
        )


def kernel_facts(state: SessionState, kernel: Kernel, code: str, remarks: str = "", same_as: str = "") -> str:
    """One kernel with its measurements, resources and code; ``remarks`` is compiler output.

    ``same_as``: a kernel whose code, shown before, is the same.
    """
    idea = state.ideas.get(kernel.idea)
    lines = [f"## {kernel.id}: {idea.text.title if idea else kernel.name}", ""]
    lines += [f"- {line}" for line in evidence(state, kernel)]
    if output := _worth_reading(remarks):
        lines += ["", "Compiler output:", "", fenced(head(output, _REMARK_LINES, _MAX_LOG))]
    if same_as:
        return "\n".join([*lines, "", f"Its code is that of {same_as}, with other values of the tunables."])
    return "\n".join([*lines, "", fenced(_bounded(code), kernel.dialect.language)])


def _worth_reading(remarks: str) -> str:
    """Compiler output without what the prompt gives elsewhere: registers, shared memory, compile times."""
    kept = [line for line in remarks.splitlines() if line.strip() and not _KNOWN.search(line)]
    return "\n".join(kept)


def evidence(state: SessionState, kernel: Kernel) -> Iterator[str]:
    """Everything measured about a kernel, one line each."""
    yield f"{kernel.dialect.value}, {kernel.contract.value} contract, parent {kernel.parent or 'none'}"
    if kernel.tunables:
        yield "tunables: " + ", ".join(f"{name} = {value}" for name, value in kernel.tunables.items())
    if kernel.measurement is not None and kernel.stage is Stage.MEASURED:
        yield from _measured(state, kernel, kernel.measurement)
    elif kernel.failure is not None:
        yield f"failed ({kernel.failure.kind.value}): {without_holdouts(kernel.failure.reason)}"
    sol = kernel.measurement.light if kernel.measurement is not None and kernel.stage is Stage.MEASURED else None
    if kernel.instructions:
        yield _mix(kernel.instructions)
    if kernel.profile is not None and kernel.profile.tool:
        parent = state.kernels.get(kernel.parent or "")
        yield f"hardware counters, parent in brackets: {profile.line(kernel.profile, parent.profile if parent else None)}"
        if text := bottleneck.summary(kernel.profile, state.preparation.bytes_moved if state.preparation else 0):
            yield f"bottleneck by counters: {text}"
    if kernel.profile is not None and kernel.profile.hot is not None and (text := hot_code.summary(kernel.profile.hot)):
        how = f" ({hot_code.SKID})" if kernel.profile.hot.samples else ""
        yield f"hot code{how}: {text}"
    before = _parent_mix(state, kernel)
    if text := instruction_mix.summary(kernel.resources, kernel.instructions, sol, before=before, counts=False):
        yield f"summary: {text}"
    else:
        yield from map(_resources, kernel.resources)
    if kernel.verification is not None:
        checked = kernel.verification
        yield (
            f"centred relative error {checked.rel_fro:.2g} (precision class {checked.precision_class.value}); "
            f"hold-out shapes: {checked.holdouts}"
        )


def _measured(state: SessionState, kernel: Kernel, measured: Measurement) -> Iterator[str]:
    time = measured.time_us
    yield f"time {time.value:.4g} us ({time.low:.4g} to {time.high:.4g}), {measured.depth} measurement"
    base = queries.ranking_baseline(state)
    speedups = [f"{factor(measured.speedup[base])} over {base}"] if base in measured.speedup else []
    over_parent = predictions.gain(state, kernel)
    if over_parent is not None:
        speedups.append(f"{factor(over_parent)} over its parent {kernel.parent}")
    if speedups:
        yield "speedup " + ", ".join(speedups)
    yield from _by_workload(state, kernel, measured)
    sustained = measured.sustained
    if sustained is not None and base in sustained.speedup:
        at = f" at {sustained.kernel.sm_mhz:.0f} MHz" if sustained.kernel.sm_mhz is not None else ""
        yield f"called back to back{at}: {factor(sustained.speedup[base])} over {base}, {sustained.time_us.value:.4g} us a call"
    if doubts := corroboration.of_measurement(measured):
        yield "no result: " + "; ".join(doubts)
    if measured.conditions:
        yield "conditions: " + ", ".join(measured.conditions)


def _by_workload(state: SessionState, kernel: Kernel, measured: Measurement) -> Iterator[str]:
    """Over a suite: every workload, and where another kernel is faster."""
    base = queries.ranking_baseline(state)
    slowest = suite.worst(measured, base)
    for one in measured.by_workload:
        light = f", {one.light.fraction * 100:.0f}% of SOL" if one.light is not None else ""
        mark = " (worst)" if slowest is one else ""
        speedup = f", {factor(one.speedup[base])} over {base}" if base in one.speedup else ""
        yield f"on `{one.workload}`: {one.time_us.value:.4g} us{speedup}{light}{mark}"
    for loss in columns.behind(state, kernel):
        theirs = f"{loss.best.id} reaches {factor(loss.theirs)}"
        yield f"loses on `{loss.workload}`: {factor(loss.own)} over {base}, {theirs}"


def _resources(use: Resources) -> str:
    stack = f", {use.stack_bytes} bytes of stack" if use.stack_bytes else ""
    return f"{use.function}: {use.registers} registers, {use.shared_bytes} bytes shared, {use.spill_bytes} bytes spilled{stack}"


def _mix(counts: Mapping[str, int]) -> str:
    """The most frequent instruction families of the machine code."""
    parts = {name for name in counts if "." in name and name.partition(".")[0] in counts}
    families = sorted(
        (name for name in counts if name != "total" and name not in parts), key=lambda name: (-counts[name], name)
    )
    listed = ", ".join(f"{counts[name]} {name}" for name in families[:_FAMILIES]) or "none of a known family"
    return f"static instruction count: {counts.get('total', 0)}, of which {listed}"


def _parent_mix(state: SessionState, kernel: Kernel) -> Mapping[str, int] | None:
    """The parent's instruction counts, if they are known and parent and kernel share dialect and device."""
    parent = state.kernels.get(kernel.parent or "")
    if parent is None or not parent.instructions or (parent.dialect, parent.epoch) != (kernel.dialect, kernel.epoch):
        return None
    return parent.instructions


def factor(value: Interval) -> str:
    """A speedup with its interval, e.g. ``1.31x (1.28 to 1.34)``."""
    figure, low, high = ratio_figures(value)
    return f"{figure}x ({low} to {high})"


def failure(kind: FailureKind, reason: str, log: str, mismatches: Sequence[Mismatch] = ()) -> str:
    """Why a kernel failed, where outputs are wrong, and the log from its first error on: later ones mostly follow from it."""
    text = "\n".join([f"{kind.value}: {without_holdouts(reason)}", *prompt_lines(mismatches)])
    if _HOLDOUT.search(reason) or not log.strip():
        return text
    return f"{text}\n\n{fenced(_from_first_error(log))}"


def _from_first_error(log: str) -> str:
    lines = log.splitlines()
    first = next((n for n, line in enumerate(lines) if _ERROR.search(line)), 0)
    return head(without_holdouts("\n".join(lines[max(0, first - 2) :])), _LOG_LINES, _MAX_LOG)


def without_holdouts(text: str) -> str:
    """The text without the sizes of hold-out shapes, which stay hidden from proposers and writers, and without its counts."""
    if not _HOLDOUT.search(text):
        return text
    return _PLACE.sub("", _COUNT.sub("some", _HOLDOUT.sub("on a hold-out shape", text)))


def head(text: str, lines: int, characters: int) -> str:
    """The beginning of a text, with the number of lines left out."""
    kept = "\n".join(text.splitlines()[:lines])[:characters]
    left = len(text.splitlines()) - len(kept.splitlines())
    return f"{kept}\n... {left} more lines" if left > 0 else kept


def _bounded(code: str) -> str:
    if len(code) <= _MAX_CODE:
        return code
    return f"{code[:_MAX_CODE]}\n... truncated: {len(code) - _MAX_CODE} more characters"

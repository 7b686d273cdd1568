"""A kernel in other projects' formats: FlashInfer solution and trace, SOL-ExecBench solution, kernelbot submission. Pure.

Each holds the exported module (``export.module``) and a function that calls it as the format does. A kernel is compiled for the
shapes of the session's workloads; the description names them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from engine.domain import corroboration
from engine.domain.errors import ProblemError
from engine.domain.model import Device, Dialect, FailureKind, Measurement, Problem, Workload
from engine.domain.problem_format import ProblemFormat
from engine.domain.regimes import Sustained
from engine.domain.state import Kernel
from engine.export import template

_STATUS: Mapping[FailureKind, str] = {FailureKind.BUILD_FAILED: "COMPILE_ERROR", FailureKind.TIMED_OUT: "TIMEOUT"}
_ENTRY = "kernel.py"


@dataclass(frozen=True, slots=True)
class FormatExport:
    """One kernel of a session, and its module's text."""

    problem: Problem
    workloads: tuple[Workload, ...]
    """Those of the session, for which the module is compiled."""
    kernel: Kernel
    module: str
    author: str
    device: Device
    versions: Mapping[str, str]
    baseline: str
    at: float
    """When the session was last written, in seconds since 1970."""

    def declared(self, *names: str) -> ProblemFormat:
        """The problem's format. Raises ProblemError if it is none of ``names``."""
        found = self.problem.origin_format
        if found is None or found.name not in names:
            came = found.name if found is not None else "KernelBench's format"
            raise ProblemError(
                f"problem {self.problem.name} came in {came}: only kernels of {' or '.join(names)} problems can be written so; "
                "use --format module"
            )
        return found


def flashinfer_solution(given: FormatExport) -> str:
    """A solution of FlashInfer-Bench as JSON. Raises ProblemError for a problem of another format."""
    declared = given.declared("flashinfer", "sol-execbench")
    spec = {
        "language": "triton" if given.kernel.dialect is Dialect.TRITON else "python",
        "target_hardware": [given.device.name],
    }
    return _solution(given, declared, spec)


def sol_solution(given: FormatExport) -> str:
    """A solution of SOL-ExecBench as JSON. Raises ProblemError for a problem of another format."""
    declared = given.declared("sol-execbench", "flashinfer")
    language = "triton" if given.kernel.dialect is Dialect.TRITON else "pytorch"
    return _solution(given, declared, {"languages": [language], "target_hardware": ["LOCAL"]})


def _solution(given: FormatExport, declared: ProblemFormat, spec: Mapping[str, object]) -> str:
    names = [tensor.name for tensor in declared.inputs]
    solution = {
        "name": _name(given),
        "definition": declared.entry,
        "author": given.author,
        "description": _compiled_for(given.workloads),
        "spec": {
            **spec, "entry_point": f"{_ENTRY}::espalier_run", "dependencies": ["torch"], "destination_passing_style": False,
        },
        "sources": [{"path": _ENTRY, "content": _called(given.module, "espalier_run", names, names)}],
    }  # fmt: skip
    return json.dumps(solution, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _compiled_for(workloads: Sequence[Workload]) -> str:
    names = ", ".join(one.name for one in workloads)
    return f"Espalier, compiled for workload{'s' if len(workloads) > 1 else ''} {names}"


def _name(given: FormatExport) -> str:
    first, *others = given.workloads
    return f"espalier_{given.problem.name}_{first.name}{f'_and_{len(others)}' if others else ''}_{given.kernel.id}"


def _called(module: str, function: str, parameters: Sequence[str], arguments: Sequence[str]) -> str:
    """The module and a function that calls it. A module that was read from such a file has these names itself."""
    call = f"_espalier_models[0]({', '.join(arguments)})"
    own = template.keep_apart(module, {function, "_EspalierModel", "_espalier_models"})
    return "\n".join((
        own.rstrip("\n"), "", "", "_EspalierModel = ModelNew", "_espalier_models = []", "", "",
        f"def {function}({', '.join(parameters)}):", "    if not _espalier_models:",
        "        _espalier_models.append(_EspalierModel())", f"    return {call}", "",
    ))  # fmt: skip


def kernelbot_submission(given: FormatExport) -> str:
    """A submission of kernelbot. Raises ProblemError for a problem of another format."""
    given.declared("kernelbot")
    return _called(given.module, "custom_kernel", ["data"], ["*(data if isinstance(data, tuple) else (data,))"])


def _sustained(found: Sustained, workload: str, baseline: str) -> dict[str, object]:
    """The kernel's figures in the sustained regime; the baseline's own calls are back to back too."""
    timed = next((one for one in found.by_workload if one.workload == workload), found)
    time, speedup = timed.time_us, timed.speedup.get(baseline)
    figures: dict[str, object] = {
        "sustained_time_us_95": [time.low, time.value, time.high], "sustained_corroborated": found.corroborated,
        "sustained_sm_mhz": found.kernel.sm_mhz, "sustained_watts": found.kernel.watts,
    }  # fmt: skip
    if found.by_workload:
        figures["sustained_over_all_workloads"] = ["sustained_corroborated", "sustained_sm_mhz", "sustained_watts"]
    if speedup is not None:
        figures["sustained_speedup_95"] = [speedup.low, speedup.value, speedup.high]
    return figures


def flashinfer_traces(given: FormatExport) -> str:
    """Traces of FlashInfer-Bench as lines of JSON, one for each workload: the workload, the solution's name, its evaluation.

    ``performance`` is there only for a kernel whose time is a result; ``speedup_factor`` is over the session's baseline, which
    ``extra`` names. ``max_relative_error`` is the largest error of an element in units of its scale |r| + rms(r − mean r).
    ``over_all_workloads`` and ``sustained_over_all_workloads`` name the figures that a suite has in common.
    """
    declared = given.declared("flashinfer", "sol-execbench")
    kernel = given.kernel
    if kernel.verification is not None and _result(kernel) is None:
        raise ProblemError(f"{kernel.id} is verified and its time is no result: there is no trace to write")
    lines = []
    for workload in given.workloads:
        trace = {
            "definition": declared.entry, "workload": _workload(declared, workload.name), "solution": _name(given),
            "evaluation": _evaluation(given, workload.name),
        }  # fmt: skip
        lines.append(json.dumps(trace, ensure_ascii=False, allow_nan=False) + "\n")
    return "".join(lines)


class _RowInput(msgspec.Struct):
    type: str


class _Row(msgspec.Struct):
    """What is read here of a workload in the format."""

    inputs: dict[str, _RowInput]


def _workload(declared: ProblemFormat, name: str) -> dict[str, Any]:
    """A workload as the problem's file has it. Raises ProblemError for one that FlashInfer-Bench cannot read.

    The row is the journal's, and may come from elsewhere.
    """
    row = declared.rows.get(name, "")
    try:
        kinds = msgspec.json.decode(row, type=_Row).inputs
        found: dict[str, Any] = msgspec.json.decode(row)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProblemError(f"workload {name}: the session's copy of its row is damaged ({error}): restore it") from error
    if custom := [key for key, given in kinds.items() if given.type == "custom"]:
        raise ProblemError(
            f"workload {name}: {', '.join(custom)}: inputs of the problem's own function, which traces of FlashInfer-Bench "
            "cannot name: export --format sol"
        )
    return found


def _result(kernel: Kernel) -> Measurement | None:
    """The kernel's measurement, if its time is a result."""
    return None if corroboration.is_doubted(kernel) else kernel.measurement


def _evaluation(given: FormatExport, workload: str) -> dict[str, object]:
    kernel, proof, result = given.kernel, given.kernel.verification, _result(given.kernel)
    evaluation: dict[str, object] = {
        "status": "PASSED",
        "environment": {"hardware": given.device.name, "libs": dict(given.versions)},
        "timestamp": datetime.fromtimestamp(given.at, UTC).isoformat(),
        "log": "",
    }
    if proof is None or result is None:
        return evaluation | _failure(kernel)
    errors = next((one for one in proof.by_workload if one.workload == workload), proof)
    timed = next((one for one in result.by_workload if one.workload == workload), result)
    time, speedup = timed.time_us, timed.speedup.get(given.baseline)
    extra: dict[str, object] = {
        "checked_by": "espalier", "policy": proof.policy, "precision_class": errors.precision_class.value,
        "trials": errors.trials, "centred_error": errors.rel_fro, "time_us_95": [time.low, time.value, time.high],
        "depth": result.depth, "conditions": list(result.conditions),
    }  # fmt: skip
    if proof.by_workload:
        extra["over_all_workloads"] = ["max_absolute_error"]
    if speedup is not None:
        extra["speedup_95"] = [speedup.low, speedup.value, speedup.high]
        extra["speedup_over"] = given.baseline
    if result.sustained is not None:
        extra |= _sustained(result.sustained, workload, given.baseline)
    factor, latency = speedup.value if speedup is not None else 0.0, time.value / 1000
    return evaluation | {
        "correctness": {"max_relative_error": errors.max_scaled, "max_absolute_error": proof.max_abs, "extra": extra},
        "performance": {
            "latency_ms": latency, "reference_latency_ms": latency * factor, "speedup_factor": factor,
        },
    }  # fmt: skip


def _failure(kernel: Kernel) -> dict[str, object]:
    """What the format demands of a failure: the errors, if wrong elements were seen, and then only."""
    failure = kernel.failure
    if failure is None:
        raise ProblemError(f"{kernel.id} has not been judged: there is no trace to write")
    seen = [one for mismatch in failure.mismatches for one in mismatch.examples]
    if failure.kind is not FailureKind.MISMATCH or not seen:
        return {"status": _STATUS.get(failure.kind, "RUNTIME_ERROR"), "log": failure.reason}
    largest = {
        "max_relative_error": _number(max(one.error for one in seen)),
        "max_absolute_error": _number(max(abs(one.got - one.expected) for one in seen)),
        "extra": {"checked_by": "espalier", "errors_of": "the elements that were shown, the worst among them"},
    }
    return {"status": "INCORRECT_NUMERICAL", "log": failure.reason, "correctness": largest}


def _number(value: float) -> float | str:
    """A number as the format writes it: those that JSON lacks as words."""
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else "Infinity"

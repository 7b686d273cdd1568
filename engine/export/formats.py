"""A kernel in other projects' formats: FlashInfer solution and trace, SOL-ExecBench solution, kernelbot submission. Pure.

Each holds the exported module (``export.module``) and a function that calls it as the format does. A kernel is compiled for one
workload's shapes; the description names it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from engine.domain import corroboration
from engine.domain.errors import ProblemError
from engine.domain.model import Device, Dialect, FailureKind, Problem, Workload
from engine.domain.problem_format import ProblemFormat
from engine.domain.regimes import Sustained
from engine.domain.state import Kernel

_OWN_TENSORS = "from espalier_tensors import stored as _stored\n"
_STATUS: Mapping[FailureKind, str] = {
    FailureKind.BUILD_FAILED: "COMPILE_ERROR", FailureKind.MISMATCH: "INCORRECT_NUMERICAL", FailureKind.TIMED_OUT: "TIMEOUT",
}  # fmt: skip
_ENTRY = "kernel.py"


@dataclass(frozen=True, slots=True)
class FormatExport:
    """One kernel of a session, and its module's text."""

    problem: Problem
    workload: Workload
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
                f"problem {self.problem.name} came in {came}: only one of {' or '.join(names)} can be written so"
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
        "description": f"Espalier, compiled for workload {given.workload.name}",
        "spec": {
            **spec, "entry_point": f"{_ENTRY}::espalier_run", "dependencies": ["torch"], "destination_passing_style": False,
        },
        "sources": [{"path": _ENTRY, "content": _called(given.module, "espalier_run", names, names)}],
    }  # fmt: skip
    return json.dumps(solution, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _name(given: FormatExport) -> str:
    return f"espalier_{given.problem.name}_{given.workload.name}_{given.kernel.id}"


def _called(module: str, function: str, parameters: Sequence[str], arguments: Sequence[str]) -> str:
    call = f"_espalier_models[0]({', '.join(arguments)})"
    return "\n".join((
        module.replace(_OWN_TENSORS, "").rstrip("\n"), "", "", "_espalier_models = []", "", "",
        f"def {function}({', '.join(parameters)}):", "    if not _espalier_models:",
        "        _espalier_models.append(ModelNew())", f"    return {call}", "",
    ))  # fmt: skip


def kernelbot_submission(given: FormatExport) -> str:
    """A submission of kernelbot. Raises ProblemError for a problem of another format."""
    given.declared("kernelbot")
    return _called(given.module, "custom_kernel", ["data"], ["*(data if isinstance(data, tuple) else (data,))"])


def _sustained(found: Sustained, baseline: str) -> dict[str, object]:
    """The kernel's figures in the sustained regime; the baseline's own calls are back to back too."""
    time, speedup = found.time_us, found.speedup.get(baseline)
    figures: dict[str, object] = {
        "sustained_time_us_95": [time.low, time.value, time.high], "sustained_corroborated": found.corroborated,
        "sustained_sm_mhz": found.kernel.sm_mhz, "sustained_watts": found.kernel.watts,
    }  # fmt: skip
    if speedup is not None:
        figures["sustained_speedup_95"] = [speedup.low, speedup.value, speedup.high]
    return figures


def flashinfer_trace(given: FormatExport) -> str:
    """A trace of FlashInfer-Bench as one line of JSON: the workload, the solution's name and its evaluation.

    ``performance`` is there only for a kernel whose time is a result; ``speedup_factor`` is over the session's baseline, which
    ``extra`` names. ``max_relative_error`` is the largest error of an element in units of its scale |r| + rms(r − mean r).
    """
    declared = given.declared("flashinfer", "sol-execbench")
    kernel, proof, timed = given.kernel, given.kernel.verification, given.kernel.measurement
    result = timed if timed is not None and not corroboration.is_doubted(kernel) else None
    if proof is not None and result is None:
        raise ProblemError(f"{kernel.id} is verified and its time is no result: there is no trace to write")
    passed = proof is not None
    failure = kernel.failure
    status = "PASSED" if passed else _STATUS.get(failure.kind, "RUNTIME_ERROR") if failure is not None else "RUNTIME_ERROR"
    evaluation: dict[str, object] = {
        "status": status,
        "environment": {"hardware": given.device.name, "libs": dict(given.versions)},
        "timestamp": datetime.fromtimestamp(given.at, UTC).isoformat(),
        "log": failure.reason if failure is not None and not passed else "",
    }
    if proof is not None:
        speedup = result.speedup.get(given.baseline) if result is not None else None
        extra: dict[str, object] = {
            "checked_by": "espalier", "policy": proof.policy, "precision_class": proof.precision_class.value,
            "trials": proof.trials, "centred_error": proof.rel_fro,
        }  # fmt: skip
        if result is not None:
            time = result.time_us
            extra["time_us_95"] = [time.low, time.value, time.high]
            extra["depth"] = result.depth
            extra["conditions"] = list(result.conditions)
        if speedup is not None:
            extra["speedup_95"] = [speedup.low, speedup.value, speedup.high]
            extra["speedup_over"] = given.baseline
        if result is not None and result.sustained is not None:
            extra |= _sustained(result.sustained, given.baseline)
        evaluation["correctness"] = {
            "max_relative_error": proof.max_scaled, "max_absolute_error": proof.max_abs, "extra": extra,
        }  # fmt: skip
        latency = result.time_us.value / 1000 if result is not None else 0.0
        factor = speedup.value if speedup is not None else 0.0
        evaluation["performance"] = {
            "latency_ms": latency, "reference_latency_ms": latency * factor, "speedup_factor": factor,
        }  # fmt: skip
    workload = json.loads(declared.rows[given.workload.name])
    trace = {"definition": declared.entry, "workload": workload, "solution": _name(given), "evaluation": evaluation}
    return json.dumps(trace, ensure_ascii=False, allow_nan=False) + "\n"

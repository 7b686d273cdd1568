"""The JSON of FlashInfer-Bench's and SOL-ExecBench's definitions and workloads. Unknown fields are ignored."""

from __future__ import annotations

import msgspec

from engine.domain.problem_format import FormatTolerance


class AxisJson(msgspec.Struct, frozen=True):
    """An axis of a definition."""

    type: str
    value: int | None = None
    expression: str | None = None


class TensorJson(msgspec.Struct, frozen=True):
    """An input or output of a definition; no shape: a scalar."""

    shape: list[str] | None
    dtype: str


class DefinitionJson(msgspec.Struct, frozen=True):
    """A definition's file."""

    axes: dict[str, AxisJson]
    inputs: dict[str, TensorJson]
    outputs: dict[str, TensorJson]
    reference: str
    name: str = ""
    op_type: str | None = None
    custom_inputs_entrypoint: str | None = None
    description: str | None = None


class InputJson(msgspec.Struct, frozen=True):
    """How a workload makes one input."""

    type: str
    value: bool | int | float | None = None
    path: str | None = None
    tensor_key: str | None = None


class ToleranceJson(msgspec.Struct, frozen=True):
    """SOL-ExecBench's tolerance of one workload, with its defaults."""

    max_atol: float = 1e-2
    max_rtol: float = 1e-2
    required_matched_ratio: float = 0.99
    max_error_cap: float | None = None
    allow_negative_inf: bool = False

    @property
    def plain(self) -> FormatTolerance:
        return FormatTolerance(
            self.max_atol, self.max_rtol, self.required_matched_ratio, self.max_error_cap, self.allow_negative_inf
        )


class WorkloadJson(msgspec.Struct, frozen=True):
    """A workload."""

    uuid: str
    axes: dict[str, int]
    inputs: dict[str, InputJson]
    tolerance: ToleranceJson | None = None

"""A CUDA driver that does nothing and remembers its calls, in place of ``cuda.bindings.driver``."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

GRANULE = 1 << 21
_ANSWERS = {
    "cuMemGetAllocationGranularity": GRANULE,
    "cuMemAddressReserve": 1 << 40,
    "cuMemImportFromShareableHandle": 7,
    "cuMemAlloc": 1 << 41,
}


class FakeDriver:
    """Every function succeeds."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("cu"):
            return self._function(name)
        return _Type()

    def _function(self, name: str) -> Callable[..., tuple[object, ...]]:
        def call(*_: object) -> tuple[object, ...]:
            self.calls.append(name)
            return (0, _ANSWERS[name]) if name in _ANSWERS else (0,)

        return call


class _Type:
    """A structure that can be made, or an enumeration with every member."""

    def __call__(self) -> SimpleNamespace:
        return SimpleNamespace()

    def __getattr__(self, name: str) -> str:
        return name

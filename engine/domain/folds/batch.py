"""The tables of a state while events are folded into it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from engine.domain import events as e
from engine.domain.state import Idea, Kernel, SessionState
from engine.domain.work import WorkKey, WorkKind


class StateBatch:
    """The tables of a state while a batch is folded: copied on the first write, frozen at the end."""

    WORK = ("started", "broken", "called_off")
    """The tables keyed by work."""

    def __init__(self, state: SessionState) -> None:
        self.state = state
        self.scalars: dict[str, Any] = {}
        self._tables: dict[str, dict[Any, Any]] = {}
        self._own: set[str] = set()
        """Kernels and ideas made in this batch. Nobody else holds them yet: they are changed in place."""

    def get(self, name: str) -> Any:
        return self.scalars[name] if name in self.scalars else getattr(self.state, name)

    def set(self, **values: Any) -> None:
        self.scalars.update(values)

    def table(self, name: str) -> dict[Any, Any]:
        if name not in self._tables:
            self._tables[name] = _copy(getattr(self.state, name))
        return self._tables[name]

    def peek(self, name: str) -> Mapping[Any, Any]:
        table: Mapping[Any, Any] = self._tables[name] if name in self._tables else getattr(self.state, name)
        return table

    def idea(self, key: str, **changes: Any) -> None:
        self._change("ideas", key, changes)

    def kernel(self, key: str, **changes: Any) -> None:
        self._change("kernels", key, changes)

    def _change(self, name: str, key: str, changes: Mapping[str, Any]) -> None:
        known = self.peek(name).get(key)
        if known is None:
            return
        if (own := f"{name} {key}") in self._own:
            for field_name, value in changes.items():
                object.__setattr__(known, field_name, value)
        else:
            self.table(name)[key] = replace(known, **changes)
            self._own.add(own)

    def add(self, name: str, key: str, made: Idea | Kernel) -> None:
        """Put a new idea or kernel into its table."""
        self.table(name)[key] = made
        self._own.add(f"{name} {key}")

    def kept(self, name: str, key: str) -> Any:
        """An idea or kernel as it is now; later changes are made on a copy of it."""
        self._own.discard(f"{name} {key}")
        return self.peek(name).get(key)

    def drop_races(self, kernel: str, *, asked: bool = True) -> None:
        """Drop running races of the kernel and, unless ``asked`` is false, those that the engineer requested."""
        wanted = self.get("asked")
        if asked and wanted and any(kernel in pair for pair in wanted):
            wanted = tuple(pair for pair in wanted if kernel not in pair)
            self.set(asked=wanted)
        for name in ("started", "broken"):
            if not (works := self.peek(name)):
                continue
            races = [work for work in works if work.kind == WorkKind.RACE and kernel in work.subjects]
            if races:
                self.finish(*(work for work in races if work.subjects not in wanted))

    def finish(self, *works: WorkKey) -> None:
        """Mark work as neither running nor failed: it has a result."""
        for name in self.WORK:
            known = self.peek(name)
            for work in [work for work in works if work in known] if known else ():
                del self.table(name)[work]

    def frozen(self) -> SessionState:
        tables: dict[str, Any] = {name: MappingProxyType(table) for name, table in self._tables.items()}
        return replace(self.state, **self.scalars, **tables)


Fold = Callable[[StateBatch, e.Entry, Any], None]
"""Changes a batch as one kind of event does."""


def _copy(table: Mapping[Any, Any]) -> dict[Any, Any]:
    """A copy to change. ``dict`` looks up the keys of a mapping proxy one by one: twenty times slower than its own copy."""
    return table.copy() if isinstance(table, MappingProxyType) else dict(table)

"""A fake bench in place of the real one: times from a hash, shipped playbooks."""

from __future__ import annotations

from collections.abc import Callable

from engine.domain import work as w
from engine.domain.model import Device, Signature
from engine.problem.graph_ir import TracedShape, Unsupported
from engine.session.fake_bench import FakeBench
from engine.session.ports import Say
from engine.trial.bench import Assignment
from engine.trial.judge_session import silent


class PretendedBench(FakeBench):
    """The ``TrialBench`` methods that ``session.factory`` uses. A tolerance of ``crfm`` passes trivial models."""

    def __init__(self, assignment: Assignment, store: Callable[[bytes], str]) -> None:
        super().__init__(store, verifiable=assignment.tolerance != "crfm")

    async def describe(self, say: Say = silent, *, ceilings: bool = False) -> tuple[Device, Signature]:
        found = await FakeBench(lambda _: "").prepare(lambda _: None)
        assert isinstance(found, w.Prepared)
        return found.device, found.preparation.signature

    async def traced(self) -> tuple[TracedShape, ...]:
        return (TracedShape(Signature((), {}), Unsupported("a pretended operator")),)

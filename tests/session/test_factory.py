"""Creating a session: a failure leaves nothing behind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import sessions

from engine.domain import rules
from engine.domain.errors import CommandRejected, EspalierError, JournalUnwritable
from engine.domain.model import Contract, Device, Dialect, Draft, Signature
from engine.domain.settings import ModelServer, Settings
from engine.journal.lock import WriterLock
from engine.problem import catalog
from engine.problem.graph import trace_reference
from engine.problem.graph_ir import TracedShape
from engine.problem.reference import Reference
from engine.session import benches, factory
from engine.session.fake_bench import FAKE_CPU, FAKE_GPU, FakeBench
from engine.session.outcome import Until
from engine.session.ports import Say
from engine.session.seeds import Seed
from engine.toolchain import tunables
from engine.toolchain.kernel_file import KernelCode
from engine.trial.judge_session import Assignment, silent

SEED = Seed(KernelCode(sessions.source("mine"), Dialect.CPP, Contract.HOST, "mine.cpp"), {})
made: list[Bench] = []


class Bench(FakeBench):
    """Replaces the bench of a new session."""

    def __init__(self, assignment: Assignment, store: Any) -> None:
        super().__init__(store)
        self.assignment = assignment
        self.closed = False
        made.append(self)

    async def describe(self, say: Say = silent, *, ceilings: bool = False) -> tuple[Device, Signature]:
        return FAKE_CPU, Signature((), {})

    async def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def _fake_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    made.clear()
    monkeypatch.setattr(benches, "TrialBench", Bench)


def begun(folder: Path) -> EspalierError:
    """The error of creating a session with a seed in ``folder``."""
    wanted = factory.NewSession(catalog.find("softmax"), "cpu", Settings(), folder=folder, seeds=(SEED,))
    with pytest.raises(EspalierError) as raised:
        sessions.run(lambda: factory.begin(wanted, lambda _: None))
    return raised.value


def test_a_rejected_seed_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(*_: object) -> object:
        raise CommandRejected("this seed is not wanted")

    monkeypatch.setattr(rules, "decide", reject)
    error = begun(tmp_path / "new" / "session")
    assert (type(error), str(error)) == (CommandRejected, "this seed is not wanted")
    assert list(tmp_path.iterdir()) == []
    assert [bench.closed for bench in made] == [True]


def test_a_seed_that_cannot_be_stored_leaves_what_was_there_before(tmp_path: Path) -> None:
    (tmp_path / "blobs").write_text("a file where the payloads would go")
    (tmp_path / "notes.txt").write_text("mine")
    assert isinstance(begun(tmp_path), JournalUnwritable)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blobs", "notes.txt"]
    WriterLock(tmp_path).release()


@pytest.mark.parametrize("fresh", [False, True])
def test_a_session_uses_what_an_evaluation_prepared_unless_it_is_to_be_fresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: bool
) -> None:
    wanted = factory.NewSession(catalog.find("softmax"), "cpu", Settings(), folder=tmp_path / "s", seeds=(SEED,), fresh=fresh)

    async def begin_and_resume() -> None:
        await (await factory.begin(wanted, lambda _: None)).close()
        await (await factory.resume(factory.SavedSession(tmp_path / "s"), lambda _: None)).close()

    sessions.run(begin_and_resume)
    assert [(bench.assignment.prepared, bench.assignment.fresh) for bench in made] == [(True, fresh), (True, False)]


@pytest.mark.slow
def test_a_session_resumes_as_asked(tmp_path: Path) -> None:
    """On another device, with another mode, and with everything that was measured before the first round measured again."""

    async def begin_and_resume() -> None:
        new = factory.NewSession(catalog.find("softmax"), "cpu", Settings(), folder=tmp_path / "s", seeds=(SEED,))
        async with await factory.begin(new, lambda _: None) as live:
            await live.run(Until.ROUND)
        saved = factory.SavedSession(tmp_path / "s", "cuda:1", "ask:5", fresh=True)
        async with await factory.resume(saved, lambda _: None) as live:
            assert str(live.state.mode) == "ask:5"
            await live.run(Until.ROUND)
            assert live.state.epoch == 2

    sessions.run(begin_and_resume)
    assert (made[1].assignment.device, made[1].assignment.fresh) == ("cuda:1", True)


def test_a_silent_server_is_told_before_the_session_begins(tmp_path: Path) -> None:
    servers = (ModelServer("vllm", "http://127.0.0.1:9/v1"),)
    wanted = factory.NewSession(
        catalog.find("softmax"), "cpu", Settings(source="vllm:any", servers=servers), folder=tmp_path / "s"
    )
    with pytest.raises(EspalierError, match=r"vllm:any: nothing answers at http://127.0.0.1:9/v1"):
        sessions.run(lambda: factory.begin(wanted, lambda _: None))
    assert not (tmp_path / "s").exists()
    assert not made


@pytest.mark.slow
@pytest.mark.parametrize("dialect", [Dialect.CUDA, Dialect.TRITON])
def test_a_generated_naive_port_has_values_for_its_tunables(dialect: Dialect, tmp_path: Path) -> None:
    """A headless search with --dialect triton ended at its naive port: unknown name 'BLOCK'."""
    file = tmp_path / "mine.py"  # a problem without a playbook
    file.write_text(catalog.find("softmax").reference)
    problem = catalog.find(str(file))
    reference = Reference(problem, problem.workloads[0])

    class Traced(FakeBench):
        async def traced(self) -> tuple[TracedShape, ...]:
            return (TracedShape(reference.signature(), trace_reference(reference)),)

    opened: Any = SimpleNamespace(problem=problem, settings=Settings(dialect=dialect.value, workload=problem.workloads[0].name))
    bench: Any = Traced(lambda payload: str(len(payload)))
    port = asyncio.run(factory._naive_port(bench, opened, FAKE_GPU, reference.signature(), lambda _: None))
    assert isinstance(port, Draft)
    assert port.dialect is dialect
    declared = tunables.default_values(tunables.parse_tunables(port.source, dialect))
    assert port.tunables == declared
    assert ("BLOCK" in declared) is (dialect is Dialect.TRITON)

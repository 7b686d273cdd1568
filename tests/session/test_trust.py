"""What a session would run is read off its settings, ideas and kernels; a journal that changes before the lock is refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from support import builders, forged, sessions
from support.pretended import PretendedBench

from engine.domain import commands as c
from engine.domain.errors import UntrustedError
from engine.domain.model import Author, Device, Signature
from engine.domain.trust import Permissions, Server
from engine.journal import store, trust_records
from engine.journal.lock import WriterLock
from engine.sandbox.trial_sandbox import judge_reason
from engine.session import benches, factory, trust
from engine.session.ports import Say
from engine.trial.bench import TrialBench
from engine.trial.judge_session import silent


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(benches, "TrialBench", PretendedBench)
    sessions.whole(tmp_path / "original")
    return forged.forge(tmp_path / "original", tmp_path / "s", rounds=1)


def test_every_place_that_can_name_a_program_or_a_server_counts(folder: Path) -> None:
    state = store.state_of(folder)
    assert trust.needs_of(state) == Permissions(trust.needs_of(state).reference)
    assert state.opened is not None
    source = "command:first=2,openai:a=1,playbook"
    settings = replace(state.opened.settings, source=source, writer="command:second", base_url="http://h/v1")
    idea, kernel = next(iter(state.ideas.values())), next(iter(state.kernels.values()))
    changed = replace(
        state,
        opened=replace(state.opened, settings=settings),
        ideas={
            **state.ideas,
            "i8": replace(idea, writer="command:third"),
            "i9": replace(idea, author=Author("command:fourth")),
        },
        kernels={
            **state.kernels,
            "k9": replace(kernel, author=Author("gemini:b")),
            "k8": replace(kernel, author=Author("x:y")),
        },
    )
    needs = trust.needs_of(changed)
    assert needs.commands == ("first", "fourth", "second", "third")
    assert needs.servers == (Server("gemini"), Server("openai", "http://h/v1"))
    assert trust.needs_of(state).within(needs)
    assert not needs.within(trust.needs_of(state))


def test_a_journal_that_is_changed_before_the_lock_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "it-ran"
    trust.confirm(trust.session_question(folder))

    class Changing(PretendedBench):
        async def describe(self, say: Say = silent, *, ceilings: bool = False) -> tuple[Device, Signature]:
            forged.forge(
                tmp_path / "original", tmp_path / "bad", forged.with_settings(writer=forged.touching(marker)), rounds=1
            )
            (folder / "journal.jsonl").write_bytes((tmp_path / "bad" / "journal.jsonl").read_bytes())
            return await super().describe()

    monkeypatch.setattr(benches, "TrialBench", Changing)
    with pytest.raises(UntrustedError, match="a command that was not confirmed"):
        asyncio.run(factory.resume(factory.SavedSession(folder), lambda _: None))
    WriterLock(folder).release()
    assert not marker.exists()


@pytest.mark.slow
@pytest.mark.skipif(judge_reason() is not None, reason="no sandbox")
def test_an_allowed_reference_runs_in_the_sandbox(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves no file, and finds neither a key nor the home folder of the user."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789abcdef")
    secret = tmp_path / "secret"
    secret.write_text("a secret")
    checks = f"""
import contextlib, os
with contextlib.suppress(OSError):
    open({str(tmp_path / "it-ran")!r}, "w")
assert "OPENAI_API_KEY" not in os.environ
assert not os.path.exists({str(secret)!r})
assert not os.path.exists(os.path.expanduser("~/.bashrc"))
"""
    hostile = forged.forge(folder, tmp_path / "hostile", forged.with_code(checks))
    with pytest.raises(UntrustedError):
        factory.assignment(hostile, store.state_of(hostile), "cpu")
    trust.confirm(trust.session_question(hostile))

    async def describe() -> Signature:
        bench = TrialBench(factory.assignment(hostile, store.state_of(hostile), "cpu"), lambda _: "")
        try:
            return (await bench.describe())[1]
        finally:
            await bench.close()

    assert [one.name for one in asyncio.run(describe()).operands] == ["x", "out"]
    assert not (tmp_path / "it-ran").exists()


def test_a_writer_that_the_user_names_while_the_session_runs_is_allowed_later(folder: Path) -> None:
    trust.made_here(folder, store.state_of(folder))

    async def name_a_writer() -> None:
        async with await factory.resume(factory.SavedSession(folder), lambda _: None) as live:
            await live.submit(c.WriteIdea(builders.idea_text(1)))
            added = next(reversed(live.state.ideas))
            await live.submit(c.EditIdea(added, writer="command:agent"))

    sessions.run(name_a_writer)
    assert trust.needs_of(store.state_of(folder)).commands == ("agent",)
    assert trust.is_trusted(folder, store.state_of(folder))


def test_a_record_that_cannot_be_written_is_no_permission_and_no_crash(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir(exist_ok=True)
    trust_records.folder().write_text("a file in its place")
    trust.made_here(folder, store.state_of(folder))
    assert not trust.is_trusted(folder, store.state_of(folder))

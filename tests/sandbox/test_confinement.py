"""What a confined command can reach, and that a time limit leaves none of its processes behind."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
import uuid
from pathlib import Path

import pytest
from support.sandboxes import flaky

from engine.domain.errors import SandboxError
from engine.sandbox.bubblewrap import bubblewrap_reason
from engine.sandbox.confinement import CommandLimits, Confinement, LimitsOnly, detect, probe, run_confined
from engine.sandbox.process import ProcessResult, run


def _confined(confinement: Confinement, folder: Path, script: str) -> ProcessResult:
    return asyncio.run(run_confined(["sh", "-c", script], confinement, folder))


def _alive(mark: str) -> list[str]:
    """Command lines of processes on this machine that contain ``mark``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if mark in words and int(path.parent.name) != os.getpid():
            found.append(words)
    return found


def _gone(mark: str) -> bool:
    """Whether every process with ``mark`` has ended; a killed namespace takes a moment."""
    for _ in range(100):
        if not _alive(mark):
            return True
        time.sleep(0.05)
    return False


def test_the_working_folder_can_be_written(confinement: Confinement, tmp_path: Path) -> None:
    result = _confined(confinement, tmp_path, "pwd; echo hello > out.txt; echo $TMPDIR")
    assert result.status == 0
    assert result.output.split() == [str(tmp_path), str(tmp_path)]
    assert (tmp_path / "out.txt").read_text() == "hello\n"


def test_the_environment_is_an_allow_list(confinement: Confinement, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sesame")
    result = _confined(confinement, tmp_path, "env")
    names = {line.partition("=")[0] for line in result.output.splitlines()}
    assert names - {"PWD", "OLDPWD", "SHLVL", "_"} == {"PATH", "LANG", "LC_ALL", "TMPDIR"}


def test_limits_are_enforced(confinement: Confinement, tmp_path: Path) -> None:
    tight = dataclasses.replace(confinement, limits=CommandLimits(60, 1 << 30, 1 << 20))  # type: ignore[type-var]
    result = _confined(tight, tmp_path, "ulimit -c; ulimit -v; head -c 3000000 /dev/zero > big")
    assert result.output.split()[:2] == ["0", str((1 << 30) // 1024)]
    assert result.status != 0
    assert (tmp_path / "big").stat().st_size == 1 << 20


def test_bubblewrap_hides_the_machine(bubblewrap: Confinement, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("sesame")
    folder = tmp_path / "work"
    folder.mkdir()
    for path in (secret, Path("/etc/passwd"), Path("/proc/self/environ"), Path.home() / ".profile"):
        result = _confined(bubblewrap, folder, f"cat {path}")
        assert result.status != 0, path
        assert "No such file" in result.output
    assert _confined(bubblewrap, folder, "echo x > /usr/espalier-test").status != 0
    assert _confined(bubblewrap, folder, f"echo x > {tmp_path}/beside; true").status == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["secret.txt", "work"]


def test_readable_paths_are_read_only(bubblewrap: Confinement, tmp_path: Path) -> None:
    lent, folder = tmp_path / "lent", tmp_path / "work"
    lent.mkdir()
    folder.mkdir()
    (lent / "file").write_text("hello")
    result = asyncio.run(
        run_confined(["sh", "-c", f"cat {lent}/file; echo x > {lent}/file"], bubblewrap, folder, readable=(lent,))
    )
    assert result.status != 0
    assert result.output.startswith("hello")
    assert (lent / "file").read_text() == "hello"


@pytest.mark.slow
def test_a_time_limit_leaves_nothing_behind(confinement: Confinement, tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    hasty = dataclasses.replace(confinement, limits=CommandLimits(seconds=0.5))  # type: ignore[type-var]
    script = f": {mark}; trap '' TERM; (sh -c 'trap : TERM; : {mark}; while :; do sleep 1; done' &); echo on; sleep 60"
    result = _confined(hasty, tmp_path, script)
    assert result.timed_out
    assert result.status != 0
    assert result.output == "on\n"
    assert _gone(mark)


def test_cancellation_leaves_nothing_behind(confinement: Confinement, tmp_path: Path) -> None:
    mark = uuid.uuid4().hex

    async def cancelled() -> None:
        task = asyncio.create_task(run_confined(["sh", "-c", f": {mark}; sleep 60; :"], confinement, tmp_path))
        while not _alive(mark):
            await asyncio.sleep(0.02)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert _gone(mark)


def test_children_of_a_dead_leader_are_killed(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    result = _confined(LimitsOnly(), tmp_path, f"(sh -c ': {mark}; sleep 60; :' >/dev/null 2>&1 &)")
    assert result.status == 0
    assert _gone(mark)


def test_endless_output_is_truncated() -> None:
    result = asyncio.run(run(["sh", "-c", "yes | head -c 5000000; echo end >&2"], seconds=60, output_bytes=1000))
    assert (result.status, len(result.output)) == (0, 1000)


@pytest.mark.slow
def test_endless_output_ends_at_the_time_limit() -> None:
    result = asyncio.run(run(["sh", "-c", "trap '' TERM; cat /dev/zero"], seconds=0.5, output_bytes=1000))
    assert result.timed_out
    assert len(result.output) == 1000


def test_detection_reports_why_bubblewrap_is_unavailable(tmp_path: Path) -> None:
    absent = probe("no-such-bwrap")
    assert (absent.name, absent.reason) == ("limits", "bubblewrap (bwrap) is not installed")
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    refused = probe(str(broken))
    assert refused.name == "limits"
    assert refused.reason == "bubblewrap does not work here: bwrap: No permissions to create new namespace"
    broken.write_text("not a program")
    assert "does not start" in probe(str(broken)).reason


def test_compilers_are_sandboxed_without_proc(tmp_path: Path) -> None:
    """Many containers forbid mounting /proc. Hosts and tools need a private one; compilers do not."""
    halfway = tmp_path / "bwrap"
    halfway.write_text("#!/bin/sh\ncase \"$*\" in *'--proc /proc'*) echo 'bwrap: Can not mount proc' >&2; exit 1;; esac\n")
    halfway.chmod(0o755)
    assert bubblewrap_reason(str(halfway)) == "bubblewrap does not work here: bwrap: Can not mount proc"
    assert probe(str(halfway)).name == "bubblewrap"


def test_detection_runs_once() -> None:
    assert asyncio.run(detect()) is asyncio.run(detect())


def test_a_later_bubblewrap_failure_is_not_a_compiler_error(bubblewrap: Confinement, tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match=r"bubblewrap failed 2 times: [^;]*absent[^;]*$"):
        asyncio.run(run_confined(["true"], bubblewrap, tmp_path, readable=(tmp_path / "absent",)))


def test_a_failed_start_is_retried_once_and_the_reason_is_logged(
    bubblewrap: Confinement, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "work").mkdir()
    once = dataclasses.replace(bubblewrap, executable=str(flaky(tmp_path)))  # type: ignore[type-var,call-arg]
    result = _confined(once, tmp_path / "work", "echo ran >> runs; echo done")
    assert (result.status, result.output) == (0, "done\n")
    assert (tmp_path / "work" / "runs").read_text() == "ran\n"
    assert "tried once more: Creating new namespace failed" in caplog.text


def test_a_command_that_fails_is_not_run_again(bubblewrap: Confinement, tmp_path: Path) -> None:
    assert _confined(bubblewrap, tmp_path, "echo ran >> runs; exit 3").status == 3
    assert (tmp_path / "runs").read_text() == "ran\n"


def test_a_probe_that_fails_once_finds_bubblewrap(
    bubblewrap: Confinement, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert probe(str(flaky(tmp_path))).name == bubblewrap.name
    assert "Creating new namespace failed" in caplog.text

"""The sandbox around a trial: what the judge may do in it, and what happens where it does not work."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import get_args

import pytest
from support.program import ROOT
from support.sandboxes import flaky

from engine.sandbox import trial_sandbox
from engine.sandbox.bubblewrap import bubblewrap_reason, filter_reason
from engine.sandbox.supervisor import REQUESTS, Orders, SandboxedCommand
from engine.sandbox.trial_sandbox import judge_reason
from engine.trial import client
from engine.trial import protocol as p
from engine.trial.client import JudgeClient, JudgeDied

needs_sandbox = pytest.mark.skipif(
    judge_reason() is not None or filter_reason() is not None, reason=str(judge_reason() or filter_reason())
)

DEVICES = """
import os

def changeable_devices():
    found = []
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        place = f"/dev/{name}"
        now = os.stat(place)
        changes = [
            lambda: os.chmod(place, now.st_mode & 0o7777), lambda: os.utime(place, ns=(now.st_atime_ns, now.st_mtime_ns)),
        ]
        for change in changes:
            try:
                change()  # to what it is
            except OSError:
                continue
            found.append(name)
    with open("/dev/null", "w") as null, open("/dev/urandom", "rb") as random:
        null.write("x")
        assert random.read(8)
    return found
"""
JUDGE = (
    DEVICES
    + """
import ctypes, json, os, signal, socket, sys, time
from engine.sandbox.supervisor import start_host

supervisor, engine = socket.socket(fileno=int(sys.argv[1])), socket.socket(fileno=int(sys.argv[2]))
libc = ctypes.CDLL(None, use_errno=True)

class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

def reads(pid, address):
    found = ctypes.create_string_buffer(7)
    here, there = Piece(ctypes.addressof(found), 7), Piece(address, 7)
    count = libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    return found.raw.decode() if count == 7 else os.strerror(ctypes.get_errno())

def attempt(act):
    try:
        act()
    except OSError as error:
        return type(error).__name__
    return "done"

ours, theirs = socket.socketpair()
host = start_host(supervisor, theirs.fileno(), 1)
address, *changeable = ours.recv(500).decode().split()
address = int(address)
def depth(pid):
    return len(open(f"/proc/{pid}/status").read().split("NSpid:")[1].splitlines()[0].split())

(here,) = [int(p) for p in os.listdir("/proc") if p.isdigit() and depth(p) > 1]
os.kill(here, signal.SIGSTOP)
seen = {"host's memory": reads(here, address)}
os.kill(here, signal.SIGCONT)
seen["supervisor's memory"] = reads(1, address)
seen["supervisor's files"] = attempt(lambda: os.listdir("/proc/1/root"))
seen["supervisor"] = attempt(lambda: os.kill(1, signal.SIGKILL))
seen["ptrace"] = libc.ptrace(16, here, 0, 0)
seen["namespace"] = libc.unshare(0x10000000)
seen["capabilities"] = [line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapEff", "CapPrm"))]
roots = [f"/proc/{p}/root" for p in os.listdir("/proc") if p.isdigit()]
seen["homes"] = [root for root in roots if attempt(lambda: os.listdir(root + sys.argv[3])) == "done"]
seen["devices"] = changeable_devices()
seen["host's devices"] = changeable
seen["sysctl"] = [root for root in roots if attempt(lambda: open(root + "/proc/sys/kernel/core_pattern", "a")) == "done"]
supervisor.send(b"no request")
seen["nonsense"] = json.loads(supervisor.recv(4096))
supervisor.send(json.dumps({"do": "end", "pid": 1}).encode())
seen["other's end"] = json.loads(supervisor.recv(4096))
host.kill()
seen["killed"] = host.poll()
engine.sendall(json.dumps(seen).encode())
time.sleep(60)
"""
)
HOST = (
    DEVICES
    + """
import ctypes, socket, sys, time
text = ctypes.create_string_buffer(b"written")
words = [str(ctypes.addressof(text)), *changeable_devices()]
socket.socket(fileno=int(sys.argv[1])).sendall(" ".join(words).encode())
time.sleep(60)
"""
)


@needs_sandbox
def test_the_judge_reads_hosts_and_reaches_nothing_else() -> None:
    home = tempfile.mkdtemp(dir="/var/tmp")
    engine, judge = socket.socketpair()
    ours, lifeline = socket.socketpair()
    variables = {"PYTHONPATH": str(ROOT), "PATH": os.defpath}
    script = [sys.executable, "-P", "-c", JUDGE, REQUESTS, str(judge.fileno()), home]
    channel = trial_sandbox.CHANNEL
    host = trial_sandbox.host("cpu", filtered=True, command=[sys.executable, "-P", "-c", HOST, channel])
    host = SandboxedCommand(host.argv, variables)
    orders = Orders(trial_sandbox.judge(script, variables, filtered=True), host, judge.fileno(), filtered=True)
    ours.sendall(orders.encode())
    with subprocess.Popen(
        trial_sandbox.outer(trial_sandbox.supervisor(lifeline.fileno()), "cpu"),
        pass_fds=(lifeline.fileno(), judge.fileno()), env=trial_sandbox.supervisor_environment(), stderr=subprocess.PIPE,
    ) as started:  # fmt: skip
        lifeline.close()
        judge.close()
        engine.settimeout(60)
        text = engine.recv(1 << 16)
        ours.close()
        assert started.wait(10) is not None, "it ends when the engine closes its socket"
        assert started.stderr is not None
        assert text, started.stderr.read().decode()
    engine.close()
    os.rmdir(home)
    seen = json.loads(text)
    assert seen.pop("capabilities") == ["0" * 16] * 2
    assert seen == {
        "host's memory": "written",
        "supervisor's memory": os.strerror(1),
        "supervisor's files": "PermissionError",
        "supervisor": "done",
        "ptrace": -1,
        "namespace": -1,
        "homes": [],
        "devices": [],
        "host's devices": [],
        "sysctl": [],
        "nonsense": {"error": "JSONDecodeError"},
        "other's end": {"error": "not a host"},
        "killed": -9,
    }


SPEAKS = """
import asyncio, json
from trial.ground import tiny
from engine.problem import catalog
from engine.trial.bench import Assignment, TrialBench

async def prepared():
    bench = TrialBench(Assignment(tiny(), catalog.workload_for(tiny(), "small"), "cpu"), lambda _: "")
    try:
        found = (await bench.prepare(lambda _: None, measure=False)).preparation
        print(json.dumps([found.sandbox, found.notes]))
    finally:
        await bench.close()

asyncio.run(prepared())
"""


@pytest.mark.slow
@pytest.mark.skipif(bubblewrap_reason() is not None, reason="needs bubblewrap")
def test_where_sandboxes_cannot_be_nested_the_reference_runs_outside_and_the_notes_say_so(tmp_path: Path) -> None:
    wrapper = tmp_path / "bin" / "bwrap"
    wrapper.parent.mkdir()
    fails = 'case "$*" in *--uid*) echo "bwrap: no nesting" >&2; exit 1;; esac'
    wrapper.write_text(f'#!/bin/sh\n{fails}\nexec /usr/bin/bwrap "$@"\n')
    wrapper.chmod(0o755)
    variables = {
        **os.environ, "PATH": f"{wrapper.parent}:{os.environ['PATH']}", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
        "ESPALIER_CACHE": str(tmp_path / "cache"),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", SPEAKS], env=variables, capture_output=True, text=True, timeout=120, check=False
    )
    sandbox, notes = json.loads(done.stdout or "[0, 0]")
    assert sandbox == "bubblewrap", done.stderr
    assert "the reference runs outside the sandbox: nested sandboxes do not work here: bwrap: no nesting" in notes


@needs_sandbox
def test_it_is_found_to_work_by_starting_it() -> None:
    judge_reason.cache_clear()
    assert judge_reason() is None


@pytest.mark.slow
@needs_sandbox
def test_a_judge_whose_sandbox_did_not_start_is_started_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    judge_reason()  # its probe is not the start that fails
    plain, script = trial_sandbox.outer, str(flaky(tmp_path))
    monkeypatch.setattr(trial_sandbox, "outer", lambda command, device: [script, *plain(command, device)[1:]])

    async def described() -> p.Reply:
        client = JudgeClient()
        try:
            await client.start("cpu")
            return await client.ask(p.DeviceRequest("cpu"), lambda _: None)
        finally:
            await client.close()

    assert isinstance(asyncio.run(described()), p.DeviceReply)
    assert "tried once more: Creating new namespace failed" in caplog.text
    Path(script).write_text("#!/bin/sh\necho 'bwrap: No room' >&2; exit 1\n")
    with pytest.raises(JudgeDied, match="the judge's process ended: bwrap: No room"):
        asyncio.run(described())


IMPOSTOR = """import socket, struct, sys
import msgspec
from engine.trial import protocol as p

channel = socket.socket(fileno=int(sys.argv[1]))
channel.recv(1 << 16)
body = msgspec.msgpack.encode(p.PlanReply(()))
channel.sendall(struct.pack("<I", len(body)) + body)
channel.recv(1)
"""


@pytest.mark.slow
def test_a_reply_to_another_request_ends_the_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that a reference has forked can write to the judge's channel."""

    async def not_here() -> str:
        return "not here"

    monkeypatch.setattr(trial_sandbox, "find_judge_reason", not_here)
    outside = client._outside
    monkeypatch.setattr(
        client, "_outside", lambda fd, device: ([sys.executable, "-c", IMPOSTOR, str(fd)], *outside(fd, device)[1:])
    )

    async def described() -> p.Reply:
        judge = JudgeClient()
        try:
            await judge.start("cpu")
            return await judge.ask(p.DeviceRequest("cpu"), lambda _: None)
        finally:
            assert not judge.running
            await judge.close()

    with pytest.raises(JudgeDied):
        asyncio.run(described())


def test_every_request_has_its_answers() -> None:
    assert set(p.ANSWERS) == set(get_args(p.Request))

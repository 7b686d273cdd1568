"""What a runner can see and reach, and what remains of it afterwards: with bubblewrap, and with resource limits only."""

from __future__ import annotations

import base64
import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.sandboxes import flaky
from trial.ground import WIDTH, BareRunner, marked, module, nothing_left_behind

import engine
from engine.domain.errors import ProblemError, SandboxError
from engine.domain.model import FailureKind
from engine.problem import catalog
from engine.sandbox import bubblewrap, python_process
from engine.sandbox.bubblewrap import bubblewrap_reason
from engine.trial.judge.failures import TrialFailed
from engine.trial.judge.judge import Judge
from engine.trial.judge.runners.host_client import Host
from engine.trial.messages import RunKernel
from engine.trial.protocol import OpenRequest


def confined() -> bool:
    return bubblewrap_reason() is None


@pytest.fixture(scope="module", params=["bubblewrap", pytest.param("limits", marks=pytest.mark.slow)])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    """A host, started with a key in our environment that it must not inherit."""
    if request.param == "bubblewrap" and not confined():
        pytest.skip(str(bubblewrap_reason()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "sk-not-for-strangers")
        patch.setenv("GEMINI_API_KEY", "nor-this-one")
        found = Host("cpu", 2, confined=request.param == "bubblewrap")
        found.start()
    yield found
    found.close()


@pytest.fixture
def mark() -> str:
    """A mark in the environment of every process that these tests start."""
    return next(p for p in os.environ["PYTHONPATH"].split(os.pathsep) if "mark" in p)


@pytest.fixture
def bare(host: Host) -> Iterator[BareRunner]:
    found = BareRunner(host)
    yield found
    found.close()


def evaluate(bare: BareRunner, expression: str) -> Any:
    """The value of a Python expression in a runner, read from the exception that it raises."""
    with pytest.raises(TrialFailed) as caught:
        bare.load(module(f"raise ValueError(json.dumps({expression}))")).call()
    return json.loads(caught.value.failure.reason.partition("ValueError: ")[2])


@pytest.mark.slow
def test_a_runner_computes_on_lent_inputs(bare: BareRunner) -> None:
    bare.x.fill_(3.0)
    assert bare.load(module("return x * 2")).call() == [6.0] * WIDTH
    bare.x.fill_(4.0)
    assert bare.call() == [8.0] * WIDTH


WOKEN = """
#include <poll.h>
#include <signal.h>

static struct pollfd sockets[64];
static int watched;
extern "C" int counts[2];
int counts[2];

static void woken(int) {
    counts[poll(sockets, watched, 0) > 0 ? 0 : 1]++;
}

extern "C" void watch(int fd) {
    sockets[watched++] = {fd, POLLIN, 0};
    signal(SIGCONT, woken);
}
"""
"""Counts how often the process was resumed with something to read, and without. It is C++, for a signal handler in Python
may run while the interpreter is in the middle of something and crash it."""


@pytest.fixture(scope="module")
def woken(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Lines that load ``WOKEN`` into a runner, from memory: it may see no file of ours."""
    folder = tmp_path_factory.mktemp("woken")
    (folder / "woken.cpp").write_text(WOKEN)
    subprocess.run(["g++", "-shared", "-fPIC", "-o", folder / "woken.so", folder / "woken.cpp"], check=True)
    return [
        "import base64, ctypes",
        "held = os.memfd_create('woken')",
        f"os.write(held, base64.b64decode({base64.b64encode((folder / 'woken.so').read_bytes())!r}))",
        "library = ctypes.CDLL(f'/proc/self/fd/{held}')",
        "counts = (ctypes.c_int * 2).in_dll(library, 'counts')",
        "links = {int(fd): f'/proc/self/fd/{fd}' for fd in os.listdir('/proc/self/fd')}",
        "for fd in [fd for fd, link in links.items() if os.path.islink(link) and os.readlink(link).startswith('socket:')]:",
        "    library.watch(fd)",
    ]


def test_the_order_is_sent_before_the_runner_is_resumed(
    host: Host, bare: BareRunner, woken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No clock would measure work done before the order. The judge waits after it resumed it: a late order would show."""
    resume = host.resume
    monkeypatch.setattr(host, "resume", lambda *of, **kinds: [resume(*of, **kinds), time.sleep(0.02)])
    bare.load(module("return x * 0 + torch.tensor([*counts] * 4)", before=woken))
    calls = [bare.call()[:2] for _ in range(4)]
    assert [b[0] - a[0] for a, b in itertools.pairwise(calls)] == [1.0, 1.0, 1.0]
    assert calls[0][1] == calls[-1][1]


class Stopped:
    """Waits right after a reply until the runner and its child have stopped, and keeps their states."""

    def __init__(self, runner: int) -> None:
        self._runner = runner
        self.states = ""

    def before(self) -> None:
        """Nothing to do."""

    def after(self) -> None:
        child = Path(f"/proc/{self._runner}/task/{self._runner}/children").read_text().strip()
        until = time.monotonic() + 5
        while (states := "".join(map(state_of, (self._runner, int(child))))) != "TT" and time.monotonic() < until:
            time.sleep(0.001)
        self.states = states


def state_of(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_runner_is_stopped_at_its_reply(bare: BareRunner) -> None:
    """What its threads did for the next call while the judge still reads outputs and counters was in no call's time."""
    child = "if os.fork() == 0:\n    while True: signal.pause()"
    bare.load(module("return x", before=child.splitlines()))
    process = bare.runner.process
    assert process is not None
    for _ in range(2):
        stopped = Stopped(process)
        bare.runner.call(RunKernel(0), (stopped,))
        assert stopped.states == "TT"


def test_a_runner_s_child_processes_run_during_its_calls(bare: BareRunner) -> None:
    asked = "ours.sendall(b'x'); return x * 0 + ours.recv(1)[0]"
    child = "ours, theirs = socket.socketpair()\nif os.fork() == 0:\n    while theirs.recv(1): theirs.sendall(b'A')"
    bare.load(module(asked, before=child.splitlines()))
    assert [bare.call()[0] for _ in range(3)] == [65.0, 65.0, 65.0]


def test_no_key_is_in_the_environment_of_runner_or_host(bare: BareRunner) -> None:
    seen = evaluate(bare, "sorted(n for n in os.environ if 'KEY' in n or 'TOKEN' in n or 'SECRET' in n)")
    assert seen == []


def test_a_runner_cannot_read_its_host(host: Host, bare: BareRunner) -> None:
    def attempt(mode: str) -> str:
        return f"(lambda: [open('/proc/%d/mem' % os.getppid(), {mode!r}), 'open'][1])()"

    if os.getuid() == 0 and not host.confined:
        pytest.skip("nothing is hidden from the superuser without a sandbox")
    with pytest.raises(TrialFailed, match="PermissionError"):
        bare.load(module(f"raise ValueError({attempt('r+b')})")).call()


class TestConfined:
    """Needs bubblewrap."""

    @pytest.fixture(scope="class")
    @classmethod
    def host(cls) -> Iterator[Host]:
        if not confined():
            pytest.skip(str(bubblewrap_reason()))
        found = Host("cpu", 2, confined=True)
        yield found
        found.close()

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "place",
        [
            str(Path.home()),
            str(Path(engine.__file__).parents[1] / "problems"),
            str(Path(engine.__file__).parents[1] / "tests"),
            "/etc/shadow",
            "/var",
            "/root",
        ],
    )
    def test_the_user_s_files_are_not_visible(self, bare: BareRunner, place: str) -> None:
        assert Path(place).exists() or place in ("/root",)
        readable = f"os.path.isfile({place!r}) or (os.path.isdir({place!r}) and os.listdir({place!r}))"
        seen = evaluate(bare, readable)
        assert not seen or not set(seen) & {p.name for p in Path(place).iterdir() if p.is_file()}

    @pytest.mark.parametrize("place", ["/bin/sh", "/sbin", "/usr/bin"])
    def test_system_programs_are_visible(self, bare: BareRunner, place: str) -> None:
        assert evaluate(bare, f"os.path.exists({place!r})") == Path(place).exists()

    def test_its_pid_here_is_known(self, bare: BareRunner) -> None:
        here = bare.runner.process
        assert here is not None
        within = Path(f"/proc/{here}/status").read_text().partition("NSpid:")[2].splitlines()[0].split()
        assert within == [str(here), str(evaluate(bare, "os.getpid()"))]

    def test_each_openmp_thread_has_its_own_core(self, bare: BareRunner) -> None:
        assert bare.load("import os, torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n"
                         "        return x * 0 + len(os.sched_getaffinity(0))").call() == [1.0] * 8  # fmt: skip
        cores, places = evaluate(bare, "[[min(os.sched_getaffinity(0))], os.environ['OMP_PLACES']]")
        assert cores == [min(os.sched_getaffinity(0))]
        assert places == ",".join(f"{{{core}}}" for core in sorted(os.sched_getaffinity(0)))

    def test_there_is_no_network(self, bare: BareRunner) -> None:
        assert evaluate(bare, "[n for _, n in socket.if_nameindex()]") in ([], ["lo"])

    def test_a_local_service_cannot_be_reached(self, bare: BareRunner) -> None:
        import socket

        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            socket.create_connection(("127.0.0.1", port), 5).close()
            with pytest.raises(TrialFailed) as caught:
                bare.load(module(f"socket.create_connection(('127.0.0.1', {port}), 2)")).call()
        assert "Error" in caught.value.failure.reason

    @pytest.mark.parametrize(
        "place", ["/new", "/usr/new", "/etc/new", "/dev/new", os.path.join(os.path.dirname(engine.__file__), "new.py")]
    )
    def test_only_private_folders_are_writable(self, bare: BareRunner, place: str) -> None:
        with pytest.raises(TrialFailed) as caught:
            bare.load(module(f"open({place!r}, 'w')")).call()
        assert "Error" in caught.value.failure.reason
        assert not os.path.exists(place)

    def test_no_other_tmpfs_is_writable(self, bare: BareRunner) -> None:
        rows = "[line.split()[1:4] for line in open('/proc/self/mounts')]"
        writable = f"[p for p, kind, how in {rows} if kind == 'tmpfs' and how.split(',')[0] == 'rw' and os.path.isdir(p)]"
        assert sorted(evaluate(bare, writable)) == ["/dev/shm", "/tmp"]

    def test_other_processes_cannot_be_seen(self, bare: BareRunner) -> None:
        assert evaluate(bare, f"os.path.exists('/proc/{os.getpid()}/stat') and {os.getpid()} > 1000") is False

    def test_the_host_cannot_be_killed_stopped_or_interrupted(self, host: Host, bare: BareRunner) -> None:
        lines = [f"os.kill(os.getppid(), signal.{name})" for name in ("SIGSTOP", "SIGINT", "SIGTERM", "SIGKILL")]
        bare.x.fill_(1.0)
        assert bare.load(module(*lines, "time.sleep(0.05)", "return x")).call() == [1.0] * WIDTH
        assert host._process is not None
        assert host._process.poll() is None

    @pytest.mark.slow
    def test_files_of_one_runner_are_removed_before_the_next(self, host: Host) -> None:
        write = (
            "for folder in ('/tmp', '/dev/shm'):",
            "    os.makedirs(folder + '/deep/er', exist_ok=True)",
            "    open(folder + '/deep/er/file', 'w').write('left')",
            "    os.symlink('/', folder + '/link')",
            "    os.chmod(folder + '/deep/er', 0)",
            "    os.chmod(folder + '/deep', 0)",
            "return x",
        )
        first = BareRunner(host)
        first.load(module(*write)).call()
        first.close()
        second = BareRunner(host)
        left = "[p for f in ('/tmp', '/dev/shm') for p in glob.glob(f + '/*') if not os.path.ismount(p)]"
        assert evaluate(second, left) == []
        second.close()

    @pytest.mark.slow
    def test_a_python_inside_a_private_folder_is_visible_and_read_only(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As after ``python -m venv /tmp/try``: it is read-only, and emptying the folder does not remove it."""
        python = tmp_path / "python"
        python.mkdir()
        (python / "there").write_text("yes")
        folders = list(python_process.python_folders())
        monkeypatch.setattr(python_process, "python_folders", lambda: [*folders, str(python)])
        host = Host("cpu", 2, confined=True)
        for _ in range(2):
            bare = BareRunner(host)
            there, folder = str(python / "there"), str(tmp_path)
            seen = f"[os.path.exists({there!r}), os.access({folder!r}, os.W_OK), os.listdir({folder!r})]"
            assert evaluate(bare, seen) == [True, False, ["python"]]
            bare.close()
            assert host._process is not None
        host.close()

    def test_private_folders_have_a_size_limit(self, host: Host) -> None:
        bare = BareRunner(host)
        size = evaluate(bare, "[os.statvfs(p).f_blocks * os.statvfs(p).f_frsize for p in ('/tmp', '/dev/shm')]")
        bare.close()
        assert max(size) <= 2 << 30


LEFT = {
    "a daemon in a session of its own": ("if os.fork() == 0:", "    os.setsid()", "    time.sleep(600)"),
    "one that ignores what can be ignored": (
        "if os.fork() == 0:",
        "    [signal.signal(n, signal.SIG_IGN) for n in range(1, 65) if n not in (9, 19, 32, 33)]",
        "    time.sleep(600)",
    ),
    "a grandchild whose parent has gone": (
        "if os.fork() == 0:",
        "    os.setsid()",
        "    if os.fork() == 0:",
        "        time.sleep(600)",
        "    os._exit(0)",
    ),
    "thirty at once": ("for _ in range(30):", "    if os.fork() == 0:", "        time.sleep(600)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("lines", LEFT.values(), ids=list(LEFT))
def test_processes_left_behind_are_killed(host: Host, lines: tuple[str, ...], mark: str) -> None:
    bare = BareRunner(host)
    already = set(marked(mark))
    bare.load(module(*lines, "return x")).call()
    left = set(marked(mark)) - already
    assert len(left) >= (30 if "range(30)" in lines[0] else 1)
    bare.close()
    deadline = time.monotonic() + 5
    while left & set(marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left & set(marked(mark))
    again = BareRunner(host)
    again.x.fill_(1.0)
    assert again.load(module("return x")).call() == [1.0] * WIDTH
    again.close()


def test_processes_outside_the_group_are_counted(host: Host) -> None:
    bare = BareRunner(host)
    bare.load(module("if os.fork() == 0:", "    os.setsid()", "    time.sleep(600)", "time.sleep(0.2)", "return x")).call()
    runner = bare.runner._runner
    assert runner is not None
    ended = host.reap(runner)
    bare.runner._runner = None
    bare.close()
    assert ended.killed == 1


def test_the_end_of_a_runner_is_waited_for_by_the_next_request(host: Host) -> None:
    """Ending a process with a device context takes a while, in which the judge draws inputs."""
    goes, stays = BareRunner(host), BareRunner(host)
    goes.load(module("return x"))
    stays.load(module("return x"))
    pid = goes.runner._runner.local_pid if goes.runner._runner is not None else None
    goes.close()
    assert host._ending == 1
    stays.x.fill_(3.0)
    assert stays.call() == [3.0] * WIDTH
    assert host._ending == 0
    assert pid is None or not os.path.exists(f"/proc/{pid}")
    stays.close()
    host.settle()
    assert host._ending == 0


@pytest.mark.slow
def test_a_host_that_dies_while_a_runner_ends_is_started_again(host: Host) -> None:
    BareRunner(host).close()
    assert host._process is not None
    host._process.kill()
    bare = BareRunner(host)
    bare.x.fill_(1.0)
    assert bare.load(module("return x")).call() == [1.0] * WIDTH
    bare.close()


def test_helper_processes_of_another_runner_survive(host: Host) -> None:
    """Processes that a module starts in its constructor must survive the end of another runner."""
    pipe = ("r, w = os.pipe()", "pid = os.fork()", "if pid == 0:", "    time.sleep(600)")
    stays, goes = BareRunner(host), BareRunner(host)
    stays.load(module("return x if os.waitpid(pid, os.WNOHANG) == (0, 0) else x * 0", before=pipe))
    goes.load(module("return x", before=pipe))
    goes.close()
    stays.x.fill_(2.0)
    assert stays.call() == [2.0] * WIDTH
    stays.close()


def test_a_frozen_runner_does_not_run(bare: BareRunner) -> None:
    """A thread that counts in lent memory runs during calls only."""
    before = (
        "import ctypes",
        "def count(out):",
        "    n = 0.0",
        "    while True:",
        "        n += 1.0",
        "        out[0] = n",
        "        time.sleep(0)",
        "arena = None",
        "for frame in iter(lambda f=[sys._getframe()]: f.__setitem__(0, f[0].f_back) or f[0], None):",
        "    arena = frame.f_locals.get('lent', arena)",
        "(out,) = arena.tensors(0, __import__('engine.domain.model').domain.model.Role.OUTPUT)",
        "threading.Thread(target=count, args=(out,), daemon=True).start()",
    )
    bare.load(module("time.sleep(0.05)", "return x", before=before))
    time.sleep(0.02)
    still = bare.values()[0]
    time.sleep(0.1)
    assert bare.values()[0] == still
    bare.runner._thaw_all()
    deadline = time.monotonic() + 10
    while bare.values()[0] == still and time.monotonic() < deadline:
        time.sleep(0.01)
    assert bare.values()[0] != still


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "kind", "reason"),
    [
        (("while True:", "    pass"), FailureKind.TIMED_OUT, "no reply within 2.1 s during the call; killed"),
        (("os.kill(os.getpid(), signal.SIGSTOP)", "return x"), FailureKind.TIMED_OUT, "no reply within"),
        (("os._exit(0)",), FailureKind.CRASHED, "its process exited during the call"),
        (("os.abort()",), FailureKind.CRASHED, "terminated by signal 6 (aborted) during the call"),
        (
            ("os.write(2, b'terminate called\\n  what():  no room\\n')", "os.abort()"),
            FailureKind.CRASHED,
            "terminated by signal 6 (aborted) during the call: no room",
        ),
        (("os.write(2, b'late')", "os._exit(3)"), FailureKind.CRASHED, "its process exited during the call: late"),
        (("raise ValueError('of its own')",), FailureKind.CRASHED, "ValueError: of its own"),
        (("raise ValueError('odd \\udc80')",), FailureKind.CRASHED, "ValueError: odd \\udc80"),
        (("raise SystemExit(0)",), FailureKind.CRASHED, "SystemExit: 0"),
        (("x[0] = 9", "return x.clone()"), FailureKind.CRASHED, "a write to an input"),
        (("return x[:3]",), FailureKind.MISMATCH, "has shape (3,) instead of (8,)"),
    ],
)
def test_each_way_to_fail_has_its_kind_and_reason(host: Host, lines: tuple[str, ...], kind: FailureKind, reason: str) -> None:
    bare = BareRunner(host, seconds=0.7 if kind is FailureKind.TIMED_OUT else 20)
    bare.load(module(*lines))
    with pytest.raises(TrialFailed) as caught:
        bare.call()
    bare.close()
    assert caught.value.failure.kind is kind
    assert reason in caught.value.failure.reason


def test_a_kernel_that_floods_its_standard_error_goes_on_and_no_other_runner_reads_it(host: Host) -> None:
    flooding, other = BareRunner(host), BareRunner(host)
    flooding.load(
        module("try:", "    os.write(2, b'x' * 300_000), os.write(2, b'y')", "except OSError:", "    pass", "return x.clone()")
    )
    flooding.call()
    count = "sum(stat.S_ISFIFO(os.fstat(f).st_mode) for f in opened())"
    opened = ("import stat", "def opened():", "    return [f for f in range(1024) if os.path.exists(f'/proc/self/fd/{f}')]")
    other.load(module(f"raise ValueError('pipes: ' + str({count}))", before=opened))
    with pytest.raises(TrialFailed, match="ValueError: pipes: 1"):
        other.call()
    flooding.close()


@pytest.mark.slow
def test_a_runner_ends_with_its_host(mark: str) -> None:
    host = Host("cpu", 1, confined=confined())
    already = set(marked(mark))
    bare = BareRunner(host)
    bare.load(module("return x", before=("os.fork() or time.sleep(600)",)))
    assert len(set(marked(mark)) - already) >= 3
    host.close()
    deadline = time.monotonic() + 10
    while set(marked(mark)) - already and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not set(marked(mark)) - already
    bare.close()


@pytest.mark.slow
@pytest.mark.skipif(not confined(), reason="needs bubblewrap")
def test_a_host_whose_sandbox_did_not_start_is_started_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bubblewrap.filter_reason()  # its probe is not the start that fails
    monkeypatch.setenv("PATH", f"{flaky(tmp_path).parent}:{os.environ['PATH']}")
    host = Host("cpu", 1, confined=True)
    host.start()
    host.close()
    assert "tried once more: Creating new namespace failed" in caplog.text
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'bwrap: No room' >&2; exit 1\n")
    with pytest.raises(SandboxError, match="did not start: bwrap: No room; then bwrap: No room"):
        host.start()


@pytest.mark.slow
def test_a_dead_host_is_restarted(host: Host) -> None:
    assert host._process is not None
    host._process.kill()
    host._process.wait()
    bare = BareRunner(host)
    bare.x.fill_(1.0)
    assert bare.load(module("return x")).call() == [1.0] * WIDTH
    bare.close()


def test_resource_limits_of_a_runner(bare: BareRunner) -> None:
    found = evaluate(bare, "[__import__('resource').getrlimit(n)[0] for n in (4, 1, 7, 2)]")
    core, file_size, files, data = found
    assert core == 0
    assert 0 < file_size <= 2 << 30
    assert 0 < files <= 1024
    assert 0 < data < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_a_problem_that_does_not_open_ends_its_hosts(tmp_path: Path) -> None:
    (tmp_path / "reference.py").write_text(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        raise ValueError('no')\n"
        "def get_inputs():\n    return [torch.rand(4)]\ndef get_init_inputs():\n    return []\n"
    )
    problem = catalog.find(str(tmp_path))
    request = OpenRequest(
        problem, problem.workloads[0], (), "cpu", "class", "eager", (), True, confined(), prepares=True
    )  # fmt: skip
    with nothing_left_behind(tmp_path / "mark"), pytest.raises(ProblemError):
        Judge(request)


def test_trusted_runners_that_are_ended_together_end_at_the_same_time() -> None:
    """Their host kills one after the other, and on a GPU each takes a tenth of a second to end."""
    host = Host("cpu", 2, confined=False)
    host.start()
    runners = [host.spawn() for _ in range(3)]
    host.freeze(runners[0])  # as between calls: one that runs ends by itself once its channel is closed
    assert host._process is not None
    os.kill(host._process.pid, signal.SIGSTOP)
    for runner in runners:
        host.end(runner, trusted=True)
    until = time.monotonic() + 20
    while not all(_state(runner.pid) == "Z" for runner in runners) and time.monotonic() < until:
        time.sleep(0.01)
    assert [_state(runner.pid) for runner in runners] == ["Z"] * 3
    os.kill(host._process.pid, signal.SIGCONT)
    host.settle()
    assert not any(Path(f"/proc/{runner.pid}").exists() for runner in runners)
    host.close()


def _state(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]

"""A reference that attacks the machine: after ``espalier eval`` of it, nothing outside its sandbox has changed or was read."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.program import command, environment
from trial.ground import nothing_left_behind

import engine
from engine.sandbox.trial_sandbox import judge_reason

pytestmark = [
    pytest.mark.skipif(judge_reason() is not None, reason=str(judge_reason())),
    pytest.mark.timeout(500),  # whole evaluations, which other work on the machine prolongs
]

REFERENCE = """
import os, signal, socket, time
import torch
from torch import nn

def attempt(act):
    try:
        return act()
    except OSError:
        return None

def leave(place):
    with open(place, "a") as file:
        file.write("left")

attacks = 0

def attack():
    global attacks
    attacks += 1
    if attacks > 3:
        return
    for place in {places!r}:
        attempt(lambda: leave(place))
    attempt(lambda: socket.create_connection(("127.0.0.1", {port}), 1).sendall(b"hello"))
    for secret in {secrets!r}:
        if attempt(lambda: open(secret).read()):
            raise RuntimeError("read a secret")
    if [name for name in os.environ if "KEY" in name]:
        raise RuntimeError("found a key")
    if os.fork() == 0:
        os.setsid()
        os.closerange(0, 64)
        time.sleep(600)
        os._exit(0)
    {more}

attack()

class Model(nn.Module):
    def forward(self, x):
        attack()
        return x * 2 + 1

def get_inputs():
    return [torch.randn(256)]

def get_init_inputs():
    return []
"""
KERNEL = """extern "C" void launch(const float* x, float* out, void*)
{
    for (int i = 0; i < 256; ++i) out[i] = x[i] * 2 + 1;
}
"""
KILLS = """for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            attempt(lambda: os.kill(int(name), signal.SIGKILL))"""
CHECKOUT = Path(engine.__file__).parents[1]


@pytest.fixture
def home() -> Iterator[Path]:
    """A home with a secret, outside the folders that are private in every sandbox."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    (folder / ".ssh").mkdir()
    (folder / ".ssh" / "id_ed25519").write_text("a private key")
    (folder / "cache").mkdir()
    yield folder
    shutil.rmtree(folder)


def evaluate(home: Path, tmp_path: Path, more: str = "pass") -> tuple[int, str]:
    """Exit status and output of an evaluation; asserts that no attack has reached anything."""
    places = [home / "left", home / "cache" / "left", home / "cache" / "peaks" / "left.json", CHECKOUT / "left"]
    places += [CHECKOUT / "engine" / "left.py", Path("left"), Path("/etc/left"), Path("/proc/sys/kernel/core_pattern")]
    pattern = places[-1].read_text()
    (tmp_path / "kernel.cpp").write_text(KERNEL)
    with socket.create_server(("127.0.0.1", 0)) as server, nothing_left_behind(tmp_path / "mark"):
        text = REFERENCE.format(
            places=[str(place) for place in places], port=server.getsockname()[1], more=more,
            secrets=[str(home / ".ssh" / "id_ed25519"), "/etc/shadow", "/proc/1/environ", "/proc/1/root/etc/shadow"],
        )  # fmt: skip
        (tmp_path / "hostile.py").write_text(text)
        variables = environment(tmp_path) | {
            "HOME": str(home), "ESPALIER_CACHE": str(home / "cache"), "OPENAI_API_KEY": "sk-secret",
            "PYTHONPATH": f"{CHECKOUT}:{tmp_path / 'mark'}",
        }  # fmt: skip
        done = subprocess.run(
            command("eval", tmp_path / "hostile.py", tmp_path / "kernel.cpp", "--device", "cpu"),
            env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=420, check=False,
        )  # fmt: skip
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert not [place for place in (*places[:-2], tmp_path / "left") if place.exists()]
    assert places[-1].read_text() == pattern
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_reference_reaches_nothing_outside_its_sandbox(home: Path, tmp_path: Path) -> None:
    status, output = evaluate(home, tmp_path)
    assert "verified" in output, output
    assert "secret" not in output
    assert "found a key" not in output
    assert status != 2, output


@pytest.mark.slow
def test_a_reference_that_kills_all_it_sees_ends_its_own_trial_only(home: Path, tmp_path: Path) -> None:
    status, output = evaluate(home, tmp_path, KILLS)
    assert status == 2, output
    assert "the judge's process ended" in output
    assert "Traceback" not in output


@pytest.mark.slow
def test_a_reference_that_ends_its_process_is_named(tmp_path: Path) -> None:
    text = "import os\nfrom torch import nn\nclass Model(nn.Module): pass\ndef get_inputs(): return os._exit(0)\n"
    (tmp_path / "ends.py").write_text(text + "def get_init_inputs(): return []\n")
    done = subprocess.run(
        command("scaffold", tmp_path / "ends.py", "--dialect", "cpp"),
        env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("espalier: ends: the judge's process ended while it ran the reference: correct the reference")


@pytest.mark.slow
def test_a_process_that_a_reference_forks_does_not_judge_beside_it(tmp_path: Path) -> None:
    (tmp_path / "forks.py").write_text(
        "import os, torch\nfrom torch import nn\nos.fork()\n\n\nclass Model(nn.Module):\n"
        "    def forward(self, x):\n        os.forks = getattr(os, 'forks', 0) + 1\n        if os.forks <= 4:\n"
        "            os.fork()\n        return x * 2 + 1\n\n\n"
        "def get_inputs():\n    return [torch.randn(256)]\n\n\ndef get_init_inputs():\n    return []\n"
    )
    (tmp_path / "kernel.cpp").write_text(KERNEL)
    done = subprocess.run(
        command("eval", tmp_path / "forks.py", tmp_path / "kernel.cpp", "--device", "cpu"),
        env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, timeout=420, check=False,
    )  # fmt: skip
    assert "verified" in done.stdout, done.stderr

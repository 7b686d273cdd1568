"""The program on a small problem with the real compiler, judge and sandbox. Verdicts are checked, times are not."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from support.program import SHRINK, CommandResult, command, environment

from engine.cli.exit_codes import DOUBTED

RIGHT = """#include "problem.h"
// @tune STEP = 1, 2
extern "C" void launch(const x_t* x, const weight_t* weight, out_t* out, void*)
{
    for (long i = 0; i < X_NUMEL; ++i) {
        const float v = x[i] * weight[i % X_DIM1] - 0.25f;
        out[i] = v > 0.0f ? v : 0.0f;
    }
}
"""


@dataclass(frozen=True)
class Numbers:
    value: float
    low: float
    high: float


class Device(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arch: str


class Checked(msgspec.Struct, forbid_unknown_fields=True):
    policy: str
    trials: int
    rel_fro: float
    max_abs: float
    precision_class: str
    chance_holdout: str
    caveats: list[str]


class Times(msgspec.Struct, forbid_unknown_fields=True):
    median: float
    low: float
    high: float
    samples: int


class Light(msgspec.Struct, forbid_unknown_fields=True):
    bound: str
    floor_us: float
    fraction: float


class Seconds(msgspec.Struct, forbid_unknown_fields=True):
    build: float
    verify: float | None
    measure: float | None
    sustained: float | None
    wait: float


class Against(msgspec.Struct, forbid_unknown_fields=True):
    kernel: str
    speedup: Numbers
    difference: str
    processes: int
    corroborated: bool
    conditions: list[str]
    doubts: list[str]
    regime: str


class Claimed(msgspec.Struct, forbid_unknown_fields=True):
    time_us: Times
    speedup: dict[str, Numbers | None]
    speed_of_light: Light | None


class Load(msgspec.Struct, forbid_unknown_fields=True):
    sm_mhz: float | None
    watts: float | None


class Single(msgspec.Struct, forbid_unknown_fields=True):
    time_us: Numbers
    speedup: dict[str, Numbers]
    device: Load | None


class BackToBack(msgspec.Struct, forbid_unknown_fields=True):
    time_us: Numbers
    speedup: dict[str, Numbers]
    device: Load
    baseline_device: Load
    calls: int
    processes: int
    corroborated: bool
    conditions: list[str]
    doubts: list[str]


class Regimes(msgspec.Struct, forbid_unknown_fields=True):
    deciding: str
    single: Single
    sustained: BackToBack | None
    disagreement: str


class Verdict(msgspec.Struct, forbid_unknown_fields=True):
    """The object that scripts rely on, to the letter; ``against`` only where it was asked for."""

    problem: str
    kernel: str
    dialect: str
    contract: str
    device: Device
    workload: str
    status: str
    reason: str | None
    mismatches: list[dict[str, object]]
    failed_on: dict[str, object] | None
    corroborated: bool
    quarantined: bool
    conditions: list[str]
    doubts: list[str]
    verification: Checked | None
    time_us: Times | None
    speedup: dict[str, Numbers | None]
    speed_of_light: Light | None
    claimed: Claimed | None
    sandbox: str
    seconds: Seconds
    included: list[str]
    limit: str
    suite: str | None
    workloads: list[object]
    worst: str | None
    choices: list[object]
    regimes: Regimes | None
    against: Against | None = None


@dataclass(frozen=True)
class Place:
    """A folder with the problem, kernels and one session searched in it."""

    folder: Path
    searched: CommandResult

    @property
    def env(self) -> Mapping[str, str]:
        return environment(self.folder / "home")

    @property
    def session(self) -> Path:
        return self.folder / "session"

    def call(self, *arguments: object) -> CommandResult:
        done = subprocess.run(
            command(*arguments), env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=120, check=False
        )
        return CommandResult(done.returncode, done.stdout, done.stderr)


SMALL = ("--device", "cpu", "--headless", "--rounds", "1", "--ideas", "1", "--branch", "1", "--sol", "none")
"""Operands of 64 KB stay in a core's cache, so that the fraction of SOL is anything: it must not end the session."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("real")
    (folder / "shrink.py").write_text(SHRINK)
    (folder / "right.cpp").write_text(RIGHT)
    bare = Place(folder, CommandResult(0, "", ""))
    return Place(folder, bare.call("run", "shrink.py", *SMALL, "--session", "session", "--json"))


def test_a_problem_without_a_playbook_gets_a_naive_port(place: Place) -> None:
    found = place.searched.json()
    assert place.searched.status == (0 if found["best"] else DOUBTED), place.searched.err
    assert (found["problem"], found["device"]["label"], found["rounds"], found["kernels"], found["verified"]) == (
        "shrink",
        "cpu",
        1,
        1,
        1,
    )
    if found["best"]:  # beside heavy load the time of the only kernel may not be corroborated
        assert (found["best"]["kernel"], found["best"]["idea"]) == ("k1", "Naive port")
    assert "no more ideas" in place.searched.err
    again = place.call("replay", "session", "--headless", "--json")
    assert again.json() == found


def verdict_in(text: str) -> Verdict:
    """The verdict in printed JSON, where null in an interval stands for infinity: JSON cannot write it."""
    return msgspec.convert(with_infinities(json.loads(text)), Verdict)


def with_infinities(plain: object) -> object:
    if isinstance(plain, list):
        return [with_infinities(one) for one in plain]
    if not isinstance(plain, dict):
        return plain
    is_interval = plain.keys() == {"value", "low", "high"}
    return {name: math.inf if is_interval and one is None else with_infinities(one) for name, one in plain.items()}


@pytest.mark.slow
def test_a_correct_kernel_is_measured_and_compared_with_another(place: Place) -> None:
    result = place.call("eval", "shrink.py", "right.cpp", "--json", "--tune", "STEP=2", "--against", "right.cpp")
    found = verdict_in(result.out)
    assert (found.problem, found.kernel, found.dialect, found.contract) == ("shrink", "right.cpp", "cpp", "host")
    assert (found.status, found.quarantined, found.workload) == (confirmed(found), False, "full")
    assert found.against is not None
    assert result.status == (DOUBTED if found.doubts or found.against.doubts else 0), result.out + result.err
    assert found.verification is not None
    assert found.verification.precision_class == "fp32"
    assert found.time_us is not None
    assert found.time_us.low <= found.time_us.median <= found.time_us.high
    assert list(found.speedup) == ["eager", "eager_tf32", "compile"]
    assert found.speedup["eager"] is not None
    assert found.speedup["compile"] is None
    assert found.regimes is not None
    assert (found.regimes.deciding, found.regimes.sustained) == ("single", None)
    assert found.against.regime == found.regimes.deciding
    assert found.against.difference in ("faster", "slower", "no measurable difference", "not corroborated")


@pytest.mark.slow
def test_a_kernel_is_timed_back_to_back_where_that_decides(place: Place) -> None:
    result = place.call("eval", "shrink.py", "right.cpp", "--json", "--regime", "sustained")
    found = verdict_in(result.out)
    assert found.regimes is not None
    assert found.regimes.deciding == "sustained"
    assert found.regimes.sustained is not None, found.conditions
    assert found.regimes.sustained.speedup["eager"].value > 0


def confirmed(found: Verdict) -> str:
    """The status of a correct kernel. Beside heavy load the time of an honest one may not be corroborated, which is said."""
    assert found.corroborated is not bool(found.doubts)
    assert found.corroborated is (found.reason is None)
    return "measured" if found.corroborated else "not_corroborated"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        pytest.param("foo();", "build_failed", "foo", marks=pytest.mark.slow),
        pytest.param("out[0] = x[0];", "mismatch", "out", marks=pytest.mark.slow),
        pytest.param("*(volatile int*)nullptr = 1;", "crashed", "", marks=pytest.mark.slow),
    ],
)
def test_a_failed_kernel_has_a_verdict(place: Place, body: str, status: str, words: str) -> None:
    file = place.folder / f"{status}.cpp"
    file.write_text(
        f'#include "problem.h"\nextern "C" void launch(const x_t* x, const weight_t* weight, out_t* out, void*) {{ {body} }}\n'
    )
    result = place.call("eval", "shrink.py", file, "--json")
    assert result.status == 1, result.err
    found = verdict_in(result.out)
    assert found.status == status
    assert found.reason is not None
    assert words in found.reason
    assert found.time_us is None
    assert "\n" not in found.reason


@pytest.mark.slow
def test_a_model_new_has_the_module_contract(place: Place) -> None:
    (place.folder / "new.py").write_text(SHRINK.replace("Model", "ModelNew"))
    result = place.call("eval", "shrink.py", "new.py", "--device", "cpu")
    assert result.status in (0, DOUBTED), result.out + result.err
    assert "the weakest guarantee" in result.out


@pytest.mark.slow
def test_rerun_compares_with_the_recording(place: Place) -> None:
    result = place.call("rerun", "session", "--kernels", "k1", "--json")
    found = result.json()
    (kernel,) = found["kernels"]
    assert kernel["kernel"] == "k1"
    assert kernel["status"] == ("measured" if kernel["corroborated"] else "not_corroborated")
    assert result.status == (0 if kernel["corroborated"] else DOUBTED), result.out + result.err
    assert kernel["recorded"]["time_us"]["value"] > 0
    assert kernel["here"]["time_us"]["value"] > 0
    assert found["recorded_on"] == found["device"]


@pytest.mark.slow
def test_the_exported_module_agrees_with_the_reference(place: Place) -> None:
    assert place.call("export", "session", "--kernel", "k1", "-o", "best.py").status in (0, DOUBTED)
    script = place.folder / "check.py"
    script.write_text(
        "import torch, best\n"
        "mine, theirs = best.ModelNew(*best.get_init_inputs()), best.Model(*best.get_init_inputs())\n"
        "mine.load_state_dict(theirs.state_dict())\n"
        "for _ in range(3):\n"
        "    x, floor = best.get_inputs()\n"
        "    torch.testing.assert_close(mine(x, floor=floor), theirs(x, floor))\n"
        "try:\n    mine(torch.zeros(3, 500), 0.25)\nexcept ValueError as error:\n    print(error)\n"
    )
    done = subprocess.run([*command()[:1], script], cwd=place.folder, capture_output=True, text=True, timeout=100, check=True)
    assert "expected torch.float32 (32, 500)" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU here")
def test_a_scaffold_in_cuda_is_judged_on_a_machine_with_a_gpu(place: Place) -> None:
    result = place.call("scaffold", "shrink.py", "--dialect", "cuda", "-o", "first.cu")
    assert "next, on a machine with a GPU: espalier eval shrink.py first.cu" in result.err


@pytest.mark.slow
def test_a_scaffold_is_written_and_not_overwritten(place: Place) -> None:
    result = place.call("scaffold", "shrink.py", "--dialect", "cpp", "-o", "first.cpp")
    assert result.status == 0, result.err
    assert "next: espalier eval shrink.py first.cpp" in result.err
    assert "launch(" in (place.folder / "first.cpp").read_text()
    assert "already exists" in place.call("scaffold", "shrink.py", "--dialect", "cpp", "-o", "first.cpp").error_line()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_search_prints_how_to_resume(place: Place, number: signal.Signals) -> None:
    session = place.folder / f"interrupted-{number.name}"
    running = subprocess.Popen(
        command("run", "shrink.py", *SMALL, "--session", session), env=place.env, cwd=place.folder, stderr=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (session / "journal.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    running.send_signal(number)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130, err
    assert out == ""
    assert err.splitlines()[-1] == f"espalier: interrupted; resume with `espalier open {session}`"
    first = json.loads((session / "journal.jsonl").read_text().splitlines()[0])
    assert first["kind"] == "session.opened"


def test_a_session_folder_holds_journal_blobs_and_lock(place: Place) -> None:
    assert sorted(path.name for path in place.session.iterdir()) == ["blobs", "journal.jsonl", "lock"]

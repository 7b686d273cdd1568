"""Doubt is never silent: fields, statuses and exit statuses of kernels that are not corroborated, or quarantined."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import builders as b
from support import sessions
from support.program import Call
from support.scripted import ScriptedProposer

from engine.api import evaluation as evaluating
from engine.cli import rerun as rerunning
from engine.cli.exit_codes import BAD_INPUT, DONE, DOUBTED, FAILED, INTERRUPTED
from engine.domain import work as w
from engine.domain.errors import EspalierError
from engine.domain.model import Failure, FailureKind, Measurement
from engine.domain.regimes import Regime
from engine.domain.settings import Limits
from engine.session.fake_bench import FAKE_CPU
from engine.session.live import LiveSession
from engine.session.workbench import KernelTrial
from engine.trial.kernel_builds import KernelSpec

DOUBT = "not corroborated: planted"
EVIDENCE = "planted: suspicious"
DOUBTS_OF = {"k2": [DOUBT], "k3": [EVIDENCE]}


def searched(home: Path, root: str) -> Path:
    """A session whose fastest kernels are doubted: k2 (10×) is not corroborated, k3 (20×) is quarantined."""
    ideas = ScriptedProposer(
        rounds={
            0: (sessions.proposal("root", None),),
            1: (sessions.proposal("doubted", "k1", 0), sessions.proposal("fast", "k1", 1)),
        },
        drafts={
            "root": (sessions.draft("root", root),),
            "doubted": (sessions.draft("a", "uncorroborated\n// FAKE: time_us = 100"),),
            "fast": (sessions.draft("b", "suspicious\n// FAKE: time_us = 50"),),
        },
    )
    folder = home / "sessions" / "doubted"

    async def search() -> None:
        opened = sessions.opened(limits=Limits(rounds=1))
        async with LiveSession.create(folder, opened, sessions.ports(folder, ideas)) as live:
            await live.run()

    sessions.run(search)
    return folder


@pytest.fixture
def doubted(home: Path) -> Path:
    return searched(home, "time_us = 900")


@pytest.fixture
def unsure(home: Path) -> Path:
    """A session without a kernel whose time is corroborated."""
    return searched(home, "uncorroborated\n// FAKE: time_us = 900")


@pytest.mark.parametrize("command", [("replay", "doubted", "--headless"), ("session", "show", "doubted")])
def test_a_summary_names_the_doubted_kernels_and_none_of_them_is_the_best(
    espalier: Call, doubted: Path, command: tuple[str, ...]
) -> None:
    found = espalier(*command, "--json").json()
    assert found["best"]["kernel"] == "k1"
    assert (found["best"]["corroborated"], found["best"]["quarantined"], found["best"]["doubts"]) == (True, False, [])
    assert found["best"]["conditions"] == ["pretended"]
    assert {one["kernel"]: one["doubts"] for one in found["doubted"]} == DOUBTS_OF
    assert [one["status"] for one in found["doubted"]] == ["not_corroborated", "quarantined"]
    assert [(one["corroborated"], one["quarantined"]) for one in found["doubted"]] == [(False, False), (True, True)]


def test_a_list_of_kernels_marks_every_doubt(espalier: Call, doubted: Path) -> None:
    listed = {one["kernel"]: one for one in espalier("kernel", "list", "doubted", "--json").json()["kernels"]}
    assert {name: one["status"] for name, one in listed.items()} == {
        "k1": "measured", "k2": "not_corroborated", "k3": "quarantined",
    }  # fmt: skip
    assert {name: one["doubts"] for name, one in listed.items()} == {"k1": [], **DOUBTS_OF}
    assert [one["corroborated"] for one in listed.values()] == [True, False, True]
    assert [one["quarantined"] for one in listed.values()] == [False, False, True]
    assert listed["k2"]["speedup"]["eager"]["value"] == pytest.approx(10.0), "given, and marked"
    assert (listed["k3"]["time_us"], listed["k3"]["speedup"]) == (None, {}), "no result"
    assert listed["k3"]["claimed"]["speedup"]["eager"]["value"] == pytest.approx(20.0)
    assert listed["k2"]["claimed"] is None
    ranked = espalier("kernel", "list", "doubted", "--verified", "--json").json()["kernels"]
    assert [one["kernel"] for one in ranked] == ["k1", "k2"], "best first, and a doubted claim is not the best"


def test_the_texts_say_what_is_doubted_and_why(espalier: Call, doubted: Path) -> None:
    tree = espalier("replay", "doubted", "--headless").out
    assert f"doubted    k3 quarantined: {EVIDENCE}\ndoubted    k2 {DOUBT}\n" in tree
    shown = espalier("kernel", "show", "doubted", "k2").out
    assert "k2 Idea doubted: not corroborated" in shown
    assert f"doubt     {DOUBT}" in shown
    assert "10.00× [9.90, 10.10] over eager: not corroborated" in shown
    claim = espalier("kernel", "show", "doubted", "k3").out
    assert f"doubt     {EVIDENCE}" in claim
    assert "over eager: a claim, not a result" in claim
    story = espalier("replay", "doubted", "--headless", "--story").out
    assert f"k2 measured: 100 µs [99, 101], 10.00× [9.90, 10.10] over eager, 50% of SOL, 5 process pairs; {DOUBT}" in story
    assert "round 1 closed: 2 kernels, 0 measured, 1 not corroborated, 1 quarantined" in story


def test_a_search_without_a_corroborated_time_has_its_own_exit_status(espalier: Call, unsure: Path) -> None:
    result = espalier("open", "doubted", "--headless")
    assert result.status == DOUBTED
    assert "no kernel whose time is corroborated" in result.out
    found = espalier("open", "doubted", "--json")
    assert (found.status, found.json()["best"], len(found.json()["doubted"])) == (DOUBTED, None, 3)
    (listed,) = [one for one in espalier("session", "list", "--json").json()["sessions"] if one["name"] == "doubted"]
    assert (listed["best"], listed["doubted"]) == (None, ["k1", "k2", "k3"])
    assert "no kernel whose time is corroborated" in espalier("session", "list").out


def test_an_accepted_kernel_keeps_its_doubts(espalier: Call, doubted: Path) -> None:
    assert espalier("kernel", "accept", "doubted", "k3", "counted the bytes").status == DONE
    found = espalier("kernel", "show", "doubted", "k3", "--json").json()
    assert (found["status"], found["quarantined"], found["accepted"]) == ("measured", False, "counted the bytes")
    assert found["doubts"] == [EVIDENCE]
    assert found["speedup"]["eager"]["value"] == pytest.approx(20.0)


def test_the_bank_holds_no_doubted_kernel_and_tells_what_was_dismissed(espalier: Call, doubted: Path) -> None:
    def own() -> dict[str, Any]:
        listed = espalier("bank", "--json").json()["kernels"]
        return {one["kernel"]: one for one in listed if one["session"] == str(doubted)}

    assert set(own()) == {"k1"}
    espalier("kernel", "accept", "doubted", "k3", "counted the bytes")
    assert {name: one["doubts"] for name, one in own().items()} == {"k1": [], "k3": [EVIDENCE]}
    assert f"accepted in spite of: {EVIDENCE}" in espalier("bank").out


# one kernel, outside a session: a bench whose verdict is given


TIMED = b.measurement(2.0)
UNSURE = replace(TIMED, corroborated=False, doubts=(DOUBT,))
FINALS: dict[str, tuple[Any, int]] = {
    "measured": (w.Measured(TIMED, 1.0), DONE),
    "not_corroborated": (w.Measured(UNSURE, 1.0), DOUBTED),
    "quarantined": (w.Suspected((EVIDENCE,), None, UNSURE, 1.0), DOUBTED),
    "mismatch": (w.Failed(Failure(FailureKind.MISMATCH, "wrong")), FAILED),
}


class GivenBench:
    """A workbench that answers every kernel with the given trials, in turn."""

    def __init__(self, finals: list[Any], raced: Measurement = TIMED) -> None:
        self.device, self.signature, self.preparation = FAKE_CPU, b.signature(), b.preparation()
        self.bench = self
        self._finals = finals
        self._raced = raced
        self.ahead: list[tuple[str, int]] = []

    def build_ahead(self, kernels: Iterable[KernelSpec]) -> None:
        self.ahead += [(kernel.name, kernel.tunables["STEP"]) for kernel in kernels]

    def say(self, text: str) -> None:
        """Nobody listens."""

    async def attempt(self, kernel: object) -> KernelTrial:
        final = self._finals.pop(0)
        return KernelTrial(final, b.verification(), 0.1, 0.2, 0.3)

    async def sustain(self, kernel: object, tried: KernelTrial) -> KernelTrial:
        assert isinstance(tried.final, w.Measured)
        measured = replace(tried.final.measurement, sustained=b.sustained(1.2))
        return replace(tried, final=replace(tried.final, measurement=measured))

    async def try_verify(self, kernel: object, say: object) -> w.Verified:
        return w.Verified(b.verification(), TIMED, 0.1)

    async def versus(self, kernel: object, other: object, say: object, *, regime: Regime) -> w.Measured:
        return w.Measured(replace(self._raced, speedup={"other": self._raced.speedup["eager"]}), 0.1, regime=regime)


def given(monkeypatch: pytest.MonkeyPatch, module: Any, bench: GivenBench) -> None:
    @asynccontextmanager
    async def open_given(*_: object, **__: object) -> AsyncIterator[GivenBench]:
        yield bench

    monkeypatch.setattr(module, "open_workbench", open_given)


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    file = tmp_path / "kernel.cpp"
    file.write_text('// @tune STEP = 1, 2, 4\nextern "C" void launch(const float* x, float* out, void*) {}\n')
    return file


@pytest.mark.parametrize("status", list(FINALS))
def test_eval_has_a_status_and_an_exit_status_for_each_verdict(
    espalier: Call, monkeypatch: pytest.MonkeyPatch, kernel: Path, status: str
) -> None:
    final, exit_status = FINALS[status]
    given(monkeypatch, evaluating, GivenBench([final]))
    result = espalier("eval", "softmax", kernel, "--device", "cpu", "--json")
    found = result.json()
    assert (found["status"], result.status) == (status, exit_status)
    doubts = {"not_corroborated": [DOUBT], "quarantined": [EVIDENCE, DOUBT]}.get(status, [])
    assert found["doubts"] == doubts
    assert (found["corroborated"], found["quarantined"]) == (status == "measured", status == "quarantined")
    assert (found["reason"] is None) is (status == "measured")
    assert (found["time_us"] is None) is (status in ("quarantined", "mismatch"))
    assert (found["speedup"]["eager"] is None) is (status in ("quarantined", "mismatch"))
    assert (found["claimed"] is not None) is (status == "quarantined")
    assert not set(doubts) & set(found["conditions"])


def test_eval_prints_every_doubt_and_what_to_do(espalier: Call, monkeypatch: pytest.MonkeyPatch, kernel: Path) -> None:
    given(monkeypatch, evaluating, GivenBench([FINALS["not_corroborated"][0]]))
    result = espalier("eval", "softmax", kernel, "--device", "cpu")
    assert result.status == DOUBTED
    assert "not corroborated" in result.out.splitlines()[0]
    assert f"doubt     {DOUBT}" in result.out
    assert "over eager: not corroborated" in result.out
    assert "when nothing else runs on the machine" in result.out.splitlines()[-1]


def test_a_requirement_that_cannot_be_evaluated_names_the_file(
    espalier: Call, monkeypatch: pytest.MonkeyPatch, kernel: Path
) -> None:
    given(monkeypatch, evaluating, GivenBench([]))
    kernel.write_text(f"// @require 1/0 > STEP\n{kernel.read_text()}")
    result = espalier("eval", "softmax", kernel, "--device", "cpu", "--all-variants")
    assert result.status == BAD_INPUT
    assert "kernel.cpp: line 1, column 14: division by zero" in result.err


def test_a_doubted_variant_is_not_the_best_one(espalier: Call, monkeypatch: pytest.MonkeyPatch, kernel: Path) -> None:
    faster = replace(UNSURE, time_us=b.interval(1.0))
    finals = [w.Measured(faster, 1.0), w.Measured(TIMED, 1.0), w.Suspected((EVIDENCE,), None, faster, 1.0)]
    given(monkeypatch, evaluating, GivenBench(finals))
    result = espalier("eval", "softmax", kernel, "--device", "cpu", "--all-variants", "--json")
    assert (result.status, result.json()["status"]) == (DONE, "measured")
    assert [one["status"] for one in result.json()["variants"]] == ["not_corroborated", "measured", "quarantined"]


def test_a_comparison_won_by_a_doubted_claim_is_not_won(espalier: Call, monkeypatch: pytest.MonkeyPatch, kernel: Path) -> None:
    given(monkeypatch, evaluating, GivenBench([FINALS["measured"][0]], raced=UNSURE))
    result = espalier("eval", "softmax", kernel, "--device", "cpu", "--against", kernel, "--json")
    found = result.json()
    assert (result.status, found["status"]) == (DOUBTED, "measured")
    assert (found["against"]["difference"], found["against"]["corroborated"]) == ("not corroborated", False)
    assert found["against"]["doubts"] == [DOUBT]


@pytest.mark.parametrize("status", list(FINALS))
def test_rerun_has_a_status_and_an_exit_status_for_each_verdict(
    espalier: Call, monkeypatch: pytest.MonkeyPatch, recorded: Path, status: str
) -> None:
    final, exit_status = FINALS[status]
    given(monkeypatch, rerunning, GivenBench([final]))
    result = espalier("rerun", "scripted", "--kernels", "k10", "--json")
    (found,) = result.json()["kernels"]
    assert (found["status"], result.status) == (status, exit_status)
    assert (found["corroborated"], found["quarantined"]) == (status == "measured", status == "quarantined")
    assert found["doubts"] == {"not_corroborated": [DOUBT], "quarantined": [EVIDENCE, DOUBT]}.get(status, [])
    assert found["carries_over"] is (status == "measured"), "a doubted time reproduces nothing"
    assert (found["here"] is None) is (status in ("quarantined", "mismatch"))
    assert (found["claimed"] is not None) is (status == "quarantined")
    assert (found["recorded"]["corroborated"], found["recorded"]["doubts"]) == (True, [])


@pytest.mark.parametrize(("regime", "sustained"), [("sustained", True), ("single", False), ("auto", False), (None, False)])
def test_rerun_times_kernels_back_to_back_as_asked(
    espalier: Call, monkeypatch: pytest.MonkeyPatch, recorded: Path, regime: str | None, sustained: bool
) -> None:
    given(monkeypatch, rerunning, GivenBench([FINALS["measured"][0]] * 2))
    asked = ("--regime", regime) if regime else ()
    result = espalier("rerun", "scripted", "--kernels", "k1,k10", *asked, "--json")
    assert [one["here"]["sustained"] is not None for one in result.json()["kernels"]] == [sustained] * 2
    assert [one["regime"] for one in result.json()["kernels"]] == ["single"] * 2, "the recording has single calls only"


def test_one_failed_kernel_decides_the_exit_status_of_a_rerun(
    espalier: Call, monkeypatch: pytest.MonkeyPatch, recorded: Path
) -> None:
    given(monkeypatch, rerunning, GivenBench([FINALS[name][0] for name in ("measured", "not_corroborated", "mismatch")]))
    result = espalier("rerun", "scripted", "--kernels", "k1,k2,k10")
    assert result.status == FAILED
    assert DOUBT in result.out


@pytest.mark.parametrize(("kernel", "words"), [("k2", f"NOT CORROBORATED, its time is no result: {DOUBT}."),
                                               ("k3", f"QUARANTINED, its time is no result: {EVIDENCE}.")])  # fmt: skip
def test_a_module_of_a_doubted_kernel_says_so(espalier: Call, doubted: Path, tmp_path: Path, kernel: str, words: str) -> None:
    file = tmp_path / "module.py"
    result = espalier("export", "doubted", "--kernel", kernel, "-o", file, "--json")
    assert result.status == DOUBTED
    found = result.json()
    assert (found["kernel"], found["status"]) == (kernel, "not_corroborated" if kernel == "k2" else "quarantined")
    assert (found["quarantined"], found["doubts"]) == (kernel == "k3", DOUBTS_OF[kernel])
    assert result.err.startswith(f"espalier: the time of {kernel} is no result")
    head = file.read_text().partition("\nimport")[0]
    assert words in head
    assert ("20.0" in head) is False, "what a quarantined kernel claims is not repeated"


def test_a_module_of_the_incumbent_is_plain(espalier: Call, doubted: Path, tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    result = espalier("export", "doubted", "-o", file, "--json")
    assert (result.status, result.json()["status"], result.json()["corroborated"]) == (DONE, "measured", True)
    assert "no result" not in file.read_text()


def test_a_session_without_an_incumbent_exports_no_module_unasked(espalier: Call, unsure: Path, tmp_path: Path) -> None:
    line = espalier("export", "doubted", "-o", tmp_path / "module.py").error_line()
    assert "no kernel whose time is corroborated to export: choose one with --kernel" in line


# several kernels, one preparation


def several(folder: Path, kernel: Path, count: int) -> Path:
    made = folder / "kernels"
    made.mkdir()
    for number in range(count):
        (made / f"k{number}.cpp").write_text(kernel.read_text())
    (made / "notes.md").write_text("no kernel")
    return made


def test_eval_prints_one_object_a_line_for_each_kernel_of_a_folder(
    espalier: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kernel: Path
) -> None:
    folder = several(tmp_path, kernel, 3)
    (folder / "k9.cpp").write_text("int x;")
    given(monkeypatch, evaluating, GivenBench([FINALS[name][0] for name in ("mismatch", "measured", "not_corroborated")]))
    result = espalier("eval", "softmax", folder, "--device", "cpu", "--json")
    found = [json.loads(line) for line in result.out.splitlines()]
    assert [Path(one["kernel"]).name for one in found] == ["k0.cpp", "k1.cpp", "k2.cpp", "k9.cpp"]
    assert [one.get("status") for one in found] == ["mismatch", "measured", "not_corroborated", None]
    assert "has no launch()" in found[3]["error"]
    assert result.status == FAILED


@pytest.mark.parametrize(
    ("names", "status"),
    [
        (("measured", "measured"), DONE),
        (("measured", "quarantined"), DOUBTED),
        (("not_corroborated", "mismatch"), FAILED),
    ],
)
def test_eval_of_several_has_the_status_of_the_worst(
    espalier: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kernel: Path, names: tuple[str, ...], status: int
) -> None:
    given(monkeypatch, evaluating, GivenBench([FINALS[name][0] for name in names]))
    result = espalier("eval", "softmax", *sorted(several(tmp_path, kernel, 2).glob("*.cpp")), "--device", "cpu")
    assert result.status == status
    assert [line.split()[0].endswith(f"k{number}.cpp") for number, line in enumerate(result.out.splitlines())] == [True, True]


def test_all_kernels_are_built_ahead_in_their_order(
    espalier: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kernel: Path
) -> None:
    """Those of a folder before the first is judged; variants, too."""
    bench = GivenBench([FINALS["measured"][0] for _ in range(5)])
    given(monkeypatch, evaluating, bench)
    espalier("eval", "softmax", several(tmp_path, kernel, 2), "--device", "cpu")
    assert [name for name, _ in bench.ahead[:2]] == ["k0.cpp", "k1.cpp"]
    bench.ahead.clear()
    espalier("eval", "softmax", str(kernel), "--device", "cpu", "--all-variants")
    assert sorted(step for _, step in bench.ahead) == [1, 2, 4]


def test_variants_are_printed_as_they_get_their_verdicts(espalier: Call, monkeypatch: pytest.MonkeyPatch, kernel: Path) -> None:
    """A command that ends before the last of them has shown the others."""

    class Dying(GivenBench):
        async def attempt(self, kernel: object) -> KernelTrial:
            if len(self._finals) == 1:
                raise EspalierError("the judge's process ended")
            return await super().attempt(kernel)

    finals = [FINALS["measured"][0], FINALS["not_corroborated"][0], None]
    given(monkeypatch, evaluating, Dying(finals))
    result = espalier("eval", "softmax", kernel, "--device", "cpu", "--all-variants")
    assert [line.split()[1:3] for line in result.out.splitlines()] == [["measured", "1.50"], ["not", "corroborated"]]
    given(monkeypatch, evaluating, GivenBench([FINALS["measured"][0]] * 3))
    result = espalier("eval", "softmax", kernel, "--device", "cpu", "--all-variants")
    rows = [line for line in result.out.splitlines() if line.startswith("STEP=")]
    assert len(rows) == 3, "each once, and the verdict of the best below"
    assert len({line.index("measured") for line in rows}) == 1


def test_a_trial_that_cannot_be_finished_does_not_stop_the_others(
    espalier: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kernel: Path
) -> None:
    class Dying(GivenBench):
        async def attempt(self, kernel: object) -> KernelTrial:
            if len(self._finals) == 2:
                self._finals.pop(0)
                raise EspalierError("the judge's process ended")
            return await super().attempt(kernel)

    given(monkeypatch, evaluating, Dying([None, FINALS["measured"][0]]))
    result = espalier("eval", "softmax", several(tmp_path, kernel, 2), "--device", "cpu")
    assert [("failed" in line, "measured" in line) for line in result.out.splitlines()] == [(True, False), (False, True)]
    assert result.status == FAILED


def test_what_was_measured_before_an_interruption_is_printed(
    espalier: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kernel: Path
) -> None:
    class Interrupted(GivenBench):
        async def attempt(self, kernel: object) -> KernelTrial:
            if not self._finals:
                raise KeyboardInterrupt
            return await super().attempt(kernel)

    given(monkeypatch, evaluating, Interrupted([FINALS["measured"][0]]))
    result = espalier("eval", "softmax", several(tmp_path, kernel, 2), "--device", "cpu", "--json")
    assert [json.loads(line)["status"] for line in result.out.splitlines()] == ["measured"]
    assert result.status == INTERRUPTED


@pytest.mark.parametrize("options", [["--tune", "STEP=2"], ["--against", "other.cpp"]])
def test_options_of_one_kernel_are_refused_for_several(
    espalier: Call, tmp_path: Path, kernel: Path, options: list[str]
) -> None:
    result = espalier("eval", "softmax", several(tmp_path, kernel, 2), "--device", "cpu", *options)
    assert result.status == BAD_INPUT
    assert "take one KERNEL" in result.err


def test_a_folder_without_a_kernel_is_bad_input(espalier: Call, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = espalier("eval", "softmax", tmp_path / "empty", "--device", "cpu")
    assert result.status == BAD_INPUT
    assert "has no kernel file" in result.err

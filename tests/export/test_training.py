"""Sessions as training data: one schema per shape, golden lines, calls linked to kernels, rewards."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import builders as b
from support import showcase

from engine.domain import events as e
from engine.domain import model as m
from engine.export import rewards, training
from engine.export.attempts import RecordedSession, attempts, fenced

GOLDEN = Path(__file__).parent / "golden" / "training.jsonl"
PROMPT = "Write a kernel for idea i2."
FAST, WRONG, REPAIRED, BROKEN = (f'// {name}\nextern "C" void launch();\n' for name in ("fast", "wrong", "repaired", "broken"))
TEXTS = (
    "source of k1", "source of k6", "source of k7", FAST, WRONG, REPAIRED, BROKEN, PROMPT, f"{PROMPT} 2", f"{PROMPT} 3",
    "ideas?", "repair this",
    f"Here it is.\n```cpp\n{FAST}```\n", f"```cpp\n{WRONG}```", f"```cpp\n{REPAIRED}```", f"```cpp\n{BROKEN}```",
    "[ideas]", "half a re", "compiler output",
)  # fmt: skip
BLOBS = {b.digest(text): text for text in TEXTS}


def call(number: int, work: str, role: m.CallRole, prompt: str, reply: str) -> tuple[e.Event, ...]:
    return (
        e.CallStarted(f"c{number}", work, role, b.MODEL.name, b.digest(prompt), 100),
        e.CallAnswered(f"c{number}", b.digest(reply), m.Usage(50, 0, 40), 0.001),
    )


def written(kernel: str, source: str) -> e.KernelDrafted:
    return b.drafted(kernel, idea="i2", parent="k1", round_number=1, author=b.MODEL, source=source)


def history() -> list[e.Event]:
    """k2 is fast, k3 was wrong and is repaired, k4 does not build, k5 is a hand-written seed, k6 quarantined, k7 cancelled."""
    mismatch = m.Failure(m.FailureKind.MISMATCH, "error 1e-2 of 1e-6 allowed")
    code, ideas, repair = m.CallRole.CODE, m.CallRole.IDEAS, m.CallRole.REPAIR
    return [
        *b.first_round(1.0, source=b.MODEL.name),
        e.RoundOpened(1, ("k1",)),
        *call(1, "propose:1", ideas, "ideas?", "[ideas]"),
        replace(b.proposed("i2", round_number=1, parent="k1"), ideas=(
            e.ProposedIdea("i2", m.IdeaText("Vectorise", "instructions", "Wider loads.", 1.5), "k1", b.MODEL, 3),)),
        e.IdeaSelected("i2"),
        e.CallStarted("c2", "implement:i2", code, b.MODEL.name, b.digest(PROMPT), 100),
        e.CallAnswered("c2", b.digest("half a re")),
        e.CallFailed("c2", "no code block in the reply"),
        *call(3, "implement:i2", code, PROMPT, f"Here it is.\n```cpp\n{FAST}```\n"),
        *call(4, "implement:i2", code, f"{PROMPT} 2", f"```cpp\n{WRONG}```"),
        *call(5, "implement:i2", code, f"{PROMPT} 3", f"```cpp\n{BROKEN}```"),
        written("k2", FAST), written("k3", WRONG), written("k4", BROKEN),
        e.IdeaImplemented("i2", ("k2", "k3", "k4")),
        b.built("k2"), b.verified("k2", 2.0), b.measured("k2", 2.0), e.KernelSustained("k2", 0, b.sustained(1.9)),
        b.built("k3"), e.AttemptFailed("k3", 0, mismatch),
        *call(6, "repair:k3:0", repair, "repair this", f"```cpp\n{REPAIRED}```"),
        e.AttemptRevised("k3", 1, b.digest(REPAIRED)), b.built("k3"), b.verified("k3", 1.2), b.measured("k3", 1.2),
        e.KernelFailed("k4", b.failure()),
        e.KernelDrafted("k5", "i2", "k1", 1, m.Author("engineer"), "mine.cpp", m.Dialect.CPP, m.Contract.HOST,
                        b.digest("source of k1"), {"BLOCK": 4}, True),
        b.built("k5"), b.verified("k5", 1.9), b.measured("k5", 1.9),
        b.drafted("k6", idea="i2", parent="k1", round_number=1), b.built("k6"),
        e.KernelQuarantined("k6", ("too fast",), b.verification(), b.measurement(9.0)),
        b.drafted("k7", idea="i2", parent="k1", round_number=1), e.KernelCancelled("k7", "enough"),
    ]  # fmt: skip


def recording(**changes: Any) -> RecordedSession:
    return replace(RecordedSession("softmax-1", b.entries(history()), BLOBS.__getitem__, "MIT"), **changes)


def rows(kind: str, *given: RecordedSession) -> list[dict[str, Any]]:
    return [json.loads(line) for line in training.lines(kind, given or (recording(),))]


INTERVAL = {"value": float, "low": float, "high": float}
DEVICE = {"kind": str, "name": str, "arch": str, "software": str}
IDEA = {
    "id": str, "title": str, "category": str, "rationale": str, "predicted": float, "expected": str, "risks": str,
    "author": str, "edited": bool,
}  # fmt: skip
WHERE = {
    "session": str, "problem": str, "problem_digest": str, "workload": str, "baseline": str, "device": DEVICE, "kernel": str,
    "dialect": str, "contract": str, "author": str, "model": str, "licence": str, "schema": int,
}  # fmt: skip
MESSAGE = {"role": str, "content": str}
CHECKED = {"policy": str, "trials": int, "rel_fro": float, "max_abs": float, "precision_class": str, "holdouts": str}
VERDICT = {
    "status": str, "reason": str, "evidence": [str], "verification": CHECKED, "depth": str, "time_us": INTERVAL,
    "speedup": INTERVAL, "speedups": [{"baseline": str, **INTERVAL}],
    "sustained": {"time_us": INTERVAL, "speedup": INTERVAL, "corroborated": bool},
    "by_workload": [{"workload": str, "time_us": INTERVAL, "speedup": INTERVAL}], "light": float, "corroborated": bool,
    "conditions": [str], "claimed": {"time_us": INTERVAL, "speedup": INTERVAL},
}  # fmt: skip
DOUBTS = {"corroborated": bool, "quarantined": bool, "doubts": [str]}
SCHEMAS: dict[str, dict[str, Any]] = {
    "jsonl": {
        "prompt": str, "idea": IDEA, "code": str, "verdict": VERDICT, "reward": float, "reward_basis": str, "reply": str,
        "origin": str, "parent_code": str, "tunables": [{"name": str, "value": int}], "attempt": int, "last_attempt": bool,
        "round": int, "parent": str, "seed": bool, **DOUBTS, **WHERE,
    },
    "sft": {
        "messages": [MESSAGE], "idea": IDEA, "verdict": str, "reward": float, "reward_basis": str, "speedup": INTERVAL,
        "origin": str, "attempt": int, **DOUBTS, **WHERE,
    },
    "pairs": {
        "prompt": [MESSAGE], "chosen": [MESSAGE], "rejected": [MESSAGE], "chosen_reward": float, "rejected_reward": float,
        "reward_basis": str, "chosen_verdict": str, "rejected_verdict": str, "chosen_kernel": str, "rejected_kernel": str,
        "rejected_licence": str, "idea": IDEA, **DOUBTS, **WHERE,
    },
}  # fmt: skip
REQUIRED = {
    "session",
    "problem",
    "workload",
    "kernel",
    "dialect",
    "contract",
    "author",
    "licence",
    "schema",
    "prompt",
    "messages",
}


def misfits(value: object, schema: object, path: str = "$") -> list[str]:
    """The places where a row violates its schema. ``null`` is valid everywhere but in required columns."""
    if isinstance(schema, dict):
        if not isinstance(value, dict) or list(value) != list(schema):
            return [f"{path}: columns {value if not isinstance(value, dict) else list(value)}"]
        return [wrong for key in schema for wrong in misfits(value[key], schema[key], f"{path}.{key}")]
    if isinstance(schema, list):
        if not isinstance(value, list):
            return [f"{path}: no list"]
        return [wrong for inner in value for wrong in misfits(inner, schema[0], f"{path}[]")]
    if value is None:
        return [f"{path}: null"] if path.removeprefix("$.") in REQUIRED else []
    fits = isinstance(value, int | float) and not isinstance(value, bool) if schema is float else type(value) is schema
    return [] if fits else [f"{path}: {value!r} is not a {schema.__name__}"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", list(training.SHAPES))
def test_every_row_has_the_schema_of_its_shape(kind: str) -> None:
    big = RecordedSession("showcase", showcase.session()[1], showcase.read_blob, "unspecified")
    found = rows(kind, recording(), big)
    assert {row["session"] for row in found} == {"softmax-1", "showcase"}
    for row in found:
        assert misfits(row, SCHEMAS[kind]) == []


@pytest.mark.parametrize("kind", list(training.SHAPES))
def test_a_line_is_one_object_in_ascii_without_nan(kind: str) -> None:
    odd = replace(recording(), name="a\u2028b\x85c")
    for line in training.lines(kind, [odd]):
        assert line.isascii()
        assert len(line.splitlines()) == 1
        json.loads(line, parse_constant=pytest.fail)


def test_the_lines_match_the_golden_file() -> None:
    """Training data must not change by accident. Regenerate with ``PYTHONPATH=tests python tests/export/test_training.py``."""
    assert golden() == GOLDEN.read_text(encoding="utf-8")


def golden() -> str:
    return "".join(f"{line}\n" for kind in training.SHAPES for line in training.lines(kind, [recording()]))


def test_every_attempt_is_a_row_including_failures() -> None:
    found = [(row["kernel"], row["attempt"], row["verdict"]["status"], row["last_attempt"]) for row in rows("jsonl")]
    assert found == [
        ("k1", 0, "measured", True), ("k2", 0, "measured", True), ("k3", 0, "mismatch", False), ("k3", 1, "measured", True),
        ("k4", 0, "build_failed", True), ("k5", 0, "measured", True), ("k6", 0, "quarantined", True),
        ("k7", 0, "cancelled", True),
    ]  # fmt: skip


def test_a_kernel_is_linked_to_the_call_that_wrote_it() -> None:
    found = {(row["kernel"], row["attempt"]): row for row in rows("jsonl")}
    assert (found["k2", 0]["prompt"], found["k2", 0]["origin"], found["k2", 0]["model"]) == (PROMPT, "recorded", b.MODEL.name)
    assert found["k2", 0]["reply"].startswith("Here it is.")
    assert found["k3", 0]["prompt"] == f"{PROMPT} 2"
    assert (found["k3", 1]["prompt"], found["k3", 1]["code"]) == ("repair this", REPAIRED)
    seeded = found["k5", 0]
    assert (seeded["origin"], seeded["model"], seeded["seed"]) == ("reconstructed", "engineer", True)
    assert "source of k1" in seeded["prompt"], "the parent's code"
    assert seeded["tunables"] == [{"name": "BLOCK", "value": 4}]


def test_a_reconstructed_prompt_has_every_recorded_field() -> None:
    (first, *_) = rows("jsonl")
    assert first["origin"] == "reconstructed"
    for words in (
        "cpp kernel",
        "host contract",
        "Softmax over rows",
        "batch_size=128",
        "two cores",
        "torch.softmax",
        "Fuse passes",
    ):
        assert words in first["prompt"], words
    assert first["reply"] == "```cpp\nsource of k1\n```"


def test_rewards_are_the_gain_over_the_parent_and_constants_for_failures() -> None:
    found = {(row["kernel"], row["attempt"]): (row["reward"], row["reward_basis"]) for row in rows("jsonl")}
    assert found["k1", 0] == (0.0, "baseline")
    assert found["k2", 0] == (pytest.approx(math.log(2)), "parent")
    assert found["k3", 0] == (rewards.FAILURES[m.FailureKind.MISMATCH], "failure")
    assert found["k3", 1] == (pytest.approx(math.log(1.2)), "parent")
    assert found["k4", 0] == (rewards.FAILURES[m.FailureKind.BUILD_FAILED], "failure")
    assert found["k6", 0] == (None, "none"), "a quarantined kernel has no reward"
    assert found["k7", 0] == (None, "none")


def test_a_verified_kernel_is_never_worth_less_than_a_failed_one() -> None:
    assert set(rewards.FAILURES) == set(m.FailureKind)
    assert max(rewards.FAILURES.values()) < rewards.LEAST_MEASURED
    slow = b.fold(*b.first_round(1.0), *b.measured_kernel("k2", 0.01, parent="k1"))
    assert rewards.kernel_reward(slow, slow.kernels["k2"]) == rewards.Reward(-1.0, rewards.Basis.PARENT)


def test_a_parent_measured_on_another_device_gives_no_gain() -> None:
    moved = b.fold(*b.first_round(1.0), b.prepared(name="other"), *b.measured_kernel("k2", 2.0, parent="k1"))
    assert rewards.kernel_reward(moved, moved.kernels["k2"]) == rewards.Reward(math.log(2), rewards.Basis.BASELINE)
    entries = b.entries((*b.first_round(1.0), b.prepared(name="other"), *b.measured_kernel("k2", 2.0, parent="k1")))
    texts = {b.digest(f"source of {k}"): k for k in ("k1", "k2")}
    devices = [a.device.name for a in attempts(RecordedSession("s", entries, texts.__getitem__, ""))[1] if a.device]
    assert devices == ["two cores", "other"]


def test_a_chat_ends_in_a_verified_kernel_and_each_reply_occurs_once() -> None:
    found = rows("sft")
    assert [row["kernel"] for row in found] == ["k1", "k2", "k3", "k5"]
    assert all(row["verdict"] == "measured" for row in found)
    assert [message["role"] for message in found[1]["messages"]] == ["user", "assistant"]
    assert found[2]["messages"][0]["content"] == "repair this"
    variants = [
        b.drafted("k8", idea="i2", parent="k1", round_number=1, author=b.MODEL, source=FAST, tunables={"BLOCK": 8}),
        b.built("k8"), b.verified("k8", 2.5), b.measured("k8", 2.5),
    ]  # fmt: skip
    twice = rows("sft", recording(entries=b.entries([*history(), *variants])))
    assert [row["kernel"] for row in twice] == ["k1", "k8", "k3", "k5"], "the better variant represents the reply"


DOUBT = "not corroborated: every process pair was disturbed by CPU contention"


def doubted(kernel: str = "k8", speedup: float = 9.0) -> list[e.Event]:
    """A kernel that claims most and is not corroborated."""
    measurement = replace(b.measurement(speedup), corroborated=False, doubts=(DOUBT,))
    made = b.measured_kernel(kernel, speedup, idea="i2", parent="k1", round_number=1, source="source of k7")
    return [*made[:-1], e.KernelMeasured(kernel, measurement, 1.0)]


def test_a_doubted_kernel_is_no_example_to_follow() -> None:
    given = recording(entries=b.entries([*history(), *doubted()]))
    found = {row["kernel"]: row for row in rows("jsonl", given)}
    row = found["k8"]
    assert (row["corroborated"], row["quarantined"], row["doubts"]) == (False, False, [DOUBT])
    assert (row["verdict"]["status"], row["reward"], row["reward_basis"]) == ("not_corroborated", None, "none")
    assert row["verdict"]["speedup"]["value"] == 9.0, "given, and marked"
    claim = found["k6"]
    assert (claim["quarantined"], claim["doubts"], claim["reward"]) == (True, ["too fast"], None)
    assert claim["verdict"]["speedup"]["value"] is None
    assert claim["verdict"]["time_us"]["value"] is None
    assert claim["verdict"]["claimed"]["speedup"]["value"] == 9.0
    assert (found["k2"]["corroborated"], found["k2"]["doubts"]) == (True, [])
    assert (found["k4"]["corroborated"], found["k4"]["quarantined"]) == (False, False), "it has no time"
    assert "k8" not in {row["kernel"] for row in rows("sft", given)}
    assert not any("k8" in (row["chosen_kernel"], row["rejected_kernel"]) for row in rows("pairs", given))


def test_a_kernel_that_the_engineer_accepted_is_an_example_with_its_doubts() -> None:
    given = recording(entries=b.entries([*history(), e.KernelAccepted("k6", "counted the bytes")]))
    (row,) = [row for row in rows("jsonl", given) if row["kernel"] == "k6"]
    assert (row["verdict"]["status"], row["quarantined"], row["doubts"]) == ("measured", False, ["too fast"])
    assert row["reward"] == pytest.approx(math.log(9))


@pytest.mark.parametrize("quarantined", [True, False])
def test_a_doubted_parent_gives_no_gain(quarantined: bool) -> None:
    parent = [*doubted("k2"), *([e.KernelQuarantined("k2", ("too fast",))] if quarantined else [])]
    state = b.fold(*b.first_round(1.0), *parent, *b.measured_kernel("k3", 2.0, parent="k2", source="other"))
    assert rewards.kernel_reward(state, state.kernels["k3"]) == rewards.Reward(math.log(2), rewards.Basis.BASELINE)
    assert rewards.kernel_reward(state, state.kernels["k2"]) == rewards.UNKNOWN


def test_pairs_prefer_a_significantly_faster_or_a_verified_kernel() -> None:
    found = [(row["chosen_kernel"], row["rejected_kernel"], row["rejected_verdict"]) for row in rows("pairs")]
    assert ("k2", "k3", "measured") in found
    assert ("k2", "k3", "mismatch") in found
    assert ("k3", "k4", "build_failed") in found
    assert ("k2", "k5", "measured") in found, "1.96 to 2.04 against 1.86 to 1.94: the intervals do not overlap"
    assert not any("k6" in pair or "k7" in pair or "k1" in pair for pair in found)
    close = rows("pairs", recording(entries=b.entries([*history(), *b.measured_kernel(
        "k8", 2.01, idea="i2", parent="k1", round_number=1, source="source of k7")])))  # fmt: skip
    assert not any({row["chosen_kernel"], row["rejected_kernel"]} == {"k8", "k2"} for row in close), (
        "undecided is no preference"
    )


def test_both_answers_of_a_pair_have_one_prompt() -> None:
    for row in rows("pairs"):
        ((prompt,), (chosen,), (rejected,)) = row["prompt"], row["chosen"], row["rejected"]
        assert (prompt["role"], chosen["role"], rejected["role"]) == ("user", "assistant", "assistant")
        assert chosen["content"] != rejected["content"]
        assert row["chosen_reward"] > row["rejected_reward"]
        if row["chosen_kernel"] == "k3":
            assert chosen["content"] == f"```cpp\n{REPAIRED}```", "a repaired kernel answers the idea's own prompt as code"


def test_rows_have_licences() -> None:
    assert {row["licence"] for row in rows("jsonl")} == {"MIT"}
    shipped = {row["kernel"]: row["licence"] for row in rows("jsonl", recording(shipped=True))}
    assert shipped["k1"] == "Apache-2.0", "a shipped playbook"
    assert shipped["k2"] == "MIT"


@pytest.mark.parametrize("code", ["plain", "```\ninner\n```", "a ```` b"])
def test_a_fence_is_longer_than_any_in_the_code(code: str) -> None:
    block = fenced(code, m.Dialect.CPP)
    fence = block.splitlines()[-1]
    assert re.fullmatch("`{3,}", fence)
    assert fence not in code


def test_a_session_without_kernels_has_no_rows() -> None:
    empty: Sequence[e.Event] = (b.opened(), b.prepared())
    for kind in training.SHAPES:
        assert rows(kind, RecordedSession("s", b.entries(empty), BLOBS.__getitem__, "")) == []


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(golden(), encoding="utf-8")

"""Cached baselines: what they depend on, when they are dropped, and damaged files."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from engine.domain.model import Contract, Device, Dialect, Interval, Measurement, Problem, SpeedOfLight, Workload
from engine.domain.preparation import Preparation
from engine.domain.work import Prepared, Verified
from engine.problem import catalog
from engine.trial.bench import Assignment, KernelSpec, TrialBench
from engine.trial.judge.caches.baseline_cache import Kept, chained_speedup, fingerprint, has_drifted, load

DEVICE = Device("cuda", 0, "NVIDIA H200", "sm_90a", 132, 60 << 20, 140 << 30, "driver 570.1, CUDA 12.8, torch 2.10.0")
WORKLOAD = Workload("full", {"N": 4096, "M": 65536})
PROBLEM = Problem("softmax", "Softmax", "class Model: ...", "digest", (WORKLOAD,), {})


def wanted(**changed: object) -> dict[str, str]:
    given = {"ranking": "eager", "tolerance": "class", "cold": True, **{k: v for k, v in changed.items() if k in WAYS}}
    problem, workload, device = (changed.get(name, usual) for name, usual in THINGS.items())
    return fingerprint(problem, workload, device, **given)  # type: ignore[arg-type]


WAYS = ("ranking", "tolerance", "cold")
THINGS = {"problem": PROBLEM, "workload": WORKLOAD, "device": DEVICE}


def kept(ranking: float = 100.0, noise: float = 0.01) -> Kept:
    measurement = Measurement(
        "precise", Interval(50.0, 49.0, 51.0), 40, 4, {"eager": Interval(2.0, 1.96, 2.04)},
        SpeedOfLight("bytes", 30.0, 0.6), True, ("cold caches",), "ab12",
    )  # fmt: skip
    return Kept(measurement, Interval(ranking, 0.99 * ranking, 1.01 * ranking), noise, "2026-03-01T12:30:00+00:00")


def test_cached_baselines_are_found_with_their_date(tmp_path: Path) -> None:
    load(tmp_path, wanted()).keep({"compile": kept()})
    found = load(tmp_path, wanted())
    assert dict(found.kept) == {"compile": kept()}
    assert found.note == ""
    told = found.kept["compile"].as_measurement()
    assert told.conditions == ("cached, 2026-03-01 12:30 UTC", "cold caches")
    assert replace(told, conditions=("cold caches",)) == kept().measurement


@pytest.mark.parametrize(
    "changed",
    [
        {"device": replace(DEVICE, software="driver 575.2, CUDA 12.8, torch 2.10.0")},
        {"device": replace(DEVICE, name="NVIDIA H100")},
        {"device": replace(DEVICE, memory_bytes=80 << 30)},
        {"device": replace(DEVICE, units=4)},
        {"workload": Workload("full", {"N": 4096, "M": 1024})},
        {"problem": replace(PROBLEM, reference="class Model: pass")},
        {"ranking": "eager_tf32"},
        {"tolerance": "crfm"},
        {"cold": False},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_any_changed_dependency_invalidates_the_cache(tmp_path: Path, changed: dict[str, object]) -> None:
    load(tmp_path, wanted()).keep({"compile": kept()})
    assert load(tmp_path, wanted(**changed)).kept == {}
    assert load(tmp_path, wanted()).kept


def test_problem_name_and_device_index_do_not_matter(tmp_path: Path) -> None:
    load(tmp_path, wanted()).keep({"compile": kept()})
    other = wanted(problem=replace(PROBLEM, name="mine"), device=replace(DEVICE, index=3))
    assert load(tmp_path, other).kept


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: b"",
        lambda text: text[: len(text) // 2],
        lambda text: b"\xff\xfe" + text,
        lambda text: text.replace(b"driver 570.1", b"driver 1"),
        lambda text: text.replace(b"49.0", b"-49.0"),
        lambda text: text.replace(b"2.04", b"1e999"),
        lambda text: text.replace(b'"noise": 0.01', b'"noise": 0.5'),
        lambda text: text.replace(b"2026-03-01T12:30:00+00:00", b"once"),
        lambda text: text.replace(b"2026-03-01T12:30:00+00:00", b"2026-03-01"),
        lambda text: text.replace(b'"noise"', b'"noises"'),
        lambda text: b"[]",
    ],
)
def test_a_damaged_file_counts_as_missing_with_a_note(tmp_path: Path, damage: object) -> None:
    record = load(tmp_path, wanted())
    record.keep({"compile": kept()})
    record.path.write_bytes(damage(record.path.read_bytes()))  # type: ignore[operator]
    found = load(tmp_path, wanted())
    assert found.kept == {}
    assert "damaged" in found.note
    found.keep({"compile": kept()})
    assert load(tmp_path, wanted()).kept, "a damaged file is replaced"


def test_an_unwritable_cache_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "baselines").write_text("in the way")
    record = load(tmp_path, wanted())
    record.keep({"compile": kept()})
    assert load(tmp_path, wanted()).kept == {}


@pytest.mark.parametrize(
    ("now", "noise", "expected"),
    [
        (Interval(100.0, 99.0, 101.0), 0.0, False),
        (Interval(102.0, 100.5, 103.0), 0.0, False),
        (Interval(103.0, 102.0, 104.0), 0.0, False),
        (Interval(110.0, 109.0, 111.0), 0.0, True),
        (Interval(90.0, 89.0, 91.0), 0.0, True),
        (Interval(110.0, 109.0, 111.0), 0.10, False),
    ],
)
def test_drift_exceeds_both_intervals_and_the_noise(now: Interval, noise: float, expected: bool) -> None:
    assert has_drifted(kept(), now, noise) is expected


def test_a_speedup_over_a_cached_baseline_combines_both_errors() -> None:
    over = chained_speedup(Interval(4.0, 3.6, 4.4), Interval(2.0, 1.9, 2.1))
    assert over.value == pytest.approx(2.0)
    low = math.hypot(math.log(4 / 3.6), math.log(2.1 / 2))
    assert over.low == pytest.approx(2.0 * math.exp(-low))
    assert over.low < 2.0 * 3.6 / 4.0
    assert over.high > 2.0 * 4.4 / 4.0
    assert chained_speedup(Interval(4.0, 4.0, 4.0), Interval(2.0, 2.0, 2.0)) == Interval(2.0, 2.0, 2.0)


RIGHT = (Path(__file__).parent.parent / "exploits" / "right.h").read_text()
KERNEL = f"""{RIGHT}
extern "C" void launch(const float* x, const float* weight, float* out, void*) {{ right(x, weight, out); }}
"""
ANY_TIME = Interval(100.0, 1e-6, 1e12)


@pytest.mark.slow
def test_a_session_uses_cached_baselines_until_the_ranking_one_drifts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPALIER_CACHE", str(tmp_path))
    planted = replace(kept(), ranking_us=ANY_TIME)
    moved_since = replace(kept(), ranking_us=Interval(1e9, 1e9, 1e9))

    async def story() -> None:
        async with opened() as bench:
            device, _ = await bench.describe()
            ways = {"ranking": "eager", "tolerance": "class", "cold": True}
            record = load(tmp_path, fingerprint(PLAIN, SMALL, device, **ways))  # type: ignore[arg-type]
            record.keep({"eager_tf32": planted})
            found = await prepared(bench)
            assert found.baselines["eager_tf32"] == planted.as_measurement()
            assert not cached(found.baselines["eager"]), "measured in every session"
            source = KernelSpec("right.cpp", KERNEL, Dialect.CPP, Contract.HOST)
            verified = await bench.try_verify(source, lambda _: None)
            assert isinstance(verified, Verified)
            over = verified.screen.speedup
            assert over["eager_tf32"].value == pytest.approx(over["eager"].value / 2.0), "chained via the ranking one"
            assert "eager_tf32 cached, 2026-03-01 12:30 UTC" in verified.screen.conditions

            record.keep({"eager_tf32": moved_since})
            found = await prepared(bench)
            assert not cached(found.baselines["eager_tf32"])
            assert any("cached baselines measured again (eager_tf32): eager takes" in note for note in found.notes)
            assert load(tmp_path, record.fingerprint).kept.get("eager_tf32") != moved_since

            record.keep({"eager_tf32": planted})
        async with opened(fresh=True) as bench:
            found = await prepared(bench)
            assert not cached(found.baselines["eager_tf32"]), "fresh=True ignores the cache"

    asyncio.run(story())


PLAIN = catalog.find(str(Path(__file__).parent / "problems" / "scaled_softmax"))
SMALL = catalog.workload_for(PLAIN, "small")


@asynccontextmanager
async def opened(*, fresh: bool = False) -> AsyncIterator[TrialBench]:
    bench = TrialBench(Assignment(PLAIN, SMALL, "cpu", further_baselines=("eager_tf32",), fresh=fresh), lambda _: "")
    try:
        yield bench
    finally:
        await bench.close()


async def prepared(bench: TrialBench) -> Preparation:
    found = await bench.prepare(lambda _: None)
    assert isinstance(found, Prepared)
    return found.preparation


def cached(found: Measurement) -> bool:
    return any(said.startswith("cached, ") for said in found.conditions)

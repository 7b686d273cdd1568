"""Cached ceilings: those measured beside other work are measured again, and the better ones are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.domain.model import Device
from engine.domain.preparation import Peaks
from engine.trial.judge.caches.peaks_cache import are_outdone, keep, load

CPU = Device("cpu", 0, "some processor", "x86_64", 2, 1 << 25, 1 << 33, "torch 2")
LOW, HIGH = Peaks(5e10, {"fp32": 6e10, "bf16": 3e11}), Peaks(9e10, {"fp32": 2e11, "bf16": 2e11})


def test_quiet_ceilings_are_measured_once(tmp_path: Path) -> None:
    assert load(tmp_path, CPU) is None
    assert keep(tmp_path, CPU, HIGH, quiet=True) == HIGH
    assert load(tmp_path, CPU) == HIGH


def test_ceilings_beside_other_work_are_measured_again_and_the_better_ones_kept(tmp_path: Path) -> None:
    keep(tmp_path, CPU, LOW, quiet=False)
    assert load(tmp_path, CPU) is None
    best = Peaks(9e10, {"fp32": 2e11, "bf16": 3e11})
    assert keep(tmp_path, CPU, HIGH, quiet=True) == best
    assert load(tmp_path, CPU) == best


@pytest.mark.parametrize(
    "content", ["", "[]", '{"copy": 1, "rates": {"fp32": 1}}', '{"copy": "x", "rates": {}, "quiet": true}']
)
def test_a_damaged_file_is_measured_again(tmp_path: Path, content: str) -> None:
    keep(tmp_path, CPU, HIGH, quiet=True)
    (file,) = (tmp_path / "peaks").iterdir()
    file.write_text(content)
    assert load(tmp_path, CPU) is None
    assert keep(tmp_path, CPU, LOW, quiet=True) == LOW


def test_a_preparation_with_much_lower_ceilings_is_outdone() -> None:
    assert are_outdone(LOW, HIGH)
    assert not are_outdone(HIGH, None)
    assert not are_outdone(HIGH, Peaks(9.5e10, {"fp32": 2.1e11, "bf16": 1e11}))
    assert not are_outdone(HIGH, Peaks(1e9, {}))

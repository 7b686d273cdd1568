"""The sustained regime on a real device: shipped incumbents back to back with eager, at a clock and a power that are read."""

from __future__ import annotations

import pytest

import espalier
from benchmarks.results import leaders
from engine.domain.dialect import Dialect
from engine.domain.errors import DeviceError
from engine.journal.shipped import shipped_folder
from engine.trial.shared.cuda import driver

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def _device() -> None:
    try:
        if driver.device_count() == 0:
            pytest.skip("no CUDA device")
    except DeviceError as error:
        pytest.skip(f"no CUDA device: {error}")


@pytest.mark.parametrize(("problem", "decides"), [("softmax", "single"), ("matmul_fp16", "sustained")])
def test_a_shipped_incumbent_is_measured_in_both_regimes(problem: str, decides: str) -> None:
    (entry,) = (e for e in leaders(shipped_folder("sessions"), [problem]) if e.dialect == Dialect.CUDA)
    code = espalier.code(entry.source_path.read_text(), entry.name)
    found = espalier.evaluate(problem, code, device="cuda:0", workload=entry.workload, tunables=entry.tunables)
    assert found.measured, found.reason
    assert found.regimes is not None
    assert found.regimes.deciding == decides
    sustained = found.regimes.sustained
    assert sustained is not None, found.conditions
    assert sustained.corroborated, sustained.doubts
    assert sustained.processes >= 3
    assert "eager" in sustained.speedup
    assert sustained.device.sm_mhz is not None
    assert sustained.device.watts is not None
    assert any(line.startswith("back to back over") for line in sustained.conditions)
    # A power limit moves the clock of tensor cores for seconds: turns may end unsettled, but the interval must hold them.
    ratio = sustained.speedup["eager"]
    assert ratio.high <= 1.1 * ratio.low
    unsettled = [line.split() for line in sustained.conditions if line.startswith("not settled in")]
    assert all(2 * int(line[3]) <= int(line[5]) for line in unsettled), sustained.conditions

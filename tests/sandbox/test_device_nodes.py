"""Which GPUs' device files a sandbox contains."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from engine.sandbox import device_nodes, python_process, trial_sandbox

UUIDS = ("GPU-11112222-3333-4444-5555-666677778888", "GPU-1111aaaa-3333-4444-5555-666677778888")
COMMON = {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-cap1"}
ALL = COMMON | {"nvidia0", "nvidia1", "nvidia10"}
VISIBLE = {
    UUIDS[0]: COMMON | {"nvidia10"},
    UUIDS[1]: COMMON | {"nvidia0"},
    "GPU-1111aaaa": COMMON | {"nvidia0"},
    "GPU-1111": ALL,
    "GPU-9999": ALL,
    "": ALL,
    "1": ALL,
    f"{UUIDS[0]},{UUIDS[1]}": ALL,
    "MIG-11112222-3333-4444-5555-666677778888": ALL,
}


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with three GPUs; the driver tells of two, whose order is not that of their files."""
    (tmp_path / "caps").mkdir()
    for name in ALL:
        (tmp_path / "caps" / name if "cap" in name else tmp_path / name).touch()
    for folder, uuid, minor in (("0000:1b:00.0", UUIDS[0], 10), ("0000:5d:00.0", UUIDS[1], 0)):
        (tmp_path / folder).mkdir()
        text = f"Model: \t\t NVIDIA H200\nIRQ:   \t\t 60\nGPU UUID: \t {uuid}\nBus Type: \t PCIe\nDevice Minor: \t {minor}\n"
        (tmp_path / folder / "information").write_text(text)
    monkeypatch.setattr(device_nodes, "_NODES", (f"{tmp_path}/nvidia*", f"{tmp_path}/caps/*"))
    monkeypatch.setattr(device_nodes, "_GPUS", f"{tmp_path}/*/information")


def bound(argv: list[str]) -> set[str]:
    return {Path(place).name for option, place in pairwise(argv) if option == "--dev-bind" and place != "/"}


@pytest.mark.parametrize("visible", VISIBLE)
def test_a_worker_sees_the_files_of_its_own_gpu(visible: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert bound(python_process.file_system("cuda:0")) == VISIBLE[visible]
    assert bound(trial_sandbox.outer(["true"], "cuda:0")) == VISIBLE[visible]
    assert bound(list(trial_sandbox.host("cuda:0", filtered=False).argv)) == VISIBLE[visible]


def test_a_cpu_worker_sees_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", UUIDS[0])
    assert bound(python_process.file_system("cpu")) == set()

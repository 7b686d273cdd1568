"""Where workers can be: sets of whole cores, GPUs, and the words of ``--fleet``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.domain.errors import DeviceError
from engine.fleet import places, versions
from engine.fleet.versions import differences


def cores(count: int, threads: int = 1) -> list[tuple[int, ...]]:
    """The hardware threads of each core, numbered as Linux numbers them."""
    return [tuple(core + count * thread for thread in range(threads)) for core in range(count)]


@pytest.mark.parametrize(
    ("groups", "count", "names"),
    [
        (cores(1), 0, "cpu:0"),
        (cores(2), 0, "cpu:0 cpu:1"),
        (cores(2), 1, "cpu:0-1"),
        (cores(8), 0, "cpu:0-3 cpu:4-7"),
        (cores(8), 4, "cpu:0-1 cpu:2-3 cpu:4-5 cpu:6-7"),
        (cores(4, threads=2), 2, "cpu:0-1,4-5 cpu:2-3,6-7"),
        (cores(5), 2, "cpu:0-1 cpu:2-3"),
    ],
)
def test_workers_get_whole_cores_of_their_own(groups: list[tuple[int, ...]], count: int, names: str) -> None:
    found = places.cpu_places(groups, count)
    assert " ".join(place.name for place in found) == names
    held = [core for place in found for core in place.cores]
    assert len(held) == len(set(held))


def test_more_workers_than_devices_are_refused() -> None:
    with pytest.raises(DeviceError, match="needs 3 cores: this process may use 2"):
        places.cpu_places(cores(2), 3)
    with pytest.raises(DeviceError, match="needs 4 GPUs: this machine has 2"):
        places.local_places("cuda:0", 4, 2)


@pytest.mark.parametrize(
    ("text", "count"),
    [("local", 0), ("local:4", 4), ("ray", None), ("local:x", None), ("local:0", None), ("local:00", None), ("", None)],
)
def test_the_words_of_a_local_fleet(text: str, count: int | None) -> None:
    assert places.local_count(text) == count


def test_a_gpu_worker_sees_no_other_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "device_key", lambda label: "gpu-00112233445566778899aabbccddeeff")
    place = places.gpu_place(3)
    assert (place.name, place.device) == ("cuda:3", "cuda:0")
    assert place.visible == "GPU-00112233-4455-6677-8899-aabbccddeeff"


def test_the_version_of_nvcc_is_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvcc").write_text("#!/bin/sh\necho 'nvcc: NVIDIA'\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
    (tmp_path / "nvcc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(versions, "_installed", versions._installed.__wrapped__)
    assert versions.versions()["nvcc"] == "13.0"


def test_versions_that_differ_are_listed() -> None:
    there, here = {"torch": "2.12", "python": "3.11", "nvcc": "12.8"}, {"torch": "2.13", "python": "3.11"}
    assert differences(there, here) == ("torch 2.12 there, 2.13 here", "nvcc 12.8 there, missing here")

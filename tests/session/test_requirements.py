"""The device that a session runs on: of the kind that its kernels need, which this machine has."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from support import builders as b

from engine.domain.errors import DeviceError, EspalierError, ProblemError
from engine.domain.folds import advance
from engine.domain.model import Contract, Dialect
from engine.domain.state import SessionState
from engine.session.requirements import check_requirements, session_device
from engine.session.seeds import check_session_runs
from engine.toolchain.kernel_file import KernelCode


def test_a_build_cache_that_cannot_be_written_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ESPALIER_CACHE", str(tmp_path / "file"))
    with pytest.raises(EspalierError) as refused:
        asyncio.run(check_requirements("cpu"))
    assert str(refused.value) == (
        f"the build cache {tmp_path}/file/build cannot be used: Not a directory; set ESPALIER_CACHE to another folder"
    )


def state_with(dialect: Dialect) -> SessionState:
    opened = b.opened()
    drafted = replace(b.drafted(), dialect=dialect)
    device = "cpu" if dialect is Dialect.CPP else "cuda:0"
    return advance(SessionState(), b.entries((replace(opened, device=device), b.proposed("i1"), drafted)))


@pytest.mark.parametrize(
    ("dialect", "asked", "gpus", "words"),
    [
        (Dialect.CUDA, "cpu", ("H200",), "k1 of this session is a cuda kernel and needs a GPU: use --device cuda:0"),
        (Dialect.CPP, "cuda:0", ("H200",), "k1 of this session is a cpp kernel and needs a CPU: use --device cpu"),
        (
            Dialect.CUDA,
            "cpu",
            (),
            "k1 of this session is a cuda kernel and needs a GPU, and this machine has none: `espalier doctor`",
        ),
        (Dialect.CUDA, "", (), "no GPU found, and k1 of this session is a cuda kernel: open the session on a machine with one"),
        (Dialect.TRITON, "cuda:0", (), "no GPU found, and k1 of this session is a triton kernel"),
        (Dialect.PYTHON, "cuda:0", (), "no GPU found for --device cuda:0: use --device cpu"),
    ],
)
def test_a_device_that_cannot_run_the_kernels_is_refused_with_advice_that_works(
    monkeypatch: pytest.MonkeyPatch, dialect: Dialect, asked: str, gpus: tuple[str, ...], words: str
) -> None:
    monkeypatch.setattr("engine.session.devices.gpu_names", lambda: gpus)
    with pytest.raises(DeviceError) as refused:
        session_device(state_with(dialect), asked)
    assert str(refused.value).startswith(words)


def test_a_session_keeps_its_device_or_moves_to_another_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.session.devices.gpu_names", lambda: ("H200", "H200"))
    assert session_device(state_with(Dialect.CUDA)) == "cuda:0"
    assert session_device(state_with(Dialect.CUDA), "cuda:1") == "cuda:1"
    assert session_device(state_with(Dialect.PYTHON), "cpu") == "cpu"


@pytest.mark.parametrize(
    ("dialect", "device", "words"),
    [
        (
            Dialect.CUDA,
            "cpu",
            "k.cu is a cuda kernel, and this session measures on the CPU: start another with --device cuda:0",
        ),
        (Dialect.CPP, "cuda:0", "k.cu is a cpp kernel, and this session measures on a GPU: start another with --device cpu"),
        (Dialect.PYTHON, "cpu", ""),
    ],
)
def test_a_kernel_for_another_device_is_refused_with_what_the_session_measures_on(
    dialect: Dialect, device: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``kernel seed`` advised an option that it does not have."""
    monkeypatch.setattr("engine.session.devices.gpu_names", lambda: ("H200",))
    kernel = KernelCode("", dialect, Contract.MODULE, "k.cu")
    with pytest.raises(ProblemError) if words else nullcontext() as refused:
        check_session_runs(kernel, device)
    assert not words or str(refused.value) == words  # type: ignore[union-attr]

"""Writes ``prompts/``: for each shipped problem the prompts for ideas and for code, on an H200 and on a CPU.

``python tests/golden/make_prompts.py`` writes them anew. Whoever changes a prompt reads what changed here, as a model will. The
H200's are those of the shipped sessions at the beginning of round 2. The CPU's are of the same problems with their ``small``
workload, on a described machine that has measured nothing but its naive port.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(CHECKOUT), str(CHECKOUT / "tests")]

from engine.domain import events as e  # noqa: E402
from engine.domain.model import Author, Contract, Device, Dialect, Failure, FailureKind, Operand  # noqa: E402
from engine.domain.state import Kernel, SessionState, Stage, advance  # noqa: E402
from engine.ideas.models.model import Prompt  # noqa: E402
from engine.ideas.prompts import compose  # noqa: E402
from engine.ideas.proposer import CodeRequest, IdeaRequest, RepairRequest  # noqa: E402
from engine.journal import journal  # noqa: E402
from engine.journal.blobs import Blobs  # noqa: E402
from engine.problem import catalog  # noqa: E402

GOLDEN = Path(__file__).resolve().parent / "prompts"
SESSIONS = CHECKOUT / "sessions"
MODEL = Author("openai:some-model")
CPU = Device(
    "cpu", 0, "AMD EPYC 9654 96-Core Processor (16 cores)", "x86_64", 16, 384 << 20, 128 << 30, "torch 2.12.0",
    ("avx", "f16c", "fma", "avx2", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"), (32 << 10, 1 << 20),
)  # fmt: skip


def prompts() -> Iterator[tuple[str, str]]:
    """(file name, text) of every golden prompt."""
    for folder in sorted(path for path in SESSIONS.iterdir() if (path / journal.NAME).exists()):
        entries = journal.read(folder).entries
        blobs = Blobs(folder)
        state = _before_round(entries, 2)
        yield f"{folder.name}.h200.ideas.md", compose.prompt_text(_ideas(state, blobs, Dialect.CUDA))
        yield f"{folder.name}.h200.code.md", compose.prompt_text(_code(state, blobs, Dialect.CUDA))
        yield f"{folder.name}.h200.repair.md", compose.prompt_text(_repair(state, blobs))
        cpu = _on_cpu(_before_round(entries, 1))
        yield f"{folder.name}.cpu.ideas.md", compose.prompt_text(_ideas(cpu, blobs, Dialect.CPP))
        yield f"{folder.name}.cpu.code.md", compose.prompt_text(_code(cpu, blobs, Dialect.CPP))


def _before_round(entries: tuple[e.Entry, ...], number: int) -> SessionState:
    """The state at the opening of a round, before its ideas."""
    for place, entry in enumerate(entries):
        if isinstance(entry.event, e.RoundOpened) and entry.event.round == number:
            return advance(SessionState(), entries[: place + 1])
    raise LookupError(f"no round {number}")


def _parents(state: SessionState) -> tuple[str, ...]:
    return state.rounds[max(state.rounds)].parents


def _ideas(state: SessionState, blobs: Blobs, dialect: Dialect) -> Prompt:
    code = {name: _text(state, name, blobs) for name in _parents(state)}
    remarks = {name: blobs.text(log) for name in code if (log := state.kernels[name].build_log)}
    return compose.ideas(IdeaRequest(state, max(state.rounds), _parents(state), 3, dialect, code), MODEL, 5, remarks)


def _text(state: SessionState, name: str, blobs: Blobs) -> str:
    """The code of a kernel; on the CPU that of the problem's naive port."""
    assert state.opened is not None
    if state.device is CPU:
        folder = catalog.folder(state.opened.problem)
        assert folder is not None
        return (folder / "playbook" / "naive.cpp").read_text(encoding="utf-8")
    return blobs.text(state.kernels[name].source)


def _code(state: SessionState, blobs: Blobs, dialect: Dialect) -> Prompt:
    parent = state.kernels[_parents(state)[0]]
    idea = replace(next(iter(state.ideas.values())), parent=parent.id)
    request = CodeRequest(state, idea, dialect, _text(state, parent.id, blobs))
    return compose.code(request, compose.Turn(1, 2, ()))


def _repair(state: SessionState, blobs: Blobs) -> Prompt:
    kernel = state.kernels[_parents(state)[0]]
    wrong = Failure(FailureKind.MISMATCH, "out differs from the reference at 12 of 65,536 elements")
    code = blobs.text(kernel.source)
    broken: Kernel = replace(kernel, stage=Stage.REPAIR, failure=wrong, measurement=None, verification=None)
    built = Failure(FailureKind.BUILD_FAILED, "line 7: expected ';'")
    return compose.repair(RepairRequest(state, broken, code, wrong.reason, "", (("// the first attempt\n", built),)))


def _on_cpu(state: SessionState) -> SessionState:
    """The same problem with its small workload on a CPU, with invented peaks and times."""
    assert state.opened is not None
    assert state.preparation is not None
    problem = state.opened.problem
    small, full = catalog.workload_for(problem, "small"), catalog.workload_for(problem, "full")
    old = state.preparation
    sizes = {int(full.settings[name]): int(value) for name, value in small.settings.items()}
    operands = tuple(_resized(operand, sizes) for operand in old.signature.operands)
    constants = {name: sizes.get(int(value), value) for name, value in old.signature.constants.items()}
    shrink = sum(_bytes(one) for one in operands) / sum(_bytes(one) for one in old.signature.operands)
    signature = replace(old.signature, operands=operands, constants=constants, operations=old.signature.operations * shrink)
    peaks = replace(old.peaks, copy_bytes_per_s=40e9, operations_per_s={"fp32": 1.5e12})
    preparation = replace(
        old, signature=signature, peaks=peaks, bytes_moved=int(old.bytes_moved * shrink), floor_us=500.0, notes=(),
        bound="bytes" if old.bound == "bytes" else "operations (fp32)",
    )  # fmt: skip
    opened = replace(state.opened, device="cpu", settings=replace(state.opened.settings, workload=small.name))
    kernels = {name: _ported(kernel) for name, kernel in state.kernels.items()}
    return replace(state, opened=opened, device=CPU, preparation=preparation, kernels=kernels)


def _ported(kernel: Kernel) -> Kernel:
    measurement = kernel.measurement
    assert measurement is not None
    return replace(
        kernel, dialect=Dialect.CPP, contract=Contract.HOST, tunables={}, resources=(), instructions={}, build_log="",
        profile=None, measurement=replace(measurement, light=None, conditions=("cold caches",)),
    )  # fmt: skip


def _resized(operand: Operand, sizes: dict[int, int]) -> Operand:
    return replace(operand, shape=tuple(sizes.get(extent, extent) for extent in operand.shape))


def _bytes(operand: Operand) -> int:
    size = 1
    for extent in operand.shape:
        size *= extent
    return size


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for old in GOLDEN.glob("*.md"):
        old.unlink()
    for name, text in prompts():
        (GOLDEN / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

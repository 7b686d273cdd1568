"""What a device can do, for prompts: instructions with working snippets by architecture, vector extensions.

Pure except for reading the files in ``hardware/``, whose snippets a test compiles.
"""

from __future__ import annotations

from engine.domain.model import Device
from engine.ideas.prompts.templates import shipped_text

_CUDA = {
    80: ("cuda_80",), 86: ("cuda_80",), 87: ("cuda_80",), 89: ("cuda_80",), 90: ("cuda_80", "cuda_90", "cuda_90a"),
    100: ("cuda_80", "cuda_90", "cuda_100a"), 103: ("cuda_80", "cuda_90", "cuda_100a"), 120: ("cuda_80", "cuda_90"),
    121: ("cuda_80", "cuda_90"),
}  # fmt: skip
"""Compute capability → files, the most general first."""
_OFFERS = {
    "cuda_80": "cp.async, ldmatrix, mma.sync (fp16, bf16, tf32, int8), redux, 16-byte vector access",
    "cuda_90": "TMA (cp.async.bulk), mbarrier, clusters with distributed shared memory",
    "cuda_90a": "wgmma (A from registers or shared memory, B from shared memory), setmaxnreg for warp specialisation",
    "cuda_100a": "tcgen05 MMA with tensor memory (no wgmma)",
}
_MISSING = {
    80: "no TMA, no clusters, no wgmma", 86: "no TMA, no clusters, no wgmma", 89: "no TMA, no clusters, no wgmma",
    120: "no wgmma, no tcgen05; tensor cores are reached by mma.sync",
}  # fmt: skip

_MEASURED = frozenset({90})
"""Capabilities with recorded searches."""


def capability(device: Device) -> int | None:
    """90 of ``sm_90a``; ``None`` for a CPU and an unknown spelling."""
    digits = device.arch.removeprefix("sm_").rstrip("af")
    return int(digits) if device.kind == "cuda" and digits.isdecimal() else None


def offers(device: Device) -> str:
    """The instructions of this architecture, in one line; empty if they are not known."""
    found = capability(device)
    if found is None:
        return f"Vector extensions: {', '.join(device.features)}." if device.features else ""
    listed = "; ".join(_OFFERS[name] for name in _CUDA.get(found, ()))
    missing = _MISSING.get(found, "")
    return f"This architecture has {listed}{f'; {missing}' if missing else ''}." if listed else ""


def measured(device: Device) -> str:
    """What recorded searches on devices of this capability found, a line each; empty where there are none.

    The lines also stand in ``docs/explanation/hopper.md``, with the measurements behind them.
    """
    found = capability(device)
    return shipped_text(f"hardware/measured_{found}").strip() if found in _MEASURED else ""


def snippets(device: Device) -> str:
    """How to use them: one working snippet each; empty if they are not known."""
    found = capability(device)
    names = _CUDA.get(found, ()) if found is not None else (_cpu_file(device),)
    return "\n\n".join(shipped_text(f"hardware/{name}").strip() for name in names if name)


def _cpu_file(device: Device) -> str:
    if device.kind == "cuda":
        return ""
    return {"x86_64": "cpu_x86", "amd64": "cpu_x86", "aarch64": "cpu_arm", "arm64": "cpu_arm"}.get(device.arch.lower(), "")

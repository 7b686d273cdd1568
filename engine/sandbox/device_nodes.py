"""The files in /dev through which a sandboxed process uses its GPU: those of the driver, and its own device's.

A worker of a fleet sees one GPU, which CUDA_VISIBLE_DEVICES names by its UUID. Its sandbox has that GPU's ``/dev/nvidiaN`` and
no other: a kernel cannot reach the devices of other workers, whatever it does to its environment.
"""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path

_NODES = ("/dev/nvidia*", "/dev/nvidia-caps/*")
_GPUS = "/proc/driver/nvidia/gpus/*/information"
"""The driver's list of GPUs: a file each."""
_LINE = re.compile(r"^\s*([^:]+?)\s*:\s*(.*?)\s*$", re.MULTILINE)
_NUMBERED = re.compile(r"nvidia\d+")


def device_nodes() -> list[str]:
    """The device files for a sandbox on this process's GPU; those of all GPUs where it is not known which one that is."""
    found = [node for pattern in _NODES for node in glob.glob(pattern)]
    own = _own_node()
    if own not in map(os.path.basename, found):
        return found
    return [node for node in found if not _NUMBERED.fullmatch(os.path.basename(node)) or os.path.basename(node) == own]


def _own_node() -> str:
    """``nvidia3``, or nothing: CUDA_VISIBLE_DEVICES names no GPU or several, numbers, or a part of a GPU."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    if not named.startswith("GPU-"):
        return ""
    minors = []
    for file in glob.glob(_GPUS):
        try:
            facts = dict(_LINE.findall(Path(file).read_text()))
        except OSError:
            continue
        if facts.get("GPU UUID", "").startswith(named):
            minors.append(facts.get("Device Minor", ""))
    return f"nvidia{minors[0]}" if len(minors) == 1 else ""

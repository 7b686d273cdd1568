"""Constructing a module for a GPU where there is none, so that its compilers run before its trial."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from engine.trial.messages import ArenaHandle, LoadKernel
from engine.trial.runner.module_caches import COMPILED
from engine.trial.shared.argument_codec import encode_value

MODULE = """
import os
import torch
from torch import nn

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        LAYERS
        if torch.cuda.is_available():
            folder = os.path.join(os.environ["TORCH_EXTENSIONS_DIR"], "made")
            os.makedirs(folder)
            open(os.path.join(folder, "extension.so"), "w").close()
"""


@pytest.mark.parametrize("layers", ["pass", "self.layer = nn.Linear(4096, 4096)"])
def test_a_module_that_asks_for_a_device_before_it_compiles_is_compiled_ahead(layers: str, tmp_path: Path) -> None:
    none = ArenaHandle("none", 0, False)
    arguments, source = (encode_value(()), encode_value({})), MODULE.replace("LAYERS", layers)
    load = LoadKernel("module", "cuda:0", (), none, none, 1, arguments, source=source)
    spec = tmp_path / "spec"
    spec.write_bytes(msgspec.msgpack.encode(load))
    environment = {**os.environ, "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-m", "engine.trial.runner.module_build", str(spec)],
        env=environment, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert (tmp_path / "extensions" / "made" / "extension.so").exists(), done.stderr
    assert done.stdout.splitlines()[-1].removeprefix(COMPILED)

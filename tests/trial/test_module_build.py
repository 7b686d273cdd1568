"""Constructing a module for a GPU where there is none, so that its compilers run before its trial."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from engine.trial.messages import ArenaHandle, LoadKernel
from engine.trial.runner.module_caches import COMPILED, COMPILER_FAILED, LIGHT, WENT_ON, unpack
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


def built(source: str, tmp_path: Path, extra: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """What the builder's process prints on a module, without a device."""
    none = ArenaHandle("none", 0, False)
    arguments = encode_value(()), encode_value({})
    load = LoadKernel("module", "cuda:0", (), none, none, 1, arguments, source=source)
    spec = tmp_path / "spec"
    spec.write_bytes(msgspec.msgpack.encode(load))
    folder = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions"), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, "-m", "engine.trial.runner.module_build", str(spec)],
        env={**os.environ, **folder, **(extra or {})}, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip


GOES_ON = """
from torch import nn
from torch.utils.cpp_extension import load

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        try:
            self.run = load("missing", ["/nowhere/missing.cpp"])
        except Exception:
            self.run = None
"""


@pytest.mark.slow
@pytest.mark.parametrize("light", [False, True])
def test_a_failed_build_that_a_module_catches_is_told_where_headers_may_be_missing(light: bool, tmp_path: Path) -> None:
    extra = {LIGHT: "1"} if light else {}
    line = built(GOES_ON, tmp_path, extra).stdout.splitlines()[-1]
    assert line.startswith(COMPILER_FAILED if light else COMPILED)
    assert not light or base64.b64decode(line.removeprefix(COMPILER_FAILED)).decode() == WENT_ON


@pytest.mark.slow
@pytest.mark.parametrize("layers", ["pass", "self.layer = nn.Linear(4096, 4096)"])
def test_a_module_that_asks_for_a_device_before_it_compiles_is_compiled_ahead(layers: str, tmp_path: Path) -> None:
    done = built(MODULE.replace("LAYERS", layers), tmp_path)
    assert (tmp_path / "extensions" / "made" / "extension.so").exists(), done.stderr
    assert done.stdout.splitlines()[-1].removeprefix(COMPILED)


INLINE = """
import os
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CODE = "torch::Tensor ones(torch::Tensor x) { return torch::add(torch::zeros({2}), torch::randint_like(x, 1, 2)); }"
CODE += "torch::Tensor zeros() { return torch::zeros({2}); }"
mine = load_inline(name="mine", cpp_sources=[CODE], functions=["ones", "zeros"])
with open(os.path.join(os.environ["TORCH_EXTENSIONS_DIR"], "made"), "w") as file:
    made = mine.ones(torch.zeros(2, requires_grad=True))
    file.write(f"{made.tolist()} {made.requires_grad} {mine.zeros()._version}")

class ModelNew(nn.Module):
    pass
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_an_inline_extension_compiled_with_light_headers_is_not_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "extensions"
    done = built(INLINE, tmp_path, {LIGHT: "1"})
    packed = tmp_path / "packed"
    packed.write_bytes(base64.b64decode(done.stdout.splitlines()[-1].removeprefix(COMPILED)))
    shutil.rmtree(folder)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(folder))
    with packed.open("rb") as file:
        unpack(file.fileno())
    assert list(folder.glob("torch_headers/*/torch/types.h")), done.stderr
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    ninja = shutil.which("ninja", path=path)
    assert ninja is not None
    again = subprocess.run([ninja, "-C", str(folder / "mine")], capture_output=True, text=True, check=True)
    assert "no work to do" in again.stdout
    assert (folder / "made").read_text() == "[1.0, 1.0] False 0"

"""What a module's compilers made: packed once, unpacked for runners so that nothing is compiled again."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import os
import shutil
import subprocess
import sysconfig
import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support import builders as b

from engine.domain.model import Contract, Device, Dialect, Workload
from engine.sandbox.include_trees import VARIABLE, include_trees
from engine.sandbox.process import ProcessResult
from engine.session.fake_bench import FAKE_GPU
from engine.toolchain.build import BuildFailure, BuildRequest
from engine.toolchain.included import visible
from engine.trial.runner import module_caches
from engine.trial.runner.module_caches import COMPILED, COMPILER_FAILED
from engine.trial.tools import module_compilers
from engine.trial.tools.kernel_case import KernelCase


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, variable in module_caches.FOLDERS.items():
        monkeypatch.setenv(variable, str(tmp_path / "caches" / name))
    return tmp_path / "caches"


def unpacked(archive: bytes, tmp_path: Path) -> None:
    file = tmp_path / "archive"
    file.write_bytes(archive)
    with file.open("rb") as opened:
        module_caches.unpack(opened.fileno())


def test_files_come_back_with_their_times_to_the_nanosecond(caches: Path, tmp_path: Path) -> None:
    made = {"extensions/mine/main.o": 1795391719770376693, "triton/key/kernel.json": 1795391719770376694}
    for name, at in made.items():
        (caches / name).parent.mkdir(parents=True)
        (caches / name).write_text(name)
        os.utime(caches / name, ns=(at, at))
    archive = module_caches.pack()
    shutil.rmtree(caches)
    unpacked(archive, tmp_path)
    assert {name: (caches / name).stat().st_mtime_ns for name in made} == made
    assert all((caches / name).read_text() == name for name in made)


def test_locks_and_links_are_left_out(caches: Path) -> None:
    (caches / "extensions").mkdir(parents=True)
    (caches / "extensions" / "lock").write_text("")
    (caches / "extensions" / "link").symlink_to("/etc/passwd")
    (caches / "extensions" / "kept").write_text("")
    with tarfile.open(fileobj=io.BytesIO(module_caches.pack())) as archive:
        assert sorted(archive.getnames()) == ["extensions", "extensions/kept"]


def test_a_module_that_compiled_nothing_has_no_archive(caches: Path) -> None:
    (caches / "inductor").mkdir(parents=True)
    assert module_caches.pack() == b""


def test_a_second_runner_finds_what_the_first_unpacked(caches: Path, tmp_path: Path) -> None:
    (caches / "inductor").mkdir(parents=True)
    (caches / "inductor" / "code.so").write_text("compiled")
    archive = module_caches.pack()
    (caches / "inductor" / "code.so").write_text("in use")
    unpacked(archive, tmp_path)
    assert (caches / "inductor" / "code.so").read_text() == "in use"


@pytest.mark.parametrize("name", ["../outside", "/outside", "extensions/../../outside"])
def test_an_archive_writes_nowhere_else(caches: Path, tmp_path: Path, name: str) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    with contextlib.suppress(tarfile.TarError):
        unpacked(buffer.getvalue(), tmp_path)
    assert not Path("/outside").exists()
    assert not list(tmp_path.rglob("outside"))


def test_an_archive_has_plain_files_only(caches: Path, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        link = tarfile.TarInfo("extensions/link")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
        archive.addfile(link)
    with pytest.raises(tarfile.TarError, match="extensions/link"):
        unpacked(buffer.getvalue(), tmp_path)


def test_a_builder_that_compares_times_finds_nothing_to_do(caches: Path, tmp_path: Path) -> None:
    folder = caches / "extensions" / "mine"
    folder.mkdir(parents=True)
    (folder / "main.cpp").write_text("int main() {}\n")
    rule = "rule compile\n  command = c++ -MMD -MF $out.d -c $in -o $out\n  depfile = $out.d\n  deps = gcc\n"
    (folder / "build.ninja").write_text(f"{rule}build main.o: compile {folder}/main.cpp\n")
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    ninja = shutil.which("ninja", path=path)
    assert ninja is not None

    def built() -> str:
        return subprocess.run([ninja, "-C", str(folder)], capture_output=True, text=True, check=True).stdout

    assert "no work to do" not in built()
    archive = module_caches.pack()
    shutil.rmtree(caches)
    unpacked(archive, tmp_path)
    assert "no work to do" in built()


@pytest.mark.parametrize(
    ("code", "cpu", "gpu"),
    [
        ("from torch.utils.cpp_extension import load_inline", True, True),
        ("self.run = torch.compile(f)", True, False),
        ("model.compile()", True, False),
        ("import triton", False, False),
        ("y = torch.softmax(x, 1)", False, False),
        ("# recompiled", False, False),
    ],
)
def test_which_modules_have_compilers_that_run_ahead(code: str, cpu: bool, gpu: bool) -> None:
    device: Device = b.device()
    assert module_compilers.compiles(code, device) is cpu
    assert module_compilers.compiles(code, FAKE_GPU) is gpu


@pytest.mark.parametrize(("arch", "named"), [("sm_90a", "9.0"), ("sm_86", "8.6"), ("sm_100a", "10.0"), ("sm_120", "12.0")])
def test_architectures_as_torch_names_them(arch: str, named: str) -> None:
    assert module_compilers.torch_architecture(arch) == named


@pytest.mark.parametrize(
    ("output", "found"),
    [
        (f"noise\n{COMPILED}{base64.b64encode(b'an archive').decode()}\n", b"an archive"),
        (f"{COMPILED}\n", b""),
        (f"{COMPILED}not base64!\n", b""),
        (f"{COMPILER_FAILED}{base64.b64encode(b'error').decode()}\n", b""),
        ("killed", b""),
        ("", b""),
    ],
)
def test_the_last_line_holds_the_archive(output: str, found: bytes) -> None:
    assert module_compilers._after(output, COMPILED) == found


INLINE = "from torch.utils.cpp_extension import load_inline\n"
MISSING = 'cuda.cu(7): error: namespace "torch" has no member "stack_of_ours"'


@pytest.mark.parametrize(
    ("code", "failures", "runs"),
    [
        ("", [], [True]),
        ("PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {}", [], [False]),
        ("torch::nn::functional::relu(x)", [], [False]),
        ("", [MISSING], [True, False]),
        ("", [MISSING, MISSING], [True, False]),
        ("", [module_caches.WENT_ON], [True, False]),
        ("", ['cuda.cu(7): error: expected a ";"'], [True, False]),
        ("", ["ptxas error   : Entry function 'f' uses too much shared data"], [True]),
    ],
)
def test_cuda_code_is_compiled_without_the_hosts_api_unless_it_needs_that(
    code: str, failures: list[str], runs: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    light: list[bool] = []

    async def run(argv: object, *, environment: Mapping[str, str], **_: object) -> ProcessResult:
        light.append(module_caches.LIGHT in environment)
        words = failures[len(light) - 1].encode() if len(light) <= len(failures) else b""
        line = (COMPILER_FAILED if words else COMPILED) + base64.b64encode(words or b"an archive").decode()
        return ProcessResult(0, line, 1.0, False)

    monkeypatch.setenv("ESPALIER_CACHE", str(tmp_path))
    monkeypatch.setattr(module_compilers, "run", run)
    request = BuildRequest(INLINE + code, Dialect.PYTHON, Contract.MODULE, "", {}, "any", "mine.py")
    case = KernelCase(Workload("small"), b.signature(), request)
    built = cast(Any, SimpleNamespace(binary=tmp_path / "mine.py"))
    confinement = cast(Any, SimpleNamespace(name="bubblewrap"))
    found = asyncio.run(module_compilers.compile_module(case, FAKE_GPU, built, (), cast(Any, None), confinement))
    assert light == runs
    assert isinstance(found, BuildFailure) == (len(failures) == len(runs))


def test_a_changed_header_compiles_a_module_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = BuildRequest("load_inline", Dialect.PYTHON, Contract.MODULE, "", {}, "any", "mine.py")
    case = KernelCase(Workload("small"), b.signature(), request)
    header = tmp_path / "kit.h"
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    keys, lines = set(), set()
    for text in ("#define KIT 1\n", "#define KIT 22\n"):
        header.write_text(text)
        keys.add(asyncio.run(module_compilers._key(case, b.device())))
        lines |= set(visible(include_trees()))
    assert len(keys) == 2
    assert len(lines) == 2

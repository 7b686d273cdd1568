"""Finding the compilers of this machine, their versions, and what CPU ``-march=native`` means here.

Knows where compilers live; how they are called is known in ``compilers``. Compilers are asked once per process.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from engine.build.process import run
from engine.domain.errors import ToolchainError

_SYSTEM = (Path("/usr"), Path("/bin"), Path("/lib"))
USUAL_CUDA = "/usr/local/cuda/bin"
"""Where the CUDA toolkit puts itself when nobody says otherwise."""
_ANSWER = 30.0
"""Seconds a compiler has to say its version: the first start after a boot reads it from disk."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """One compiler: ``version`` tells any two builds of it apart, ``readable`` is what it reads outside /usr."""

    name: str
    path: Path
    version: str
    readable: tuple[Path, ...] = ()

    @property
    def folder(self) -> Path:
        """Where its executables are."""
        return self.path.parent


_known: dict[tuple[str, str], Toolchain] = {}
_native: dict[str, str] = {}


async def find_gxx() -> Toolchain:
    """The C++ compiler for ``cpp`` kernels, and the host compiler of nvcc.

    Raises:
        ToolchainError: there is none, or it does not start.
    """
    found = shutil.which("g++")
    if found is None:
        raise ToolchainError("g++ is missing, and cpp kernels need it: install it (Debian: apt install g++)")
    return await _identify("g++", Path(found), Path(found).resolve().parent.parent)


async def find_nvcc() -> Toolchain:
    """The CUDA compiler for ``cuda`` kernels: of CUDA_HOME, on the PATH, or in /usr/local/cuda.

    Raises:
        ToolchainError: there is none, or it does not start.
    """
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    places = [str(Path(home) / "bin")] if home else []
    places += [os.environ.get("PATH", os.defpath), USUAL_CUDA]
    found = shutil.which("nvcc", path=os.pathsep.join(places))
    if found is None:
        raise ToolchainError(
            "nvcc is missing, and cuda kernels need it: install the CUDA toolkit, or set CUDA_HOME to where it is"
        )
    real = await _cuda_root(Path(found))
    return await _identify("nvcc", real / "bin" / "nvcc" if (real / "bin" / "nvcc").exists() else Path(found), real)


async def _cuda_root(nvcc: Path) -> Path:
    """Where the toolkit is: what is on the PATH may be a link or a script that starts the real nvcc."""
    known = _known.get(("nvcc root", str(nvcc)))
    if known is not None:
        return known.path
    text = await _ask(nvcc, "--dryrun", "-E", "-x", "cu", "/dev/null")
    match = re.search(r"^#\$ TOP=(.+)$", text, re.MULTILINE)
    root = Path(match.group(1).strip()).resolve() if match else nvcc.resolve().parent.parent
    _known["nvcc root", str(nvcc)] = Toolchain("nvcc root", root, "")
    return root


async def _identify(name: str, path: Path, root: Path) -> Toolchain:
    key = (name, str(path))
    if key not in _known:
        lines = [line.strip() for line in (await _ask(path, "--version")).splitlines() if line.strip()]
        version = lines[0] if name == "g++" else " ".join(lines[-2:])
        readable = () if any(root.is_relative_to(folder) for folder in _SYSTEM) else (root,)
        _known[key] = Toolchain(name, path, version, readable)
    return _known[key]


async def _ask(compiler: Path, *arguments: str) -> str:
    try:
        result = await run([str(compiler), *arguments], seconds=_ANSWER)
    except OSError as error:
        raise ToolchainError(f"{compiler} does not start: {error.strerror}; install it anew") from error
    lines = [line.strip() for line in result.output.splitlines() if line.strip()]
    if result.status != 0 or not lines:
        raise ToolchainError(
            f"{compiler} does not work: exit status {result.status}, {lines[0] if lines else 'no answer'}; install it anew"
        )
    return result.output


async def cpu_arch() -> str:
    """This machine's CPU as g++ resolves ``-march=native``, e.g. ``x86_64-sapphirerapids-1f0c2b3a``.

    The digits cover every flag and cache size it implies, so two machines with the same name run each other's
    artefacts. Without g++ it is the machine's architecture alone.
    """
    try:
        compiler = await find_gxx()
    except ToolchainError:
        return platform.machine()
    key = str(compiler.path)
    if key not in _native:
        flags = await _ask(compiler.path, "-march=native", "-Q", "--help=target")
        tuned = await _ask(compiler.path, "-march=native", "-Q", "--help=params")
        march = re.search(r"^\s*-march=\s*(\S+)", flags, re.MULTILINE)
        digest = hashlib.sha256((flags + tuned).encode()).hexdigest()[:8]
        _native[key] = f"{platform.machine()}-{march.group(1) if march else 'native'}-{digest}"
    return _native[key]

"""Finds this machine's compilers, their versions, and the CPU that ``-march=native`` stands for.

Each compiler is queried once per process. Flags are in ``recipes``.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from engine.domain.errors import ToolchainError
from engine.sandbox.process import run

_SYSTEM = (Path("/usr"), Path("/bin"), Path("/lib"))
DEFAULT_CUDA = "/usr/local/cuda/bin"
"""Where the CUDA toolkit is installed by default."""
_VERSION_SECONDS = 30.0
"""Time limit of a version query; the first one after boot reads the compiler from disk."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """One compiler: ``version`` distinguishes any two builds of it, ``readable`` are the folders it reads outside /usr."""

    name: str
    path: Path
    version: str
    readable: tuple[Path, ...] = ()

    @property
    def folder(self) -> Path:
        """The folder of its executables."""
        return self.path.parent


_compilers: dict[tuple[str, str], Compiler] = {}
_native: dict[str, str] = {}


async def find_gxx() -> Compiler:
    """The C++ compiler for ``cpp`` kernels, and the host compiler of nvcc.

    Raises:
        ToolchainError: it is not installed, or does not start.
    """
    path = shutil.which("g++")
    if path is None:
        raise ToolchainError(
            "g++ not found: kernels for the CPU need it; apt install g++ (Debian, Ubuntu) or dnf install gcc-c++ (Fedora)"
        )
    return await identify("g++", Path(path), Path(path).resolve().parent.parent)


async def find_nvcc() -> Compiler:
    """The CUDA compiler for ``cuda`` kernels: of CUDA_HOME, on the PATH, or in /usr/local/cuda.

    Raises:
        ToolchainError: it is not installed, or does not start.
    """
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    places = [str(Path(home) / "bin")] if home else []
    places += [os.environ.get("PATH", os.defpath), DEFAULT_CUDA]
    path = shutil.which("nvcc", path=os.pathsep.join(places))
    if path is None:
        raise ToolchainError(
            "nvcc not found: kernels for the GPU need it; install the CUDA toolkit (developer.nvidia.com/cuda-downloads), "
            "or set CUDA_HOME to its folder"
        )
    real = await _cuda_root(Path(path))
    return await identify("nvcc", real / "bin" / "nvcc" if (real / "bin" / "nvcc").exists() else Path(path), real)


async def _cuda_root(nvcc: Path) -> Path:
    """The toolkit's folder: the nvcc on the PATH may be a link or a script that starts the real one."""
    known = _compilers.get(("nvcc root", str(nvcc)))
    if known is not None:
        return known.path
    text = await _query(nvcc, "--dryrun", "-E", "-x", "cu", "/dev/null")
    match = re.search(r"^#\$ TOP=(.+)$", text, re.MULTILINE)
    root = Path(match.group(1).strip()).resolve() if match else nvcc.resolve().parent.parent
    _compilers["nvcc root", str(nvcc)] = Compiler("nvcc root", root, "")
    return root


async def identify(name: str, path: Path, root: Path) -> Compiler:
    """A compiler with its version; ``root`` is its folder. Raises ToolchainError if it does not start."""
    key = (name, str(path))
    if key not in _compilers:
        lines = [line.strip() for line in (await _query(path, "--version")).splitlines() if line.strip()]
        version = lines[0] if name == "g++" else " ".join(lines[-2:])
        readable = () if any(root.is_relative_to(folder) for folder in _SYSTEM) else (root,)
        _compilers[key] = Compiler(name, path, version, readable)
    return _compilers[key]


async def _query(compiler: Path, *arguments: str) -> str:
    try:
        result = await run([str(compiler), *arguments], seconds=_VERSION_SECONDS)
    except OSError as error:
        raise ToolchainError(f"{compiler} does not start: {error.strerror}; reinstall it") from error
    lines = [line.strip() for line in result.output.splitlines() if line.strip()]
    if result.status != 0 or not lines:
        raise ToolchainError(
            f"{compiler} does not work: exit status {result.status}, {lines[0] if lines else 'no answer'}; reinstall it"
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
        flags = await _query(compiler.path, "-march=native", "-Q", "--help=target")
        tuned = await _query(compiler.path, "-march=native", "-Q", "--help=params")
        march = re.search(r"^\s*-march=\s*(\S+)", flags, re.MULTILINE)
        digest = hashlib.sha256((flags + tuned).encode()).hexdigest()[:8]
        _native[key] = f"{platform.machine()}-{march.group(1) if march else 'native'}-{digest}"
    return _native[key]

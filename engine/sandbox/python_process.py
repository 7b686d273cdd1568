"""Command line, environment and readable folders of a sandboxed Python process of this installation.

The sandbox shows Python, torch, the system's libraries and a private ``/tmp``, and none of the user's files. Without bubblewrap
only resource limits apply, and every verdict says so.
"""

from __future__ import annotations

import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import engine
from engine.sandbox import bubblewrap, bytecode
from engine.sandbox.device_nodes import device_nodes
from engine.sandbox.include_trees import include_paths

_SYSTEM_EXTRAS = ("/sbin", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/passwd", "/etc/nsswitch.conf", "/opt/nvidia")
_NEEDED = ("torch", "msgspec", "numpy")
"""Packages that a runner imports, wherever they are installed."""


def python_folders() -> Iterator[str]:
    """Every folder that a Python process of this installation reads."""
    yield from {sys.prefix, sys.base_prefix, *(sysconfig.get_paths().values()), *site.getsitepackages()}
    yield os.path.dirname(os.path.realpath(sys.executable))
    for package in _NEEDED:
        spec = importlib.util.find_spec(package)
        if spec is not None:
            yield from (os.path.dirname(place) for place in spec.submodule_search_locations or ())


def _beneath(folder: str, roots: Sequence[str]) -> bool:
    return any(folder == root or folder.startswith(root + "/") for root in roots)


def _steps(folders: Iterable[str]) -> list[str]:
    """For folders inside a private one (a Python installed in ``/tmp``): the first folder below it on their path.

    Each gets its own mount: no kernel can write to it, move it or remove it.
    """
    steps = set()
    for folder in folders:
        for private in bubblewrap.PRIVATE:
            if folder.startswith(private + "/"):
                steps.add("/".join(folder.split("/")[: private.count("/") + 2]))
    return sorted(steps)


def in_bubblewrap(
    command: Sequence[str], device: str, filter_fd: int | None = None, readable: Sequence[Path] = ()
) -> list[str]:
    """The command line that runs ``command`` as the first process of a sandbox for ``device``."""
    argv = ["bwrap", *bubblewrap.ISOLATION, "--unshare-user"]
    # The first process of a PID namespace can be neither killed nor stopped from within.
    argv += ["--as-pid-1"]
    if filter_fd is not None:
        argv += ["--seccomp", str(filter_fd)]
    return [*argv, *file_system(device, readable), "--", *command]


def file_system(device: str, readable: Sequence[Path] = ()) -> list[str]:
    """Arguments for what a process of this installation sees: a private /proc, /dev and /tmp, and its libraries, read-only."""
    package = Path(engine.__file__).parent
    python = sorted(folder for folder in set(python_folders()) if not _beneath(folder, ("/usr", "/bin", "/lib")))
    trees = [*include_paths(), *filter(None, [bytecode.folder()])]
    steps = [step for step in _steps([*python, str(package), *map(str, trees)]) if step not in (*python, *map(str, trees))]
    argv = [*bubblewrap.PROC, *bubblewrap.DEV, *bubblewrap.NO_TERMINALS, *bubblewrap.private_folders()]
    argv += bubblewrap.empty(steps)
    argv += bubblewrap.readable([*bubblewrap.SYSTEM, *_SYSTEM_EXTRAS, *python])
    argv += bubblewrap.mounted("--ro-bind", [package])
    # Shipped references are hidden, wherever they are installed: no kernel may find the answer on disk.
    for place in sorted({str(package.parent), sysconfig.get_paths()["purelib"], *site.getsitepackages()}):
        shipped = Path(place) / "engine" / "_shipped"
        if shipped.is_dir():
            argv += [*bubblewrap.empty([str(shipped)]), "--remount-ro", str(shipped)]
    argv += bubblewrap.mounted("--ro-bind", [*readable, *trees])
    if device != "cpu":
        argv += [*bubblewrap.mounted("--ro-bind", ["/sys"]), *bubblewrap.readable(["/usr/local/nvidia"])]
        argv += bubblewrap.mounted("--dev-bind", device_nodes())
    # Bubblewrap's own mount points are in memory too: make them read-only.
    for folder in (*steps, "/dev", "/"):
        argv += ["--remount-ro", folder]
    return [*argv, "--chdir", "/tmp"]


_STEADY = {
    # Freed memory is kept (see ``modules.warm_heap``).
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""Makes CPU times repeatable, together with ``_pinned``. Not for GPU runners: pinned to one core, they would create their
contexts one after another."""

LARGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
"""Torch takes large tensors of the host in pages of 2 MiB, where the system allows it: a model is made on the CPU, and its
gigabytes of weights are written to fresh pages each time (``benchmarks/large_pages.py`` compares). Not where kernels run on the
CPU: eager PyTorch does without as shipped."""

_DEEP_QUEUES = {"CUDA_SCALE_LAUNCH_QUEUES": "4x"}
"""About four thousand launches fit behind the gate, instead of one: a recurrent model in eager mode makes so many in a call.
Where the last ones do not fit, a call is timed with its host, otherwise by the device alone."""


def _pinned() -> dict[str, str]:
    """One core per OpenMP thread: two threads on a core spin against each other for whole time slices.

    Cores are listed one by one. With ``OMP_PLACES=threads`` OpenMP reads the machine's topology, which the sandbox hides, and
    pins nothing.
    """
    places = ",".join(f"{{{core}}}" for core in sorted(os.sched_getaffinity(0)))
    return {"OMP_PROC_BIND": "close", "OMP_PLACES": places}


def environment(device: str, *, alone: bool, threads: int) -> dict[str, str]:
    """The environment of a host: an allow-list without anything that could hold a key."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES") if name in os.environ}
    # A virtual environment need not be activated: torch starts the ninja that is installed beside Python.
    path = [*filter(None, os.environ.get("PATH", os.defpath).split(os.pathsep)), sysconfig.get_path("scripts")]
    package_root = str(Path(engine.__file__).parent.parent)
    others = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    return {
        **kept,
        "PATH": os.pathsep.join(dict.fromkeys(path)),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys([package_root, *others])),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": str(threads),
        "ESPALIER_DEVICE": device,
        "CUDA_MODULE_LOADING": "LAZY",
        "CUDA_CACHE_DISABLE": "1",
        "TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # a pool of workers does not survive SIGSTOP
        "TRITON_CACHE_DIR": "/tmp/triton",
        "TORCH_EXTENSIONS_DIR": "/tmp/extensions",
        **({"CPATH": os.pathsep.join(map(str, trees))} if (trees := include_paths()) else {}),
        **({"ESPALIER_ALONE": "1", **bytecode.variables()} if alone else {}),
        **({**_STEADY, **_pinned()} if device == "cpu" else {**LARGE_PAGES, **_DEEP_QUEUES}),
    }


def python_once(
    module: str, arguments: Sequence[Path | str], device: str, before: Sequence[str], readable: Sequence[Path], *,
    confined: bool, threads: int = 1,
) -> tuple[list[str], dict[str, str]]:  # fmt: skip
    """Command line and environment that run one of our modules in a runner's sandbox; ``before`` is a tool's command prefix."""
    command = [*before, sys.executable, "-s", "-P", "-m", module, *(str(a) for a in arguments)]
    argv = in_bubblewrap(command, device, None, readable) if confined else command
    return argv, environment(device, alone=confined, threads=threads)

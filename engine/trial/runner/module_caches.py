"""What a module's compilers have made, packed by the builder and unpacked by the first runner of a host. No torch.

torch's extension builder, Inductor and Triton find their own cache folders as they left them, at the same paths and with the
same times: their checks find nothing to compile. The content is the candidate's, like a compiled binary: it is unpacked in the
sandbox of its runners only, as plain files below the folders of the caches.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

FOLDERS = {"extensions": "TORCH_EXTENSIONS_DIR", "inductor": "TORCHINDUCTOR_CACHE_DIR", "triton": "TRITON_CACHE_DIR"}
"""The caches, and the environment variables that name their folders."""
ARCHITECTURES = "TORCH_CUDA_ARCH_LIST"
"""Environment variable of torch's extension builder. A runner must have the builder's value, else it compiles again."""
COMPILED = "espalier: compiled: "
COMPILER_FAILED = "espalier: compiler failed: "
"""``engine.trial.runner.module_build`` prints one of these and, in base64, the caches or the compiler's output."""
LIGHT = "ESPALIER_LIGHT_HEADERS"
"""Environment variable that is set where extensions are compiled with a part of torch's headers (``torch_headers``)."""
WENT_ON = "the module goes on without an extension that could not be built with a part of torch's headers"
"""Stands for a compiler's output."""
_TIME = "ESPALIER.mtime_ns"
_PASSING = ("lock", ".lock")
"""Names of files with which a builder excludes others while it works."""


def pack() -> bytes:
    """The caches of this process as an archive; empty if nothing was compiled."""
    places = {Path(name): Path(os.environ[variable]) for name, variable in FOLDERS.items() if variable in os.environ}
    if not any(path.is_file() for place in places.values() if place.is_dir() for path in place.rglob("*")):
        return b""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, place in places.items():
            for path in (place, *sorted(place.rglob("*"))) if place.is_dir() else ():
                entry = archive.gettarinfo(path, str(name / path.relative_to(place)))
                if entry is None or not (entry.isfile() or entry.isdir()) or path.name in _PASSING:
                    continue
                # Of a time an archive keeps microseconds; ninja compares nanoseconds.
                entry.pax_headers = {_TIME: str(path.stat().st_mtime_ns)}
                with open(path, "rb") if entry.isfile() else contextlib.nullcontext() as file:
                    archive.addfile(entry, file)
    return buffer.getvalue()


def unpack(archive: int) -> None:
    """Unpack the archive with this descriptor where the compilers look. A host's later runners find it unpacked.

    Raises OSError and tarfile.TarError for a damaged archive, and for one that would write elsewhere.
    """
    with open(os.dup(archive), "rb") as file:
        file.seek(0)
        with tempfile.TemporaryDirectory() as made:
            with tarfile.open(fileobj=file) as packed:
                _extract(packed, Path(made))
            for name, variable in FOLDERS.items():
                place = os.environ.get(variable)
                if place and os.path.isdir(os.path.join(made, name)):
                    _publish(os.path.join(made, name), place)


def _extract(packed: tarfile.TarFile, made: Path) -> None:
    """Write the files and folders of an archive below ``made``, with their times (``extractall`` filters since 3.11.4 only)."""
    times: list[tuple[Path, int]] = []
    for entry in packed.getmembers():
        name = PurePosixPath(entry.name)
        if name.is_absolute() or ".." in name.parts or not (entry.isfile() or entry.isdir()):
            raise tarfile.ExtractError(f"{entry.name!r} is not a plain file or folder of the caches")
        place = made / name
        (place if entry.isdir() else place.parent).mkdir(parents=True, exist_ok=True)
        if (content := packed.extractfile(entry)) is not None:
            with place.open("wb") as file:
                shutil.copyfileobj(content, file)
            place.chmod(entry.mode & 0o755)
        if (at := entry.pax_headers.get(_TIME, "")).isdecimal():
            times.append((place, int(at)))
    for made_at, when in times:  # last: a file written into a folder changes the folder's
        os.utime(made_at, ns=(when, when))


def _publish(made: str, place: str) -> None:
    """Rename the folder to its place, which another runner may have done just now."""
    os.makedirs(os.path.dirname(place), exist_ok=True)
    with contextlib.suppress(OSError):
        os.rename(made, place)
        return
    if not os.path.isdir(place):  # another file system
        shutil.copytree(made, place, dirs_exist_ok=True)

"""Binaries that another machine compiled, in this machine's build cache.

Each is kept under a key made of its own SHA-256. No such key can be that of a build here, so what a builder sends is never
mistaken for the result of a compiler of this machine.
"""

from __future__ import annotations

import hashlib

from engine.domain.errors import KernelCodeError
from engine.domain.model import Blob
from engine.toolchain.build import Artefact
from engine.toolchain.cache import LOG, Cache, CacheEntry, cache_folder
from engine.toolchain.device_images import cubins

_BINARY = "kernel.binary"
_ELF = b"\x7fELF"


def adopt(content: bytes) -> Blob:
    """Keep a binary; its SHA-256. Raises EspalierError if the cache cannot be written."""
    name = hashlib.sha256(content).hexdigest()
    cache = Cache(cache_folder())
    if adopted(name) is None:
        with cache.build_folder() as folder:
            with cache.disk_errors():
                (folder / _BINARY).write_bytes(content)
                (folder / LOG).write_text("")
            cache.publish(folder, CacheEntry(_key(name), _BINARY, name, 0.0, ()))
    return name


def adopted(name: Blob) -> Artefact | None:
    """The binary with this SHA-256, if it was kept and is intact. Raises EspalierError if the cache cannot be read."""
    cache = Cache(cache_folder())
    entry = cache.find(_key(name))
    if entry is None or entry.digest != name:
        return None
    folder = cache.folder(entry.key)
    return Artefact(entry.key, folder, folder / entry.binary, 0.0, True, (), "", digest=name)


def is_binary(content: bytes) -> bool:
    """Whether this has the form of what a compiler makes: an ELF file, or device images."""
    try:
        found = cubins(content)
    except KernelCodeError:
        return False
    return bool(found) and all(one.startswith(_ELF) for one in found)


def _key(name: Blob) -> str:
    return hashlib.sha256(b"adopted\0" + name.encode()).hexdigest()

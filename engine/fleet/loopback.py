"""Keeps the Ray of a single machine on the loopback address, and finds out whether a running one is there.

Ray listens on every address of a machine. Told that it shall not form clusters of several machines, it uses 127.0.0.1 alone.
"""

from __future__ import annotations

import contextlib
import importlib
import ipaddress
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's setting, which it reads on Linux too: whether clusters of several machines are possible."""
LOOPBACK: Mapping[str, str] = {_CLUSTERS: "0"}
"""The environment in which Ray listens on 127.0.0.1 only."""
_LOCAL_NAMES = ("127.0.0.1", "localhost")
_TABLES = ("tcp", "tcp6")
_LISTENS = "0A"


@contextlib.contextmanager
def loopback_only() -> Iterator[None]:
    """Within it, Ray starts or joins a cluster of this machine on 127.0.0.1. Ray reads its setting when it is imported."""
    constants: Any = importlib.import_module("ray._private.ray_constants")
    before, given = constants.ENABLE_RAY_CLUSTER, os.environ.get(_CLUSTERS)
    constants.ENABLE_RAY_CLUSTER = False
    os.environ.update(LOOPBACK)
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before
        del os.environ[_CLUSTERS]
        if given is not None:
            os.environ[_CLUSTERS] = given


def is_on_loopback(address: str) -> bool:
    """Whether ``HOST:PORT`` is of this machine, where the port is open on the loopback address and on no other."""
    host, _, port = address.rpartition(":")
    if host not in _LOCAL_NAMES or not port.isdigit():
        return False
    found = [where for where, number in listening_sockets().values() if number == int(port)]
    return bool(found) and all(where.is_loopback for where in found)


def listening_sockets() -> dict[str, tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]]:
    """Address and port of each listening TCP socket of this machine, by its inode."""
    found: dict[str, tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]] = {}
    for table in _TABLES:
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTENS:
                    address, _, port = words[1].partition(":")
                    found[words[9]] = (_address(address), int(port, 16))
    return found


def _address(digits: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address as the kernel prints it: words of 32 bits in the order of the machine."""
    packed = b"".join(struct.pack("=I", int(digits[at : at + 8], 16)) for at in range(0, len(digits), 8))
    if len(packed) == 4:
        return ipaddress.IPv4Address(packed)
    address = ipaddress.IPv6Address(packed)
    return address.ipv4_mapped or address

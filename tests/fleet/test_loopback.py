"""Which addresses a Ray of this machine listens on."""

from __future__ import annotations

import importlib
import importlib.util
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from ipaddress import ip_address

import pytest

from engine.fleet import ray_start
from engine.fleet.loopback import is_on_loopback, listening_sockets, loopback_only

HOSTS = {
    "127.0.0.1": (socket.AF_INET, "127.0.0.1"),
    "0.0.0.0": (socket.AF_INET, "0.0.0.0"),
    "::": (socket.AF_INET6, "::"),
    "::1": (socket.AF_INET6, "::1"),
    "::ffff:127.0.0.1": (socket.AF_INET6, "127.0.0.1"),
}


@pytest.fixture(params=HOSTS)
def listening(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, str]]:
    """A listening socket, and the address at which the kernel's table must show it."""
    family, shown = HOSTS[request.param]
    with ExitStack() as stack:
        try:
            one = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            one.bind((request.param, 0))
        except OSError:
            pytest.skip("no IPv6 here")
        one.listen()
        yield one, shown


def test_listening_sockets_are_found_with_their_address(listening: tuple[socket.socket, str]) -> None:
    one, shown = listening
    port = one.getsockname()[1]
    assert listening_sockets()[str(os.fstat(one.fileno()).st_ino)] == (ip_address(shown), port)
    assert is_on_loopback(f"127.0.0.1:{port}") == is_on_loopback(f"localhost:{port}") == ip_address(shown).is_loopback
    assert not is_on_loopback(f"192.0.2.7:{port}")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1", "node7:6379", "auto", ""])
def test_a_cluster_elsewhere_or_nowhere_is_not_on_loopback(address: str) -> None:
    assert not is_on_loopback(address)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_rays_setting_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    ray_start.imported_ray()  # with tokens: Ray reads that at its first import, and tests of this process may start it later
    constants = importlib.import_module("ray._private.ray_constants")
    name = constants.ENABLE_RAY_CLUSTERS_ENV_VAR
    for given in (None, "1"):
        monkeypatch.delenv(name, raising=False) if given is None else monkeypatch.setenv(name, given)
        with loopback_only():
            assert (constants.ENABLE_RAY_CLUSTER, os.environ[name]) == (False, "0")
        assert (constants.ENABLE_RAY_CLUSTER, os.environ.get(name)) == (True, given)

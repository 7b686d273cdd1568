"""Memory lent to another process: it arrives, it is protected, and the owner survives the borrower's faults."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from engine.domain.errors import DeviceError
from engine.trial.shared.cuda import driver
from engine.trial.shared.cuda.device_memory import LentArena, Means, as_tensor

pytestmark = pytest.mark.gpu

WORDS = 1024
_BORROWER = """
import os, socket, sys
from engine.trial.shared.cuda import device_memory as memory, driver
channel = socket.socket(fileno=int(sys.argv[1]))
driver.Context.open(0)
cuda = driver.bindings()
def borrow(writable):
    header, descriptors, _, _ = socket.recv_fds(channel, memory._HEADER.size, 1)
    return memory.BorrowedArena.map(memory.DeviceHandle.parse(header, *descriptors), writable=writable)
def told(*results):
    channel.sendall(str(max(int(result[0]) for result in results)).encode())
"""
_ACTIONS = {
    "double": """
source, target = borrow(False), borrow(True)
assert source.protected and not target.protected
told(cuda.cuMemcpyDtoD(target.pointer, source.pointer, 4096), cuda.cuCtxSynchronize())
""",
    "write_protected": """
arena = borrow(False)
told(cuda.cuMemsetD32(arena.pointer, 9, 1024), cuda.cuCtxSynchronize())
""",
    "run_over": """
arena = borrow(True)
told(cuda.cuMemsetD32(arena.pointer + (2 << 20) - 2048, 9, 1024), cuda.cuCtxSynchronize())
""",
    "token": """
arena = borrow(True)
assert not arena.protected
told(cuda.cuMemsetD32(arena.pointer, 5, 1024), cuda.cuCtxSynchronize())
""",
    "drop": """
arena = borrow(False)
tensor = memory.as_tensor(arena.pointer, (16,), "int32", 0, arena)
del arena
assert tensor.tolist() == [0] * 16
del tensor
told(cuda.cuCtxSynchronize())
channel.recv(1)
""",
}


@pytest.fixture(scope="module", autouse=True)
def context() -> driver.Context:
    try:
        return driver.Context.open(0)
    except DeviceError as error:
        pytest.skip(f"no CUDA device: {error}")


@contextmanager
def borrower(action: str) -> Iterator[socket.socket]:
    here, there = socket.socketpair()
    here.settimeout(60)
    program = [sys.executable, "-c", _BORROWER + _ACTIONS[action], str(there.fileno())]
    with here, subprocess.Popen(program, pass_fds=(there.fileno(),), cwd=os.getcwd()) as process:
        there.close()
        try:
            yield here
        finally:
            here.close()
            process.wait(60)


@contextmanager
def arena(means: Means = Means.DESCRIPTOR, fill: int = 0) -> Iterator[LentArena]:
    made = LentArena.create(0, WORDS * 4, means)
    driver.check(driver.bindings().cuMemsetD32(made.pointer, fill, WORDS), "filling an arena")
    try:
        yield made
    finally:
        made.close()


def send(channel: socket.socket, lent: LentArena) -> None:
    """Send an arena to the borrower, which reads one header at a time."""
    handle = lent.handle()
    socket.send_fds(channel, [handle.header()], [handle.descriptor] if handle.descriptor >= 0 else [])
    if handle.descriptor >= 0:
        os.close(handle.descriptor)


def content(lent: LentArena) -> list[int]:
    buffer = bytearray(WORDS * 4)
    driver.check(driver.bindings().cuMemcpyDtoH(buffer, lent.pointer, len(buffer)), "reading an arena")
    return sorted(set(memoryview(buffer).cast("I").tolist()))


def test_the_owner_reads_what_the_borrower_writes() -> None:
    with arena(fill=42) as source, arena() as target, borrower("double") as channel:
        send(channel, source)
        send(channel, target)
        assert channel.recv(16) == b"0"
        assert content(target) == [42]


@pytest.mark.parametrize("action", ["write_protected", "run_over"])
def test_a_forbidden_write_ends_only_the_borrower(action: str) -> None:
    with arena(fill=42) as lent:
        with borrower(action) as channel:
            send(channel, lent)
            assert int(channel.recv(16)) != 0
        assert content(lent) == [42]


def test_a_token_works_within_one_pid_namespace() -> None:
    with arena(Means.TOKEN, fill=1) as lent, borrower("token") as channel:
        send(channel, lent)
        assert channel.recv(16) == b"0"
        assert content(lent) == [5]


def test_what_the_borrower_dropped_is_free_once_the_owner_frees_it() -> None:
    size = 1 << 30
    lent = LentArena.create(0, size)
    driver.check(driver.bindings().cuMemsetD32(lent.pointer, 0, 16), "filling an arena")
    with borrower("drop") as channel:
        send(channel, lent)
        assert channel.recv(16) == b"0"
        before = driver.free_bytes()
        lent.close()
        assert driver.free_bytes() >= before + size, "the borrower, which still runs, keeps it"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "bool", "float64", "uint8"])
@pytest.mark.parametrize("shape", [(2, 3, 4), (5,), (), (0, 3)])
def test_memory_is_a_tensor_without_a_copy(dtype: str, shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    with arena(fill=0) as lent:
        tensor = as_tensor(lent.pointer, shape, dtype, 0, lent)
        assert (tuple(tensor.shape), tensor.dtype, tensor.is_contiguous()) == (shape, getattr(torch, dtype), True)
        if tensor.numel():
            assert tensor.data_ptr() == lent.pointer
            tensor.fill_(1)
            torch.cuda.synchronize()
            assert content(lent) != [0]
        del tensor

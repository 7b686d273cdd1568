"""The judge's process: ``python -m engine.trial.judge FD supervised SOCKET DEVICE`` (``server`` says what the arguments are).

Torch takes seconds to import. On a GPU two things happen meanwhile, once the engine asks for something (it starts a judge
before it holds the device, and asks when it does): hosts start, which import torch too, and the device context is created,
which torch shares. Hosts start at once where the engine says so: it knows that cores are idle.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import traceback
from functools import partial
from typing import NoReturn

from engine.domain.errors import DeviceError
from engine.problem.torch_modes.imports import without_collections
from engine.sandbox.supervisor import HOSTS, HOSTS_NOW
from engine.trial.judge.runners.host_client import EarlyHosts
from engine.trial.shared.cuda import driver


def begin(channel: int, index: int, hosts: EarlyHosts | None, *, now: bool) -> None:
    """Start ``hosts`` and create the context of ``cuda:index`` when a request arrives on ``channel``, which is not read.

    ``now``: the hosts do not wait for it.
    """
    wanted = False
    if hosts is not None and now:
        hosts.launch(wanted=True)
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(channel)) as peeked:
        wanted = bool(peeked.recv(1, socket.MSG_PEEK))
    if hosts is not None:
        hosts.launch(wanted=wanted)
    if wanted:
        with contextlib.suppress(DeviceError):  # the first request for the device says what is wrong
            driver.Context.open(index)


def main() -> None:
    """Serve the engine on the inherited socket."""
    supervised, device = sys.argv[2] == "supervised", sys.argv[4]
    kind, _, index = device.partition(":")
    supervisor = socket.socket(fileno=int(sys.argv[3])) if supervised else None
    now = sys.argv[5:] == [HOSTS_NOW]
    early = supervisor is not None and kind == "cuda" and (now or sys.argv[5:] == [HOSTS])
    hosts = EarlyHosts(device, supervisor) if early and supervisor is not None else None
    if kind == "cuda":
        begun = partial(begin, int(sys.argv[1]), int(index or 0), hosts, now=now)
        threading.Thread(target=begun, daemon=True).start()
    with without_collections():
        from engine.trial.judge import server

    try:
        server.main(supervisor, hosts)
    except SystemExit:
        pass  # of a signal's handler, or of a reference
    except BaseException:
        traceback.print_exc()
        _end(1)
    _end(0)


def _end(status: int) -> NoReturn:
    """End without tearing down what was imported, which takes a while, and which libraries comment on on standard error."""
    with contextlib.suppress(Exception):  # a reference may have closed it
        sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()

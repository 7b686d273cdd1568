"""The judge's process: ``python -m engine.trial.judge FD supervised SOCKET DEVICE`` (``server`` says what the arguments are).

Torch takes seconds to import. On a GPU the device context, which torch shares, is created meanwhile, once the engine asks for
something: it starts a judge before it holds the device, and asks when it does.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import traceback
from typing import NoReturn

from engine.domain.errors import DeviceError
from engine.problem.imports import without_collections
from engine.trial.shared.cuda import driver


def create_context(channel: int, index: int) -> None:
    """Create the context of ``cuda:index`` when the first request arrives on ``channel``, which is not read."""
    with contextlib.suppress(OSError, DeviceError):  # the first request for the device says what is wrong
        with socket.socket(fileno=os.dup(channel)) as peeked:
            wanted = bool(peeked.recv(1, socket.MSG_PEEK))
        if wanted:
            driver.Context.open(index)


def main() -> None:
    """Serve the engine on the inherited socket."""
    kind, _, index = sys.argv[-1].partition(":")
    if kind == "cuda":
        threading.Thread(target=create_context, args=(int(sys.argv[1]), int(index or 0)), daemon=True).start()
    with without_collections():
        from engine.trial.judge import server

    try:
        server.main()
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

"""The judge's process: ``python -m engine.trial.judge FD supervised SOCKET DEVICE`` (``server`` says what the arguments are).

Torch takes seconds to import. On a GPU the device context, which torch shares, is created meanwhile.
"""

from __future__ import annotations

import contextlib
import sys
import threading

from engine.domain.errors import DeviceError
from engine.trial.shared.cuda import driver


def _create_context(index: int) -> None:
    with contextlib.suppress(DeviceError):  # the first request for the device says what is wrong
        driver.Context.open(index)


def main() -> None:
    """Serve the engine on the inherited socket."""
    kind, _, index = sys.argv[-1].partition(":")
    if kind == "cuda":
        threading.Thread(target=_create_context, args=(int(index or 0),), daemon=True).start()
    from engine.trial.judge import server

    server.main()


if __name__ == "__main__":
    main()

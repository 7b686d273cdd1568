"""A session watched in a browser on this machine: ``python -m tui.watch SESSION`` (needs the extra ``serve``).

Every browser tab gets a terminal UI of its own that follows the journal; none of them can disturb whoever steers the session.
Served on localhost only: a session is for whoever may read its folder.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
from pathlib import Path
from typing import Any

from engine.domain.errors import EspalierError, printable
from engine.journal import store
from engine.journal.log_file import log_to_file
from tui.app import main as open_app

HOST = "localhost"
PORT = 8760


def command(folder: Path) -> str:
    """The command line that runs in each tab."""
    return shlex.join([sys.executable, "-m", "tui.watch", "--here", str(folder)])


def serve(folder: Path, port: int = PORT) -> None:
    """Serve until interrupted. Raises EspalierError where the server is not installed."""
    try:
        server: Any = importlib.import_module("textual_serve.server")
    except ImportError as error:
        raise EspalierError("watching in a browser needs textual-serve: pip install 'espalier[serve]'") from error
    server.Server(command(folder), host=HOST, port=port, title=f"Espalier: {folder.name}").serve()


def main() -> None:
    """Watch a session, in a browser or (``--here``) in this terminal."""
    parser = argparse.ArgumentParser(prog="python -m tui.watch", description="Watch a session in a browser on this machine.")
    parser.add_argument("session", help="a session's folder or name")
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--here", action="store_true", help="in this terminal instead")
    given = parser.parse_args()
    log_to_file()
    try:
        folder = store.resolve(given.session).resolve()
        if given.here:
            open_app("follow", folder)
        else:
            serve(folder, given.port)
    except EspalierError as error:
        parser.exit(2, f"espalier: {printable(' '.join(str(error).split()))}\n")


if __name__ == "__main__":
    main()

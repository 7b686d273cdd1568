"""A session watched in a browser on this machine: ``python -m tui.watch SESSION`` (needs the extra ``serve``).

Every browser tab gets a face of its own over the journal as it grows; none of them can disturb whoever steers it. Served on
localhost alone: what a session holds is for whoever may read its folder.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
from pathlib import Path
from typing import Any

from engine.cli.ending import guarded
from engine.domain.errors import EspalierError
from engine.journal import store
from tui.app import main as face

HOST = "localhost"
PORT = 8760


def command(folder: Path) -> str:
    """What is run for each tab."""
    return shlex.join([sys.executable, "-m", "tui.watch", "--here", str(folder)])


def serve(folder: Path, port: int = PORT) -> None:
    """Serve until interrupted. Raises EspalierError where the server is not installed."""
    try:
        server: Any = importlib.import_module("textual_serve.server")
    except ImportError as error:
        raise EspalierError("watching in a browser needs textual-serve: pip install 'espalier[serve]'") from error
    server.Server(command(folder), host=HOST, port=port, title=f"Espalier: {folder.name}").serve()


def main() -> int:
    """Watch a session, in a browser or (``--here``) in this terminal. Exit status as of ``espalier`` itself."""
    parser = argparse.ArgumentParser(prog="python -m tui.watch", description="Watch a session in a browser on this machine.")
    parser.add_argument("session", help="a session's folder or name")
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--here", action="store_true", help="in this terminal instead")
    asked = parser.parse_args()

    def watch() -> None:
        folder = store.resolve(asked.session).resolve()
        if asked.here:
            face("follow", folder)
        else:
            serve(folder, asked.port)

    return guarded(watch)


if __name__ == "__main__":
    sys.exit(main())

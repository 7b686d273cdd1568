"""Follow a session in a browser on this machine: ``python -m tui.watch SESSION`` (needs the extra ``serve``).

Each browser tab runs its own terminal UI, which follows the journal and cannot steer the session. The server listens on
localhost only.
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
TEMPLATES = Path(__file__).resolve().parent / "web"
"""The page of a tab: with a title, and with a policy that keeps the browser from asking any other host. Fonts and script are
textual-serve's, from this server."""
PORT = 8760


def command(folder: Path) -> str:
    """The command line of each tab."""
    return shlex.join([sys.executable, "-m", "tui.watch", "--here", str(folder)])


def serve(folder: Path, port: int = PORT) -> None:
    """Serve until interrupted. Raises EspalierError if textual-serve is not installed."""
    try:
        server: Any = importlib.import_module("textual_serve.server")
    except ImportError as error:
        raise EspalierError("textual-serve is not installed: pip install 'espalier[serve]'") from error
    title = f"Espalier: {folder.name}"
    server.Server(command(folder), host=HOST, port=port, title=title, templates_path=TEMPLATES).serve()


def main() -> None:
    """Follow a session in a browser, or with ``--here`` in this terminal."""
    parser = argparse.ArgumentParser(prog="python -m tui.watch", description="Follow a session in a browser on this machine.")
    parser.add_argument("session", help="a session's folder or name")
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--here", action="store_true", help="follow in this terminal")
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

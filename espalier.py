"""The program: the command line with the terminal UI. ``python -m espalier`` is ``espalier``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from engine.cli import main as command_line
from engine.cli.ui import TerminalUI


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``espalier`` and return its exit status: 0 done, 1 failed, 2 bad input, 130 interrupted."""
    return command_line.main(arguments, TerminalUI(_open, _serve))


def _open(action: str, subject: object) -> None:
    from tui.app import main as open_app

    open_app(action, subject)


def _serve(folder: Path) -> None:
    from tui.watch import serve

    serve(folder)


if __name__ == "__main__":
    sys.exit(main())

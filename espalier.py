"""Espalier's public names. ``python -m espalier`` is ``espalier``.

    import espalier

    verdict = espalier.evaluate("softmax", "kernel.cpp", device="cpu")
    print(verdict.status, verdict.speedup["eager"])

Importing this module loads no other module of Espalier: each name is imported when it is used, and torch only in the processes
of a trial.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
"""As ``typing`` has it. ``main`` handles Ctrl-C; before it runs, this module imports nothing that takes time."""

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from engine.api.evaluation import code, evaluate
    from engine.api.session import Session
    from engine.domain.errors import CommandRejected, EspalierError, UntrustedError
    from engine.domain.settings import Limits, Settings
    from engine.report.text.verdict import Verdict

    __version__: str

__all__ = [
    "CommandRejected", "EspalierError", "Limits", "Session", "Settings", "UntrustedError", "Verdict", "__version__", "code",
    "evaluate", "main",
]  # fmt: skip

_PUBLIC = {
    "evaluate": "engine.api.evaluation",
    "code": "engine.api.evaluation",
    "Session": "engine.api.session",
    "Verdict": "engine.report.text.verdict",
    "Limits": "engine.domain.settings",
    "Settings": "engine.domain.settings",
    "EspalierError": "engine.domain.errors",
    "CommandRejected": "engine.domain.errors",
    "UntrustedError": "engine.domain.errors",
}
"""Public name → the module that has it."""

_BAD_INPUT = 2
_INTERRUPTED = 130
_PACKAGES = ("engine", "tui")
_MARK = "Espalier"
"""Stands in the docstring of both packages."""
_OWN_ENVIRONMENT = "install Espalier in a virtual environment of its own"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``espalier`` and return its exit status.

    0 done, 1 the kernel or search failed, 2 bad usage or input, 3 stopped, awaiting you or a provider, 130 interrupted.
    """
    try:
        if conflict := _package_conflict():
            print(f"espalier: {conflict}", file=sys.stderr)  # noqa: T201
            return _BAD_INPUT
        from engine.cli import main as command_line
        from engine.cli.ui import TerminalUI
    except KeyboardInterrupt:
        print("espalier: interrupted", file=sys.stderr)  # noqa: T201
        return _INTERRUPTED
    return command_line.main(arguments, TerminalUI(_open, _open_plain, _serve))


def _package_conflict() -> str:
    """Which package of another program hides or overwrote one of Espalier's, and what to do; empty where none does."""
    from pathlib import Path

    for name in _PACKAGES:
        own = Path(__file__).resolve().with_name(name) / "__init__.py"
        found = _module_file(name)
        if found == own:
            if _MARK in own.read_text(encoding="utf-8", errors="replace"):
                continue
            return f"another program overwrote Espalier's package {name!r} in {own.parent.parent}: {_OWN_ENVIRONMENT}"
        if not own.is_file():
            return f"Espalier's package {name!r} is missing from {own.parent.parent}: reinstall Espalier"
        where = f" ({found.parent if found.name == own.name else found})" if found else ""
        return f"another package named {name!r}{where} hides Espalier's: run from another folder, or {_OWN_ENVIRONMENT}"
    return ""


def _module_file(name: str) -> Path | None:
    """The file or folder that ``import name`` would load."""
    import importlib.util
    from pathlib import Path

    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # already imported, without a spec
        return None
    if spec is None:
        return None
    places = [spec.origin] if spec.has_location and spec.origin else list(spec.submodule_search_locations or ())
    return Path(places[0]).resolve() if places else None


def _open(action: str, subject: object) -> None:
    from tui.app import main as open_app

    open_app(action, subject)


def _open_plain(action: str, subject: object) -> None:
    from tui.plain_mode import main as open_plain

    open_plain(action, subject)


def _serve(folder: Path) -> None:
    from tui.watch import serve

    serve(folder)


def __getattr__(name: str) -> object:
    if name in _PUBLIC:
        import importlib

        if conflict := _package_conflict():
            raise ImportError(conflict)
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    if name == "__version__":
        from importlib import metadata

        try:
            return metadata.version("espalier")
        except metadata.PackageNotFoundError:
            return "unknown"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if __name__ == "__main__":
    sys.exit(main())

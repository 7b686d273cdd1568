"""Where the problems and recorded sessions of this installation are."""

from __future__ import annotations

from pathlib import Path


def shipped_folder(name: str) -> Path:
    """``problems`` or ``sessions``: the checkout's folder, else its copy in the wheel. The folder need not exist."""
    engine = Path(__file__).resolve().parents[1]
    checkout = engine.parent
    in_checkout = (checkout / "pyproject.toml").is_file() and (checkout / name).is_dir()
    return checkout / name if in_checkout else engine / "_shipped" / name


def is_shipped(session: Path) -> bool:
    """Whether a session's folder is one of the recordings that ship. Nothing writes there."""
    return session.resolve().parent == shipped_folder("sessions").resolve()

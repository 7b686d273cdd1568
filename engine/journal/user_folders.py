"""The user's folders: below ESPALIER_HOME if it is set, else where the platform keeps such files. None need exist."""

from __future__ import annotations

import os
from pathlib import Path

HOME = "ESPALIER_HOME"
"""Environment variable: the folder that contains ``sessions``, ``trust``, ``config`` and ``state``."""


def home() -> Path | None:
    """The folder that ESPALIER_HOME names."""
    named = os.environ.get(HOME)
    return Path(named).expanduser() if named else None


def data_folder() -> Path:
    """The folder of ``sessions`` and ``trust``."""
    import platformdirs  # 20 ms, for which many commands have no use

    return home() or platformdirs.user_data_path("espalier")


def sessions_root() -> Path:
    """The folder of new sessions."""
    return data_folder() / "sessions"


def cache_root() -> Path:
    """The folder of what can be made again: named by ESPALIER_CACHE, else the user's cache folder."""
    import platformdirs

    named = os.environ.get("ESPALIER_CACHE")
    return Path(named).absolute() if named else platformdirs.user_cache_path("espalier")


def config_folder() -> Path:
    """The folder of what the user configures."""
    import platformdirs

    own = home()
    return own / "config" if own else platformdirs.user_config_path("espalier")


def state_folder() -> Path:
    """The folder of the log."""
    import platformdirs

    own = home()
    return own / "state" if own else platformdirs.user_state_path("espalier")

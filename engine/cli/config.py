"""``config.toml`` and ``espalier.toml``: defaults for the options of commands."""

from __future__ import annotations

import os
from pathlib import Path

USER = "config.toml"
PROJECT = "espalier.toml"


def user_file() -> Path:
    """``config.toml`` under ESPALIER_HOME, else in the user's configuration folder."""
    import platformdirs

    home = os.environ.get("ESPALIER_HOME")
    return (Path(home).expanduser() / "config" if home else platformdirs.user_config_path("espalier")) / USER


def project_file() -> Path | None:
    """The nearest ``espalier.toml`` upwards from the working folder."""
    try:
        here = Path.cwd()
    except OSError:
        return None
    return next((place / PROJECT for place in (here, *here.parents) if (place / PROJECT).is_file()), None)

"""What an engineer chose for the screen, kept in ``screen.toml`` beside ``keys.toml``: theme, bell, desktop notices, title."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from pathlib import Path

import tomli

PREFERENCES = "screen.toml"


class Desktop(StrEnum):
    """The sequence of a desktop notice."""

    AUTO = "auto"
    """What the terminal is known for."""
    OSC9 = "osc9"
    OSC777 = "osc777"
    OFF = "off"


class ThemeChoice(StrEnum):
    """The theme of the screen."""

    AUTO = "auto"
    """Dark; 16 colours or none where the terminal has no more."""
    DARK = "dark"
    LIGHT = "light"
    CONTRAST = "contrast"


@dataclass(frozen=True, slots=True)
class Preferences:
    """The settings of the screen."""

    theme: ThemeChoice = ThemeChoice.AUTO
    bell: bool = True
    """Ring the terminal's bell when the session awaits the engineer or has a new incumbent."""
    desktop: Desktop = Desktop.AUTO
    """Send a desktop notice then."""
    title: bool = True
    """Set the terminal's title."""


def read_preferences(path: Path) -> tuple[Preferences, tuple[str, ...]]:
    """The preferences in a file, and one line for each error. A missing file means the defaults; wrong entries are skipped."""
    try:
        table = tomli.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Preferences(), ()
    except (OSError, UnicodeDecodeError, tomli.TOMLDecodeError) as error:
        return Preferences(), (f"{path} cannot be read, default settings apply: {error}",)
    found, errors = Preferences(), []
    for name, value in table.items():
        try:
            found = replace(found, **{name: _checked(name, value)})  # type: ignore[arg-type]  # _checked knows the fields
        except ValueError as error:
            errors.append(f"{path}: {error}")
    return found, tuple(errors)


def _checked(name: str, value: object) -> bool | StrEnum:
    """The value of a setting. Raises ValueError."""
    known: Mapping[str, bool | StrEnum] = asdict(Preferences())
    if name not in known:
        raise ValueError(f"unknown setting {name!r}: known are {', '.join(known)}")
    default = known[name]
    if isinstance(default, StrEnum):
        choices = [str(one) for one in type(default)]
        if value not in choices:
            raise ValueError(f"{name} must be {' or '.join(choices)}, not {value!r}")
        return type(default)(str(value))
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, not {value!r}")
    return value


def write_preferences(path: Path, chosen: Preferences) -> None:
    """Write the preferences, whole or not at all. Raises OSError."""
    from engine.journal.whole_file import write_whole  # home is drawn before the engine is imported

    lines = []
    for one in fields(chosen):
        value = getattr(chosen, one.name)
        lines.append(f"{one.name} = {str(value).lower()}" if isinstance(value, bool) else f'{one.name} = "{value}"')
    write_whole(path, ("\n".join(lines) + "\n").encode())

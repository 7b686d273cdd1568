"""Prompt templates with named slots, and code fences that their content cannot close.

A template is one Markdown file; a file of the same name in the user's configuration replaces it.
A line ``<!-- user -->`` separates the system text from the user text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path

from engine.domain.errors import ProposerError
from engine.journal.user_folders import config_folder

_SLOT = re.compile(r"\{\{(\w+)\}\}")
_USER = "\n<!-- user -->\n"
_TICKS = re.compile(r"`{3,}")


@dataclass(frozen=True, slots=True)
class Template:
    """One Markdown file beside this module."""

    name: str
    system: str
    user: str
    optional: frozenset[str] = frozenset()
    """Slots of the shipped template, which a user's may leave out."""

    @property
    def slots(self) -> frozenset[str]:
        return frozenset(_SLOT.findall(self.system + self.user))

    def fill(self, **values: str) -> tuple[str, str]:
        """(system, user) with every slot filled. Slots inside values are not filled: kernel code and notes stay unchanged.

        Raises ValueError for a slot without a value, and for a value without a slot.
        """
        if missing := self.slots - values.keys():
            raise ValueError(f"the prompt {self.name} lacks values for {', '.join(sorted(missing))}")
        if unknown := values.keys() - self.slots - self.optional:
            raise ValueError(f"the prompt {self.name} has no slots {', '.join(sorted(unknown))}")
        return _filled(self.system, values), _filled(self.user, values)


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _SLOT.sub(lambda match: values[match.group(1)].strip("\n"), text)


def own_folder() -> Path:
    """The user's templates in the configuration folder; a ``NAME.md`` there replaces the shipped one. It need not exist."""
    return config_folder() / "prompts"


def template(name: str) -> Template:
    """The template ``NAME.md``: the user's, else the shipped one; without a separator all of it is the user text.

    Raises:
        ProposerError: the user's template cannot be read, or has other slots than the shipped one.
    """
    shipped = _shipped(name)
    own = own_folder() / f"{name}.md"
    if not own.is_file():
        return shipped
    try:
        mine = _parsed(name, own.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ProposerError(f"the prompt template {own} cannot be read: {error}") from None
    if unknown := sorted(mine.slots - shipped.slots):
        known = ", ".join(sorted(shipped.slots))
        raise ProposerError(f"the prompt template {own} has an unknown slot {{{{{unknown[0]}}}}}: use {known}")
    return replace(mine, optional=shipped.slots)


@cache
def _shipped(name: str) -> Template:
    return _parsed(name, shipped_text(name))


@cache
def shipped_text(name: str) -> str:
    """The text of a file beside this module."""
    return resources.files("engine.ideas.prompts").joinpath(f"{name}.md").read_text(encoding="utf-8")


def _parsed(name: str, text: str) -> Template:
    system, divided, user = text.partition(_USER)
    return Template(name, system.strip(), user.strip()) if divided else Template(name, "", text.strip())


def part(name: str, **values: str) -> str:
    """A filled template without a system text: a part of a larger prompt."""
    return template(name).fill(**values)[1]


def fenced(text: str, language: str = "") -> str:
    """The text in a code fence longer than any fence inside it."""
    longest = max((len(ticks) for ticks in _TICKS.findall(text)), default=2)
    fence = "`" * (longest + 1)
    body = text.rstrip("\n")
    return f"{fence}{language}\n{body}\n{fence}"

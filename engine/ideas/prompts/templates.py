"""Prompt templates with named slots, and code fences that their content cannot close.

A template is one Markdown file. A line ``<!-- user -->`` separates the system text from the user text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

_SLOT = re.compile(r"\{\{(\w+)\}\}")
_USER = "\n<!-- user -->\n"
_TICKS = re.compile(r"`{3,}")


@dataclass(frozen=True, slots=True)
class Template:
    """One Markdown file beside this module."""

    name: str
    system: str
    user: str

    @property
    def slots(self) -> frozenset[str]:
        return frozenset(_SLOT.findall(self.system + self.user))

    def fill(self, **values: str) -> tuple[str, str]:
        """(system, user) with every slot filled. Slots inside values are not filled: kernel code and notes stay unchanged.

        Raises ValueError for a slot without a value and for a value without a slot.
        """
        if missing := self.slots - values.keys():
            raise ValueError(f"the prompt {self.name} lacks values for {', '.join(sorted(missing))}")
        if unknown := values.keys() - self.slots:
            raise ValueError(f"the prompt {self.name} has no slots {', '.join(sorted(unknown))}")
        return _filled(self.system, values), _filled(self.user, values)


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _SLOT.sub(lambda match: values[match.group(1)].strip("\n"), text)


@cache
def template(name: str) -> Template:
    """The template ``NAME.md``; without a separator all of it is the user text."""
    text = resources.files("engine.ideas.prompts").joinpath(f"{name}.md").read_text(encoding="utf-8")
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

"""Retired words of the glossary stay out of names, and no class name occurs twice."""

from __future__ import annotations

import re
from collections import defaultdict

from architecture.source import ROOT, definitions, files

RETIRED_WORDS = set(
    """
    seat seats seating rig rigs lending loan loans surroundings interference unborne borne desk sitting hands patience shelf
    company attendant recalling reigns accession told said bend bent face faces
    """.split()
)
"""Words that no module's, class's or function's name may contain."""

RETIRED_MODULES = set(
    """
    passing wire serving doubts light times pairing drawing once repeated distributions asking questions describing outcomes
    written fixed opening conduct assembly owing going ending running look looking look_python naming single census
    """.split()
)

RETIRED_FUNCTIONS = set("found of named look looking".split())
"""Names that do not say what a function returns."""

RETIRED_CLASSES = set(
    """
    NullModel Gate IdeaSource WrittenSource ScriptedSource ModelSource Sources Table Conduct KernelSource Loan
    Contest Tally Surroundings Seen Patience Hands
    """.split()
)

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def words(name: str) -> list[str]:
    """``TestBed``, ``_test_bed`` → ``test``, ``bed``."""
    return [word.lower() for word in _WORDS.findall(name)]


def retired(name: str, whole: set[str]) -> bool:
    return bool(set(words(name)) & RETIRED_WORDS) or name.lstrip("_") in whole


def test_names_are_split_into_words() -> None:
    assert words("RunnerClient") == ["runner", "client"]
    assert words("_python_once") == ["python", "once"]
    assert retired("SeatTaken", set())
    assert retired("_found", {"found"})
    assert not retired("python_once", {"once"})


def test_no_module_has_a_retired_name() -> None:
    assert not [str(path.relative_to(ROOT)) for path in files() if retired(path.stem, RETIRED_MODULES)]


def test_no_class_or_function_has_a_retired_name() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{one.line}: {one.name}"
        for path, one in definitions()
        if retired(one.name, RETIRED_CLASSES if one.is_class else RETIRED_FUNCTIONS)
    ]
    assert not found, "\n".join(found)


def test_no_class_name_exists_twice() -> None:
    places = defaultdict(list)
    for path, one in definitions():
        if one.is_class:
            places[one.name].append(f"{path.relative_to(ROOT)}:{one.line}")
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert not twice, twice

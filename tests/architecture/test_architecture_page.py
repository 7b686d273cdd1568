"""``ARCHITECTURE.md`` lists the rooms in the order that the contracts enforce."""

from __future__ import annotations

import inspect
import re
import tomllib

import pytest
from architecture.source import ROOT

from engine.domain import folds, rules

PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def layers(container: str) -> list[str]:
    """The layers of a container in ``pyproject.toml``, from the top."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (found,) = (one["layers"] for one in contracts if one["type"] == "layers" and one["containers"] == [container])
    return [name for layer in found for name in re.split(r"\s*\|\s*", layer)]


def test_the_table_of_rooms_is_the_order_of_the_contract() -> None:
    assert re.findall(r"^\| `engine/(\w+)/` \|", PAGE, re.MULTILINE) == layers("engine")


def test_the_parts_of_the_trial_are_those_of_the_contract() -> None:
    named = [name for row in re.findall(r"^\| · (.+?) \|", PAGE, re.MULTILINE) for name in re.findall(r"`(\w+)/?`", row)]
    assert sorted(named) == sorted(layers("engine.trial"))


@pytest.mark.parametrize("package", ["problem", "trial/judge"])
def test_the_folders_of_a_package_are_in_the_order_of_its_contract(package: str) -> None:
    place = f"engine/{package}"
    folders = [path.parent.name for path in (ROOT / place).glob("*/__init__.py")]
    named = re.findall(rf"^\|(?: ·)+ `{package.rsplit('/')[-1]}/(\w+)/` \|", PAGE, re.MULTILINE)
    assert named == [name for name in layers(place.replace("/", ".")) if name in folders]
    assert sorted(named) == sorted(folders)


def test_every_file_it_names_exists() -> None:
    paths = re.findall(r"`((?:trial|tui|engine|tests)/[\w/]+(?:\.py)?)/?`", PAGE)
    assert len(paths) > 10
    missing = [path for path in paths if not any((root / path).exists() for root in (ROOT, ROOT / "engine"))]
    assert not missing


def test_the_functions_of_the_cycle_are_called_as_it_says() -> None:
    calls = re.findall(r"(?<=[ ▶])(rules|folds)\.(\w+)\(([\w, ]+)\)", PAGE)
    assert {name for _, name, _ in calls} == {"decide", "advance", "automatic", "next_work", "record"}
    for module, name, arguments in calls:
        parameters = inspect.signature(getattr({"rules": rules, "folds": folds}[module], name)).parameters.values()
        needed = [one.name for one in parameters if one.default is inspect.Parameter.empty]
        assert arguments.split(", ") == needed, name

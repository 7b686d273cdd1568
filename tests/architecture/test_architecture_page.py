"""``ARCHITECTURE.md`` lists the rooms in the order that the contracts enforce."""

from __future__ import annotations

import re
import tomllib

from architecture.source import ROOT

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


def test_every_file_it_names_exists() -> None:
    paths = re.findall(r"`((?:trial|tui|engine|tests)/[\w/]+(?:\.py)?)/?`", PAGE)
    assert len(paths) > 10
    missing = [path for path in paths if not any((root / path).exists() for root in (ROOT, ROOT / "engine"))]
    assert not missing

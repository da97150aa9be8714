"""The names on the architecture page are those of the code."""

from __future__ import annotations

import importlib
import importlib.util
import re
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "design" / "architecture.md"
TEXT = PAGE.read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`(kernelwright\.[\w.]+)`", TEXT)))
WALK = re.findall(r"^\d+\. `(kernelwright\.[\w.]+)`", TEXT, re.MULTILINE)
TYPES = re.findall(r"`(\w+)`", TEXT.partition("A configuration crosses ten types:")[2].partition(". Each step")[0])
SCRIPT = PAGE.parents[2] / "scripts" / "count_house"
LEAST = 15
"""Functions that a walk from the command to the launch has at least."""


def resolved(name: str) -> object:
    """The object of a dotted name: of a module, or of what is in one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


def test_the_walk_goes_from_the_command_to_the_launch_and_back() -> None:
    assert len(WALK) >= LEAST
    assert WALK[0] == "kernelwright.cli.main.tune"
    assert "kernelwright.backend.base.DeviceSession.time" in WALK


def test_a_configuration_crosses_ten_types_and_they_are_the_ones_that_are_counted() -> None:
    spec = importlib.util.spec_from_loader("count_house", SourceFileLoader("count_house", str(SCRIPT)))
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert tuple(TYPES) == script.ON_THE_WAY
    assert len(set(TYPES)) == 10


@pytest.mark.parametrize("name", NAMES)
def test_every_name_exists(name: str) -> None:
    assert resolved(name) is not None


@pytest.mark.parametrize("name", ["kernelwright.cli.main.absent", "kernelwright.absent.tune"])
def test_a_name_that_does_not_exist_is_found(name: str) -> None:
    with pytest.raises((AttributeError, ModuleNotFoundError)):
        resolved(name)

"""Plain kernels in twenty styles, what a careful reader writes down for each, and how an inference differs."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

from kernelwright.infer.inference import Given, infer, split_kernel
from kernelwright.infer.model import Inferred
from kernelwright.infer.words import read_words
from kernelwright.problem.expressions.expression import Expression

FOLDER = Path(__file__).parent / "kernels"
SPARE = 1.3
"""An array may be so many times larger than what is touched: whole rows."""


def truths(group: str) -> dict[str, dict[str, Any]]:
    """By `FILE` or `FILE::kernel` of a group (`seen`, `aside`): words, elements, roles, ranges, launch."""
    return tomllib.loads((FOLDER / group / "truth.toml").read_text())


def infer_case(group: str, name: str, truth: dict[str, Any]) -> Inferred:
    """From the file and the words alone."""
    file, entry = split_kernel(name)
    return infer(FOLDER / group / file, Given(read_words(truth["words"]), entry))


def differences(inferred: Inferred, truth: dict[str, Any]) -> list[str]:
    """Where an inference says something else than the reader; empty: it is whole and right."""
    found = [f"asks {each.word}: {each.why}" for each in inferred.questions]
    if found:
        return found
    arguments = {each.name.rstrip("_"): each for each in inferred.arguments}
    for name, role in truth["roles"].items():
        if arguments[name].role != role:
            found.append(f"{name} is {arguments[name].role}, not {role}")
    for name, least in truth["elements"].items():
        held = math.prod(_values(inferred, arguments[name].shape))
        if not least <= held <= SPARE * least:
            found.append(f"{name} has {held} elements, expected {least}")
    for name, bounds in truth.get("ranges", {}).items():
        if arguments[name].bounds != tuple(bounds):
            found.append(f"{name} is in {arguments[name].bounds}, not {bounds}")
    for name, (table, row) in truth.get("index_into", {}).items():
        bounds, rows = arguments[name].bounds, math.prod(_values(inferred, arguments[table].shape)) // row
        if bounds is None or not 0 <= bounds[0] <= bounds[1] < rows:
            found.append(f"{name} is in {bounds}, and {table} has {rows} rows")
    return found + _launch_differences(inferred, truth)


def _launch_differences(inferred: Inferred, truth: dict[str, Any]) -> list[str]:
    grid, block = _values(inferred, inferred.launch.grid), _values(inferred, inferred.launch.block)
    if "grid" in truth and grid != truth["grid"]:
        return [f"the grid is {grid}, not {truth['grid']}"]
    if "block" in truth and block != truth["block"]:
        return [f"the block is {block}, not {truth['block']}"]
    for axis, needed in enumerate(truth.get("covers", ())):
        if not needed <= grid[axis] * block[axis] < needed + block[axis]:
            return [f"{grid[axis]} blocks of {block[axis]} along axis {axis}, for {needed} threads"]
    return []


def _values(inferred: Inferred, texts: tuple[str, ...]) -> list[int]:
    return [int(Expression.parse(text).evaluate(dict(inferred.sizes))) for text in texts]

"""`bench policies`: words in, simulated runs, tables out."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import typer
from rich.console import Console

from kernelwright.errors import UsageError
from kernelwright.tree.registry import known
from kernelwright_bench.policies.results import calibration, markdown, simulate, summarise
from kernelwright_bench.policies.worlds import PUBLISHED, WORLDS, WorldSettings

PUBLISHED_WORLD = "kernelbench"
"""Held against the paper; not one of those that policies are compared in."""

DEFAULT_POLICIES = "default,stark,stark-untuned,best-of-n,reflexion,greedy,direct,tune-only,random"


@dataclass(frozen=True, slots=True)
class PoliciesWords:
    """The words of `kernelwright bench policies`."""

    policies: str
    worlds: tuple[str, ...]
    repeats: int
    seed: int
    jobs: int
    budget_factor: float
    calibrates: bool
    is_json: bool


def run_policies(words: PoliciesWords) -> int:
    """Simulate and show; the exit status."""
    policies = list(dict.fromkeys(known(each.strip()) for each in words.policies.split(",") if each.strip()))
    worlds = _worlds(words.worlds)
    console = Console(stderr=True)

    def told(world: str, policy: str) -> None:
        console.print(f"{world}: {policy}", highlight=False, markup=False)

    def ran(chosen: Sequence[WorldSettings], names: Sequence[str]) -> Any:
        return simulate(
            chosen,
            names,
            repeats=words.repeats,
            seed=words.seed,
            jobs=words.jobs,
            budget_factor=words.budget_factor,
            on_done=told,
        )

    summary = summarise(ran(worlds, policies), worlds)
    published = ran([WORLDS[PUBLISHED_WORLD]], list(PUBLISHED)) if words.calibrates else None
    if words.is_json:
        typer.echo(json.dumps(_plain(dataclasses.asdict(summary)), indent=2))
        return 0
    typer.echo(markdown(summary))
    if published is not None:
        typer.echo("\n" + calibration(published, PUBLISHED_WORLD))
    return 0


def _worlds(names: Sequence[str]) -> list[WorldSettings]:
    """The named ones; all but the published one when none is.

    Raises:
        UsageError: there is no such world.
    """
    for name in names:
        if name not in WORLDS:
            near = difflib.get_close_matches(name, list(WORLDS), 1, 0.4)
            more = f"did you mean {near[0]!r}?" if near else f"say one of {', '.join(WORLDS)}"
            raise UsageError(f"there is no world {name!r}; {more}")
    return [WORLDS[name] for name in names] or [each for name, each in WORLDS.items() if name != PUBLISHED_WORLD]


def _plain(data: Any) -> Any:
    """Without NaN, which JSON has not."""
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data

"""`bench kernelbench`: problems of a checkout in order, one record each, resumable; then the table."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from kernelwright.cli.words import is_quiet
from kernelwright.errors import StoreError, UsageError
from kernelwright.modules.library import LIBRARY
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.problem.toml.file import did_you_mean
from kernelwright.store.files import explain, write_atomically
from kernelwright.tuning.settings import TuneSettings, parse_budget
from kernelwright.version import VERSION
from kernelwright_bench.modules.checkout import problems_of
from kernelwright_bench.modules.solving import Interrupted, SolveSettings, SolveWorkers, chosen_machine, solve
from kernelwright_bench.modules.table import document, is_correct, markdown
from kernelwright_bench.modules.worker import MODES

RECORD = "record.json"
_NOT_BY_LIBRARY = "nothing"
COMPARISON_S = 20.0
"""For the rounds of one comparison: what is slower has fewer of them."""

Solve = Callable[..., dict[str, Any]]


@dataclass(frozen=True, slots=True)
class KernelBenchWords:
    """What `bench kernelbench` was called with."""

    checkout: Path
    level: int
    ids: str
    budget: str
    model: str
    device: str | None
    out: Path
    rounds: int
    modes: str
    timeout_s: float
    is_json: bool
    library: bool = False


def run_kernelbench(words: KernelBenchWords, *, solved: Solve = solve) -> int:
    """Run what has no record yet in `words.out`, and write the table of all; the exit status.

    Args:
        words: the words.
        solved: what makes a record of a problem.

    Raises:
        UsageError: a word makes no sense, or the checkout has no such problem.
        MissingDependency: there is no device.
        StoreError: the folder cannot be written, or a record there cannot be read.
    """
    problems = problems_of(words.checkout, words.level, words.ids)
    budget, modes = parse_budget(words.budget), _modes(words.modes)
    machine = chosen_machine(words.device)
    tune = TuneSettings(budget=budget, device=machine.known.id)
    settings = SolveSettings(
        optimize=OptimizeSettings(tune=tune, model=words.model, memory="off"),
        machine=machine,
        rounds=words.rounds,
        modes=modes,
        most_s=COMPARISON_S,
        timeout_s=words.timeout_s,
        checkout=words.checkout.resolve(),
        library=LIBRARY if words.library else (),
    )
    asked = {"budget": words.budget, "model": words.model, "device": machine.known.name, "rounds": str(words.rounds),
             "modes": ",".join(modes), "kernelwright": VERSION, "library": _NOT_BY_LIBRARY}  # fmt: skip
    asked |= {"library": ",".join(LIBRARY)} if words.library else {}
    told = {"level": words.level, **asked}
    place = words.out.resolve() / f"level{words.level}"
    found = {
        number: record
        for number, file in problems_of(words.checkout, words.level, "").items()
        if (record := _read(place / f"{number:03d}" / RECORD, file, asked)) is not None
    }
    with SolveWorkers.started(is_early=settings.place == "cuda") as workers:
        for number, file in problems.items():
            folder = place / f"{number:03d}"
            record = found.get(number)
            if record is None:
                try:
                    record = solved(file, folder, settings, workers, tell=_tell)
                except Interrupted:
                    _tell(f"interrupted; the same command goes on with problem {number}")
                    return 130
                record["asked"] = asked
                _write(folder / RECORD, record)
            found[number] = record
            records = [found[each] for each in sorted(found)]
            _tell(f"{file.stem}: {'correct' if is_correct(record) else record['why'] or record['compared']['differs']}")
            _write(words.out / f"level{words.level}.json", document(records, told))
            _write_text(words.out / f"level{words.level}.md", markdown(records, told))
    typer.echo(json.dumps(document(records, told), indent=1) if words.is_json else markdown(records, told))
    return 0


def _modes(text: str) -> tuple[str, ...]:
    names = tuple(filter(None, (each.strip() for each in text.split(","))))
    for name in names:
        if name not in MODES:
            raise UsageError(
                f"--modes {name!r} is no mode of torch.compile that is timed here",
                hint=did_you_mean(name, [*MODES]) or f"say {', '.join(MODES)}, or leave it empty",
            )
    return names


def _tell(text: str) -> None:
    if not is_quiet():
        typer.echo(text, err=True)


def _read(file: Path, problem: Path, asked: Mapping[str, str]) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        record = {**found, "name": str(found["name"]), "stage": str(found["stage"]), "why": str(found["why"])}
        if "compared" in found or not record["why"]:
            _ = found["compared"]["differs"], found["compared"]["rows"]
        before = {name: str({"library": _NOT_BY_LIBRARY, **found["asked"]}[name]) for name in asked}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{file} is no record of a problem: {type(error).__name__}: {error}",
            hint="delete it, and the problem is run again",
        ) from error
    if record["name"] != problem.stem:
        raise UsageError(f"{file} is of {record['name']}, and now it is {problem.stem}", hint="say another --out")
    for name, value in asked.items():
        if before[name] != value:
            raise UsageError(
                f"{file} was made with the {name} {before[name]!r}, and now it is {value!r}",
                hint="say another --out, since one table has one of each",
            )
    return record


def _write(file: Path, value: dict[str, Any]) -> None:
    _write_text(file, json.dumps(value, indent=1, ensure_ascii=False) + os.linesep)


def _write_text(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, text.encode())
    except OSError as error:
        raise explain(error, "write the records into", file.parent) from error

"""`bench kernelbench`: problems of a checkout in order, one record each, resumable; then the table."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Generator, Mapping
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
from kernelwright_bench.modules.solving import Interrupted, SolveSettings, chosen_machine, solve
from kernelwright_bench.modules.table import document, is_correct, markdown
from kernelwright_bench.modules.worker import MODES

RECORD = "record.json"
_NOT_BY_LIBRARY = "nothing"
COMPARISON_S = 20.0
"""For the rounds of one comparison: what is slower has fewer of them."""

Solve = Callable[..., Generator[dict[str, Any]]]


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
    together: int = 1
    """Problems that get their answers side by side; more than 1 only on a GPU."""
    algebra: bool = False


def run_kernelbench(words: KernelBenchWords, *, solved: Solve = solve) -> int:
    """Run what has no record yet in `words.out`, and write the table of all; the exit status.

    Args:
        words: the words.
        solved: what makes the records of problems.

    Raises:
        UsageError: a word makes no sense, or the checkout has no such problem.
        MissingDependency: there is no device.
        StoreError: the folder cannot be written, or a record there cannot be read.
    """
    problems = problems_of(words.checkout, words.level, words.ids)
    budget, modes = parse_budget(words.budget), _modes(words.modes)
    machine = chosen_machine(words.device)
    if words.together > 1 and machine.known.kind == "cpu":
        raise UsageError("--together: compilers beside a measurement on a CPU disturb it", hint="leave it out here")
    builders = max(1, (os.cpu_count() or 1) // words.together - 1) if words.together > 1 else None
    tune = TuneSettings(budget=budget, device=machine.known.id, build_processes=builders)
    settings = SolveSettings(
        optimize=OptimizeSettings(tune=tune, model=words.model, memory="off"),
        machine=machine,
        rounds=words.rounds,
        modes=modes,
        most_s=COMPARISON_S,
        timeout_s=words.timeout_s,
        checkout=words.checkout.resolve(),
        library=LIBRARY if words.library else (),
        algebra=words.algebra,
        together=words.together,
    )
    asked = {"budget": words.budget, "model": words.model, "device": machine.known.name, "rounds": str(words.rounds),
             "modes": ",".join(modes), "kernelwright": VERSION, "library": _NOT_BY_LIBRARY}  # fmt: skip
    asked |= {"library": ",".join(LIBRARY)} if words.library else {}
    asked |= {"algebra": "on"} if words.algebra else {}
    told = {"level": words.level, **asked}
    place = words.out.resolve() / f"level{words.level}"
    found = {
        number: record
        for number, file in problems_of(words.checkout, words.level, "").items()
        if (record := _read(place / f"{number:03d}" / RECORD, file, asked)) is not None
    }
    left = [number for number in problems if number not in found]
    files = [(problems[each], place / f"{each:03d}") for each in left]
    with contextlib.closing(solved(files, settings, tell=_tell)) as records:
        for number in left:
            try:
                record = next(records)
            except Interrupted:
                _tell(f"interrupted; the same command goes on with problem {number}")
                return 130
            record["asked"] = asked
            _write(place / f"{number:03d}" / RECORD, record)
            found[number] = record
            _tell(f"{record['name']}: {_outcome(record)}")
            _write_table(words.out, found, told)
    every = _write_table(words.out, found, told)
    typer.echo(json.dumps(document(every, told), indent=1) if words.is_json else markdown(every, told))
    return 0


def _outcome(record: Mapping[str, Any]) -> str:
    return "correct" if is_correct(record) else str(record["why"] or record["compared"]["differs"])


def _write_table(out: Path, found: Mapping[int, dict[str, Any]], told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What is known so far, in order of the problems' numbers."""
    records = [found[each] for each in sorted(found)]
    _write(out / f"level{told['level']}.json", document(records, told))
    _write_text(out / f"level{told['level']}.md", markdown(records, told))
    return records


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

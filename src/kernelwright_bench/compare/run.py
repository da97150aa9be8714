"""The same problems with several policies, models and memories, again and again: what each is worth, and how surely.

```
comparison = compare(["transpose"], CompareSettings(policies=("gain", "direct"), repeats=3), out=Path("cmp"))
for row in comparison.rows: print(row.problem, row.arm.label, row.mean, row.spread)
```

Each cell is an ordinary run of `optimize` in `OUT/PROBLEM/ARM/NNN`. Repeats are interleaved: all arms once, in an order
that moves on by one, then all arms again; so what the machine does meanwhile falls on all of them alike. The arms of a
repeat share their seed and their inputs. A finished run is not repeated, an interrupted one is resumed.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from kernelwright.errors import InfrastructureError, ModelError, StoreError, UsageError
from kernelwright.insights.attempts import AttemptFigures, accepted_speedup, figures_of
from kernelwright.insights.spending import spending_of
from kernelwright.json_text import read_json_text
from kernelwright.optimization.optimize import optimize, resume_optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.problem.load.problem import PROBLEM_FILE_NAME
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.store.lock import is_locked
from kernelwright.store.run_folder import LOG_NAME
from kernelwright.store.view import RunView
from kernelwright.tree.model import Tree
from kernelwright.tree.registry import known
from kernelwright.tuning.listener import RunListener
from kernelwright.tuning.machine import Machine
from kernelwright.tuning.tune import TuningProblem
from kernelwright_bench.compare.statistics import MeanRatio, Paired, holm, mean_ratio, paired, spread

Memory = Literal["on", "read", "off"]

SETTINGS_FILE = "compare.json"
"""In the output folder: what its runs were made with."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the things that are compared."""

    policy: str
    model: str
    memory: Memory

    @property
    def label(self) -> str:
        """Where it differs from a run by rules without memory: `gain`, `stark rules`, `gain openai:gpt-5 memory=on`."""
        parts = [self.policy]
        if self.model != "rules":
            parts.append(self.model)
        if self.memory != "off":
            parts.append(f"memory={self.memory}")
        return " ".join(parts)

    @property
    def folder(self) -> str:
        """A file name."""
        return "".join(each if each.isalnum() or each in "-_.=" else "_" for each in self.label)


@dataclass(frozen=True, slots=True)
class CompareSettings:
    """What is compared, and how often."""

    policies: tuple[str, ...] = ("gain",)
    models: tuple[str, ...] = ("rules",)
    memories: tuple[Memory, ...] = ("off",)
    repeats: int = 3
    base: OptimizeSettings = field(default_factory=OptimizeSettings)
    """Budget, seed, device and whatever else all have in common."""
    roles: Mapping[str, Any] = field(default_factory=dict)
    """How models play their roles, for arms that have one; the tables of a file of roles."""

    def __post_init__(self) -> None:
        """Refuse what cannot work, before anything is started."""
        if self.repeats < 1:
            raise UsageError(f"repeats is {self.repeats!r}, expected at least 1")
        _refuse_repeats("policy", self.policies, tuple(known(each) for each in self.policies))
        _refuse_repeats("model", self.models, self.models)
        _refuse_repeats("memory", self.memories, self.memories)
        object.__setattr__(self, "policies", tuple(known(each) for each in self.policies))
        if self.roles and set(self.models) == {"rules"}:
            raise UsageError("roles are played by models, and all arms have rules", hint="say --models PROVIDER:NAME")
        for arm in self.arms:
            self.of(arm, 0)

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Every policy with every model and every memory; the first is what the others are compared with."""
        return tuple(
            Arm(policy, model, memory) for model in self.models for memory in self.memories for policy in self.policies
        )

    def of(self, arm: Arm, repeat: int) -> OptimizeSettings:
        """The settings of one run: the arms of a repeat have seed and inputs in common."""
        seed = self.base.tune.seed + repeat
        tune = dataclasses.replace(self.base.tune, seed=seed, data_seed=seed)
        roles = {} if arm.model == "rules" else self.roles
        return dataclasses.replace(
            self.base, tune=tune, policy=arm.policy, model=arm.model, memory=arm.memory, roles=roles
        )

    def as_record(self) -> dict[str, Any]:
        """What the runs of a folder have in common; repeats and arms may be added later."""
        record = self.of(self.arms[0], 0).as_record()
        own = dict(record["optimize"])
        for name in ("policy", "model", "memory"):
            own.pop(name)
        own["roles"] = self.roles
        return cast("dict[str, Any]", json.loads(json.dumps({**record, "optimize": own})))


def _refuse_repeats(what: str, named: Sequence[str], meant: Sequence[str]) -> None:
    """Refuse what cannot be compared: nothing at all, or a thing with itself, which would run once and look like two.

    Raises:
        UsageError: nothing is named, or two of `named` stand for the same of `meant`.
    """
    if not named:
        raise UsageError(f"no {what} is named to compare")
    first: dict[str, str] = {}
    for name, meaning in zip(named, meant, strict=True):
        other = first.setdefault(meaning, name)
        if other != name:
            raise UsageError(f"{other!r} and {name!r} are the same {what}", hint="leave one of them out")
        if named.count(name) > 1:
            hint = "leave one out; --repeats says how often each of them runs"
            raise UsageError(f"the {what} {name!r} is named twice", hint=hint)


@dataclass(frozen=True, slots=True)
class Cell:
    """One run."""

    problem: str
    arm: Arm
    repeat: int
    folder: Path
    speedup: float
    """That the final comparison accepted; 1 where the baseline was kept."""
    is_gain: bool
    figures: AttemptFigures
    evaluation_count: int
    spent_s: float
    device_s: float
    """Seconds of checks and timing, without the final comparison."""
    waiting_s: float
    """For replies of models; several at once count each."""
    reply_count: int
    reason: str
    """Why it ended."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A run that could not be ended."""

    problem: str
    arm: Arm
    repeat: int
    message: str


@dataclass(frozen=True, slots=True)
class Row:
    """One arm on one problem, over its repeats."""

    problem: str
    arm: Arm
    cells: tuple[Cell, ...]
    mean: MeanRatio
    """Geometric mean of the accepted speedups, with a 95 % interval over repeats."""
    spread: float | None
    """One standard deviation from run to run, as a factor; None for a single repeat."""
    against_first: Paired | None
    """Over the first arm on the same repeats; None for the first arm itself, or without pairs."""
    p_holm: float | None
    """The pair's p, corrected for all arms and problems."""

    @property
    def low(self) -> float:
        """The lowest speedup."""
        return min(cell.speedup for cell in self.cells)

    @property
    def high(self) -> float:
        """The highest speedup."""
        return max(cell.speedup for cell in self.cells)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was run, and what it came to."""

    cells: tuple[Cell, ...]
    missing: tuple[Missing, ...]
    rows: tuple[Row, ...]
    """By problem, in the order of the arms."""


def compare(
    problems: Sequence[Path | str],
    settings: CompareSettings,
    *,
    out: Path,
    machine: Machine | None = None,
    listener: RunListener | None = None,
    on_cell: Callable[[Cell | Missing], None] = lambda _: None,
) -> Comparison:
    """Run what is missing, read the rest.

    Args:
        problems: TOML files or folders.
        settings: what is compared.
        out: holds the runs; may hold finished ones of the same settings.
        machine: where to run; None: here.
        listener: hears every run.
        on_cell: told of each run when it has ended, or was read.

    Raises:
        UserError: a problem, a setting or a baseline is wrong; or `out` was made with other settings.
        StoreError: `out` cannot be written.
    """
    files = _files(problems)
    for each in problems:
        TuningProblem.load(each)  # a mistake in the last one is told before the first one's runs
    _hold(out, settings)
    ended: list[Cell | Missing] = []
    for name, file, arm, repeat in _order(files, settings):
        folder = out / name / arm.folder / f"{repeat:03d}"
        try:
            result = _run(file, settings.of(arm, repeat), folder, machine, listener)
        except (ModelError, InfrastructureError) as error:  # another arm may work, and this one can be resumed
            ended.append(Missing(name, arm, repeat, str(error)))
        else:
            if result.reason == "interrupted":
                raise KeyboardInterrupt
            ended.append(_cell(name, arm, repeat, folder, result))
        on_cell(ended[-1])
    cells = tuple(each for each in ended if isinstance(each, Cell))
    missing = tuple(each for each in ended if isinstance(each, Missing))
    return Comparison(cells, missing, _rows(cells, settings.arms))


def _files(problems: Sequence[Path | str]) -> dict[str, Path]:
    """Problem files by a name that is unique among them: the folder's."""
    files: dict[str, Path] = {}
    for each in problems:
        path = Path(each).resolve()
        file = path / PROBLEM_FILE_NAME if path.is_dir() else path
        name = file.parent.name
        if files.get(name) == file:
            raise UsageError(f"the problem {str(each)!r} is named twice", hint="leave one out; see --repeats")
        if files.setdefault(name, file) != file:
            raise UsageError(f"two problems are in folders named {name!r}", hint="compare them one after the other")
    if not files:
        raise UsageError("there is no problem to compare on")
    return files


def _order(files: dict[str, Path], settings: CompareSettings) -> Iterator[tuple[str, Path, Arm, int]]:
    """Repeat by repeat, problem by problem; the arms begin with another one each time."""
    arms = settings.arms
    for repeat in range(settings.repeats):
        for place, (name, file) in enumerate(files.items()):
            start = (repeat + place) % len(arms)
            for arm in (*arms[start:], *arms[:start]):
                yield name, file, arm, repeat


def _hold(out: Path, settings: CompareSettings) -> None:
    """The folder, with what its runs have in common.

    Raises:
        UsageError: it was made with other settings.
    """
    file, record = out / SETTINGS_FILE, settings.as_record()
    if file.is_file():
        try:
            there = read_json_text(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise StoreError(f"{file} is no record of a comparison: {error}", hint="say another --out") from error
        if there != record:
            differing = sorted(_differing(there, record))
            raise UsageError(
                f"the runs in {out} were made with other settings: {', '.join(differing)}",
                hint="say another --out, or the same budget, seed and so on",
            )
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        half = file.with_suffix(".new")
        half.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        half.replace(file)
    except OSError as error:
        raise StoreError(f"{out} cannot be written: {error.strerror or error}", hint="say another --out") from error


def _differing(there: Any, here: dict[str, Any]) -> Iterator[str]:
    if not isinstance(there, dict):
        yield "everything"
        return
    for key in {*there, *here}:
        if there.get(key) != here.get(key):
            if isinstance(here.get(key), dict) and isinstance(there.get(key), dict):
                yield from _differing(there[key], here[key])
            else:
                yield str(key)


def _run(
    file: Path, settings: OptimizeSettings, folder: Path, machine: Machine | None, listener: RunListener | None
) -> OptimizeResult:
    """The run in this folder, finished, continued or new."""
    try:
        view: RunView | None = RunView.read(folder)
    except StoreError:
        view = None
    if view is None:
        _remove_what_never_began(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        return optimize(file, settings=settings, run=folder, listener=listener, machine=machine)
    if view.finished is None or view.finished.reason == "interrupted":
        return resume_optimize(folder, listener=listener, machine=machine)
    return OptimizeResult(view)


def _remove_what_never_began(folder: Path) -> None:
    """A run that was killed before its first event was whole holds nothing, and would stand in the way."""
    log = folder / LOG_NAME
    has_event = log.is_file() and b"\n" in log.read_bytes()
    if folder.is_dir() and not has_event and not is_locked(folder / "lock"):
        shutil.rmtree(folder, ignore_errors=True)


def _cell(name: str, arm: Arm, repeat: int, folder: Path, result: OptimizeResult) -> Cell:
    accepted, spending = accepted_speedup(result), spending_of(folder).total
    return Cell(
        problem=name,
        arm=arm,
        repeat=repeat,
        folder=folder,
        speedup=accepted or 1.0,
        is_gain=accepted is not None,
        figures=figures_of(result),
        evaluation_count=result.evaluated_count + _proofs(result.tree),
        spent_s=result.view.spent_s,
        device_s=spending.device_s,
        waiting_s=spending.model.seconds,
        reply_count=spending.model.requests,
        reason=result.reason or "",
    )


def _proofs(tree: Tree) -> int:
    """Evaluations of nodes that were proven and never tuned, at least one each; the others' are among their own."""
    built = [node for node in tree if node.parent is not None and node.status in ("working", "failed")]
    return sum(not node.tuning.evaluated_count for node in built)


def _rows(cells: Sequence[Cell], arms: Sequence[Arm]) -> tuple[Row, ...]:
    rows = []
    for problem in dict.fromkeys(cell.problem for cell in cells):
        own = {arm: tuple(cell for cell in cells if (cell.problem, cell.arm) == (problem, arm)) for arm in arms}
        for arm in arms:
            if own[arm]:
                speedups = [cell.speedup for cell in own[arm]]
                pair = _paired(own[arm], own[arms[0]]) if arm != arms[0] else None
                rows.append(Row(problem, arm, own[arm], mean_ratio(speedups), spread(speedups), pair, None))
    places = [place for place, row in enumerate(rows) if row.against_first is not None]
    corrected = holm([cast("Paired", rows[place].against_first).p for place in places])
    for place, p in zip(places, corrected, strict=True):
        rows[place] = dataclasses.replace(rows[place], p_holm=p)
    return tuple(rows)


def _paired(cells: Sequence[Cell], first: Sequence[Cell]) -> Paired | None:
    by_repeat = {cell.repeat: cell.speedup for cell in first}
    pairs = [(cell.speedup, by_repeat[cell.repeat]) for cell in cells if cell.repeat in by_repeat]
    return paired([one for one, _ in pairs], [other for _, other in pairs]) if pairs else None

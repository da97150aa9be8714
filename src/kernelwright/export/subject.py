"""What every export starts from: a run with its frozen problem, its result and the configs that won."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from kernelwright.dispatching.table import ONE_CONFIG, DispatchTable, dispatch_table, mean_and_worst
from kernelwright.errors import UserError
from kernelwright.insights.verdict_words import claim_text
from kernelwright.problem.config import Config
from kernelwright.problem.model import Problem
from kernelwright.results.optimize_result import OptimizeResult, is_optimize_run
from kernelwright.results.tune_result import TuneResult
from kernelwright.store.run_folder import RunFolder
from kernelwright.store.view import RunView
from kernelwright.template.model import Template
from kernelwright.tuning.tune import TuningProblem


@dataclass(frozen=True)
class ExportedRun:
    """A run, read once for all formats."""

    result: TuneResult
    subject: TuningProblem
    loss: float | None = None
    """What a shape may lose against its best config; None: what the run was probed for, else the default."""
    faster_elsewhere: Mapping[str, str] = field(default_factory=dict)
    """By workload another structure, in words, that is surely faster there than the exported one and the baseline."""

    @classmethod
    def read(cls, run: Path, *, loss: float | None = None) -> ExportedRun:
        """The run in a folder.

        Raises:
            StoreError: no readable run there, or its problem is not what it recorded.
            SpecError: its frozen problem is damaged.
        """
        view, elsewhere = RunView.read(run), dict[str, str]()
        if is_optimize_run(view):  # the node that won has a run of its own; notes of the baseline are the whole's
            result = OptimizeResult(view)
            elsewhere = {name: f"node {node}" for name, node in result.own_best_elsewhere.items()}
            RunFolder.open(run, writable=False).problem_files()  # refuses one that was changed
            run, whole = result.winner_folder, view
            view = result.tuned(result.used.index).view if result.used is not None else view
            view = dataclasses.replace(view, notes=tuple(dict.fromkeys([*whole.notes, *view.notes])))
        with RunFolder.open(run, writable=False) as folder:
            subject = TuningProblem.of_run(folder, view.started)
        return cls(TuneResult(view), subject, loss, elsewhere)

    @property
    def problem(self) -> Problem:
        """The frozen problem."""
        return self.subject.problem

    @property
    def template(self) -> Template:
        """What was tuned."""
        return self.subject.template

    @cached_property
    def table(self) -> DispatchTable:
        """Which config serves which sizes.

        Raises:
            UserError: nothing won.
        """
        self.config  # noqa: B018  # says what is wrong when nothing won
        return dispatch_table(self.view, self.subject, loss=self.loss)

    @property
    def configs(self) -> tuple[Config, ...]:
        """The table's configs; where the baseline alone would do, the general winner, which no rule chooses."""
        return tuple(config for config in self.table.configs if config is not None) or (self.config,)

    @property
    def view(self) -> RunView:
        """The run's events, projected."""
        return self.result.view

    @property
    def config(self) -> Config:
        """The general winner's config.

        Raises:
            UserError: nothing won.
        """
        config = self.result.best_config
        if config is None:
            count = len(self.view.evaluations)
            what = f"none of its {count} evaluations can be used" if count else "it has no evaluations yet"
            raise UserError(
                f"the run {self.view.started.run_id!r} has no winner to export: {what}",
                hint="the report says why each one failed; formats t4 and t1 need no winner",
            )
        return config

    def table_notes(self) -> list[str]:
        """What the table was made from and what it costs, as lines for a comment."""
        table, lines = self.table, []
        for place, config in enumerate(table.configs):
            served = ", ".join(shape.name for shape in table.served(place)) or "nothing that was measured"
            what = self._why_the_baseline() if config is None else _values(config)
            lines.append(f"{table.label(place)}: {what}; the choice for {served}")
        told = f"In this table is {ONE_CONFIG}." if table.is_alone else "What the rule's choice loses:"
        lines.append(f"{self._chosen_words()} {told}")
        for what, losses in (
            ("on the tuned workloads", table.losses(tuned=True)),
            ("on shapes that were not tuned", table.losses(tuned=False)),
            ("on each of those, by a rule made without it", table.held_out_losses),
        ):
            found = mean_and_worst(losses)
            if found is not None:
                lines.append(f"{what}: {100 * found[0]:.1f} % in the mean, {100 * found[1]:.1f} % at worst")
        for name, best in self.faster_elsewhere.items():
            lines.append(
                f"On {name} another structure, {best}, which this file does not hold, was surely faster than this one "
                "and the baseline in the final comparison."
            )
        if not table.is_probed:
            lines.append("No shape beside the tuned ones was measured; `kernelwright dispatch` does that.")
        return lines

    def _why_the_baseline(self) -> str:
        if self._is_partial:
            return "where no config is surely faster"
        limit = f"{100 * self.table.loss:g} %"
        return f"because on a measured shape every config here surely loses more than {limit}, and it does not"

    def _chosen_words(self) -> str:
        """What the table was chosen from, and which losses count."""
        if self._is_partial:
            return "Used where it is surely faster than the baseline."
        within = f"On each measured shape one of these loses at most {100 * self.table.loss:g} % against the fastest of"
        if self.view.dispatch is None and self.view.comparison is None:
            return f"{within} what the search measured of this source and the baseline, which was not compared again."
        return (
            f"{within} the baseline and the configs of this source that were compared there; a larger loss counts only "
            "where it is sure, by the 95 % interval of the ratio."
        )

    @property
    def _is_partial(self) -> bool:
        """Whether the table is of one config that is used where it is surely faster."""
        return self.view.dispatch is None and self.result.partial is not None

    @property
    def identifier(self) -> str:
        """The problem's name as part of C names."""
        return re.sub(r"\W", "_", self.problem.name, flags=re.ASCII)

    @property
    def device_name(self) -> str:
        """The device that everything was measured on."""
        return one_line(str(self.view.started.device.get("name", "unknown device")))

    @property
    def claim(self) -> str:
        """What may be said about the winner's speed, in one sentence."""
        return claim_text(self.result)


def _values(config: Config) -> str:
    return ", ".join(f"{name} = {value}" for name, value in config.items())


def wrapped(line: str) -> list[str]:
    """A line of a comment as lines of bearable length, further ones indented."""
    indent = line[: len(line) - len(line.lstrip())] + "    "
    return textwrap.wrap(line, 112, subsequent_indent=indent, break_long_words=False) or [""]


def one_line(text: str) -> str:
    """`text` for a line comment: no line ends, and no backslash at the end that would continue it."""
    return "".join(c if c.isprintable() else " " for c in text).rstrip("\\ ")

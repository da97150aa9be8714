"""What every export starts from: a run with its frozen problem, its result and the configs that won."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from kernelwright.engine.result import TuneResult
from kernelwright.engine.tune import Subject
from kernelwright.errors import UserError
from kernelwright.problem.config import Config
from kernelwright.problem.model import Problem
from kernelwright.store.run_folder import RunFolder
from kernelwright.store.view import RunView
from kernelwright.template.model import Template


@dataclass(frozen=True)
class ExportedRun:
    """A run, read once for all formats."""

    result: TuneResult
    problem: Problem
    template: Template

    @classmethod
    def read(cls, run: Path) -> ExportedRun:
        """The run in a folder.

        Raises:
            StoreError: no readable run there.
            SpecError: its frozen problem is damaged.
        """
        view = RunView.read(run)
        with RunFolder.open(run, writable=False) as folder:
            subject = Subject.load(folder.problem_file)
        return cls(TuneResult(view), subject.problem, subject.template)

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
        interval, winner = self.result.speedup, self.view.winner
        if winner is None:
            return "nothing won"
        if interval is None:
            return (
                f"about {1 / winner.ratio:.3g} times the baseline's speed: an estimate of the search, "
                "not compared again beside the baseline"
            )
        rounds = min((len(rows[0]) for rows in self._compared_samples()), default=0)
        measured = f"{100 * interval.confidence:.4g} % interval {interval.low:.4g} to {interval.high:.4g}"
        ground = f"({measured}, {rounds} interleaved rounds)"
        if self.result.is_gain:
            return f"{interval.estimate:.4g} times the baseline's speed {ground}"
        return f"no significant gain over the baseline: {interval.estimate:.4g} times its speed {ground}"

    def _compared_samples(self) -> list[tuple[tuple[float, ...], ...]]:
        comparison = self.view.comparison
        return [rows for rows in comparison.samples_ms.values() if rows] if comparison is not None else []


def one_line(text: str) -> str:
    """`text` for a line comment: no line ends, and no backslash at the end that would continue it."""
    return "".join(c if c.isprintable() else " " for c in text).rstrip("\\ ")

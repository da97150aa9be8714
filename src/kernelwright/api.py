"""The Python API: the commands as functions, with plain arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from kernelwright.checking.check import check
from kernelwright.dispatching.measure import probe_dispatch as dispatch
from kernelwright.errors import KernelwrightError
from kernelwright.export.run import export_run
from kernelwright.export.torch.apply import apply
from kernelwright.export.tuned import tuned
from kernelwright.optimization.optimize import optimize as _optimize
from kernelwright.optimization.optimize import resume_optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.problem.config import Config, Value
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.model import Problem
from kernelwright.report.page import write_report
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.results.tune_result import TuneResult
from kernelwright.store.view import RunView
from kernelwright.tuning.listener import RunListener
from kernelwright.tuning.settings import Budget, TuneSettings, as_budget
from kernelwright.tuning.tune import priors_of, replay, resume
from kernelwright.tuning.tune import tune as _tune

__all__ = [
    "Budget",
    "Config",
    "KernelwrightError",
    "OptimizeResult",
    "OptimizeSettings",
    "Problem",
    "RunView",
    "TuneResult",
    "TuneSettings",
    "apply",
    "check",
    "dispatch",
    "export_run",
    "load_problem",
    "optimize",
    "replay",
    "resume",
    "resume_optimize",
    "tune",
    "tuned",
    "write_report",
]


def tune(
    problem: Problem | Path | str,
    *,
    budget: Budget | str | int = "60s",
    searcher: str = "auto",
    searcher_options: Mapping[str, Value] | None = None,
    seed: int = 0,
    device: str | None = None,
    build_processes: int | None = None,
    cache: Literal["hot", "cold"] | None = None,
    run: Path | str | None = None,
    prior_runs: Sequence[Path | str] = (),
    listener: RunListener | None = None,
) -> TuneResult:
    """Search the parameters of a problem's template, and measure the winner against the baseline.

    Args:
        problem: a loaded problem, its TOML file or its folder.
        budget: as on the command line (`"200"`, `"90s"`, `"5m,no-gain"`), a number of evaluations, or a `Budget`.
        searcher: a name that `kernelwright tune --help` lists.
        searcher_options: the searcher's documented options.
        seed: of everything random.
        device: a device id or a part of its name; None: the best one.
        build_processes: compilers at work at the same time; None: most of the cores.
        cache: state of the last-level cache before each timed launch; None: cold on a GPU, hot on a CPU device.
        run: the run folder to make; None: `runs/NAME-TIME`.
        prior_runs: earlier runs of the same or a similar template to start from.
        listener: hears every event.

    Raises:
        UserError: a file, a setting or the baseline is wrong.
        StoreError: the run folder cannot be written.
        InfrastructureError: the device failed; `resume` continues the run.
    """
    settings = TuneSettings(
        budget=as_budget(budget),
        searcher=searcher,
        searcher_options=dict(searcher_options or {}),
        seed=seed,
        device=device,
        build_processes=build_processes,
        cache=cache,
    )
    return _tune(
        problem,
        settings=settings,
        run=Path(run) if run is not None else None,
        priors=priors_of([Path(each) for each in prior_runs]),
        listener=listener,
    )


def optimize(
    problem: Problem | Path | str,
    *,
    budget: Budget | str | int = "120s",
    model: str = "rules",
    policy: str = "gain",
    start: Literal["all", "baseline"] = "all",
    max_cost_usd: float | None = None,
    max_tokens: int | None = None,
    memory: Literal["on", "read", "off"] = "on",
    searcher: str = "auto",
    seed: int = 0,
    device: str | None = None,
    build_processes: int | None = None,
    cache: Literal["hot", "cold"] | None = None,
    run: Path | str | None = None,
    listener: RunListener | None = None,
) -> OptimizeResult:
    """Rewrite a kernel, tune every structure that comes of it, and measure the best against the baseline.

    Args:
        problem: a loaded problem, its TOML file or its folder; its kernel may be plain.
        budget: of both stages together: as on the command line (`"120s"`), a number of evaluations, or a `Budget`.
        model: who proposes structures: `rules` needs no model; `PROVIDER:NAME`; `replay:RUN`.
        max_cost_usd: most money for a model's replies.
        max_tokens: most tokens for a model's requests and replies.
        memory: what earlier runs have learnt: used and added to, only used, or neither.
        policy: who chooses where the budget goes: `gain`, or another name of `--policy`.
        start: `all`: the problem's own template is tried too; `baseline`: only what the baseline becomes.
        searcher: of each structure's parameters, as for `tune`.
        seed: of everything random.
        device: a device id or a part of its name; None: the best one.
        build_processes: compilers at work at the same time; None: most of the cores.
        cache: state of the last-level cache before each timed launch; None: cold on a GPU, hot on a CPU device.
        run: the run folder to make; None: `runs/NAME-TIME`.
        listener: hears every event.

    Raises:
        UserError: a file, a setting or the baseline is wrong.
        StoreError: the run folder cannot be written.
        InfrastructureError: the device failed; `resume_optimize` continues the run.
    """
    settings = OptimizeSettings(
        tune=TuneSettings(
            budget=as_budget(budget),
            searcher=searcher,
            seed=seed,
            device=device,
            build_processes=build_processes,
            cache=cache,
        ),
        model=model,
        policy=policy,
        start=start,
        max_cost_usd=max_cost_usd,
        max_tokens=max_tokens,
        memory=memory,
    )
    return _optimize(problem, settings=settings, run=Path(run) if run is not None else None, listener=listener)

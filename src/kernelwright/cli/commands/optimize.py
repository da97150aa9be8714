"""`optimize`, its resumption, and how its runs are shown: words in, library calls, tables out."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast

import typer
from rich.console import Console
from rich.tree import Tree as Branches

from kernelwright.cli.clock import since_start_s
from kernelwright.cli.commands.tune import REPLAY_AGAIN, stopping_in_words, tell_bare_budget
from kernelwright.cli.output.progress import open_progress
from kernelwright.cli.output.tables import (
    interval_data,
    interval_text,
    open_console,
    partial_data,
    print_figures,
    print_verdict,
    print_workloads,
    prospect_data,
    workload_rows,
)
from kernelwright.errors import KernelwrightError, StoreError, UsageError
from kernelwright.evaluate.device.probe import DeviceHosts
from kernelwright.insights.attempts import figures_of
from kernelwright.insights.forecast import prospect_of, prospect_text
from kernelwright.insights.run_summary import finding_words
from kernelwright.insights.spending import spending_of
from kernelwright.insights.step_table import fastest_run_id, told_path, told_total
from kernelwright.insights.verdict_words import caveats, counted, tree_verdict_text, tried_count
from kernelwright.llm.account import Account
from kernelwright.optimization.agent import account_of
from kernelwright.optimization.optimize import optimize, replay_optimize, resume_optimize
from kernelwright.optimization.roles_file import read_roles
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.remote.runners import absolute
from kernelwright.results.optimize_result import OptimizeResult, PathStep
from kernelwright.search.base import ExpectedGain
from kernelwright.tree.model import Node
from kernelwright.tuning.machine import LocalMachine
from kernelwright.tuning.settings import TuneSettings, parse_budget
from kernelwright.tuning.time_spent import time_words

PART_EVALUATIONS = 24
"""That a spool is asked for with each new structure, unless `--part` says otherwise."""

MOST_CHARACTERS = 90
"""A node's instruction in a tree is cut here."""


@dataclass(frozen=True, slots=True)
class OptimizeWords:
    """The words of `kernelwright optimize`."""

    problem: Path
    budget: str
    model: str
    policy: str
    start: str
    searcher: str
    seed: int
    device: str | None
    jobs: int | None
    run: Path | None
    cache: str | None
    finalists: int
    rounds: int
    is_json: bool
    writes_report: bool
    max_cost: str | None = None
    max_tokens: int | None = None
    max_attempts: int | None = None
    memory: str = "on"
    roles: Path | None = None
    runner: str = ""
    in_flight: int | None = None
    part: int | None = None
    """None: as many as the settings say."""

    def settings(self) -> OptimizeSettings:
        """The settings that the words say.

        Raises:
            UsageError: a word makes no sense, or has no effect beside the others.
        """
        if self.part is not None and not self.runner:
            raise UsageError(
                f"--part {self.part} has no effect here: it is for devices of other machines",
                hint="leave it out, or say --runner",
            )
        return OptimizeSettings(
            tune=TuneSettings(
                budget=parse_budget(self.budget),
                searcher=self.searcher,
                seed=self.seed,
                device=self.device,
                build_processes=self.jobs,
                finalists=self.finalists,
                comparison_rounds=self.rounds,
                cache=cast("Literal['hot', 'cold'] | None", self.cache),
            ),
            model=self.model,
            policy=self.policy,
            memory=cast("Literal['on', 'read', 'off']", self.memory),
            start=cast("Literal['all', 'baseline']", self.start),
            max_cost_usd=_dollars(self.max_cost),
            max_tokens=self.max_tokens,
            runner=absolute(self.runner),
            in_flight=self.in_flight,
            part_evaluations=self.part or PART_EVALUATIONS,
            max_attempts=self.max_attempts,
            roles=read_roles(self.roles) if self.roles is not None else {},
        )


def _dollars(text: str | None) -> float | None:
    """`5`, `5usd` or `$5`."""
    if text is None:
        return None
    try:
        return float(text.strip().lower().removeprefix("$").removesuffix("usd"))
    except ValueError:
        raise UsageError(f"--max-cost {text!r} is no price", hint="say dollars: 5usd, or 0.50") from None


def refuse_idle_caps(words: OptimizeWords, models: Sequence[str]) -> None:
    """Refuse caps on what models cost where none is asked.

    Raises:
        UsageError: all `models` are rules, and a cap is said.
    """
    caps = [("--max-cost", words.max_cost), ("--max-tokens", words.max_tokens)]
    named = [option for option, value in caps if value is not None]
    if named and all(model == "rules" for model in models):
        raise UsageError(
            f"{' and '.join(named)} {'has' if len(named) == 1 else 'have'} no effect: rules cost nothing",
            hint="leave it out, or name a model, PROVIDER:NAME",
        )


def run_optimize(words: OptimizeWords, begun: DeviceHosts | None = None) -> int:
    """Optimise and show; exit status 0 also when the baseline is kept, 1 when nothing passed, 130 when interrupted.

    `begun`: probes that already ask for devices.
    """
    settings = words.settings()
    refuse_idle_caps(words, [settings.model])
    tell_bare_budget(words.budget, is_json=words.is_json)
    with stopping_in_words(words.run):
        with open_progress(is_json=words.is_json) as view:
            machine = None if settings.runner else LocalMachine(begun)
            result = optimize(
                words.problem, settings=settings, run=words.run, listener=view, machine=machine,
                earlier_s=since_start_s(),
            )  # fmt: skip
        return _show(result, is_json=words.is_json, writes_report=words.writes_report)


def require_problem(problem: Path | None, replay: Path | None) -> Path:
    """The problem to run; a replay brings its own.

    Raises:
        UsageError: there is none, or both are named.
    """
    if problem is None:
        raise UsageError("no problem is named", hint="say optimize problem.toml, or optimize --replay RUN")
    if replay is not None:
        raise UsageError(
            "--replay repeats the problem of its run; another one cannot be named with it",
            hint=f"say kernelwright optimize --replay {shlex.quote(str(replay))}",
        )
    return problem


def run_replay_optimize(recorded: Path, *, run: Path | None, is_json: bool, writes_report: bool) -> int:
    """Repeat a recorded run and show it; exit status as for `run_optimize`, and an error where it diverges."""
    with stopping_in_words(run, advice=REPLAY_AGAIN):
        with open_progress(is_json=is_json) as view:
            replay = replay_optimize(recorded, run=run, listener=view)
        told = {"of": str(recorded), "events": replay.event_count, "differences": list(replay.differences)}
        status = _show(replay.result, is_json=is_json, writes_report=writes_report, more={"replay": told})
        if not is_json:
            console = open_console()
            for difference in replay.differences:
                console.print(f"warning: {difference}", highlight=False, markup=False)
            words = "the same decisions, times aside" if replay.differences else "bit for bit the same, times aside"
            console.print(f"replayed {replay.event_count} events: {words}", highlight=False, markup=False)
    return status


def run_resume_optimize(run: Path, *, is_json: bool, runner: str = "") -> int:
    """Resume and show; exit status as for `run_optimize`."""
    with stopping_in_words(run):
        with open_progress(is_json=is_json) as view:
            result = resume_optimize(run, listener=view, runner=absolute(runner))
        return _show(result, is_json=is_json, writes_report=True)


def _show(
    result: OptimizeResult, *, is_json: bool, writes_report: bool, more: Mapping[str, Any] = MappingProxyType({})
) -> int:
    written, failure = write_run_files(result) if writes_report else ([], None)
    if is_json:
        typer.echo(json.dumps({**optimize_summary(result), **more, "files": [str(path) for path in written]}, indent=2))
    else:
        console = open_console()
        print_optimized(result, console)
        for path in written:
            console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)
        console.print(f"run folder: {result.folder}", highlight=False, markup=False, soft_wrap=True)
        if result.reason == "interrupted":
            again = shlex.quote(str(result.folder))
            console.print(
                f"interrupted; continue with: kernelwright resume {again}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
    if failure is not None:  # a full disk, say: the result has been shown all the same
        raise failure
    if result.reason == "interrupted":
        return 130
    return 0 if result.tree.best is not None else 1


def write_run_files(result: OptimizeResult) -> tuple[list[Path], KernelwrightError | None]:
    """Write report and exports; what was written, and the first thing that went wrong."""
    from kernelwright.export.run import export_run, usual_formats
    from kernelwright.report.page import write_report

    folder = result.folder
    assert folder is not None
    written: list[Path] = []
    try:
        written.append(write_report(folder, folder / "report.html"))
        if result.used is not None:
            written += export_run(folder, folder / "export", formats=usual_formats(folder))
    except KernelwrightError as error:
        return written, error
    return written, None


def print_optimized(result: OptimizeResult, console: Console) -> None:
    """The final table, the path from the baseline to the winner, the tree, and the verdict."""
    started = result.view.started
    console.print(
        f"{started.problem_name} on {started.device.get('name')}", style="bold", highlight=False, markup=False
    )
    if result.workloads:
        print_workloads(result.compared, console, elsewhere=result.own_best_elsewhere)
    path = told_path(result)
    if len(path) > 1:
        _print_path(path, console)
        for step in path[1:]:
            because = f" ({step.node.because.rstrip('.')})" if step.node.because else ""
            console.print(
                f"{step.node.index} {step.node.label}: {step.node.instruction.rstrip('.')}{because}",
                highlight=False,
                markup=False,
            )
    if result.best_config is not None and result.fastest is not None:
        text = "  ".join(f"{name}={value}" for name, value in result.best_config.items())
        kept = ", the fastest tried" if result.winner is None and result.speedup is not None else ""
        console.print(f"configuration of node {result.fastest.index}{kept}: {text}", highlight=False, markup=False)
    console.print(_counts_text(result), highlight=False, markup=False)
    account = account_of(result.folder) if result.folder is not None else None
    if account is not None:
        console.print(_account_text(account), highlight=False, markup=False)
    if result.folder is not None:
        console.print(spending_of(result.folder).device_text, highlight=False, markup=False)
    if spent := time_words(result.view):
        console.print(spent, highlight=False, markup=False)
    prospect = _prospect(result)
    if prospect is not None and result.fastest is not None:
        console.print(
            f"going on with node {result.fastest.index}: {prospect_text(*prospect)}", highlight=False, markup=False
        )
    print_verdict(tree_verdict_text(result), result.view, console)


def _prospect(result: OptimizeResult) -> tuple[float, ExpectedGain] | None:
    """What a longer search of the fastest node's parameters would have brought; None where it has no run of its own."""
    fastest = result.fastest
    if fastest is None:
        return None
    try:
        return prospect_of(result.tuned(fastest.index).view)
    except StoreError:
        return None


def print_tree(result: OptimizeResult, console: Console) -> None:
    """Every node with what was done, predicted and measured."""
    root = result.tree[0] if len(result.tree) else None
    if root is None:
        console.print("no node was made")
        return
    branches = Branches(_escaped(_node_text(result, root)), highlight=False)
    _grow(result, branches, root)
    console.print(branches, highlight=False)


def print_optimize_run(result: OptimizeResult, *, is_json: bool) -> None:
    """`show run` of a run of `optimize`: the tree, what became of it, and every node's findings."""
    if is_json:
        typer.echo(json.dumps(optimize_summary(result), indent=2))
        return
    console = open_console()
    print_tree(result, console)
    print_optimized(result, console)
    fastest = result.fastest
    for finding in fastest.tuning.findings if fastest is not None else ():
        told = f"node {fastest.index if fastest else 0}: {finding_words(finding)}"
        console.print(told, highlight=False, markup=False)
    if own := fastest_run_id(result):
        told = f"run {result.view.started.run_id}; its node {fastest.index if fastest else 0} is run {own}"
        console.print(f"{told}, which exports name", highlight=False, markup=False)
    for note in result.view.notes:
        console.print(f"{note.level}: {note.text}", highlight=False, markup=False)


def optimize_summary(result: OptimizeResult) -> dict[str, Any]:
    """What a script would read of a run of `optimize`."""
    view, fastest = result.view, result.fastest
    return {
        "run": str(view.folder) if view.folder else None,
        "problem": view.started.problem_name,
        "device": view.started.device.get("name"),
        "reason": result.reason,
        "is_gain": result.is_gain,
        "kind": result.verdict.kind.value,
        "speedup": interval_data(result.speedup),
        "partial": partial_data(result.partial),
        "winner": result.winner.index if result.winner is not None else None,
        "fastest_node": fastest.index if fastest is not None else None,
        "best_config": dict(result.best_config) if result.best_config is not None else None,
        "workloads": workload_rows(result.compared),
        "path": [_step_data(step) for step in told_path(result)],
        "nodes": [_node_data(result, node) for node in result.tree],
        "evaluations": tried_count(result),
        "floor_fraction": result.floor_fraction,
        "verdict": tree_verdict_text(result),
        "caveats": list(caveats(view)),
        "spent_s": view.spent_s,
        "prospect": prospect_data(_prospect(result)),
        "attempts": figures_of(result).as_data(),
        "model": _account_data(account_of(view.folder) if view.folder else None),
        "spending": spending_of(view.folder).as_data() if view.folder else None,
    }


def _step_data(step: PathStep) -> dict[str, Any]:
    return {
        "node": step.node.index,
        "what": step.node.label,
        "instruction": step.node.instruction,
        "predicted_gain": step.predicted_gain,
        "gain": interval_data(step.gain),
        "search_gain": step.search_gain,
        "total": interval_data(step.total),
    }


def _node_data(result: OptimizeResult, node: Node) -> dict[str, Any]:
    return {
        "node": node.index,
        "parent": node.parent,
        "what": node.label,
        "instruction": node.instruction,
        "status": node.status,
        "predicted_gain": node.predicted_gain,
        "search_gain": result.tree.gain(node.index),
        "best_value": node.best_value,
        "evaluations": node.tuning.evaluated_count,
        "failure": f"{node.failure.stage}: {node.failure.message}" if node.failure else None,
        "findings": list(node.tuning.findings),
    }


def _print_path(path: tuple[PathStep, ...], console: Console) -> None:
    rows = []
    for step in path[1:]:
        predicted = f"{step.predicted_gain:.2f}x" if step.predicted_gain is not None else "-"
        provisional = f"about {step.search_gain:.2f}x" if step.search_gain is not None else "-"
        gain = interval_text(step.gain) if step.gain is not None else provisional
        total = f"{step.total.estimate:.2f}x" if step.total is not None else "-"
        rows.append((f"{step.node.index} {step.node.label}", predicted, gain, total))
    print_figures(("node", "predicted", "this step", "since the baseline"), rows, console)
    if any(step.gain is None and step.search_gain is not None for step in path[1:]):
        told = "about: the search's own figure, which flatters; what has an interval, and what is since the baseline, "
        console.print(f"{told}is from the final comparison", highlight=False, markup=False)


def _counts_text(result: OptimizeResult) -> str:
    statuses = [node.status for node in result.tree if node.parent is not None]
    parts = [f"{statuses.count('working')} working"]
    parts += [f"{statuses.count(each)} {each}" for each in ("failed", "refused") if statuses.count(each)]
    return (
        f"structures: {len(statuses)} ({', '.join(parts)}); {counted(tried_count(result), 'configuration')} evaluated; "
        f"ended by {result.reason or 'nothing yet'} after {result.view.spent_s:.0f} s"
    )


def _account_text(account: Account) -> str:
    """What models have cost, all together and by role."""
    total = account.total
    cost = f"${total.cost_usd:.4f}" if total.cost_usd is not None else "price unknown"
    counts = {role: spent.requests - spent.failed for role, spent in sorted(account.by_role.items())}
    roles = ", ".join(f"{role} {count}" for role, count in counts.items() if count)
    answered = f"{total.requests - total.failed} replies" + (f" ({roles})" if roles else "")
    failed = f", {total.failed} requests without one that can be used" if total.failed else ""
    cached = f" ({total.cached_tokens} from the cache)" if total.cached_tokens else ""
    tokens = f"{total.input_tokens} tokens in{cached}, {total.output_tokens} out"
    return f"model: {answered}{failed}; {tokens}; {cost}; {total.seconds:.0f} s of waiting"


def _account_data(account: Account | None) -> dict[str, Any] | None:
    if account is None:
        return None
    parts = {"all": account.total, **account.by_role, **{f"node {n}": s for n, s in account.by_node.items()}}
    return {name: {**dataclasses.asdict(spent), "cost_usd": spent.cost_usd} for name, spent in parts.items()}


def _grow(result: OptimizeResult, branch: Branches, node: Node) -> None:
    for child in result.tree.children(node.index):
        _grow(result, branch.add(_escaped(_node_text(result, child)), highlight=False), child)


def _node_text(result: OptimizeResult, node: Node) -> str:
    if node.parent is None:
        return f"0 baseline: {_short(node.instruction)}"
    text = f"{node.index} {node.label}: {_short(node.instruction)}"
    if node.failure is not None:
        return f"{text} [{node.status} at {node.failure.stage}: {node.failure.reason}]"
    if node.best_value:
        gain = result.tree.gain(node.index)
        text += f" [search: {1 / node.best_value:.2f}x"
        text += f", step {gain:.2f}x" if gain is not None else ""
        text += f", predicted {node.predicted_gain:.2f}x" if node.predicted_gain is not None else ""
        text += f", {node.tuning.evaluated_count} evaluated]"
    fastest = result.fastest
    if fastest is None or fastest.index != node.index:
        return text
    total = told_total(result, node.index)
    return text + " <- fastest" + (f", {interval_text(total)} in the final comparison" if total is not None else "")


def _short(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")

"""The commands of `kernelwright bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

bench_app = typer.Typer(no_args_is_help=True, help="Measure Kernelwright itself: searchers, spaces, its evaluator.")

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]


@bench_app.command("search", short_help="Score searchers on recorded spaces.")
def bench_search(
    recordings: Annotated[
        list[Path],
        typer.Argument(
            help="Recorded spaces, or folders of them: KERNEL__DEVICE.npz with KERNEL.json (T1) beside, Kernel Tuner "
            "cache files, T4 results.",
            show_default=False,
        ),
    ],
    searcher: Annotated[
        list[str] | None,
        typer.Option(help="Ours, optuna:NAME or kernel-tuner:NAME; may be repeated. The first is compared with all."),
    ] = None,
    space: Annotated[list[str] | None, typer.Option(help="Only spaces whose name contains this.")] = None,
    repeats: Annotated[int, typer.Option(help="Runs of each searcher on each space, with seeds from 0.", min=2)] = 20,
    jobs: Annotated[int, typer.Option(help="Processes; busy cores disturb the searchers' own time.", min=1)] = 1,
    priors: Annotated[
        list[str] | None,
        typer.Option(
            help="Run ours with this device's recording as priors too; or others, reversed, shuffled, constant.",
            metavar="DEVICE",
        ),
    ] = None,
    default: Annotated[bool, typer.Option("--default", help="Start from the declared default.")] = False,
    saving: Annotated[
        list[str] | None,
        typer.Option(help="Run ours with measurements that stop early too: racing, precise, or both.", metavar="KIND"),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write curves of the best found: .svg or .html.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for repeats, results.json, results.md, curves.svg.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Do not run again what --out holds already.")] = False,
    *,
    json: JsonFlag = False,
) -> None:
    """Score searchers on recorded spaces by the auto-tuning community's methodology.

    Each evaluation costs what it cost when it was recorded, plus the searcher's own time. 1 is the optimum from the
    start, 0 is random search. For example:

      kernelwright bench search recordings --searcher auto --searcher random --repeats 20 --jobs 2

      kernelwright bench search gemm.json --searcher auto --searcher optuna:tpe --plot gemm.svg
    """
    from kernelwright.cli.bench import SearchWords, run_search

    words = SearchWords(
        paths=tuple(recordings),
        searchers=tuple(searcher or ()),
        spaces=tuple(space or ()),
        repeats=repeats,
        jobs=jobs,
        priors=tuple(priors or ()),
        has_default=default,
        savings=tuple(saving or ()),
        plot=plot,
        out=out,
        keeps=keep,
        is_json=json,
    )
    raise typer.Exit(run_search(words))


@bench_app.command("space", short_help="Measure how long feasible spaces take to build.")
def bench_space(
    space: Annotated[list[str] | None, typer.Option(help="One space; may be repeated (default: all).")] = None,
    limit: Annotated[float, typer.Option(help="Seconds for one measurement.", min=0.1)] = 60.0,
    *,
    large: Annotated[bool, typer.Option(help="With the large spaces, which take minutes the other ways.")] = True,
    json: JsonFlag = False,
) -> None:
    """Measure how long feasible spaces take to build, against python-constraint2 and brute force."""
    from kernelwright.cli.bench import run_space

    raise typer.Exit(run_space(tuple(space or ()), limit_s=limit, has_large=large, is_json=json))


@bench_app.command("policies", short_help="Compare selection policies in simulated worlds.")
def bench_policies(
    policies: Annotated[
        str, typer.Option(help="Joined by commas, as for `compare`; the first is compared with all.")
    ] = "default,stark,stark-untuned,best-of-n,reflexion,greedy,direct,tune-only,random",
    world: Annotated[
        list[str] | None, typer.Option(help="One world; may be repeated (default: all but the published one).")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Tasks of each world, with seeds from --seed.", min=2)] = 200,
    seed: Annotated[int, typer.Option(help="Of the first task.", min=0)] = 1000,
    jobs: Annotated[int, typer.Option(help="Processes.", min=1)] = 1,
    budget: Annotated[float, typer.Option(help="Of each world's own budget, as a factor.", min=0.01)] = 1.0,
    calibrate: Annotated[bool, typer.Option(help="Hold the published setting against the paper too.")] = True,
    *,
    json: JsonFlag = False,
) -> None:
    """Compare selection policies in simulated worlds of attempts, at equal budget, without a model or a device.

    Prints mean speedups with intervals, spread, paired tests (Holm) and cost.

      kernelwright bench policies --repeats 1000 --jobs 4
    """
    from kernelwright.cli.bench_policies import PoliciesWords, run_policies

    words = PoliciesWords(policies, tuple(world or ()), repeats, seed, jobs, budget, calibrate, json)
    raise typer.Exit(run_policies(words))


@bench_app.command("operators", short_help="Tune the operator suite on an NVIDIA GPU, and compare.")
def bench_operators(
    only: Annotated[
        list[str] | None, typer.Option(help="Operators, joined by commas; may be repeated (default: all).")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Of tuning each operator on its problem's workloads.", min=1.0)] = 30.0,
    shape_seconds: Annotated[
        float, typer.Option("--shape-seconds", help="Of searching on from there on each shape of the table.", min=0.0)
    ] = 10.0,
    rounds: Annotated[int, typer.Option(help="Of the final comparison, interleaved.", min=5)] = 31,
    folder: Annotated[
        Path | None, typer.Option(help="Where the operators' problems are (default: the CUDA examples).")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write everything to this file.")] = None,
    runs: Annotated[Path | None, typer.Option(help="Keep the run folders of the tuning here.")] = None,
    torch: Annotated[bool, typer.Option(help="Compare with PyTorch, where it is installed.")] = True,
    device: Annotated[str | None, typer.Option(help="A device id or a part of its name.")] = None,
) -> None:
    """Tune the operator suite on the NVIDIA GPU of this machine, and compare side by side.

    With the plain baseline, one configuration for all shapes, each shape's own, PyTorch eager and compiled, the time
    that the device's measured ceilings allow, and figures of production kernels.
    """
    from kernelwright.cli.bench_operators import OperatorWords, run_operators

    words = OperatorWords(
        only=tuple(name for names in only or () for name in names.split(",") if name),
        seconds=seconds,
        shape_seconds=shape_seconds,
        rounds=rounds,
        folder=folder,
        file=json_file,
        runs=runs,
        has_torch=torch,
        device=device,
    )
    raise typer.Exit(run_operators(words))


@bench_app.command("attacks", short_help="Attack the evaluator on the device at hand.")
def bench_attacks(
    device: Annotated[str | None, typer.Option(help="A device id or a part of its name.")] = None,
    count: Annotated[int, typer.Option(help="Attacks, all families in turn.", min=0)] = 150,
    honest: Annotated[int, typer.Option(help="Honest kernels, which must be accepted.", min=0)] = 60,
    seed: Annotated[int | None, typer.Option(help="Of the kernels that are drawn (default: random, and told).")] = None,
    families: Annotated[str, typer.Option(help="Only families whose name holds one of these, joined by commas.")] = "",
    out: Annotated[Path | None, typer.Option(help="Write every kernel and what came of it to this JSON file.")] = None,
    *,
    json: JsonFlag = False,
) -> None:
    """Draw attacks on the evaluator and honest kernels at random, and take them through all that a run does.

    Exit status 0 only if no attack was claimed or ended the evaluator, and no honest kernel was refused; else 1.

      kernelwright bench attacks --count 150 --honest 60 --out attacks.json

      kernelwright bench attacks --families memo,table --honest 0 --seed 7
    """
    from kernelwright.bench.attacks.corpus import CorpusPlan
    from kernelwright.cli.bench_attacks import AttackWords, run_attacks

    words = tuple(name for name in families.split(",") if name)
    plan = CorpusPlan(count, honest, seed, words)
    raise typer.Exit(run_attacks(AttackWords(device, plan, out, json)))

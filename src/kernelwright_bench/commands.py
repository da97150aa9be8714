"""The commands of `kernelwright bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelwright.cli.help import GroupedCommand
from kernelwright.cli.words import JobsOption, JsonFlag, QuietFlag, RolesOption

bench_app = typer.Typer(no_args_is_help=True, help="Measure Kernelwright itself: searchers, spaces, its evaluator.")


def add_commands(app: typer.Typer) -> None:
    """Add them to those of the package."""
    app.add_typer(bench_app, name="bench")


@bench_app.command("search", short_help="Score searchers on recorded spaces.")
def bench_search(
    recordings: Annotated[
        list[Path],
        typer.Argument(
            help="Recorded spaces, or folders of them: KERNEL__DEVICE.npz with KERNEL.json (T1) beside, Kernel Tuner "
            "cache files, T4 results; JSON may be compressed (.json.gz).",
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
    objective: Annotated[
        list[str] | None,
        typer.Option(
            help="Which values are best where a recording's objective does not say so: NAME=lowest or NAME=highest.",
            metavar="NAME=BEST",
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write curves of the best found: .svg or .html.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for repeats, results.json, results.md, curves.svg; what is there stays.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Go on with what --out holds already.")] = False,
    *,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Score searchers on recorded spaces by the auto-tuning community's methodology.

    Each evaluation costs what it cost when it was recorded, plus the searcher's own time. 1 is the optimum from the
    start, 0 is random search. For example:

      kernelwright bench search recordings --searcher auto --searcher random --repeats 20 --jobs 2

      kernelwright bench search gemm.json --searcher auto --searcher optuna:tpe --plot gemm.svg
    """
    from kernelwright_bench.search.command import SearchWords, run_search

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
        objectives=tuple(objective or ()),
    )
    raise typer.Exit(run_search(words))


@bench_app.command("space", short_help="Measure how long feasible spaces take to build.")
def bench_space(
    space: Annotated[list[str] | None, typer.Option(help="One space; may be repeated (default: all).")] = None,
    limit: Annotated[float, typer.Option(help="Seconds for one measurement.", min=0.1)] = 60.0,
    *,
    large: Annotated[bool, typer.Option(help="With the large spaces, which take minutes the other ways.")] = True,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Measure how long feasible spaces take to build, against python-constraint2 and brute force."""
    from kernelwright_bench.space.command import run_space

    raise typer.Exit(run_space(tuple(space or ()), limit_s=limit, has_large=large, is_json=json))


@bench_app.command("policies", short_help="Compare selection policies in simulated worlds.")
def bench_policies(
    policies: Annotated[
        str, typer.Option(help="Joined by commas, as for `bench compare`; the first is compared with all.")
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
    quiet: QuietFlag = False,
) -> None:
    """Compare selection policies in simulated worlds of attempts, at equal budget, without a model or a device.

    Prints mean speedups with intervals, spread, paired tests (Holm) and cost.

      kernelwright bench policies --repeats 1000 --jobs 4
    """
    from kernelwright_bench.policies.command import PoliciesWords, run_policies

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
    from kernelwright_bench.operators.command import OperatorWords, run_operators

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


@bench_app.command("module", short_help="Time a PyTorch module's answer beside PyTorch.")
def bench_module(
    run: Annotated[Path, typer.Argument(help="A run of a module's program.", show_default=False)],
    rounds: Annotated[int, typer.Option(help="Of timing everything in turns.", min=6)] = 30,
    *,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Time a run's ModelNew and PyTorch in turns: eager, compiled, max-autotune; the first call apart.

    Each figure is of whole calls, with all that Python does around the kernels.
    """
    from kernelwright_bench.modules.command import run_module

    run_module(run, rounds=rounds, is_json=json)


@bench_app.command("kernelbench", short_help="Answer problems of a KernelBench checkout, and judge the answers.")
def bench_kernelbench(
    checkout: Annotated[Path, typer.Argument(help="Folder of KernelBench's repository.", show_default=False)],
    level: Annotated[int, typer.Option(help="Of the problems.", min=1, max=4)] = 1,
    ids: Annotated[str, typer.Option(help="Their numbers: 1,5,10-12 (default: all).")] = "",
    budget: Annotated[str, typer.Option(help="Of each problem, as for `optimize`.")] = "120s",
    model: Annotated[str, typer.Option(help="Who proposes, as for `optimize`.")] = "rules",
    device: Annotated[str | None, typer.Option(help="A device id or a part of its name.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the records; what has one is not run again.")] = Path(
        "kernelbench"
    ),
    rounds: Annotated[int, typer.Option(help="Of timing an answer and PyTorch in turns.", min=6)] = 30,
    modes: Annotated[
        str, typer.Option(help="Of torch.compile, to time beside eager: compiled, max-autotune, both or none.")
    ] = "compiled",
    timeout: Annotated[float, typer.Option(help="Most seconds for each judgement of an answer.", min=1.0)] = 900.0,
    together: Annotated[int, typer.Option(help="Problems that get their answers side by side, on a GPU.", min=1)] = 1,
    *,
    library: Annotated[bool, typer.Option("--library", help="As for `init`.")] = False,
    algebra: Annotated[bool, typer.Option("--algebra", help="As for `init`.")] = False,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Import, lower, optimise and export each problem, compare with PyTorch, and ask the official evaluator.

    The table has every problem, with the reason where there is no answer, and each disagreement of the two judgements.

      kernelwright bench kernelbench KernelBench --level 1 --ids 12,40,88 --budget 60s --out kernelbench
    """
    from kernelwright_bench.modules.kernelbench import KernelBenchWords, run_kernelbench

    words = KernelBenchWords(
        checkout, level, ids, budget, model, device, out, rounds, modes, timeout, json, library, together,
        algebra,
    )  # fmt: skip
    raise typer.Exit(run_kernelbench(words))


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
    quiet: QuietFlag = False,
) -> None:
    """Draw attacks on the evaluator and honest kernels at random, and take them through all that a run does.

    Exit status 0 only if no attack was claimed or ended the evaluator, and no honest kernel was refused; else 1.

      kernelwright bench attacks --count 150 --honest 60 --out attacks.json

      kernelwright bench attacks --families memo,table --honest 0 --seed 7
    """
    from kernelwright_bench.attacks.command import AttackWords, run_attacks
    from kernelwright_bench.attacks.corpus import CorpusPlan

    words = tuple(name for name in families.split(",") if name)
    plan = CorpusPlan(count, honest, seed, words)
    raise typer.Exit(run_attacks(AttackWords(device, plan, out, json)))


@bench_app.command("compare", cls=GroupedCommand, short_help="Run policies and models several times, and compare.")
def bench_compare(
    problems: Annotated[
        list[Path], typer.Argument(help="problem.toml, or the folder that holds it; several.", show_default=False)
    ],
    policies: Annotated[
        str,
        typer.Option(
            help="Joined by commas: default, lift, direct, stark, stark-untuned, best-of-n, reflexion, greedy, "
            "tune-only, random. The first is what the others are compared with."
        ),
    ] = "default,direct",
    models: Annotated[str, typer.Option(help="Joined by commas, each as for `optimize --model`.")] = "rules",
    memory: Annotated[
        str, typer.Option(help="What earlier runs have learnt: off, read, on; several are compared too.")
    ] = "off",
    repeats: Annotated[int, typer.Option(help="Runs of each, with seeds from --seed.", min=1)] = 3,
    budget: Annotated[str, typer.Option(help="Of each run, as for `optimize`.")] = "120s",
    out: Annotated[Path, typer.Option(help="Folder of the runs; what is finished there is not run again.")] = Path(
        "compare"
    ),
    start: Annotated[str, typer.Option(help="all or baseline, as for `optimize`.")] = "all",
    searcher: Annotated[str, typer.Option(help="Of each structure's parameters; as for `tune`.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of the first repeat.", min=0)] = 0,
    device: Annotated[str | None, typer.Option(help="Device id or a part of its name.")] = None,
    jobs: JobsOption = None,
    cache: Annotated[str | None, typer.Option(help="Cache before each timed launch: hot or cold.")] = None,
    finalists: Annotated[int, typer.Option(help="How many each run measures again at its end.", min=1)] = 5,
    rounds: Annotated[
        int, typer.Option(help="Interleaved rounds of each run's final comparison.", min=5, max=10_000)
    ] = 20,
    max_cost: Annotated[str | None, typer.Option(help="Most money for each run's replies, e.g. 5usd.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens of each run.")] = None,
    max_attempts: Annotated[int | None, typer.Option(help="Most structures that each run asks for.", min=1)] = None,
    roles: RolesOption = None,
    runner: Annotated[str, typer.Option(help="spool:DIR, as for `optimize`.")] = "",
    *,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Run policies, models and memory on problems several times, under the same budget, and compare what they find.

    Interleaved and in pairs: means, spread, intervals, tests, correct attempts and cost. For example:

      kernelwright bench compare transpose --policies default,stark,best-of-n --repeats 5 --budget 90s
    """
    from kernelwright.cli.commands.optimize import OptimizeWords
    from kernelwright_bench.compare.command import CompareWords, run_compare

    base = OptimizeWords(
        problem=Path(),
        budget=budget,
        model="rules",
        policy="gain",
        start=start,
        searcher=searcher,
        seed=seed,
        device=device,
        jobs=jobs,
        run=None,
        cache=cache,
        finalists=finalists,
        rounds=rounds,
        is_json=json,
        writes_report=False,
        max_cost=max_cost,
        max_tokens=max_tokens,
        max_attempts=max_attempts,
        runner=runner,
    )
    words = CompareWords(tuple(problems), policies, models, memory, repeats, out, base, json, roles)
    raise typer.Exit(run_compare(words))

"""The command line: parses words, calls the library, prints. Heavy imports happen inside the commands."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kernelwright.cli.bench import add_bench
from kernelwright.cli.help import GroupedCommand, RootGroup
from kernelwright.cli.optimize_words import (
    BlockOption,
    BudgetOption,
    GridOption,
    KernelArgument,
    MaxAttemptsOption,
    MaxCostOption,
    MaxTokensOption,
    MemoryFlag,
    ModelOption,
    PartOption,
    PolicyOption,
    ProblemOption,
    ProfileOption,
    RepeatedRunOption,
    SearcherOption,
    StartOption,
    ValuesArgument,
)
from kernelwright.cli.words import (
    CacheOption,
    DeviceOption,
    FinalistsOption,
    InFlightOption,
    JobsOption,
    JsonFlag,
    NewRunOption,
    QuietFlag,
    ReportFlag,
    RolesOption,
    RoundsOption,
    RunArgument,
    RunnerOption,
    SeedOption,
    print_written,
)
from kernelwright.errors import InfrastructureError, KernelwrightError, UsageError

app = typer.Typer(
    name="kernelwright",
    cls=RootGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help starts in a third of the time
    pretty_exceptions_enable=False,
    help=(
        "Make a GPU kernel faster, and prove it: every candidate is checked, every speedup has an interval.\n\n"
        "Start with:  kernelwright optimize my_kernel.cl n=1000000;  without a kernel:  kernelwright demo"
    ),
)

MOST_SHOWN = 1000
"""Characters of one line of an error's message."""


class _ShowGroup(typer.core.TyperGroup):
    """`show RUN` and `show RUN NODE` without the word for what they show."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command, put in front of a run that was named without one."""
        words = [each for each in args if not each.startswith("-")]
        if words and words[0] not in self.commands and Path(words[0]).is_dir():
            args = ["node" if len(words) > 1 else "run", *args]
        return super().resolve_command(ctx, args)


show_app = typer.Typer(
    no_args_is_help=True,
    cls=_ShowGroup,
    help="Look at what is on disk: runs, structures, candidates.",
)
app.add_typer(show_app, name="show")
memory_app = typer.Typer(no_args_is_help=True, help="What runs have learnt, kept for later ones.")
app.add_typer(memory_app, name="memory")
add_bench(app)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from kernelwright.version import VERSION

        typer.echo(f"kernelwright {VERSION}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and leave.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Tune GPU kernels."""
    del version  # its callback has printed it


@app.command(short_help="Say what works here, and what to install for what does not.")
def doctor(*, json: JsonFlag = False, quiet: QuietFlag = False) -> None:
    """Say what works here, and for each thing that does not: why, and what to install.

    Exit status 0 when at least one device can be used and caches and scratch files can be written, 1 otherwise.
    """
    from kernelwright.cli.commands.doctor import run_doctor

    raise typer.Exit(run_doctor(is_json=json))


@app.command(cls=GroupedCommand, short_help="Make an example's kernel faster, to see how it works.")
def demo(
    example: Annotated[str, typer.Argument(help="As `init --example` lists them.")] = "matmul",
    budget: Annotated[str, typer.Option(help="When to stop, as for `optimize`.")] = "90s",
    device: DeviceOption = None,
    run: NewRunOption = None,
    *,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Make the plain kernel of an example faster on this machine's device: rules rewrite it, a search tunes it.

    The same as `init --example matmul` and then `optimize matmul --start baseline --budget 90s`.
    """
    from kernelwright.examples import example_folder

    folder = example_folder(example)
    if not quiet:
        plain = next(folder.glob("baseline.*"))
        typer.echo(f"optimising {plain}\nyour own kernel: kernelwright optimize KERNEL NAME=SIZE ...", err=True)
    optimize(problem=folder, budget=budget, start="baseline", device=device, run=run, json=json, quiet=quiet)


@app.command(cls=GroupedCommand, short_help="Write the problem of a plain kernel, to look at or correct.")
def init(
    source: Annotated[
        Path | None,
        typer.Argument(
            help="A kernel (.cl, .cu, .hip, Triton .py), a T1 file or a definition (.json), or a PyTorch module (.py).",
            show_default=False,
        ),
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(help="By-value arguments, as in rows=2048 eps=1e-5 (default: guessed).", show_default=False),
    ] = None,
    entry: Annotated[str | None, typer.Option(help="Which kernel, if the file has several.")] = None,
    grid: Annotated[str | None, typer.Option(help="Blocks along x, y, z, as in 64,8 or rows.")] = None,
    block: Annotated[str | None, typer.Option(help="Threads of a block along x, y, z.")] = None,
    suite: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="SOURCE is a program of polybench or hecbench, or a definition of flashinfer-trace or sol-execbench.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write into (default: the kernel's name).")] = None,
    call: Annotated[
        Path | None,
        typer.Option(
            help="Of a Triton file: the call to watch (default: its own example()).", metavar="FILE::FUNCTION"
        ),
    ] = None,
    *,
    example: Annotated[
        bool, typer.Option("--example", help="Write the example of this name, e.g. matmul; without a name, list all.")
    ] = False,
    library: Annotated[
        bool,
        typer.Option("--library", help="Of a PyTorch module: products, convolutions and attention by its library."),
    ] = False,
    algebra: Annotated[
        bool,
        typer.Option("--algebra", help="Of a PyTorch module: rewrites that are exact for all inputs and weights."),
    ] = False,
    triton: Annotated[
        bool,
        typer.Option("--triton", help="Of plain kernels in C: a template in Triton, beside them as baseline."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Write the problem of a plain kernel: arguments, launch and sizes from its text, guesses marked as such.

    From a T1 file, the auto-tuning community's input format, come parameters, conditions, launch and sizes. A PyTorch
    module, with Model, get_inputs and get_init_inputs as KernelBench has them, becomes a program of plain kernels. So
    does a definition of FlashInfer-Trace or SOL-ExecBench, for all its workloads.

    Examples:  kernelwright init saxpy.cl n=1000000;  kernelwright init gemm.json;  kernelwright init --example matmul
    """
    if example:
        from kernelwright.cli.commands.examples import run_examples

        name = source.as_posix() if source is not None else None
        run_examples(name, entry=entry, out=out, is_forced=force, is_json=json)
        return
    if source is None:
        raise UsageError(
            "no kernel was named", hint="say `kernelwright init KERNEL.cl`, or `kernelwright init --example` for a list"
        )
    from kernelwright.cli.commands.infer import KernelWords
    from kernelwright.cli.commands.init import run_init

    said = KernelWords(source, tuple(words or ()), entry, grid, block, out, call, library, algebra, triton)
    run_init(said, is_forced=force, is_json=json, suite=suite)


@app.command(short_help="Print what is understood of a kernel, and what is not.")
def analyse(
    kernel: Annotated[
        Path, typer.Argument(help="A kernel source (.cl, .cu, .hip, .py) or a problem.", show_default=False)
    ],
    entry: Annotated[str | None, typer.Option(help="Which kernel (default: all of the file).")] = None,
    *,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Print what is understood of a kernel: its indices, loops, memory accesses, pattern, and what is not understood.

    Example:  kernelwright analyse softmax/baseline.cl
    """
    from kernelwright.cli.commands.analyse import run_analyse

    run_analyse(kernel, entry=entry, is_json=json)


@app.command(cls=GroupedCommand, short_help="Search a template's parameters on a device.")
def tune(
    problem: Annotated[Path, typer.Argument(help="problem.toml, or the folder that holds it.", show_default=False)],
    budget: Annotated[
        str,
        typer.Option(help="When to stop: 200 (evaluations), 90s, 5m, 1h, no-gain, gain<1%, floor>97%, or several."),
    ] = "60s",
    searcher: Annotated[str, typer.Option(help="auto, random, exhaustive, local, evolution, surrogate.")] = "auto",
    option: Annotated[list[str] | None, typer.Option(help="A searcher's option, NAME=VALUE; may be repeated.")] = None,
    seed: SeedOption = 0,
    device: DeviceOption = None,
    jobs: JobsOption = None,
    run: NewRunOption = None,
    replay: Annotated[
        Path | None, typer.Option(help="Answer from this recorded run: no device is touched.", metavar="RUN")
    ] = None,
    prior: Annotated[
        list[Path] | None, typer.Option(help="Start from what this earlier run found; may be repeated.", metavar="RUN")
    ] = None,
    cache: CacheOption = None,
    finalists: FinalistsOption = 5,
    rounds: RoundsOption = 20,
    *,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    report: ReportFlag = True,
) -> None:
    """Search a template's parameters on a device: live progress, a table, a report and the tuned kernel.

    For example:

      kernelwright tune matmul --budget 90s

      kernelwright tune problem.toml --budget 200 --searcher evolution --option population_count=24

      kernelwright tune problem.toml --replay runs/matmul-1 --searcher random --budget 100
    """
    from kernelwright.cli.commands.tune import TuneWords, run_tune

    words = TuneWords(
        problem=problem,
        budget=budget,
        searcher=searcher,
        options=tuple(option or ()),
        seed=seed,
        device=device,
        jobs=jobs,
        run=run,
        replay=replay,
        priors=tuple(prior or ()),
        cache=cache,
        finalists=finalists,
        rounds=rounds,
        is_json=json,
        writes_report=report,
    )
    raise typer.Exit(run_tune(words))


@app.command(cls=GroupedCommand, short_help="Make your kernel faster: a file and its sizes are enough.")
def optimize(
    problem: KernelArgument = None,
    words: ValuesArgument = None,
    grid: GridOption = None,
    block: BlockOption = None,
    out: ProblemOption = None,
    replay: RepeatedRunOption = None,
    budget: BudgetOption = "120s",
    profile: ProfileOption = None,
    model: ModelOption = "rules",
    max_cost: MaxCostOption = None,
    max_tokens: MaxTokensOption = None,
    max_attempts: MaxAttemptsOption = None,
    roles: RolesOption = None,
    policy: PolicyOption = "gain",
    start: StartOption = "all",
    searcher: SearcherOption = "auto",
    seed: SeedOption = 0,
    device: DeviceOption = None,
    jobs: JobsOption = None,
    run: NewRunOption = None,
    runner: RunnerOption = "",
    in_flight: InFlightOption = None,
    part: PartOption = None,
    cache: CacheOption = None,
    finalists: FinalistsOption = 5,
    rounds: RoundsOption = 20,
    *,
    memory: MemoryFlag = True,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    report: ReportFlag = True,
) -> None:
    """Rewrite a plain kernel and tune what comes of it: structures and parameters under one budget.

    Never worse than the baseline: without a significant gain the baseline is kept, and the evidence shown.

      kernelwright optimize layer_norm.cl rows=2048 hidden=1024 eps=1e-5

      kernelwright optimize matmul --start baseline --budget 120s

    Several problems share one budget, which goes where it is expected to save most of all their time:

      kernelwright optimize softmax.cu rows=4096 gemm norm --budget 2h --profile trace.json
    """
    from kernelwright.evaluate.device.probe import begun_probes

    is_here = not runner and str(problem).partition("::")[0].endswith(".cl")
    with begun_probes(*(["opencl"] if is_here else [])) as begun:  # loads its driver beside what is imported here
        from kernelwright.cli.batch.command import run_batch
        from kernelwright.cli.batch.words import batch_words
        from kernelwright.cli.commands.infer import KernelWords, inferred_problem
        from kernelwright.cli.commands.optimize import OptimizeWords, require_problem, run_optimize, run_replay_optimize

        if replay is not None and problem is None:
            raise typer.Exit(run_replay_optimize(replay, run=run, is_json=json, writes_report=report))
        said = KernelWords(require_problem(problem, replay), tuple(words or ()), grid=grid, block=block, out=out)
        several = batch_words(said)
        if several is None and profile is not None:
            raise UsageError("--profile divides a budget among several problems, and one is named", hint="leave it out")
        problem = inferred_problem(said, is_silent=json or quiet) if several is None else said.source
        optimize_words = OptimizeWords(
            problem=problem, budget=budget, model=model, policy=policy, memory="on" if memory else "off", start=start,
            searcher=searcher, seed=seed, device=device, jobs=jobs, run=run, cache=cache, finalists=finalists,
            rounds=rounds, is_json=json, writes_report=report, max_cost=max_cost, max_tokens=max_tokens, runner=runner,
            in_flight=in_flight, part=part, max_attempts=max_attempts, roles=roles,
        )  # fmt: skip
        if several is not None:
            begun.close()  # each problem asks for itself
            raise typer.Exit(run_batch(optimize_words, several, profile))
        raise typer.Exit(run_optimize(optimize_words, begun))


@app.command(cls=GroupedCommand, short_help="Do on this machine's device what another machine asks for.")
def worker(
    spool: Annotated[Path, typer.Option(help="The folder between the two machines.", show_default=False)],
    device: Annotated[
        str | None, typer.Option(help="Device id or a part of its name (default: as the requests say).")
    ] = None,
    limit: Annotated[str | None, typer.Option(help="Begin no request after so long, e.g. 8m.")] = None,
    *,
    runner: Annotated[
        str, typer.Option(help="Where the devices are: ray, ray:HOST:PORT, slurm:WORDS (default: here).")
    ] = "",
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when no request is left.")] = False,
    create: Annotated[bool, typer.Option("--create", help="Make the folder if it is not there.")] = False,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Build, check, tune and time on this machine's device what `optimize --runner spool:DIR` asks for elsewhere.

    Whoever writes to the spool decides what runs here: kernels, and a problem's own reference. For example:

      kernelwright worker --spool spool --until-idle
    """
    from kernelwright.cli.commands.worker import WorkerWords, run_worker

    raise typer.Exit(run_worker(WorkerWords(spool, until_idle, device, limit, create, json, runner)))


@app.command(cls=GroupedCommand, short_help="Serve a coding agent: eight tools, over MCP.")
def mcp(
    workspace: Annotated[
        Path | None, typer.Argument(help="The folder of kernels and problems.", show_default=False)
    ] = None,
    budget: Annotated[str, typer.Option(help="Time of the device for all that it asks.")] = "30m",
    runs: Annotated[
        Path | None, typer.Option(help="Where its runs are made, outside of the folder (default: the user's data).")
    ] = None,
    device: DeviceOption = None,
    *,
    skill: Annotated[bool, typer.Option("--skill", help="Print the skill file for coding agents, and leave.")] = False,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Serve a coding agent on standard input and output, by the Model Context Protocol.

    It can start runs and propose sources; the referee measures. What lies in the folder now is what is measured.

      kernelwright mcp kernels --budget 1h
    """
    from kernelwright.cli.outside.mcp import run_mcp

    run_mcp(workspace, budget=budget, runs=runs, device=device, is_skill=skill, is_json=json)


@app.command(short_help="Continue a run after a crash, Ctrl-C or power cut.")
def resume(
    run: RunArgument,
    runner: Annotated[str, typer.Option(help="Other devices than the run has asked so far, as of `optimize`.")] = "",
    *,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Continue a run after a crash, Ctrl-C or power cut, to the end of its own budget.

    At most the evaluation that was in flight is lost. A finished run is only shown.
    """
    from kernelwright.batch.record import is_batch
    from kernelwright.cli.commands.optimize import run_resume_optimize
    from kernelwright.cli.commands.tune import run_resume
    from kernelwright.results.optimize_result import is_optimize_run
    from kernelwright.store.view import RunView

    if is_batch(run):
        from kernelwright.cli.batch.command import run_resume_batch

        raise typer.Exit(run_resume_batch(run, is_json=json))
    if is_optimize_run(RunView.read(run)):
        raise typer.Exit(run_resume_optimize(run, is_json=json, runner=runner))
    if runner:
        raise UsageError("a run of `tune` is measured here", hint="resume it without --runner")
    raise typer.Exit(run_resume(run, is_json=json))


@app.command(short_help="Say what limits a candidate, with the evidence.")
def profile(
    run: RunArgument,
    candidate: Annotated[str, typer.Argument(help="best, an evaluation's index, or the start of an id.")] = "best",
    *,
    counters: Annotated[
        bool, typer.Option(help="Launch it once under Nsight Compute, where that is installed and permitted.")
    ] = True,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Say what limits a candidate, with the evidence: memory, arithmetic, latency, occupancy, spills, access patterns.

    Example:  kernelwright profile runs/silu-1 best
    """
    from kernelwright.cli.commands.profile import run_profile
    from kernelwright.results.optimize_result import tuned_run

    raise typer.Exit(run_profile(tuned_run(run), candidate, is_json=json, reads_counters=counters))


@app.command(short_help="Write the page that explains a run.")
def report(
    run: RunArgument,
    out: Annotated[Path | None, typer.Option(help="File to write (default: RUN/report.html).")] = None,
    *,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Write one self-contained HTML page that explains a run."""
    from kernelwright.batch.record import is_batch
    from kernelwright.cli.output.damage import warn_of_damage
    from kernelwright.report.page import write_report

    if is_batch(run):
        from kernelwright.batch.view import BatchView
        from kernelwright.report.html.batch import write_batch_report

        print_written([write_batch_report(BatchView.read(run), out or run / "report.html")], is_json=json)
        return
    print_written([write_report(run, out or run / "report.html")], is_json=json)
    warn_of_damage(run)


@app.command(short_help="Serve runs to your browser while they grow.")
def watch(
    folder: Annotated[Path, typer.Argument(help="A run, or a folder of runs.", metavar="RUN|DIR")] = Path("runs"),
    port: Annotated[int, typer.Option(help="Port on this machine (default: a free one).", min=0, max=65535)] = 0,
    *,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Serve the report of a run, or of several, as it grows: to this machine alone, to whoever has the address.

    Nothing is written. Ctrl-C ends it. Open the address that is printed; from another machine, forward the port by ssh.
    """
    from kernelwright.cli.outside.watch import run_watch

    run_watch(folder, port=port, is_json=json)


@app.command(short_help="Put two runs side by side: claims, configurations, sources.")
def compare(
    first: RunArgument,
    second: RunArgument,
    out: Annotated[Path | None, typer.Option(help="HTML file to write too.")] = None,
    *,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Put two runs of one problem side by side: what each claims, and in what they differ.

    For example:

      kernelwright compare runs/matmul-1 runs/matmul-2 --out matmul.html
    """
    from kernelwright.cli.commands.compare import run_compare

    run_compare(first, second, out=out, is_json=json)


@app.command(cls=GroupedCommand, short_help="Write the winners for use elsewhere.")
def export(
    run: RunArgument,
    out: Annotated[Path | None, typer.Option(help="Folder to write into (default: RUN/export).")] = None,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            help="source, header, torch, module, json, t4, t1, choice, configs, vllm, sglang, flashinfer-trace, "
            "sol-execbench; "
            "may be repeated (default: all that fit).",
        ),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="Only put the choice into this store, for `check`.", metavar="STORE")
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="What a shape may lose against its best config (default: as probed, else 2%).")
    ] = None,
    *,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Write the winners for use elsewhere: source, C/C++ header, PyTorch operator, JSON, T4 results, T1 input.

    Header, operator and JSON choose a config by sizes; `kernelwright dispatch` measures between the tuned ones.
    """
    from kernelwright.cli.commands.dispatch import parse_loss
    from kernelwright.export.run import export_choice, export_run

    share = parse_loss(loss) if loss is not None else None
    if to is not None:
        if out is not None or formats:
            raise UsageError("--to goes without --out and --format: a store holds choices only")
        print_written([export_choice(run, to, loss=share)], is_json=json)
        return
    print_written(export_run(run, out or run / "export", formats=formats or None, loss=share), is_json=json)


@app.command(cls=GroupedCommand, short_help="Measure whether shipped choices still hold here.")
def check(
    folders: Annotated[
        list[Path], typer.Argument(help="Stores, exported folders or runs.", metavar="FOLDER...", show_default=False)
    ],
    device: DeviceOption = None,
    rounds: RoundsOption = 60,
    loss: Annotated[str, typer.Option(help="What a choice may lose before it counts as slower.")] = "2%",
    junit: Annotated[Path | None, typer.Option(help="JUnit XML file to write too.")] = None,
    *,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Measure shipped choices against their baselines on this machine now, interleaved, at most 60 s a kernel.

    Exit status 0: all hold, or a better choice is known; 1: one is slower or wrong; 2: one could not be checked.

      kernelwright export runs/matmul-1 --to tuned

      kernelwright check tuned --junit check.xml
    """
    from kernelwright.cli.commands.dispatch import parse_loss
    from kernelwright.cli.outside.check import run_check

    status = run_check(folders, device=device, rounds=rounds, loss=parse_loss(loss), junit=junit, is_json=json)
    raise typer.Exit(status)


@app.command(cls=GroupedCommand, short_help="Measure which sizes each of a few configs should serve.")
def dispatch(
    run: RunArgument,
    probe: Annotated[int, typer.Option(help="Shapes to measure beside the tuned ones.", min=0)] = 12,
    loss: Annotated[str, typer.Option(help="What a shape may lose against its best config.")] = "2%",
    ranges: Annotated[
        list[str] | None,
        typer.Option("--range", help="Sizes that matter, NAME=LOW..HIGH[:STEP]; may be repeated.", metavar="RANGE"),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Interleaved rounds on each shape (default: the run's).", min=5, max=10_000)
    ] = None,
    *,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Find the fewest configs that keep every shape near its best, and measure which sizes each should serve.

    The run's best configs are checked and timed on shapes that were not tuned: between the tuned ones, beyond them,
    ragged ones, and where one config overtakes another. For example:

      kernelwright dispatch runs/silu --probe 16 --loss 2% --range tokens=1..4096
    """
    from kernelwright.cli.commands.dispatch import run_dispatch
    from kernelwright.results.optimize_result import tuned_run

    run_dispatch(tuned_run(run), probe=probe, loss=loss, ranges=tuple(ranges or ()), rounds=rounds, is_json=json)


@show_app.command("runs")
def show_runs(
    folder: Annotated[Path, typer.Argument(help="Where the runs are.")] = Path("runs"),
    *,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """List the runs in a folder."""
    from kernelwright.cli.commands.show import print_runs

    print_runs(folder, is_json=json)


@show_app.command("run", short_help="Show one run: results, failures, time.")
def show_run(run: RunArgument, *, json: JsonFlag = False, quiet: QuietFlag = False) -> None:
    """Show one run: its result table, failures and where the time went."""
    from kernelwright.batch.record import is_batch
    from kernelwright.cli.commands.show import print_run
    from kernelwright.cli.output.damage import warn_of_damage

    if is_batch(run):
        from kernelwright.batch.view import BatchView
        from kernelwright.cli.batch.command import print_batch

        print_batch(BatchView.read(run), is_json=json)
        return
    print_run(run, is_json=json)
    warn_of_damage(run)


@show_app.command("attempts", short_help="Show what the attempts of runs came to, as Markdown.")
def show_attempts(
    runs: Annotated[list[Path], typer.Argument(help="Run folders of `optimize`, or folders of them.")],
    *,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Show what attempts came to and cost, and what went wrong most often, as Markdown."""
    from kernelwright.cli.commands.attempts import print_attempts

    print_attempts(runs, is_json=json)


@show_app.command("node", short_help="Show one structure of a run of `optimize`.")
def show_node(
    run: RunArgument,
    node: Annotated[int, typer.Argument(help="Its number, as the tree of `show run` has it.", show_default=False)],
    *,
    replies: Annotated[bool, typer.Option("--replies", help="With every prompt and reply in full.")] = False,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Show one structure: instruction, diff, what was predicted and what came true, landscape, proof, cost, replies."""
    from kernelwright.cli.commands.show import print_node
    from kernelwright.cli.output.damage import warn_of_damage

    print_node(run, node, is_json=json, has_replies=replies)
    warn_of_damage(run, node=node)


@memory_app.command("list", short_help="List what is remembered.")
def memory_list(
    pattern: Annotated[str, typer.Option(help="Only of kernels of this pattern.")] = "",
    device: Annotated[str, typer.Option(help="Only of devices whose name contains this.")] = "",
    run: Annotated[str, typer.Option(help="Only from the run whose id begins so.")] = "",
    problem: Annotated[str, typer.Option(help="Only from the problem of this name.")] = "",
    *,
    expired: Annotated[bool, typer.Option("--expired", help="With those that later measurements contradict.")] = False,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """List what runs have learnt: each claim with its evidence."""
    from kernelwright.cli.commands.memory import Chosen, print_list

    print_list(Chosen(pattern, device, run, problem, has_expired=expired), is_json=json)


@memory_app.command("show", short_help="Show one lesson in full.")
def memory_show(
    lesson: Annotated[str, typer.Argument(help="Its id, or the start of it.", show_default=False)],
    *,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Show one lesson with everything that it rests on, and its template."""
    from kernelwright.cli.commands.memory import print_lesson

    print_lesson(lesson, is_json=json)


@memory_app.command("forget", short_help="Remove lessons for good.")
def memory_forget(
    lessons: Annotated[list[str] | None, typer.Argument(help="Their ids, or the starts of them.")] = None,
    pattern: Annotated[str, typer.Option(help="All of kernels of this pattern.")] = "",
    device: Annotated[str, typer.Option(help="All of devices whose name contains this.")] = "",
    run: Annotated[str, typer.Option(help="All from the run whose id begins so.")] = "",
    problem: Annotated[str, typer.Option(help="All from the problem of this name.")] = "",
    *,
    everything: Annotated[bool, typer.Option("--all", help="Everything.")] = False,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Remove lessons for good: by id, by where they come from, or all."""
    from kernelwright.cli.commands.memory import Chosen, forget

    forget(lessons or (), Chosen(pattern, device, run, problem), is_all=everything, is_json=json)


@show_app.command("candidate", short_help="Show one candidate in full.")
def show_candidate(
    run: RunArgument,
    candidate: Annotated[str, typer.Argument(help="Its index, the start of its id, or 'best'.", show_default=False)],
    *,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Show one candidate: configuration, outcome with its log, samples, what it cost.

    'best' is the baseline, with the reason and its source, where the run kept it.
    """
    from kernelwright.cli.commands.show import print_candidate
    from kernelwright.cli.output.damage import warn_of_damage

    print_candidate(run, candidate, is_json=json)
    warn_of_damage(run)


def main(arguments: list[str] | None = None) -> None:
    """The entry point of `kernelwright` and `kw`: every error becomes one message and an exit status."""
    try:
        app(args=arguments, standalone_mode=True)
    except KernelwrightError as error:
        _fail(str(error), error.exit_status, error)
    except OSError as error:
        # With a file it is a path that someone gave; without, the machine is out of something.
        status = 2 if error.filename is not None else InfrastructureError.exit_status
        _fail(f"{error.strerror or error}{_named(error)}", status, error)


def _named(error: OSError) -> str:
    return "".join(f": {str(name)!r}" for name in (error.filename, error.filename2) if name is not None)


def _fail(message: str, status: int, error: BaseException | None) -> None:
    from kernelwright import knobs

    if error is not None and knobs.show_tracebacks():
        raise error
    with contextlib.suppress(OSError):  # nobody reads it any more
        typer.echo("kernelwright: " + "\n".join(map(_shortened, message.split("\n"))), err=True)
    os._exit(status) if status == 130 else sys.exit(status)


def _shortened(line: str) -> str:
    """A message quotes what was written, however long that is."""
    return line if len(line) <= MOST_SHOWN else f"{line[:MOST_SHOWN]}... ({len(line):,} characters)"


if __name__ == "__main__":
    main()

"""`tune` and `resume`: words in, library calls, tables out."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import shlex
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal, cast

import typer

from kernelwright.backend.interpreter.backend import INTERPRETER
from kernelwright.cli.clock import since_start_s
from kernelwright.cli.output.progress import open_progress
from kernelwright.cli.output.tables import open_console, print_result, summary
from kernelwright.cli.words import is_quiet
from kernelwright.errors import KernelwrightError, StopRun, StoreError, UsageError
from kernelwright.results.optimize_result import tuned_run
from kernelwright.results.tune_result import TuneResult
from kernelwright.store.event import SessionStarted
from kernelwright.store.run_folder import DEFAULT_FOLDER, LOG_NAME, NODES_FOLDER, RunFolder
from kernelwright.store.view import RunView
from kernelwright.template.load import files_as_written, problem_files
from kernelwright.tuning.settings import TuneSettings, bare_number_words, parse_budget
from kernelwright.tuning.tune import TuningProblem, priors_of, replay, resume, tune

REPLAY_AGAIN = "a replay is not resumed: start it again"


@dataclass(frozen=True, slots=True)
class TuneWords:
    """The words of `kernelwright tune`."""

    problem: Path
    budget: str
    searcher: str
    options: tuple[str, ...]
    seed: int
    device: str | None
    jobs: int | None
    run: Path | None
    replay: Path | None
    priors: tuple[Path, ...]
    cache: str | None
    finalists: int
    rounds: int
    is_json: bool
    writes_report: bool

    def settings(self) -> TuneSettings:
        """The settings that the words say.

        Raises:
            UsageError: a word is empty, or makes no sense.
        """
        from kernelwright.cli.words import parse_option

        # An empty path is the current folder, and an empty name fits everything: neither was meant.
        for option, word in (("--device", self.device), ("--searcher", self.searcher), ("--run", self.run)):
            if word is not None and str(word) in ("", "."):
                raise UsageError(f"{option} is empty", hint="leave it out for the default")
        if self.replay is not None and self.device is not None:
            raise UsageError(
                f"--device {self.device} has no effect with --replay: no device is touched",
                hint="leave one of them out",
            )
        return TuneSettings(
            budget=parse_budget(self.budget),
            searcher=self.searcher,
            searcher_options=dict(parse_option(text) for text in self.options),
            seed=self.seed,
            device=self.device,
            build_processes=self.jobs,
            finalists=self.finalists,
            comparison_rounds=self.rounds,
            cache=cast("Literal['hot', 'cold'] | None", self.cache),
        )


def tell_bare_budget(text: str, *, is_json: bool) -> None:
    """Say to a person what a budget without a unit means, which may not be what was meant."""
    words = bare_number_words(text)
    if words and not (is_json or is_quiet()):
        typer.echo(words, err=True)


def run_tune(words: TuneWords) -> int:
    """Tune and show; the exit status is 0 when something passed, 1 when nothing did, 130 when interrupted."""
    settings = words.settings()
    tell_bare_budget(words.budget, is_json=words.is_json)
    if words.device == INTERPRETER:
        return _run_interpreter(words, settings)
    with stopping_in_words(words.run, advice=REPLAY_AGAIN if words.replay is not None else ""):
        note_foreign_priors(words.priors, words.problem)
        with open_progress(is_json=words.is_json) as view:
            priors = priors_of([tuned_run(path) for path in words.priors])
            if words.replay is not None:
                recording = recording_of(words.replay, words.problem)
                result = replay(recording, settings=settings, run=words.run, priors=priors, listener=view)
            else:
                result = tune(
                    words.problem,
                    settings=settings,
                    run=words.run,
                    priors=priors,
                    listener=view,
                    earlier_s=since_start_s(),
                )
        return _show(result, is_json=words.is_json, writes_report=words.writes_report)


def _run_interpreter(words: TuneWords, settings: TuneSettings) -> int:
    """Check configurations where there is no GPU; 0 when one is right, 1 when none is.

    Raises:
        UsageError: an option is of a run, which this makes none of.
    """
    from kernelwright.cli.output.untimed import print_untimed, untimed_data
    from kernelwright.tuning.untimed.interpret import interpret

    for option, word in (("--run", words.run), ("--prior", words.priors), ("--cache", words.cache)):
        if word:
            raise UsageError(
                f"{option} has no effect with --device {INTERPRETER}: nothing is timed, and no run is made",
                hint="leave it out",
            )

    def say(text: str) -> None:
        if not (words.is_json or is_quiet()):
            typer.echo(text, err=True)

    with stopping_in_words(advice="nothing was recorded: start it again"):
        result = interpret(words.problem, settings=settings, say=say)
    if words.is_json:
        typer.echo(json.dumps(untimed_data(result), indent=2))
    else:
        print_untimed(result, open_console())
    return 0 if result.passed else 1


def note_foreign_priors(runs: Sequence[Path], problem: Path) -> None:
    """Say which earlier runs were of another problem: their values go by parameters' names, whatever those mean.

    Raises:
        UsageError: one shares no parameter with the problem, so that nothing of it can be used.
        StoreError: one of them is no run.
    """
    if not runs:
        return
    views = [RunView.read(tuned_run(path)) for path in runs]  # first: without a run there is nothing to compare with
    subject = TuningProblem.load(problem)
    own = {parameter.name for parameter in subject.template.parameters}
    for path, view in zip(runs, views, strict=True):
        name, theirs = view.started.problem_name, view.started.space.get("parameters", {})
        if not own & set(theirs):
            has = f"it has {', '.join(theirs)}" if theirs else "it has none"
            raise UsageError(
                f"--prior {path} shares no parameter with this problem: {has}",
                hint=f"it is a run of {name!r}; name one of this problem, or leave it out",
            )
        if name != subject.problem.name and not is_quiet():
            shared = ", ".join(sorted(own & set(theirs)))
            typer.echo(f"note: --prior {path} is a run of {name!r}; what it tells is taken for {shared}", err=True)


def recording_of(run: Path, problem: Path) -> Path:
    """The run that a replay answers from, if `problem` is what was recorded there.

    Raises:
        UsageError: it is another problem, or its files have changed.
    """
    recording = tuned_run(run)  # first, because without a run there is nothing to compare with
    subject = TuningProblem.load(problem)
    was = RunView.read(run).started.problem_name
    problem_then = dataclasses.replace(subject.problem, name=was)  # its folder may be called otherwise now
    files = dict(problem_files(problem_then, subject.template, subject.baseline))
    as_written = dict(files_as_written(subject.problem, subject.template, subject.baseline))  # older runs froze these
    # A node of `optimize` has a problem of its own, made from that of the run that it belongs to.
    whole = run.absolute().parent.parent if run.absolute().parent.name == NODES_FOLDER else None
    known = [run, recording, *([whole] if whole is not None and (whole / LOG_NAME).exists() else [])]
    recorded = [RunFolder.open(path, writable=False).problem_files() for path in dict.fromkeys(known)]
    if files not in recorded and as_written not in recorded:
        first = recorded[0]
        differing = sorted(name for name in files.keys() | first.keys() if files.get(name) != first.get(name))
        what = f"the problem {was!r}" if was != subject.problem.name else f"other contents of {', '.join(differing)}"
        raise UsageError(
            f"{problem} is not what {run} recorded: that was {what}",
            hint=f"replay what was recorded: {RunFolder.open(run, writable=False).problem_dir}",
        )
    return recording


def run_resume(run: Path, *, is_json: bool) -> int:
    """Resume and show; exit status as for `run_tune`."""
    with stopping_in_words(run):
        with open_progress(is_json=is_json) as view:
            result = resume(run, listener=view)
        return _show(result, is_json=is_json, writes_report=True)


def _show(result: TuneResult, *, is_json: bool, writes_report: bool) -> int:
    written, failure = _write_files(result) if writes_report else ([], None)
    if is_json:
        typer.echo(json.dumps({**summary(result), "files": [str(path) for path in written]}, indent=2))
    else:
        console = open_console()
        print_result(result, console)
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
    return 0 if result.view.passed else 1


def _write_files(result: TuneResult) -> tuple[list[Path], KernelwrightError | None]:
    """Write report and exports; what was written, and the first thing that went wrong."""
    from kernelwright.export.run import export_run, usual_formats
    from kernelwright.report.page import write_report

    folder = result.folder
    assert folder is not None
    written: list[Path] = []
    try:
        written.append(write_report(folder, folder / "report.html"))
        if result.best_config is not None:
            written += export_run(folder, folder / "export", formats=usual_formats(folder))
    except KernelwrightError as error:
        return written, error
    return written, None


@contextlib.contextmanager
def stopping_in_words(run: Path | None = None, *, advice: str = "") -> Iterator[None]:
    """SIGTERM stops like Ctrl-C: cleanly, with the best so far. An interrupt that no run recorded ends in one line.

    Args:
        run: the run folder; None: one that is made meanwhile where runs are made by themselves.
        advice: what to do about an interrupt, where it is not to resume a run.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    known = _folders() if run is None and not advice else frozenset()
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        begun = run if run is not None and _has_event(run / LOG_NAME) else None
        if run is None and not advice:
            begun = next((path for path in sorted(_folders() - known) if _is_ours(path)), None)
        raise StopRun("interrupted", hint=advice or _resume_words(begun)) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _folders() -> frozenset[Path]:
    """Run folders that nobody named."""
    return frozenset(DEFAULT_FOLDER.iterdir()) if DEFAULT_FOLDER.is_dir() else frozenset()


def _resume_words(begun: Path | None) -> str:
    """How to go on with the interrupted command's run; None: nothing of it was recorded."""
    if begun is None:
        return "nothing was recorded yet: start it again"
    return f"continue with `kernelwright resume {shlex.quote(str(begun))}`"


def _is_ours(run: Path) -> bool:
    """Whether this process has begun the run: commands that go on at the same time make theirs in the same folder."""
    try:
        first = itertools.islice(RunFolder.open(run, writable=False).read(), 2)
        return any(isinstance(event, SessionStarted) and event.process_id == os.getpid() for event in first)
    except StoreError:
        return False


def _has_event(log: Path) -> bool:
    """Whether a whole event was written: what has none cannot be resumed."""
    try:
        with log.open("rb") as file:
            return file.readline().endswith(b"\n")
    except OSError:
        return False

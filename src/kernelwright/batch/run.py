"""Runs a batch: slice by slice, the next one where it is expected to gain most for its time.

```
view = optimize_batch([Path("gemm"), Path("norm")], settings=settings, times=read_profile(Path("trace.json")))
view = resume_batch(view.folder)        # after a kill; without an end of its own it goes on from what is recorded
```
Every slice ends in a final comparison, so that each run has its claim whenever the batch ends. A problem's slices grow
with what it has had, so that comparisons take a bounded part of the time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Self

from kernelwright.agent.base import Agent
from kernelwright.batch import record
from kernelwright.batch.profile import shares_of
from kernelwright.batch.record import BatchMember, Slice
from kernelwright.batch.view import BatchView, MemberView
from kernelwright.errors import BudgetTooShort, KernelwrightError, UsageError, UserError
from kernelwright.optimization.optimize import machine_for, optimize, resume_optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.remote.client import SpoolMachine
from kernelwright.remote.in_flight import BackgroundTask, Steps
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.store.event import INTERRUPTED, Event
from kernelwright.store.lock import WriterLock
from kernelwright.store.run_folder import default_run_path
from kernelwright.tuning.listener import Progress, SilentListener
from kernelwright.tuning.machine import Machine
from kernelwright.tuning.settings import Budget
from kernelwright.tuning.time_spent import FINALS, SET_UP
from kernelwright.tuning.tune import TuningProblem

LEAST_S = 20.0
"""A shorter slice has hardly time for a comparison. A guess."""

NO_FAILURES: Mapping[Path, KernelwrightError] = MappingProxyType({})

NOTHING: Mapping[str, float] = MappingProxyType({})

MOST_FIRST_S = 120.0
"""The first slice of a problem is no longer: as long as a run without words. A guess."""


MOST_AT_ONCE = 8
"""Problems under way on a cluster: each has several structures there."""

FINALS_TIMES = 3.0
"""A slice lasts so many times as long as a final comparison at least: else it is for little else. A guess."""


class BatchListener(SilentListener):
    """Hears of a batch, and of the run that is under way, while it is open; as it is, it says nothing."""

    def on_slice(self, view: BatchView, name: str, seconds: float) -> None:
        """So many seconds go to this problem next."""

    def on_slice_end(self, view: BatchView, name: str) -> None:
        """They are spent, or it failed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""


@dataclasses.dataclass(frozen=True, slots=True)
class BatchParts:
    """What runs are made with; tests replace it."""

    machine: Callable[[], Machine | None] = lambda: None
    """For each slice; None: as the settings say."""
    agent: Callable[[], Agent | None] = lambda: None
    now_s: Callable[[], float] = time.monotonic


def optimize_batch(
    problems: Sequence[Path],
    *,
    settings: OptimizeSettings,
    failed: Mapping[Path, KernelwrightError] = NO_FAILURES,
    times: Mapping[str, float] | None = None,
    profile: str = "",
    run: Path | None = None,
    listener: BatchListener | None = None,
    parts: BatchParts | None = None,
    tell: Callable[[str], None] = lambda _text: None,
) -> BatchView:
    """Optimise several problems under one budget.

    Args:
        problems: their folders or TOML files.
        settings: of each run; the budget is that of all together, by the clock, and needs seconds.
        failed: what was to be a problem and is none, and why: told beside the others.
        times: time by kernel, of a profile; None: all problems count the same.
        profile: what the profile is called.
        run: the batch's folder to make; None: `runs/batch-TIME` in the current folder.
        listener: hears of everything.
        parts: machine, agent and clock.
        tell: is told in words what a person should know of the profile.

    Raises:
        UserError: a setting makes no sense, no problem loads, or none is in the profile.
        StoreError: the folder cannot be written.
    """
    if settings.tune.budget.evaluations is not None:
        raise UsageError(
            "evaluations of several problems cannot be added up", hint="say a budget in time: --budget 30m"
        )
    if settings.tune.budget.seconds is None:
        raise UsageError("several problems need a budget in time", hint="say, for example, --budget 30m")
    settings.selection_policy()  # says what is missing before anything is prepared
    loaded = {name: path.absolute() for name, path in _named([*problems, *failed]).items()}
    kernels, wrong = _kernels(loaded, failed)
    if len(wrong) == len(loaded):
        raise next(iter(wrong.values()))
    shares = dict.fromkeys(loaded, 1 / len(loaded))
    if times is not None:
        found, notes = shares_of(times, kernels)
        shares = {name: found.get(name, 0.0) for name in loaded}
        for note in notes:
            tell(note)
    members = [BatchMember(name, str(path), shares[name]) for name, path in loaded.items()]
    folder = _new_folder(run)
    record.create(folder, members, settings, profile)
    for name, error in wrong.items():
        record.append(folder, Slice(name, 0.0, str(error), is_last=True))
    return resume_batch(folder, listener=listener, parts=parts)


def resume_batch(folder: Path, *, listener: BatchListener | None = None, parts: BatchParts | None = None) -> BatchView:
    """Go on with a batch to the end of its budget.

    Raises:
        StoreError: there is none, it is damaged, or another process works on it.
    """
    with _writing(folder):
        listener, parts = _Together(listener or BatchListener()), parts or BatchParts()
        settings = record.read(folder).settings
        with contextlib.ExitStack() as opened:
            where = machine_for(parts.machine(), settings, listener) if settings.runner else None
            machine = opened.enter_context(where) if where is not None else None
            _Loop(folder, listener, parts, machine).run()
    return BatchView.read(folder)


def next_slice(view: BatchView, until_s: Mapping[str, float] = NOTHING) -> tuple[MemberView, float] | None:
    """Whose turn it is, and for how many seconds; None: the time is over, or nothing is left to gain.

    `until_s`: of the problems under way, the seconds that they will have had at the end of their slices.
    """
    members = [each for each in view.members if each.name not in until_s]
    open_members = [each for each in members if each.status in ("waiting", "open")]
    left_s = view.left_s - math.fsum(max(0.0, end_s - view[name].spent_s) for name, end_s in until_s.items())
    if not open_members or (left_s < LEAST_S and (view.spent_s > 0 or until_s)):
        return None
    lengths = {each.name: _length_s(view, each, left_s) for each in open_members}
    chosen = max(open_members, key=lambda each: (each.worth / lengths[each.name], each.status == "waiting", each.share))
    return chosen, lengths[chosen.name]


def _length_s(view: BatchView, member: MemberView, left_s: float) -> float:
    """As long as the first, then as long as what the problem has had; a rest that is too short goes with it.

    In any case so long that most of it is not for the final comparison.
    """
    first_s = max(LEAST_S, min(MOST_FIRST_S, view.batch.budget_s / (2 * len(view.members))))
    grown_s = member.spent_s * (2 if member.failure else 1)  # it may have been too short
    seconds = min(max(first_s, grown_s, FINALS_TIMES * member.seconds_on(FINALS)), left_s)
    return left_s if left_s - seconds < LEAST_S else seconds


class _Together(BatchListener):
    """A listener that is told by one run at a time."""

    def __init__(self, listener: BatchListener) -> None:
        self._listener = listener
        self._lock = threading.RLock()

    def on_slice(self, view: BatchView, name: str, seconds: float) -> None:
        with self._lock:
            self._listener.on_slice(view, name, seconds)

    def on_slice_end(self, view: BatchView, name: str) -> None:
        with self._lock:
            self._listener.on_slice_end(view, name)

    def on_event(self, event: Event, progress: Progress) -> None:
        with self._lock:
            self._listener.on_event(event, progress)

    def on_progress(self, progress: Progress) -> None:
        with self._lock:
            self._listener.on_progress(progress)


class _Loop:
    """One process's work on a batch: slice by slice here, on a cluster beside each other while devices are left."""

    def __init__(
        self, folder: Path, listener: BatchListener, parts: BatchParts, machine: Machine | SpoolMachine | None
    ) -> None:
        """`machine` None: a new one for each slice."""
        self._folder = folder
        self._listener = listener
        self._parts = parts
        self._machine = machine
        self._steps = Steps(MOST_AT_ONCE if isinstance(machine, SpoolMachine) else 1)
        self._until_s: dict[str, float] = {}
        """Of what is under way, what it will have had."""
        self._is_stopped = False

    def run(self) -> None:
        """To the end of the budget, or until a person stops it.

        Raises:
            KernelwrightError: what brings devices has ended; what was under way is recorded first.
        """
        failure: KernelwrightError | None = None
        try:
            while not self._is_stopped:
                while len(self._steps) < self._width() and self._begin_one():
                    pass
                if not self._steps:
                    return
                self._steps.take_one()
        except KeyboardInterrupt:
            if not self._steps:
                raise
            self._is_stopped = True
        except KernelwrightError as error:
            failure = error
        if isinstance(self._machine, SpoolMachine):
            self._machine.stop()
        while self._steps:
            self._steps.take_one()
        if failure is not None:
            raise failure

    def _width(self) -> int:
        """How many problems may be under way: one for each device that is there."""
        if not isinstance(self._machine, SpoolMachine):
            return 1
        return max(1, min(MOST_AT_ONCE, self._machine.device_count()))

    def _begin_one(self) -> bool:
        """Begin a slice; False when there is none to give, or a person has stopped the last."""
        view = BatchView.read(self._folder)
        chosen = None if self._is_stopped else next_slice(view, self._until_s)
        if chosen is None:
            return False
        member, seconds = chosen
        self._until_s[member.name] = member.spent_s + seconds
        self._listener.on_slice(view, member.name, seconds)
        self._steps.begin(member.name, BackgroundTask(lambda: self._slice(view, member, seconds), self._note))
        return True

    def _note(self, done: Slice) -> None:
        """Record what came of a slice; once, though what an interrupt or an error ended is begun again."""
        if done.member not in self._until_s:
            return
        done = dataclasses.replace(done, is_stopped=done.is_stopped or self._is_stopped)
        record.append(self._folder, done)
        del self._until_s[done.member]
        self._is_stopped = self._is_stopped or done.is_stopped
        self._listener.on_slice_end(BatchView.read(self._folder), done.member)

    def _slice(self, view: BatchView, member: MemberView, seconds: float) -> Slice:
        """Work on a problem; what goes wrong is said in what it gives."""
        begin_s, done, spent_s = self._parts.now_s(), Slice(member.name, 0.0), None
        try:
            result = self._work(view, member, seconds)
            done = dataclasses.replace(done, is_stopped=result.reason == INTERRUPTED)
            spent_s = result.view.spent_s
        except KeyboardInterrupt:
            done = dataclasses.replace(done, is_stopped=True)
        except (KernelwrightError, OSError) as error:
            is_last = isinstance(error, UserError) and not isinstance(error, BudgetTooShort)
            done = dataclasses.replace(done, failure=str(error), is_last=is_last)
        seconds = self._parts.now_s() - begin_s
        if spent_s is not None and isinstance(self._machine, SpoolMachine):  # beside others it may wait for a device
            seconds = max(0.0, spent_s - member.spent_s)
        return dataclasses.replace(done, seconds=seconds)

    def _work(self, view: BatchView, member: MemberView, seconds: float) -> OptimizeResult:
        """Spend a slice on a problem's run."""
        own = view.batch.settings.tune.budget
        parts, machine = self._parts, self._machine or self._parts.machine()
        if member.result is None:
            shutil.rmtree(member.folder, ignore_errors=True)  # a kill may have left half of one
            return optimize(
                Path(member.member.problem),
                settings=view.batch.settings.within(_seconds(own, seconds)),
                run=member.folder,
                listener=self._listener,
                machine=machine,
                agent=parts.agent(),
            )
        searched_s = max(LEAST_S / 2, seconds - member.seconds_on(SET_UP))  # which a run's own budget does not cover
        budget = _seconds(own, member.result.view.spent_s + searched_s)
        return resume_optimize(
            member.folder, budget=budget, listener=self._listener, machine=machine, agent=parts.agent()
        )


def _seconds(budget: Budget, seconds: float) -> Budget:
    return dataclasses.replace(budget, seconds=seconds)


def _named(problems: Sequence[Path]) -> dict[str, Path]:
    """The problems by names that are folders of a batch: each one's own, with a number where that is taken."""
    named: dict[str, Path] = {}
    for path in problems:
        stem = path.resolve().name.removesuffix(".toml")
        stem = path.resolve().parent.name if stem == "problem" else stem
        name = next(each for each in _numbered(stem) if each not in named)
        named[name] = path
    return named


def _numbered(stem: str) -> Iterator[str]:
    yield stem
    number = 1
    while True:
        number += 1
        yield f"{stem}-{number}"


def _kernels(
    problems: Mapping[str, Path], failed: Mapping[Path, KernelwrightError]
) -> tuple[dict[str, set[str]], dict[str, KernelwrightError]]:
    """Of each problem that loads, the names of its kernels; why the others do not."""
    kernels: dict[str, set[str]] = {}
    known = {path.absolute(): error for path, error in failed.items()}
    wrong = {name: known[path] for name, path in problems.items() if path in known}
    for name, path in problems.items():
        if name in wrong:
            continue
        try:
            subject = TuningProblem.load(path)
        except KernelwrightError as error:
            wrong[name] = error
            continue
        steps = (*subject.baseline.template.steps, *subject.template.steps)
        kernels[name] = {step.entry.partition("<")[0].strip() for step in steps}
    return kernels, wrong


def _new_folder(run: Path | None) -> Path:
    """The batch's folder, made.

    Raises:
        UsageError: the named one holds something.
    """
    if run is None:
        return default_run_path("batch")
    run.mkdir(parents=True, exist_ok=True)
    if any(run.iterdir()):
        hint = f"continue it with `kernelwright resume {run}`" if record.is_batch(run) else "name another folder"
        raise UsageError(f"the folder {run} holds something already", hint=hint)
    return run


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Inside, no other process works on the batch."""
    record.read(folder)
    lock = WriterLock(folder / "lock")
    lock.acquire()
    try:
        yield
    finally:
        lock.release()

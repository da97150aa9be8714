"""The referee: the only process that runs the reference and says what is right. It never loads a candidate.

```
referee = make_referee(RefereeArgument(problem_file, scratch, seed))     # in a worker process
prepared = referee(PrepareJob("small", dataset))          # input files for the device worker
referee(CalibrateJob("small", dataset, folder))           # the baseline's launch: sets derived tolerances
verdict = referee(JudgeJob("small", dataset, folder))     # a candidate's launch
```

Expected values are those of the reference on float64 versions of exactly the bytes in the input files.
Inputs are made again from the dataset's seed when they were evicted; expected values go to files then.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernelwright.backend.base import Bytes
from kernelwright.backend.redraw import Closeness
from kernelwright.errors import InfrastructureError, ReferenceFailed
from kernelwright.evaluate.data.array_threads import Crew
from kernelwright.evaluate.data.bounds import bounds_of, key_order
from kernelwright.evaluate.data.datasets import Dataset, datasets_for, make_inputs
from kernelwright.evaluate.data.freshness import fresh_inputs, redraw_of
from kernelwright.evaluate.data.layout import BufferLayout, layouts_for
from kernelwright.evaluate.data.tolerance import (
    EXACT,
    Allowance,
    Precision,
    Scale,
    base_allowance,
    baseline_factor_of,
    by_class,
    class_allowance,
    compare,
    declared_allowance,
    hides_downgrade,
    natural_scale,
    perturb,
    perturbation_count,
    widened,
)
from kernelwright.evaluate.device.fast_check import OutputBounds
from kernelwright.evaluate.judge.baseline import baseline_failed, baseline_multiplies_in_tf32
from kernelwright.evaluate.judge.expected import expected_values, loaded_reference
from kernelwright.evaluate.judge.fan_in import fan_in
from kernelwright.evaluate.judge.jobs import (
    CalibrateJob,
    Calibration,
    JudgeJob,
    Judgement,
    Prepared,
    PrepareJob,
    RefereeArgument,
    RestoreJob,
    SideBySide,
    ToleranceJob,
)
from kernelwright.evaluate.judge.judgement import (
    LaunchFolder,
    examine_output,
    find_insane,
    find_not_finite,
    find_unwritten,
    has_same_bytes,
    overflow_hint,
)
from kernelwright.evaluate.judge.kept_results import KeptResults, write_once
from kernelwright.evaluate.judge.kernel_reference import KernelReference
from kernelwright.evaluate.judge.one_at_a_time import one_at_a_time
from kernelwright.evaluate.judge.roundings import SAMPLES, Roundings, is_rounding
from kernelwright.evaluate.process.scratch import full
from kernelwright.evaluate.words import LooseTolerance
from kernelwright.identity import content_id
from kernelwright.problem.dtypes import DTYPES, machine_epsilon
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.model import Problem, Workload
from kernelwright.problem.outcome import Failed, OutputError
from kernelwright.problem.reference import Reference, call_reference

__all__ = [
    "REFEREE_FACTORY",
    "CalibrateJob",
    "Calibration",
    "JudgeJob",
    "Judgement",
    "PrepareJob",
    "Prepared",
    "RefereeArgument",
    "RestoreJob",
    "_Referee",
    "make_referee",
]

REFEREE_FACTORY = "kernelwright.evaluate.judge.referee:make_referee"

LOOSE_FACTOR = 10.0
"""A derived tolerance widened by more than this is worth a note, where narrower arithmetic could pass then."""

SIDE_BY_SIDE = 4
"""Jobs at once, at most: much of a job is one pass after the other over large arrays, in one thread. A guess."""
LONG_FIRST_CALL_S = 0.5
"""Compilers of CPU devices take seconds for a kernel in its first launch."""
BYTES_PER_ELEMENT = 64
"""For all arguments, while a job works: float64 copies of inputs, results, and what they are compared with. A guess."""

EVICTED_SHARE = 4
"""Expected values that are kept in files, as so many times what is kept in memory."""

ROUNDINGS_S = 5.0
"""Samples of what rounding does to a result take so long together; one is always taken. A guess."""
FRESH_FACTOR = 4.0
"""A timed launch may be off by this many times what is allowed on the dataset that its inputs were made from: on these
inputs the baseline's own error is not known. How exact a candidate is shows on the datasets. By 2 a right baseline was
refused for one of 16384 sums of 8192 products in float32; 4 is a guess."""

BEYOND = 1.000001
"""As a fraction of what is allowed: the least of a difference that is not."""

Array = npt.NDArray[Any]
_Key = tuple[str, Dataset]


def make_referee(argument: RefereeArgument) -> Callable[[object], object]:
    """The handler of referee jobs; called in the child process.

    Raises:
        SpecError: the problem or its reference does not load.
    """
    return _Referee(load_problem(argument.problem_file), argument).handle


@dataclass(slots=True)
class _Entry:
    """What is known of one workload and dataset. Arrays are never changed."""

    inputs: dict[str, Array]
    expected: dict[str, Array]
    """By output: float64, or the storage dtype (booleans as bytes) where equality is asked for."""
    failure: ReferenceFailed | None
    roundings: Roundings | None = None
    """Made where a result was outside of its tolerance."""
    made_s: float = 0.0
    """Seconds that inputs and expected values took, whoever asked first."""

    @property
    def byte_count(self) -> int:
        known = sum(values.nbytes for values in (*self.inputs.values(), *self.expected.values()))
        return known + (self.roundings.byte_count if self.roundings else 0)


class _Referee:
    """Handles one job after the other; all state is a cache except the calibrated tolerances."""

    def __init__(self, problem: Problem, argument: RefereeArgument) -> None:
        self._problem = problem
        self._scratch = argument.scratch
        self._seed = argument.seed
        self._cache_bytes = argument.cache_bytes
        self._crew = Crew()
        self._background = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._under_way: dict[SideBySide, Future[tuple[object, ...]]] = {}
        self._memory: dict[str, Bytes] = {}
        """What candidates left, read into the same memory each time; nothing of it is kept after a judgement."""
        self._original = KernelReference(problem) if problem.reference.is_kernel else None
        loaded = loaded_reference(problem) if self._original is None else self._original.as_reference()
        locked, self._waited_s = one_at_a_time(loaded.function)
        self._reference = replace(loaded, function=locked)
        self._lock = threading.Lock()
        """Around `_entries`, `_making` and `_scaling`."""
        self._making: dict[_Key, threading.Lock] = {}
        self._scaling: dict[_Key, threading.Lock] = {}
        self._summing = threading.Lock()
        self._known_scales: dict[tuple[_Key, bool], dict[str, Scale]] = {}
        """By dataset, and whether all perturbations were asked or the first alone."""
        self._workloads = {workload.name: workload for workload in problem.workloads}
        self._layouts = {name: layouts_for(problem, workload) for name, workload in self._workloads.items()}
        self._entries: OrderedDict[_Key, _Entry] = OrderedDict()
        self._call_s: dict[str, float] = {}
        """By workload, seconds of the quickest call of the reference: the first one may start a device or a library."""
        self._evicted = KeptResults(argument.scratch, most_bytes=EVICTED_SHARE * argument.cache_bytes)
        self._allowances: dict[tuple[str, Dataset, str], Allowance] = {}
        self._least: set[tuple[str, Dataset, str]] = set()
        """Allowances by the first perturbation alone: whatever is within them is within those by all, too."""
        self._sum_lengths: dict[str, dict[str, int]] = {}
        self._is_in_tf32 = baseline_multiplies_in_tf32(problem)
        """Whether the baseline asks for TF32 where it multiplies matrices of float32."""
        self._fresh = any(redraw_of(argument) is not None for argument in problem.inputs)
        """Whether anything is drawn anew for timed launches."""
        self._kept: tuple[_Key, dict[str, Array]] | None = None
        """What the launch that was to be kept wrote, and on what."""

    def handle(self, job: object) -> object:
        """Do one job.

        Raises:
            ReferenceFailed: the reference fails on declared inputs.
            BaselineFailed: the baseline is wrong on declared inputs, or writes where it must not on any.
            InfrastructureError: files of the device worker are missing.
            ScratchFull: inputs cannot be written.
        """
        match job:
            case tuple():
                return self._ahead(job)
            case PrepareJob():
                return self._prepare(job)
            case JudgeJob():
                return self._judge(job)
            case CalibrateJob():
                return self._calibrate(job)
            case ToleranceJob(wanted="bounds"):
                return self._write_bounds(job)
            case ToleranceJob():
                return self._limits(job)
            case RestoreJob():
                self._restore(job)
                return None
        raise TypeError(f"not a referee's job: {type(job).__name__}")

    # -- jobs ----------------------------------------------------------------------------------------

    def _ahead(self, jobs: SideBySide) -> tuple[object, ...] | None:
        """Begin the jobs in the background; their answers once they are done, until then None at each question.

        Judgements go on meanwhile: with large arrays a candidate would wait for seconds.
        """
        found = self._under_way.get(jobs)
        if found is None:
            found = self._under_way[jobs] = self._background.submit(self._side_by_side, jobs)
        if not found.done():
            return None
        del self._under_way[jobs]
        return found.result()

    def _side_by_side(self, jobs: SideBySide) -> tuple[object, ...]:
        """The first error comes through; then the others are to be asked for one by one."""
        needed_bytes = max(self._working_bytes(each.workload) for each in jobs)
        width = max(1, min(SIDE_BY_SIDE, len(jobs), self._crew.threads // 2, self._cache_bytes // needed_bytes))
        ahead = dict.fromkeys(each.workload for each in jobs if isinstance(each, PrepareJob) and each.is_ahead)
        with ThreadPoolExecutor(width, thread_name_prefix="side-by-side") as threads:
            replies = [threads.submit(self.handle, each) for each in jobs]
            lengths = [threads.submit(self._lengths_ahead, workload) for workload in ahead]
            for each in lengths:
                each.result()
            return tuple(_share_of(each.result(), width) for each in replies)

    def _working_bytes(self, workload: str) -> int:
        """The memory that one job of the workload needs."""
        elements = sum(layout.byte_count // max(layout.item_bytes, 1) for layout in self._layouts[workload])
        return max(1, BYTES_PER_ELEMENT * elements)

    def _prepare(self, job: PrepareJob) -> Prepared:
        entry = self._entry(job.workload, job.dataset)
        if job.is_ahead and entry.failure is None:
            self._scales(job.workload, job.dataset, entry)
        start_s = time.perf_counter()
        folder = self._scratch / content_id(job.workload, job.dataset)
        files = {name: folder / f"{name}.bin" for name in entry.inputs}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, path in files.items():
                if not path.exists():
                    write_once(path, entry.inputs[name])
        except OSError as error:
            needed_bytes = sum(values.nbytes for values in entry.inputs.values())
            raise full(folder / f"inputs of workload {job.workload!r}", needed_bytes, error) from error
        dropped = self._why_dropped(job.workload, job.dataset, entry)
        made_s = entry.made_s + time.perf_counter() - start_s
        return Prepared(files, dropped, self._call_s.get(job.workload, 0.0), made_s)

    def _judge(self, job: JudgeJob) -> Judgement:
        start_s = time.perf_counter()
        entry = self._entry(job.workload, job.dataset)
        if entry.failure is not None:
            raise entry.failure
        if job.secret is not None and self._fresh:
            entry = self._fresh_entry(job, job.secret, entry)
        reference_s = time.perf_counter() - start_s
        found, errors = self._examine(job, entry)
        judge_ms = (time.perf_counter() - start_s - reference_s) * 1e3
        unjudged = entry.failure.message if entry.failure is not None else ""
        if found is None:
            is_same, difference = self._held_against_original(job)
            return Judgement(None, errors, judge_ms, is_same, difference, reference_s, unjudged)
        is_fresh = job.secret is not None and self._fresh
        data = "inputs drawn anew for this launch" if is_fresh else f"dataset {job.dataset.name!r}"
        failed = replace(found, message=f"{found.message} ({data})", workload=job.workload)
        return Judgement(failed, (), judge_ms, reference_s=reference_s)

    def _examine(self, job: JudgeJob, entry: _Entry) -> tuple[Failed | None, tuple[OutputError, ...]]:
        left = [each for each in self._layouts[job.workload] if each.argument not in job.unchanged]
        launch = LaunchFolder(job.folder, left, crew=self._crew, memory=self._memory)
        found = launch.find_out_of_bounds() or launch.find_changed_input(entry.inputs)
        if found is not None or entry.failure is not None:
            return found, ()
        errors = []
        is_fresh = job.secret is not None and self._fresh
        for layout in self._outputs(job.workload):
            expected = entry.expected[layout.argument]
            allowance = (
                self._fresh_allowance(job, layout, expected)
                if is_fresh
                else self._allowance(job.workload, job.dataset, layout)
            )
            got = launch.read(layout)
            result = examine_output(layout, got, expected, allowance, crew=self._crew)
            is_least = (job.workload, job.dataset, layout.argument) in self._least
            if (is_fresh or is_least) and isinstance(result, Failed) and result.reason == "mismatch":
                allowance = self._whole_allowance(job.workload, job.dataset, layout)
                if is_fresh:
                    allowance = self._fresh_allowance(job, layout, expected, entry)
                result = examine_output(layout, got, expected, allowance, crew=self._crew)
            if isinstance(result, Failed) and result.reason == "mismatch":
                wide = self._with_roundings(job, entry, layout, got, expected, allowance)
                result = examine_output(layout, got, expected, wide, crew=self._crew) if wide else result
            if isinstance(result, Failed):
                return result, ()
            errors.append(result)
        return None, tuple(errors)

    def _with_roundings(
        self, job: JudgeJob, entry: _Entry, layout: BufferLayout, got: Array, expected: Array, allowance: Allowance
    ) -> Allowance | None:
        """A tolerance that knows what rounding does to each element, where that is why `got` differs."""
        if allowance.origin != "derived" or allowance.by_class:
            return None
        if entry.roundings is None:
            entry.roundings = self._roundings(job, entry)
        return is_rounding(got, expected, allowance, layout.argument, entry.roundings, crew=self._crew)

    def _roundings(self, job: JudgeJob, entry: _Entry) -> Roundings:
        place = self._workloads[job.workload]
        derived = self._derived(job.workload)

        def call(
            follow: Callable[[Reference], Reference], change: Callable[[Array], Array]
        ) -> Mapping[str, npt.NDArray[Any]]:
            inputs = {
                name: values if values.dtype.kind in "biu" else change(values) for name, values in entry.inputs.items()
            }
            results = call_reference(follow(self._reference), self._problem, place, inputs)
            return {layout.argument: results[layout.argument] for layout in derived}

        return Roundings(
            entry.expected,
            call,
            epsilon=min(machine_epsilon("float32"), *(machine_epsilon(layout.dtype) for layout in derived)),
            seed=int(content_id("roundings", self._seed, job.workload, job.dataset, job.secret), 16),
            most=max(1, min(SAMPLES, int(ROUNDINGS_S / max(self._call_s.get(job.workload, 0.0), 1e-6)))),
        )

    # -- timed launches ------------------------------------------------------------------------------

    def _fresh_entry(self, job: JudgeJob, secret: int, base: _Entry) -> _Entry:
        """What a timed launch saw, and what it was to write. Nothing of it is kept: it never comes again."""
        inputs = fresh_inputs(self._problem, base.inputs, secret, crew=self._crew)
        return self._entry_of(self._workloads[job.workload], inputs, is_special=job.dataset.is_special)

    def _fresh_allowance(
        self, job: JudgeJob | ToleranceJob, layout: BufferLayout, expected: Array, entry: _Entry | None = None
    ) -> Allowance:
        """What a timed launch may be off by: as on the dataset that its inputs were made from, times `FRESH_FACTOR`.

        Scales are the larger of that dataset's, which know how sensitive results are, and of the expected values; with
        the launch's own entry they know its results' sensitivity: a dataset's element may be 0 whatever its inputs.
        """
        known = self._allowance(job.workload, job.dataset, layout)
        if known.origin != "derived" or known.by_class:
            return known
        base_entry = self._entry(job.workload, job.dataset)
        is_whole = entry is not None or isinstance(
            job, ToleranceJob
        )  # whoever is beyond limits is not asked about again
        there = self._scales(job.workload, job.dataset, base_entry, is_whole=is_whole)[layout.argument]
        here = natural_scale(expected, (), crew=self._crew)
        if entry is not None:
            here = self._find_scales(job.workload, job.dataset, entry, [layout])[layout.argument]
        base = self._base(job.workload, layout, there)
        own = self._base(job.workload, layout, Scale(np.maximum(there.values, here.values), there.is_by_row))
        return widened(own, FRESH_FACTOR * known.rtol / base.rtol)

    def _limits(self, job: ToleranceJob) -> dict[str, Closeness | None]:
        """Both results may be off by what one may; where rows have scales of their own, the largest counts."""
        limits: dict[str, Closeness | None] = {}
        for layout in self._outputs(job.workload):
            expected = self._entry(job.workload, job.dataset).expected[layout.argument]
            allowance = self._fresh_allowance(job, layout, expected)
            if allowance.is_exact:
                limits[layout.argument] = None
                continue
            atol = float(np.max(allowance.atol, initial=0.0))
            limits[layout.argument] = Closeness(layout.dtype, 2 * allowance.rtol, 2 * atol)
        return limits

    def _held_against_original(self, job: JudgeJob) -> tuple[bool | None, OutputError | None]:
        """Keep what was written, or compare it with what was kept: bytes first, values where those differ."""
        if not job.original:
            return None, None
        key, outputs = (job.workload, job.dataset), self._outputs(job.workload)
        launch = LaunchFolder(job.folder, outputs, crew=self._crew)
        if job.original == "keep":
            self._kept = key, {layout.argument: launch.read(layout) for layout in outputs}
            return None, None
        if self._kept is None or self._kept[0] != key:
            return None, None
        worst: OutputError | None = None
        for layout in outputs:
            got, kept = launch.read(layout), self._kept[1][layout.argument]
            if has_same_bytes(kept, got, self._crew):
                continue
            allowance = self._allowance(job.workload, job.dataset, layout)
            wanted = kept if allowance.is_exact else kept.astype(np.float64)
            found = compare(got, wanted, allowance, crew=self._crew)
            if not found.is_within and (*key, layout.argument) in self._least:
                allowance = self._whole_allowance(job.workload, job.dataset, layout)
                found = compare(got, wanted, allowance, crew=self._crew)
            if not found.is_within:
                entry = self._entry(job.workload, job.dataset)
                wide = self._with_roundings(job, entry, layout, got, wanted, allowance)
                found = compare(got, wanted, wide, crew=self._crew) if wide else found
            fraction = found.fraction if found.is_within else max(found.fraction, BEYOND)
            if worst is None or fraction > worst.tolerance_fraction:
                worst = OutputError(layout.argument, found.max_abs, fraction)
        return worst is None, worst

    def _calibrate(self, job: CalibrateJob) -> Calibration:
        entry = self._entry(job.workload, job.dataset)
        launch = LaunchFolder(job.folder, self._layouts[job.workload], crew=self._crew)
        found = launch.find_out_of_bounds() or launch.find_changed_input(entry.inputs)
        if found is not None:
            raise baseline_failed(self._problem, job, found)
        dropped = self._why_dropped(job.workload, job.dataset, entry)
        if dropped is not None:
            return Calibration((), dropped)
        errors: list[OutputError] = []
        factors: dict[str, float] = {}
        scales = self._scales(job.workload, job.dataset, entry)
        for layout in self._outputs(job.workload):
            got, expected = launch.read(layout), entry.expected[layout.argument]
            unwritten = find_unwritten(layout, got, expected)
            if unwritten is not None and not _may_hold_poison(job.dataset, layout):
                raise baseline_failed(self._problem, job, unwritten)
            if layout.argument in scales:
                widening = self._widen(job, layout, got, entry, is_whole=False)
                if isinstance(widening, Failed):
                    return self._refuse(job, widening, expected, layout)
                factors[layout.argument], error = widening
                errors.append(error)
                continue
            allowance = self._allowance(job.workload, job.dataset, layout)
            result = examine_output(layout, got, expected, allowance, crew=self._crew)
            if isinstance(result, Failed):
                return self._refuse(job, result, expected, layout)
            errors.append(result)
        notes = [
            LooseTolerance(job.workload, job.dataset.name, layout.argument, factors[layout.argument]).text
            for layout in self._outputs(job.workload)
            if factors.get(layout.argument, 1.0) > LOOSE_FACTOR
            and hides_downgrade(self._allowance(job.workload, job.dataset, layout), DTYPES[layout.dtype])
        ]
        if self._original is not None:
            notes.append(self._original.note)
        if self._torch_note:
            notes.append(self._torch_note)
        return Calibration(tuple(errors), None, factors, tuple(notes))

    def _widen(
        self, job: CalibrateJob, layout: BufferLayout, got: Array, entry: _Entry, *, is_whole: bool
    ) -> Failed | tuple[float, OutputError]:
        """Set the tolerance that the baseline's error asks for; gives the factor, and the error by that tolerance.

        All perturbations are asked only where the first of them alone would ask for more than the usual tolerance.
        """
        expected = entry.expected[layout.argument]
        scale = self._scales(job.workload, job.dataset, entry, is_whole=is_whole)[layout.argument]
        insane = find_not_finite(layout, got) or find_insane(
            layout, got, expected, scale, products=self._products(layout), crew=self._crew
        )
        base = self._base(job.workload, layout, scale)
        if insane is None:
            found = compare(got, expected, base, crew=self._crew)
            factor = baseline_factor_of(found.fraction)
        is_least = not is_whole and perturbation_count(layout.shape) > 1
        if is_least and (insane is not None or factor > 1.0):
            return self._widen(job, layout, got, entry, is_whole=True)
        if insane is not None:
            return insane
        self._allow(job, layout, widened(base, factor), is_least=is_least)
        return factor, OutputError(layout.argument, found.max_abs, found.fraction / factor)

    def _allow(
        self, job: CalibrateJob | RestoreJob, layout: BufferLayout, allowance: Allowance, *, is_least: bool
    ) -> None:
        key = (job.workload, job.dataset, layout.argument)
        self._allowances[key] = allowance
        (self._least.add if is_least else self._least.discard)(key)

    def _restore(self, job: RestoreJob) -> None:
        entry = self._entry(job.workload, job.dataset)
        for layout in self._derived(job.workload):
            if layout.argument not in job.factors or job.dataset.is_special:
                continue
            factor = job.factors[layout.argument]
            is_least = factor == 1.0 and perturbation_count(layout.shape) > 1
            scale = self._scales(job.workload, job.dataset, entry, is_whole=not is_least)[layout.argument]
            self._allow(job, layout, widened(self._base(job.workload, layout, scale), factor), is_least=is_least)

    def _write_bounds(self, job: ToleranceJob) -> dict[str, OutputBounds]:
        entry = self._entry(job.workload, job.dataset)
        if entry.failure is not None:
            raise entry.failure
        folder = self._scratch / f"{content_id(job.workload, job.dataset)}-bounds"
        written = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for layout in self._outputs(job.workload):
                dtype = DTYPES[layout.dtype]
                allowance = self._allowance(job.workload, job.dataset, layout)
                bounds = bounds_of(entry.expected[layout.argument], allowance, dtype, crew=self._crew)
                low = high = folder / f"{layout.argument}-low.bin"
                write_once(low, bounds.low)
                if bounds.high is not bounds.low:
                    high = folder / f"{layout.argument}-high.bin"
                    write_once(high, bounds.high)
                written[layout.argument] = low, high, key_order(dtype)
        except OSError as error:
            needed_bytes = 2 * sum(layout.byte_count for layout in self._outputs(job.workload))
            raise full(folder / f"bounds of workload {job.workload!r}", needed_bytes, error) from error
        return written

    # -- the baseline --------------------------------------------------------------------------------

    def _refuse(self, job: CalibrateJob, found: Failed, expected: Array, layout: BufferLayout) -> Calibration:
        """Drop a hostile dataset that the baseline fails; on declared inputs the baseline is at fault."""
        if not job.dataset.is_hostile:
            raise baseline_failed(self._problem, job, found, overflow_hint(layout, expected))
        return Calibration(
            (),
            f"workload {job.workload!r}: no candidate is judged on the {job.dataset.variant!r} inputs, "
            f"because the baseline itself fails there: {found.message}",
        )

    # -- tolerances ----------------------------------------------------------------------------------

    def _allowance(self, workload: str, dataset: Dataset, layout: BufferLayout) -> Allowance:
        declared = self._problem.tolerances.get(layout.argument)
        if declared is not None:
            return by_class(declared_allowance(declared)) if dataset.is_special else declared_allowance(declared)
        if DTYPES[layout.dtype].kind != "float":
            return EXACT
        derived = self._allowances.get((workload, dataset, layout.argument))
        if derived is None and dataset.is_special:
            expected = self._entry(workload, dataset).expected[layout.argument]
            derived = class_allowance(
                DTYPES[layout.dtype],
                expected,
                sum_length=self._sum_length(workload, layout),
                products=self._products(layout),
            )
            self._allowances[workload, dataset, layout.argument] = derived
        if derived is None:
            raise InfrastructureError(
                f"workload {workload!r} was not calibrated on dataset {dataset.name!r}, so nothing is known "
                f"of the error that {layout.argument!r} may have",
                hint="have the baseline judged first (CalibrateJob), or restore its calibration (RestoreJob)",
            )
        return derived

    def _whole_allowance(self, workload: str, dataset: Dataset, layout: BufferLayout) -> Allowance:
        """By all perturbations, whatever was known before."""
        key = (workload, dataset, layout.argument)
        if key in self._least:
            scale = self._scales(workload, dataset, self._entry(workload, dataset), is_whole=True)[layout.argument]
            self._allowances[key] = widened(self._base(workload, layout, scale), 1.0)
            self._least.discard(key)
        return self._allowance(workload, dataset, layout)

    def _products(self, layout: BufferLayout) -> Precision:
        return "tf32" if self._is_in_tf32 and layout.dtype == "float32" else "ieee"

    def _base(self, workload: str, layout: BufferLayout, scale: Scale) -> Allowance:
        length = self._sum_length(workload, layout)
        return base_allowance(DTYPES[layout.dtype], scale, sum_length=length, products=self._products(layout))

    def _sum_length(self, workload: str, layout: BufferLayout) -> int:
        with self._summing:
            lengths = self._sum_lengths.get(workload)
            if lengths is None:
                lengths = self._sum_lengths[workload] = self._find_sum_lengths(workload)
        return lengths[layout.argument]

    def _lengths_ahead(self, workload: str) -> None:
        for layout in self._derived(workload)[:1]:
            self._sum_length(workload, layout)

    def _find_sum_lengths(self, workload: str) -> dict[str, int]:
        """By float output, how many elements of one input an element of it depends on; the same in every process."""
        dataset = datasets_for(self._problem, seed=self._seed, is_thorough=False)[0]
        entry, place = self._entry(workload, dataset), self._workloads[workload]
        floats = [each.argument for each in self._outputs(workload) if DTYPES[each.dtype].kind == "float"]
        return fan_in(
            self._problem,
            place,
            entry.inputs,
            {name: entry.expected[name] for name in floats},
            lambda inputs: self._call(place, inputs, may_be_infinite=dataset.is_special),
            rng=np.random.Generator(np.random.PCG64(int(content_id("fan-in", self._seed, workload), 16))),
            crew=self._crew,
        )

    def _scales(self, workload: str, dataset: Dataset, entry: _Entry, *, is_whole: bool = False) -> dict[str, Scale]:
        """The natural scale of every output whose tolerance is derived; the same whenever it is asked for.

        Unless `is_whole`, by one call of the reference: where several are usual, no scale is larger than by all.
        """
        derived = self._derived(workload)
        if not derived or dataset.is_special:
            return {}
        key = (workload, dataset)
        with self._lock:
            scaling = self._scaling.setdefault(key, threading.Lock())
        with scaling:  # whoever else wants the same waits for it
            if (key, is_whole) not in self._known_scales:
                found = self._find_scales(workload, dataset, entry, derived, is_whole=is_whole)
                self._known_scales[key, is_whole] = found
        return self._known_scales[key, is_whole]

    def _find_scales(
        self,
        workload: str,
        dataset: Dataset,
        entry: _Entry,
        derived: Sequence[BufferLayout],
        *,
        is_whole: bool = True,
    ) -> dict[str, Scale]:
        count = max(perturbation_count(layout.shape) for layout in derived) if is_whole else 1
        perturbed = self._perturbed(workload, dataset, entry, count)
        return {
            layout.argument: natural_scale(
                entry.expected[layout.argument],
                [each[layout.argument] for each in perturbed][: perturbation_count(layout.shape)],
                of=None if is_whole else perturbation_count(layout.shape),
                crew=self._crew,
            )
            for layout in derived
        }

    def _derived(self, workload: str) -> list[BufferLayout]:
        """The outputs whose tolerance is derived."""
        return [
            layout
            for layout in self._outputs(workload)
            if DTYPES[layout.dtype].kind == "float" and layout.argument not in self._problem.tolerances
        ]

    def _perturbed(self, workload: str, dataset: Dataset, entry: _Entry, count: int) -> list[Mapping[str, Array]]:
        if not any(DTYPES[argument.dtype].kind == "float" for argument in self._problem.inputs):
            return []
        rng = np.random.Generator(np.random.PCG64(int(content_id("perturb", self._seed, workload, dataset), 16)))
        results: list[Mapping[str, Array]] = []
        for _ in range(count):
            inputs = perturb(entry.inputs, rng=rng, crew=self._crew)
            try:
                results.append(self._call(self._workloads[workload], inputs))
            except ReferenceFailed:  # at the edge of its domain: then expected values alone give the scale
                if self._is_lost:
                    raise
                return results
        return results

    # -- inputs and expected values ------------------------------------------------------------------

    def _outputs(self, workload: str) -> list[BufferLayout]:
        return [layout for layout in self._layouts[workload] if layout.role in ("output", "inout")]

    def _entry(self, workload: str, dataset: Dataset) -> _Entry:
        key = (workload, dataset)
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:  # whoever else wants the same waits for it
            with self._lock:
                entry = self._entries.get(key)
                if entry is not None:
                    self._entries.move_to_end(key)
                    return entry
            start_s = time.perf_counter()
            entry = self._make_entry(self._workloads[workload], dataset)
            entry.made_s = time.perf_counter() - start_s
            self._keep(key, entry)
        return entry

    def _keep(self, key: _Key, entry: _Entry) -> None:
        with self._lock:
            self._entries[key] = entry
            total_bytes = sum(each.byte_count for each in self._entries.values())
            while total_bytes > self._cache_bytes and len(self._entries) > 1:
                evicted_key, evicted = self._entries.popitem(last=False)
                total_bytes -= evicted.byte_count
                if evicted.failure is None:
                    self._evicted.put(evicted_key, evicted.expected)

    def _make_entry(self, workload: Workload, dataset: Dataset) -> _Entry:
        inputs = make_inputs(self._problem, workload, dataset, crew=self._crew)
        for values in inputs.values():
            values.setflags(write=False)
        with self._lock:
            known = self._evicted.get((workload.name, dataset))
        if known is not None:
            return _Entry(inputs, known, None)
        entry = self._entry_of(workload, inputs, is_special=dataset.is_special)
        if entry.failure is not None and not dataset.is_hostile:
            raise entry.failure
        return entry

    def _entry_of(self, workload: Workload, inputs: dict[str, Array], *, is_special: bool) -> _Entry:
        """Inputs with what the reference makes of them, or why it fails."""
        try:
            results = self._call(workload, inputs, may_be_infinite=is_special)
            expected = {
                argument.name: expected_values(self._problem, argument, results[argument.name])
                for argument in self._problem.outputs
            }
        except ReferenceFailed as error:
            if self._is_lost:
                raise
            return _Entry(inputs, {}, error)
        return _Entry(inputs, expected, None)

    def _call(
        self, workload: Workload, inputs: Mapping[str, Array], *, may_be_infinite: bool = False
    ) -> dict[str, Array]:
        """The reference's results; what a call takes is kept, without waiting for other calls.

        The first call on a device builds kernels, so where it takes long a second one says what calls take.
        """
        is_first = not self._call_s
        while True:
            start_s = time.perf_counter()
            before_s = self._waited_s()
            results = call_reference(self._reference, self._problem, workload, inputs, may_be_infinite=may_be_infinite)
            call_s = time.perf_counter() - start_s - (self._waited_s() - before_s)
            self._call_s[workload.name] = min(call_s, self._call_s.get(workload.name, math.inf))
            if not is_first or call_s < LONG_FIRST_CALL_S or not (self._original or self._torch_note):
                break
            is_first = False
        return results

    @property
    def _is_lost(self) -> bool:
        """Whether the reference failed for good: nothing can be judged, whatever the inputs."""
        return self._original is not None and self._original.is_lost

    @property
    def _torch_note(self) -> str:
        device = self._reference.device
        return "" if device is None else device.note

    def _why_dropped(self, workload: str, dataset: Dataset, entry: _Entry) -> str | None:
        if entry.failure is None:
            return None
        return (
            f"workload {workload!r}: no candidate is judged on the {dataset.variant!r} inputs, because the "
            f"reference fails there: {entry.failure.message}"
        )


def _may_hold_poison(dataset: Dataset, layout: BufferLayout) -> bool:
    """Whether a right result may look like an element that was never written: 8-bit floats have one or two NaNs."""
    return dataset.is_special and layout.item_bytes == 1


def _share_of(reply: object, together: int) -> object:
    """A reply of several made side by side, with what one took of their time; calls of the reference take turns."""
    if not isinstance(reply, Prepared):
        return reply
    return replace(reply, work_s=reply.reference_s + max(0.0, reply.work_s - reply.reference_s) / together)

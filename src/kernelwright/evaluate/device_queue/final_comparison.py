"""The comparison that a claim stands on: candidates interleaved with the baseline, then gains confirmed elsewhere.

A CPU's kernels share the process that times them, so there a gain counts only when fresh processes show it too.
"""

from __future__ import annotations

import math
import os
import secrets
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from kernelwright.backend.base import BuildFailed, LaunchFailed
from kernelwright.errors import InfrastructureError
from kernelwright.evaluate.data.freshness import new_secret
from kernelwright.evaluate.data.layout import GUARD_BYTES
from kernelwright.evaluate.device.arena import Job
from kernelwright.evaluate.device.comparison import (
    AgainJob,
    CompareDone,
    CompareJob,
    Parts,
    PartsJob,
    Places,
    are_parts,
    compared_folder,
    current_file,
    differing,
    is_drawn,
    secrets_of,
)
from kernelwright.evaluate.device.first_launch import DrawJob, SetUpJob
from kernelwright.evaluate.device.fresh_launches import Picked
from kernelwright.evaluate.device.timing import hidden_work, with_hidden_work
from kernelwright.evaluate.device_queue.confirm import (
    BASELINE_LAUNCHES,
    FRESH_PROCESSES,
    SECOND_LOOKS,
    Clocks,
    Confirmation,
    FreshProcess,
    Gains,
    Limit,
    launched_fresh,
)
from kernelwright.evaluate.device_queue.outside import opened_memory, parts_at
from kernelwright.evaluate.device_queue.processes import DeviceProcess
from kernelwright.evaluate.process.scratch import empty
from kernelwright.evaluate.process.worker_process import JobTimeout, RemoteError, WorkerDied
from kernelwright.problem.outcome import NO_TIME, Failed, Measurement

COMPARE_WARMUP_COUNT = 3
"""Rounds of a comparison that do not count."""

SLOWEST_COPY_BYTES_PER_S = 0.5e9
"""At which a busy host still fills, copies and writes out a candidate's memory."""

LOAD_TIMEOUT_S = 60.0
"""For a comparison to load modules and fill memory before its first launch."""

NOT_ALONE = (
    "a candidate that may be claimed was checked on hostile data in a process that others had used, too: "
    "the budget left no time for one of its own"
)
"""A note where a proof that was not planned for had no time."""

NOT_AGAIN = (
    "not every launch of the comparison was held against the baseline on the same inputs: the budget left no time"
)

NOT_OUTSIDE = "what candidates wrote in the comparison was read by the process that ran them: this {} lets no other one"
"""Of a driver that does not tell where memory lies, or a system that shows no process another one's."""

AGAIN_ROUNDS = 12
"""Launches of the baseline on each workload that are planned for that, and for its own process."""

START_FACTOR = 2.0
"""A fresh process that launches takes as many times as long as its start alone. From traces on 2 busy cores."""


def confirm_s(process: DeviceProcess, baseline: Sequence[Measurement]) -> float:
    """What confirming a gain on every workload takes, by estimate from the baseline's times.

    Of each two processes one goes on: a launch of both more. One candidate is proven in a process of its own, too. On a
    device of its own nothing is launched in other processes; only the baseline is again, on a candidate's inputs.
    """
    launch_ms = [statistics.median(each.samples_ms) * max(1.0, each.wall_ratio or 1.0) for each in baseline]
    if not process.device.shares_host_cores:
        return AGAIN_ROUNDS * math.fsum(launch_ms) / 1e3
    judging_s = [process.desk.judging_s(each.workload) for each in baseline]
    start_s = START_FACTOR * (process.worker.start_s or 0.0)
    counts = [len(process.datasets(each.workload, is_thorough=True)) for each in baseline]
    proof_s = start_s + math.fsum(count * each / 1e3 for count, each in zip(counts, launch_ms, strict=True))
    launch_s = math.fsum(launch_ms) / 1e3
    launches_s = (BASELINE_LAUNCHES + 2) * launch_s
    again_s = start_s + AGAIN_ROUNDS * launch_s
    return FRESH_PROCESSES * (len(baseline) * start_s + launches_s + math.fsum(judging_s)) + proof_s + again_s


def compare(
    process: DeviceProcess,
    candidates: Sequence[Sequence[Job]],
    *,
    rounds: int,
    wrong: Mapping[int, str],
    check: Callable[[Sequence[Job]], object],
) -> tuple[dict[str, CompareDone], dict[int, str]]:
    """Measure candidates interleaved, workload by workload, and judge a launch of each that was picked at random.

    Gives the samples, and by place the candidates that were wrong, with the reason. One that hangs, crashes or
    cannot be launched is wrong; its samples are NaN where it left none. Those in `wrong` are so from the beginning.
    Where the reference is slow, each candidate is judged on one workload, which it cannot know. `check` launches one on
    every dataset, and gives `Failed` where it is wrong.

    Raises:
        InfrastructureError: the worker fails for no candidate's fault; the baseline, which is first, is none.
    """
    process.standby.settle()  # nothing is to start beside a comparison
    results = {}
    wrong = dict(wrong)
    weights = {each.name: each.weight for each in process.problem.workloads}
    judged_on = [secrets.randbelow(len(weights)) for _ in candidates]
    has_confirmation = process.device.shares_host_cores  # and a kernel can reach the timer's records there
    for index, workload in enumerate(weights):
        built = [candidate[index] for candidate in candidates]
        done, standing = _compare_one(process, built, workload, rounds=rounds, wrong=wrong)
        for row, place in enumerate(standing):
            folder = compared_folder(process.out_folder, row)
            if judged_on[place] == index or not process.desk.judges_slowly(workload):
                _judge_compared(process, workload, folder, done.picked[row], place, wrong)
            shutil.rmtree(folder, ignore_errors=True)
        done = _with_hidden(done) if has_confirmation else _refuse_hidden(done, standing, wrong)
        results[workload] = _in_places(done, standing, len(candidates))
    gains = Gains.of({name: each.samples_ms for name, each in results.items()}, weights)
    if has_confirmation:
        places = {name: index for index, name in enumerate(weights)}

        def launch(place: int, workload: str, limit: Limit | None) -> FreshProcess | Failed:
            baseline, candidate = (candidates[each][places[workload]] for each in (0, place))
            return _first_launch(process, baseline, candidate, limit)

        process.say("a gain is confirmed in fresh processes")
        proof = _Proof(process, check)

        def failure(place: int) -> str | None:
            return proof.failure(candidates[place]) or _differs(process, candidates[0], results, place)

        Confirmation(launch, gains, prove=failure, note=process.notes.append, has_time=process.has_time).refuse(wrong)
    else:
        _refuse_differing(process, candidates[0], results, gains, wrong)
    return {name: replace(done, parts=()) for name, done in results.items()}, wrong


def _refuse_differing(
    process: DeviceProcess,
    baseline: Sequence[Job],
    results: Mapping[str, CompareDone],
    gains: Gains,
    wrong: dict[int, str],
) -> None:
    """Add to `wrong` what a verdict may claim and some launch of which was not what the baseline writes."""
    held: set[int] = set()
    while left := [place for place in gains.claimed(wrong) if place not in held]:
        held.add(left[0])
        reason = _differs(process, baseline, results, left[0])
        if reason is not None:
            wrong[left[0]] = reason


def _differs(
    process: DeviceProcess, baseline: Sequence[Job], results: Mapping[str, CompareDone], place: int
) -> str | None:
    """Why some launch of a candidate in the comparison was wrong, beside the baseline on the same inputs.

    Where a kernel could reach the process, in one in which nothing else has run.
    """
    start_s = 0.0
    if process.device.shares_host_cores:
        process.end_worker()
        empty(process.scratch)  # what a candidate left in files; nothing of it runs here
        start_s = START_FACTOR * (process.worker.start_s or 0.0)
    for job in baseline:
        done = results[job.workload]
        told_s = math.fsum(done.wall_ms[0]) / 1e3  # by a process in which candidates ran
        needed_s = start_s + min(told_s, done.spent_s)
        if not process.has_time(needed_s):
            process.notes += [NOT_AGAIN] if NOT_AGAIN not in process.notes else []
            return None
        inputs = process.files(job.workload, process.timed_dataset(job.workload))
        parts = done.parts[place]
        timeout_s = LOAD_TIMEOUT_S + len(parts) * process.settings.launch_timeout_s
        again = AgainJob(job, inputs, parts)
        expected = process.try_worker(again, timeout_s) or process.try_worker(again, timeout_s)
        if not isinstance(expected, tuple):
            raise InfrastructureError("the baseline failed twice in a process of its own, on a comparison's inputs")
        limits = process.desk.limits(job.workload)
        found = (differing(one, other, limits) for one, other in zip(parts, expected, strict=True))
        wrong = [name for name in found if name]
        if wrong:
            return (
                f"wrong in {len(wrong)} of {len(parts)} launches of the comparison on workload {job.workload!r}: "
                f"{wrong[0]!r} is not what the baseline writes on the same inputs"
            )
    return None


class _Proof:
    """Checks candidates on every dataset in processes of their own.

    All candidates of a run see the same hostile data. In a process that they share, one that is right could leave its
    results where one that is wrong there finds them.
    """

    def __init__(self, process: DeviceProcess, check: Callable[[Sequence[Job]], object]) -> None:
        self._process = process
        self._check = check
        self._longest_s = 0.0

    def failure(self, candidate: Sequence[Job]) -> str | None:
        """Why it is wrong; machines fail, too, so only a second failure of three is believed."""
        if self._longest_s and not self._process.has_time(self._longest_s):
            self._process.notes.append(NOT_ALONE)
            return None
        start_s = time.monotonic()
        failure = self._alone(candidate)
        self._longest_s = max(self._longest_s, time.monotonic() - start_s)
        if failure is None:
            return None
        for _ in range(SECOND_LOOKS):
            failure = self._alone(candidate)
            if failure is not None:
                return f"wrong in a process of its own: {failure}"
        return None

    def _alone(self, candidate: Sequence[Job]) -> str | None:
        self._process.end_worker()
        if not empty(self._process.scratch):  # a file is memory, too
            return f"files that cannot be removed were left in {self._process.scratch}"
        found = self._check(candidate)
        return found.message if isinstance(found, Failed) else None


def _refuse_hidden(done: CompareDone, standing: Sequence[int], wrong: dict[int, str]) -> CompareDone:
    """Add to `wrong` whose work is surely hidden; the times of whose work may be, with what is hidden in them."""
    baseline = done.samples_ms[0], done.wall_ms[0]
    rows = []
    for place, own, wall in zip(standing, done.samples_ms, done.wall_ms, strict=True):
        hidden = hidden_work(own, wall, *baseline) if place else None
        if hidden:
            wrong.setdefault(place, f"suspicious in the comparison: {hidden}")
        is_doubted = place and hidden_work(own, wall, *baseline, surely=False)
        rows.append(with_hidden_work(own, wall, *baseline) if is_doubted else own)
    return replace(done, samples_ms=tuple(rows))


def _first_launch(process: DeviceProcess, baseline: Job, candidate: Job, limit: Limit | None) -> FreshProcess | Failed:
    """The times of one fresh process; why the candidate failed in two of them, where it did.

    Whether it is launched there once, or again until one is within `limit`, the candidate cannot know; its last launch
    is judged.

    Raises:
        InfrastructureError: the baseline, which runs before it, failed in one of two.
    """
    for is_last in (False, True):
        process.worker.kill()
        if not empty(process.scratch):  # a file is memory, too
            reason = f"it left files that cannot be removed in {process.scratch}"
            return Failed("launch", "crash", reason, workload=candidate.workload)
        clocks: list[Clocks] = []
        try:
            return _times_of_fresh(process, baseline, candidate, clocks, limit)
        except (JobTimeout, WorkerDied, RemoteError, LaunchFailed, BuildFailed, InfrastructureError) as error:
            process.refuse_when_closed()
            if is_last and len(clocks) < BASELINE_LAUNCHES:
                raise InfrastructureError(f"the baseline failed in a fresh process: {error}") from error
            reason = f"it failed in a fresh process, after the baseline: {error}"
        finally:
            process.worker.kill()
    return Failed("launch", "crash", reason, workload=candidate.workload)


def _times_of_fresh(
    process: DeviceProcess, baseline: Job, candidate: Job, clocks: list[Clocks], limit: Limit | None
) -> FreshProcess | Failed:
    """Launch the baseline and the candidate; `clocks` gets the times, in their order."""
    workload = candidate.workload
    inputs = process.files(workload, process.timed_dataset(workload))
    jobs = baseline, candidate
    process.call_worker(SetUpJob(*jobs, inputs, process.settings.cache, process.out_folder), LOAD_TIMEOUT_S)
    secret = 0

    def fire(is_candidate: bool) -> Clocks:
        nonlocal secret
        secret = new_secret()
        process.call_worker(DrawJob(is_candidate, secret), LOAD_TIMEOUT_S)
        start_s = time.perf_counter()
        fired = process.call_worker("fire", process.settings.launch_timeout_s)
        clocks.append((cast("float", fired), (time.perf_counter() - start_s) * 1e3))
        return clocks[-1]

    found = launched_fresh(fire, limit)
    process.worker.kill()  # before anything looks at the results: from here on nobody can mend them
    try:
        for spec in jobs[1].buffers:
            os.truncate(process.out_folder / f"{spec.name}.bin", 2 * GUARD_BYTES + spec.byte_count)
    except OSError as error:
        return Failed("launch", "crash", f"it took its memory's files away: {error}", workload=workload)
    failure = process.failure_of(workload, process.out_folder, Picked(secret))
    if failure is not None:
        ordinal = "its first" if found.again_ms is None else "a later"
        return replace(failure, message=f"wrong at {ordinal} launch in a fresh process: {failure.message}")
    return found


def _judge_compared(
    process: DeviceProcess, workload: str, folder: Path, picked: Picked, place: int, wrong: dict[int, str]
) -> None:
    verdict = process.judge_timed(workload, folder, picked)
    if verdict.failure and place == 0:
        process.notes.append(f"the baseline was wrong in the comparison: {verdict.failure.message}")
    elif verdict.failure:
        wrong.setdefault(place, f"wrong in the comparison: {verdict.failure.message}")


def _compare_one(
    process: DeviceProcess, built: Sequence[Job], workload: str, *, rounds: int, wrong: dict[int, str]
) -> tuple[CompareDone, list[int]]:
    """One workload's comparison, and the places of those that stand; the others are added to `wrong`.

    What fails is compared again without the candidate that it failed with, as long as the budget has time for that.
    """
    is_retried, longest_s = False, 0.0
    while True:
        standing = [place for place in range(len(built)) if place not in wrong]
        is_late = not process.has_time(longest_s) if longest_s else False
        if is_late:
            wrong.update(dict.fromkeys(standing[1:], f"not compared on workload {workload!r}: {NO_TIME}"))
            standing = standing[:1]
        start_s = time.monotonic()
        jobs = [built[place] for place in standing]
        job = _compare_job(process, jobs, workload, rounds=1 if is_late else rounds)
        done, reason = _try_to_compare(process, job, _compare_watch(process, jobs))
        longest_s = max(longest_s, time.monotonic() - start_s)
        if done is not None and not done.failed:
            return done, standing
        process.worker.kill()
        row = next(iter(done.failed)) if done is not None else _current_row(process.out_folder)
        if row is not None and row > 0:
            why = _why_out(process, workload, row, done, reason)
            if done is not None or not _find_harm(process, built, standing, row, workload, wrong, rounds=rounds):
                wrong[standing[row]] = why
        elif not is_retried:
            is_retried = True
        elif not _find_late_harm(process, built, standing, workload, wrong, rounds=rounds):
            _prove_baseline_compares(process, built[0], workload, reason, rounds=rounds)
            wrong.update(dict.fromkeys(standing[1:], f"the comparison failed twice, and not without it: {reason}"))


def _find_harm(
    process: DeviceProcess,
    built: Sequence[Job],
    standing: Sequence[int],
    row: int,
    workload: str,
    wrong: dict[int, str],
    *,
    rounds: int,
) -> bool:
    """Whether the candidate with which a process ended, or else another one, is seen to do harm; it is in `wrong` then.

    One that does so a while after its launch ends the process with whoever is launched next.
    """
    baseline, suspect = standing[0], standing[row]
    others = [place for place in standing if place != suspect]
    if len(others) == 1:
        return False
    return any(
        _find_late_harm(process, built, places, workload, wrong, rounds=rounds)
        for places in ([baseline, suspect], others)
    )


def _prove_baseline_compares(process: DeviceProcess, baseline: Job, workload: str, reason: str, *, rounds: int) -> None:
    """Compare the baseline with nothing, where a comparison failed twice and with no candidate in particular.

    Raises:
        InfrastructureError: that fails too, so no candidate is to blame.
    """
    job = _compare_job(process, [baseline], workload, rounds=rounds)
    done, again = _try_to_compare(process, job, _compare_watch(process, [baseline]))
    if done is None or done.failed:
        process.worker.kill()
        raise InfrastructureError(f"the comparison on workload {workload!r} failed twice: {again or reason}")


def _find_late_harm(
    process: DeviceProcess,
    built: Sequence[Job],
    standing: Sequence[int],
    workload: str,
    wrong: dict[int, str],
    *,
    rounds: int,
) -> bool:
    """Whether some candidate does harm a while after its launch, when the baseline seems to be at fault.

    Each is compared with the baseline alone; those with which that fails are added to `wrong`, and so are those that
    the budget leaves no time for.
    """
    found, longest_s = False, 0.0
    for place in standing[1:]:
        if not process.has_time(longest_s):
            wrong[place] = f"the comparison failed twice, perhaps because of it: {NO_TIME}"
            found = True
            continue
        start_s = time.monotonic()
        pair = (built[standing[0]], built[place])
        done, reason = _try_to_compare(
            process, _compare_job(process, pair, workload, rounds=rounds), _compare_watch(process, list(pair))
        )
        longest_s = max(longest_s, time.monotonic() - start_s)
        if done is None or done.failed:
            process.worker.kill()
            wrong[place] = f"failed in the comparison: {reason or dict(done.failed if done else {})}"
            found = True
    return found


def _compare_job(process: DeviceProcess, built: Sequence[Job], workload: str, *, rounds: int) -> CompareJob:
    return CompareJob(
        jobs=tuple(each for each in built),
        inputs=process.files(workload, process.timed_dataset(workload)),
        set_count=process.set_count(workload),
        rounds=rounds,
        warmup_count=COMPARE_WARMUP_COUNT,
        cache=process.settings.cache,
        seed=process.settings.seed,
        secret=new_secret(),
        limits=process.desk.limits(workload),
        out_folder=process.out_folder,
        has_parts=process.device.shares_host_cores,
    )


def _why_out(process: DeviceProcess, workload: str, row: int, done: CompareDone | None, reason: str) -> str:
    """In words; the referee's, where the device has found a launch wrong and the referee does too."""
    if done is None:
        return f"failed in the comparison: {reason}"
    folder = compared_folder(process.out_folder, row)
    failure = process.failure_of(workload, folder, done.seen_wrong) if done.seen_wrong is not None else None
    shutil.rmtree(folder, ignore_errors=True)
    if failure is not None:
        return f"wrong in the comparison: {failure.message}"
    return f"failed in the comparison: {done.failed[row]}"


def _try_to_compare(
    process: DeviceProcess, job: CompareJob, watch: tuple[Path, float]
) -> tuple[CompareDone | None, str]:
    """What came back, or why nothing did."""
    file, patience_s = watch
    file.unlink(missing_ok=True)
    launches = (job.rounds + COMPARE_WARMUP_COUNT) * len(job.jobs)
    start_s = time.monotonic()
    try:
        timeout_s = LOAD_TIMEOUT_S + launches * patience_s
        done = process.unless_killed(lambda: _asked(process, job, timeout_s, watch))
    except (JobTimeout, WorkerDied, LaunchFailed, BuildFailed, InfrastructureError) as error:
        process.refuse_when_closed()
        return None, str(error)
    if done is None:
        return None, "what the worker answered are no times: a kernel has spoken in its place"
    return replace(done, spent_s=time.monotonic() - start_s), ""


def _asked(process: DeviceProcess, job: CompareJob, timeout_s: float, watch: tuple[Path, float]) -> CompareDone | None:
    """The worker's answer, with parts of what launches wrote; None: it is not what was asked for.

    Which parts those are, and which launches are judged, is drawn here once a launch has ended.
    """
    deadline_s = time.monotonic() + timeout_s
    places = range(len(job.jobs))
    launch_secrets = [secrets_of(job, place) for place in places]
    parts: list[list[Parts]] = [[] for _ in places]
    picked: dict[int, Picked] = {}

    def ask(asked: object) -> object:
        return process.call_worker(asked, deadline_s - time.monotonic(), watch)

    place = ask(job)
    process_id = process.readable_process() if job.has_parts else None
    with opened_memory(process_id) as memory:
        note = NOT_OUTSIDE.format("driver" if process_id is None else "system")
        if job.has_parts and memory is None and note not in process.notes:
            process.notes.append(note)
        while not isinstance(place, CompareDone):
            if type(place) is not int or place not in places or len(parts[place]) == job.rounds:
                return None
            done_count = len(parts[place])
            seed, is_picked = new_secret(), place not in picked and is_drawn(job.rounds - done_count)
            found = _looked_at(ask, memory, job.jobs[place], seed, is_picked=is_picked)
            if not are_parts(found, job.jobs[place], seed):
                return None
            secret = launch_secrets[place][done_count]
            if is_picked:
                picked[place] = Picked(secret)
            parts[place].append((secret, cast("Places", found)))
            place = ask(PartsJob())
    if not _is_answer(place, job, parts, picked):
        return None
    return replace(place, parts=tuple(map(tuple, parts))) if job.has_parts else place


def _looked_at(ask: Callable[[object], object], memory: int | None, job: Job, seed: int, *, is_picked: bool) -> object:
    """Parts of what a launch wrote, by the worker's word only where this process may not read its memory.

    A launch that is picked is written out afterwards, which would fill what it owes.
    """
    if memory is None:
        return ask(PartsJob(seed, is_picked, goes_on=False))
    found = parts_at(memory, ask(PartsJob(goes_on=False)), job, seed)
    if is_picked:
        ask(PartsJob(None, is_picked, goes_on=False))
    return found


def _is_answer(
    done: CompareDone, job: CompareJob, parts: Sequence[Sequence[Parts]], picked: Mapping[int, Picked]
) -> bool:
    """Whether the worker's answer is of the kind that was asked for; one that a kernel forges may hold anything."""
    try:
        if done.failed:
            return all(
                type(place) is int and 0 <= place < len(job.jobs) and isinstance(why, str)
                for place, why in done.failed.items()
            )
        return _are_times(done, len(job.jobs), job.rounds) and (
            not job.has_parts
            or (
                all(len(row) == job.rounds for row in parts)
                and all(done.picked[place] == picked[place] for place in range(1, len(job.jobs)))
            )
        )
    except (TypeError, ValueError, AttributeError, OverflowError):
        return False


def _compare_watch(process: DeviceProcess, built: Sequence[Job]) -> tuple[Path, float]:
    """The file that a comparison touches as it goes on, and how long it may not.

    Each launch may take as long as a checked one, after memory was filled and before it is written out.
    """
    byte_count = max(sum(spec.byte_count for spec in each.buffers) for each in built)
    moved_s = byte_count / SLOWEST_COPY_BYTES_PER_S
    return current_file(process.out_folder), process.settings.launch_timeout_s + moved_s


def _are_times(done: CompareDone, job_count: int, rounds: int) -> bool:
    """Whether each job has a time for each round, by both clocks, and one launch that was picked."""
    rows = (*done.samples_ms, *done.wall_ms)
    return (
        (len(done.samples_ms), len(done.wall_ms), len(done.picked)) == (job_count,) * 3
        and all(len(row) == rounds for row in rows)
        and all(isinstance(each, Picked) for each in done.picked)
        and all(math.isfinite(each) for row in rows for each in row)
        and all(each > 0 for row in done.samples_ms for each in row)
    )


def _current_row(out_folder: Path) -> int | None:
    """The job that ran when the worker was lost; None when none had begun."""
    try:
        return int(current_file(out_folder).read_text())
    except (OSError, ValueError):
        return None


def _in_places(done: CompareDone, standing: Sequence[int], count: int) -> CompareDone:
    """The same with a row for every candidate; those that do not stand have no times."""
    rounds = len(done.samples_ms[0])
    rows = [(math.nan,) * rounds] * count
    for place, row in zip(standing, done.samples_ms, strict=True):
        rows[place] = row
    parts = dict(zip(standing, done.parts, strict=True)) if done.parts else {}
    return replace(done, samples_ms=tuple(rows), parts=tuple(parts.get(place, ()) for place in range(count)))


def _with_hidden(done: CompareDone) -> CompareDone:
    """The same with what is hidden from the timer in the times, beside the baseline, which is first.

    The baseline's own times are treated as the candidates' are: what disturbs launches favours neither.
    """
    baseline = done.samples_ms[0], done.wall_ms[0]
    rows = (with_hidden_work(*clocks, *baseline) for clocks in zip(done.samples_ms, done.wall_ms, strict=True))
    return replace(done, samples_ms=tuple(rows))

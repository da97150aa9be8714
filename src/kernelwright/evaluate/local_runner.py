"""The runner of this machine: a build pool ahead of one lane for each device.

```
with LocalRunner(problem, device, settings) as runner:
    runner.calibrate(baseline)                          # first: sets tolerances, proves the baseline
    future = runner.submit(EvaluationRequest(candidate))
```
"""

from __future__ import annotations

import contextlib
import functools
import math
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from kernelwright import knobs
from kernelwright.backend.base import Artifact, DeviceInfo
from kernelwright.backend.registry import get_backend
from kernelwright.errors import BaselineFailed, InfrastructureError, KernelwrightError
from kernelwright.evaluate.base import Comparison, EvaluationFuture, EvaluationRequest, Incumbent, Reproduction
from kernelwright.evaluate.builds.artifact_cache import ArtifactCache
from kernelwright.evaluate.builds.persistent_state import ALLOW_ASSEMBLY, ASSEMBLY_NOTE, NOTHING, Kept, kept_by
from kernelwright.evaluate.builds.pool import BuildFuture, BuildPool
from kernelwright.evaluate.builds.render import plans_by_unit, render
from kernelwright.evaluate.builds.scheduler import Turns, done_beside
from kernelwright.evaluate.device.arena import Job
from kernelwright.evaluate.device.lock import DeviceLock
from kernelwright.evaluate.device_queue.candidate import (
    check_and_time,
    complete_ms,
    must_be_proven,
    proven,
    resources_of,
)
from kernelwright.evaluate.device_queue.final_comparison import compare, confirm_s
from kernelwright.evaluate.device_queue.jobs import built_job
from kernelwright.evaluate.device_queue.queue import DeviceLane, medians_ms
from kernelwright.evaluate.device_queue.reproduction import reproduced
from kernelwright.evaluate.device_queue.same_code import MeasuredCode
from kernelwright.evaluate.judge.server import RefereeDesk
from kernelwright.evaluate.prestart import EarlyStart
from kernelwright.evaluate.process.answering import handing_over
from kernelwright.evaluate.process.scratch import make_scratch
from kernelwright.evaluate.process.worker_process import WorkerProcess
from kernelwright.evaluate.settings import EvaluationSettings
from kernelwright.problem.model import Problem
from kernelwright.problem.outcome import Cost, Failed, Outcome, Passed
from kernelwright.template.model import Candidate

LOOK_AHEAD = 2
"""Requests worth having in flight for each build process: one building, one waiting or ready. More would be asked of a
searcher that knows less."""
LOOK_AHEAD_IN_TURNS = 3
"""The same where builds and measurements take turns."""

LANE_LOOK_AHEAD = 2
"""The same for each device: one being measured, one ready."""

TOLD_WAIT_S = 1.0
"""A wait for another run that measures on the device is told from here on: turns of candidates are shorter."""

IDLE_S = 0.01
"""How often a lane without work looks whether what it left for later can be done."""


@dataclass(slots=True)
class _Pending:
    """One request on its way through the pipeline."""

    request: EvaluationRequest
    rendered: tuple[Job, ...]
    future: EvaluationFuture
    builds: list[BuildFuture]
    render_s: float
    is_running: bool = False
    """Whether its future is, which happens once though several devices may try."""
    built: tuple[Job, ...] = ()
    claim: tuple[Passed, Cost] | None = None
    """By a quick look it is faster than what it raced against: it waits for the thorough check."""

    @property
    def claimed_ms(self) -> dict[str, float]:
        """The times that it claims, by workload."""
        assert self.claim is not None
        return complete_ms(self.claim[0])

    @property
    def order(self) -> float:
        """Sorts the fastest claim first."""
        times_ms = self.claimed_ms.values()
        return math.fsum(map(math.log, times_ms)) / max(1, len(times_ms))


class _Station:
    """One device with its lane, and the locks around it."""

    def __init__(
        self,
        problem: Problem,
        device: DeviceInfo,
        settings: EvaluationSettings,
        *,
        desk: RefereeDesk,
        scratch: Path,
        host: WorkerProcess | None = None,
    ) -> None:
        self.device = device
        self.lane = DeviceLane(problem, device, settings, desk=desk, scratch=scratch, host=host)
        self.is_closed = False
        self._use = threading.Lock()
        self._turn = DeviceLock(device.lock_name, on_wait=self._give_up_when_closed)

    @contextlib.contextmanager
    def held(self) -> Iterator[DeviceLane]:
        """The lane, for one thread of one run at a time."""
        with self._use, self._turn:
            yield self.lane

    @contextlib.contextmanager
    def held_for_launches(self) -> Iterator[DeviceLane]:
        """The lane, for one thread, where nothing is timed: other runs have the device while the referee works.

        The referee takes most of the time there. On a CPU it would disturb what they time, so there it is as `held`.
        """
        if self.device.shares_host_cores:
            with self.held() as lane:
                yield lane
            return
        with self._use:
            self.lane.process.turn = self._turn
            try:
                yield self.lane
            finally:
                self.lane.process.turn = contextlib.nullcontext()

    def close(self) -> None:
        """End the lane's processes; can be called twice."""
        self.is_closed = True
        self.lane.close()

    def _give_up_when_closed(self, waited_s: float, holder: str) -> None:
        """While another run holds the device: say so, and end the wait when this run is being stopped."""
        if waited_s >= TOLD_WAIT_S:
            self.lane.process.say(f"waiting for {holder}, which measures on {self.device.id}")
        if self.is_closed:
            raise InfrastructureError(f"stopped after {waited_s:.0f} s of waiting for {holder}")


class LocalRunner:
    """Builds in processes; checks and times in one thread for each device, one candidate at a time."""

    def __init__(
        self,
        problem: Problem,
        device: DeviceInfo,
        settings: EvaluationSettings,
        *,
        peers: Sequence[DeviceInfo] = (),
        early: EarlyStart | None = None,
    ) -> None:
        """Nothing is started yet, but what `early` has.

        Args:
            problem: what is evaluated.
            device: builds are for it, and comparisons are made on it.
            settings: how.
            peers: more devices of the same model; each evaluation goes to whichever is free.
            early: of this problem and seed; taken over.
        """
        self._problem = problem
        self._device = device
        self._settings = settings
        self._scratch = early.scratch if early is not None else make_scratch()
        self._turns = Turns(is_exclusive=device.shares_host_cores)
        self._pool = BuildPool(
            device.backend,
            device,
            process_count=settings.build_processes,
            cache=ArtifactCache(knobs.cache_dir() / "artifacts"),
            scratch=self._scratch / "build",
            timeout_s=settings.build_timeout_s,
            specialise_timeout_s=settings.specialise_timeout_s,
        )
        self._desk = early.desk if early is not None else RefereeDesk(problem, settings, scratch=self._scratch)
        host = early.hosts.take(device.backend) if early is not None and _may_be_hosted(device, settings) else None
        self._stations = [
            _Station(
                problem,
                each,
                settings,
                desk=self._desk,
                scratch=self._scratch / f"lane-{number}",
                host=None if number else host,
            )
            for number, each in enumerate((device, *peers))
        ]
        if early is not None:
            early.take()
        self._ready: queue.SimpleQueue[_Pending | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, args=(station,), name=f"lane-{number}", daemon=True)
            for number, station in enumerate(self._stations)
        ]
        self._serving = len(self._stations)
        self._serving_lock = threading.Lock()
        self._claims: list[_Pending] = []
        """The claims of the only lane's thread, in whose turn they are settled."""
        self._builds_ahead: dict[str, list[BuildFuture]] = {}
        """By candidate: what was begun before anyone asked for an evaluation."""
        self._beside: tuple[Callable[[], None], ...] = ()
        """To be done while the baseline is built and checked."""
        self._notes: list[str] = []
        self._measured_code = MeasuredCode()
        self._allowed = NOTHING
        """What the baseline keeps between launches in variables of its own, and candidates may."""
        self._order = tuple(workload.name for workload in problem.workloads)
        """The workloads in an evaluation: cheapest first, once the baseline has told which are."""
        self._is_closed = False
        self._budget_end_s: float | None = None
        """When the budget is over, by `time.monotonic`; None: it has no limit in time."""

    # -- the runner seam -----------------------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """Requests worth having in flight; more while some only wait for a proof."""
        ahead = LOOK_AHEAD_IN_TURNS if self._device.shares_host_cores else LOOK_AHEAD
        count = max(self._settings.build_processes * ahead, len(self._stations) * LANE_LOOK_AHEAD)
        return count + min(count, len(self._claims))

    @property
    def builds_ahead(self) -> bool:
        """Whether builds disturb nothing, so that they may begin before the baseline is proven."""
        return not self._device.shares_host_cores

    def build_ahead(self, candidates: Sequence[Candidate]) -> None:
        """Begin to build what will be asked for soon, in this order; nothing where that would disturb."""
        if not self.builds_ahead:
            return
        for candidate in candidates:
            rendered = render(candidate, self._problem, self._device)
            if not isinstance(rendered, Failed) and candidate.id not in self._builds_ahead:
                self._builds_ahead[candidate.id] = self._submit(rendered)

    @property
    def notes(self) -> Sequence[str]:
        """What a person should know of the calibration."""
        return (*self._stations[0].lane.process.notes, *self._notes)

    def submit(self, request: EvaluationRequest) -> EvaluationFuture:
        """Queue one evaluation; builds start at once on a GPU, in turns on a CPU device."""
        start_s = time.perf_counter()
        future: EvaluationFuture = Future()
        rendered = render(request.candidate, self._problem, self._device)
        if isinstance(rendered, Failed):
            cost = Cost(framework_s=time.perf_counter() - start_s)
            future.set_result((rendered, cost))
            return future
        pending = _Pending(request, rendered, future, [], time.perf_counter() - start_s)
        self._turns.request_builds(lambda: self._start_builds(pending))
        return future

    def calibrate(self, baseline: Candidate, *, is_timed: bool = True) -> tuple[Passed, Cost]:
        """Build, check and time the baseline on every workload and dataset; must come before `submit`.

        Without `is_timed` it is only checked.

        Raises:
            BaselineFailed: it does not build, run, or agree with the reference.
            ReferenceFailed: the reference is broken.
        """
        works, self._beside = self._beside, ()
        with done_beside(works) as end:
            return self._calibrated(baseline, end if self._device.shares_host_cores else None, is_timed=is_timed)

    def do_beside(self, works: Sequence[Callable[[], None]]) -> None:
        """Have `works` done in another thread while `calibrate` builds and checks the baseline.

        They are over when it ends. On a device that shares the host's cores none goes on while anything is timed:
        those that have not begun by then are left out.
        """
        self._beside = tuple(works)

    def _calibrated(
        self, baseline: Candidate, end_beside: Callable[[], None] | None, *, is_timed: bool
    ) -> tuple[Passed, Cost]:
        """`calibrate`; `end_beside` ends what would disturb times."""
        built, build_s, is_cached = self._build_now(baseline)
        self._allow(built)
        start_s = time.perf_counter()
        with self._stations[0].held_for_launches() as lane:
            errors = lane.calibrate(built, may_defer=len(self._stations) == 1, left_s=self._left_s)
            deferred_s = lane.deferred_s
        check_s = time.perf_counter() - start_s
        if not is_timed:
            return Passed((), errors, resources_of(built)), Cost(build_s, check_s)
        if end_beside is not None:
            end_beside()
        with ThreadPoolExecutor(max_workers=len(self._stations)) as threads:
            peers = [threads.submit(_adopt, station, built) for station in self._stations[1:]]
            with self._stations[0].held() as lane:
                measured = lane.measure(built)
                lane.begin_later()
                process = lane.process
                get_backend(self._device.backend).keep_helpers(self._device, process.worker.folder)
            for station, peer in zip(self._stations[1:], peers, strict=True):
                error = peer.exception()
                if isinstance(error, KernelwrightError):
                    self._gives_up(station, error)
                elif error is not None:
                    raise error
        if isinstance(measured, Failed):
            hint = "try again when the machine is less busy" if measured.reason == "suspicious" else None
            raise BaselineFailed(f"the baseline cannot be timed: {measured.message}", hint=hint)
        times_ms = medians_ms(measured)
        # A candidate that fails or is hopeless on a cheap shape is never run on an expensive one.
        self._order = tuple(sorted(self._order, key=times_ms.__getitem__))
        time_s = time.perf_counter() - start_s - check_s
        later_s = confirm_s(process, measured)
        cost = Cost(build_s, check_s, time_s, is_build_cached=is_cached, deferred_s=deferred_s, confirm_s=later_s)
        return Passed(measured, errors, resources_of(built)), cost

    def keep_to(self, seconds: float | None, say: Callable[[str], None]) -> None:
        """Prove and compare with what is left of the budget in mind, and tell what takes long."""
        self._budget_end_s = None if seconds is None else time.monotonic() + seconds
        for station in self._stations:
            station.lane.process.say = say
            station.lane.process.left_s = self._left_s

    @property
    def _left_s(self) -> Callable[[], float] | None:
        end_s = self._budget_end_s
        return None if end_s is None else lambda: end_s - time.monotonic()

    def complete(self) -> None:
        """Hold the baseline against the datasets that calibration has left for later."""
        with self._stations[0].held_for_launches() as lane:
            lane.complete()

    def stop(self) -> None:
        """End all processes; what is under way fails."""
        self._is_closed = True
        self._close_lanes()
        self._pool.close()

    def compare(self, candidates: Sequence[Candidate], *, rounds: int) -> Comparison | None:
        """Measure `candidates` interleaved on every workload."""
        built = [self._build_now(candidate)[0] for candidate in candidates]
        kept = [_kept(each) for each in built]
        allowed = replace(kept[0], allows_assembly=self._problem.allows_assembly)
        keeping = {place: each.failure(allowed) for place, each in enumerate(kept)}
        known = {place: failure.message for place, failure in keeping.items() if failure is not None}
        with self._stations[0].held() as lane:
            check = functools.partial(lane.check, is_thorough=True)
            done, wrong = compare(lane.process, built, rounds=rounds, wrong=known, check=check)
        right = [place for place in range(len(candidates)) if place not in wrong]
        samples = {workload: tuple(each.samples_ms[place] for place in right) for workload, each in done.items()}
        rejected = {candidates[place].id: reason for place, reason in wrong.items()}
        conditions = {workload: each.conditions for workload, each in done.items() if each.conditions is not None}
        return Comparison(tuple(candidates[place].id for place in right), samples, rejected, conditions)

    def reproduce(self, original: Candidate, candidate: Candidate) -> Reproduction | Failed:
        """Launch both, which must build, on every workload and dataset, and compare what they wrote."""
        built = [self._build_now(each)[0] for each in (original, candidate)]
        failure = _kept(built[1]).failure(self._allowed)
        if failure is not None:
            return failure
        with self._stations[0].held_for_launches() as lane:
            return reproduced(lane, *built)

    def measure_ceilings(self) -> Mapping[str, float]:
        """What the device can do at most, by name; at least `copy_bytes_per_s` where a copy can be timed."""
        with self._stations[0].held() as lane:
            return lane.measure_ceilings()

    def __enter__(self) -> Self:
        self._desk.warm()
        for station in self._stations:
            station.lane.process.warm()
        self._pool.warm()
        if not self._device.shares_host_cores:
            names = [workload.name for workload in self._problem.workloads]
            self._desk.prefetch(names, is_essential=len(self._stations) == 1)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_closed = True
        self._ready.put(None)
        try:
            self._close_lanes()
            self._pool.close()
            for thread in self._threads:
                thread.join(timeout=5.0)
        finally:  # also when a second Ctrl-C comes
            self._close_lanes()  # again: a thread may have been about to start a worker
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _close_lanes(self) -> None:
        self._desk.close()
        for station in self._stations:
            station.close()

    # -- building ------------------------------------------------------------------------------------------------

    def _start_builds(self, pending: _Pending) -> None:
        if pending.future.cancelled():
            self._turns.builds_finished(makes_ready=False)
            return
        ahead = self._builds_ahead.pop(pending.request.candidate.id, None)
        pending.builds = ahead or self._submit(pending.rendered)
        remaining = threading.Semaphore(len(pending.builds) - 1)

        def one_done(_: BuildFuture) -> None:
            if not remaining.acquire(blocking=False):  # the last one
                self._builds_done(pending)

        for build in pending.builds:
            build.add_done_callback(one_done)

    def _submit(self, rendered: Sequence[Job]) -> list[BuildFuture]:
        return [self._pool.submit(unit, plans) for unit, plans in plans_by_unit(rendered).items()]

    def _builds_done(self, pending: _Pending) -> None:
        failure = _first_failure(pending.builds)
        if failure is None:
            self._ready.put(pending)
            self._turns.builds_finished(makes_ready=True)
            return
        if not pending.future.set_running_or_notify_cancel():
            pass  # nobody waits for it any more
        elif isinstance(failure, Failed):
            build_s, is_cached = _build_cost(pending.builds)
            cost = Cost(build_s=build_s, framework_s=pending.render_s, is_build_cached=is_cached)
            pending.future.set_result((failure, cost))
        else:
            pending.future.set_exception(failure)
        self._turns.builds_finished(makes_ready=False)

    def _build_now(self, candidate: Candidate) -> tuple[tuple[Job, ...], float, bool]:
        """Build outside the queue: for candidates that must build (the baseline, finalists)."""
        rendered = render(candidate, self._problem, self._device)
        if isinstance(rendered, Failed):
            raise BaselineFailed(f"cannot render: {rendered.message}")
        ahead = self._builds_ahead.pop(candidate.id, None)
        builds = ahead or self._submit(rendered)
        for built, _ in (build.result() for build in builds):
            if isinstance(built, Failed):
                raise BaselineFailed(f"the baseline does not build: {built.message}", hint=built.log or None)
        build_s, is_cached = _build_cost(builds)
        return _jobs(rendered, builds), build_s, is_cached

    def _allow(self, baseline: Sequence[Job]) -> None:
        """Candidates may keep what the baseline does; a person is told where that may make a speedup.

        Raises:
            BaselineFailed: it holds assembly, which the problem does not allow.
        """
        source = self._problem.baseline or self._problem.kernel
        self._allowed = replace(_kept(baseline), allows_assembly=self._problem.allows_assembly)
        if self._allowed.assembly and not self._allowed.allows_assembly:
            what = f"the baseline cannot be used: {self._allowed.assembly}"
            raise BaselineFailed(what, hint=ALLOW_ASSEMBLY, location=source.location)
        note = self._allowed.note(is_set_back=get_backend(self._device.backend).sets_state_back(self._device))
        for each in (note, ASSEMBLY_NOTE if self._allowed.allows_assembly else ""):
            if each and each not in self._notes:
                self._notes.append(each)

    # -- the lane's thread ---------------------------------------------------------------------------------------

    def _serve(self, station: _Station) -> None:
        while (pending := self._next(station)) is not None:
            if station.is_closed and not self._is_closed:
                self._ready.put(pending)  # for another device
                return
            self._turns.begin_measurement()
            if self._is_closed or not (pending.is_running or pending.future.set_running_or_notify_cancel()):
                self._turns.end_measurement()
                continue
            pending.is_running = True
            evaluation, is_done = None, False
            with handing_over(functools.partial(self._answer_with, pending)):
                try:
                    evaluation = self._evaluate(pending, station)
                    is_done = True
                except InfrastructureError as error:
                    if self._gives_up(station, error):
                        self._ready.put(pending)  # for another device
                        return
                    raise
            if is_done:
                self._turns.end_measurement()
            if evaluation is not None:
                pending.future.set_result(evaluation)
        self._ready.put(None)  # for the next thread

    def _next(self, station: _Station) -> _Pending | None:
        """What to do next; until there is something, what was left for later is seen to."""
        while (self._claims or not station.lane.is_complete) and not self._is_closed:
            if station.lane.can_complete:
                self._settle(station)
            try:
                return self._ready.get(timeout=IDLE_S)
            except queue.Empty:
                continue
        return self._ready.get()

    def _settle(self, station: _Station) -> None:
        """Once every dataset can be judged on: prove the claims that wait, fastest first.

        Whoever is then slower than what was just proven claims nothing any more.
        """
        with handing_over(self._refuse_claims), station.held_for_launches() as lane:
            lane.complete()
            best: list[Incumbent] = []
            for claim in sorted(self._claims, key=lambda each: each.order):
                evaluation = self._settled(claim, lane, best)
                self._claims.remove(claim)
                claim.future.set_result(evaluation)

    def _refuse_claims(self, error: Exception) -> None:
        claims, self._claims = self._claims, []
        for claim in claims:
            claim.future.set_exception(error)

    def _settled(self, claim: _Pending, lane: DeviceLane, best: list[Incumbent]) -> tuple[Outcome, Cost]:
        """The evaluation of a claim; `best` are what earlier ones have proven, and take it in."""
        request, times_ms = claim.request, claim.claimed_ms
        assert request.incumbent is not None  # what it claims to beat
        assert claim.claim is not None
        outcome: Outcome
        outcome, cost = claim.claim
        if all(each.is_beaten_by(times_ms) for each in (request.incumbent, *best)):
            outcome, cost = proven(lane, claim.built, *claim.claim)
            if isinstance(outcome, Passed):
                best.append(request.incumbent.after(times_ms))
        self._measured_code.add(claim.built, request, outcome)
        return outcome, cost

    def _answer_with(self, pending: _Pending, error: Exception) -> None:
        self._turns.end_measurement()
        pending.future.set_exception(error)

    def _place(self, built: Job) -> int:
        return self._order.index(built.workload)

    def _gives_up(self, station: _Station, error: KernelwrightError) -> bool:
        """Whether a device that failed is left out from now on; the last one never is."""
        with self._serving_lock:
            if self._is_closed or self._serving == 1:
                return False
            self._serving -= 1
        station.close()
        self._notes.append(f"{station.device.id} failed and is left out from here on: {error}")
        return True

    def _evaluate(self, pending: _Pending, station: _Station) -> tuple[Outcome, Cost] | None:
        """None for a claim that waits: it is answered when it is settled."""
        start_s = time.perf_counter()
        request = pending.request
        built = pending.built = tuple(sorted(_jobs(pending.rendered, pending.builds), key=self._place))
        build_s, is_cached = _build_cost(pending.builds)
        failure = _kept(built).failure(self._allowed)
        if failure is not None:
            cost = Cost(build_s, framework_s=pending.render_s, is_build_cached=is_cached)
            return failure, cost
        known = self._measured_code.find(built, request)
        if known is not None:
            cost = Cost(build_s, framework_s=pending.render_s, is_build_cached=is_cached)
            return known, cost
        with station.held() as lane:
            waited_s = time.perf_counter() - start_s
            before_s = lane.process.worker_seconds
            outcome, cost = check_and_time(lane, built, request)
            inside_s = lane.process.worker_seconds - before_s
        own_s = time.perf_counter() - start_s - waited_s - inside_s + pending.render_s
        is_claim = must_be_proven(outcome, request)
        if isinstance(outcome, Passed) and is_claim and station.lane.is_complete:
            with station.held_for_launches() as lane:
                outcome, cost = proven(lane, built, outcome, cost)
            is_claim = False
        cost = replace(cost, build_s=build_s, framework_s=max(own_s, 0.0), is_build_cached=is_cached)
        outcome = _in_order(outcome, self._problem)
        if isinstance(outcome, Passed) and is_claim:
            pending.claim = outcome, cost
            self._claims.append(pending)
            return None
        self._measured_code.add(built, request, outcome)
        return outcome, cost


def _kept(built: Sequence[Job]) -> Kept:
    return kept_by([each.artifact for each in built])


def _may_be_hosted(device: DeviceInfo, settings: EvaluationSettings) -> bool:
    """Whether the process that asked for devices may open one: it has no limit of memory, and a CPU needs it not."""
    return not device.shares_host_cores and settings.worker_memory_bytes is None


def _in_order(outcome: Outcome, problem: Problem) -> Outcome:
    """With measurements in the problem's order of workloads, whatever order they were taken in."""
    if isinstance(outcome, Failed):
        return outcome
    by_name = {each.workload: each for each in outcome.measurements}
    ordered = tuple(by_name[workload.name] for workload in problem.workloads if workload.name in by_name)
    return replace(outcome, measurements=ordered)


def _adopt(station: _Station, built: Sequence[Job]) -> None:
    """Have a peer show that it works, with the referee as the first device's lane left it."""
    with station.held() as lane:
        lane.adopt(built)


def _jobs(rendered: Sequence[Job], builds: Sequence[BuildFuture]) -> tuple[Job, ...]:
    """What the device is to launch, once everything is built."""
    built = (build.result()[0] for build in builds)
    artifacts = {each.unit.id: each for each in built if isinstance(each, Artifact)}
    return tuple(built_job(each, artifacts[each.unit.id]) for each in rendered)


def _build_cost(builds: Sequence[BuildFuture]) -> tuple[float, bool]:
    """Seconds of all builds, and whether every one of them came from the cache."""
    costs = [build.result()[1] for build in builds if build.exception() is None]
    return sum(cost.build_s for cost in costs), all(cost.is_build_cached for cost in costs)


def _first_failure(builds: Sequence[BuildFuture]) -> Failed | BaseException | None:
    for build in builds:
        if build.cancelled():
            return InfrastructureError("the build was given up, because the run is being stopped")
        error = build.exception()
        if error is not None:
            return error if isinstance(error, KernelwrightError) else InfrastructureError(f"the build pool: {error}")
        built, _ = build.result()
        if isinstance(built, Failed):
            return built
    return None

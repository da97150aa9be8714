"""The side that asks: a run whose device is behind a spool. It needs no device, no driver and no compiler.

```
machine = SpoolMachine(Path("spool"))
with machine.begin(subject, files, settings) as site:      # waits until a worker has answered
    ...
```
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from kernelwright.backend.base import DeviceInfo
from kernelwright.errors import InfrastructureError, KernelwrightError, StoreError
from kernelwright.evaluate.base import MeasuringRunner
from kernelwright.evaluate.process.scratch import make_scratch
from kernelwright.identity import content_id
from kernelwright.problem.outcome import STAGES, Cost, Failed, Passed
from kernelwright.remote.base import Elsewhere, Finalist, NodeDone, NodeJob
from kernelwright.remote.folder import SpoolFolder
from kernelwright.remote.helper import helped
from kernelwright.remote.messages import (
    HAS_ENDED,
    KEEPS_JOBS,
    Begin,
    Begun,
    CompareAnswered,
    CompareAsked,
    NodeAnswered,
    NodeAsked,
    Race,
    Refused,
    Request,
    RequestContext,
    Result,
    WorkerSeen,
    device_of,
    error_of,
)
from kernelwright.remote.runners import RAY, SLURM, SPOOL, read_slurm
from kernelwright.remote.site import Comparing
from kernelwright.roofline.speed_of_light import Ceilings
from kernelwright.store.codec import FormatTooNew, RecordDamaged, decode, encode, verify
from kernelwright.store.event import (
    BaselineMeasured,
    Evaluated,
    Event,
    FinalistsCompared,
    RunStarted,
    TemplateProven,
)
from kernelwright.store.run_folder import default_run_path
from kernelwright.template.model import Candidate
from kernelwright.tuning.environment import environment
from kernelwright.tuning.objective import medians_ms
from kernelwright.tuning.settings import TuneSettings
from kernelwright.tuning.tune import TuningProblem

_R = TypeVar("_R", bound=Result)

POLL_S = 0.5
"""How often a result is looked for."""

DRIFT = 1.1
"""How far the baseline's time may be from what it was when the run began. A guess."""

DRIFT_OF_CPU = 1.5
"""On a device that shares the host's cores, whose times move with what else the host does. A guess."""

SEEN_S = 30.0
"""A worker that was seen so long ago is taken to be there."""

TELL_S = 30.0
"""How often a person is told what is waited for."""


OWN_POLL_S = 0.1
"""The same in a spool of this machine, or of jobs that a run waits for."""


def machine_of(runner: str, say: Callable[[str], None] | None) -> SpoolMachine:
    """The machine that words say, see `remote.runners`."""
    if runner.startswith(SPOOL):
        return SpoolMachine(Path(runner.removeprefix(SPOOL)), say=say)
    is_ray = runner.partition(":")[0] == RAY
    folder = None if is_ray else read_slurm(runner.removeprefix(SLURM)).get("spool")
    return SpoolMachine(Path(folder) if folder is not None else None, runner=runner, poll_s=OWN_POLL_S, say=say)


@dataclass(slots=True)
class _Meter:
    """Seconds that workers have spent on a run: what its budget counts, because a copy may take any time."""

    _seconds: float = 0.0
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def add(self, seconds: float) -> None:
        """Count what one request took."""
        with self._lock:
            self._seconds += seconds

    def read(self) -> float:
        """All so far."""
        return self._seconds


class SpoolMachine:
    """`--runner spool:DIR`; and with a `runner` that brings devices, the spool of its own between them and the run."""

    def __init__(
        self,
        path: Path | None,
        *,
        runner: str = "",
        poll_s: float = POLL_S,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            path: the spool; None: a new one, for as long as this machine is open.
            runner: brings devices to it, see `remote.runners`; empty: whoever serves it is there, or comes.
            poll_s: how often a result is looked for.
            say: is told, now and then, what is waited for.
        """
        self._path = path
        self._runner = runner
        self._poll_s = poll_s
        self._say = say
        self._open = contextlib.ExitStack()
        self._folder: SpoolFolder | None = None
        self._check: Callable[[], None] | None = None
        """Raises what has ended the process that brings devices; None: there is none."""
        self._mailboxes: list[_Mailbox] = []
        self._is_stopped = False

    def begin(self, subject: TuningProblem, files: Mapping[str, bytes], settings: TuneSettings) -> SpoolSite:
        """Ask for the device's facts and the baseline's times, and wait for them.

        Raises:
            BaselineFailed: as the worker says.
            ReferenceFailed: as the worker says.
            UsageError: no device there fits.
            StoreError: the spool cannot be written.
        """
        mailbox = self._begun()
        work = _work(mailbox, subject, files, settings)
        request = Begin(work)
        identity = mailbox.ask(("begin", dict(work.files), dict(work.settings)), request)
        try:
            begun = mailbox.wait(identity, Begun)
        finally:
            mailbox.folder.end(identity)  # nobody can ask for it again: its seed is this run's
        mailbox.meter.add(begun.worked_s)
        return SpoolSite(mailbox, work, device_of(begun.device), begun)

    def again(
        self, subject: TuningProblem, files: Mapping[str, bytes], settings: TuneSettings, started: RunStarted
    ) -> SpoolSite:
        """The same for a run that has begun: everything that it needs to know is recorded."""
        mailbox = self._begun()
        return SpoolSite(mailbox, _work(mailbox, subject, files, settings), device_of(started.device), None)

    def _mailbox(self) -> _Mailbox:
        """On the spool; what brings devices to it is started once."""
        if self._folder is None:
            self._folder = SpoolFolder(self._path or self._new_folder())
        if self._runner and self._check is None:
            self._check = self._open.enter_context(helped(self._folder, self._runner))
        return _Mailbox(self._folder, self._runner, poll_s=self._poll_s, say=self._say, check=self._check)

    def _begun(self) -> _Mailbox:
        """A mailbox for a run, which `stop` ends."""
        self._mailboxes.append(mailbox := self._mailbox())
        if self._is_stopped:  # read behind the append: `stop` writes it first, and one of the two finds the other
            mailbox.stop()
        return mailbox

    def device_count(self) -> int:
        """Devices that were seen of late; where some are brought, once the first is there.

        Raises:
            KernelwrightError: none can be brought.
        """
        mailbox = self._mailbox()
        while self._check is not None and not mailbox.every():
            self._check()
            mailbox.tell()
            time.sleep(self._poll_s)
        return len(mailbox.seen())

    def stop(self) -> None:
        """Let every run that waits go, with `KeyboardInterrupt`; also those that begin before `close`."""
        self._is_stopped = True
        for mailbox in list(self._mailboxes):
            mailbox.stop()

    def _new_folder(self) -> Path:
        """Of this machine alone; for jobs where runs lie, which all nodes see."""
        path = default_run_path("spool") if self._runner.startswith(SLURM) else make_scratch()
        self._open.callback(shutil.rmtree, path, ignore_errors=True)
        return path

    def close(self) -> None:
        """End what was started."""
        self._open.close()
        self._folder = self._check = None
        self._mailboxes.clear()
        self._is_stopped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Mailbox:
    """Requests out, results in; safe to use from several threads."""

    def __init__(
        self,
        folder: SpoolFolder,
        runner: str = "",
        *,
        poll_s: float,
        say: Callable[[str], None] | None,
        check: Callable[[], None] | None = None,
    ) -> None:
        """`check` raises once nobody can answer any more."""
        self.folder = folder
        self._place = runner or f"the spool {folder.path}"
        self._check = check
        self.meter = _Meter()
        self._poll_s = poll_s
        self._say = say
        self._stopped = threading.Event()
        self._waiting: dict[str, str] = {}
        self._lock = threading.Lock()
        self._told_s = time.monotonic()

    def stop(self) -> None:
        """Let everyone who waits go."""
        self._stopped.set()

    def ask(self, key: tuple[object, ...], request: Request) -> str:
        """Put a request into the spool unless it lies there; gives its id.

        The id follows from what is asked for, so a resumed run finds what it asked for before it was killed. What came
        to nothing by a failure of the machine is asked for anew.
        """
        attempt = 0
        while self.folder.is_ended(identity := content_id("request", *key, attempt)):
            attempt += 1
        self.folder.put("requests", identity, request)
        return identity

    def wait(self, identity: str, kind: type[_R]) -> _R:
        """The result of a request.

        Raises:
            KernelwrightError: the worker refused it, as it says.
            KeyboardInterrupt: `stop` was called.
            InfrastructureError: what brings devices has ended.
        """
        with self._lock:
            self._waiting[identity] = kind.__name__
        try:
            while (result := self._result(identity)) is None:
                if self._check is not None:
                    self._check()
                self.tell()
                if self._stopped.wait(self._poll_s):
                    raise KeyboardInterrupt
        finally:
            with self._lock:
                self._waiting.pop(identity, None)
        if isinstance(result, Refused):
            self.folder.end(identity)
            raise _error(result)
        if not isinstance(result, kind):
            raise StoreError(f"the result {identity} of the spool answers another question", hint="start a new spool")
        return result

    def _result(self, identity: str) -> object | None:
        return self.folder.message("results", identity)

    def tell(self) -> None:
        """Say now and then what is waited for."""
        now_s = time.monotonic()
        with self._lock:
            if self._say is None or now_s - self._told_s < TELL_S:
                return
            self._told_s = now_s
            waiting = list(self._waiting)
        there = {identity for identity, _, _ in self.folder.ids("results")}
        torn = [each for each in waiting if each in there and self._result(each) is None]
        words = f" ({len(torn)} are there and incomplete: copy them again)" if torn else ""
        count = {0: "a device", 1: "a result"}.get(len(waiting), f"{len(waiting)} results")
        self._say(f"waiting for {count} of {self._place}{words}; {self._workers()}")

    def seen(self) -> list[WorkerSeen]:
        """Workers that were seen within `SEEN_S`, by this machine's clock, and have not ended."""
        return [each for each in self.every() if time.time() - each.seen_s < SEEN_S and each.doing != HAS_ENDED]

    def every(self) -> list[WorkerSeen]:
        """All workers that have ever said something, the last one last; none that look after jobs."""
        seen = []
        for file in sorted((self.folder.path / "workers").glob("*.json")):
            with contextlib.suppress(StoreError):
                message = self.folder.message("workers", file.stem)
                if isinstance(message, WorkerSeen) and message.doing != KEEPS_JOBS:
                    seen.append(message)
        return sorted(seen, key=lambda each: each.seen_s)

    def _workers(self) -> str:
        seen = self.every()
        if not seen and self._check is not None:
            return "no device is there yet"
        if not seen:
            return "no worker was seen yet: run `kernelwright worker --spool DIR` on the other machine"
        last = seen[-1]
        return f"{last.worker} was seen {max(0.0, time.time() - last.seen_s):.0f} s ago ({last.doing})"


class SpoolSite:
    """A run's other machine."""

    def __init__(self, mailbox: _Mailbox, work: RequestContext, device: DeviceInfo, begun: Begun | None) -> None:
        """`begun` None: the run is resumed."""
        self._mailbox = mailbox
        self._work = dataclasses.replace(work, device_name=device.name)
        self._device = device
        self._begun = begun
        self._run: _Run | None = None
        self._drifts: dict[str, str] = {}
        """By worker, in words."""

    def of_run(self, started: RunStarted, baseline: BaselineMeasured) -> None:
        """Say which run asks; before anything else is asked for."""
        assert isinstance(baseline.outcome, Passed)  # calibration raises otherwise
        self._run = _Run(started.run_id, _line(started), _line(baseline), medians_ms(baseline.outcome.measurements))

    @property
    def device(self) -> DeviceInfo:
        """As the worker described it."""
        return self._device

    @property
    def runner(self) -> MeasuringRunner | None:
        """None: single candidates are not carried."""
        return None

    @property
    def elsewhere(self) -> Elsewhere:
        """Itself."""
        return self

    @property
    def notes(self) -> Sequence[str]:
        """The worker's, of the calibration; and where the baseline took another time later."""
        return (*(self._begun.notes if self._begun else ()), *self._drifts.values())

    @property
    def environment(self) -> Mapping[str, str]:
        """The worker's, and where the run was led from."""
        if self._begun is None:
            return environment()
        return {**self._begun.environment, "worker": self._begun.worker, "led_from": environment()["system"]}

    def now_s(self) -> float:
        """What workers have spent on this run."""
        return self._mailbox.meter.read()

    def ceilings(self) -> Ceilings:
        """As the worker measured them."""
        return dict(self._begun.ceilings) if self._begun else {}

    def calibrate(self, baseline: Candidate) -> tuple[Passed, Cost]:
        """As the worker measured it when the run began.

        Raises:
            InfrastructureError: it was another baseline, or this run began without one.
        """
        event = _event(self._begun.baseline) if self._begun else None
        if not isinstance(event, BaselineMeasured) or event.candidate_id != baseline.id:
            raise InfrastructureError(
                "the worker measured another baseline than this run has",
                hint="use the same version of Kernelwright on both machines, and start the run anew",
            )
        if not isinstance(event.outcome, Passed):
            raise InfrastructureError(f"the worker's baseline did not pass: {event.outcome.message}")
        return event.outcome, event.cost

    def calibrate_again(self, baseline: Candidate) -> None:
        """Nothing: workers calibrate by themselves."""

    # -- elsewhere -----------------------------------------------------------------------------------------------

    def search(self, job: NodeJob) -> NodeDone:
        """Ask for a node, and wait."""
        run, folder = self._known_run(), self._mailbox.folder
        request = NodeAsked(
            work=self._work,
            run_id=run.id,
            started=run.started,
            baseline=run.baseline,
            race=Race(dict(job.best_ms), job.best_value),
            node=job.index,
            node_files=folder.put_files(job.files),
            log=folder.put_file(job.log),
            blobs=folder.put_files(job.blobs),
            evaluations=job.evaluations,
            seconds=job.seconds,
            template_points=job.proof_points,
            template_seconds=job.proof_seconds,
            origin_files=folder.put_files(job.origin),
            proof=_line(job.proof) if job.proof else "",
        )
        key = ("node", run.id, job.index, job.evaluated_count, job.evaluations)
        answer = self._mailbox.wait(self._mailbox.ask(key, request), NodeAnswered)
        self._mailbox.meter.add(answer.worked_s)
        self._note_drift(answer, run.baseline_ms)
        events = [_event(line) for line in answer.events]
        if not all(isinstance(event, Evaluated) for event in events):
            raise StoreError(f"the result of node {job.index} holds events of another kind")
        found = [event for event in events if isinstance(event, Evaluated)]
        if [event.index for event in found] != list(range(job.evaluated_count, job.evaluated_count + len(found))):
            raise StoreError(f"the result of node {job.index} does not go on where the node ends")
        proof = _event(answer.proof) if answer.proof else None
        if proof is not None and not (isinstance(proof, TemplateProven) and proof.index == job.index):
            raise StoreError(f"the result of node {job.index} holds the proof of something else")
        return NodeDone(found, answer.reason, _failed(answer.failure), proof)

    def compare(self, comparing: Comparing) -> FinalistsCompared | None:
        """Ask for a comparison, and wait; as many spares as finalists take the places of what is rejected."""
        wanted = list(comparing.choose(frozenset()))
        if not wanted:
            return None
        spares = list(comparing.choose(frozenset(each.candidate.id for each in wanted)))[: len(wanted)]
        every = [*wanted, *spares]
        nodes = sorted({each.node for each in every})
        run, folder = self._known_run(), self._mailbox.folder
        request = CompareAsked(
            work=self._work,
            run_id=run.id,
            nodes={str(node): folder.put_files(comparing.files(node)) for node in nodes},
            entries=tuple(Finalist(each.node, each.candidate.id, dict(each.candidate.config)) for each in every),
            count=len(wanted),
            rounds=comparing.rounds,
            seconds=comparing.seconds,
        )
        key = ("compare", run.id, [each.candidate_id for each in request.entries], request.count)
        answer = self._mailbox.wait(self._mailbox.ask(key, request), CompareAnswered)
        self._mailbox.meter.add(answer.worked_s)
        event = _event(answer.comparison) if answer.comparison else None
        if event is not None and not isinstance(event, FinalistsCompared):
            raise StoreError("the result of the comparison holds an event of another kind")
        return event

    def _note_drift(self, answer: NodeAnswered, baseline_ms: Mapping[str, float]) -> None:
        """Remember a worker on which the baseline takes another time than it did when the run began."""
        now_ms = {name: time_ms for name, time_ms in answer.baseline_ms.items() if name in baseline_ms}
        if not now_ms:
            return
        ratios = {name: time_ms / baseline_ms[name] for name, time_ms in now_ms.items()}
        name = max(ratios, key=lambda each: abs(math.log(ratios[each])))
        limit = DRIFT_OF_CPU if self._device.shares_host_cores else DRIFT
        if abs(math.log(ratios[name])) > math.log(limit):
            took = f"on worker {answer.worker} the baseline took {ratios[name]:.2f} times as long on workload {name}"
            words = f"{took} as when the run began: what the search measured there is off by about as much; "
            self._drifts.setdefault(answer.worker, words + "the final comparison is not")

    def stop(self) -> None:
        """Let everyone who waits go; the requests stay in the spool, and a resumed run finds their results."""
        self._mailbox.stop()

    def _known_run(self) -> _Run:
        assert self._run is not None, "of_run comes first"
        return self._run

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


@dataclass(frozen=True, slots=True)
class _Run:
    id: str
    started: str
    baseline: str
    baseline_ms: Mapping[str, float]


def _work(
    mailbox: _Mailbox, subject: TuningProblem, files: Mapping[str, bytes], settings: TuneSettings
) -> RequestContext:
    return RequestContext(
        problem_name=subject.problem.name,
        files=mailbox.folder.put_files(files),
        settings=settings.as_record(),
        language=subject.baseline.template.language,
    )


def _line(event: Event) -> str:
    return encode(event, 0).decode().rstrip("\n")


def _event(line: str) -> Event | None:
    """The event of a line that came through the spool."""
    try:
        return decode(verify(line.encode()))
    except (RecordDamaged, FormatTooNew) as error:
        hint = "use the same version of Kernelwright on both machines"
        raise StoreError(f"a result of the spool holds an event that cannot be read: {error}", hint=hint) from error


def _failed(record: Mapping[str, str] | None) -> Failed | None:
    if record is None:
        return None
    stage = record.get("stage", "")
    if stage not in STAGES:
        raise StoreError(f"a result of the spool names the stage {stage[:40]!r}, which this version does not know")
    return Failed(stage, record.get("reason", ""), record.get("message", ""), record.get("log", ""))


def _error(refused: Refused) -> KernelwrightError:
    """What the worker raised, said again here."""
    error = error_of(refused)
    error.message = f"the worker {refused.worker} says: {error.message}"
    return error

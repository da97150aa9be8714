"""What a worker does with one request: everything as a run of this machine would do it.

```
with Desk(spool, machine) as desk:
    answer = desk.answer(request)
```
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast, get_args

from kernelwright.backend.base import DeviceInfo
from kernelwright.errors import EmptySpace, SpecError, StoreError, UsageError
from kernelwright.evaluate.base import Incumbent, MeasuringRunner
from kernelwright.evaluate.process.scratch import make_scratch, reserve
from kernelwright.identity import content_id
from kernelwright.optimization.nodes.proof import TemplateProof, constraints_of, proof_of
from kernelwright.optimization.nodes.run import NodeContext, NodeRun, unlimited
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import Cost, Failed, Passed
from kernelwright.remote.folder import SpoolFolder
from kernelwright.remote.messages import (
    Begin,
    Begun,
    CompareAnswered,
    CompareAsked,
    Files,
    NodeAnswered,
    NodeAsked,
    Request,
    RequestContext,
    Result,
    check_files,
)
from kernelwright.remote.site import LocalSite
from kernelwright.source.language import Language
from kernelwright.store.codec import FormatTooNew, RecordDamaged, decode, encode, verify
from kernelwright.store.event import BaselineMeasured, Evaluated, Event, RunStarted, TemplateProven
from kernelwright.store.run_folder import RunFolder
from kernelwright.template.model import Candidate
from kernelwright.tuning.environment import environment, usable_core_count
from kernelwright.tuning.finals.node_finals import Entrant, compare_entrants
from kernelwright.tuning.listener import RunListener, SilentListener
from kernelwright.tuning.machine import Machine
from kernelwright.tuning.objective import medians_ms
from kernelwright.tuning.settings import TuneSettings
from kernelwright.tuning.tune import TuningProblem


class OtherDevice(Exception):
    """The run began on a device that is not here: another worker may have it."""


@dataclass(slots=True)
class _Session:
    """A problem that is loaded and calibrated, on a runner that is open."""

    key: str
    subject: TuningProblem
    device: DeviceInfo
    site: LocalSite
    baseline: tuple[Passed, Cost] | None = None

    @property
    def runner(self) -> MeasuringRunner:
        return self.site.runner


class Desk:
    """Answers requests one after the other; requests of the same problem share processes and calibration."""

    def __init__(
        self, spool: SpoolFolder, machine: Machine, *, listener: RunListener | None = None, device: str | None = None
    ) -> None:
        """Nothing is started yet.

        Args:
            spool: where the files of problems are.
            machine: gives devices and runners.
            listener: hears what is evaluated.
            device: overrides what requests say.
        """
        self._spool = spool
        self._machine = machine
        self._listener = listener or SilentListener()
        self._selector = device
        self._scratch = Path()
        """While it is open."""
        self._session: _Session | None = None
        self._open = contextlib.ExitStack()
        self._devices: dict[tuple[str | None, str], DeviceInfo] = {}

    # -- what it is good for -------------------------------------------------------------------------------------

    def key(self, work: RequestContext) -> str:
        """Requests with the same key share a session."""
        return session_key(work, self.device(work))

    @property
    def open_key(self) -> str | None:
        """The key of the session that is open."""
        return self._session.key if self._session else None

    def device(self, work: RequestContext) -> DeviceInfo:
        """The device for a request.

        Raises:
            OtherDevice: the run began on another one.
            UsageError: none fits.
            MissingDependency: nothing here runs the language.
        """
        selector = self._selector or settings_of(work).device
        found = self._devices.get((selector, work.language))
        if found is None:
            if work.language not in get_args(Language):
                raise UsageError(f"{work.language!r} is no language that this version knows")
            found = self._machine.device(selector, cast("Language", work.language))
            self._devices[selector, work.language] = found
        return on_device(work, found)

    # -- answers -------------------------------------------------------------------------------------------------

    def answer(self, request: Request) -> Result:
        """What comes of a request.

        Raises:
            UserError: the problem, its reference or its baseline is wrong.
            StoreError: the request is.
            InfrastructureError: the machine failed.
            KeyboardInterrupt: Ctrl-C; nothing of the request counts.
        """
        start_s = time.monotonic()
        session = self._session_for(request.work)
        if not isinstance(request, Begin):
            start_s = time.monotonic()  # a run pays for its calibration once
        match request:
            case Begin():
                answer: Begun | NodeAnswered | CompareAnswered = self._begun(session)
            case NodeAsked():
                answer = self._searched(session, request)
            case CompareAsked():
                answer = self._compared(session, request)
        return dataclasses.replace(answer, worked_s=time.monotonic() - start_s)

    def _begun(self, session: _Session) -> Begun:
        assert session.baseline is not None
        ceilings = session.site.ceilings()
        event = BaselineMeasured(session.subject.baseline.id, *session.baseline)
        return Begun(
            device=dataclasses.asdict(session.device),
            environment=environment(),
            ceilings=dict(ceilings),
            baseline=_line(event),
            notes=tuple(session.runner.notes),
            worked_s=0.0,
            worker=socket.gethostname(),
        )

    def _searched(self, session: _Session, request: NodeAsked) -> NodeAnswered:
        folder = self._scratch / f"node-{request.node:03d}"
        shutil.rmtree(folder, ignore_errors=True)
        shared = self._shared(session, request)
        try:
            given = self._write_run(folder, request)
            run = NodeRun.open(request.node, folder, shared)
            try:
                answer = self._proven_and_searched(run, shared, session, request)
                events = tuple(_line(event) for event in run.evaluations[given:])
            finally:
                run.close()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        assert session.baseline is not None
        baseline, _ = session.baseline
        return dataclasses.replace(answer, events=events, baseline_ms=medians_ms(baseline.measurements))

    def _proven_and_searched(
        self, run: NodeRun, shared: NodeContext, session: _Session, request: NodeAsked
    ) -> NodeAnswered:
        answer = NodeAnswered((), "", 0.0, socket.gethostname())
        done = proof_of(run, shared, self._original(session, request))
        if isinstance(done, SpecError | EmptySpace):
            raise done
        failed, reproduction = done
        if isinstance(failed, Failed):
            record = {"stage": failed.stage, "reason": failed.reason, "message": failed.message, "log": failed.log}
            return dataclasses.replace(answer, failure=record)
        if not run.parameters:
            return answer
        if request.template_points is not None and not isinstance(reproduction, Failed):
            points, seconds = request.template_points, request.template_seconds
            proof = TemplateProof(run, shared, points=points, seconds=seconds, seed=shared.settings.seed)
            answer = dataclasses.replace(answer, proof=_line(proof.prove(reproduction)))
        elif request.proof:
            known = _event(request.proof.encode())
            if isinstance(known, TemplateProven):
                run.exclude(constraints_of(known.excluded))
        reason = run.search(evaluations=request.evaluations, seconds=request.seconds)
        if reason == "interrupted":
            raise KeyboardInterrupt
        return dataclasses.replace(answer, reason=reason)

    def _original(self, session: _Session, request: NodeAsked) -> Candidate | None:
        """What a lifted template is held against; None: it is none."""
        if request.template_points is None:
            return None
        if not request.origin_files:
            return session.subject.baseline
        template = self._loaded(self._scratch / "origin", request.origin_files).template
        return Candidate(template, template.default)

    def _compared(self, session: _Session, request: CompareAsked) -> CompareAnswered:
        templates = {
            int(index): self._loaded(self._scratch / f"final-{int(index):03d}", files)
            for index, files in request.nodes.items()
        }
        entrants = []
        for entry in request.entries:
            candidate = Candidate(templates[entry.node].template, Config(dict(entry.config)))
            if candidate.id != entry.candidate_id:
                raise StoreError(
                    f"finalist {entry.candidate_id} of node {entry.node} is {candidate.id} here",
                    hint="use the same version of Kernelwright on both machines",
                )
            entrants.append(Entrant(entry.node, candidate, _NO_EVENT))
        start_s = time.monotonic()

        def choose(rejected: frozenset[str]) -> Sequence[Entrant]:
            return [each for each in entrants if each.candidate.id not in rejected][: request.count]

        def is_late() -> bool:
            return request.seconds is not None and time.monotonic() - start_s > request.seconds

        event = compare_entrants(
            session.runner,
            session.subject.baseline,
            choose,
            rounds=request.rounds,
            on_step=lambda: None,
            is_late=is_late,
        )
        return CompareAnswered(_line(event) if event is not None else "", 0.0, socket.gethostname())

    # -- a session -----------------------------------------------------------------------------------------------

    def _session_for(self, work: RequestContext) -> _Session:
        key = self.key(work)
        if self._session is not None and self._session.key == key:
            return self._session
        self.close()
        settings, device = settings_of(work), self.device(work)
        subject = self._loaded(self._scratch / "problem", work.files)
        runner = self._machine.runner(subject.problem, device, settings)
        site = LocalSite(runner, device)
        self._open.enter_context(site)
        session = _Session(key, subject, device, site)
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            session.baseline = site.calibrate(subject.baseline)
            undo.pop_all()
        self._session = session
        return session

    def _loaded(self, folder: Path, files: Files) -> TuningProblem:
        shutil.rmtree(folder, ignore_errors=True)
        check_files(files)
        name = _problem_file(files)
        for path, data in self._spool.files(files).items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            reserve(target, len(data))
            target.write_bytes(data)
        return TuningProblem.load(folder / name)

    def _write_run(self, folder: Path, request: NodeAsked) -> int:
        """The node's run as it stands over there; gives how many evaluations it has."""
        check_files(request.node_files)
        log = self._spool.file(request.log)
        if log is None:
            raise StoreError("the spool does not hold the log of a node", hint="copy the whole spool")
        with RunFolder.create(folder, files=self._spool.files(request.node_files)) as run:
            for identity, data in self._spool.files(request.blobs).items():
                if run.blobs.put(data) != identity:
                    raise StoreError(f"the blob {identity[:40]!r} of node {request.node} is another one")
            events = [_event(line) for line in log.splitlines()]
            run.append([event for event in events if event is not None])
        return sum(isinstance(event, Evaluated) for event in events)

    def _shared(self, session: _Session, request: NodeAsked) -> NodeContext:
        started, baseline = _event(request.started.encode()), _event(request.baseline.encode())
        if not isinstance(started, RunStarted) or not isinstance(baseline, BaselineMeasured):
            raise StoreError("a request does not hold the start of its run")
        if not isinstance(baseline.outcome, Passed):
            raise StoreError("a request holds a baseline that failed")
        baseline_ms = medians_ms(baseline.outcome.measurements)
        weights = {each.name: each.weight for each in session.subject.problem.workloads}
        if request.race.best_ms.keys() != weights.keys() or baseline_ms.keys() != weights.keys():
            raise StoreError("a request's times are of other workloads than its problem has")
        return NodeContext(
            started=started,
            baseline=baseline,
            baseline_ms=baseline_ms,
            weights=weights,
            device=session.device,
            settings=unlimited(settings_of(request.work)),
            runner=session.runner,
            incumbent=Incumbent(baseline_ms, weights, dict(request.race.best_ms), request.race.value),
            listener=self._listener,
        )

    def close(self) -> None:
        """End the processes of the open session."""
        self._session = None
        self._open.close()

    def __enter__(self) -> Self:
        """Make the folder that problems and runs are written into."""
        self._scratch = make_scratch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)


def session_key(work: RequestContext, device: DeviceInfo) -> str:
    """Requests with the same key share what was calibrated."""
    evaluation = settings_of(work).evaluation(is_cpu=device.kind == "cpu", core_count=usable_core_count())
    return content_id(dict(work.files), evaluation, device.id, work.language)


def on_device(work: RequestContext, found: DeviceInfo) -> DeviceInfo:
    """The device, if it is the one that the run began on.

    Raises:
        OtherDevice: it is another one.
    """
    if work.device_name and found.name != work.device_name:
        raise OtherDevice(f"the run began on {work.device_name!r}, and here is {found.name!r}")
    return found


_NO_EVENT: Any = None
"""A worker's entrants were ranked by the other side."""


def settings_of(work: RequestContext) -> TuneSettings:
    """How a request is measured.

    Raises:
        StoreError: its settings cannot be read.
    """
    try:
        return TuneSettings.from_record(work.settings)
    except TypeError as error:
        raise StoreError(f"the settings of a request cannot be read: {error}") from error


def _problem_file(files: Files) -> str:
    if "problem.toml" in files:
        return "problem.toml"
    found = sorted(name for name in files if name.endswith(".toml") and "/" not in name)
    if len(found) != 1:
        raise StoreError(f"a problem of a request has {len(found)} TOML files where problem.toml was expected")
    return found[0]


def _line(event: Event) -> str:
    return encode(event, 0).decode().rstrip("\n")


def _event(line: bytes) -> Event | None:
    try:
        return decode(verify(line))
    except (RecordDamaged, FormatTooNew) as error:
        hint = "use the same version of Kernelwright on both machines"
        raise StoreError(f"a request holds an event that cannot be read: {error}", hint=hint) from error

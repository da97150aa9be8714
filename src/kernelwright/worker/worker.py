"""The side that has the device: takes requests out of a spool, one after the other, and writes what comes of them.

```
spool = SpoolFolder(path)
ended = SpoolWorker(spool, Desk(spool, machine), say=print).run(until_idle=True)
```
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Protocol, Self

from kernelwright.backend.base import DeviceInfo
from kernelwright.errors import InfrastructureError, KernelwrightError, MissingDependency, ScratchFull, StoreError
from kernelwright.remote.envelope import SpoolTooNew
from kernelwright.remote.folder import SpoolFolder
from kernelwright.remote.messages import (
    HAS_ENDED,
    Begin,
    CompareAsked,
    NodeAsked,
    Request,
    RequestContext,
    Result,
    WorkerSeen,
    all_files,
    refusal,
)
from kernelwright.worker.claims import LEASE_S, Claims, Lease
from kernelwright.worker.server import OtherDevice

MOST_ATTEMPTS = 3
"""A request at which so many workers have failed is refused."""

POLL_S = 1.0
"""How often a worker with nothing to do looks again."""

GRACE_S = 5.0
"""`until_idle`: how long an incomplete file may stay as it is before the worker leaves without it."""

BEAT_S = 5.0
IN_A_ROW = 8
"""Requests of the problem that is open go first, so many at a time: another problem must be calibrated first."""


@dataclass(slots=True)
class Ended:
    """What a worker has done."""

    done: int = 0
    refused: int = 0
    left: dict[str, str] = field(default_factory=dict)
    """Requests that were left, by id, and why."""
    is_interrupted: bool = False


@dataclass(frozen=True, slots=True)
class _Seen:
    """A request as it lies there."""

    id: str
    request: Request
    files: frozenset[str]


class _RequestDesk(Protocol):
    """Does requests: on this machine it is `server.Desk`, on others `fleet` has one for each of their devices."""

    @property
    def open_key(self) -> str | None:
        """The key of the session that is open."""
        ...

    def key(self, work: RequestContext) -> str:
        """Requests with the same key share a session.

        Raises:
            KernelwrightError: as `device`.
        """
        ...

    def device(self, work: RequestContext) -> DeviceInfo:
        """The device for a request.

        Raises:
            OtherDevice: the run began on another one, or another desk has one that fits.
            UsageError: none fits.
            MissingDependency: nothing here runs the language.
        """
        ...

    def answer(self, request: Request) -> Result:
        """What comes of a request.

        Raises:
            KernelwrightError: what is wrong with it, or with the machine.
            KeyboardInterrupt: the work is to end; nothing of the request counts.
        """
        ...

    def close(self) -> None:
        """End the session: after a failure the next request begins with a new one."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class SpoolWorker:
    """See the module."""

    def __init__(
        self,
        spool: SpoolFolder,
        desk: _RequestDesk,
        *,
        say: Callable[[str], None] = lambda _text: None,
        name: str = "",
        stop: threading.Event | None = None,
        lease_s: float = LEASE_S,
        poll_s: float = POLL_S,
        grace_s: float = GRACE_S,
    ) -> None:
        """`say` is told of every request; `name` is said in place of the host's; after `stop` no request is begun."""
        self._spool = spool
        self._say = say
        self._desk = desk
        self._stop = stop or threading.Event()
        self._host = name or socket.gethostname()
        self._claims = Claims(spool.path / "claims", lease_s=lease_s)
        self._poll_s = poll_s
        self._grace_s = grace_s
        self._name = re.sub(r"[^A-Za-z0-9._-]+", "_", f"{self._host}-{os.getpid()}")[:100]
        self._known: dict[str, tuple[tuple[float, int], _Seen]] = {}
        self._done: set[str] = set()
        self._whole: set[str] = set()
        self._in_a_row = 0
        self._doing = "waiting"
        self.ended = Ended()

    def run(self, *, until_idle: bool, seconds: float | None = None) -> Ended:
        """Work until nothing is left (`until_idle`), no request may begin any more (`seconds`), `stop`, or Ctrl-C.

        Raises:
            ScratchFull: there is no room; nobody is blamed.
            StoreError: the spool cannot be written.
        """
        end_s = None if seconds is None else time.monotonic() + seconds
        idle_since_s: float | None = None
        has_ended = threading.Event()
        beat = threading.Thread(target=self._beat, args=(has_ended,), name="beat", daemon=True)
        beat.start()
        try:
            with self._desk:
                while not self._stop.is_set() and (end_s is None or time.monotonic() < end_s):
                    if self._step():
                        idle_since_s = None
                        continue
                    now_s = time.monotonic()
                    idle_since_s = idle_since_s or now_s
                    is_waiting = bool(self.ended.left) and now_s - idle_since_s < self._grace_s
                    if until_idle and not is_waiting:
                        break
                    self._stop.wait(min(self._poll_s, self._grace_s))
        except KeyboardInterrupt:
            self.ended.is_interrupted = True
        finally:
            has_ended.set()
            beat.join()
            self._doing = HAS_ENDED
            self._tell_of_itself()
        return self.ended

    # -- one request ---------------------------------------------------------------------------------------------

    def _step(self) -> bool:
        """Do one request; false when there is none to do."""
        seen = self._next()
        if seen is None or self._stop.is_set():
            return False
        claim = self._claims.take(seen.id)
        if claim is None:
            return True  # somebody was faster; look again
        if self._is_done(seen.id):
            self._claims.give_back(seen.id)
            return True
        self._doing = _words(seen.request)
        start_s = time.monotonic()
        try:
            with self._claims.held(seen.id, claim):
                self._answer(seen, claim, start_s)
        except KeyboardInterrupt:
            self._claims.give_back(seen.id)
            raise
        finally:
            self._doing = "waiting"
        return True

    def _answer(self, seen: _Seen, claim: Lease, start_s: float) -> None:
        self._say(f"{self._doing}: begins")
        try:
            if claim.attempt > MOST_ATTEMPTS:
                raise InfrastructureError(f"{MOST_ATTEMPTS} workers began with this request, and none came to an end")
            result = self._desk.answer(seen.request)
        except ScratchFull:
            self._claims.give_back(seen.id)
            raise
        except InfrastructureError as error:
            self._desk.close()
            if claim.attempt < MOST_ATTEMPTS:
                self._say(f"{self._doing}: attempt {claim.attempt} failed: {error.message}")
                self._claims.fail(seen.id, claim)
                return
            self._refuse(seen, error)
            return
        except KernelwrightError as error:
            self._refuse(seen, error)
            return
        self._spool.put("results", seen.id, result)
        self._claims.give_back(seen.id)
        self.ended.done += 1
        self._say(f"{self._doing}: done after {time.monotonic() - start_s:.1f} s{_outcome(result)}")

    def _refuse(self, seen: _Seen, error: KernelwrightError) -> None:
        refused = refusal(error, self._host)
        self._spool.put("results", seen.id, refused)
        self._claims.give_back(seen.id)
        self.ended.refused += 1
        self._say(f"{self._doing}: refused: {refused.message.splitlines()[0]}")

    # -- choosing ------------------------------------------------------------------------------------------------

    def _next(self) -> _Seen | None:
        """The next request to do: of the problem that is open, else the oldest; one that failed before comes last."""
        self.ended.left.clear()
        ready: list[tuple[int, int, _Seen]] = []
        for place, (identity, changed_s, size) in enumerate(self._spool.ids("requests")):
            if self._is_done(identity):
                continue
            seen = self._read(identity, (changed_s, size))
            if seen is None or not self._is_suited(seen):
                continue
            attempts = self._claims.earlier_attempts(identity)
            if attempts is not None:
                ready.append((attempts, place, seen))
        if not ready:
            return None
        ready.sort(key=lambda each: each[:2])
        first = ready[0]
        same = [each for each in ready if each[0] == first[0] and self._key(each[2]) == self._desk.open_key]
        chosen = same[0] if same and self._in_a_row < IN_A_ROW else first
        self._in_a_row = self._in_a_row + 1 if self._key(chosen[2]) == self._desk.open_key else 0
        return chosen[2]

    def _is_done(self, identity: str) -> bool:
        if identity in self._done:
            return True
        try:
            is_done = self._spool.is_ended(identity) or self._spool.message("results", identity) is not None
        except StoreError:
            is_done = True  # another version has answered it
        if is_done:
            self._done.add(identity)
        return is_done

    def _read(self, identity: str, facts: tuple[float, int]) -> _Seen | None:
        """A request that is whole, with all its files; else why it is left is noted."""
        known = self._known.get(identity)
        if known is None or known[0] != facts:
            try:
                message = self._spool.message("requests", identity)
                if message is None:
                    self.ended.left[identity] = "it is incomplete: its copy is under way, or was cut off"
                    return None
                if not isinstance(message, Begin | NodeAsked | CompareAsked):
                    raise StoreError("it asks for nothing")
                known = (facts, _Seen(identity, message, frozenset(all_files(message))))
            except SpoolTooNew as error:
                self.ended.left[identity] = error.message
                return None
            except StoreError as error:
                self.ended.left[identity] = f"it cannot be read: {error.message}"
                return None
            self._known[identity] = known
        missing = [name for name in known[1].files if not self._has(name)]
        if missing:
            self.ended.left[identity] = f"{len(missing)} of its files are not here, or not whole yet"
            return None
        return known[1]

    def _has(self, name: str) -> bool:
        if name not in self._whole and self._spool.file(name) is not None:
            self._whole.add(name)
        return name in self._whole

    def _is_suited(self, seen: _Seen) -> bool:
        """Whether the device that it needs is here. A new run that no device fits is answered so."""
        try:
            self._desk.device(seen.request.work)
        except OtherDevice as error:
            self.ended.left[seen.id] = str(error)
            return False
        except MissingDependency as error:
            self.ended.left[seen.id] = error.message
            return False
        except KernelwrightError:
            return True  # `answer` says so
        return True

    def _key(self, seen: _Seen) -> str | None:
        try:
            return self._desk.key(seen.request.work)
        except KernelwrightError:
            return None

    # -- being there ---------------------------------------------------------------------------------------------

    def _beat(self, stop: threading.Event) -> None:
        while True:
            self._tell_of_itself()
            if stop.wait(BEAT_S):
                return

    def _tell_of_itself(self) -> None:
        message = WorkerSeen(self._host, os.getpid(), time.time(), self._doing)
        try:
            self._spool.replace("workers", self._name, message)
        except StoreError:
            return  # for people only


@contextlib.contextmanager
def ends_as_interrupt(numbers: Sequence[signal.Signals] = (signal.SIGTERM,)) -> Iterator[None]:
    """Inside, signals by which a batch system ends its jobs are Ctrl-C, so that a claim is given back."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _words(request: Request) -> str:
    """A request in words."""
    name = request.work.problem_name
    match request:
        case Begin():
            return f"{name}: the device and the baseline"
        case NodeAsked():
            return f"{name}: node {request.node} of run {request.run_id[:8]} up to {request.evaluations} evaluations"
        case CompareAsked():
            return f"{name}: {request.count} finalists of run {request.run_id[:8]}"


def _outcome(result: object) -> str:
    """What came of a request, in words."""
    fields: Mapping[str, object] = {}
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        fields = {each.name: getattr(result, each.name) for each in dataclasses.fields(result)}
    events = fields.get("events")
    return f", {len(events)} evaluated" if isinstance(events, tuple) else ""

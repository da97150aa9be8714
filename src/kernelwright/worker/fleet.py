"""Answers a spool's requests on the devices of a cluster: a lane for each, which takes requests as a worker does.

```
serve_cluster(SpoolFolder(path), slots, say=print)        # until Ctrl-C
```
What a lane asks for was claimed by it, so claims, leases, attempts and the order of requests are those of `worker`.
A device that is lost gives its request back, and another one begins it anew; what comes to the cluster is used.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from kernelwright.backend.base import DeviceInfo
from kernelwright.errors import InfrastructureError, KernelwrightError, MissingDependency, UsageError
from kernelwright.remote.folder import SpoolFolder
from kernelwright.remote.messages import (
    Begin,
    Begun,
    CompareAnswered,
    NodeAnswered,
    Refused,
    Request,
    RequestContext,
    Result,
    WorkerSeen,
    all_files,
    device_of,
    error_of,
)
from kernelwright.worker.server import OtherDevice, on_device, session_key, settings_of
from kernelwright.worker.slot import as_text, facts_of_version, from_text
from kernelwright.worker.worker import MOST_ATTEMPTS, Ended, SpoolWorker

LOOK_S = 2.0
"""How often the cluster is asked what it has."""

PATIENCE_S = 60.0
"""How long a cluster without any device is waited for: a node that was lost may be replaced."""

POLL_S = 0.2
"""How often a lane with nothing to do looks again: the spool is a folder of this machine, or of its network."""

END_S = 10.0
"""How long lanes have for their end."""


class _RemoteSlot(Protocol):
    """One device of a cluster, and the `slot.DeviceSlot` beside it."""

    def call(self, method: str, *arguments: object) -> bytes:
        """What a method of the slot gives.

        Raises:
            InfrastructureError: it is lost, with whatever it was doing.
            KeyboardInterrupt: `close` was called.
        """
        ...

    def close(self) -> None:
        """End it with all its processes; from any thread, at any time, more than once."""
        ...


Slots = Callable[[], Mapping[str, Callable[[], "_RemoteSlot"]]]
"""Asks a cluster for its devices of now: by name, how each is opened, which may wait until it is free.

Raises `InfrastructureError` when the cluster cannot be asked. The real one is `ray_cluster.ray_slots`.
"""


@dataclass(slots=True)
class _Fits:
    """Which lanes have a device for what is asked, as far as they know."""

    lanes: set[str] = field(default_factory=set)
    without: dict[tuple[str | None, str], set[str]] = field(default_factory=dict)
    """By selector and language."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def is_nowhere(self, key: tuple[str | None, str], lane: str) -> bool:
        """Note that a lane has none; whether none has."""
        with self.lock:
            self.without.setdefault(key, set()).add(lane)
            return self.lanes <= self.without[key]


class _SlotDesk:
    """A slot as the desk of a worker."""

    def __init__(
        self,
        name: str,
        slot: _RemoteSlot,
        spool: SpoolFolder,
        fits: _Fits,
        fails: Callable[[InfrastructureError], None],
    ) -> None:
        """`fails` is told once the slot, or its machine, has failed."""
        self._name = name
        self._slot = slot
        self._spool = spool
        self._fits = fits
        self._fails = fails
        self._open_key: str | None = None
        self._devices: dict[tuple[str | None, str], DeviceInfo | KernelwrightError] = {}
        self._sent: set[str] = set()

    @property
    def open_key(self) -> str | None:
        """Of the request that it has answered last."""
        return self._open_key

    def key(self, work: RequestContext) -> str:
        """As on this machine."""
        return session_key(work, self.device(work))

    def device(self, work: RequestContext) -> DeviceInfo:
        """As the slot says, which is asked once. Where another lane may have a device, this one leaves the request."""
        key, found = (settings_of(work).device, work.language), self._found(work)
        if isinstance(found, UsageError | MissingDependency):
            raise self._misfit(found) if self._fits.is_nowhere(key, self._name) else OtherDevice(str(found))
        if isinstance(found, InfrastructureError):
            self._fails(found)
        if isinstance(found, KernelwrightError):
            raise found
        return on_device(work, found)

    def _found(self, work: RequestContext) -> DeviceInfo | KernelwrightError:
        """The device, or why there is none."""
        key = (settings_of(work).device, work.language)
        if key not in self._devices:
            self._devices[key] = self._asked(work)
        return self._devices[key]

    def _asked(self, work: RequestContext) -> DeviceInfo | KernelwrightError:
        reply = from_text(self._call("device", as_text(Begin(work))))
        if isinstance(reply, Refused):
            return error_of(reply)  # which the machine may have failed with: asked again of a new slot alone
        if not isinstance(reply, WorkerSeen) or len(reply.devices) != 1:
            raise InfrastructureError(f"{self._name} did not say which device it has")
        return device_of(reply.devices[0])

    def answer(self, request: Request) -> Result:
        """By the slot, with the files that it has not had yet."""
        found = self._found(request.work)
        if isinstance(found, UsageError | MissingDependency):
            raise self._misfit(found)
        names = all_files(request)
        files = self._spool.files({name: name for name in names - self._sent})
        reply = from_text(self._call("answer", as_text(request), files))
        self._sent |= names
        if isinstance(reply, Refused):
            error = error_of(reply)
            if isinstance(error, InfrastructureError):
                self._fails(error)
            raise error
        if not isinstance(reply, Begun | NodeAnswered | CompareAnswered):
            raise InfrastructureError(f"{self._name} did not answer what it was asked")
        self._open_key = self.key(request.work)
        return dataclasses.replace(reply, worker=self._name)

    def _misfit(self, why: KernelwrightError) -> UsageError:
        """To be said to the run, which would wait for ever."""
        return UsageError(f"no device of the cluster fits; on {self._name}: {why.message}", hint=why.hint)

    def _call(self, method: str, *arguments: object) -> bytes:
        try:
            return self._slot.call(method, *arguments)
        except InfrastructureError as error:
            self._fails(error)
            raise

    def close(self) -> None:
        """The slot has closed its session by itself."""
        self._open_key = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._slot.close()


@dataclass(slots=True)
class _Lane:
    """A device's thread."""

    name: str
    stop: threading.Event = field(default_factory=threading.Event)
    slot: _RemoteSlot | None = None
    ended: Ended | None = None
    failure: str = ""
    is_final: bool = False
    """Whether it would fail again."""
    thread: threading.Thread | None = None

    def end(self) -> None:
        """Have it end soon."""
        self.stop.set()
        if self.slot is not None:
            self.slot.close()


def serve_cluster(
    spool: SpoolFolder,
    slots: Slots,
    *,
    say: Callable[[str], None] = lambda _text: None,
    stop: threading.Event | None = None,
    look_s: float = LOOK_S,
    patience_s: float = PATIENCE_S,
    poll_s: float = POLL_S,
) -> Ended:
    """Work until `stop` is set, or Ctrl-C.

    Raises:
        InfrastructureError: the cluster is gone, or has no device that can be used.
    """
    fleet = _Fleet(spool, slots, say, poll_s)
    return fleet.run(stop or threading.Event(), look_s=look_s, patience_s=patience_s)


class _Fleet:
    """See the module."""

    def __init__(self, spool: SpoolFolder, slots: Slots, say: Callable[[str], None], poll_s: float) -> None:
        self._spool = spool
        self._slots = slots
        self._say = say
        self._poll_s = poll_s
        self._lanes: dict[str, _Lane] = {}
        self._failures: dict[str, list[str]] = {}
        """By slot, in a row: why it could not be used."""
        self._given_up: set[str] = set()
        self._fits = _Fits()
        self._ended = Ended()

    def run(self, stop: threading.Event, *, look_s: float, patience_s: float) -> Ended:
        """See `serve_cluster`."""
        last_s = time.monotonic()
        try:
            while not stop.is_set():
                found = self._slots()
                self._look(found)
                if self._lanes:
                    last_s = time.monotonic()
                elif time.monotonic() - last_s > patience_s or self._is_hopeless(found):
                    raise InfrastructureError(f"no device of the cluster can be used: {self._reasons()}")
                stop.wait(look_s)
        except KeyboardInterrupt:
            self._ended.is_interrupted = True
        finally:
            self._end()
        return self._ended

    def _look(self, found: Mapping[str, Callable[[], _RemoteSlot]]) -> None:
        """Begin and drop lanes, as the cluster grows and shrinks."""
        for name, lane in list(self._lanes.items()):
            if lane.thread is not None and not lane.thread.is_alive():
                self._drop(lane)
            elif name not in found:
                lane.failure = lane.failure or "its node is gone; what it was doing begins anew elsewhere"
                lane.end()
        new = [name for name in found if name not in self._lanes and name not in self._given_up]
        with self._fits.lock:
            self._fits.lanes.update(new)  # all of them, before the first says that no device fits
        for name in new:
            lane = self._lanes[name] = _Lane(name)
            arguments = (lane, found[name])
            lane.thread = threading.Thread(target=self._serve, args=arguments, name=f"lane-{name}", daemon=True)
            lane.thread.start()

    def _drop(self, lane: _Lane) -> None:
        """Count what a lane has done, and why it ended."""
        del self._lanes[lane.name]
        with self._fits.lock:
            self._fits.lanes.discard(lane.name)
            for without in self._fits.without.values():
                without.discard(lane.name)
        if lane.ended is not None:
            self._ended.done += lane.ended.done
            self._ended.refused += lane.ended.refused
        failures = self._failures.setdefault(lane.name, [])
        if lane.ended is not None and lane.ended.done:
            failures.clear()
        if lane.failure:
            failures.append(lane.failure)
            self._say(f"{lane.name}: {lane.failure}")
        if lane.is_final or len(failures) >= MOST_ATTEMPTS:
            self._given_up.add(lane.name)
            self._say(f"{lane.name}: is given up")

    def _serve(self, lane: _Lane, start: Callable[[], _RemoteSlot]) -> None:
        """A lane's thread."""
        try:
            slot = lane.slot = start()
            try:
                if lane.stop.is_set() or not self._is_same_version(lane, slot):
                    return
                self._say(f"{lane.name}: is there")
                worker = self._worker(lane, slot)
                lane.ended = worker.ended
                worker.run(until_idle=False)
            finally:
                slot.close()
        except KeyboardInterrupt:
            return
        except KernelwrightError as error:
            lane.failure = error.message
        except Exception as error:  # whatever it is, other lanes go on
            lane.failure = f"{type(error).__name__}: {error}"

    def _worker(self, lane: _Lane, slot: _RemoteSlot) -> SpoolWorker:
        def fails(error: InfrastructureError) -> None:
            """A new process is tried before the next request: one that is ill would fail at all, and fast."""
            lane.failure = error.message
            lane.stop.set()

        desk = _SlotDesk(lane.name, slot, self._spool, self._fits, fails)

        def say(text: str) -> None:
            self._say(f"{lane.name}: {text}")

        return SpoolWorker(self._spool, desk, say=say, name=lane.name, stop=lane.stop, poll_s=self._poll_s)

    def _is_same_version(self, lane: _Lane, slot: _RemoteSlot) -> bool:
        about = json.loads(slot.call("about"))
        for what, here in facts_of_version().items():
            if about.get(what) != here:
                lane.failure = f"it has {what} {about.get(what)}, and here is {here}: install the same on all nodes"
                lane.is_final = True
                return False
        return True

    def _is_hopeless(self, found: Mapping[str, object]) -> bool:
        """Whether all that is there was given up."""
        return bool(found) and self._given_up >= found.keys()

    def _reasons(self) -> str:
        told = [f"{name}: {reasons[-1]}" for name, reasons in sorted(self._failures.items()) if reasons]
        return "; ".join(told) or "no node offers a GPU or a CPU"

    def _end(self) -> None:
        """End all lanes, beside each other: each may take seconds. Behind it nobody uses the cluster any more."""
        closing = [threading.Thread(target=lane.end, daemon=True) for lane in self._lanes.values()]
        for thread in closing:
            thread.start()
        end_s = time.monotonic() + END_S
        serving = [lane.thread for lane in self._lanes.values() if lane.thread is not None]
        for thread in (*closing, *serving):
            thread.join(max(0.0, end_s - time.monotonic()))
        for lane in list(self._lanes.values()):
            self._drop(lane)

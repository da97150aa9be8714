"""The process beside one device of a cluster: requests in, results out, as bytes, whatever carries them.

```
slot = DeviceSlot()                    # in a process of its own on the device's machine
slot.device(envelope)                  # the device that fits a request, as an envelope
slot.answer(envelope, files)           # what comes of it, as an envelope; files: those it lacks, by digest
```
Whoever calls it learns errors as `Refused`, so that nothing but bytes and text crosses.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from kernelwright.errors import InfrastructureError, KernelwrightError, StoreError
from kernelwright.evaluate.process.child import forget_secrets
from kernelwright.evaluate.process.scratch import make_scratch, sweep_own
from kernelwright.remote import envelope
from kernelwright.remote.folder import SpoolFolder
from kernelwright.remote.messages import Begin, CompareAsked, Message, NodeAsked, WorkerSeen, kind_of, parse, refusal
from kernelwright.tuning.machine import LocalMachine, Machine
from kernelwright.version import VERSION
from kernelwright.worker.server import Desk

NO_ID = "0" * 16
"""Of a message that no file holds."""


def as_text(message: Message) -> bytes:
    """A message as it crosses."""
    return envelope.encode(kind_of(message), NO_ID, message)


def from_text(data: bytes) -> Message:
    """The message that crossed.

    Raises:
        StoreError: it is none, or of another version.
    """
    found = envelope.decode(data, file=Path("a message"))
    if found is None:
        raise StoreError("a message from another machine is damaged")
    return parse(found.kind, found.body)


def facts_of_version() -> dict[str, str]:
    """What has to be the same on all machines."""
    return {"Kernelwright": VERSION, "spool format": str(envelope.FORMAT)}


class DeviceSlot:
    """See the module. One call at a time, but `end`."""

    def __init__(self, machine: Callable[[], Machine] = LocalMachine, device: str | None = None) -> None:
        """`device` overrides what requests say. Keys in the environment are dropped, so that no request finds one."""
        forget_secrets(but="RAY_")  # whose own token the process goes on needing
        self._spool = SpoolFolder(make_scratch() / "spool")
        self._desk = Desk(self._spool, machine(), device=device).__enter__()

    def about(self) -> bytes:
        """Host, process and versions, as JSON."""
        return json.dumps({"host": socket.gethostname(), "process": os.getpid(), **facts_of_version()}).encode()

    def device(self, request: bytes) -> bytes:
        """The device that fits a request, whichever its run began on; or why none does."""
        try:
            work = self._request(request).work
            device = self._desk.device(dataclasses.replace(work, device_name=""))
        except KernelwrightError as error:
            return as_text(refusal(error, socket.gethostname()))
        record = dataclasses.asdict(device)
        return as_text(WorkerSeen(socket.gethostname(), os.getpid(), time.time(), "", (record,)))

    def answer(self, request: bytes, files: Mapping[str, bytes]) -> bytes:
        """What comes of a request, or why nothing does. After a failure of the machine the session is closed."""
        try:
            for data in files.values():
                self._spool.put_file(data)
            return as_text(self._desk.answer(self._request(request)))
        except KernelwrightError as error:
            if isinstance(error, InfrastructureError):
                self._desk.close()
            return as_text(refusal(error, socket.gethostname()))

    def end(self) -> NoReturn:
        """Leave at once, whatever another thread is doing; worker processes end with this one."""
        sweep_own()
        os._exit(0)

    @staticmethod
    def _request(data: bytes) -> Begin | NodeAsked | CompareAsked:
        message = from_text(data)
        if not isinstance(message, Begin | NodeAsked | CompareAsked):
            raise StoreError("a message from another machine asks for nothing")
        return message

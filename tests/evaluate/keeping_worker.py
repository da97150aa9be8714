"""A device worker that keeps inputs although its device does not tell how much memory is free."""

from __future__ import annotations

from kernelwright.backend.registry import get_backend
from kernelwright.evaluate.device.worker import DeviceWorker


def make_keeping_worker(argument):
    session = get_backend(argument.device.backend).open(argument.device)
    return DeviceWorker(session, kept_bytes=1 << 28).handle

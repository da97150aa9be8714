"""A worker as a CPU device has it, which also compiles, so that the driver's linker runs under the filter."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from kernelwright.backend.base import BoundBuffer, BoundLaunch, BufferArgument, BuildUnit, PlanStep
from kernelwright.backend.registry import get_backend


def make_confined_worker(device):
    backend = get_backend("opencl")
    session = backend.open(device)
    session.confine()

    def handle(job):
        """Launch the kernel `k` of a source on `count` integers of 64 bits; give them, and the session's notes."""
        source, count = job
        step = PlanStep("k", (1, 1, 1), (1, 1, 1), 0, (BufferArgument("x", 8 * count),))
        folder = Path(tempfile.mkdtemp())
        module = session.load(backend.compile(BuildUnit("opencl", source, "k.cl", (), (), ("k",)), device, folder))
        buffer = session.allocate(8 * count)
        session.fill(buffer, b"\0", 8 * count)
        for _ in range(2):
            session.forget_module_memory()
            session.forget_thread_memory()
            session.time([BoundLaunch(module, step, {"x": BoundBuffer(buffer, 0, 8 * count)})])
        out = np.empty(8 * count, np.uint8)
        session.download(buffer, out)
        return out.view(np.int64).tolist(), session.notes

    return handle

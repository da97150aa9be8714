"""Runs rewritten templates on the OpenCL CPU device, in a process of their own, and compares them with the original."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernelwright.backend.opencl.cpu.processor import name_processor

Array = npt.NDArray[Any]
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Launch:
    """One launch with numbers; arguments are names of arrays, `("local", bytes)`, or numpy scalars."""

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Job:
    """A program with its launches; every array is guarded by poison on both sides."""

    source: str
    macros: tuple[tuple[str, str], ...]
    options: tuple[str, ...]
    launches: tuple[Launch, ...]
    arrays: Mapping[str, Array]
    repeats: int = 0
    """More than 0: also measure, the least of so many."""


@dataclass(frozen=True)
class Result:
    """Arrays after the launches, or what went wrong."""

    arrays: Mapping[str, Array]
    error: str = ""
    best_ms: float = 0.0


GUARD_BYTES = 4096
BINARIES = Path(__file__).parents[2] / ".pytest_cache" / "pocl"
"""What PoCL has compiled, by source, options and version: most of these tests' time, spared when they run again."""


def _serve(connection: Connection) -> None:
    os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
    os.environ.setdefault("POCL_CACHE_DIR", str(BINARIES))
    import pyopencl as cl

    device = next(
        d for p in cl.get_platforms() for d in p.get_devices() if "Portable" in p.name or "pocl" in p.name.lower()
    )
    name_processor(device.int_ptr)
    context = cl.Context([device])
    queue = cl.CommandQueue(context)
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        try:
            connection.send(_run(cl, context, queue, job))
        except Exception as error:
            connection.send(Result({}, f"{type(error).__name__}: {error}"))


def _run(cl: Any, context: Any, queue: Any, job: Job) -> Result:
    options = [*job.options, *(f"-D{name}={value}" for name, value in job.macros)]
    program = cl.Program(context, job.source).build(options=options)
    whole, views = {}, {}
    for name, array in job.arrays.items():
        size = array.nbytes + 2 * GUARD_BYTES
        image = np.full(size, 0xA5, np.uint8)
        image[GUARD_BYTES : GUARD_BYTES + array.nbytes] = array.reshape(-1).view(np.uint8)
        whole[name] = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=image)
        views[name] = whole[name].get_sub_region(GUARD_BYTES, max(array.nbytes, 1))
    kernels = []
    for launch in job.launches:
        kernel = cl.Kernel(program, launch.entry)
        for index, argument in enumerate(launch.arguments):
            if isinstance(argument, str):
                kernel.set_arg(index, views[argument])
            elif isinstance(argument, tuple):
                kernel.set_arg(index, cl.LocalMemory(argument[1]))
            else:
                kernel.set_arg(index, argument)
        shape = tuple(g * b for g, b in zip(launch.grid, launch.block, strict=True))
        kernels.append((kernel, shape, launch.block))

    def once() -> None:
        for kernel, size, block in kernels:
            cl.enqueue_nd_range_kernel(queue, kernel, size, block)
        queue.finish()

    once()
    results = {}
    for name, array in job.arrays.items():
        image = np.empty(array.nbytes + 2 * GUARD_BYTES, np.uint8)
        cl.enqueue_copy(queue, image, whole[name])
        queue.finish()
        edges = np.concatenate((image[:GUARD_BYTES], image[GUARD_BYTES + array.nbytes :]))
        if (edges != 0xA5).any():
            return Result({}, f"{name}: written outside")
        results[name] = image[GUARD_BYTES : GUARD_BYTES + array.nbytes].view(array.dtype).reshape(array.shape)
    best = 0.0
    if job.repeats:
        times = []
        for _ in range(job.repeats):
            start = time.perf_counter()
            once()
            times.append(time.perf_counter() - start)
        best = min(times) * 1e3
    return Result(results, "", best)


class Runner:
    """Keeps one worker process; a crash or a hang costs that worker, and is a result."""

    def __init__(self) -> None:
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None

    def run(self, job: Job, *, timeout_s: float = TIMEOUT_S) -> Result:
        """What a job gives."""
        if self._process is None or not self._process.is_alive():
            self._start()
        assert self._pipe is not None
        try:
            self._pipe.send(job)
            if not self._pipe.poll(timeout_s):
                self.close()
                return Result({}, "hang")
            result: Result = self._pipe.recv()
        except (EOFError, OSError):
            self.close()
            return Result({}, "crash")
        return result

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def close(self) -> None:
        """End the worker."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process = self._pipe = None

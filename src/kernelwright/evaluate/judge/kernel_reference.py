"""The original kernel as the reference: launched by the referee, on a session of its own, in a wider type.

Floats are doubles in the kernel's text and in memory, where the text and the device allow that; else the kernel runs as
it is. Integers are exact either way. No candidate is ever loaded here.
"""

from __future__ import annotations

import contextlib
import inspect
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernelwright.backend.base import (
    Backend,
    BoundBuffer,
    BoundLaunch,
    Buffer,
    BufferArgument,
    BuildFailed,
    DeviceInfo,
    DeviceSession,
    LaunchFailed,
    Module,
)
from kernelwright.backend.registry import BACKENDS, get_backend
from kernelwright.errors import InfrastructureError, ReferenceFailed
from kernelwright.evaluate.builds.render import render_workload
from kernelwright.evaluate.data.array_threads import Crew
from kernelwright.evaluate.device.arena import Job
from kernelwright.evaluate.words import ORIGINAL_IS_REFERENCE
from kernelwright.infer.text.widen import widened, widening
from kernelwright.problem.dtypes import DTYPES
from kernelwright.problem.model import Argument, Problem, Workload
from kernelwright.problem.reference import Reference
from kernelwright.template.load import load_reference_kernel
from kernelwright.template.model import Candidate

Array = npt.NDArray[Any]

LONG_LAUNCH_S = 0.5
"""A launch on zeros that takes so long tells enough."""

OTHER_SHARE = 0.9
"""Of a result's norm: a kernel that differs by more in doubles is another one (guess; sums in halves that stand still
lose about half)."""

_FAST = ("fast-relaxed-math", "unsafe-math", "finite-math", "fast_math", "single-precision-constant", "ftz=true")
"""Parts of compile options that make arithmetic less exact."""


_CONVERTED_TOGETHER = 1 << 18
"""Elements of one thread, at least."""


class KernelReference:
    """Runs the original kernel; everything happens in one thread, which alone knows the device."""

    def __init__(self, problem: Problem) -> None:
        """Opens nothing yet.

        Raises:
            SpecError: the reference's source does not fit the problem.
        """
        self._problem = problem
        original = load_reference_kernel(problem)
        options = tuple(each for each in original.template.options if not any(part in each for part in _FAST))
        self._original = Candidate(replace(original.template, options=options), original.config)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reference")
        self._open: tuple[Backend, DeviceInfo, DeviceSession] | None = None
        self._modules: dict[str, Module] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._launch_s = 0.0
        """Seconds of the last launch, from its request to its end."""
        self._kept: dict[str, tuple[Array, Buffer, int]] = {}
        """By input of the kernel in doubles: what was uploaded last (nobody changes it in place), where, its bytes."""
        self._crew = Crew()
        text = widened(original.template.source, original.template.language)
        kinds = {DTYPES[each.dtype].kind == "float" for each in problem.outputs}
        self._has_floats = any(DTYPES[each.dtype].kind == "float" for each in problem.arguments)
        self._is_compared = False
        """Whether the kernel in doubles was once held against the kernel as it is."""
        self.is_lost = False
        """Whether its device cannot be used any more: no failure from then on says anything of inputs."""
        self._narrow_because = ""
        """Why the kernel runs in its own types; empty: it does not, or has no floats."""
        if self._has_floats and False in kinds:
            self._narrow_because = "integers that come of floats must be equal"
        elif text is None:
            self._narrow_because = "its text depends on how floats are stored"
        self._wide = (
            None
            if text is None or self._narrow_because or not self._has_floats
            else (_in_double(problem), _candidate_in_double(self._original, text))
        )

    @property
    def note(self) -> str:
        """What a claim must be read with."""
        if not self._has_floats:
            how = "on integers, exactly"
        elif self._wide is not None:
            how = "in float64"
        else:
            how = f"in its own types, since {self._narrow_because}"
        return f"{ORIGINAL_IS_REFERENCE}, run {how}: what it computes is taken to be right"

    def as_reference(self) -> Reference:
        """As if it were a person's Python function: inputs and sizes by name."""
        names = dict.fromkeys(
            [*(each.name for each in self._problem.inputs), *self._problem.size_names]
        )  # fmt: skip

        def function(**values: object) -> dict[str, Array]:
            return self._thread.submit(self._run, values).result()

        taken = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
        function.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
        call: Callable[..., object] = function
        return Reference(call, self._problem.reference.file, uses_torch=False, takes_storage=True)

    def launch_s(self, workload: Workload) -> float:
        """Seconds of one launch of the kernel as it is, on zeros: the shorter of two, where the first is not long.

        Raises:
            BuildFailed, LaunchFailed: it does not build or run.
            ReferenceFailed: no device here runs its language.
        """
        found: list[float] = []
        while len(found) < 2 and sum(found) < LONG_LAUNCH_S:
            self._thread.submit(self._launched, self._problem, self._original, workload.sizes).result()
            found.append(self._launch_s)
        return min(found)

    @property
    def memory_bytes(self) -> int | None:
        """The device's memory; None: it is not open, or does not tell."""
        return None if self._open is None else self._open[1].limits.get("global_memory")

    # -- in the thread -------------------------------------------------------------------------------

    def _run(self, values: Mapping[str, object]) -> dict[str, Array]:
        wide = None
        if self._wide is not None:
            try:
                wide = self._tried(*self._wide, values)
            except (BuildFailed, LaunchFailed):
                self._run_narrow("it does not build or run with doubles here")
        if wide is not None and self._is_compared:
            return wide
        try:
            narrow = self._tried(self._problem, self._original, values)
        except (BuildFailed, LaunchFailed) as error:
            log = error.log if isinstance(error, BuildFailed) else ""
            raise ReferenceFailed(
                f"the original kernel cannot be run as the reference: {error}" + (f"\n{log}" if log else ""),
                location=self._problem.reference.location,
            ) from error
        if wide is None:
            return narrow
        is_other = any(_is_other(wide[name], narrow[name], self._crew) for name in wide)
        self._is_compared = True
        if is_other:
            self._run_narrow("with doubles it computes something else")
        return narrow if is_other else wide

    def _tried(self, problem: Problem, candidate: Candidate, values: Mapping[str, object]) -> dict[str, Array]:
        """What the kernel makes of `values`; a device that it makes unusable is the kernel's fault.

        Raises:
            BuildFailed, LaunchFailed: it does not build or run.
            ReferenceFailed: after it, the device cannot be used by this process.
            InfrastructureError: the device cannot be opened, before anything ran.
        """
        self._device()
        try:
            return self._launched(problem, candidate, values)
        except InfrastructureError as error:
            self.is_lost = True
            how = "as it is" if problem is self._problem else "with doubles for floats"
            raise ReferenceFailed(
                f"the original kernel, which is the reference, ran {how} and the device failed: {error.message}",
                hint="correct the shapes, sizes and launches that the problem declares, or the ranges of its indices; "
                "of a kernel that knows how many bytes a float has, write the reference in Python",
                location=self._problem.reference.location,
            ) from error

    def _launched(self, problem: Problem, candidate: Candidate, values: Mapping[str, object]) -> dict[str, Array]:
        backend, device, session = self._device()
        sizes = {name: int(str(values[name])) for name in problem.size_names if name in values}
        rendered = render_workload(candidate, problem, Workload("reference", sizes), device)
        module = self._module(rendered, backend, device, session)
        arguments = {each.name: each for each in (*problem.arguments, *candidate.template.scratch)}
        with contextlib.ExitStack() as freed:
            buffers: dict[str, Buffer] = {}
            for name, byte_count in _buffers(rendered).items():
                given = values.get(name)
                if given is not None and problem is not self._problem and arguments[name].role == "input":
                    buffers[name] = self._uploaded(session, arguments[name], np.asarray(given), byte_count)
                    continue
                buffers[name] = session.allocate(max(byte_count, 1))
                freed.callback(session.free, buffers[name])
                if given is None:
                    session.fill(buffers[name], b"\0", max(byte_count, 1))
                else:
                    session.upload(buffers[name], _stored(np.asarray(given), arguments[name], self._crew))
            bound = {name: BoundBuffer(buffer, 0, max(_buffers(rendered)[name], 1)) for name, buffer in buffers.items()}
            start_s = time.perf_counter()
            shared = 1 if problem is self._problem else widening(self._original.template.source)
            plan = [replace(step, shared_bytes=shared * step.shared_bytes) for step in rendered.plan]
            session.launch([BoundLaunch(module, step, bound) for step in plan])
            session.synchronize()
            self._launch_s = time.perf_counter() - start_s
            return {each.name: self._result(session, buffers[each.name], each, sizes) for each in problem.outputs}

    def _run_narrow(self, because: str) -> None:
        """From now on in its own types; what was kept for doubles is given back."""
        self._wide, self._narrow_because = None, because
        session = self._device()[2]
        for _, buffer, _ in self._kept.values():
            session.free(buffer)
        self._kept.clear()

    def _uploaded(self, session: DeviceSession, argument: Argument, values: Array, byte_count: int) -> Buffer:
        """An input's memory, which is not copied again while the caller gives the same array."""
        before, buffer, before_bytes = self._kept.pop(argument.name, (None, None, 0))
        if buffer is not None and before_bytes != byte_count:
            session.free(buffer)
            before = buffer = None
        buffer = session.allocate(max(byte_count, 1)) if buffer is None else buffer
        if before is not values:
            session.upload(buffer, _stored(values, argument, self._crew))
        self._kept[argument.name] = values, buffer, byte_count
        return buffer

    def _result(self, session: DeviceSession, buffer: Buffer, output: Argument, sizes: Mapping[str, int]) -> Array:
        shape = tuple(int(str(extent.evaluate(dict(sizes)))) for extent in output.shape)
        dtype = DTYPES[output.dtype]
        storage = np.dtype(np.uint8) if dtype.kind == "bool" else dtype.numpy_dtype
        found = np.empty(shape, storage)
        session.download(buffer, found.reshape(-1).view(np.uint8))
        if dtype.kind == "bool":
            return found.astype(np.bool_)
        return _converted(found, np.dtype(np.float64), self._crew) if dtype.kind == "float" else found

    def _module(self, rendered: Job, backend: Backend, device: DeviceInfo, session: DeviceSession) -> Module:
        known = self._modules.get(rendered.unit.id)
        if known is None:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="kernelwright-reference-")
            folder = Path(self._folder.name) / str(len(self._modules))
            folder.mkdir(exist_ok=True)
            artifact = backend.compile(rendered.unit, device, folder)
            known = self._modules[rendered.unit.id] = session.load(artifact)
        return known

    def _device(self) -> tuple[Backend, DeviceInfo, DeviceSession]:
        """The best device that knows the language, opened once."""
        if self._open is not None:
            return self._open
        language = self._original.template.language
        reasons = []
        for name in BACKENDS:
            backend = get_backend(name)
            if language not in backend.languages:
                continue
            reason = backend.unavailable_because()
            devices = () if reason is not None else backend.devices()
            if devices:
                self._open = backend, devices[0], backend.open(devices[0])
                return self._open
            reasons.append(reason or f"{name} has no device")
        raise ReferenceFailed(
            f"no device can run the original kernel, which is the reference: {'; '.join(reasons) or language}",
            hint='write a reference in Python: reference = "reference.py:FUNCTION"',
            location=self._problem.reference.location,
        )


def _is_other(wide: Array, narrow: Array, crew: Crew) -> bool:
    """Whether results are of another computation: no rounding takes nearly all of them away."""
    exact, found = wide.reshape(-1), narrow.reshape(-1)

    def squares(span: tuple[int, int]) -> tuple[float, float]:
        one, other = exact[slice(*span)], found[slice(*span)]
        both = np.isfinite(one) & np.isfinite(other)
        if not both.all():
            one, other = one[both], other[both]
        difference = one - other
        return float(np.einsum("i,i->", difference, difference)), float(np.einsum("i,i->", one, one))

    starts = range(0, exact.size, _CONVERTED_TOGETHER)
    sums = crew.each(squares, [(start, start + _CONVERTED_TOGETHER) for start in starts])
    return sum(pair[0] for pair in sums) > OTHER_SHARE**2 * sum(pair[1] for pair in sums)


def _in_double(problem: Problem) -> Problem:
    """The problem with float64 for every float."""
    return replace(problem, arguments=_doubles(problem.arguments))


def _candidate_in_double(original: Candidate, text: str) -> Candidate:
    """The same launches of `text`, with memory of its own for doubles."""
    template = replace(original.template, source=text, scratch=_doubles(original.template.scratch))
    return Candidate(template, original.config)


def _doubles(arguments: Sequence[Argument]) -> tuple[Argument, ...]:
    return tuple(replace(each, dtype="float64") if DTYPES[each.dtype].kind == "float" else each for each in arguments)


def _buffers(rendered: Job) -> dict[str, int]:
    found = {
        each.name: each.byte_count
        for step in rendered.plan
        for each in step.arguments
        if isinstance(each, BufferArgument)
    }
    constants = {each.name: each.byte_count for step in rendered.plan for _, each in step.constants}
    return {**found, **constants}


def _stored(values: Array, argument: Argument, crew: Crew) -> Array:
    """The bytes that the kernel gets."""
    dtype = DTYPES[argument.dtype]
    storage = np.dtype(np.uint8) if dtype.kind == "bool" else dtype.numpy_dtype
    return _converted(np.ascontiguousarray(values), storage, crew).reshape(-1).view(np.uint8)


def _converted(values: Array, dtype: np.dtype[Any], crew: Crew) -> Array:
    """A contiguous array as one of `dtype`; the same one where it is of that already."""
    if values.dtype == dtype:
        return values
    found = np.empty(values.shape, dtype)
    flat, into = values.reshape(-1), found.reshape(-1)

    def convert(span: tuple[int, int]) -> None:
        into[slice(*span)] = flat[slice(*span)]

    crew.each(convert, crew.spans(flat.size, least=_CONVERTED_TOGETHER))
    return found

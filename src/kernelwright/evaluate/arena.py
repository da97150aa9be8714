"""Guarded device memory that candidates are launched on."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from kernelwright.backend.base import (
    Artifact,
    BoundBuffer,
    BoundLaunch,
    Buffer,
    Bytes,
    DeviceSession,
    KeyOrder,
    LaunchPlan,
    Module,
)
from kernelwright.evaluate.input_store import InputStore, fill_from
from kernelwright.evaluate.layout import GUARD_BYTES, GUARD_PATTERN
from kernelwright.evaluate.scratch import reserve
from kernelwright.problem.model import Role


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """One global buffer of a launch."""

    name: str
    role: Role
    byte_count: int
    poison: bytes
    """Pattern that outputs and scratch are filled with before a checked launch."""


@dataclass(frozen=True, slots=True)
class Job:
    """What every job launches."""

    artifact: Artifact
    plan: LaunchPlan
    buffers: tuple[BufferSpec, ...]
    has_local_memory: bool = False
    """Whether its threads may share memory, which keeps what the launch before left in it."""


class Arena:
    """Guarded device memory for candidates of one workload: inputs once for each input set, all else once.

    Each buffer is guard, data, guard. In-out arguments keep a pristine copy that `restore` puts back before a launch.
    Several jobs share one arena, in which a scratch buffer is as large as the largest asks for: where buffers lie
    changes times by several per cent, so what is compared must run in the same memory.
    """

    def __init__(
        self,
        session: DeviceSession,
        jobs: Sequence[Job],
        input_sets: Sequence[Mapping[str, Path]],
        *,
        has_own_outputs: bool = False,
        store: InputStore | None = None,
    ) -> None:
        """Allocate and fill.

        Args:
            session: the device.
            jobs: what will be launched here.
            input_sets: files of raw bytes by argument.
            has_own_outputs: give each input set outputs and scratch of its own, so that rounds over the sets see
                memory in several places; without, launches on one set find the outputs of another.
            store: where inputs are kept between jobs; None: they come from their files.
        """
        self._session = session
        self._specs = _largest(jobs)
        self._input_sets = input_sets
        self._owned: list[Buffer] = []
        self._sets: list[dict[str, Buffer]] = []
        self._pristine: list[dict[str, Buffer]] = []
        self._results: dict[str, Buffer] = {}
        self._store = store
        self._kept: list[dict[str, Buffer]] = []
        """By input set, the store's own buffers of its inputs."""
        self._guard: Buffer | None = None
        """Guards as they should be, made when first asked for."""
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            if store is not None:
                store.begin()
            self._fill_sets(has_own_outputs)
            undo.pop_all()

    def _fill_sets(self, has_own_outputs: bool) -> None:
        written: dict[str, Buffer] = {}
        for inputs in self._input_sets:
            if has_own_outputs or not written:
                written = {
                    spec.name: self._allocate(spec)
                    for spec in self._specs.values()
                    if spec.role in ("output", "scratch")
                }
            kept = {name: self._find_kept(name, path) for name, path in inputs.items()}
            known = {name: buffer for name, buffer in kept.items() if buffer is not None}
            own = {name: self._copy_of(known, name, path) for name, path in inputs.items()}
            self._sets.append({**written, **own})
            self._kept.append(known)
            changing = [name for name in own if self._specs[name].role == "inout"]
            self._pristine.append(
                {name: known[name] if name in known else self._clone(own[name], name) for name in changing}
            )

    @property
    def has_kept(self) -> bool:
        """Whether some input came from the store."""
        return any(self._kept)

    @property
    def is_all_kept(self) -> bool:
        """Whether every input of every set came from the store."""
        return all(kept.keys() == inputs.keys() for kept, inputs in zip(self._kept, self._input_sets, strict=True))

    def is_still_kept(self) -> bool:
        """Whether the store still has what this memory was filled from, and then keeps it for the current round."""
        return self._store is not None and all(
            self._store.get(path, self.guarded_bytes(name)) is kept.get(name)
            for kept, inputs in zip(self._kept, self._input_sets, strict=True)
            for name, path in inputs.items()
        )

    @property
    def set_count(self) -> int:
        """How many input sets there are."""
        return len(self._sets)

    def launches(self, module: Module, set_index: int, job: Job) -> tuple[BoundLaunch, ...]:
        """The plan's steps bound to one input set."""
        buffers = self._sets[set_index]
        bound = {
            spec.name: BoundBuffer(buffers[spec.name], GUARD_BYTES, max(spec.byte_count, 1)) for spec in job.buffers
        }
        return tuple(BoundLaunch(module, step, bound) for step in job.plan.steps)

    def poison(self, set_index: int, job: Job) -> None:
        """Fill outputs, scratch and local memory with their poison."""
        self.poison_outputs(set_index, job)
        self._forget(set_index, job)

    def poison_outputs(self, set_index: int, job: Job) -> None:
        """Fill outputs with their poison, and leave scratch alone; all else forgets as before every launch."""
        self._session.forget_module_memory()
        self._session.forget_thread_memory()
        for spec in job.buffers:
            if spec.role == "output":
                self._fill(set_index, spec, spec.poison)

    def make_ready(self, set_index: int, job: Job, *, rng: np.random.Generator) -> None:
        """For a launch that is timed: in-out arguments as they were, scratch and local memory forgotten, outputs junk.

        The junk is a number that could be a result, another one each time: a kernel cannot tell finished work, which
        it might skip, from work to do, nor a launch that is judged from one that is not.
        """
        self.restore_inputs(set_index)
        self._forget(set_index, job)
        byte = rng.integers(0x30, 0x3F, dtype=np.uint8)  # repeated: 1e-10 to 1.6 as a float
        for spec in job.buffers:
            if spec.role == "output":
                self._fill(set_index, spec, byte.tobytes())

    def restore_inputs(self, set_index: int) -> None:
        """Put the in-out arguments back to their inputs."""
        for name, pristine in self._pristine[set_index].items():
            self._session.copy(pristine, self._sets[set_index][name], _guarded_bytes(self._specs[name]))

    def renew(self, set_index: int, job: Job) -> None:
        """Make ready for a launch of `job` that is judged: whatever another job did to this memory is undone."""
        for spec in job.buffers:
            buffer = self._sets[set_index][spec.name]
            self._session.fill(buffer, GUARD_PATTERN, _guarded_bytes(self._specs[spec.name]))
            path = self._input_sets[set_index].get(spec.name)
            if path is not None:
                fill_from(self._session, buffer, path)
            else:
                self._fill(set_index, spec, spec.poison)
        self.restore_inputs(set_index)

    def remember_results(self, set_index: int, job: Job) -> None:
        """Keep a copy of what the last launch wrote."""
        for spec in _results(job):
            self._results[spec.name] = self._clone(self._sets[set_index][spec.name], spec.name)

    def put_back_results(self, set_index: int, job: Job) -> None:
        """Make the buffers those of the launch whose results are remembered."""
        for spec in _results(job):
            self._session.copy(self._results[spec.name], self._sets[set_index][spec.name], _guarded_bytes(spec))

    def has_same_results(self, set_index: int, job: Job) -> bool:
        """Whether the last launch wrote the same bytes as the one whose results are remembered."""
        return all(
            self._session.is_same(self._sets[set_index][spec.name], self._results[spec.name], _guarded_bytes(spec))
            for spec in _results(job)
        )

    def has_scratch(self, job: Job) -> bool:
        """Whether anything may survive from launch to launch beside outputs."""
        return any(spec.role == "scratch" for spec in job.buffers)

    def write(self, set_index: int, folder: Path, job: Job) -> frozenset[str]:
        """Write the buffers of one set with both guards to `folder/NAME.bin`, and nothing else stays there.

        Gives the names of inputs that are not written, because the device finds them and their guards equal to what
        the store keeps; none without a store.
        """
        folder.mkdir(parents=True, exist_ok=True)
        unchanged = frozenset(
            name
            for name, kept in self._kept[set_index].items()
            if self._specs[name].role == "input"
            and self._session.is_same(self._sets[set_index][name], kept, _guarded_bytes(self._specs[name]))
        )
        written = [spec for spec in job.buffers if spec.name not in unchanged]
        names = {spec.name for spec in written}
        for path in folder.iterdir():
            if path.stem not in names:  # of an earlier launch
                path.unlink()
        for spec in written:
            out = _mapped(folder / f"{spec.name}.bin", 2 * GUARD_BYTES + spec.byte_count)
            self._session.download(self._sets[set_index][spec.name], out)
        return unchanged

    def expect_untouched(self, job: Job) -> None:
        """Expect that inputs are what the store keeps, and guards as they were; needs `is_all_kept`."""
        for buffers, kept in zip(self._sets, self._kept, strict=True):
            for name, known in kept.items():
                if self._specs[name].role == "input":
                    self._session.expect_same(buffers[name], known, _guarded_bytes(self._specs[name]))
        seen = set()
        for buffers in self._sets:
            for spec in job.buffers:
                if spec.role != "input" and id(buffers[spec.name]) not in seen:
                    seen.add(id(buffers[spec.name]))
                    self._expect_guards(buffers[spec.name], spec)

    def _expect_guards(self, buffer: Buffer, spec: BufferSpec) -> None:
        if self._guard is None:
            self._guard = self._session.allocate(GUARD_BYTES + 2 * len(GUARD_PATTERN))
            self._owned.append(self._guard)
            self._session.fill(self._guard, GUARD_PATTERN, GUARD_BYTES + 2 * len(GUARD_PATTERN))
        end = GUARD_BYTES + spec.byte_count
        rest = _guarded_bytes(spec) - end
        self._session.expect_same(buffer, self._guard, GUARD_BYTES)
        self._session.expect_same(buffer, self._guard, rest, offsets_bytes=(end, end % len(GUARD_PATTERN)))

    def expect_output(self, set_index: int, name: str, low: Buffer, high: Buffer, order: KeyOrder) -> None:
        """Expect of the session that an output lies within its bounds."""
        spec, values = self._specs[name], self._sets[set_index][name]
        if spec.byte_count:
            self._session.expect_within(values, low, high, spec.byte_count, order=order, offset_bytes=GUARD_BYTES)

    def guarded_bytes(self, name: str) -> int:
        """What a buffer takes with both guards."""
        return _guarded_bytes(self._specs[name])

    def close(self) -> None:
        """Give the memory back."""
        while self._owned:
            self._session.free(self._owned.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _forget(self, set_index: int, job: Job) -> None:
        self._session.forget_module_memory()
        self._session.forget_thread_memory()
        if job.has_local_memory:
            self._session.forget_local_memory()
        for spec in job.buffers:
            if spec.role == "scratch":
                self._fill(set_index, spec, spec.poison)

    def _fill(self, set_index: int, spec: BufferSpec, pattern: bytes) -> None:
        if spec.byte_count:
            buffer = self._sets[set_index][spec.name]
            self._session.fill(buffer, pattern, spec.byte_count, offset_bytes=GUARD_BYTES)

    def _allocate(self, spec: BufferSpec) -> Buffer:
        buffer = self._session.allocate(_guarded_bytes(spec))
        self._owned.append(buffer)
        self._session.fill(buffer, GUARD_PATTERN, _guarded_bytes(spec))
        return buffer

    def _find_kept(self, name: str, path: Path) -> Buffer | None:
        return self._store.get(path, _guarded_bytes(self._specs[name])) if self._store is not None else None

    def _copy_of(self, known: Mapping[str, Buffer], name: str, path: Path) -> Buffer:
        """A buffer with the input and its guards: of what is kept, else from its file."""
        spec = self._specs[name]
        if name in known:
            buffer = self._session.allocate(_guarded_bytes(spec))
            self._owned.append(buffer)
            self._session.copy(known[name], buffer, _guarded_bytes(spec))
            return buffer
        buffer = self._allocate(spec)
        fill_from(self._session, buffer, path)
        return buffer

    def _clone(self, buffer: Buffer, name: str) -> Buffer:
        spec = self._specs[name]
        clone = self._session.allocate(_guarded_bytes(spec))
        self._owned.append(clone)
        self._session.copy(buffer, clone, _guarded_bytes(spec))
        return clone


def _results(job: Job) -> list[BufferSpec]:
    return [spec for spec in job.buffers if spec.role in ("output", "inout")]


def _largest(jobs: Sequence[Job]) -> dict[str, BufferSpec]:
    """Every buffer that some job needs, as large as the largest."""
    largest: dict[str, BufferSpec] = {}
    for spec in (spec for job in jobs for spec in job.buffers):
        known = largest.get(spec.name)
        if known is None or spec.byte_count > known.byte_count:
            largest[spec.name] = spec
    return largest


def _mapped(path: Path, byte_count: int) -> Bytes:
    """The file as writable memory of `byte_count` bytes; one of that size is overwritten where its pages are."""
    is_kept = path.exists() and path.stat().st_size == byte_count
    if not is_kept:
        reserve(path, byte_count)
    return np.memmap(path, np.uint8, mode="r+", shape=(byte_count,))


def _guarded_bytes(spec: BufferSpec) -> int:
    """Guard, data, guard, rounded up to the guard pattern so that one fill covers it."""
    total = 2 * GUARD_BYTES + spec.byte_count
    return -(-total // len(GUARD_PATTERN)) * len(GUARD_PATTERN)

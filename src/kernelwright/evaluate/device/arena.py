"""Guarded device memory that candidates are launched on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from kernelwright.backend.base import (
    Artifact,
    BoundBuffer,
    BoundLaunch,
    Buffer,
    BuildUnit,
    Bytes,
    DeviceSession,
    KeyOrder,
    LaunchPlan,
    Module,
)
from kernelwright.backend.redraw import Closeness, Redraw, draw_of
from kernelwright.evaluate.data.layout import GUARD_BYTES, GUARD_PATTERN
from kernelwright.evaluate.device.input_store import InputStore, fill_from
from kernelwright.evaluate.process.scratch import reserve
from kernelwright.problem.model import Role

DOWNLOADED_BYTES = 4 << 20
"""Buffers up to so many bytes are downloaded whole where parts are wanted."""


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """One global buffer of a launch."""

    name: str
    role: Role
    byte_count: int
    poison: bytes
    """Pattern that outputs and scratch are filled with before a checked launch."""
    redraw: Redraw | None = None
    """How it is made anew before a timed launch; None: it stays, or is no input."""


@dataclass(frozen=True, slots=True)
class Job:
    """One candidate on one workload: what is built for it, and what the device launches."""

    workload: str
    code: BuildUnit | Artifact
    """An artifact once it is built."""
    plan: LaunchPlan
    buffers: tuple[BufferSpec, ...]
    has_local_memory: bool = False
    """Whether its threads may share memory, which keeps what the launch before left in it; known once it is built."""

    @property
    def unit(self) -> BuildUnit:
        """What the compiler gets."""
        return self.code.unit if isinstance(self.code, Artifact) else self.code

    @property
    def artifact(self) -> Artifact:
        """What the compiler made of it."""
        assert isinstance(self.code, Artifact), "it is not built yet"
        return self.code

    @property
    def scratch_bytes(self) -> dict[str, int]:
        """Byte counts of the global scratch buffers, by name: the problem's and the template's own."""
        return {each.name: each.byte_count for each in self.buffers if each.role == "scratch"}


class Arena:
    """Guarded device memory for candidates of one workload: inputs once for each input set, all else once.

    Each buffer is guard, data, guard. Several jobs share one arena, in which a scratch buffer is as large as the
    largest asks for: where buffers lie changes times by several per cent, so what is compared must run in the same
    memory. The first values of inputs are kept apart, where no kernel is given them: a timed launch sees others that
    are made from these, and in-out arguments are put back.
    """

    def __init__(
        self,
        session: DeviceSession,
        jobs: Sequence[Job],
        input_sets: Sequence[Mapping[str, Path]],
        *,
        has_own_outputs: bool = False,
        is_timed: bool = True,
        store: InputStore | None = None,
        folder: Path | None = None,
    ) -> None:
        """Allocate and fill.

        Args:
            session: the device.
            jobs: what will be launched here.
            input_sets: files of raw bytes by argument.
            has_own_outputs: give each input set outputs and scratch of its own, so that rounds over the sets see
                memory in several places; without, launches on one set find the outputs of another.
            is_timed: keep the first values of all inputs; without, only those of in-out arguments.
            store: where inputs are kept between jobs; None: they come from their files.
            folder: the memory that kernels are given is files there, `NAME.bin`, of one set; None: the device's own.
        """
        self._session = session
        self._specs = _largest(jobs)
        self._input_sets = input_sets
        self._owned: list[Buffer] = []
        self._sets: list[dict[str, Buffer]] = []
        self._first: list[dict[str, Buffer]] = []
        """By input set, buffers with the first values of inputs; sets of the same files share them."""
        self._results: dict[object, dict[str, Buffer]] = {}
        """Results of launches that are kept, by what they were kept as."""
        self._store = store
        self._folder = folder
        self._kept: list[dict[str, Buffer]] = []
        """By input set, the store's own buffers of its inputs."""
        self._guard: Buffer | None = None
        """Guards as they should be, made when first asked for."""
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            if store is not None:
                store.begin()
            self._fill_sets(has_own_outputs, is_timed)
            undo.pop_all()

    def _fill_sets(self, has_own_outputs: bool, is_timed: bool) -> None:
        written: dict[str, Buffer] = {}
        clones: dict[tuple[str, Path], Buffer] = {}
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
            wanted = [name for name in own if is_timed or self._specs[name].role == "inout"]
            for name in wanted:
                if name not in known and (name, inputs[name]) not in clones:
                    clones[name, inputs[name]] = self._clone(own[name], name)
            self._first.append({name: known.get(name) or clones[name, inputs[name]] for name in wanted})

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
    def byte_count(self) -> int:
        """What launches on all sets in turn are given, all together."""
        buffers = {id(buffer): name for buffers in self._sets for name, buffer in buffers.items()}
        return sum(self._specs[name].byte_count for name in buffers.values())

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
        return tuple(BoundLaunch(module, step, bound) for step in job.plan)

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

    def make_ready(self, set_index: int, job: Job, *, rng: np.random.Generator, secret: int) -> None:
        """For a launch that is timed: inputs of its own, local memory forgotten, outputs and scratch junk.

        The junk is a number that could be a result, another one each time: a kernel cannot tell finished work, which
        it might skip, from work to do, nor a launch that is judged from one that is not.
        """
        junk = rng.integers(0x30, 0x3F, dtype=np.uint8).tobytes()  # repeated: 1e-10 to 1.6 as a float
        # First: it moves memory through the cache, and what is drawn then stays there. A kernel that needs its scratch
        # as checks fill it is wrong elsewhere.
        self._forget(set_index, job, scratch=junk)
        self.draw_inputs(set_index, job, secret)
        for spec in job.buffers:
            if spec.role == "output":
                self._fill(set_index, spec, junk)

    def draw_inputs(self, set_index: int, job: Job, secret: int) -> None:
        """Give a set the inputs of the launch with this secret; in-out arguments that stay the same are put back."""
        for spec, how, first in self._renewed(set_index, job):
            target = self._sets[set_index][spec.name]
            if how is None:
                if spec.role == "inout":
                    self._session.copy(first, target, _guarded_bytes(spec))
                continue
            draw = draw_of(secret, spec.name, spec.byte_count // how.item_bytes, how)
            self._session.redraw(first, target, how, draw, offset_bytes=GUARD_BYTES)

    def expect_untouched_by(self, set_index: int, job: Job, secret: int) -> None:
        """Expect, after the launch with this secret, that it left its inputs, first values and all guards alone."""
        for spec, how, first in self._renewed(set_index, job):
            target = self._sets[set_index][spec.name]
            if spec.role != "input":
                continue
            if how is None:
                self._session.expect_same(target, first, _guarded_bytes(spec))
                continue
            draw = draw_of(secret, spec.name, spec.byte_count // how.item_bytes, how)
            self._session.expect_redrawn(first, target, how, draw, offset_bytes=GUARD_BYTES)
            self._expect_guards(target, spec)
        for spec in job.buffers:
            if spec.role != "input":
                self._expect_guards(self._sets[set_index][spec.name], spec)

    def _renewed(self, set_index: int, job: Job) -> list[tuple[BufferSpec, Redraw | None, Buffer]]:
        """The inputs of a job with what they are made from."""
        first = self._first[set_index]
        return [
            (spec, spec.redraw if spec.byte_count else None, first[spec.name])
            for spec in job.buffers
            if spec.name in first
        ]

    def restore_inputs(self, set_index: int) -> None:
        """Put the in-out arguments back to their first values."""
        for name, first in self._first[set_index].items():
            if self._specs[name].role == "inout":
                self._session.copy(first, self._sets[set_index][name], _guarded_bytes(self._specs[name]))

    def keep_results(self, set_index: int, job: Job, *, kept_as: object = None) -> None:
        """Keep a copy of what the last launch wrote, in the place of what was kept so before."""
        kept = self._results.setdefault(kept_as, {})
        for spec in results_of(job):
            source = self._sets[set_index][spec.name]
            if spec.name in kept:
                self._session.copy(source, kept[spec.name], _guarded_bytes(self._specs[spec.name]))
            else:
                kept[spec.name] = self._clone(source, spec.name)

    def put_back_results(self, set_index: int, job: Job) -> None:
        """Make the buffers those of the launch whose results are kept."""
        for spec in results_of(job):
            kept = self._results[None][spec.name]
            self._session.copy(kept, self._sets[set_index][spec.name], _guarded_bytes(spec))

    def has_same_results(self, set_index: int, job: Job) -> bool:
        """Whether the last launch wrote the same bytes as the one whose results are kept."""
        return all(
            self._session.is_same(
                self._sets[set_index][spec.name], self._results[None][spec.name], _guarded_bytes(spec)
            )
            for spec in results_of(job)
        )

    def expect_close_results(
        self, set_index: int, job: Job, limits: Mapping[str, Closeness | None], *, kept_as: object = None
    ) -> None:
        """Expect that the last launch wrote what the one whose results are kept wrote, within limits."""
        kept = self._results[kept_as]
        for spec in results_of(job):
            values = self._sets[set_index][spec.name]
            self._session.expect_close(
                values, kept[spec.name], spec.byte_count, limits[spec.name], offset_bytes=GUARD_BYTES
            )

    def write_results(self, folder: Path, job: Job, *, kept_as: object = None) -> frozenset[str]:
        """Write the results that are kept, with both guards, and nothing else; gives the names of what is not there."""
        written = {spec.name: self._results[kept_as][spec.name] for spec in results_of(job)}
        self._write(folder, {name: (self._specs[name], buffer) for name, buffer in written.items()})
        return frozenset(spec.name for spec in job.buffers if spec.name not in written)

    def read(self, set_index: int, job: Job, name: str, offsets: Iterable[int], byte_count: int) -> dict[int, bytes]:
        """By offset so many bytes of a buffer's data, or what there is of them.

        A buffer that is not large is downloaded at once: on a busy CPU device each download waits for a thread.
        """
        spec = next(spec for spec in job.buffers if spec.name == name)
        if spec.byte_count <= DOWNLOADED_BYTES:
            data = self._downloaded(set_index, name, 0, spec.byte_count)
            return {offset: data[offset : offset + byte_count] for offset in offsets}
        return {
            offset: self._downloaded(set_index, name, offset, min(byte_count, spec.byte_count - offset))
            for offset in offsets
        }

    def addresses(self, set_index: int, job: Job) -> dict[str, int]:
        """By result where its data lie in this process; those that lie elsewhere are left out."""
        found = {spec.name: self._session.address_of(self._sets[set_index][spec.name]) for spec in results_of(job)}
        return {name: address + GUARD_BYTES for name, address in found.items() if address is not None}

    def _downloaded(self, set_index: int, name: str, offset_bytes: int, byte_count: int) -> bytes:
        out = np.empty(max(0, byte_count), np.uint8)
        self._session.download(self._sets[set_index][name], out, GUARD_BYTES + offset_bytes)
        return out.tobytes()

    def has_scratch(self, job: Job) -> bool:
        """Whether anything may survive from launch to launch beside outputs."""
        return any(spec.role == "scratch" for spec in job.buffers)

    def write(self, set_index: int, folder: Path, job: Job, *, is_all: bool = False) -> frozenset[str]:
        """Write the buffers of one set with both guards to `folder/NAME.bin`, and nothing else stays there.

        Gives the names of inputs that are not written, because the device finds them and their guards equal to what
        the store keeps; none without a store, or with `is_all`.
        """
        unchanged = frozenset(
            name
            for name, kept in self._kept[set_index].items()
            if not is_all
            and self._specs[name].role == "input"
            and self._session.is_same(self._sets[set_index][name], kept, _guarded_bytes(self._specs[name]))
        )
        written = {spec.name: spec for spec in job.buffers if spec.name not in unchanged}
        self._write(folder, {name: (spec, self._sets[set_index][name]) for name, spec in written.items()})
        return unchanged

    def _write(self, folder: Path, written: Mapping[str, tuple[BufferSpec, Buffer]]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if path.stem not in written:  # of an earlier launch
                path.unlink()
        for name, (spec, buffer) in written.items():
            out = _mapped(folder / f"{name}.bin", 2 * GUARD_BYTES + spec.byte_count)
            self._session.download(buffer, out)

    def expect_untouched(self, job: Job, sets: Sequence[int]) -> None:
        """Expect that the inputs of sets are what the store keeps, and guards as they were; needs `is_all_kept`."""
        for buffers, kept in ((self._sets[index], self._kept[index]) for index in sets):
            for name, known in kept.items():
                if self._specs[name].role == "input":
                    self._session.expect_same(buffers[name], known, _guarded_bytes(self._specs[name]))
        seen = set()
        for buffers in (self._sets[index] for index in sets):
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

    def _forget(self, set_index: int, job: Job, *, scratch: bytes | None = None) -> None:
        self._session.forget_module_memory()
        self._session.forget_thread_memory()
        if job.has_local_memory:
            self._session.forget_local_memory()
        for spec in job.buffers:
            if spec.role == "scratch":
                self._fill(set_index, spec, spec.poison if scratch is None else scratch)
                self._guard_again(set_index, spec)

    def _guard_again(self, set_index: int, spec: BufferSpec) -> None:
        """Lay the guard behind a buffer in which another job has more, and may have written there."""
        end, rest = GUARD_BYTES + spec.byte_count, self._specs[spec.name].byte_count - spec.byte_count
        if rest:
            phase = end % len(GUARD_PATTERN)
            pattern = GUARD_PATTERN[phase:] + GUARD_PATTERN[:phase]
            byte_count = min(rest, GUARD_BYTES + len(GUARD_PATTERN))
            self._session.fill(self._sets[set_index][spec.name], pattern, byte_count, offset_bytes=end)

    def _fill(self, set_index: int, spec: BufferSpec, pattern: bytes) -> None:
        if spec.byte_count:
            buffer = self._sets[set_index][spec.name]
            self._session.fill(buffer, pattern, spec.byte_count, offset_bytes=GUARD_BYTES)

    def _allocate(self, spec: BufferSpec) -> Buffer:
        byte_count = _guarded_bytes(spec)
        if self._folder is None:
            buffer = self._session.allocate(byte_count)
        else:
            buffer = self._session.allocate_in_file(self._folder / f"{spec.name}.bin", byte_count)
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


def results_of(job: Job) -> list[BufferSpec]:
    """What its launches write for others to read."""
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

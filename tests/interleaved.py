"""Several structures under way at once, in an order that a seed says: whole runs that are the same at every start.

Threads of `Steps` go on only when the thread that decides lets one of them, and only until its next durable write or
its next question: so a run may be looked at, and killed, at each of these points.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kernelwright.llm.recorded import Exchange, ExchangeLog
from kernelwright.remote.in_flight import BackgroundTask, Steps
from kernelwright.store.run_folder import RunFolder

IDS = {"time_s", "run_id", "created", "process_id", "tree", "settings", "environment", "version"}

EVERY = slice(0, None, 1)
"""Of the points at which a run may be killed."""

PATIENCE_S = 120.0
"""Without a sign of a thread a test is given up."""


class _Chain:
    """One step's work, in a thread that goes on when it is let."""

    def __init__(self, step: BackgroundTask) -> None:
        self.step = step
        self.future: Future[Any] = Future()
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._is_begun = False

    def advance(self) -> None:
        """Let it go on until it pauses or has ended."""
        if not self._is_begun:
            self._is_begun = True
            self._thread.start()
        self._go.release()
        assert self._back.acquire(timeout=PATIENCE_S), "a step hangs"

    def pause(self) -> None:
        """Called in its own thread."""
        self._back.release()
        self._go.acquire()

    def is_here(self) -> bool:
        """Whether the calling thread is its own."""
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        self._go.acquire()
        try:
            self.future.set_result(self.step.work())
        except BaseException as error:  # whatever the work raises is the caller's to hear
            self.future.set_exception(error)
        self._back.release()


class InterleavedSteps(Steps):
    """As `Steps`, in an order of chance."""

    def __init__(self, size: int, world: World) -> None:
        super().__init__(size)
        self._world = world
        self._chains: dict[object, _Chain] = {}
        world.steps = self

    def __len__(self) -> int:
        return len(self._chains)

    def __contains__(self, key: object) -> bool:
        return key in self._chains

    def begin(self, key: object, step: BackgroundTask) -> None:
        self._chains[key] = _Chain(step)

    def take_one(self) -> object | None:
        rng = self._world.rng
        while True:
            done = [key for key, chain in self._chains.items() if chain.future.done()]
            if done and (rng.random() < 0.5 or len(done) == len(self._chains)):
                break
            self.advance_one()
        key = rng.choice(done)
        chain = self._chains[key]
        following = chain.step.then(chain.future.result())
        del self._chains[key]
        if following is None:
            return key
        self.begin(key, following)
        return None

    def stop(self) -> None:
        self._is_stopping.set()
        for chain in self._chains.values():
            while chain.step.is_recording and not chain.future.done():
                chain.advance()

    def advance_one(self) -> None:
        """Let one of those that have not ended go on, if there is one."""
        running = [chain for chain in self._chains.values() if not chain.future.done()]
        if running:
            self._world.rng.choice(running).advance()

    def pause(self) -> None:
        """A point at which others may go on: called by whoever writes or asks."""
        own = next((chain for chain in self._chains.values() if chain.is_here()), None)
        if own is not None:
            own.pause()
        elif threading.current_thread() is self._world.thread:
            for _ in range(self._world.rng.choice((0, 0, 1, 2))):
                self.advance_one()


class World:
    """The order of chance, and what is done behind every durable write."""

    def __init__(self, seed: object) -> None:
        self.thread = threading.current_thread()
        self.behind_write: Callable[[Path, int], None] = lambda _path, _count: None
        """Told of the folder, and of how many records were written to its log at once."""
        self.begin(seed)

    def begin(self, seed: object) -> None:
        """A new session, in an order of its own."""
        self.rng = random.Random(str(seed))
        self.steps: InterleavedSteps | None = None

    def pause(self) -> None:
        """See `InterleavedSteps.pause`."""
        if self.steps is not None:
            self.steps.pause()


@contextmanager
def interleaved(monkeypatch: pytest.MonkeyPatch, seed: object) -> Iterator[World]:
    """All runs in this block take their steps in an order of chance."""
    world, append, record = World(seed), RunFolder.append, ExchangeLog.append

    def appended(self: RunFolder, events: Sequence[Any]) -> None:
        world.pause()
        append(self, events)
        world.behind_write(self.path, len(events))

    def recorded(self: ExchangeLog, exchange: Exchange) -> None:
        world.pause()
        record(self, exchange)
        world.behind_write(self.path.parent, 1)
        world.pause()

    with monkeypatch.context() as patch:
        patch.setattr("kernelwright.optimization.session.Steps", functools.partial(InterleavedSteps, world=world))
        patch.setattr(RunFolder, "append", appended)
        patch.setattr(ExchangeLog, "append", recorded)
        yield world


@contextmanager
def killed(world: World, run: Path, copies: Path, *beside: Path, points: slice = EVERY) -> Iterator[list[Path]]:
    """Copies of a run that is made in this block, as kills would leave it: behind each record of each of its logs.

    What lies `beside` the run at that time is kept inside of the copy. `points` are those of all that are wanted.
    """
    found: list[Path] = []
    count_all = 0

    def copy(path: Path, count: int) -> None:
        nonlocal count_all
        for cut in range(count) if run in (path, *path.parents) else ():
            count_all += 1
            if (count_all - 1) % (points.step or 1) != (points.start or 0):
                continue
            found.append(copies / f"{count_all:03d}")
            shutil.copytree(run, found[-1])
            for each in beside:
                shutil.copytree(each, found[-1] / each.name)
            if cut:  # killed in the middle of a write
                log = found[-1] / path.relative_to(run) / "events.jsonl"
                lines = log.read_bytes().splitlines(keepends=True)
                log.write_bytes(b"".join(lines[:-cut]) + lines[-cut][:40])

    world.behind_write = copy
    try:
        yield found
    finally:
        world.behind_write = lambda _path, _count: None


@contextmanager
def interrupted(world: World, run: Path, *, at: int) -> Iterator[None]:
    """Ctrl-C behind so many writes into the run's own log."""
    left = at

    def interrupt(path: Path, _count: int) -> None:
        nonlocal left
        if path == run:
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

    world.behind_write = interrupt
    try:
        yield
    finally:
        world.behind_write = lambda _path, _count: None


def told(path: Path) -> list[object]:
    """Every event of a run's log as JSON, without dates, ids, and the time that replaying takes."""
    with RunFolder.open(path, writable=False) as folder:
        return [_without_ids(json.loads(json.dumps(dataclasses.asdict(each), default=str))) for each in folder.read()]


def _without_ids(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_ids(each) for key, each in value.items() if key not in IDS}
    return [_without_ids(each) for each in value] if isinstance(value, list) else value

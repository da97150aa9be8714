"""Several threads for one large array: NumPy, reads and copies let go of the interpreter while they work."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

MAX_THREADS = 12
"""With 8, 12 and 16 of 16 cores of a Xeon, drawing a float32 takes 2.2, 1.5 and 1.3 ns, comparing 1.3, 1.6 and 1.8."""

DRAWN_TOGETHER = 1 << 18
"""Random numbers from one generator: a piece of the work for one thread."""

_Draw = Callable[[np.random.Generator, npt.NDArray[Any]], object]
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Crew:
    """Does pieces of work side by side; with one thread, one after the other."""

    def __init__(self, threads: int | None = None) -> None:
        """`threads`: None: one for each core that this process may use, at most `MAX_THREADS`."""
        if threads is None:
            threads = min(MAX_THREADS, usable_cores())
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="crew") if threads > 1 else None

    def each(self, work: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
        """`work` on every item, in their order; the first error comes through."""
        listed = list(items)
        if self._pool is None or len(listed) < 2:
            return [work(item) for item in listed]
        return list(self._pool.map(work, listed))

    def shares(self, items: Sequence[_Item], *, least: int) -> list[Sequence[_Item]]:
        """`items` cut into one share for each thread, of at least `least` items each."""
        count = max(1, min(self.threads, len(items) // max(least, 1)))
        bounds = [len(items) * number // count for number in range(count + 1)]
        return [items[low:high] for low, high in itertools.pairwise(bounds)]

    def spans(self, total: int, *, least: int, step: int = 1) -> list[tuple[int, int]]:
        """`[0, total)` cut into one span for each thread, at multiples of `step`, of about `least` at least."""
        count = max(1, min(self.threads, total // max(least, 1)))
        bounds = [min(total, -(-total * number // count // step) * step) for number in range(count)] + [total]
        return [(low, high) for low, high in itertools.pairwise(bounds) if low < high]

    def fill(self, out: npt.NDArray[Any], rng: np.random.Generator, draw: _Draw) -> None:
        """Fill a contiguous array with random numbers, the same ones whatever the number of threads.

        `draw(rng, part)` writes the next numbers into a part. Large arrays are drawn in pieces, each from a generator
        of its own.
        """
        flat = out.reshape(-1)
        if flat.size <= DRAWN_TOGETHER:
            draw(rng, flat)
            return
        starts = range(0, flat.size, DRAWN_TOGETHER)

        def work(piece: tuple[int, np.random.Generator]) -> None:
            draw(piece[1], flat[piece[0] : piece[0] + DRAWN_TOGETHER])

        self.each(work, zip(starts, rng.spawn(len(starts)), strict=True))


ALONE = Crew(1)
"""Everything in the caller's thread."""

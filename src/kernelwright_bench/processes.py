"""Processes for long simulations that end with the one that asked for them, however that one ends."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import wait
from typing import Any


def process_pool(
    jobs: int, *, prepare: Callable[..., None] | None = None, given: tuple[Any, ...] = ()
) -> ProcessPoolExecutor:
    """A pool of `jobs` fresh processes, which are gone at once when this process is killed.

    The standard pool's processes look for their parent between two tasks only, and a task here takes minutes.

    Args:
        jobs: how many processes.
        prepare: called with `given` in each process before its first task.
        given: what `prepare` is called with.
    """
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(prepare, given))


def _begin(prepare: Callable[..., None] | None, given: tuple[Any, ...]) -> None:
    _end_with_parent()
    if prepare is not None:
        prepare(*given)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_wait_for_end, args=(parent.sentinel,), name="lifeline", daemon=True).start()


def _wait_for_end(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)  # nobody is left who could be told anything

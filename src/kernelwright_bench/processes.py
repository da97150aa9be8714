"""Processes for long simulations that end with the one that asked for them, however that one ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import wait
from types import TracebackType
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
    return _Pool(jobs, mp_context=context, initializer=_begin, initargs=(prepare, given))


class _Pool(ProcessPoolExecutor):
    """A pool that ends at once when what uses it is interrupted: the standard one waits for tasks that have begun."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            for process in list((self._processes or {}).values()):
                process.kill()
        self.shutdown(wait=True, cancel_futures=kind is not None)


def _begin(prepare: Callable[..., None] | None, given: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C too, and ends this process
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

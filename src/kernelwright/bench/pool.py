"""Processes for long simulations that end with the one that asked for them, however that one ends."""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import wait


def process_pool(jobs: int) -> ProcessPoolExecutor:
    """A pool of `jobs` fresh processes, which are gone at once when this process is killed.

    The standard pool's processes look for their parent between two tasks only, and a task here takes minutes.
    """
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with_parent)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_wait_for_end, args=(parent.sentinel,), name="lifeline", daemon=True).start()


def _wait_for_end(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)  # nobody is left who could be told anything

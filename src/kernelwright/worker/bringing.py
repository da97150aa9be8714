"""Brings the devices of a cluster to a spool, by the words that say which cluster."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

from kernelwright.errors import KernelwrightError, StoreError
from kernelwright.remote.folder import SpoolFolder
from kernelwright.remote.helper import NAME
from kernelwright.remote.messages import refusal
from kernelwright.remote.runners import RAY, SLURM, read_slurm
from kernelwright.worker.fleet import serve_cluster
from kernelwright.worker.worker import Ended


def bring_devices(spool: SpoolFolder, runner: str, say: Callable[[str], None]) -> Ended:
    """Work until Ctrl-C; what ends it before is also left in the spool, for the run that asks.

    Raises:
        UserError: the words make no sense, or a package is not installed.
        InfrastructureError: the cluster cannot be used, or not any more.
    """
    try:
        if runner.startswith(SLURM):
            from kernelwright.worker.slurm_jobs import keep_jobs

            return keep_jobs(spool, read_slurm(runner.removeprefix(SLURM)), say=say)
        from kernelwright.worker.ray_cluster import ray_slots

        with ray_slots(runner.removeprefix(RAY).removeprefix(":") or None) as slots:
            return serve_cluster(spool, slots, say=say)
    except KernelwrightError as error:
        with contextlib.suppress(StoreError):
            spool.replace("workers", NAME, refusal(error, socket.gethostname()))
        raise

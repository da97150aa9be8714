"""The devices of a Ray cluster: an actor for each GPU of each node, and for the processor of a node without one.

```
with ray_slots("10.0.0.1:6379") as slots:       # None: a cluster of this machine alone, for as long as that
    serve_cluster(spool, slots)
```
Ray carries bytes and text, places the actors and says which nodes are there. It schedules no work: lanes do.
An actor has one process; the kernels run in processes of that one's own, as everywhere.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kernelwright.errors import InfrastructureError
from kernelwright.imports import require
from kernelwright.remote.runners import check_address
from kernelwright.tuning.machine import LocalMachine, Machine
from kernelwright.worker.slot import DeviceSlot

POLL_S = 0.2
"""How often a lane that waits for its actor hears that it is to end."""

CONNECT_S = 10.0
"""How long the head of a cluster has for a connection."""

END_S = 3.0
"""How long an actor has to remove its files."""


@contextlib.contextmanager
def ray_slots(
    address: str | None, *, machine: Callable[[], Machine] = LocalMachine
) -> Iterator[Callable[[], Mapping[str, Callable[[], _RaySlot]]]]:
    """Inside, a cluster can be asked for its devices, see `fleet.Slots`; one that was begun here ends with the block.

    Args:
        address: `HOST:PORT` of the head, or `auto`; None: a cluster of this machine is begun, without dashboard.
        machine: gives each actor its devices; has to be found by its name on all nodes.

    Raises:
        UsageError: the address is none.
        MissingDependency: Ray is not installed.
        InfrastructureError: the cluster cannot be reached, or has another version.
    """
    if address is not None:
        check_address(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray tells its makers otherwise
    ray: Any = require("ray", purpose="the runner ray")
    if address is not None and address != "auto":
        _reach(address)
    own = {"include_dashboard": False} if address is None else {}
    try:
        ray.init(address=address or "local", log_to_driver=False, configure_logging=False, **own)
    except Exception as error:  # whatever Ray raises: it has no tree of errors for this
        what = f"the Ray cluster {address}" if address else "Ray on this machine"
        hint = "a command uses a cluster from a machine that is part of it, with the same Ray and Python"
        raise InfrastructureError(f"{what} cannot be used: {_first_line(error)}", hint=hint) from error
    try:
        yield lambda: _slots(ray, machine)
    finally:
        ray.shutdown()


def _slots(ray: Any, machine: Callable[[], Machine]) -> Mapping[str, Callable[[], _RaySlot]]:
    """What nodes offer now: each GPU, and the processor of a node without one."""
    try:
        nodes = ray.nodes()
    except Exception as error:  # as above
        raise InfrastructureError(f"the Ray cluster does not answer any more: {_first_line(error)}") from error
    found: dict[str, Callable[[], _RaySlot]] = {}
    for node in nodes:
        resources = node.get("Resources", {})
        if not node.get("Alive"):
            continue
        place = f"{node.get('NodeManagerHostname', 'node')}-{node['NodeID'][:6]}"
        for number in range(int(resources.get("GPU", 0))):
            found[f"{place}-gpu{number}"] = _opening(ray, machine, node["NodeID"], {"num_cpus": 0, "num_gpus": 1})
        if not resources.get("GPU") and resources.get("CPU", 0) >= 1:
            found[f"{place}-cpu"] = _opening(ray, machine, node["NodeID"], {"num_cpus": 1})
    return found


def _opening(
    ray: Any, machine: Callable[[], Machine], node: str, resources: Mapping[str, int]
) -> Callable[[], _RaySlot]:
    return lambda: _RaySlot(ray, machine, node, resources)


class _RaySlot:
    """See `fleet`."""

    def __init__(self, ray: Any, machine: Callable[[], Machine], node: str, resources: Mapping[str, int]) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._ray = ray
        self._is_closed = threading.Event()
        options = {**resources, "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}
        # A second thread, for `end` alone: Ray cannot interrupt what the first is doing.
        self._actor = ray.remote(DeviceSlot).options(**options, max_restarts=0, max_concurrency=2).remote(machine)

    def call(self, method: str, *arguments: object) -> bytes:
        """See `fleet`."""
        errors = self._ray.exceptions
        try:
            reference = getattr(self._actor, method).remote(*arguments)
            while not self._is_closed.is_set():
                with contextlib.suppress(errors.GetTimeoutError):
                    return bytes(self._ray.get(reference, timeout=POLL_S))
        except errors.RayTaskError as error:
            raise InfrastructureError(f"it failed in {method!r}: {_first_line(error.cause)}") from error
        except Exception as error:  # of a lost actor, node or head
            if not self._is_closed.is_set():
                words = f"it is lost, and what it was doing begins anew elsewhere ({_first_line(error)})"
                raise InfrastructureError(words) from error
        raise KeyboardInterrupt

    def close(self) -> None:
        """See `fleet`."""
        if self._is_closed.is_set():
            return
        self._is_closed.set()
        with contextlib.suppress(Exception):  # it may be gone, with its node or the cluster
            self._ray.wait([self._actor.end.remote()], timeout=END_S)
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor)


def _reach(address: str) -> None:
    """Nothing, where somebody listens: Ray itself tries for half a minute, and tells much.

    Raises:
        InfrastructureError: nobody does.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (OSError, UnicodeError) as error:  # the latter of a name that none can have
        why = getattr(error, "strerror", None) or str(error)
        hint = "is it the address that `ray start --head` said, and is the cluster up?"
        raise InfrastructureError(f"no Ray cluster at {address}: {why}", hint=hint) from error


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)

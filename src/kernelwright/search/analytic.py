"""What arithmetic alone says of a config, before anything is measured: occupancy, waves, a roofline.

```
priors = analytic_priors(space, lambda config: LaunchShape(threads=..., blocks=..., shared_bytes=...), device)
searcher = create("surrogate", space, seed=0, priors=priors)      # it learns how far to believe them
```
A launch fills the device in waves of resident blocks. The estimate is the larger of arithmetic and memory time, each as
far as the launch can use the device: idle lanes of the last warp, idle multiprocessors in the last wave, too few warps
and too little work of one's own per thread to hide latency, registers that spill. It knows nothing of access patterns,
caches, or what the compiler does, so only its order of configs is worth anything, and that only sometimes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kernelwright.search.base import Prior

if TYPE_CHECKING:
    from kernelwright.problem.config import Config
    from kernelwright.space.feasible import Space

SOURCE_NAME = "occupancy and roofline estimate"

BASE_REGISTERS = 24
"""Registers of a thread for addresses and counters, before its results. A guess."""

HIDING = 4.0
"""How fast more warps, and more independent work in each thread, hide latency. A guess."""

OVERHEAD = 1.0
"""What a thread does once, in units of the work for one result. A guess."""


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """What one config launches."""

    threads: int
    """In a block."""
    blocks: int
    results: float
    """Computed by one thread."""
    shared_bytes: int = 0
    """The shared memory of one block."""
    traffic: float = 1.0
    """Bytes moved, in units of the least possible."""
    registers: float | None = None
    """Of a thread, where a compiler has told; None: guessed from the results."""
    spilled_bytes: float = 0.0
    """That a thread stores and loads for want of registers, as a compiler has told."""


@dataclass(frozen=True, slots=True)
class DeviceShape:
    """What a device offers to launches."""

    multiprocessors: int
    threads: int
    """Resident on one multiprocessor."""
    shared_bytes: int
    """The shared memory of one multiprocessor."""
    registers: int = 65_536
    blocks: int = 32
    """Resident on one multiprocessor."""
    warp: int = 32
    balance: float = 1.0
    """Time for the arithmetic at full speed, in units of the time for moving the least bytes."""


def estimate(launch: LaunchShape, device: DeviceShape) -> float | None:
    """The time in units of the least that moving the bytes takes; None where a block does not fit at all."""
    warps = math.ceil(launch.threads / device.warp)
    registers = BASE_REGISTERS + launch.results if launch.registers is None else launch.registers
    resident = min(
        device.blocks,
        device.threads // (warps * device.warp),
        int(device.registers // (min(registers, 255) * warps * device.warp)),
        device.shared_bytes // launch.shared_bytes if launch.shared_bytes else device.blocks,
    )
    if resident < 1 or launch.blocks < 1:
        return None
    at_once = device.multiprocessors * resident
    filled = launch.blocks / (math.ceil(launch.blocks / at_once) * at_once)
    lanes = launch.threads / (warps * device.warp)
    occupancy = resident * warps * device.warp / device.threads
    hidden = 1 - math.exp(-HIDING * occupancy * math.sqrt(launch.results))
    spilled = 1 + max(0.0, registers - 255) / 64 + launch.spilled_bytes / 256
    arithmetic = device.balance * (1 + OVERHEAD / launch.results) * spilled / (filled * lanes * hidden)
    memory = launch.traffic / (filled * (1 - math.exp(-HIDING * occupancy)))
    return max(arithmetic, memory) + 0.25 * min(arithmetic, memory)


def analytic_priors(
    space: Space,
    launch_of: Callable[[Config], LaunchShape | None],
    device: DeviceShape,
    *,
    limit: int = 5000,
    seed: int = 0,
) -> list[Prior]:
    """Estimates of all configs, of a sample where there are more than `limit`, as one more source of priors.

    Args:
        space: the feasible set.
        launch_of: what a config launches; None where that is not known.
        device: what it runs on.
        limit: the most configs to estimate.
        seed: of the sample.
    """
    if space.feasible_count <= limit:
        configs = list(space.iterate())
    else:
        configs = space.sample(limit, np.random.default_rng(seed))
    priors = []
    for config in configs:
        launch = launch_of(config)
        value = estimate(launch, device) if launch is not None else None
        if value is not None:
            priors.append(Prior(config, value, SOURCE_NAME))
    return priors

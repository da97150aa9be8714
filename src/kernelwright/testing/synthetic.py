"""Simulated objectives on real spaces: what a searcher or a whole run can be tested on with no device.

An objective is a function from a config to a value (lower is better, > 0), or to None where the candidate fails. The
ones here are made by functions: deterministic on every machine and picklable; those that take another one compose:

```
objective = noisy(failing(matmul(), share=0.2), seed=1, deviation=0.02)
searcher.tell([observe(objective, config) for config in searcher.ask(8)])
```
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kernelwright.identity import ID_LENGTH, content_id
from kernelwright.problem.config import Config
from kernelwright.problem.expressions.expression import Expression
from kernelwright.search.base import Observation
from kernelwright.space.feasible import Space
from kernelwright.space.parameter import Constraint, Parameter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelwright.search.base import Searcher

Objective = Callable[[Config], float | None]
"""What a config is worth: lower is better and above 0; None where the candidate fails."""

MATMUL_PARAMETERS = (
    Parameter("BLOCK_M", (16, 32, 64, 128), 32),
    Parameter("BLOCK_N", (16, 32, 64, 128), 32),
    Parameter("BLOCK_K", (8, 16, 32, 64), 8),
    Parameter("THREAD_M", (1, 2, 4, 8), 1),
    Parameter("THREAD_N", (1, 2, 4, 8), 1),
    Parameter("VEC", (1, 2, 4), 1),
    Parameter("UNROLL", (1, 2, 4), 1),
    Parameter("PREFETCH", (False, True), default=False),
    Parameter("LAYOUT", ("row", "column"), "row"),
)
"""A tiled matrix product's usual parameters: 36,864 combinations, many of them feasible only on paper."""

MATMUL_CONSTRAINTS = {
    "threads_at_most": "BLOCK_M * BLOCK_N <= 1024 * THREAD_M * THREAD_N",
    "threads_at_least": "BLOCK_M * BLOCK_N >= 32 * THREAD_M * THREAD_N",
    "shared_memory": "(BLOCK_M + BLOCK_N) * BLOCK_K <= 8192",
    "unroll": "BLOCK_K % UNROLL == 0",
    "vector": "BLOCK_N % (THREAD_N * VEC) == 0",
    "even_loads": "BLOCK_K * THREAD_M * THREAD_N % (VEC * BLOCK_N) == 0",
}
"""Name -> condition, in the expression language of constraints."""


def matmul_space() -> Space:
    """The feasible set of `MATMUL_PARAMETERS` under `MATMUL_CONSTRAINTS`."""
    constraints = [Constraint(name, Expression.parse(text)) for name, text in MATMUL_CONSTRAINTS.items()]
    return Space.build(MATMUL_PARAMETERS, constraints)


def unit(*parts: object) -> float:
    """A number in [0, 1) that depends on the content of `parts` alone: the same in every process, for ever."""
    return int(content_id(*parts), 16) / float(16**ID_LENGTH)


def ranks(parameters: Sequence[Parameter], config: Config) -> list[float]:
    """Each value's place in its parameter's list, from 0 (first) to 1 (last)."""
    return [p.values.index(config[p.name]) / max(len(p.values) - 1, 1) for p in parameters]


def smooth(parameters: tuple[Parameter, ...], seed: int = 0) -> Callable[[Config], float]:
    """One valley: `exp` of a weighted squared distance, in ranks, from a target that the seed places.

    At the target the value is 1; parameters differ in weight by up to 10, and neighbours in the list interact.
    """
    return partial(_smooth, parameters, seed)


def _smooth(parameters: tuple[Parameter, ...], seed: int, config: Config) -> float:
    offsets = [
        rank - unit("target", seed, p.name) for p, rank in zip(parameters, ranks(parameters, config), strict=True)
    ]
    weights = [0.2 + 1.8 * unit("weight", seed, p.name) for p in parameters]
    own = sum(w * x * x for w, x in zip(weights, offsets, strict=True))
    between = sum(0.5 * a * b for a, b in itertools.pairwise(offsets))
    return math.exp(own + between)


def matmul(size: int = 1024, ruggedness: float = 0.05, seed: int = 0) -> Callable[[Config], float]:
    """A roofline-like time of a tiled matrix product over `MATMUL_PARAMETERS`, in milliseconds.

    The larger of arithmetic and memory time: blocks bring reuse, threads' tiles bring instruction parallelism and cost
    registers (a cliff where they spill), shared memory costs occupancy, vectors want the right layout. `ruggedness`
    multiplies each config's time by up to `1 + ruggedness`, as compilers do.
    """
    return partial(_matmul, size, ruggedness, seed)


def _matmul(size: int, ruggedness: float, seed: int, config: Config) -> float:
    block_m, block_n, block_k = (int(config[name]) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    thread_m, thread_n, unroll = (int(config[name]) for name in ("THREAD_M", "THREAD_N", "UNROLL"))
    vec, prefetch = int(config["VEC"]), bool(config["PREFETCH"])
    threads = (block_m // thread_m) * (block_n // thread_n)
    registers = 18 + 2 * thread_m * thread_n + 2 * (thread_m + thread_n) + 2 * unroll + 6 * prefetch
    shared_bytes = 4 * (block_m + block_n) * block_k * (2 if prefetch else 1)
    resident = max(1, min(2048 // threads, 65536 // (registers * threads), 100_000 // shared_bytes))
    occupancy = min(1.0, resident * threads / 2048)
    parallelism = 1 - math.exp(-4 * occupancy * (thread_m * thread_n) ** 0.5)
    overhead = 1 + 0.6 / unroll + 1.5 / thread_m + 1.5 / thread_n + 2.0 / block_k
    spill = 1 + max(0, registers - 128) / 16
    blocks = math.ceil(size / block_m) * math.ceil(size / block_n)
    tail = math.ceil(blocks / (108 * resident)) * 108 * resident / blocks
    compute_ms = 2 * size**3 / 15e9 * overhead * spill * min(tail, 3.0) / parallelism
    wanted = 4 if config["LAYOUT"] == "row" else 2
    width = 1 + 0.35 * abs(math.log2(vec / wanted))
    traffic_bytes = 4 * size**3 * (1 / block_m + 1 / block_n)
    memory_ms = traffic_bytes / 1.2e9 * width * (0.7 if prefetch else 1.0) / (0.4 + 0.6 * occupancy)
    time_ms = max(compute_ms, memory_ms) + 0.25 * min(compute_ms, memory_ms)
    return time_ms * (1 + ruggedness * unit("rugged", seed, config))


def plateau(inner: Objective, ratio: float = 1.5) -> Objective:
    """`inner` rounded up to steps of a fixed ratio, so that most neighbours are exactly equal."""
    return partial(_plateau, inner, ratio)


def _plateau(inner: Objective, ratio: float, config: Config) -> float | None:
    value = inner(config)
    if value is None:
        return None
    return ratio ** math.ceil(math.log(value) / math.log(ratio))


def rugged(inner: Objective, height: float = 0.5, seed: int = 0) -> Objective:
    """`inner` times a factor of up to `1 + height` that is independent from config to config."""
    return partial(_rugged, inner, height, seed)


def _rugged(inner: Objective, height: float, seed: int, config: Config) -> float | None:
    value = inner(config)
    return None if value is None else value * (1 + height * unit("rugged", seed, config))


def noisy(inner: Objective, seed: int = 0, deviation: float = 0.05) -> Objective:
    """`inner` times log-normal noise, drawn once for each config (a measurement that is recorded, then kept).

    `deviation`: of the logarithm, a standard deviation.
    """
    return partial(_noisy, inner, seed, deviation)


def _noisy(inner: Objective, seed: int, deviation: float, config: Config) -> float | None:
    value = inner(config)
    if value is None:
        return None
    # Box-Muller on two hashes; 1 - unit is in (0, 1], so the logarithm exists.
    radius = math.sqrt(-2 * math.log(1 - unit("radius", seed, config)))
    normal = radius * math.cos(2 * math.pi * unit("angle", seed, config))
    return value * math.exp(deviation * normal)


def failing(inner: Objective, share: float = 0.3, seed: int = 0) -> Objective:
    """`inner`, but about `share` of the configs fail: those that hold certain pairs of values, as real limits do.

    The pairs are chosen by the seed, so failures form regions that can be learned, not specks.
    """
    return partial(_failing, inner, share, seed)


def _failing(inner: Objective, share: float, seed: int, config: Config) -> float | None:
    names = list(config)
    pairs = [(a, b) for position, a in enumerate(names) for b in names[position + 1 :]]
    if not pairs:
        return inner(config)
    tested = sorted(pairs, key=lambda pair: unit("pair", seed, pair))[:3]
    each = 1 - (1 - share) ** (1 / len(tested))
    for a, b in tested:
        if unit("fails", seed, a, config[a], b, config[b]) < each:
            return None
    return inner(config)


def shifted(inner: Objective, seed: int = 0, strength: float = 0.3) -> Objective:
    """`inner` on another device: each parameter's single values cost up to `1 + strength` times more."""
    return partial(_shifted, inner, seed, strength)


def _shifted(inner: Objective, seed: int, strength: float, config: Config) -> float | None:
    value = inner(config)
    if value is None:
        return None
    factors = (1 + strength * unit("shift", seed, name, config[name]) for name in config)
    return value * math.prod(factors) ** 0.5


def always_fails(config: Config) -> None:
    """Every candidate fails."""


def observe(objective: Objective, config: Config, *, cost_s: float = 0.0) -> Observation:
    """The observation that a perfect evaluation of `config` would give."""
    value = objective(config)
    return Observation(config, value, None if value is not None else "check:simulated", cost_s=cost_s)


def drive(searcher: Searcher, objective: Objective, *, budget: int, batch_count: int = 1) -> list[Observation]:
    """Ask and tell until `budget` evaluations are done or the space is exhausted; all observations in order."""
    seen: list[Observation] = []
    while len(seen) < budget:
        configs = searcher.ask(min(batch_count, budget - len(seen)))
        if not configs:
            break
        told = [observe(objective, config) for config in configs]
        searcher.tell(told)
        seen.extend(told)
    return seen


def best_value(observations: Sequence[Observation]) -> float | None:
    """The lowest value among full measurements; None when all failed."""
    values = [o.value for o in observations if o.value is not None and not o.is_partial]
    return min(values, default=None)

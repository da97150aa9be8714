"""What a kernel's traffic takes on a GPU, by a small model: for predictions, which order ideas, never for claims.

A launch takes its own time, and then the longest of three: moving its bytes at the measured rate, starting its loads
and stores, or waiting for memory as often as its threads do so one after the other. Short kernels wait, long ones move.
The numbers below are guesses, made to fit six plain kernels on an H100, on two workloads each (5 to 25 us): the model
is within a factor of 1.7 of those, and within 1.3 of what rules made of them (2 to 7 us).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelwright.analysis.facts import Access, LoopFact
from kernelwright.errors import SpecError
from kernelwright.problem.dtypes import DTYPES
from kernelwright.tactics.base import DeviceFacts, Effect, Subject
from kernelwright.tactics.common.iteration_domain import total_of

LAUNCH_S = 1.0e-6
LATENCY_S = 0.7e-6
"""Until a load that no cache holds is there."""

CACHED_S = 0.3e-6
"""Until a load is there that another block brought into the second-level cache."""

AGAIN_S = 0.06e-6
"""Until a load is there that the same block had before."""

BARRIER_S = 0.03e-6
AHEAD = 4
"""Steps of a plain loop whose loads compilers put before the first use."""

CACHED_SHARE = 0.4
"""Bytes from the second-level cache take this share of the time of bytes from memory."""

SECTOR_BYTES = 32
"""What memory moves at least, for one thread alone."""

ISSUE_S = 2.2e-9
"""Between two loads or stores of a multiprocessor's warps, however narrow: what limits scalar code on 16-bit data."""

RATE_BYTES_PER_S = 1e12
WARP = 32
MULTIPROCESSORS = 100
"""Where the device's own are not known."""

MOST = 10.0
LEAST = 1.02


def launch_s(
    device: DeviceFacts, moved_bytes: float, threads: float, block: int, waits_s: float, accesses: float = 0.0
) -> float:  # fmt: skip
    """What one launch takes.

    Args:
        device: with its rates.
        moved_bytes: through memory; cached ones by their share.
        threads: all of the launch.
        block: threads of one block.
        waits_s: how long one block waits for memory and barriers, one after the other.
        accesses: loads and stores of all threads.
    """
    multiprocessors = device.multiprocessors or MULTIPROCESSORS
    resident = max(1, 2048 // max(block, 1)) * multiprocessors
    waves = max(1, math.ceil(threads / max(block, 1) / resident))
    moving_s = moved_bytes / (device.copy_bytes_per_s or RATE_BYTES_PER_S)
    issuing_s = accesses / WARP * ISSUE_S / multiprocessors
    return LAUNCH_S + max(moving_s, waves * waits_s, issuing_s)


def effect(pairs: list[tuple[float, float]], what: str, *, otherwise: float) -> Effect:
    """The gain from the first time of each workload to the second, geometric mean.

    Args:
        pairs: by workload, seconds before and after; empty: unknown.
        what: changes, as the start of a sentence.
        otherwise: the factor where the times are not known, a guess.
    """
    if not pairs:
        return Effect(otherwise, what)
    logs = [math.log(before_s / after_s) for before_s, after_s in pairs]
    factor = min(MOST, max(LEAST, math.exp(math.fsum(logs) / len(logs))))
    before_s, after_s = pairs[0]
    return Effect(factor, f"{what}: by latency and bandwidth about {before_s * 1e6:.1f} us, then {after_s * 1e6:.1f}")


def element_bytes(subject: Subject, access: Access) -> int:
    """Bytes that one thread moves by one access; whole sectors where its neighbours are elsewhere."""
    array = subject.analysis.facts.arrays.get(access.array)
    size = (array.element_bytes if array is not None else None) or 4
    return SECTOR_BYTES if access.contiguity in ("strided", "irregular") else size


def map_bytes(subject: Subject, threads: int, sizes: Mapping[str, int]) -> float:
    """What all threads of a map move: what each of them touches, of each array no more than there is."""
    touched: dict[tuple[str, str], dict[str, int]] = {}
    for access in subject.analysis.facts.accesses:
        if access.space == "global" and access.contiguity != "broadcast":
            own = touched.setdefault((access.array, access.kind), {})
            own[str(access.element)] = element_bytes(subject, access)
    total = 0.0
    for (array, _), places in touched.items():
        whole = array_bytes(subject, array, sizes)
        moved = threads * sum(places.values())
        total += moved if whole is None else min(moved, whole)
    return total


def array_bytes(subject: Subject, array: str, sizes: Mapping[str, int]) -> int | None:
    """How large an array is on one workload; None where launches differ or do not say."""
    arguments = {binding.get(array) for binding in subject.bindings}
    argument = arguments.pop() if len(arguments) == 1 else None
    if argument is None or not argument.shape:
        return None
    try:
        extents = [extent.evaluate(sizes) for extent in argument.shape]
    except SpecError:
        return None
    return math.prod(int(each) for each in extents) * DTYPES[argument.dtype].item_bytes


def map_pairs(
    subject: Subject, threads: list[int | None], block: int, vec: int, *, barriers: int = 0
) -> list[tuple[float, float]]:  # fmt: skip
    """Seconds of a kernel with a thread an element, and with a thread for `vec` of them, by workload.

    Args:
        subject: the kernel.
        threads: of the plain launch, by workload.
        block: of the plain launch.
        vec: elements of a thread afterwards.
        barriers: at which a plain block waits; afterwards none.
    """
    pairs = []
    for count, sizes in zip(threads, subject.sizes(), strict=True):
        if count is None:
            return []
        moved = map_bytes(subject, count, sizes)
        touches = count * sum(each.space == "global" for each in subject.analysis.facts.accesses)
        before_s = launch_s(subject.device, moved, count, block, LATENCY_S + barriers * BARRIER_S, touches)
        pairs.append((before_s, launch_s(subject.device, moved, count / vec, 256, LATENCY_S, touches / vec)))
    return pairs


@dataclass(frozen=True, slots=True)
class Walk:
    """How a block walks its row."""

    size: int
    """Threads."""
    vec: int
    ahead: int
    """Steps that are loaded before the first is used; 0: all."""
    is_kept: bool
    """Whether later passes find the row in registers."""
    barriers: int


def row_walk_s(subject: Subject, loops: Sequence[LoopFact], walk: Walk, *, rows: int, length: int) -> float:
    """Seconds of a kernel whose blocks walk a row each, in these loops."""
    facts = subject.analysis.facts
    steps = math.ceil(length / (walk.size * walk.vec))
    seen: set[str] = set()
    moved = waits = accesses = 0.0
    for loop in loops:
        touches = [a for a in facts.accesses if loop.index in a.loops and a.space == "global"]
        reads = {a.array: a for a in touches if a.kind != "write"}
        moved += sum(element_bytes(subject, a) for a in touches if a.kind == "write") * rows * length
        latency = 0.0
        accesses += sum(a.kind == "write" for a in touches) * rows * length / walk.vec
        for array, access in reads.items():
            is_again, is_common = array in seen, access.element is not None and not _names_block(access)
            if is_again and walk.is_kept:
                continue
            accesses += rows * length / walk.vec
            share = CACHED_SHARE if is_again or is_common else 1.0
            moved += share * element_bytes(subject, access) * rows * length
            latency = max(latency, AGAIN_S if is_again else CACHED_S if is_common else LATENCY_S)
        is_held_up = any(a.kind == "write" for a in touches) and not _is_restrict(subject)
        ahead = steps if walk.ahead == 0 else 1 if is_held_up else walk.ahead
        waits += math.ceil(steps / ahead) * latency
        seen |= reads.keys()
    waits_s = waits + walk.barriers * BARRIER_S
    return launch_s(subject.device, moved, rows * walk.size, walk.size, waits_s, accesses)


def _names_block(access: Access) -> bool:
    """Whether an access is to another place in every block."""
    return access.element is not None and any(name.startswith(("block.", "global.")) for name in access.element.names)


def _is_restrict(subject: Subject) -> bool:
    """Whether loads may move before stores."""
    pointers = [each for each in subject.analysis.function.parameters if each.is_pointer]
    return all(each.is_restrict for each in pointers)


def row_pairs(
    subject: Subject, loops: Sequence[LoopFact], before: Walk, after: Walk, *, rows: str
) -> list[tuple[float, float]]:  # fmt: skip
    """Seconds of two ways to walk the rows, by workload; empty where rows or their length are not known.

    Args:
        subject: the kernel.
        loops: along the row.
        before: as the kernel walks.
        after: as it will.
        rows: how many there are, as an expression in sizes.
    """
    bound = loops[0].bound if loops else None
    pairs = []
    for sizes in subject.sizes():
        count = total_of(subject, rows, sizes)
        length = subject.evaluate(bound, sizes) if bound is not None else None
        if count is None or not length:
            return []
        first_s, then_s = (row_walk_s(subject, loops, walk, rows=count, length=length) for walk in (before, after))
        pairs.append((first_s, then_s))
    return pairs


def tree_barriers(size: int) -> int:
    """At how many barriers a block of `size` threads waits that joins by a tree in shared memory."""
    return math.ceil(math.log2(max(size, 2))) + 2

"""What limits a kernel, with the evidence: from figures that need no privilege, and from counters where there are some.

A diagnosis is a list, the most telling first. Thresholds are rules of thumb of the trade (Nsight Compute's own rules
use the same magnitudes); the figures stand beside each so that a person can judge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

Limiter = Literal[
    "memory", "cache", "compute", "latency", "occupancy", "spills", "small-grid", "uncoalesced", "bank-conflicts",
    "divergence", "barriers", "extra-traffic", "unmeasured",
]  # fmt: skip
"""`unmeasured`: none that is known is near its peak, and of memory or arithmetic that peak or the work is not known."""

BUSY = 0.7
"""Above this share of a measured rate, that resource limits."""
BEYOND_MEMORY = 1.8
"""So many times a large copy's rate is no memory's: what is read comes from a cache. A guess; what is written may stay
in the cache, which explains less.
"""
LOW_OCCUPANCY = 0.3
SHORT_MS = 0.005
"""Below it a launch's latency counts as much as its work, where an empty one was not timed."""
UNCOALESCED_PERCENT = 70.0
CONFLICT_SHARE = 0.2
STALLED_PERCENT = 30.0
BARRIER_PERCENT = 20.0
EXTRA_TRAFFIC = 1.3
UNIFORM_PERCENT = 70.0


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one kernel on one workload; None for what is not."""

    time_ms: float
    byte_count: float | None = None
    """That must be moved."""
    operation_count: float | None = None
    floor_ms: float | None = None
    launch_ms: float | None = None
    """The part of the floor that an empty launch takes."""
    copy_bytes_per_s: float | None = None
    cache_bytes_per_s: float | None = None
    operations_per_s: float | None = None
    """The pipe's own peak."""
    is_cached: bool = False
    """Whether the floor is that of the cache."""
    block_count: int | None = None
    multiprocessors: int | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    """What the longest kernel uses: `occupancy`, `spill_bytes`, `registers_per_thread`, ..."""
    counters: Mapping[str, float] = field(default_factory=dict)
    """By name of `backend.cuda.measure.nsight_compute.COUNTERS`, where they could be read."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that limits, or costs."""

    limiter: Limiter
    text: str
    evidence: Mapping[str, float]
    """The figures it rests on, with their units in their names."""


def achieved(facts: Facts) -> dict[str, float]:
    """Rates that the kernel reaches, by name; only what can be said."""
    rates = {}
    if facts.byte_count is not None and facts.time_ms > 0:
        rates["bytes_per_s"] = 1e3 * facts.byte_count / facts.time_ms
    if facts.operation_count is not None and facts.time_ms > 0:
        rates["operations_per_s"] = 1e3 * facts.operation_count / facts.time_ms
    if facts.floor_ms is not None and facts.time_ms > 0:
        rates["floor_share"] = facts.floor_ms / facts.time_ms
    return rates


def diagnose(facts: Facts) -> tuple[Diagnosis, ...]:
    """What limits this kernel; empty when nothing is known."""
    bound = list(_bound(facts))
    costs = [*_spills(facts), *_coalescing(facts), *_conflicts(facts), *_extra_traffic(facts), *_control(facts)]
    if bound:
        return (*bound, *costs)
    return (*costs, *_idle(facts))


def _bound(facts: Facts) -> Iterator[Diagnosis]:
    """Resources that are busy, by rate or by counter."""
    rates = achieved(facts)
    peak = _peak(facts)
    moved = rates.get("bytes_per_s", 0.0)
    if peak and moved >= BUSY * peak:
        where: Limiter = "cache" if facts.is_cached else "memory"
        yield Diagnosis(
            where,
            f"the bytes that it must move go at {moved / 1e9:,.0f} GB/s, {moved / peak:.0%} of what "
            f"{'the cache' if facts.is_cached else 'a large copy'} reaches"
            + (" (what it writes stays in the cache)" if moved > 1.05 * peak else ""),
            {"achieved_gb_per_s": moved / 1e9, "peak_gb_per_s": peak / 1e9},
        )
    elif (busy := facts.counters.get("dram_busy", 0.0)) >= 100 * BUSY:
        yield Diagnosis("memory", f"device memory is busy {busy:.0f}% of the time", {"dram_busy_percent": busy})
    elif (busy := facts.counters.get("l2_busy", 0.0)) >= 100 * BUSY:
        yield Diagnosis("cache", f"the second-level cache is busy {busy:.0f}% of the time", {"l2_busy_percent": busy})
    if (busy := facts.counters.get("l1_busy", 0.0)) >= 100 * BUSY:
        text = f"the first-level cache and shared memory are busy {busy:.0f}% of the time"
        yield Diagnosis("cache", text, {"l1_busy_percent": busy})
    if facts.operations_per_s and (rate := rates.get("operations_per_s", 0.0)) >= BUSY * facts.operations_per_s:
        share = rate / facts.operations_per_s
        yield Diagnosis(
            "compute",
            f"its operations go at {rate / 1e12:,.2f} T/s, {share:.0%} of the pipe's measured peak",
            {"achieved_t_per_s": rate / 1e12, "peak_t_per_s": facts.operations_per_s / 1e12},
        )
    elif (busy := facts.counters.get("sm_busy", 0.0)) >= 100 * BUSY:
        yield Diagnosis("compute", f"the multiprocessors' busiest pipe is at {busy:.0f}%", {"sm_busy_percent": busy})


def _spills(facts: Facts) -> Iterator[Diagnosis]:
    spilled = facts.resources.get("spill_bytes", 0.0)
    if spilled:
        evidence = {"spill_bytes_per_thread": spilled}
        if "registers_per_thread" in facts.resources:
            evidence["registers_per_thread"] = facts.resources["registers_per_thread"]
        if "local_sectors" in facts.counters:
            evidence["local_sectors_read"] = facts.counters["local_sectors"]
        yield Diagnosis("spills", f"{spilled:g} bytes a thread are spilled to memory for want of registers", evidence)


def _coalescing(facts: Facts) -> Iterator[Diagnosis]:
    for name, what in (("load_use", "loads"), ("store_use", "stores")):
        use = facts.counters.get(name)
        if use is not None and 0 < use < UNCOALESCED_PERCENT:
            yield Diagnosis(
                "uncoalesced",
                f"only {use:.0f}% of the bytes that its {what} move are used: neighbouring threads access memory apart",
                {f"{what}_used_percent": use},
            )


def _conflicts(facts: Facts) -> Iterator[Diagnosis]:
    conflicts, passes = facts.counters.get("bank_conflicts"), facts.counters.get("shared_passes")
    if conflicts and passes and conflicts / passes >= CONFLICT_SHARE:
        share = conflicts / passes
        yield Diagnosis(
            "bank-conflicts",
            f"{share:.0%} of the passes over shared memory are for bank conflicts",
            {"conflicts": conflicts, "passes": passes},
        )


def _extra_traffic(facts: Facts) -> Iterator[Diagnosis]:
    moved = facts.counters.get("dram_read", 0.0) + facts.counters.get("dram_written", 0.0)
    if facts.byte_count and moved > EXTRA_TRAFFIC * facts.byte_count:
        yield Diagnosis(
            "extra-traffic",
            f"{moved / 1e6:,.1f} MB went over the memory's wires, {moved / facts.byte_count:.1f} times what must",
            {"moved_mb": moved / 1e6, "needed_mb": facts.byte_count / 1e6},
        )


def _control(facts: Facts) -> Iterator[Diagnosis]:
    barrier = facts.counters.get("stall_barrier", 0.0)
    if barrier >= BARRIER_PERCENT:
        text = f"warps wait {barrier:.0f}% of their time at barriers"
        yield Diagnosis("barriers", text, {"stalled_at_barriers_percent": barrier})
    uniform = facts.counters.get("uniform_branches")
    if uniform is not None and 0 < uniform < UNIFORM_PERCENT:
        text = f"only {uniform:.0f}% of branches are taken alike by a whole warp"
        yield Diagnosis("divergence", text, {"uniform_branches_percent": uniform})


def _idle(facts: Facts) -> Iterator[Diagnosis]:
    """Nothing is busy: why not."""
    blocks, multiprocessors = facts.block_count, facts.multiprocessors
    if blocks is not None and multiprocessors and blocks < multiprocessors:
        yield Diagnosis(
            "small-grid",
            f"{blocks} blocks leave {multiprocessors - blocks} of {multiprocessors} multiprocessors without work",
            {"blocks": float(blocks), "multiprocessors": float(multiprocessors)},
        )
    occupancy = facts.counters.get("occupancy", 100 * facts.resources.get("occupancy", 1.0)) / 100
    known = "occupancy" in facts.counters or "occupancy" in facts.resources
    stalled = facts.counters.get("stall_memory", 0.0)
    if known and occupancy < LOW_OCCUPANCY:
        yield Diagnosis(
            "occupancy",
            f"only {occupancy:.0%} of the warps that fit are resident{_occupancy_limit(facts)}, which hides waits only "
            "where each has several loads under way",
            {"occupancy": occupancy},
        )
    rates = achieved(facts)
    if not rates and not facts.counters:
        return
    evidence = {f"{name}_percent": 100 * share for name, share in _shares(facts, rates).items()}
    if stalled >= STALLED_PERCENT:
        evidence["stalled_on_memory_percent"] = stalled
    short = " (a launch this short is mostly its own latency)" if facts.time_ms < _short_ms(facts) else ""
    reached = ", ".join(f"{name.removesuffix('_percent')} {value:.0f}%" for name, value in evidence.items())
    unknown = [*_unknown_memory(facts, evidence), *_unknown_arithmetic(facts, evidence)]
    if evidence and unknown:
        text = f"nothing that was measured is near its peak ({reached}), but {' and '.join(unknown)}"
        yield Diagnosis("unmeasured", text, evidence)
    elif evidence:
        yield Diagnosis("latency", f"nothing is near its peak ({reached}): it waits{short}", evidence)


def _peak(facts: Facts) -> float | None:
    """The rate that its traffic is set against; None: not known, also where it is far above a large copy's."""
    if facts.is_cached or facts.copy_bytes_per_s is None:
        return facts.cache_bytes_per_s if facts.is_cached else None
    moved = achieved(facts).get("bytes_per_s", 0.0)
    return facts.copy_bytes_per_s if moved <= BEYOND_MEMORY * facts.copy_bytes_per_s else None


def _short_ms(facts: Facts) -> float:
    """Below it a launch's own latency counts as much as its work."""
    return SHORT_MS if facts.launch_ms is None else 2 * facts.launch_ms


def _unknown_memory(facts: Facts, evidence: Mapping[str, float]) -> Iterator[str]:
    """Why it may be bound by memory all the same."""
    if "memory_percent" in evidence or "dram_busy" in facts.counters:
        return
    if _peak(facts):
        yield "how much it must move is not known"
    elif facts.copy_bytes_per_s or facts.is_cached:
        yield "the peak of the cache that it reads from was not measured"
    else:
        yield "the peak of memory was not measured"


def _unknown_arithmetic(facts: Facts, evidence: Mapping[str, float]) -> Iterator[str]:
    """Why it may be bound by arithmetic all the same."""
    if "arithmetic_percent" in evidence or "sm_busy" in facts.counters:
        return
    yield "how much it computes is not known" if facts.operations_per_s else "the peak of arithmetic was not measured"


def _shares(facts: Facts, rates: Mapping[str, float]) -> dict[str, float]:
    shares = {}
    peak = _peak(facts)
    if peak and "bytes_per_s" in rates:
        shares["memory"] = rates["bytes_per_s"] / peak
    if facts.operations_per_s and "operations_per_s" in rates:
        shares["arithmetic"] = rates["operations_per_s"] / facts.operations_per_s
    return shares


def _occupancy_limit(facts: Facts) -> str:
    """Which resource keeps blocks out, where the counters tell."""
    limits = {
        name: facts.counters[f"limit_{name}"]
        for name in ("registers", "shared", "warps", "blocks")
        if f"limit_{name}" in facts.counters
    }
    if not limits:
        return ""
    name = min(limits, key=lambda each: limits[each])
    words = {"shared": "shared memory", "warps": "the block's size", "blocks": "the limit on blocks"}.get(name, name)
    return f" (limited by {words})"

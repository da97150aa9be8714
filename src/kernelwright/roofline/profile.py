"""Why a candidate takes the time that it takes: figures of its run as facts, and the diagnosis of each workload.

What needs no privilege is always there: the times, the floor, achieved rates, and what the compiler said of registers,
spills and occupancy. Counters come on top where they were read (`tuning.counters`).
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kernelwright.problem.outcome import Measurement, Passed
from kernelwright.roofline.diagnosis import Diagnosis, Facts, achieved, diagnose
from kernelwright.roofline.speed_of_light import Floor, recorded_floors
from kernelwright.store.event import RunStarted

CPU_ARITHMETIC = "vector_fp32_operations_per_s"
"""The measured rate that stands for a CPU's arithmetic, where no floor rests on one."""

NO_COUNTERS: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _WorkloadProfile:
    """One workload of one candidate."""

    workload: str
    facts: Facts
    rates: Mapping[str, float]
    """`bytes_per_s`, `operations_per_s`, `floor_share`; only what can be said."""
    diagnoses: tuple[Diagnosis, ...]
    """The most telling first."""

    def as_data(self) -> dict[str, Any]:
        """For a script."""
        return {
            "workload": self.workload,
            "time_ms": self.facts.time_ms,
            "rates": dict(self.rates),
            "resources": dict(self.facts.resources),
            "diagnoses": [dataclasses.asdict(each) for each in self.diagnoses],
        }


def profile_of(
    started: RunStarted, outcome: Passed, counters: Mapping[str, Mapping[str, float]] = MappingProxyType({})
) -> tuple[_WorkloadProfile, ...]:
    """The profile of a measured candidate, workload by workload.

    Args:
        started: the start of its run, with the device's ceilings and the floors.
        outcome: what was measured.
        counters: hardware counters by workload, where they were read.
    """
    profiles = []
    for each in outcome.measurements:
        facts = facts_of(started, each, outcome.resources, counters.get(each.workload, NO_COUNTERS))
        profiles.append(_WorkloadProfile(each.workload, facts, achieved(facts), diagnose(facts)))
    return tuple(profiles)


def facts_of(
    started: RunStarted,
    measurement: Measurement,
    resources: Mapping[str, Mapping[str, float]],
    counters: Mapping[str, float] = NO_COUNTERS,
) -> Facts:
    """Everything that is known of one measurement."""
    record = started.workloads.get(measurement.workload, {})
    floor = recorded_floors(started).get(measurement.workload)
    device = started.device
    ceilings = device.get("ceilings", {})
    limits = device.get("limits", {})
    rates = ceilings if isinstance(ceilings, Mapping) else {}
    return Facts(
        time_ms=statistics.median(measurement.samples_ms),
        byte_count=_number(record.get("bytes")),
        operation_count=_number(record.get("operations")),
        floor_ms=floor.floor_ms if floor is not None else None,
        launch_ms=(floor.launch_ms or None) if floor is not None else None,
        copy_bytes_per_s=_number(device.get("copy_bytes_per_s")),
        cache_bytes_per_s=_number(rates.get("cache_bytes_per_s")),
        operations_per_s=_number(device.get("operations_per_s")) or _number(rates.get(CPU_ARITHMETIC)),
        is_cached=_stays_in_cache(started, record, floor),
        multiprocessors=int(limits["multiprocessors"]) if "multiprocessors" in limits else None,
        resources=together(resources),
        counters=counters,
    )


def share_of_rates(started: RunStarted, outcome: Passed, weights: Mapping[str, float]) -> float | None:
    """Which part of a measured rate a kernel reaches, of memory or of arithmetic, whichever is more; None: not known.

    The weighted geometric mean of the workloads. Where a device has no floor that tells how far a kernel is from it:
    rates were higher still without other work, so it is not nearer than that.
    """
    logs = []
    for each in outcome.measurements:
        facts = facts_of(started, each, outcome.resources)
        rates = achieved(facts)
        pairs = (("bytes_per_s", facts.copy_bytes_per_s), ("operations_per_s", facts.operations_per_s))
        shares = [rates[name] / peak for name, peak in pairs if peak and name in rates]
        if len(shares) < len(pairs) or max(shares) <= 0:
            return None
        logs.append(weights[each.workload] * math.log(max(shares)))
    return math.exp(math.fsum(logs) / math.fsum(weights.values())) if len(logs) == len(weights) else None


def _stays_in_cache(started: RunStarted, workload: Mapping[str, float], floor: Floor | None) -> bool:
    """Whether the memory's rate bounds nothing: a CPU, which has no floor, keeps hot data that its cache holds."""
    if floor is not None or started.device.get("kind") != "cpu":
        return floor is not None and floor.limited_by == "cache"
    settings = started.settings
    tune = settings.get("tune")
    cache = settings.get("cache") or (tune.get("cache") if isinstance(tune, Mapping) else None)
    held = _number(dict(started.device.get("limits", {})).get("last_level_cache")) or 0.0
    moved = _number(workload.get("bytes"))
    return cache != "cold" and moved is not None and moved <= held / 2


def together(resources: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Figures of all kernels of a candidate as one: the least occupancy, the largest of everything else."""
    merged: dict[str, float] = {}
    for figures in resources.values():
        for name, value in figures.items():
            pick = min if name in ("occupancy", "blocks_per_multiprocessor", "max_threads_per_block") else max
            merged[name] = pick(value, merged.get(name, value))
    return merged


def profile_lines(profile: _WorkloadProfile) -> list[str]:
    """The profile in words, a line each."""
    parts = []
    if "bytes_per_s" in profile.rates:
        rate = profile.rates["bytes_per_s"] / 1e9
        parts.append(f"{rate:,.0f} GB/s of needed traffic" if rate >= 10 else f"{rate:.2g} GB/s of needed traffic")
    if "operations_per_s" in profile.rates:
        rate = profile.rates["operations_per_s"]
        scale, unit = (1e12, "T") if rate >= 1e11 else (1e9, "G")
        parts.append(f"{rate / scale:,.3g} {unit} operations/s")
    if "floor_share" in profile.rates:
        parts.append(f"{profile.rates['floor_share']:.0%} of what the device allows{_left_words(profile)}")
    lines = [f"{profile.workload}: {', '.join(parts)}"] if parts else []
    lines += [f"{profile.workload}: {diagnosis_words(each)}" for each in profile.diagnoses]
    return lines


def _left_words(profile: _WorkloadProfile) -> str:
    """What an empty launch takes of the time, and how much a faster kernel could gain at most."""
    if profile.facts.launch_ms is None:
        return ""
    launch = f", with the {profile.facts.launch_ms:.3g} ms of an empty launch"
    return f"{launch}: at most {max(1.0, 1 / profile.rates['floor_share']):.2f}x is left here"


def diagnosis_words(diagnosis: Diagnosis) -> str:
    """What limits it, for a person."""
    if diagnosis.limiter != "unmeasured":
        return f"{diagnosis.limiter}: {diagnosis.text}"
    reached = (
        f"stalled on memory {value:.0f}% of the time"
        if name.startswith("stalled")
        else f"{name.removesuffix('_percent')} at {value:.0f}% of its peak"
        for name, value in diagnosis.evidence.items()
    )
    return f"what limits it is not known: {', '.join(reached)}, and {diagnosis.text.partition('), but ')[2]}"


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and value > 0 else None

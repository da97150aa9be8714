"""When to stop warming up, when to stop sampling, when to give a candidate up: decisions from samples alone.

No clock is read here; the device worker measures and asks. Everything uses order statistics, since times have
heavy right tails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kernelwright.evaluate.statistics import median_interval, median_rank


@dataclass(frozen=True, slots=True)
class TimingPlan:
    """How long to measure one candidate on one workload."""

    precision: float = 0.02
    """Relative half-width of the median's 95 % interval that ends the sampling."""
    min_samples: int = 10
    """The smallest count for which the interval leaves out the extremes on both sides."""
    max_samples: int = 200
    max_seconds: float = 2.0
    """Most wall time, warm-up included; at least one sample is taken whatever it costs."""
    warmup_max: int = 50
    cache: Literal["hot", "cold"] = "hot"
    """`cold`: the last-level cache is flushed before every sample."""
    inputs_rotated: int = 3
    """Input sets that samples take in turn."""


WARM_WINDOW = 3
WARM_GAIN = 0.02
"""Warming up goes on while the last `WARM_WINDOW` launches still beat the best before them by this
fraction."""

WIN_MARGIN = 1.05
"""A candidate is stopped only if it is surely slower than this many times the incumbent, whose own median is
the luckiest of many (see `statistics.selection_optimism`)."""

RACING_ERROR = 0.002
"""Two-sided error of the order statistic that stops a candidate; one side, so half of it, at each look."""

EARLY_LOOKS = ((3, 2.0), (6, 1.3))
"""`(count, ratio)`: after `count` samples, all of them above `ratio` times the incumbent stop a candidate.

For one that is really as fast, every sample must be disturbed that much: in at most 1 % of cases if a sample
exceeds twice its median in no more than 20 % of launches, and 1.3 times in no more than 45 %, each on its own.
Guesses, generous for busy hosts (there, deviations of 3 to 40 % were measured). A disturbance that lasts over all
samples can still stop a good candidate; waiting would not help, since its measurement would be as wrong.
"""

FIRST_LOOKS = ((2, 8.0), (3, 4.0), (4, 2.0))
"""The same for the first launches of a measurement, warm-up included; the very first may take any time.

Of 155 measurements on a CPU of two cores with five processes that wanted one, none had its first 2 launches above 8
times its median; in one each the first 3 and the first 4 were above 4 and 2 times.
"""

DEVICE_LOOKS = ((1, 2.0), (2, 1.5), (3, 1.2))
"""The same where a device has its own clock and its own cores, and any launch after the first counts, also to warm up.

Of 12,568 samples on an H100 (kernels of 2 us to 3 ms, after warming up) 0.02 % were above 1.3 times their median and
0.5 % above 1.15 times, so a candidate that is as fast is stopped in less than 0.1 % of cases.
"""

LEAST_LIMIT_MS = 0.05
"""What candidates race against at least, on a device that shares the host's cores.

Waking threads there costs 5 to 20 us at first and 0.4 us when they are still awake, which the baseline's samples were
in the end: a good candidate would be given up after three launches of a workload of a few elements, and its large ones
never measured. To measure such times to the end costs nothing.
"""

WALL_RATIO_LIMIT = 3.0
WALL_OVERHEAD_MS = 1.0
"""Launch and wait cost this much of wall time whatever the kernel does."""

HIDDEN_SHARE = 0.25
HIDDEN_MS = 0.15
"""A kernel's wall time beside its own may exceed twice the baseline's by so much: as much is noise. Guesses."""

MOSTLY = 0.75
"""The share of an honest candidate's launches that keep their times, which moves no median by much. On a busy host the
longest tenth of what launching costs is mostly other work, which would leave room for a whole launch."""

WALL_QUANTILE = 0.5
BUSY_WALL_QUANTILE = 0.25
"""Which launch's wall time counts: the middle one; on a device that is the host's own cores the quarter that was
disturbed least, since what waits for a core there waits in most launches while the host is busy, and work that is
hidden is in all of them."""

CONSTANT_MIN_COUNT = 8
CONSTANT_MIN_MS = 0.1
"""Equal samples are suspicious from here on; shorter kernels are equal by the timer's resolution (0.5 us on
GPUs)."""


def is_warm(samples: Sequence[float]) -> bool:
    """Whether warm-up launches have stopped becoming faster. Bounded by the caller (`TimingPlan.warmup_max`).

    Only an improving minimum counts, so disturbances do not prolong it: with steady times it ends after 4
    launches.
    """
    if len(samples) <= WARM_WINDOW:
        return False
    return min(samples[-WARM_WINDOW:]) >= (1 - WARM_GAIN) * min(samples[:-WARM_WINDOW])


def is_precise(samples: Sequence[float], plan: TimingPlan) -> bool:
    """Whether the median is known to `plan.precision`.

    Looking after every sample makes the interval a little less sure than 95 %; claims are made from fresh
    rounds of a fixed number.
    """
    if len(samples) < max(plan.min_samples, 1):
        return False
    interval = median_interval(samples)
    return interval.confidence >= 0.95 and interval.relative_half_width <= plan.precision


def cannot_win(samples: Sequence[float], incumbent_ms: float, *, margin: float = WIN_MARGIN) -> bool:
    """Whether a candidate with these samples surely has a median above `margin` times the incumbent's.

    Safe to ask after every sample: a candidate that is as fast as the incumbent is stopped in less than 1 %
    of cases (all looks together, simulated for normal to heavy-tailed noise), whatever the distribution from
    10 samples on.
    """
    count = len(samples)
    if not count or not math.isfinite(incumbent_ms) or incumbent_ms <= 0:
        return False
    if any(count >= least and min(samples) > ratio * incumbent_ms for least, ratio in EARLY_LOOKS):
        return True
    rank = median_rank(count, RACING_ERROR)
    if rank == 0:
        return False
    return float(np.partition(np.asarray(samples, np.float64), rank - 1)[rank - 1]) > margin * incumbent_ms


def is_hopeless(
    times_ms: Sequence[float], incumbent_ms: float | None, *, looks: Sequence[tuple[int, float]] = DEVICE_LOOKS
) -> bool:
    """Whether the first launches of one candidate are all far above what it races against."""
    if not times_ms or incumbent_ms is None or not math.isfinite(incumbent_ms) or incumbent_ms <= 0:
        return False
    return any(len(times_ms) >= least and min(times_ms) > ratio * incumbent_ms for least, ratio in looks)


def wall_ratio(samples_ms: Sequence[float], wall_ms: Sequence[float]) -> float | None:
    """Median of the wall times over the median of the samples, for the record; None where nothing was timed."""
    kernel_ms = float(np.median(samples_ms)) if samples_ms else 0.0
    return float(np.median(wall_ms)) / kernel_ms if kernel_ms else None


def medians(each_ms: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Of each launch of a program, from those times that tell all; nothing where it is one launch, or none tell."""
    told = [each for each in each_ms if len(each) > 1]
    return tuple(float(each) for each in np.median(np.asarray(told), axis=0)) if told else ()


def hidden_work(
    samples_ms: Sequence[float],
    wall_ms: Sequence[float],
    other_ms: Sequence[float],
    other_wall_ms: Sequence[float],
    *,
    surely: bool = True,
) -> str | None:
    """Why a candidate's times cannot be believed beside another one's, taken in the same rounds; None: they can.

    What launching and waiting cost is alike for both. Where the host's clock surely sees more than that beside a
    candidate's own time, its work is hidden from the timer. On a busy host a few rounds tell little: half of them are
    enough to doubt the times, without `surely`, and `with_hidden_work` then puts what the clock saw into them.
    """
    beside_ms = np.subtract(wall_ms, samples_ms)
    own_ms = median_interval(beside_ms).low if surely else float(np.median(beside_ms))
    usual_ms = max(0.0, float(np.median(np.subtract(other_wall_ms, other_ms))))
    kernel_ms = float(np.median(samples_ms))
    if own_ms <= 2 * usual_ms + max(HIDDEN_SHARE * kernel_ms, HIDDEN_MS):
        return None
    return (
        f"launches take {kernel_ms + own_ms:.3g} ms by the host's clock, but the timer saw {kernel_ms:.3g} ms, and "
        f"launching costs {usual_ms:.3g} ms: work is hidden from it"
    )


def with_hidden_work(
    samples_ms: Sequence[float],
    wall_ms: Sequence[float],
    other_ms: Sequence[float],
    other_wall_ms: Sequence[float],
) -> tuple[float, ...]:
    """A candidate's times with what is hidden from the timer, beside another one's, taken in the same rounds.

    What launching and waiting cost is alike for both, up to noise: so what the host's clock sees beyond what it adds to
    most of the other one's launches belongs to the candidate's own time. No launch takes longer than the host's clock
    saw: a kernel might have the timer stretch what others take.
    """
    usual_ms = max(0.0, float(np.quantile(np.subtract(other_wall_ms, other_ms), MOSTLY)))
    return tuple(max(min(own, wall), wall - usual_ms) for own, wall in zip(samples_ms, wall_ms, strict=True))


def suspicious(
    samples_ms: Sequence[float],
    wall_ms: Sequence[float],
    *,
    wall_ratio_limit: float = WALL_RATIO_LIMIT,
    overhead_ms: float = WALL_OVERHEAD_MS,
    wall_quantile: float = WALL_QUANTILE,
) -> str | None:
    """Why these samples cannot be taken as kernel times, in words, or None.

    `wall_ms` are the wall times of the same launches, each up to the end of everything on the device; the one at
    `wall_quantile` of them counts.
    """
    if not samples_ms:
        return "no launch was timed"
    unusable = [sample for sample in samples_ms if not math.isfinite(sample) or sample <= 0]
    if unusable:
        return f"{len(unusable)} of {len(samples_ms)} times are not positive numbers, e.g. {unusable[0]!r} ms"
    kernel_ms = float(np.median(samples_ms))
    is_constant = len(set(samples_ms)) == 1 and len(samples_ms) >= CONSTANT_MIN_COUNT
    if is_constant and kernel_ms >= CONSTANT_MIN_MS:
        return f"all {len(samples_ms)} times are exactly {kernel_ms:g} ms, which no clock measures"
    if wall_ms:
        typical_wall_ms = float(np.quantile(wall_ms, wall_quantile))
        if typical_wall_ms > wall_ratio_limit * kernel_ms + overhead_ms:
            return (
                f"launches take {typical_wall_ms:.3g} ms until the device is idle, but the timer saw "
                f"{kernel_ms:.3g} ms: work is hidden from it"
            )
    return None

"""How long launches take on a CUDA stream: by CUPTI's records where it records, else between two events.

So that neither the host's launch latency nor Python's is in a time, a kernel that only waits goes first: by the time it
ends, the first event, all launches and the last event are queued.

`cupti`   from the first kernel's start to the last kernel's end as the device recorded them.
`events`  what lies between two events beside the kernels counts too: on an H100 3.1 us for one kernel, whether it
          takes 0.3 us or 100 us, and 1.7 us for each further one (`benchmarks/cuda_timer.py`). It is the same for all
          candidates and not subtracted, so ratios of kernels of a few microseconds come out closer to 1 than they are.
"""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from kernelwright.backend.cuda.errors import call
from kernelwright.backend.cuda.handles import CudaModule
from kernelwright.backend.cuda.measure.cupti import CuptiFailed, KernelRecord, KernelRecorder
from kernelwright.backend.cuda.session_kernels.ptx import DELAY_ENTRY, OWN_PREFIX

EVENTS_TIMER = "cuda-events"
CUPTI_TIMER = "cuda-cupti"

DELAY_NS = 30_000
DELAY_PER_LAUNCH_NS = 10_000
"""What queueing takes on the host: a launch through the bindings about 5 us. Doubled when it turns out too short."""
MAX_DELAY_FACTOR = 16

MOST_AHEAD = 32
"""Kernels that do nothing go before a time of several launches, a random number of them below this.

The device waits about 0.8 us longer between two launches in each so-and-so-many-th place of its queue. A comparison
puts the same number of commands between launches again and again, so one of two equal candidates met that place in
half of its launches and the other one in none: a sum of a million floats was 5 % slower than itself on an H100. The
number is a guess.
"""

TRUST_NS = 50_000
"""The recorder must see a kernel that waits so long by its own clock as taking so long."""
TRUST_ERROR_NS = 5_000

TAKE_ATTEMPTS = 10
TAKE_PAUSE_S = 1e-3
"""How often, and after what pause, records are asked for that have not come."""

EVENT_SLACK = 1.5
EVENT_SLACK_MS = 0.02
"""Events that see this many times what the records do, and this much more for each launch, win: something ran that was
not recorded."""

Launch = Callable[[], None]
"""Puts one launch on the stream."""


class Stopwatch:
    """Times launches on one stream."""

    def __init__(self, driver: ModuleType, stream: Any, helpers: CudaModule, recorder: KernelRecorder | None) -> None:
        self._driver = driver
        self._stream = stream
        self._delay = helpers.function(DELAY_ENTRY)
        self._first, self._last = call(driver.cuEventCreate(0)), call(driver.cuEventCreate(0))
        self._delay_factor = 1
        self.recorder_note = ""
        """Why the recorder was given up, if it was."""
        self.launches_ms: tuple[float, ...] = ()
        """Of each launch that was timed last, in order; empty where records do not tell, or not one kernel of each."""
        self._recorder = recorder if recorder is None or self._is_trusted(recorder) else None

    @property
    def timer(self) -> str:
        """What the times are by."""
        return EVENTS_TIMER if self._recorder is None else CUPTI_TIMER

    def time(self, launches: Sequence[Launch]) -> float:
        """Milliseconds of all launches, one after the other.

        Raises:
            DriverCallFailed: the device failed; what `launches` raise comes through.
        """
        driver, stream = self._driver, self._stream
        if len(launches) > 1:
            for _ in range(random.randrange(MOST_AHEAD)):
                self._start_delay(0)
        self._start_delay(DELAY_NS + DELAY_PER_LAUNCH_NS * len(launches))
        call(driver.cuEventRecord(self._first, stream))
        for launch in launches:
            launch()
        call(driver.cuEventRecord(self._last, stream))
        if int(driver.cuEventQuery(self._first)[0]) == 0:  # the device was waiting for the host
            self._delay_factor = min(2 * self._delay_factor, MAX_DELAY_FACTOR)
        call(driver.cuEventSynchronize(self._last))
        event_ms = float(call(driver.cuEventElapsedTime(self._first, self._last)))
        kernels = self._recorded(len(launches))
        recorded_ms = (max(each.end_ns for each in kernels) - kernels[0].start_ns) / 1e6 if kernels else 0.0
        if not kernels or event_ms > EVENT_SLACK * recorded_ms + EVENT_SLACK_MS * (1 + len(launches)):
            self.launches_ms = ()
            return event_ms
        is_one_each = len(kernels) == len(launches)
        self.launches_ms = tuple((each.end_ns - each.start_ns) / 1e6 for each in kernels) if is_one_each else ()
        return recorded_ms

    def close(self) -> None:
        """Give the events back."""
        if self._recorder is not None:
            self._recorder.close()
        self._driver.cuEventDestroy(self._first)
        self._driver.cuEventDestroy(self._last)

    def _start_delay(self, nanoseconds: int) -> None:
        value = ctypes.c_uint64(nanoseconds * self._delay_factor)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        address = ctypes.addressof(parameters)
        call(self._driver.cuLaunchKernel(self._delay, 1, 1, 1, 1, 1, 1, 0, self._stream, address, 0))

    def _recorded(self, launch_count: int) -> list[KernelRecord]:
        """The kernels after the delay, in order; none when there is no recorder, or it lost some."""
        if self._recorder is None:
            return []
        try:
            records, kernels = self._recorder.take(), []
            for attempt in range(TAKE_ATTEMPTS):
                kernels = kernels_after_delay(records)
                if len(kernels) >= launch_count:
                    break
                time.sleep(TAKE_PAUSE_S)  # the library's own thread may be about to deliver
                records += self._recorder.take(is_forced=attempt > TAKE_ATTEMPTS // 2)
            if len(kernels) >= launch_count:
                return kernels
            self._give_up(f"{launch_count - len(kernels)} of {launch_count} kernels were not recorded")
        except CuptiFailed as error:
            self._give_up(str(error))
        return []

    def _give_up(self, why: str) -> None:
        if self._recorder is not None:
            self._recorder.close()
        self._recorder, self.recorder_note = None, why

    def _is_trusted(self, recorder: KernelRecorder) -> bool:
        """Whether a wait of known length is recorded as that; the first one only warms up."""
        found: list[KernelRecord] = []
        try:
            for _ in range(3):
                self._start_delay(TRUST_NS)
                call(self._driver.cuStreamSynchronize(self._stream))
                found = recorder.take()
        except CuptiFailed as error:
            self.recorder_note = str(error)
        lengths_ns = [each.end_ns - each.start_ns for each in found if each.name == DELAY_ENTRY]
        if len(lengths_ns) == 1 and 0 <= lengths_ns[0] - TRUST_NS <= TRUST_ERROR_NS:
            return True
        self.recorder_note = self.recorder_note or (
            f"CUPTI recorded {lengths_ns} ns for one kernel that waits {TRUST_NS} ns by the device's clock"
        )
        recorder.close()
        return False


def kernels_after_delay(records: Sequence[KernelRecord]) -> list[KernelRecord]:
    """The candidate's kernels: all that began after the last wait of ours, in order of their start."""
    delays = [each.start_ns for each in records if each.name == DELAY_ENTRY]
    if not delays:
        return []
    ours = (each for each in records if each.start_ns >= max(delays) and not each.name.startswith(OWN_PREFIX))
    return sorted(ours, key=lambda each: each.start_ns)

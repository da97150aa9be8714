"""Parts of a CUDA session against a driver that is played: timing by two clocks, large copies, NVML's readings."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.backend.base import DeviceInfo, DeviceReading
from kernelwright.backend.cuda import transfer
from kernelwright.backend.cuda.errors import DriverCallFailed
from kernelwright.backend.cuda.measure import power as cuda_power
from kernelwright.backend.cuda.measure.cupti import CuptiFailed, KernelRecord
from kernelwright.backend.cuda.measure.power import open_meter, read_power, slowdowns
from kernelwright.backend.cuda.measure.timing import CUPTI_TIMER, EVENTS_TIMER, TRUST_NS, Stopwatch
from kernelwright.backend.cuda.session_kernels.ptx import DELAY_ENTRY
from kernelwright.backend.cuda.transfer import CHUNK_BYTES, SLOTS, Staging
from kernelwright.errors import MissingDependency
from tiers import examples

# ---- timing ----


class Driver(SimpleNamespace):
    """Every call succeeds; events say `event_ms`."""

    def __init__(self, event_ms=0.010):
        done = (0,)
        super().__init__(
            cuEventCreate=lambda flags: (0, object()),
            cuEventRecord=lambda *_: done,
            cuEventSynchronize=lambda *_: done,
            cuEventQuery=lambda *_: (1,),
            cuEventElapsedTime=lambda *_: (0, event_ms),
            cuEventDestroy=lambda *_: done,
            cuStreamSynchronize=lambda *_: done,
            cuLaunchKernel=lambda *_: done,
        )


class Recorder:
    """Gives the trust checks what they want, then one answer after the other."""

    def __init__(self, *answers, waited_ns=TRUST_NS + 900):
        self.answers = [[KernelRecord(DELAY_ENTRY, 0, waited_ns)]] * 3 + list(answers)
        self.is_closed = False

    def take(self, *, is_forced=False):
        answer = self.answers.pop(0) if self.answers else []
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self):
        self.is_closed = True


def stopwatch(recorder, event_ms=0.010):
    return Stopwatch(Driver(event_ms), None, SimpleNamespace(function=lambda entry: None), recorder)


def seen(*kernels):
    return [KernelRecord(DELAY_ENTRY, 1000, 1100), *(KernelRecord("k", start, end) for start, end in kernels)]


def nothing():
    pass


def test_time_is_from_the_first_kernels_start_to_the_last_ones_end():
    watch = stopwatch(Recorder(seen((2000, 5000)), seen((2000, 5000), (5500, 9000))))
    assert watch.timer == CUPTI_TIMER
    assert watch.time([nothing]) == pytest.approx(0.003)
    assert watch.time([nothing, nothing]) == pytest.approx(0.007)


def test_each_launch_has_a_time_of_its_own_where_each_is_one_kernel_that_was_recorded():
    three = seen((2000, 5000), (5500, 9000), (9000, 9500))
    watch = stopwatch(Recorder(three, three, three, seen((2000, 5000)), seen((2000, 5000))))
    assert watch.launches_ms == ()
    watch.time([nothing] * 3)
    assert watch.launches_ms == pytest.approx((0.003, 0.0035, 0.0005))
    watch.time([nothing] * 2)  # one of them started another kernel
    assert watch.launches_ms == ()
    watch.time([nothing] * 3)
    watch.time([nothing])
    assert watch.launches_ms == pytest.approx((0.003,))
    watch.time([nothing] * 2)  # one was not recorded: events count from now on
    assert watch.timer == EVENTS_TIMER
    assert watch.launches_ms == ()


def test_launches_have_no_times_where_events_show_more_work():
    watch = stopwatch(Recorder(seen((2000, 5000), (5500, 9000))), event_ms=1.5)
    watch.time([nothing] * 2)
    assert watch.launches_ms == ()


def test_several_launches_begin_at_a_random_place_of_the_devices_queue():
    watch, waits_ns = stopwatch(None), []

    def launch(_kernel, *words):
        waits_ns.append(ctypes.c_uint64.from_address(ctypes.c_void_p.from_address(words[8]).value).value)
        return (0,)

    def ahead(launch_count):
        waits_ns.clear()
        watch.time([nothing] * launch_count)
        assert waits_ns[-1] > 0  # the one that waits for the host comes last
        assert not any(waits_ns[:-1])
        return len(waits_ns) - 1

    watch._driver.cuLaunchKernel = launch
    assert {ahead(1) for _ in range(20)} == {0}
    assert len({ahead(2) for _ in range(40)}) > 3


def test_records_that_come_late_are_waited_for():
    watch = stopwatch(Recorder([], seen(), [], seen((2000, 5000))[1:]))
    assert watch.time([nothing]) == pytest.approx(0.003)
    assert watch.timer == CUPTI_TIMER


@pytest.mark.parametrize("answers", [[seen()], [seen((1, 2))], [CuptiFailed("gone")], []])
def test_records_that_never_come_end_the_recorder_and_events_count(answers):
    recorder = Recorder(*answers)
    watch = stopwatch(recorder)
    assert watch.time([nothing]) == 0.010
    assert watch.timer == EVENTS_TIMER
    assert watch.recorder_note
    assert recorder.is_closed
    assert watch.time([nothing]) == 0.010


def test_work_that_was_not_recorded_shows_in_the_events():
    watch = stopwatch(Recorder(seen((2000, 5000))), event_ms=1.5)
    assert watch.time([nothing]) == 1.5


@pytest.mark.parametrize("waited_ns", [TRUST_NS - 1, TRUST_NS + 5001, 0, 10 * TRUST_NS])
def test_recorder_that_is_wrong_about_a_known_wait_is_not_used(waited_ns):
    recorder = Recorder(waited_ns=waited_ns)
    watch = stopwatch(recorder)
    assert watch.timer == EVENTS_TIMER
    assert str(TRUST_NS) in watch.recorder_note
    assert recorder.is_closed


def test_no_recorder_is_events():
    assert stopwatch(None).timer == EVENTS_TIMER


# ---- large copies ----


class Memory(Driver):
    """Device memory is memory; copies happen at once."""

    def __init__(self, failing_at=None):
        super().__init__()
        self.kept, self.copies, self.failing_at = [], 0, failing_at
        self.CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)
        self.cuMemAllocHost, self.cuMemFreeHost = self.allocate, lambda address: (0,)
        self.cuMemcpyDtoHAsync = self.cuMemcpyHtoDAsync = self.copy

    def allocate(self, size):
        self.kept.append(ctypes.create_string_buffer(size))
        return 0, ctypes.addressof(self.kept[-1])

    def copy(self, target, source, size, stream):
        self.copies += 1
        if self.copies == self.failing_at:
            return (700,)
        ctypes.memmove(target, source, size)
        return (0,)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(transfer, "CHUNK_BYTES", 1000)


@examples(40)
@given(counts=st.lists(st.integers(1, 3 * SLOTS * 1000), min_size=1, max_size=4))
def test_copies_arrive_whole_whatever_their_size(counts):
    driver = Memory()
    staging = Staging(driver, None)
    assert CHUNK_BYTES > 0
    for number, count in enumerate(counts):
        data = np.random.default_rng(number).integers(0, 256, count, np.uint8)
        device, back = np.zeros(count, np.uint8), np.zeros(count, np.uint8)
        staging.upload(device.ctypes.data, data)
        assert np.array_equal(device, data)
        staging.download(device.ctypes.data, back)
        assert np.array_equal(back, data)
    staging.close()
    assert len(driver.kept) == SLOTS


@pytest.mark.parametrize("failing_at", [1, 5, 20])
def test_copy_that_fails_is_told_and_the_next_works(failing_at):
    driver = Memory(failing_at)
    staging = Staging(driver, None)
    data, device = np.arange(25_000, dtype=np.uint8), np.zeros(25_000, np.uint8)
    with pytest.raises(DriverCallFailed):
        staging.upload(device.ctypes.data, data)
    staging.upload(device.ctypes.data, data)
    assert np.array_equal(device, data)
    staging.close()


# ---- NVML ----


class NvmlError(Exception):
    pass


def fake_nvml(**changes):
    def refuse(*_):
        raise NvmlError("not supported")

    calls = {
        "NVMLError": NvmlError,
        "nvmlInit": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: b"580.1",
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x44,
        "nvmlDeviceGetClockInfo": lambda handle, kind: {1: 1500, 2: 2619}[kind],
        "nvmlDeviceGetTemperature": lambda handle, sensor: 71,
        "nvmlDeviceGetPowerUsage": lambda handle: 350_500,
    }
    return SimpleNamespace(**{**calls, **{name: refuse if value is None else value for name, value in changes.items()}})


def test_reading_is_in_units_and_words():
    found = read_power(fake_nvml(), "handle")
    assert found == DeviceReading(1500, 2619, 71, 350.5, ("power cap", "temperature (hardware)"))


def test_what_a_device_does_not_tell_is_left_out():
    found = read_power(fake_nvml(nvmlDeviceGetPowerUsage=None, nvmlDeviceGetTemperature=None), "handle")
    assert (found.power_w, found.temperature_c, found.clock_mhz) == (None, None, 1500)


@pytest.mark.parametrize("bits", [0x0, 0x1, 0x2, 0x100, 0x103])
def test_idle_and_what_an_administrator_set_is_no_throttling(bits):
    assert slowdowns(bits) == ()


def test_device_is_found_by_its_uuid_and_absence_is_a_reason(monkeypatch):
    device = DeviceInfo("cuda", "cuda:0", "d", "gpu", {}, facts={"uuid": "0123456789abcdef0123456789abcdef"})
    monkeypatch.setattr(cuda_power, "require", lambda *_, **__: fake_nvml())
    meter, note = open_meter(device)
    assert meter.args[-1] == "GPU-01234567-89ab-cdef-0123-456789abcdef"
    assert "580.1" in note
    monkeypatch.setattr(cuda_power, "require", lambda *_, **__: fake_nvml(nvmlInit=None))
    assert open_meter(device) == (None, "NVML does not answer: not supported")

    def missing(*_, **__):
        raise MissingDependency("no pynvml")

    monkeypatch.setattr(cuda_power, "require", missing)
    assert "nvidia-ml-py" in open_meter(device)[1]

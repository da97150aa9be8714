"""The suite's measuring process: what is found wrong, what is put back, what is given up. On memory of the host."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernelwright.backend.base import Artifact, BufferArgument, BuildUnit, LaunchFailed, PlanStep
from kernelwright.backend.cuda.handles import CudaBuffer
from kernelwright.evaluate.device.arena import Job
from kernelwright_bench.operators.messages import CLEAN, Buffer, Compare, OpenShape, Screen, TorchSource
from kernelwright_bench.operators.worker import DIRTY_BYTES, Measurer

COUNT = 1000
FACTOR = {"right": 2.0, "slow": 2.0, "wrong": 2.001, "baseline": 2.0, "idle": None, "slightly": 2.0}
TIMES_MS = {"right": 1.0, "slow": 3.0, "wrong": 0.5, "baseline": 2.0, "idle": 0.1, "slightly": 1.1}


class HostSession:
    """Memory in one array; kernels are doublings by name."""

    timer = "host"

    def __init__(self):
        self.memory = np.zeros(1 << 20, np.uint8)
        self.used = 256
        self.flushes = {"dirty": 0, "clean": 0}
        self.timed = []

    def allocate(self, byte_count):
        if byte_count == DIRTY_BYTES:
            return CudaBuffer(-1, byte_count)
        buffer = CudaBuffer(self.used, byte_count)
        self.used += byte_count + 64
        return buffer

    def free(self, buffer):
        del buffer

    def view(self, buffer, dtype=np.uint8):
        return self.memory[buffer.address : buffer.address + buffer.byte_count].view(dtype)

    def upload(self, buffer, data):
        self.memory[buffer.address : buffer.address + data.size] = data

    def copy(self, source, target, byte_count):
        self.memory[target.address : target.address + byte_count] = self.view(source)[:byte_count].copy()

    def fill(self, buffer, pattern, byte_count):
        if buffer.address < 0:
            self.flushes["dirty"] += 1
        else:
            self.view(buffer)[:byte_count] = pattern[0]

    def flush_cache(self):
        self.flushes["clean"] += 1

    def load(self, artifact):
        return artifact.log

    def launch(self, launches):
        for launch in launches:
            if launch.module == "refused":
                raise LaunchFailed("out-of-resources", "too much of everything")
            names = [each.name for each in launch.step.arguments]
            factor = FACTOR[launch.module]
            if factor is not None:
                source, target = (self.view(launch.buffers[name].buffer, np.float32) for name in names)
                target[:] = source * np.float32(factor)

    def time(self, launches):
        self.launch(launches)
        self.timed.append(launches[0].module)
        return TIMES_MS[launches[0].module]

    def synchronize(self):
        pass


class HostJudge:
    """Relative difference of a millionth."""

    def __init__(self, session):
        self.session = session

    def root_mean_square(self, values, buffer):
        del buffer
        return float(np.sqrt(np.mean(np.square(self.session.view(values, np.float32)))))

    def count_wrong(self, got, wanted, buffer, scale):
        del buffer, scale
        close = np.isclose(self.session.view(got, np.float32), self.session.view(wanted, np.float32), rtol=1e-6)
        return int(np.count_nonzero(~close))


def runnable(kernel, *names):
    artifact = Artifact(BuildUnit("cuda", "", "k.cu", (), (), ()), "cuda:0", Path(), {}, kernel)
    arguments = tuple(BufferArgument(name, 4 * COUNT) for name in names)
    return Job("w", artifact, (PlanStep("k", (1, 1, 1), (1, 1, 1), 0, arguments),), ())


def separate(kernel):
    return runnable(kernel, "x", "y")


def in_place(kernel):
    return runnable(kernel, "x", "x")


@pytest.fixture
def session():
    return HostSession()


@pytest.fixture
def measure(session):
    handle = Measurer(session, HostJudge(session)).handle
    buffers = (
        Buffer("x", "input", "float32", (COUNT,), 4 * COUNT),
        Buffer("y", "output", "float32", (COUNT,), 4 * COUNT),
    )
    assert handle(OpenShape(buffers, separate("baseline"))) == 2.0
    return handle


@pytest.fixture
def measure_in_place(session):
    handle = Measurer(session, HostJudge(session)).handle
    handle(OpenShape((Buffer("x", "inout", "float32", (COUNT,), 4 * COUNT),), in_place("baseline")))
    return handle


def test_a_wrong_result_is_a_failure_with_the_count_of_elements(measure):
    seen = measure(Screen(separate("wrong"), 1.0))
    assert seen.failure is not None
    assert seen.failure.startswith("check:mismatch")
    assert f"{COUNT} of {COUNT}" in seen.failure
    assert seen.times_ms == ()


def test_a_kernel_that_writes_nothing_cannot_pass_with_the_results_of_the_one_before(measure):
    assert measure(Screen(separate("right"), 1.0)).failure is None
    assert measure(Screen(separate("idle"), 1.0)).failure is not None


def test_a_refused_launch_is_a_failure_of_the_candidate(measure):
    seen = measure(Screen(separate("refused"), 1.0))
    assert seen.failure == "launch:too much of everything"


def test_in_out_arguments_are_put_back_before_every_launch(measure_in_place):
    for _ in range(3):
        assert measure_in_place(Screen(in_place("right"), 1.0)).failure is None
    assert measure_in_place(Screen(in_place("wrong"), 1.0)).failure is not None


def test_a_slow_candidate_is_given_up_after_three_launches_and_says_so(measure, session):
    session.timed.clear()
    seen = measure(Screen(separate("slow"), 1.0))
    assert seen.is_partial
    assert session.timed == ["slow"] * 3
    assert not measure(Screen(separate("right"), 1.0)).is_partial
    assert measure(Screen(separate("slightly"), 1.0)).times_ms == (1.1,) * 5


def test_every_timed_launch_begins_with_a_written_cache_and_the_clean_one_with_a_read_one(measure, session):
    session.flushes.update(dirty=0, clean=0)
    compared = measure(
        Compare({"baseline": separate("baseline"), "special": separate("right")}, 7, None, separate("right"))
    )
    assert {label: len(samples) for label, samples in compared.samples_ms.items()} == {
        "baseline": 7, "special": 7, CLEAN: 7,
    }  # fmt: skip
    assert session.flushes["dirty"] == 2 * session.flushes["clean"] == 2 * (7 + 2)
    assert set(compared.samples_ms["baseline"]) == {2.0}


def test_rounds_mix_the_order_of_contenders(measure, session):
    session.timed.clear()
    measure(Compare({"baseline": separate("baseline"), "special": separate("right")}, 20, None))
    rounds = {tuple(session.timed[at : at + 2]) for at in range(0, len(session.timed), 2)}
    assert rounds == {("baseline", "right"), ("right", "baseline")}


def test_without_pytorch_the_others_are_measured_and_the_reason_is_told(measure):
    from kernelwright_bench.operators.torch_calls import torch_missing

    if torch_missing() is None:
        pytest.skip("PyTorch sees a GPU here")
    source = TorchSource(Path("eager.py"), "double", {}, has_compiled=True)
    compared = measure(Compare({"baseline": separate("baseline")}, 7, source))
    assert compared.notes["eager"] == compared.notes["compiled"] == torch_missing()
    assert set(compared.samples_ms) == {"baseline"}

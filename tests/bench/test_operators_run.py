"""The suite's flow without a device: what is called general, what a shape's own, and what a failure stops."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import pytest

from kernelwright.backend.base import DeviceInfo
from kernelwright.errors import InfrastructureError
from kernelwright.testing.simulated import SimulatedMachine
from kernelwright_bench.operators.messages import CLEAN, Compared, Screened
from kernelwright_bench.operators.run import OperatorSettings, measure_suite
from kernelwright_bench.operators.suite import Operator, Shape

DEVICE = DeviceInfo("cuda", "cuda:0", "a device", "gpu", {"max_threads_per_block": 1024, "multiprocessors": 4})
COPY = """
// /// kernelwright
// [parameters]
// BLOCK = { powers_of_two = [32, 1024], default = 32 }
// [launch]
// grid  = ["ceil_div(n, BLOCK)"]
// block = ["BLOCK"]
// ///
#ifndef BLOCK
#define BLOCK 32
#endif
extern "C" __global__ void copy(const float *x, float *y, int n) {
  int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i < n) y[i] = x[i];
}
"""
PROBLEM = """
kernel = "copy.cu"
entry = "copy"
reference = "reference.py:copy"
[arguments]
x = { role = "input", dtype = "float32", shape = ["n"] }
y = { role = "output", dtype = "float32", shape = ["n"] }
n = { role = "scalar", dtype = "int32", value = "n" }
[[workloads]]
n = 1024
"""
SMALL, LARGE = 4096, 1 << 20
OPERATOR = Operator("copy", (Shape({"n": SMALL}), Shape({"n": LARGE})))
BASELINE_MS = 10.0


def time_ms(block, n):
    """128 is best on the small shape, 512 on the large one, 256 the best compromise."""
    best = {SMALL: 128, LARGE: 512}[n]
    return 1.0 + {0: 0.0, 1: 0.1, 2: 1.0}.get(abs(block.bit_length() - best.bit_length()), 5.0)


class FakeDesk:
    """Times from `time_ms`; knows what was asked."""

    def __init__(self, *, broken=(), failing=(), lucky=None):
        self.device = DEVICE
        self.broken, self.failing, self.lucky = broken, failing, lucky
        self.looks = {}
        self.opened = []
        self.compared = []

    def release(self):
        self.opened.append(None)

    def ceilings(self):
        return {"copy_bytes_per_s": 1e12}

    def open(self, subject):
        n = subject.problem.workloads[0].sizes["n"]
        if n in self.broken:
            raise InfrastructureError("the device fell over")
        self.opened.append(n)
        return BASELINE_MS

    def build(self, subject, configs):
        del subject
        return [(config, Future()) for config in configs]

    def screen(self, subject, config, future, incumbent_ms):
        del future
        n, block = subject.problem.workloads[0].sizes["n"], config["BLOCK"]
        assert self.opened[-1] == n, "another shape's buffers are open"
        if block in self.failing:
            return Screened((), "check:mismatch 3 of 4 elements of 'y'")
        look = self.looks[n, block] = self.looks.get((n, block), 0) + 1
        time = time_ms(block, n)
        if self.lucky == (n, block) and look == 1:
            time = 0.5
        return Screened((time,) * 3, is_partial=time > 2 * incumbent_ms)

    def compare(self, subject, chosen, rounds, torch):
        del torch
        n = subject.problem.workloads[0].sizes["n"]
        self.compared.append((n, {label: dict(each.config) for label, each in chosen.items()}))
        times = {
            label: BASELINE_MS if label == "baseline" else time_ms(each.config["BLOCK"], n)
            for label, each in chosen.items()
        }
        times[CLEAN] = 0.9
        return Compared({label: (each,) * rounds for label, each in times.items()}, {}, "fake")


@pytest.fixture
def suite(tmp_path):
    for name in ("copy", "again"):
        folder = tmp_path / "suite" / name
        folder.mkdir(parents=True)
        (folder / "copy.cu").write_text(COPY)
        (folder / "problem.toml").write_text(PROBLEM)
        (folder / "reference.py").write_text("def copy(x):\n    return x\n")
    return tmp_path / "suite"


@pytest.fixture
def measure(suite, tmp_path):
    def run(desk, *operators, on_result=lambda result: None):
        settings = OperatorSettings(
            seconds=0.2, shape_seconds=5.0, rounds=9, has_torch=False, runs=Path(tmp_path / "runs")
        )
        machine = SimulatedMachine(lambda config, workload: 1.0)
        return measure_suite(operators or (OPERATOR,), suite, settings, desk, machine, on_result=on_result)

    return run


def test_general_is_the_best_compromise_and_own_the_best_of_each_shape(measure):
    desk = FakeDesk()
    rows = measure(desk).operators[0].rows
    assert [row.configs["special"]["BLOCK"] for row in rows] == [128, 512]
    assert [row.configs["general"]["BLOCK"] for row in rows] == [256, 256]
    assert [row.times_us["special"].estimate for row in rows] == [1000.0, 1000.0]
    assert [row.times_us["general"].estimate for row in rows] == [pytest.approx(1100.0)] * 2
    assert rows[0].speedups["baseline"].estimate == pytest.approx(10.0)
    assert rows[1].floor_us == pytest.approx(8 * LARGE / 1e6)


def test_a_lucky_first_look_does_not_decide(measure):
    rows = measure(FakeDesk(lucky=(SMALL, 64))).operators[0].rows
    assert rows[0].configs["special"]["BLOCK"] == 128


def test_what_fails_on_a_shape_is_counted_by_reason_and_never_chosen(measure):
    rows = measure(FakeDesk(failing=(256, 512))).operators[0].rows
    assert rows[0].failed == {"check:mismatch": 2}
    assert {row.configs[which]["BLOCK"] for row in rows for which in ("general", "special")} == {128, 1024}


def test_a_broken_operator_says_why_and_the_next_one_is_measured(measure):
    seen = []
    operators = (Operator("copy", (Shape({"n": LARGE}),)), Operator("again", (Shape({"n": SMALL}),)))
    result = measure(FakeDesk(broken=(LARGE,)), *operators, on_result=seen.append)
    assert result.operators[0].error == "the device fell over"
    assert result.operators[0].rows == ()
    assert len(result.operators[1].rows) == 1
    assert [len(each.operators) for each in seen] == [1, 2]


def test_tuning_gets_the_device_for_itself(measure):
    desk = FakeDesk()
    measure(desk)
    assert desk.opened[0] is None
    assert SMALL in desk.opened

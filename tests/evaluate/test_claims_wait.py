"""Looking begins before every dataset can be judged on; what would be believed waits until it is proven on all."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from busy import ignore_busy_machine
from kernelwright.backend.base import DeviceInfo
from kernelwright.errors import BaselineFailed, InfrastructureError
from kernelwright.evaluate.base import EvaluationRequest, Incumbent
from kernelwright.evaluate.device.lock import DeviceLock
from kernelwright.evaluate.device.probe import DeviceHosts, probe_devices, select_device
from kernelwright.evaluate.device_queue import processes
from kernelwright.evaluate.device_queue.queue import DeviceLane
from kernelwright.evaluate.judge.server import RefereeDesk
from kernelwright.evaluate.local_runner import LocalRunner
from kernelwright.evaluate.prestart import EarlyStart
from kernelwright.problem.config import Config
from kernelwright.problem.outcome import Failed, Passed
from kernelwright.template.model import Candidate
from kernelwright.tuning.machine import LocalMachine
from kernelwright.tuning.settings import TuneSettings
from kernelwright.tuning.tune import TuningProblem

pytestmark = pytest.mark.opencl

LINE = "y[base + k] = a * x[base + k] + y[base + k];"
IS_SPARSE = "(x[0] == 0.0f || x[1] == 0.0f || x[2] == 0.0f || x[3] == 0.0f)"
"""Of all data only the sparse ones, which no quick look uses, have zeros."""
NAMES = {"small": 1.0, "large": 2.0}


def slow() -> Incumbent:
    """Which everything beats."""
    return Incumbent(dict.fromkeys(NAMES, 1e6), NAMES, dict.fromkeys(NAMES, 1e6), 1.0)


@pytest.fixture
def runner_of(monkeypatch):
    """A runner whose referee works beside the device, as on a GPU."""
    monkeypatch.setattr(processes, "DEVICE_WORKER_FACTORY", "keeping_worker:make_keeping_worker")
    running = []

    def make(folder):
        machine, subject = LocalMachine(), TuningProblem.load(folder)
        settings = TuneSettings(build_processes=1, data_seed=3, seconds_per_measurement=0.1)
        runner = machine.runner(subject.problem, machine.device("opencl", "opencl"), settings)
        running.append(runner.__enter__())
        runner._stations[0].lane.process.can_judge_aside = True
        ignore_busy_machine(runner)
        return runner, subject

    yield make
    for runner in running:
        runner.__exit__(None, None, None)


@pytest.fixture
def gate(monkeypatch):
    """Closed: what was left for later cannot be done yet."""
    opened = threading.Event()
    plain = DeviceLane.can_complete.fget
    monkeypatch.setattr(DeviceLane, "can_complete", property(lambda self: opened.is_set() and plain(self)))
    yield opened
    opened.set()


@pytest.fixture
def proven(monkeypatch):
    """The blocks of the candidates that were checked on every dataset, in order."""
    blocks = []
    plain = DeviceLane.prove

    def prove(self, candidate):
        blocks.append(dict(candidate[0].artifact.unit.macros)["BLOCK"])
        return plain(self, candidate)

    monkeypatch.setattr(DeviceLane, "prove", prove)
    return blocks


def request(subject, block, incumbent=None, **settings):
    return EvaluationRequest(Candidate(subject.template, Config({"BLOCK": block, "ITEMS": 2})), incumbent, **settings)


@pytest.fixture
def wrong_on_sparse(tmp_path, write_saxpy):
    """Wrong at BLOCK=64 on sparse data alone."""
    return write_saxpy(tmp_path / "wrong", (LINE, f"{{ {LINE} if (BLOCK == 64 && {IS_SPARSE}) y[base + k] = 1e3f; }}"))


def test_a_claim_waits_for_the_data_that_show_it_to_be_wrong(wrong_on_sparse, runner_of, gate, proven):
    runner, subject = runner_of(wrong_on_sparse)
    runner.calibrate(subject.baseline)
    capacity = runner.capacity
    no_claim, _ = runner.submit(request(subject, 64)).result(timeout=300)
    assert isinstance(no_claim, Passed), "a quick look does not see it"
    claims = [runner.submit(request(subject, block, slow())) for block in (16, 128)]
    after = runner.submit(request(subject, 32))
    assert isinstance(after.result(timeout=300)[0], Passed), "others are looked at meanwhile"
    assert not any(claim.done() for claim in claims)
    assert proven == []
    assert runner.capacity > capacity, "what only waits leaves room for more"
    gate.set()
    found = [claim.result(timeout=300) for claim in claims]
    assert all(isinstance(outcome, Passed) for outcome, _ in found)
    assert 1 <= len(proven) <= 2, "what is slower everywhere than what was just proven claims nothing any more"
    late, _ = runner.submit(request(subject, 64, slow(), is_thorough=True)).result(timeout=300)
    assert isinstance(late, Failed)
    assert "'sparse'" in late.message


def test_a_wrong_claim_fails_and_the_next_one_is_proven_instead(wrong_on_sparse, runner_of, gate, proven):
    runner, subject = runner_of(wrong_on_sparse)
    runner.calibrate(subject.baseline)
    incumbent = slow()
    claims = {block: runner.submit(request(subject, block, incumbent)) for block in (64, 16)}
    assert isinstance(runner.submit(request(subject, 32)).result(timeout=300)[0], Passed)
    gate.set()
    found = {block: claim.result(timeout=300)[0] for block, claim in claims.items()}
    assert isinstance(found[16], Passed)
    if isinstance(found[64], Passed):  # slower than 16 everywhere, so that it claimed nothing any more
        assert len(proven) == 1
    else:
        assert found[64].stage == "check"
        assert len(proven) == 2, "nothing wrong is raced against"


def test_other_runs_have_a_gpu_while_the_referee_works_and_not_while_a_launch_does(saxpy, runner_of, monkeypatch):
    monkeypatch.setattr(DeviceInfo, "shares_host_cores", False)
    runner, subject = runner_of(saxpy)
    lock_name = runner._device.lock_name
    is_free = {"referee": [], "device": []}

    def watched(owner, name, asked):
        plain = getattr(owner, name)

        def watch(self, *given, **named):
            try:
                with DeviceLock(lock_name, timeout_s=0.0):
                    is_free[asked].append(True)
            except InfrastructureError:
                is_free[asked].append(False)
            return plain(self, *given, **named)

        monkeypatch.setattr(owner, name, watch)

    class Watched(type(runner._stations[0].lane.process.worker)):
        """The device's process, and not the referee's."""

    runner._stations[0].lane.process.worker.__class__ = Watched
    watched(RefereeDesk, "files", "referee")
    watched(Watched, "call", "device")
    runner.calibrate(subject.baseline, is_timed=False)
    assert is_free["referee"][0], "nothing is launched yet"
    assert set(is_free["device"]) == {False}


@pytest.mark.thorough
def test_a_baseline_that_writes_out_of_bounds_on_hostile_data_still_ends_the_run(tmp_path, write_saxpy, runner_of):
    folder = write_saxpy(tmp_path / "wild", (LINE, f"{{ {LINE} if ({IS_SPARSE}) y[n] = 1.0f; }}"))
    runner, subject = runner_of(folder)
    runner.calibrate(subject.baseline)
    for _ in range(2):
        future = runner.submit(request(subject, 16, slow(), is_thorough=True))
        with pytest.raises(BaselineFailed, match="sparse"):
            future.result(timeout=300)


@pytest.mark.thorough
def test_hostile_data_that_the_baseline_fails_on_are_dropped_as_ever(tmp_path, write_saxpy, runner_of):
    folder = write_saxpy(tmp_path / "weak", (LINE, f"{{ {LINE} if ({IS_SPARSE}) y[base + k] = 1e3f; }}"))
    runner, subject = runner_of(folder)
    runner.calibrate(subject.baseline)
    outcome, _ = runner.submit(request(subject, 16, slow(), is_thorough=True)).result(timeout=300)
    assert isinstance(outcome, Passed)
    assert sum("'sparse' inputs" in note for note in runner.notes) == 2, "one for each workload"


@pytest.mark.thorough
def test_what_is_built_ahead_is_built_once(saxpy, runner_of, monkeypatch):
    monkeypatch.setattr(LocalRunner, "builds_ahead", True)
    runner, subject = runner_of(saxpy)
    asked = []
    plain = runner._pool.submit
    monkeypatch.setattr(runner._pool, "submit", lambda unit, plans: asked.append(unit.id) or plain(unit, plans))
    wanted = request(subject, 16)
    runner.build_ahead([subject.baseline, wanted.candidate])
    count = len(asked)
    assert count == len(set(asked)) > 0
    runner.calibrate(subject.baseline)
    assert isinstance(runner.submit(wanted).result(timeout=300)[0], Passed)
    assert len(asked) == count


def test_the_process_that_was_asked_for_devices_opens_one_and_a_new_one_takes_its_place(saxpy):
    subject = TuningProblem.load(saxpy)
    settings = replace(TuneSettings(data_seed=3).evaluation(is_cpu=True, core_count=2), build_processes=1)
    with EarlyStart(subject.problem, settings) as early:
        device = select_device(probe_devices(backends=["opencl"], hosts=early.hosts), language="opencl")
        gpu = replace(device, kind="gpu")
        with LocalRunner(subject.problem, gpu, settings, early=early) as runner:
            ignore_busy_machine(runner)
            worker = runner._stations[0].lane.process.worker
            host = worker.pid
            assert worker.start_count == 1
            assert isinstance(runner.calibrate(subject.baseline)[0], Passed)
            assert worker.pid == host
            worker.kill()
            assert isinstance(runner.submit(request(subject, 16)).result(timeout=300)[0], Passed)
            assert worker.pid not in (None, host)
        assert not early.scratch.exists()


def test_what_no_runner_takes_over_is_removed(saxpy):
    subject = TuningProblem.load(saxpy)
    with EarlyStart(subject.problem, TuneSettings().evaluation(is_cpu=True, core_count=2)) as early:
        probe_devices(backends=["opencl"], hosts=early.hosts)
        host = early.hosts.take("opencl")
        assert host is not None
        early.hosts.keep("opencl", host)
        assert host.alive
    assert not host.alive
    assert early.desk.is_closed
    assert not early.scratch.exists()


def test_hosts_are_only_of_backends_with_devices(tmp_path, monkeypatch):
    monkeypatch.setenv("POCL_DEVICES", "none")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    hosts = DeviceHosts(tmp_path)
    report = probe_devices(backends=["opencl"], hosts=hosts)
    assert bool(report.devices) == (hosts.take("opencl") is not None)


def test_what_was_proven_is_what_the_next_one_races_against():
    before = Incumbent({"small": 1.0, "large": 2.0}, NAMES, {"small": 1.0, "large": 2.0}, 1.0)
    after = before.after({"small": 0.5, "large": 2.0})
    assert (before.best_ms, before.value) == ({"small": 1.0, "large": 2.0}, 1.0), "it stays as it is"
    assert after.best_ms == {"small": 0.5, "large": 2.0}
    assert after.value == pytest.approx(0.5 ** (1 / 3))
    assert not after.is_beaten_by({"small": 0.6, "large": 2.0})
    assert after.is_beaten_by({"small": 0.6, "large": 1.9}), "the best on one workload"
    assert before.after({"small": 0.5}).value == 1.0, "not measured everywhere"

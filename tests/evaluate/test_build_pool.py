"""The build pool turns every way in which a compiler can end into a result, and builds nothing twice."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.backend.base import (
    Artifact,
    BufferArgument,
    BuildUnit,
    LaunchPlan,
    LocalArgument,
    PlanStep,
)
from kernelwright.errors import InfrastructureError
from kernelwright.evaluate.builds.artifact_cache import ArtifactCache
from kernelwright.evaluate.builds.pool import BuildPool, check_resources
from kernelwright.evaluate.process.worker_process import WorkerProcess
from kernelwright.problem.outcome import Cost, Failed
from kernelwright.testing.fault_backend import FAULT_BACKEND, FAULT_DEVICE


def task(
    source="ok", *, block=(64, 1, 1), grid=(4, 1, 1), shared_bytes=0, local_bytes=None, **macros
) -> tuple[BuildUnit, tuple[LaunchPlan, ...]]:
    unit = BuildUnit("opencl", source, "k.cl", tuple(macros.items()), (), ("k",))
    arguments = [BufferArgument("x", 64)]
    if local_bytes is not None:
        arguments.append(LocalArgument("l", local_bytes))
    return unit, ((PlanStep("k", grid, block, shared_bytes, tuple(arguments)),),)


@pytest.fixture
def cache(tmp_path):
    return ArtifactCache(tmp_path / "cache")


@pytest.fixture
def pool(tmp_path, cache):
    pool = make_pool(tmp_path, cache)
    yield pool
    pool.close()


def make_pool(tmp_path, cache, *, device=FAULT_DEVICE, process_count=1, timeout_s=120.0, specialise_timeout_s=120.0):
    return BuildPool(
        FAULT_BACKEND,
        device,
        process_count=process_count,
        cache=cache,
        scratch=tmp_path / "scratch",
        timeout_s=timeout_s,
        specialise_timeout_s=specialise_timeout_s,
    )


def build(pool, *args, **kwargs) -> Artifact | Failed:
    return build_at_cost(pool, *args, **kwargs)[0]


def build_at_cost(pool, *args, **kwargs) -> tuple[Artifact | Failed, Cost]:
    return pool.submit(*task(*args, **kwargs)).result(timeout=300)


def test_refusal_is_a_compile_error_with_the_first_line_and_the_log_and_is_cached(pool, tmp_path):
    count = tmp_path / "count"
    failed, cost = build_at_cost(pool, "refuse", COUNT=str(count))
    assert isinstance(failed, Failed)
    assert (failed.stage, failed.reason) == ("build", "compile-error")
    assert (failed.message, failed.log) == ("k.cl:1:1: refused", "the whole log")
    again, cost_again = build_at_cost(pool, "refuse", COUNT=str(count))
    assert again == failed
    assert (cost.is_build_cached, cost_again.is_build_cached) == (False, True)
    assert count.stat().st_size == 1


def test_crash_is_tried_once_more_then_blamed_and_not_cached(pool, tmp_path):
    count = tmp_path / "count"
    result = build(pool, "crash", COUNT=str(count))
    assert (result.stage, result.reason) == ("build", "compiler-crash")
    assert "SIGABRT" in result.message
    assert "compiler: internal error" in result.log
    assert count.stat().st_size == 2
    assert not build_at_cost(pool, "crash", COUNT=str(count))[1].is_build_cached
    assert isinstance(build(pool, "ok"), Artifact), "the pool must go on"


def test_crash_that_does_not_repeat_is_forgiven(pool, tmp_path):
    result = build(pool, "crash-once", COUNT=str(tmp_path / "count"))
    assert isinstance(result, Artifact)
    assert (result.folder / "program.bin").read_bytes() == b"crash-once"


def test_hang_is_a_compiler_timeout(tmp_path, cache):
    pool = make_pool(tmp_path, cache, timeout_s=0.3, specialise_timeout_s=0.1)
    pool.warm()
    try:
        result = build(pool, "hang")
    finally:
        pool.close()
    assert (result.stage, result.reason) == ("build", "compiler-timeout")


@pytest.mark.parametrize("fault", ["hang", "crash", "refuse"])
def test_failed_specialisation_is_no_verdict_and_not_repeated(tmp_path, cache, fault, monkeypatch):
    pool = make_pool(tmp_path, cache, specialise_timeout_s=0.3)
    try:
        built = build(pool, SPECIALISE=fault)
        assert isinstance(built, Artifact)
        assert (built.folder / "program.bin").exists()
        assert pool.warnings
        asked = []
        monkeypatch.setattr(WorkerProcess, "call", lambda *_, **__: asked.append(1))
        again, cost = build_at_cost(pool, SPECIALISE=fault)
        assert asked == [], "nothing is to be run again"
    finally:
        pool.close()
    assert cost.is_build_cached
    assert again == built


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_what_comes_to_run_in_a_build_process_writes_into_no_artifact(tmp_path, cache, kind):
    """Else a candidate could make the baseline slow, in this run and in all that find it in the cache."""
    device = replace(FAULT_DEVICE, kind=kind)
    pool = make_pool(tmp_path, cache, device=device, specialise_timeout_s=60.0)
    try:
        target = build(pool, "ok baseline").folder / "program.bin"
        candidate = build(pool, "ok candidate", SPECIALISE="write", TARGET=str(target))
        _, cost = build_at_cost(pool, "ok baseline")
    finally:
        pool.close()
    if not pool.warnings and target.read_bytes() == b"poison":
        pytest.skip("this system has no fence for writes, which a run's notes say")
    assert any("Permission denied" in each for each in pool.warnings)
    assert isinstance(candidate, Artifact)
    assert (cost.is_build_cached, target.read_bytes()) == (True, b"ok baseline")


def test_a_cache_that_is_removed_while_something_is_built_is_made_again(tmp_path, cache):
    pool = make_pool(tmp_path, cache)
    try:
        assert isinstance(build(pool, "ok one"), Artifact)
        shutil.rmtree(cache.folder)
        built = build(pool, "ok two")
        assert (built.folder / "program.bin").read_bytes() == b"ok two"
    finally:
        pool.close()


def test_specialisation_is_done_once_for_each_set_of_launches(pool):
    first = build(pool, block=(64, 1, 1))
    (first.folder / "specialised").unlink()
    same, cost = build_at_cost(pool, block=(64, 1, 1))
    assert not (first.folder / "specialised").exists()
    other, other_cost = build_at_cost(pool, block=(32, 1, 1))
    assert (first.folder / "specialised").exists()
    assert (cost.is_build_cached, other_cost.is_build_cached) == (True, False)
    assert same == other


def test_unexpected_error_is_the_machines(pool):
    with pytest.raises(InfrastructureError, match="the disk is gone"):
        build(pool, "machine")
    with pytest.raises(ZeroDivisionError):
        build(pool, "unexpected")
    assert isinstance(build(pool), Artifact)


def test_equal_requests_in_flight_are_one_build(tmp_path, cache):
    pool = make_pool(tmp_path, cache, process_count=2)
    try:
        count = tmp_path / "count"
        futures = [pool.submit(*task(COUNT=str(count))) for _ in range(20)]
        results = [future.result(timeout=300) for future in futures]
    finally:
        pool.close()
    assert count.stat().st_size == 1
    assert len({built.folder for built, _ in results}) == 1


def test_cancelling_one_of_two_equal_requests_leaves_the_other(pool):
    blocker = pool.submit(*task("ok one"))
    first, second = (pool.submit(*task("ok two")) for _ in range(2))
    was_cancelled = first.cancel()
    assert isinstance(second.result(timeout=300)[0], Artifact)
    assert isinstance(blocker.result(timeout=300)[0], Artifact)
    assert was_cancelled == first.cancelled()


def test_every_request_of_a_crowd_is_answered(tmp_path, cache):
    pool = make_pool(tmp_path, cache, process_count=2)
    sources = [f"{('ok', 'refuse', 'ok', 'crash')[index % 4]} {index}" for index in range(12)]
    try:
        results = [future.result(timeout=300) for future in [pool.submit(*task(source)) for source in sources]]
    finally:
        pool.close()
    reasons = [built.reason if isinstance(built, Failed) else None for built, _ in results]
    expected = {"ok": None, "refuse": "compile-error", "crash": "compiler-crash"}
    assert reasons == [expected[source.split()[0]] for source in sources]


def test_close_ends_a_hanging_build_and_cancels_what_waits(tmp_path, cache):
    pool = make_pool(tmp_path, cache, timeout_s=600.0)
    running, waiting = pool.submit(*task("hang")), pool.submit(*task("ok"))
    time.sleep(0.5)
    closer = threading.Thread(target=pool.close)
    closer.start()
    closer.join(timeout=100)
    assert not closer.is_alive()
    assert waiting.cancelled()
    assert running.done()
    assert pool.submit(*task()).cancelled()


def test_killed_build_process_costs_one_retry(tmp_path, cache):
    pool = make_pool(tmp_path, cache)
    try:
        assert isinstance(build(pool, "ok one"), Artifact)
        os.kill(pool._workers[0].pid, signal.SIGKILL)
        assert isinstance(build(pool, "ok two"), Artifact)
    finally:
        pool.close()


# ---- resources ----


def artifact_with(**figures) -> Artifact:
    unit = task()[0]
    return Artifact(unit, FAULT_DEVICE.id, None, {"k": figures})  # type: ignore[arg-type]


def checked(artifact, **launch):
    return check_resources(artifact, task(**launch)[1], FAULT_DEVICE)


@pytest.mark.parametrize(
    ("launch", "reason", "words"),
    [
        ({"block": (32, 64, 1)}, "too-many-threads", "2048 threads in a block; the device takes 1024"),
        ({"block": (16, 32, 1)}, "too-many-threads", "512 threads in a block; this kernel takes 256"),
        ({"block": (1, 1, 128)}, "too-many-threads", "128 threads along z; the device takes 64"),
        ({"grid": (1, 65536, 1)}, "grid-too-large", "65,536 blocks along y"),
        ({"local_bytes": 49153}, "too-much-local-memory", "49,153 bytes of local memory"),
        ({"shared_bytes": 50000}, "too-much-local-memory", "the device has 49,152"),
    ],
)
def test_launch_beyond_a_limit_is_refused_with_the_values(launch, reason, words):
    failure = checked(artifact_with(max_threads_per_block=256.0), **launch)
    assert (failure.stage, failure.reason) == ("resources", reason)
    assert words in failure.message


def test_declared_and_dynamic_local_memory_add_up():
    artifact = artifact_with(local_memory_bytes=40000.0)
    assert checked(artifact, local_bytes=9152) is None
    assert checked(artifact, local_bytes=9153).reason == "too-much-local-memory"


def test_local_memory_of_a_kernel_without_a_plan_is_judged_too():
    failure = check_resources(artifact_with(local_memory_bytes=50000.0), (), FAULT_DEVICE)
    assert failure.reason == "too-much-local-memory"


@given(block=st.tuples(*[st.integers(1, 4096)] * 3), local_bytes=st.integers(0, 1 << 20))
def test_unknown_limits_constrain_nothing(block, local_bytes):
    device = FAULT_DEVICE.__class__("fault", "fault:1", "no limits", "simulated", {})
    plans = task(block=block, local_bytes=local_bytes)[1]
    assert check_resources(artifact_with(), plans, device) is None


def test_pool_reports_resources_and_keeps_the_artifact_for_smaller_launches(pool):
    assert build(pool, block=(512, 1, 1)).reason == "too-many-threads"
    fitting = build(pool, block=(128, 1, 1))
    assert isinstance(fitting, Artifact)

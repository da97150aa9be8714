"""The CUDA backend on a real device: load, launch, time, and every refusal in words."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest

from kernelwright.backend.base import (
    BoundBuffer,
    BoundLaunch,
    BufferArgument,
    BuildFailed,
    BuildUnit,
    LaunchFailed,
    LocalArgument,
    PlanStep,
    ScalarArgument,
)
from kernelwright.backend.cuda.driver import load_driver
from kernelwright.backend.cuda.errors import call
from kernelwright.backend.registry import get_backend
from kernelwright.errors import InfrastructureError
from kernelwright.evaluate.device.probe import probe_devices, select_device
from kernelwright.evaluate.process.worker_process import JobTimeout, WorkerProcess, WorkerSettings
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.tune import tune

pytestmark = pytest.mark.gpu

SCALE = """
#ifndef FACTOR
#define FACTOR 1
#endif
extern "C" __global__ void scale(const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = FACTOR * x[i];
}
"""
SHARED = """
extern "C" __global__ void reverse(const int *x, int *y, int n) {
  extern __shared__ int s[];
  for (int i = threadIdx.x; i < n; i += blockDim.x) s[i] = x[i];
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = s[n - 1 - i];
}
"""
WILD = 'extern "C" __global__ void wild(int *x) { x[1ull << 40] = 1; }'
ENDLESS = 'extern "C" __global__ void endless(volatile int *x) { while (x[0] == 0) { } }'
N = 1000


@pytest.fixture(scope="module")
def device():
    report = probe_devices(backends=["cuda"])
    if not report.devices:
        pytest.skip(f"needs an NVIDIA GPU: {report.unavailable['cuda']}")
    return select_device(report, "cuda")


@pytest.fixture(scope="module")
def backend():
    return get_backend("cuda")


@pytest.fixture(scope="module")
def session(backend, device):
    session = backend.open(device)
    yield session
    session.close()


@pytest.fixture
def compiled(backend, device, tmp_path):
    def compile_(source, *entries, macros=(), options=()):
        folder = tmp_path / f"artifact-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        unit = BuildUnit("cuda", source, "kernel.cu", tuple(macros), tuple(options), entries)
        return backend.compile(unit, device, folder)

    return compile_


def scalar(name, dtype, value):
    return ScalarArgument(name, dtype, np.asarray(value, dtype).tobytes())


def step(entry, *arguments, grid=(1, 1, 1), block=(1, 1, 1), shared=0, **special):
    return PlanStep(entry, grid, block, shared, arguments, **special)


def buffer_sizes(each):
    sizes = {argument.name: argument.byte_count for argument in each.arguments if isinstance(argument, BufferArgument)}
    return sizes | {constant.name: constant.byte_count for constant in each.constants}


def scale_step(*, block=64, count=N, entry="scale"):
    arguments = (BufferArgument("x", 4 * count), BufferArgument("y", 4 * count), scalar("n", "int32", count))
    return step(entry, *arguments, grid=(math.ceil(count / block), 1, 1), block=(block, 1, 1))


def download(session, buffer, byte_count):
    out = np.empty(byte_count, np.uint8)
    session.download(buffer, out)
    return out


def run(session, artifact, each, inputs, *, offset_bytes=0):
    """Every buffer's content after one timed launch, between guards of 0xcd, and the time."""
    sizes = buffer_sizes(each)
    buffers = {name: session.allocate(size + 2 * offset_bytes) for name, size in sizes.items()}
    for name, buffer in buffers.items():
        session.fill(buffer, b"\xcd", sizes[name] + 2 * offset_bytes)
        if name in inputs:
            session.upload(buffer, np.ascontiguousarray(inputs[name]).view(np.uint8).ravel(), offset_bytes)
    bound = {name: BoundBuffer(buffer, offset_bytes, sizes[name]) for name, buffer in buffers.items()}
    elapsed_ms = session.time([BoundLaunch(session.load(artifact), each, bound)])
    whole = {name: download(session, buffer, sizes[name] + 2 * offset_bytes) for name, buffer in buffers.items()}
    for buffer in buffers.values():
        session.free(buffer)
    return whole, elapsed_ms


def refused(session, artifact, each):
    """The refusal of a launch, after which the session still works."""
    sizes = buffer_sizes(each)
    bound = {name: BoundBuffer(session.allocate(size), 0, size) for name, size in sizes.items()}
    with pytest.raises(LaunchFailed) as caught:
        session.launch([BoundLaunch(session.load(artifact), each, bound)])
    session.synchronize()
    for each_bound in bound.values():
        session.free(each_bound.buffer)
    return caught.value


# ---- refusals ----


def test_block_beyond_the_device_is_refused(session, compiled):
    error = refused(session, compiled(SCALE, "scale"), scale_step(block=2048))
    assert error.reason == "invalid-value"
    assert "block (2048, 1, 1)" in error.message


def test_block_beyond_its_launch_bounds_is_refused(session, compiled):
    source = SCALE.replace("void scale", "void __launch_bounds__(64) scale")
    assert "block (128, 1, 1)" in refused(session, compiled(source, "scale"), scale_step(block=128)).message
    whole, _ = run(session, compiled(source, "scale"), scale_step(block=64), {"x": np.ones(N, np.float32)})
    assert (whole["y"].view(np.float32) == 1).all()


def test_wrong_number_of_arguments_is_refused(session, compiled):
    each = step("scale", BufferArgument("x", 4), BufferArgument("y", 4))
    error = refused(session, compiled(SCALE, "scale"), each)
    assert error.reason == "invalid-arguments"
    assert "takes 3 arguments, but is launched with 2: x, y" in error.message


def test_wrong_size_of_a_scalar_is_refused(session, compiled):
    each = step("scale", BufferArgument("x", 4), BufferArgument("y", 4), scalar("n", "int64", 1))
    error = refused(session, compiled(SCALE, "scale"), each)
    assert error.reason == "invalid-arguments"
    assert "argument 3 ('n') of 'scale' has 8 bytes, but the kernel takes 4" in error.message


def test_local_arguments_are_refused(session, compiled):
    each = step("scale", BufferArgument("x", 4), BufferArgument("y", 4), LocalArgument("n", 4))
    assert "shared_bytes" in refused(session, compiled(SCALE, "scale"), each).message


def test_more_dynamic_shared_memory_than_there_is_is_refused(session, compiled, device):
    limit = device.limits["shared_memory_per_block"]
    arguments = (BufferArgument("x", 4), BufferArgument("y", 4), scalar("n", "int32", 1))
    error = refused(session, compiled(SHARED, "reverse"), step("reverse", *arguments, shared=limit + 1))
    assert error.reason == "invalid-value"
    assert f"{limit + 1:,} bytes of dynamic shared memory" in error.message


def test_damaged_cubin_does_not_load(session, compiled):
    artifact = compiled(SCALE, "scale")
    (artifact.folder / "unit.cubin").write_bytes(b"\x7fELF and nothing more")
    with pytest.raises(BuildFailed, match=r"kernel\.cu"):
        session.load(artifact)


def test_memory_that_is_not_there_is_the_machines_failure_and_can_be_got_over(session, device):
    total = device.limits["global_memory"]
    with pytest.raises(InfrastructureError, match="OUT_OF_MEMORY"):
        session.allocate(2 * total)
    session.free(session.allocate(1 << 20))


# ---- memory ----


def test_freed_memory_is_used_again(session):
    first = session.allocate(12345)
    session.free(first)
    second = session.allocate(12345)
    session.free(second)
    assert first.address == second.address


@pytest.mark.parametrize(
    ("size", "count", "offset"), list(itertools.product((1, 2, 4, 8, 16), (1, 15, 16, 64, 100_001), (0, 16, 4, 1)))
)
def test_fill_repeats_the_pattern(session, size, count, offset):
    pattern = bytes(range(1, size + 1))
    buffer = session.allocate(count + offset + 8)
    session.fill(buffer, b"\xee", count + offset + 8)
    session.fill(buffer, pattern, count, offset)
    whole = download(session, buffer, count + offset + 8)
    session.free(buffer)
    assert (whole[:offset] == 0xEE).all()
    assert (whole[offset : offset + count] == np.resize(np.frombuffer(pattern, np.uint8), count)).all()
    assert (whole[offset + count :] == 0xEE).all()


def test_copy_moves_between_buffers(session):
    data = np.random.default_rng(0).integers(0, 256, 100_003, np.uint8)
    buffers = [session.allocate(data.size) for _ in range(2)]
    session.upload(buffers[0], data)
    session.copy(*buffers, data.size)
    assert (download(session, buffers[1], data.size) == data).all()
    for buffer in buffers:
        session.free(buffer)


# ---- launches ----


@pytest.mark.parametrize("offset_bytes", [0, 256, 65536])
def test_launch_computes_and_keeps_to_its_memory(session, compiled, offset_bytes):
    x = np.arange(N, dtype=np.float32)
    artifact = compiled(SCALE, "scale", macros=[("FACTOR", "3")])
    whole, elapsed_ms = run(session, artifact, scale_step(), {"x": x}, offset_bytes=offset_bytes)
    assert np.array_equal(whole["y"][offset_bytes : offset_bytes + 4 * N].view(np.float32), 3 * x)
    guards = np.concatenate([whole["y"][:offset_bytes], whole["y"][offset_bytes + 4 * N :]])
    assert (guards == 0xCD).all()
    assert elapsed_ms > 0


@pytest.mark.parametrize("options", [(), ("--compiler=nvcc",)])
def test_template_entries_are_launched(session, compiled, options):
    source = """template <typename T, int F> __global__ void scale(const T *x, T *y, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = F * x[i]; }"""
    entry = "scale<float, FACTOR + 1>"
    artifact = compiled(source, entry, macros=[("FACTOR", "4")], options=options)
    whole, _ = run(session, artifact, scale_step(entry=entry), {"x": np.ones(N, np.float32)})
    assert (whole["y"].view(np.float32) == 5).all()


def test_dynamic_shared_memory_up_to_what_the_device_has(session, compiled, device):
    limit = device.limits["shared_memory_per_block"]
    for byte_count in (1024, limit, 4096):
        x = np.arange(byte_count // 4, dtype=np.int32)
        arguments = (BufferArgument("x", x.nbytes), BufferArgument("y", x.nbytes), scalar("n", "int32", x.size))
        each = step("reverse", *arguments, block=(256, 1, 1), shared=byte_count)
        whole, _ = run(session, compiled(SHARED, "reverse"), each, {"x": x})
        assert np.array_equal(whole["y"].view(np.int32), x[::-1])


def test_steps_run_in_order(session, compiled):
    source = """extern "C" __global__ void add(int *x) { x[threadIdx.x] += 1; }
    extern "C" __global__ void twice(int *x) { x[threadIdx.x] *= 2; }"""
    module, buffer = session.load(compiled(source, "add", "twice")), session.allocate(128)
    session.fill(buffer, b"\0", 128)
    bound = {"x": BoundBuffer(buffer, 0, 128)}
    steps = [step(entry, BufferArgument("x", 128), block=(32, 1, 1)) for entry in ("add", "twice", "add", "twice")]
    assert session.time([BoundLaunch(module, each, bound) for each in steps]) > 0
    assert (download(session, buffer, 128).view(np.int32) == 6).all()
    session.free(buffer)


def test_longer_work_takes_longer_by_the_timer(session, compiled):
    source = """extern "C" __global__ void wait(int *x, long long ns) {
      long long start, now; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
      do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - start < ns); x[0] = 1; }"""
    artifact = compiled(source, "wait")
    for milliseconds in (1, 5):
        each = step("wait", BufferArgument("x", 4), scalar("ns", "int64", milliseconds * 1_000_000))
        _, elapsed_ms = run(session, artifact, each, {})
        assert elapsed_ms >= milliseconds * 0.99


def test_flush_leaves_everything_as_it_is(session):
    data = np.arange(1000, dtype=np.uint8)
    buffer = session.allocate(1000)
    session.upload(buffer, data)
    for _ in range(3):
        session.flush_cache()
    session.synchronize()
    assert (download(session, buffer, 1000) == data).all()
    session.free(buffer)


def test_clusters_by_attribute_are_launched(session, compiled, device):
    if device.limits["compute_capability"] < 90:
        pytest.skip("clusters came with compute capability 9.0")
    source = """#include <cooperative_groups.h>
    extern "C" __global__ void __cluster_dims__(4, 1, 1) ranks(int *y) {
      auto cluster = cooperative_groups::this_cluster();
      cluster.sync();
      if (threadIdx.x == 0) y[blockIdx.x] = cluster.block_rank() + 10 * cluster.num_blocks();
    }"""
    artifact = compiled(source, "ranks")
    each = step("ranks", BufferArgument("y", 32), grid=(8, 1, 1), block=(32, 1, 1))
    whole, _ = run(session, artifact, each, {})
    assert whole["y"].view(np.int32).tolist() == [40, 41, 42, 43] * 2
    assert refused(session, artifact, step("ranks", BufferArgument("y", 32), grid=(6, 1, 1), block=(32, 1, 1)))


@pytest.mark.parametrize("cluster", [(2, 1, 1), (4, 1, 1), (16, 1, 1)])
def test_clusters_of_the_launch_are_launched(session, compiled, device, cluster):
    if device.limits["compute_capability"] < 90:
        pytest.skip("clusters came with compute capability 9.0")
    source = """#include <cooperative_groups.h>
    extern "C" __global__ void ranks(int *y) {
      auto cluster = cooperative_groups::this_cluster();
      cluster.sync();
      if (threadIdx.x == 0) y[blockIdx.x] = cluster.block_rank() + 100 * cluster.num_blocks();
    }"""
    artifact = compiled(source, "ranks")
    each = step("ranks", BufferArgument("y", 128), grid=(32, 1, 1), block=(32, 1, 1), cluster=cluster)
    whole, _ = run(session, artifact, each, {})
    assert whole["y"].view(np.int32).tolist() == [100 * cluster[0] + i for i in range(cluster[0])] * (32 // cluster[0])
    wrong = step("ranks", BufferArgument("y", 128), grid=(33, 1, 1), block=(32, 1, 1), cluster=cluster)
    assert "cluster" in refused(session, artifact, wrong).message


def test_cooperative_launch_synchronises_the_grid(session, compiled, device):
    source = """#include <cooperative_groups.h>
    extern "C" __global__ void total(const int *x, int *y) {
      if (threadIdx.x == 0) y[1 + blockIdx.x] = x[blockIdx.x];
      cooperative_groups::this_grid().sync();
      if (blockIdx.x == 0 && threadIdx.x == 0) {
        int sum = 0;
        for (int i = 0; i < gridDim.x; ++i) sum += ((volatile int *)y)[1 + i];
        y[0] = sum;
      }
    }"""
    artifact = compiled(source, "total")
    count = 2 * device.limits["multiprocessors"]
    arguments = (BufferArgument("x", 4 * count), BufferArgument("y", 4 * count + 4))
    each = step("total", *arguments, grid=(count, 1, 1), block=(64, 1, 1), is_cooperative=True)
    x = np.arange(count, dtype=np.int32)
    whole, _ = run(session, artifact, each, {"x": x})
    assert whole["y"].view(np.int32)[0] == x.sum()
    large = step("total", *arguments, grid=(1000 * count, 1, 1), block=(64, 1, 1), is_cooperative=True)
    assert refused(session, artifact, large).reason == "cooperative-launch-too-large"


def test_constants_are_filled_before_each_launch(session, compiled):
    source = """__constant__ float table[8];
    extern "C" __global__ void look_up(const int *x, float *y) { y[threadIdx.x] = table[x[threadIdx.x]]; }"""
    artifact = compiled(source, "look_up")
    arguments = (BufferArgument("x", 128), BufferArgument("y", 128))
    for start in (0, 100):
        table = np.arange(start, start + 8, dtype=np.float32)
        x = np.arange(32, dtype=np.int32) % 8
        each = step("look_up", *arguments, block=(32, 1, 1), constants=(("table", BufferArgument("t", 32)),))
        whole, _ = run(session, artifact, each, {"x": x, "t": table})
        assert np.array_equal(whole["y"].view(np.float32), table[x])
    too_much = step("look_up", *arguments, block=(32, 1, 1), constants=(("table", BufferArgument("t", 64)),))
    assert "holds 32" in refused(session, artifact, too_much).message
    unknown = step("look_up", *arguments, block=(32, 1, 1), constants=(("tabel", BufferArgument("t", 32)),))
    assert "no variable 'tabel'" in refused(session, artifact, unknown).message


# ---- clocks, ceilings ----


def test_times_are_by_cupti_where_it_records(session):
    """On a machine where CUPTI is open; elsewhere the note says why not."""
    assert session.timer in ("cuda-cupti", "cuda-events")
    assert session.timer_note
    if session.timer == "cuda-events":
        pytest.skip(f"needs CUPTI: {session.timer_note}")


def test_short_kernels_are_timed_alone(backend, device, session, compiled):
    """The clock inside a kernel that waits, against its time from outside."""
    if session.timer != "cuda-cupti":
        pytest.skip(f"needs CUPTI: {session.timer_note}")
    source = """extern "C" __global__ void wait(unsigned long long *x, long long ns) {
      unsigned long long start, now; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
      do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - start < ns); x[0] = now - start; }"""
    artifact = compiled(source, "wait")
    for microseconds in (3, 20):
        each = step("wait", BufferArgument("x", 8), scalar("ns", "int64", 1000 * microseconds))
        for _ in range(5):
            whole, elapsed_ms = run(session, artifact, each, {})
        inside_ms = int(whole["x"].view(np.uint64)[0]) / 1e6
        assert inside_ms <= elapsed_ms <= inside_ms + 0.0025


def test_device_tells_its_clocks(session):
    reading = session.read_state()
    if reading is None:
        pytest.skip(f"needs NVML: {session.meter_note}")
    assert reading.clock_mhz > 100
    assert 0 < reading.temperature_c < 120
    assert reading.power_w > 1


def test_ceilings_are_rates_that_can_be(session, device):
    rates = session.measure_ceilings()
    assert rates["copy_bytes_per_s"] > 50e9
    assert 1e4 < rates["launches_per_s"] < 1e7
    assert rates["cache_bytes_per_s"] > rates["read_bytes_per_s"]
    assert rates["fp32_operations_per_s"] > rates["fp64_operations_per_s"]
    clock_hz = 1e3 * int(device.facts["clock_khz"])
    lanes = rates["fp32_operations_per_s"] / 2 / clock_hz / device.limits["multiprocessors"]
    assert 40 < lanes < 140  # 64 or 128 in every multiprocessor so far


@pytest.mark.parametrize("count", [16, 160, 1 << 20])
def test_comparison_on_the_device_sees_every_byte(session, count):
    data = np.random.default_rng(0).integers(0, 256, count, np.uint8)
    first, second = session.allocate(count), session.allocate(count)
    for place in (None, 0, count // 2, count - 1):
        other = data.copy()
        if place is not None:
            other[place] ^= 1
        session.upload(first, data)
        session.upload(second, other)
        assert session.is_same(first, second, count) == (place is None)
    session.free(first)
    session.free(second)


# ---- what is said before the launch, against the driver ----

KERNELS = {
    "small": "x[threadIdx.x] = 1;",
    "shared": "__shared__ float s[3000]; s[threadIdx.x] = x[threadIdx.x]; __syncthreads(); x[0] = s[threadIdx.x ^ 1];",
    "large": """float a[100];
      _Pragma("unroll") for (int i = 0; i < 100; ++i) a[i] = x[i * 32];
      __syncthreads();
      _Pragma("unroll") for (int i = 0; i < 100; ++i) x[i * 32] = a[99 - i] * a[i];""",
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("threads", "shared"), [(32, 0), (96, 1000), (256, 0), (512, 40_000), (1024, 0)])
def test_occupancy_and_registers_equal_what_the_driver_says(backend, session, compiled, device, name, threads, shared):
    source = f'extern "C" __global__ void {name}(float *x) {{ {KERNELS[name]} }}'
    artifact = compiled(source, name)
    plan = (step(name, BufferArgument("x", 4), block=(threads, 1, 1), shared=shared),)
    figures = backend.with_launch_figures(artifact, [plan], device).resources[name]
    driver, module = load_driver(), session.load(artifact)
    function = module.function(name)
    module.allow_shared(name, shared)
    kind = driver.CUfunction_attribute
    assert call(driver.cuFuncGetAttribute(kind.CU_FUNC_ATTRIBUTE_NUM_REGS, function)) == figures["registers_per_thread"]
    static = call(driver.cuFuncGetAttribute(kind.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function))
    assert static == figures["local_memory_bytes"]
    limit = call(driver.cuFuncGetAttribute(kind.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function))
    assert limit == figures["max_threads_per_block"]
    blocks = call(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, shared))
    assert blocks == figures["blocks_per_multiprocessor"]


def test_device_tells_its_limits(device):
    assert device.kind == "gpu"
    assert device.limits["warp_size"] == 32
    assert device.limits["compute_capability"] >= 75
    assert device.limits["shared_memory_per_block"] > 48 * 1024
    assert device.facts["uuid"]


# ---- kernels that break the context ----


@pytest.fixture
def worker(device, tmp_path):
    settings = WorkerSettings("device", "kernelwright.testing.fault_jobs:make_launcher", device)
    with WorkerProcess(settings, scratch=tmp_path) as worker:
        yield worker


def good_launch(worker, artifact):
    outputs = worker.call((artifact, (scale_step(),), {"x": np.ones(N, np.float32).tobytes()}), timeout_s=30)
    return (np.frombuffer(outputs["y"], np.float32) == 1).all()


def test_wild_store_ends_the_session_and_a_fresh_worker_works(worker, compiled):
    good, wild = compiled(SCALE, "scale"), compiled(WILD, "wild")
    assert good_launch(worker, good)
    with pytest.raises(InfrastructureError, match="ILLEGAL_ADDRESS"):
        worker.call((wild, (step("wild", BufferArgument("x", 4)),), {}), timeout_s=30)
    with pytest.raises(InfrastructureError):  # the context is lost for good
        good_launch(worker, good)
    worker.kill()
    assert good_launch(worker, good)


def test_endless_kernel_is_killed_and_a_fresh_worker_works(worker, compiled):
    good, endless = compiled(SCALE, "scale"), compiled(ENDLESS, "endless")
    assert good_launch(worker, good)
    with pytest.raises(JobTimeout):
        worker.call((endless, (step("endless", BufferArgument("x", 4)),), {}), timeout_s=2)
    assert good_launch(worker, good)


# ---- from end to end ----

PROBLEM = """name = "scale"
kernel = "scale.cu"
entry = "scale"
reference = "reference.py:scale"
[arguments]
x = { role = "input", dtype = "float32", shape = ["n"] }
y = { role = "output", dtype = "float32", shape = ["n"] }
n = { role = "scalar", dtype = "int32", value = "n" }
[launch]
grid = ["n // 256"]
block = ["256"]
[[workloads]]
name = "small"
n = 65536
"""
KERNEL = """// /// kernelwright
// [parameters]
// MODE = { values = [0, 1, 2, 3, 4], default = 0, why = "what goes wrong" }
// BLOCK = { values = [128, 256], default = 256, why = "threads of a block" }
// [launch]
// grid = ["n // BLOCK"]
// block = ["BLOCK"]
// ///
extern "C" __global__ void scale(const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = 2 * x[i];
#if MODE == 1
  y[i + (1ull << 40)] = 1;
#elif MODE == 2
  if (i == n - 1) y[n] = 1;
#elif MODE == 3
  if (i == BLOCK) __trap();
#elif MODE == 4
  __shared__ float s[20000];
  s[threadIdx.x] = x[i]; __syncthreads(); y[i] += s[threadIdx.x ^ 1];
#endif
}
"""


def test_tuning_blames_bad_candidates_and_goes_on(device, tmp_path):
    folder = tmp_path / "scale"
    folder.mkdir()
    (folder / "problem.toml").write_text(PROBLEM)
    (folder / "scale.cu").write_text(KERNEL)
    (folder / "reference.py").write_text("def scale(x, n):\n    return 2 * x\n")
    settings = TuneSettings(budget=Budget(evaluations=10), searcher="exhaustive", device=device.id, comparison_rounds=5)
    result = tune(folder, settings=settings, run=tmp_path / "run")
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    found = {
        (each["config"]["MODE"], each["config"]["BLOCK"]): each["outcome"].get("reason", "passed")
        for each in events
        if each["kind"] == "evaluated"
    }
    assert result.best_config is not None
    assert result.best_config["MODE"] == 0
    for block in (128, 256):
        reasons = [found.get((mode, block), "passed") for mode in range(5)]  # the baseline's own config may be left out
        assert reasons == ["passed", "device-error", "out-of-bounds", "device-error", "too-much-local-memory"]


# ---- large copies ----


@pytest.mark.parametrize("count", [(4 << 20) - 1, 4 << 20, (4 << 20) + 1, (37 << 20) + 12345, 200 << 20])
def test_large_copies_go_both_ways_unchanged(session, count):
    data = np.random.default_rng(count).integers(0, 256, count, np.uint8)
    buffer = session.allocate(count + 64)
    session.fill(buffer, b"\xee", count + 64)
    for _ in range(2):
        session.upload(buffer, data, offset_bytes=32)
        whole = np.zeros(count + 64, np.uint8)
        session.download(buffer, whole)
        assert np.array_equal(whole[32:-32], data)
        assert (whole[:32] == 0xEE).all()
        assert (whole[-32:] == 0xEE).all()
        data = data[::-1].copy()
    session.free(buffer)


REMEMBERS = """
__device__ float hidden[2048];
static __device__ int calls = 7;
namespace ns { template <int N> __device__ int deep = N; }
__device__ const float table[4] = {1, 2, 3, 4};
__constant__ float constant[4] = {5, 6, 7, 8};
extern "C" __global__ void remembers(float *y, int n) {
  static int local_calls;
  hidden[0] += 1; calls += 1; ns::deep<3> += 1; local_calls += 1;
  if (n < 0) printf("%d", n);
  y[0] = hidden[0]; y[1] = calls; y[2] = ns::deep<3>; y[3] = local_calls; y[4] = table[n & 3]; y[5] = constant[n & 3];
}
"""


def test_a_module_forgets_what_launches_left_in_its_variables(session, compiled):
    artifact = compiled(REMEMBERS, "remembers")
    assert {each.name.rpartition("::")[2] for each in artifact.state} == {"hidden", "local_calls"}
    module, out = session.load(artifact), session.allocate(24)
    each = step("remembers", BufferArgument("y", 24), scalar("n", "int32", 1))
    bound = BoundLaunch(module, each, {"y": BoundBuffer(out, 0, 24)})

    def launched():
        session.time([bound])
        return download(session, out, 24).view(np.float32).tolist()

    first, second = launched(), launched()
    session.forget_module_memory()
    third = launched()
    assert first == third == [1, 8, 4, 1, 2, 6]
    assert second == [2, 9, 5, 2, 2, 6]
    session.free(out)


OF_THE_TOOLCHAIN = {
    "assert": ("", "assert(n > 0); y[0] = n;"),
    "tables of the compiler": ("", "y[0] = (float)(sin((double)n) + sinf((float)n * 1e6f));"),
    "cooperative groups": (
        "#include <cooperative_groups.h>\n#include <cooperative_groups/reduce.h>\n",
        "auto warp = cooperative_groups::tiled_partition<32>(cooperative_groups::this_thread_block());"
        "y[0] = cooperative_groups::reduce(warp, (float)n, cooperative_groups::plus<float>());",
    ),
    "cub": (
        "#include <cub/block/block_reduce.cuh>\n",
        "using Reduce = cub::BlockReduce<float, 32>; __shared__ typename Reduce::TempStorage room;"
        "float sum = Reduce(room).Sum((float)n); if (threadIdx.x == 0) y[0] = sum;",
    ),
    "a counter of blocks": (
        "__device__ unsigned counter;\n", "if (threadIdx.x == 0 && atomicInc(&counter, 0) == 0) y[0] = n;"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", OF_THE_TOOLCHAIN)
def test_what_the_toolchain_leaves_in_a_module_stops_no_launch(session, compiled, what):
    top, body = OF_THE_TOOLCHAIN[what]
    artifact = compiled(f'{top}extern "C" __global__ void f(float *y, int n) {{ {body} }}', "f")
    assert artifact.state == ()
    module, out = session.load(artifact), session.allocate(4)
    each = step("f", BufferArgument("y", 4), scalar("n", "int32", 1), block=(32, 1, 1))
    bound = BoundLaunch(module, each, {"y": BoundBuffer(out, 0, 4)})
    for _ in range(2):
        session.time([bound])
        session.forget_module_memory()
    session.free(out)

"""The OpenCL backend on a real device: build, load, launch, time, and every refusal in words."""

from __future__ import annotations

import math
import pickle
from pathlib import Path

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
from kernelwright.backend.opencl.driver import is_pocl, pocl_cache
from kernelwright.backend.registry import get_backend
from kernelwright.errors import InfrastructureError
from kernelwright.evaluate.builds.artifact_cache import ArtifactCache
from kernelwright.evaluate.builds.pool import BuildPool, check_resources
from kernelwright.evaluate.process.worker_process import JobTimeout, WorkerDied, WorkerProcess, WorkerSettings
from kernelwright.problem.outcome import Failed

pytestmark = pytest.mark.opencl

SCALE = """
#ifndef FACTOR
#define FACTOR 1
#endif
__kernel void scale(__global const float *x, __global float *y, int n) {
  int i = get_global_id(0);
  if (i < n) y[i] = FACTOR * x[i];
}
"""
N = 1000


@pytest.fixture(scope="module")
def backend():
    return get_backend("opencl")


@pytest.fixture(scope="module")
def session(backend, opencl_device):
    session = backend.open(opencl_device)
    yield session
    session.close()


@pytest.fixture(scope="module")
def pool(opencl_device, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pool")
    pool = BuildPool(
        "opencl", opencl_device, process_count=2, cache=ArtifactCache(folder / "cache"), scratch=folder / "scratch"
    )
    yield pool
    pool.close()


@pytest.fixture
def compiled(backend, opencl_device, tmp_path):
    def compile_(source, *entries, **fields):
        folder = tmp_path / f"artifact-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        return backend.compile(unit(source, *entries, **fields), opencl_device, folder)

    return compile_


def unit(source, *entries, file_name="kernel.cl", macros=(), **fields):
    return BuildUnit("opencl", source, file_name, tuple(macros), fields.pop("options", ()), entries, **fields)


def scalar(name, dtype, value):
    return ScalarArgument(name, dtype, np.asarray(value, dtype).tobytes())


def step(entry, *arguments, grid=(1, 1, 1), block=(1, 1, 1)):
    return PlanStep(entry, grid, block, 0, arguments)


def as_bytes(array):
    return np.ascontiguousarray(array).view(np.uint8).ravel()


def scale_step(*, block=64, count=N):
    arguments = (BufferArgument("x", 4 * count), BufferArgument("y", 4 * count), scalar("n", "int32", count))
    return step("scale", *arguments, grid=(math.ceil(count / block), 1, 1), block=(block, 1, 1))


def run_scale(session, artifact, *, offset_bytes=0, block=64):
    x = np.arange(N, dtype=np.float32)
    buffers = {name: session.allocate(4 * N + 2 * offset_bytes) for name in "xy"}
    session.fill(buffers["y"], b"\xcd", 4 * N + 2 * offset_bytes)
    session.upload(buffers["x"], as_bytes(x), offset_bytes)
    bound = {name: BoundBuffer(buffer, offset_bytes, 4 * N) for name, buffer in buffers.items()}
    elapsed_ms = session.time([BoundLaunch(session.load(artifact), scale_step(block=block), bound)])
    whole = np.empty(4 * N + 2 * offset_bytes, np.uint8)
    session.download(buffers["y"], whole)
    for buffer in buffers.values():
        session.free(buffer)
    y = whole[offset_bytes : offset_bytes + 4 * N].view(np.float32)
    guards = np.concatenate([whole[:offset_bytes], whole[offset_bytes + 4 * N :]])
    return x, y, guards, elapsed_ms


# ---- refusals of the compiler ----


def test_compile_error_names_the_users_line(compiled):
    source = "// one\n// two\n__kernel void k(__global int *x) {\n  x[0] = nothing;\n}\n"
    with pytest.raises(BuildFailed) as caught:
        compiled(source, "k", file_name="my kernel.cl", macros=[(f"M{i}", str(i)) for i in range(30)])
    assert caught.value.message.startswith("my kernel.cl:4:10: ")
    assert "'nothing'" in caught.value.message
    assert "'nothing'" in caught.value.log


def test_missing_entry_is_told_with_those_that_are_there(compiled):
    with pytest.raises(BuildFailed, match=r"'scala' is not among .*: scale"):
        compiled(SCALE, "scala")


def test_refused_option_is_named(compiled):
    with pytest.raises(BuildFailed, match="--no-such-option"):
        compiled(SCALE, "scale", options=("--no-such-option",))


def test_missing_header_is_a_build_failure_and_an_included_one_is_found(compiled, tmp_path):
    source = '#include "own.h"\n' + SCALE
    with pytest.raises(BuildFailed, match=r"own\.h"):
        compiled(source, "scale")
    (tmp_path / "own.h").write_text("#define FACTOR 3\n")
    assert compiled(source, "scale", include_paths=(tmp_path,))


# ---- values ----


def test_parameter_wins_over_the_sources_default(session, compiled):
    for macros, factor in ((), 1), ((("FACTOR", "(2 + 1)"),), 3):
        x, y, _, elapsed_ms = run_scale(session, compiled(SCALE, "scale", macros=macros))
        assert np.array_equal(y, factor * x)
        assert 0 < elapsed_ms < 1e4


def test_macro_values_with_quotes_blanks_and_line_breaks_arrive(session, compiled):
    macros = (("FACTOR", '((int)sizeof("a b")\n + 1)'),)
    x, y, _, _ = run_scale(session, compiled(SCALE, "scale", macros=macros))
    assert np.array_equal(y, 5 * x)


def test_bound_range_is_all_that_the_kernel_sees(session, compiled):
    x, y, guards, _ = run_scale(session, compiled(SCALE, "scale"), offset_bytes=4096)
    assert np.array_equal(y, x)
    assert np.all(guards == 0xCD)


SCALARS = (
    ("char", "int8", -7), ("uchar", "uint8", 200), ("short", "int16", -3000), ("ushort", "uint16", 60000),
    ("int", "int32", -(2**31)), ("uint", "uint32", 2**32 - 1), ("long", "int64", -(2**63)),
    ("ulong", "uint64", 2**64 - 1), ("float", "float32", 0.1), ("double", "float64", 0.1),
)  # fmt: skip


@pytest.mark.parametrize(("c_type", "dtype", "value"), SCALARS)
def test_scalars_of_every_width_arrive(session, compiled, c_type, dtype, value):
    source = f"__kernel void k(__global {c_type} *out, {c_type} value, __local {c_type} *l) {{ out[0] = value; }}"
    size = np.dtype(dtype).itemsize
    arguments = (BufferArgument("out", size), scalar("v", dtype, value), LocalArgument("l", 64))
    buffer = session.allocate(size)
    module = session.load(compiled(source, "k"))
    session.launch([BoundLaunch(module, step("k", *arguments), {"out": BoundBuffer(buffer, 0, size)})])
    out = np.empty(size, np.uint8)
    session.download(buffer, out)
    session.free(buffer)
    assert out.view(dtype)[0] == np.asarray(value, dtype)


def test_launches_run_in_order_on_blocks_and_threads(session, compiled):
    source = """
    __kernel void first(__global int *x) {
      int i = (get_group_id(2) * 2 + get_group_id(1)) * 3 + get_group_id(0);
      x[i * 8 + get_local_id(1) * 4 + get_local_id(0)] = 10;
    }
    __kernel void second(__global int *x) { x[get_global_id(0)] += get_global_id(0); }
    """
    count = 3 * 2 * 2 * 8
    artifact = compiled(source, "first", "second")
    argument = BufferArgument("x", 4 * count)
    steps = (
        step("first", argument, grid=(3, 2, 2), block=(4, 2, 1)),
        step("second", argument, grid=(count // 8, 1, 1), block=(8, 1, 1)),
    )
    module, buffer = session.load(artifact), session.allocate(4 * count)
    bound = {"x": BoundBuffer(buffer, 0, 4 * count)}
    elapsed_ms = session.time([BoundLaunch(module, each, bound) for each in steps])
    out = np.empty(4 * count, np.uint8)
    session.download(buffer, out)
    session.free(buffer)
    assert np.array_equal(out.view(np.int32), 10 + np.arange(count))
    assert elapsed_ms > 0


# ---- memory ----


@pytest.mark.parametrize("pattern", [b"\xcd", b"ab", b"abcd", b"abcdefgh", b"0123456789abcdef"])
@pytest.mark.parametrize(("byte_count", "offset_bytes"), [(64, 0), (61, 16), (1, 16), (33, 3), (15, 0)])
def test_fill_repeats_its_pattern_and_touches_nothing_else(session, pattern, byte_count, offset_bytes):
    buffer = session.allocate(128)
    session.upload(buffer, np.zeros(128, np.uint8))
    session.fill(buffer, pattern, byte_count, offset_bytes)
    out = np.empty(128, np.uint8)
    session.download(buffer, out)
    session.free(buffer)
    expected = bytes(offset_bytes) + (pattern * 128)[:byte_count]
    assert out.tobytes() == expected + bytes(128 - len(expected))


@pytest.mark.parametrize("byte_count", [5, 4096, (1 << 20) + 4096 * 3 + 7])
def test_copy_is_exact_at_every_size(session, byte_count):
    data = np.random.default_rng(1).integers(0, 256, byte_count + 100, dtype=np.uint8)
    source, target = session.allocate(data.size), session.allocate(data.size)
    session.upload(source, data)
    session.upload(target, np.zeros_like(data))
    session.copy(source, target, byte_count)
    out = np.empty_like(data)
    session.download(target, out)
    session.free(source)
    session.free(target)
    assert np.array_equal(out[:byte_count], data[:byte_count])
    assert not out[byte_count:].any()


def test_transfers_respect_offsets(session):
    buffer = session.allocate(64)
    session.upload(buffer, np.arange(64, dtype=np.uint8))
    session.upload(buffer, np.full(3, 99, np.uint8), 10)
    out = np.empty(5, np.uint8)
    session.download(buffer, out, 9)
    session.upload(buffer, np.empty(0, np.uint8))
    session.free(buffer)
    assert out.tolist() == [9, 99, 99, 99, 13]


def test_memory_of_a_cpu_is_where_it_is_said_to_be(session, opencl_device):
    if not get_backend("opencl").tells_addresses(opencl_device):
        pytest.skip("this device has memory of its own, or does not tell where")
    buffer = session.allocate(100_000)
    address = session.address_of(buffer)
    for value in (7, 9):
        session.upload(buffer, np.full(50_000, value, np.uint8), 50_000)
        with Path("/proc/self/mem").open("rb", buffering=0) as memory:
            memory.seek(address + 50_000)
            assert memory.read(50_000) == bytes([value]) * 50_000
        assert session.address_of(buffer) == address


def test_allocation_beyond_the_device_is_the_machines_failure(session):
    with pytest.raises(InfrastructureError, match="allocating"):
        session.allocate(1 << 45)


def test_flushing_the_cache_disturbs_no_buffer(session):
    buffer = session.allocate(1000)
    data = np.arange(1000, dtype=np.int64).astype(np.uint8)
    session.upload(buffer, data)
    for _ in range(3):
        session.flush_cache()
    out = np.empty(1000, np.uint8)
    session.download(buffer, out)
    session.free(buffer)
    assert np.array_equal(out, data)


def test_empty_launches_are_timed_and_on_a_cpu_the_arithmetic_of_whole_vectors(session, opencl_device):
    rates = session.measure_ceilings()
    assert 1 < rates.pop("launches_per_s") < 1e9
    assert rates.keys() == ({"vector_fp32_operations_per_s"} if opencl_device.kind == "cpu" else set())
    assert all(1e6 < each < 1e15 for each in rates.values())


def test_freed_buffers_leave_no_bound_kernel_behind(session, compiled):
    artifact = compiled(SCALE, "scale")
    for _ in range(3):
        run_scale(session, artifact, offset_bytes=1024)
    assert session._bound == {}


# ---- refusals of a launch ----


def refused(session, module, each, buffers):
    with pytest.raises(LaunchFailed) as caught:
        session.time([BoundLaunch(module, each, buffers)])
    return caught.value


def test_wrong_launches_are_refused_in_words_and_the_session_goes_on(session, compiled):
    artifact = compiled(SCALE, "scale")
    module, buffer = session.load(artifact), session.allocate(4 * N)
    bound = {name: BoundBuffer(buffer, 0, 4 * N) for name in "xy"}
    good = scale_step()
    huge = refused(session, module, step("scale", *good.arguments, block=(1 << 20, 1, 1)), bound)
    assert huge.reason in ("invalid-work-group-size", "invalid-work-item-size")
    assert "block (1048576, 1, 1)" in huge.message
    few = refused(session, module, step("scale", *good.arguments[:2]), bound)
    assert few.reason == "invalid-arguments"
    assert "takes 3 arguments, but is launched with 2: x, y" in few.message
    wide = refused(session, module, step("scale", *good.arguments[:2], scalar("n", "int64", 1)), bound)
    assert wide.reason == "invalid-arg-size"
    assert "argument 3 ('n') of 'scale', passed as 8 bytes of int64" in wide.message
    absent = refused(session, module, step("scala", *good.arguments), bound)
    assert absent.reason == "invalid-kernel-name"
    session.free(buffer)
    x, y, _, _ = run_scale(session, artifact)
    assert np.array_equal(x, y)


def test_block_other_than_the_required_one_is_refused(session, compiled):
    source = "__kernel __attribute__((reqd_work_group_size(8, 1, 1))) void k(__global int *x) { x[0] = 1; }"
    buffer = session.allocate(4)
    each = step("k", BufferArgument("x", 4), block=(4, 1, 1))
    error = refused(session, session.load(compiled(source, "k")), each, {"x": BoundBuffer(buffer, 0, 4)})
    session.free(buffer)
    assert error.reason == "invalid-work-group-size"


def test_too_much_local_memory_is_known_before_a_launch(compiled, opencl_device):
    limit = opencl_device.limits["shared_memory_per_block"]
    source = (
        f"__kernel void k(__global int *x) {{ __local int l[{limit // 4 + 1}]; l[get_local_id(0)] = 1;"
        " barrier(CLK_LOCAL_MEM_FENCE); x[0] = l[5]; }"
    )
    failure = check_resources(compiled(source, "k"), (), opencl_device)
    assert (failure.stage, failure.reason) == ("resources", "too-much-local-memory")


def test_resources_are_read_back(compiled, opencl_device):
    source = (
        "__kernel void k(__global int *x) { __local int l[100]; int i = get_local_id(0); l[i] = x[i];"
        " barrier(CLK_LOCAL_MEM_FENCE); x[i] = l[99 - i]; }"
    )
    figures = compiled(source, "k").resources["k"]
    assert figures["local_memory_bytes"] == 400
    assert figures["argument_count"] == 1
    assert figures["max_threads_per_block"] <= opencl_device.limits["max_threads_per_block"]


# ---- ahead of time ----


@pytest.fixture
def specialised(opencl_device, pool):
    if not is_pocl(opencl_device):
        pytest.skip("only PoCL compiles at the first launch")

    def specialise(source, entry, each, macros=()):
        built, _ = pool.submit(unit(source, entry, macros=macros), ((each,),)).result(timeout=300)
        assert not pool.warnings
        return built

    return specialise


def shared_objects(folder: Path) -> set[Path]:
    return set(folder.rglob("*.so"))


def test_specialised_artifact_compiles_nothing_at_its_first_launch(session, specialised):
    each = scale_step(block=32)
    artifact = specialised(SCALE, "scale", each, macros=(("UNIQUE", "specialised"),))
    assert len(shared_objects(artifact.folder)) == 1
    module = session.load(artifact)
    installed = shared_objects(pocl_cache())
    buffers = {name: session.allocate(4 * N) for name in "xy"}
    session.time([BoundLaunch(module, each, {name: BoundBuffer(buffers[name], 0, 4 * N) for name in "xy"})])
    assert shared_objects(pocl_cache()) == installed
    for buffer in buffers.values():
        session.free(buffer)


def test_machine_code_has_an_id_once_it_is_there_and_the_same_code_the_same_one(backend, opencl_device, specialised):
    plans = {block: [(scale_step(block=block),)] for block in (32, 64)}

    def told(block, *macros):
        artifact = specialised(SCALE, "scale", scale_step(block=32), macros=macros)
        return backend.with_launch_figures(artifact, plans[block], opencl_device).binary_id

    ids = [told(32, ("UNUSED", "1")), told(32, ("UNUSED", "2")), told(32, ("FACTOR", "2"))]
    assert ids[0] == ids[1] != ""
    assert ids[2] not in (ids[0], "")
    assert told(64) == ""


def test_large_grid_gets_its_own_variant(session, specialised):
    source = "__kernel void k(__global int *x) { if (get_global_id(0) == 65599) x[0] = 7; }"
    each = step("k", BufferArgument("x", 4), grid=(65600, 1, 1))
    artifact = specialised(source, "k", each)
    assert [path.parent.name for path in shared_objects(artifact.folder)] == ["1-1-1-goffs0"]
    module, buffer = session.load(artifact), session.allocate(4)
    installed = shared_objects(pocl_cache())
    session.time([BoundLaunch(module, each, {"x": BoundBuffer(buffer, 0, 4)})])
    out = np.empty(4, np.uint8)
    session.download(buffer, out)
    session.free(buffer)
    assert out.view(np.int32)[0] == 7
    assert shared_objects(pocl_cache()) == installed


def test_artifact_without_its_files_still_loads(session, compiled, opencl_device):
    if not is_pocl(opencl_device):
        pytest.skip("only PoCL builds from source when it loads")
    artifact = compiled(SCALE, "scale", macros=(("UNIQUE", "evicted"),))
    for path in artifact.folder.rglob("*.bc"):
        path.unlink()
    x, y, _, _ = run_scale(session, artifact)
    assert np.array_equal(x, y)


# ---- through the pool, and in a worker that may die ----


@pytest.fixture(scope="module")
def worker(opencl_device, tmp_path_factory):
    settings = WorkerSettings("device", "kernelwright.testing.fault_jobs:make_launcher", opencl_device)
    with WorkerProcess(settings, scratch=tmp_path_factory.mktemp("worker")) as worker:
        yield worker


def launch(pool, worker, source, *arguments, inputs=None, timeout_s=300.0, grid=(1, 1, 1), block=(1, 1, 1)):
    plan = (step("k", *arguments, grid=grid, block=block),)
    built, _ = pool.submit(unit(source, "k"), (plan,)).result(timeout=300)
    assert not isinstance(built, Failed), built
    return worker.call((built, plan, inputs or {}), timeout_s=timeout_s)


def good_launch(pool, worker):
    source = "__kernel void k(__global int *x) { x[get_global_id(0)] += 1; }"
    out = launch(pool, worker, source, BufferArgument("x", 64), grid=(4, 1, 1), block=(4, 1, 1))
    return out["x"] == np.ones(16, np.int32).tobytes()


def test_pool_and_worker_work_together(pool, worker):
    assert good_launch(pool, worker)


def test_pool_reports_the_compile_error_with_its_line(pool):
    built, _ = pool.submit(unit("\n\n__kernel void k() { oops; }", "k")).result(timeout=300)
    assert (built.stage, built.reason) == ("build", "compile-error")
    assert built.message.startswith("kernel.cl:3:")


@pytest.mark.parametrize(
    "body",
    ["x[1L << 45] = 1;", "*(__global int *)8 = 1;"],
    ids=["far out-of-bounds write", "null pointer"],
)
def test_kernel_that_crashes_costs_one_worker_and_is_no_build_failure(pool, worker, body):
    source = f"__kernel void k(__global int *x) {{ if (x[1] == 0) {{ {body} }} }}"
    with pytest.raises(WorkerDied) as caught:
        launch(pool, worker, source, BufferArgument("x", 64))
    assert caught.value.signal_name == "SIGSEGV"
    assert good_launch(pool, worker)


def test_kernel_that_never_ends_is_a_timeout(pool, worker):
    source = "__kernel void k(__global volatile int *x) { while (x[0] == 1) { x[1]++; } }"
    assert launch(pool, worker, source, BufferArgument("x", 8))
    endless = np.asarray([1, 0], np.int32).tobytes()
    with pytest.raises(JobTimeout):
        launch(pool, worker, source, BufferArgument("x", 8), inputs={"x": endless}, timeout_s=0.5)
    assert good_launch(pool, worker)


def test_artifact_is_small_to_send(pool):
    built, _ = pool.submit(unit(SCALE, "scale")).result(timeout=300)
    assert len(pickle.dumps(built)) < 4000


# ---- the probe ----


def test_device_description_is_complete(opencl_device):
    assert opencl_device.id.startswith("opencl:")
    for name in ("max_threads_per_block", "max_block_x", "shared_memory_per_block", "global_memory", "multiprocessors"):
        assert opencl_device.limits[name] > 0
    assert opencl_device.limits["warp_size"] >= 1
    assert opencl_device.shares_host_cores == (opencl_device.kind == "cpu")
    assert pickle.loads(pickle.dumps(opencl_device)) == opencl_device


def test_device_that_is_gone_is_told_with_what_is_there(backend, opencl_device):
    from dataclasses import replace

    with pytest.raises(InfrastructureError, match=r"'opencl:gone:gpu0' is not here any more; OpenCL offers: opencl:"):
        backend.open(replace(opencl_device, id="opencl:gone:gpu0"))

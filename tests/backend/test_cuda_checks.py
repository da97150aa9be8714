"""What the CUDA session draws and compares with: compiled without a device, launched on a driver that is played."""

from __future__ import annotations

import ctypes

import pytest

from kernelwright import knobs
from kernelwright.backend.base import BuildFailed, BuildUnit, DeviceInfo, KeyOrder
from kernelwright.backend.cuda.compile.build import compile_unit, read_resources
from kernelwright.backend.cuda.driver import find_nvcc, load_nvrtc
from kernelwright.backend.cuda.handles import JUNK, CudaModule, MemoryPool
from kernelwright.backend.cuda.session_kernels.checks import DeviceChecks
from kernelwright.backend.cuda.session_kernels.compiled import OPTIONS, helper_cubin, load_compiled
from kernelwright.backend.redraw import (
    CLOSE_ENTRY,
    REDRAW_ENTRY,
    VERIFY_ENTRY,
    Closeness,
    Redraw,
    close_source,
    close_values,
    draw_of,
    redraw_source,
    redraw_values,
)
from kernelwright.errors import InfrastructureError, MissingDependency
from kernelwright.testing.contracts_backend import FLOATS, REDRAWS

H100 = DeviceInfo("cuda", "cuda:0", "H100", "gpu", {"compute_capability": 90, "multiprocessors": 132})
UNKNOWN = DeviceInfo("cuda", "cuda:0", "?", "gpu", {})
HOW = Redraw("gather", 4)

needs_nvrtc = pytest.mark.skipif(load_nvrtc() is None, reason="needs NVRTC: pip install 'kernelwright[cuda]'")


class Driver:
    """Notes what is put on the stream; parameters as they are when a launch is made. The flag is what a test says."""

    def __init__(self, sizes=(), refused=()):
        self.sizes, self.refused = sizes, list(refused)
        self.calls, self.launches, self.unloaded, self.flag, self.next_address = [], [], [], 0, 4096

    def cuModuleLoadData(self, image):  # noqa: N802 - the driver's name, as all below
        if self.refused:
            return (self.refused.pop(0),)
        return 0, f"module of {len(image)} bytes"

    def cuModuleUnload(self, handle):  # noqa: N802
        self.unloaded.append(handle)
        return (0,)

    def cuModuleGetFunction(self, handle, name):  # noqa: N802
        return 0, name.decode()

    def cuLaunchKernel(self, function, blocks, *rest):  # noqa: N802
        assert rest[:6] == (1, 1, 256, 1, 1, 0)
        pointers = ctypes.cast(rest[7], ctypes.POINTER(ctypes.c_void_p))
        values = [ctypes.string_at(pointers[index], size) for index, size in enumerate(self.sizes)]
        self.launches.append((function, blocks, values))
        return (0,)

    def cuMemAlloc(self, byte_count):  # noqa: N802
        self.next_address += 4096
        return 0, self.next_address

    def cuMemFree(self, address):  # noqa: N802
        self.calls.append(("free", address))
        return (0,)

    def cuMemsetD8Async(self, address, value, count, stream):  # noqa: N802
        self.calls.append(("set", address, value, count, stream))
        return (0,)

    def cuMemsetD32Async(self, address, value, count, stream):  # noqa: N802
        self.flag = value
        self.calls.append(("clear", address, count))
        return (0,)

    def cuMemcpyDtoHAsync(self, target, source, count, stream):  # noqa: N802
        ctypes.memmove(target, self.flag.to_bytes(count, "little"), count)
        return (0,)

    def cuStreamSynchronize(self, stream):  # noqa: N802
        return (0,)


def checks(driver, device=H100):
    helpers = CudaModule(driver, b"helpers", {})
    return DeviceChecks(driver, "stream", helpers, MemoryPool(driver, "stream"), device)


# ---- no compiler, damaged files ----


def test_without_a_compiler_the_host_has_to_do_it():
    driver = Driver()
    found = checks(driver, UNKNOWN)
    draw = draw_of(1, "x", 5000, HOW)
    for _ in range(2):
        assert not found.redraw(0, 0, HOW, draw)
        assert not found.expect_redrawn(0, 0, HOW, draw)
        assert not found.expect_close(0, 0, 64, Closeness("float32", 0, 0))
    assert not driver.launches
    assert found.are_as_expected()
    with pytest.raises((MissingDependency, InfrastructureError)):
        helper_cubin(redraw_source("gather_8"), (f"{REDRAW_ENTRY}gather_8",), UNKNOWN)


@needs_nvrtc
def test_source_that_does_not_compile_is_not_kept():
    with pytest.raises(BuildFailed):
        helper_cubin("nonsense", ("nonsense",), H100)
    assert load_compiled(Driver(), "nonsense", ("nonsense",), H100) is None
    assert not list((knobs.cache_dir() / "cuda-helpers").glob("*nonsense*"))


@needs_nvrtc
def test_machine_code_that_the_driver_refuses_is_compiled_again_once(monkeypatch, tmp_path):
    monkeypatch.setenv("KERNELWRIGHT_CACHE_DIR", str(tmp_path))
    source, entries = redraw_source("permute_8"), (f"{REDRAW_ENTRY}permute_8",)
    whole = helper_cubin(source, entries, H100)
    (path,) = (tmp_path / "cuda-helpers").iterdir()
    path.write_bytes(b"torn")
    assert helper_cubin(source, entries, H100) == b"torn"
    module = load_compiled(Driver(refused=[200]), source, entries, H100)
    assert module is not None
    assert path.read_bytes() == whole
    assert load_compiled(Driver(refused=[200, 209]), source, entries, H100) is None


@needs_nvrtc
def test_a_cache_that_cannot_be_written_is_done_without(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("KERNELWRIGHT_CACHE_DIR", str(tmp_path / "file"))
    assert helper_cubin(close_source("float32"), (f"{CLOSE_ENTRY}float32",), H100)[:4] == b"\x7fELF"


# ---- launches ----


@needs_nvrtc
def test_each_launch_has_its_own_numbers():
    how = REDRAWS["integers_8"][3]
    draws = [draw_of(secret, "x", 5000, how) for secret in (1, 2)]
    driver = Driver([8, 8, 8, *map(len, redraw_values(how, draws[0]))])
    found = checks(driver)
    for draw in draws:
        assert found.redraw(1 << 40, 2 << 40, how, draw)
        assert found.expect_redrawn(3 << 40, 4 << 40, how, draw)
    entries = [REDRAW_ENTRY + how.entry, VERIFY_ENTRY + how.entry]
    assert [(entry, blocks) for entry, blocks, _ in driver.launches] == [(entry, 8 * 132) for entry in entries] * 2
    for index, (_, _, values) in enumerate(driver.launches):
        addresses = [int.from_bytes(value, "little") for value in values[:3]]
        assert addresses[:2] == ([1 << 40, 2 << 40] if index % 2 == 0 else [3 << 40, 4 << 40])
        assert tuple(values[3:]) == redraw_values(how, draws[index // 2])
    found.close()
    assert len(driver.unloaded) == 1


@needs_nvrtc
@pytest.mark.parametrize(("dtype", "count"), [("float16", 4000), ("float64", 1000)])
def test_limits_reach_the_kernel(dtype, count):
    limit = Closeness(dtype, 1e-3, 1e-5)
    values = close_values(limit, 8000)
    driver = Driver([8, 8, 8, *map(len, values)])
    assert checks(driver).expect_close(16, 32, 8000, limit)
    (entry, _, given) = driver.launches[0]
    assert entry == CLOSE_ENTRY + dtype
    assert int.from_bytes(given[3], "little") == count
    assert tuple(given[3:]) == values


def test_flag_is_cleared_once_for_all_that_is_expected_and_then_asked_for():
    driver = Driver([8] * 4)
    found = checks(driver)
    for flag in (0, 1, 0):
        found.expect_same(4096, 8192, 64)
        found.expect_same(4096, 8192, 32)
        driver.flag |= flag
        assert found.are_as_expected() == (flag == 0)
        assert found.are_as_expected(), "what was told is forgotten"
    assert [name for name, *_ in driver.calls] == ["clear"] * 3
    assert [int.from_bytes(values[2], "little") for *_, values in driver.launches] == [4, 2] * 3


def test_ranges_that_are_no_whole_words_are_compared_by_bytes():
    driver = Driver([8] * 9)
    found = checks(driver)
    found.expect_same(1, 2, 64)
    order = KeyOrder(4, 1 << 31, 1 << 31, (1 << 64) - 1)
    found.expect_within(64, 128, 192, 40, order)
    (by_bytes, _, first), (by_words, _, second) = driver.launches
    assert (by_bytes, by_words) == ("kernelwright_within_1", "kernelwright_within_4")
    assert [int.from_bytes(value, "little") for value in first[:4]] == [1, 2, 2, 64]
    assert [int.from_bytes(value, "little") for value in second[:4]] == [64, 128, 192, 10]


# ---- freed memory ----


def test_freed_memory_is_overwritten_before_the_next_one_gets_it():
    driver = Driver()
    pool = MemoryPool(driver, "stream")
    address = pool.take(1000)
    pool.give(address, 1000)
    assert driver.calls == [("set", address, JUNK, 1000, "stream")]
    assert pool.take(1000) == address
    pool.give(address, 1000)
    pool.close()
    assert driver.calls[-1] == ("free", address)
    count = len(driver.calls)
    pool.give(pool.take(5), 5)
    assert len(driver.calls) == count, "the stream is gone"


# ---- what is compiled ----


def _compiled(source, entries, compiler):
    unit = BuildUnit("cuda", source, "helpers.cu", (), (*OPTIONS, f"--compiler={compiler}"), entries)
    return compile_unit(unit, H100)


@needs_nvrtc
@pytest.mark.parametrize("entry", REDRAWS)
def test_a_multiprocessor_holds_all_threads_of_every_kernel(entry):
    entries = (REDRAW_ENTRY + entry, VERIFY_ENTRY + entry)
    done = _compiled(redraw_source(entry), entries, "nvrtc")
    assert all(done.names[each] == each for each in entries)
    resources = read_resources(done.log, done.names)
    assert all(resources[each]["registers_per_thread"] <= 32 for each in entries)


@needs_nvrtc
@pytest.mark.parametrize("dtype", FLOATS)
def test_close_results_are_compared_by_a_kernel_for_every_type(dtype):
    done = _compiled(close_source(dtype), (CLOSE_ENTRY + dtype,), "nvrtc")
    assert read_resources(done.log, done.names)[CLOSE_ENTRY + dtype]["registers_per_thread"] <= 32


@pytest.mark.skipif(find_nvcc() is None, reason="needs nvcc")
def test_nvcc_compiles_the_same():
    for source, entry in (
        (redraw_source("bounded_64"), f"{VERIFY_ENTRY}bounded_64"),
        (close_source("float16"), f"{CLOSE_ENTRY}float16"),
    ):
        assert _compiled(source, (entry,), "nvcc").names == {entry: entry}

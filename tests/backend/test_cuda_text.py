"""What the CUDA backend knows without a compiler, a driver or a device: options, logs, limits, error codes."""

from __future__ import annotations

import sys

import pytest

from kernelwright.backend.base import BuildFailed, BuildUnit, DeviceInfo, LaunchFailed, PlanStep
from kernelwright.backend.cuda.compile.build import first_error, read_resources, refusal
from kernelwright.backend.cuda.compile.options import parse_options
from kernelwright.backend.cuda.driver import ordinal_of, toolchain_id, why_unavailable
from kernelwright.backend.cuda.errors import DRIVER_ERRORS, DriverCallFailed, call, launch_error
from kernelwright.backend.cuda.occupancy import (
    MULTIPROCESSORS,
    blocks_per_multiprocessor,
    max_threads_per_block,
    multiprocessor_of,
    occupancy,
)
from kernelwright.backend.registry import BACKENDS, get_backend
from kernelwright.errors import InfrastructureError


def device(capability=90, **limits):
    return DeviceInfo("cuda", "cuda:0", "a device", "gpu", {"compute_capability": capability, **limits})


def unit(source="", *entries, options=()):
    return BuildUnit("cuda", source, "kernel.cu", (), tuple(options), entries or ("k",))


# ---- what is missing, in words ----


def test_missing_package_is_told_with_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name == "cuda" or name.startswith("cuda.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cuda", None)
    assert "pip install 'kernelwright[cuda]'" in why_unavailable()


def test_registry_knows_the_backend_and_imports_no_gpu_library():
    assert get_backend("cuda").languages == ("cuda", "triton")
    assert "cuda" in BACKENDS


@pytest.mark.parametrize("wrong", ["cuda", "cuda:", "cuda:x"])
def test_strange_device_id_is_refused(wrong):
    with pytest.raises(InfrastructureError, match="cuda:0"):
        ordinal_of(wrong)


# ---- errors ----


@pytest.mark.parametrize("code", [700, 710, 714, 715, 716, 717, 718, 719])
def test_errors_that_break_the_context_end_the_session(code):
    error = launch_error(DriverCallFailed(code, "CUDA_ERROR_X"), "launching 'k'")
    assert isinstance(error, InfrastructureError)
    assert DRIVER_ERRORS[code].name in str(error)


@pytest.mark.parametrize(
    ("code", "reason"), [(1, "invalid-value"), (701, "launch-out-of-resources"), (720, "cooperative-launch-too-large")]
)
def test_refused_launches_are_the_candidates_failure(code, reason):
    error = launch_error(DriverCallFailed(code, "CUDA_ERROR_X"), "launching 'k'")
    assert isinstance(error, LaunchFailed)
    assert error.reason == reason


def test_unknown_error_ends_the_session_under_its_own_name():
    error = launch_error(DriverCallFailed(4711, "CUDA_ERROR_NEW_THING"), "launching 'k'")
    assert isinstance(error, InfrastructureError)
    assert "NEW_THING" in str(error)


def test_call_unpacks_results_and_raises_codes():
    assert call((0,)) == ()
    assert call((0, 7)) == 7
    assert call((0, 7, 8)) == (7, 8)
    with pytest.raises(DriverCallFailed) as caught:
        call((700, 7))
    assert caught.value.code == 700


# ---- options ----


def test_device_decides_the_architecture():
    assert parse_options((), capability=90).arch == "sm_90"
    assert parse_options((), capability=120).arch == "sm_120"


@pytest.mark.parametrize(
    "options",
    [
        ("-arch=sm_90a",),
        ("-arch", "sm_90a"),
        ("--gpu-architecture=compute_90a",),
        ("-gencode=arch=compute_90a,code=sm_90a",),
        ("-gencode", "arch=compute_90a,code=sm_90a"),
    ],
)
def test_users_architecture_keeps_its_suffix(options):
    parsed = parse_options((*options, "-lineinfo"), capability=90)
    assert (parsed.arch, parsed.passed, parsed.notes) == ("sm_90a", ("-lineinfo",), ())


@pytest.mark.parametrize("option", ["-arch=sm_80", "-arch=sm_100a", "-gencode=arch=compute_80,code=sm_80"])
def test_architecture_of_another_device_is_replaced_and_noted(option):
    parsed = parse_options((option,), capability=90)
    assert parsed.arch == "sm_90"
    assert "sm_90" in parsed.notes[0]
    assert option in parsed.notes[0]


def test_native_architecture_is_no_surprise():
    parsed = parse_options(("-arch=native",), capability=90)
    assert (parsed.arch, parsed.notes) == ("sm_90", ())


def test_options_that_change_device_code_go_to_either_compiler():
    options = ("--use_fast_math", "-std=c++17", "-Xptxas=-O2", "-DN=1", "--maxrregcount=32", "-I/usr/include/mine")
    parsed = parse_options(options, capability=90)
    assert parsed.passed == options
    assert parsed.nvcc_only == ()


def test_host_options_are_kept_for_nvcc_only():
    parsed = parse_options(("-O3", "-Xcompiler", "-fPIC", "-ccbin=g++", "-lcudart", "-lineinfo"), capability=90)
    assert parsed.passed == ("-lineinfo",)
    assert parsed.nvcc_only == ("-O3", "-Xcompiler", "-fPIC", "-ccbin=g++", "-lcudart")


def test_compiler_is_chosen_by_option():
    assert parse_options((), capability=90).compiler is None
    assert parse_options(("--compiler=nvcc",), capability=90).compiler == "nvcc"
    with pytest.raises(BuildFailed, match="clang"):
        parse_options(("--compiler=clang",), capability=90)


# ---- compiler messages ----


def test_first_error_has_file_and_line_first():
    log = (
        'k.cu(7): warning #177-D: unused\n\nmy kernel.cu(3): error: identifier "nothing" is undefined\n   x[0]=nothing;'
    )
    assert first_error(log) == 'my kernel.cu:3: identifier "nothing" is undefined'


def test_first_error_of_other_tools():
    assert first_error("nvrtc: error: unrecognized option -v found\n") == "nvrtc: error: unrecognized option -v found"
    assert first_error("nvcc fatal   : Unknown option '--x'") == "nvcc fatal: Unknown option '--x'"
    assert first_error('k.cu(1): catastrophic error: cannot open source file "a.h"').startswith("k.cu:1: cannot")
    assert first_error("") == ""


def test_too_much_static_shared_memory_is_a_limit_not_a_compile_error():
    log = "ptxas error   : Entry function 'k' uses too much shared data (0xcb20 bytes, 0xc000 max)"
    error = refusal(unit(), log)
    assert error.limit == "too-much-local-memory"
    assert "52,000" in error.message
    assert "49,152" in error.message


def test_option_of_nvcc_is_told_with_the_way_out():
    error = refusal(unit(), "nvrtc: error: unrecognized option --expt-extended-lambda found")
    assert "--compiler=nvcc" in error.message
    assert error.limit == ""


def test_missing_entry_is_told_with_those_that_are_there():
    source = "__global__ void scale(float *x) {}"
    error = refusal(unit(source, "scala<4>"), 'kernel.cu(2): error: identifier "scala" is undefined')
    assert error.message == "the entry 'scala<4>' is not among the kernels of this source: scale"


# ---- read-back ----

LOG = """ptxas info    : 0 bytes gmem, 24 bytes cmem[4]
ptxas info    : Compiling entry function '_Z4siluILi8EEvPf' for 'sm_90'
ptxas info    : Function properties for _Z4siluILi8EEvPf
ptxas         .     608 bytes stack frame, 300 bytes spill stores, 304 bytes spill loads
ptxas info    : Used 255 registers, used 3 barriers, 608 bytes cumulative stack size, 5120 bytes smem, 380 bytes cmem[0]
ptxas info    : Compile time = 6.683 ms
ptxas info    : Compiling entry function 'plain' for 'sm_90'
ptxas info    : Function properties for helper
    16 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads
ptxas info    : Function properties for plain
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers
"""


def test_figures_are_read_for_each_entry():
    resources = read_resources(LOG, {"silu<8>": "_Z4siluILi8EEvPf", "plain": "plain", "gone": "gone"})
    assert resources["silu<8>"] == {
        "registers_per_thread": 255,
        "barriers": 3,
        "local_memory_bytes": 5120,
        "private_memory_bytes": 608,
        "spill_store_bytes": 300,
        "spill_load_bytes": 304,
        "spill_bytes": 604,
    }
    assert resources["plain"]["registers_per_thread"] == 10
    assert resources["plain"]["local_memory_bytes"] == 0
    assert resources["gone"] == {}


def test_called_functions_stack_is_not_the_entrys_own():
    figures = read_resources(LOG, {"plain": "plain"})["plain"]
    assert (figures["private_memory_bytes"], figures["spill_bytes"]) == (0, 0)


# ---- occupancy: blocks by NVIDIA's own cuda_occupancy.h (CUDA 13.5), which this must equal ----

GOLDEN = [
    # capability, threads, registers, shared bytes, blocks
    (75, 32, 16, 0, 16), (75, 128, 255, 0, 2), (75, 256, 64, 33000, 1), (75, 640, 56, 1024, 1),
    (75, 1024, 32, 49152, 1), (75, 1, 10, 0, 16), (80, 96, 40, 2000, 16), (80, 256, 32, 16384, 8),
    (80, 512, 128, 0, 1), (80, 1024, 65, 0, 0), (80, 100, 20, 0, 16), (86, 64, 24, 0, 16),
    (86, 160, 33, 5001, 9), (86, 384, 80, 100, 2), (86, 1024, 64, 0, 1), (86, 768, 40, 60048, 1),
    (90, 32, 16, 0, 32), (90, 64, 24, 0, 32), (90, 96, 40, 2000, 16), (90, 128, 255, 0, 2),
    (90, 160, 33, 5001, 9), (90, 256, 32, 16384, 8), (90, 256, 64, 33000, 4), (90, 384, 80, 100, 2),
    (90, 512, 128, 0, 1), (90, 640, 56, 1024, 1), (90, 1024, 64, 0, 1), (90, 1024, 65, 0, 0),
    (90, 1024, 32, 49152, 2), (90, 768, 40, 60048, 2), (90, 100, 20, 0, 16), (90, 1, 10, 0, 32),
    (120, 96, 40, 2000, 16), (120, 256, 32, 16384, 5), (120, 512, 128, 0, 1), (120, 1024, 65, 0, 0),
    (120, 100, 20, 0, 12),
]  # fmt: skip


@pytest.mark.parametrize(("capability", "threads", "registers", "shared", "blocks"), GOLDEN)
def test_blocks_per_multiprocessor_equal_nvidias_calculator(capability, threads, registers, shared, blocks):
    found = blocks_per_multiprocessor(
        MULTIPROCESSORS[capability], threads=threads, registers_per_thread=registers, shared_bytes=shared
    )
    assert found == blocks


def test_block_that_asks_for_more_shared_memory_than_there_is_does_not_run():
    h100 = MULTIPROCESSORS[90]
    for shared, blocks in ((227 * 1024, 1), (227 * 1024 + 1, 0)):
        assert blocks_per_multiprocessor(h100, threads=32, registers_per_thread=16, shared_bytes=shared) == blocks


@pytest.mark.parametrize(
    ("registers", "threads"), [(0, 1024), (32, 1024), (64, 1024), (65, 896), (128, 512), (255, 256)]
)
def test_registers_bound_the_block(registers, threads):
    h100 = MULTIPROCESSORS[90]
    assert max_threads_per_block(h100, registers_per_thread=registers) == threads
    if threads < 1024:
        too_many = blocks_per_multiprocessor(h100, threads=threads + 1, registers_per_thread=registers, shared_bytes=0)
        assert too_many == 0


def test_what_the_device_tells_wins_over_the_table():
    own = multiprocessor_of(device(90, shared_memory_per_multiprocessor=1000, max_threads_per_multiprocessor=640))
    assert (own.shared_bytes, own.max_warps) == (1000, 20)
    assert own.max_blocks == MULTIPROCESSORS[90].max_blocks


def test_unknown_capability_without_figures_gives_nothing():
    assert multiprocessor_of(device(999)) is None
    assert multiprocessor_of(device(90)) == MULTIPROCESSORS[90]


def test_occupancy_counts_whole_warps():
    assert occupancy(MULTIPROCESSORS[90], threads=33, blocks=32) == 1.0
    assert occupancy(MULTIPROCESSORS[90], threads=512, blocks=1) == 0.25


# ---- launch figures and identity ----


def plan(entry, *, threads, shared=0):
    return (PlanStep(entry, (1, 1, 1), (threads, 1, 1), shared, ()),)


def test_lowest_occupancy_of_all_launches_counts(tmp_path):
    from kernelwright.backend.base import Artifact

    figures = {"registers_per_thread": 32.0, "local_memory_bytes": 0.0}
    artifact = Artifact(unit(), "cuda:0", tmp_path, {"k": figures})
    backend = get_backend("cuda")
    plans = [plan("k", threads=256), plan("k", threads=256, shared=100_000), plan("other", threads=1)]
    found = backend.with_launch_figures(artifact, plans, device()).resources["k"]
    assert (found["occupancy"], found["blocks_per_multiprocessor"]) == (2 * 8 / 64, 2)
    assert "occupancy" not in artifact.resources["k"]
    assert backend.with_launch_figures(artifact, plans, device(999)) is artifact


def test_toolchain_id_changes_with_compiler_and_capability_and_not_with_the_driver():
    def made(capability=90, driver="1", **facts):
        limits = {"compute_capability": capability}
        return toolchain_id(DeviceInfo("cuda", "cuda:0", "d", "gpu", limits, driver=driver, facts=facts))

    assert made(nvrtc="13.0") == made(nvrtc="13.0", driver="2")
    assert len({made(), made(80), made(nvrtc="13.0"), made(nvrtc="13.1"), made(nvcc="13.1"), made(headers="1")}) == 6

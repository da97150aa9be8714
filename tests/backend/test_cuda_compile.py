"""Compiling CUDA C++ with the compiler that is here, for devices that need not be."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from kernelwright.backend.base import BuildFailed, BuildUnit, DeviceInfo, PlanStep
from kernelwright.backend.cuda.ceilings import PIPES
from kernelwright.backend.cuda.ceilings import SOURCE as CEILINGS
from kernelwright.backend.cuda.driver import find_nvcc, header_folders, load_nvrtc, nvrtc_version, toolchain_facts
from kernelwright.backend.cuda.errors import call
from kernelwright.backend.cuda.occupancy import MULTIPROCESSORS
from kernelwright.backend.registry import get_backend
from kernelwright.evaluate.builds.artifact_cache import ArtifactCache
from kernelwright.evaluate.builds.pool import BuildPool
from kernelwright.identity import content_id
from kernelwright.problem.load.problem import load_problem

EXAMPLES = Path(__file__).resolve().parents[2] / "src/kernelwright/examples" / "cuda"
H100 = DeviceInfo("cuda", "cuda:0", "H100", "gpu", {"compute_capability": 90, "shared_memory_per_block": 232448})

SCALE = """
#ifndef FACTOR
#define FACTOR 1
#endif
extern "C" __global__ void scale(const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = FACTOR * x[i];
}
"""
TEMPLATE = """
namespace mine {
template <typename T, int N> __global__ void many(T *x) {
  __shared__ T s[32 * N];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[(threadIdx.x + 1) % N];
}
}
__global__ void overloaded(float *x) { x[0] = 1; }
"""
SPILLS = """
extern "C" __global__ void heavy(float *x) {
  float a[128];
#pragma unroll
  for (int i = 0; i < 128; ++i) a[i] = x[i * 32 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 128; ++i) x[(127 - i) * 32 + threadIdx.x] = a[i] * a[(i * 7) % 128];
}
"""


@pytest.fixture(scope="module", params=["nvrtc", "nvcc"])
def compiler(request):
    """Each compiler; skips with the reason where it is not installed."""
    if request.param == "nvrtc" and load_nvrtc() is None:
        pytest.skip("needs NVRTC: pip install 'kernelwright[cuda]'")
    if request.param == "nvcc" and find_nvcc() is None:
        pytest.skip("needs nvcc: pip install nvidia-cuda-nvcc nvidia-nvvm, or a CUDA toolkit")
    return request.param


@pytest.fixture
def compiled(compiler, tmp_path):
    backend = get_backend("cuda")

    def compile_(source, *entries, device=H100, **fields):
        folder = tmp_path / f"artifact-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        return backend.compile(unit(compiler, source, *entries, **fields), device, folder)

    return compile_


def unit(compiler, source, *entries, file_name="kernel.cu", macros=(), options=(), **fields):
    return BuildUnit("cuda", source, file_name, tuple(macros), (f"--compiler={compiler}", *options), entries, **fields)


def cubin(artifact):
    return (artifact.folder / "unit.cubin").read_bytes()


# ---- refusals ----


def test_compile_error_names_the_users_line(compiled):
    source = 'extern "C" __global__ void k(int *x) {\n  // two\n  x[0] = nothing;\n}\n'
    with pytest.raises(BuildFailed) as caught:
        compiled(source, "k", file_name="my kernel.cu", macros=[(f"M{i}", str(i)) for i in range(30)])
    assert caught.value.message.startswith("my kernel.cu:3: ")
    assert '"nothing"' in caught.value.message
    assert '"nothing"' in caught.value.log
    assert caught.value.limit == ""


@pytest.mark.parametrize("entry", ["scala", "scala<4>", "mine::scala<float>"])
def test_missing_entry_is_told_with_those_that_are_there(compiled, entry):
    with pytest.raises(BuildFailed, match=r"is not among the kernels of this source: scale$"):
        compiled(SCALE, entry)


def test_unknown_option_is_refused_by_name(compiled):
    with pytest.raises(BuildFailed, match="--nonsense"):
        compiled(SCALE, "scale", options=["--nonsense"])


def test_too_much_static_shared_memory_is_a_limit(compiled):
    with pytest.raises(BuildFailed) as caught:
        compiled(TEMPLATE, "mine::many<float, 1000>")
    assert caught.value.limit == "too-much-local-memory"
    assert "128,000" in caught.value.message


def test_limit_is_known_from_the_cache_the_second_time(compiler, tmp_path):
    cache = ArtifactCache(tmp_path / "cache")
    pool = BuildPool("cuda", H100, process_count=1, cache=cache, scratch=tmp_path / "scratch")
    try:
        templated = unit(compiler, TEMPLATE, "mine::many<float, 1000>")
        (first, cost), (second, cost_again) = (pool.submit(templated).result(timeout=300) for _ in range(2))
    finally:
        pool.close()
    assert (first.stage, first.reason) == ("resources", "too-much-local-memory")
    assert second == first
    assert (cost.is_build_cached, cost_again.is_build_cached) == (False, True)


# ---- what comes out ----


def test_cubin_is_machine_code_for_the_device_and_no_device_is_needed(compiled):
    artifact = compiled(SCALE, "scale")
    assert cubin(artifact)[:4] == b"\x7fELF"
    assert "'sm_90'" in artifact.log
    assert json.loads((artifact.folder / "names.json").read_text()) == {"scale": "scale"}


def test_same_unit_gives_the_same_cubin_and_figures_again(compiled):
    first, second = (compiled(SCALE, "scale") for _ in range(2))
    assert content_id(cubin(first)) == content_id(cubin(second))
    assert first.resources == second.resources
    assert first.resources["scale"]["registers_per_thread"] > 0


@pytest.mark.few(2)
@pytest.mark.parametrize("capability", [75, 80, 90, 120])
def test_kernels_that_measure_ceilings_are_compiled_without_spills(compiled, capability):
    pipes = [pipe for pipe in PIPES if capability >= pipe.least_capability]
    device = replace(H100, limits={"compute_capability": capability})
    entries = ["empty", "copy1", "copy4", "read4", "write4", "cached", *(pipe.entry for pipe in pipes)]
    artifact = compiled(CEILINGS, *entries, device=device)
    assert all(artifact.resources[entry]["spill_bytes"] == 0 for entry in entries)


def test_macros_that_change_no_code_give_the_same_binary_and_the_cache_keeps_that(compiler, tmp_path):
    source = SCALE.replace("FACTOR * x[i]", "(FACTOR > 4 ? 2 : 3) * x[i]")
    pool = BuildPool(
        "cuda", H100, process_count=1, cache=ArtifactCache(tmp_path / "cache"), scratch=tmp_path / "scratch"
    )
    try:
        ids = {}
        for _ in range(2):
            for factor in ("1", "2", "7"):
                scaled = unit(compiler, source, "scale", macros=[("FACTOR", factor)])
                artifact, _ = pool.submit(scaled).result(timeout=300)
                assert ids.setdefault(factor, artifact.binary_id) == artifact.binary_id != ""
    finally:
        pool.close()
    assert ids["1"] == ids["2"] != ids["7"]


@pytest.mark.few(1)
def test_every_device_of_the_table_that_the_compiler_knows_is_compiled_for(compiled, compiler):
    nvrtc = load_nvrtc()
    known = set(call(nvrtc.nvrtcGetSupportedArchs())) if nvrtc else {75, 80, 86, 89, 90, 100, 120}
    for capability in sorted(known & MULTIPROCESSORS.keys()):
        artifact = compiled(SCALE, "scale", device=replace(H100, limits={"compute_capability": capability}))
        assert f"'sm_{capability}'" in artifact.log


def test_architecture_of_the_users_options_keeps_its_suffix(compiled):
    assert "'sm_90a'" in compiled(SCALE, "scale", options=["-gencode", "arch=compute_90a,code=sm_90a"]).log


def test_macros_and_options_reach_the_compiler(compiled):
    source = 'extern "C" __global__ void k(float *x) { x[0] = expf(x[1] * FACTOR) / x[2]; }'
    plain = cubin(compiled(source, "k", macros=[("FACTOR", "3")]))
    assert plain != cubin(compiled(source, "k", macros=[("FACTOR", "4")]))
    assert plain != cubin(compiled(source, "k", macros=[("FACTOR", "3")], options=["--use_fast_math"]))
    host_only = cubin(compiled(source, "k", macros=[("FACTOR", "3")], options=["-O3", "-Xcompiler", "-fPIC"]))
    assert len(host_only) == len(plain)


def test_templates_are_entries_also_with_macros_in_their_name(compiled):
    entries = ("mine::many<float, 4>", "mine::many<int, COUNT * 2>", "overloaded")
    artifact = compiled(TEMPLATE, *entries, macros=[("COUNT", "4")])
    names = json.loads((artifact.folder / "names.json").read_text())
    assert names["mine::many<int, COUNT * 2>"] == "_ZN4mine4manyIiLi8EEEvPT_"
    assert names["overloaded"] == "_Z10overloadedPf"
    assert [artifact.resources[entry]["local_memory_bytes"] for entry in entries] == [512, 1024, 0]


def test_registers_spills_stack_and_barriers_are_read_back(compiled):
    roomy = compiled(SPILLS, "heavy").resources["heavy"]
    tight = compiled(SPILLS, "heavy", options=["--maxrregcount=32"]).resources["heavy"]
    assert roomy["spill_bytes"] == 0
    assert roomy["registers_per_thread"] > 64
    assert roomy["barriers"] == 1
    assert tight["registers_per_thread"] <= 32
    assert tight["spill_bytes"] == tight["spill_store_bytes"] + tight["spill_load_bytes"] > 0
    assert tight["private_memory_bytes"] > 0
    assert roomy["max_threads_per_block"] < tight["max_threads_per_block"] == 1024


def test_headers_of_the_toolkit_are_found(compiled):
    if not header_folders():
        pytest.skip("needs CUDA's headers: pip install 'kernelwright[cuda]'")
    source = (
        "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include <cuda/std/limits>\n"
        'extern "C" __global__ void k(half *x) { x[0] = __float2half(cuda::std::numeric_limits<float>::max()); }'
    )
    assert compiled(source, "k").resources["k"]["registers_per_thread"] > 0


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("include", "expression"),
    [
        ("", "INFINITY - NAN + HUGE_VALF"),
        ("#include <cuda_fp16.h>", "(int64_t)x[0] + (int8_t)1"),
        ("#include <cuda_fp16.h>\ntypedef unsigned char uint8_t;", "(uint8_t)x[0]"),
        ("#include <math.h>\n#include <stdint.h>", "M_PI * (uint32_t)x[0] + INFINITY"),
        ("#include <cmath>\n#include <cstdint>", "sqrtf((std::int64_t)x[0] & INT64_MAX)"),
        ("#include <cfloat>\n#include <climits>\n#include <cstddef>", "FLT_MAX + INT_MAX + sizeof(std::size_t)"),
        (
            "#include <limits>\n#include <type_traits>",
            "std::numeric_limits<std::conditional_t<1, float, int>>::infinity()",
        ),
        (
            "#include <type_traits>",
            "sizeof(std::common_type_t<int, const float &>) + sizeof(std::aligned_storage<12, 16>::type)",
        ),
        ("#include <algorithm>\n#include <utility>", "std::max(x[0], (float)(uint)1)"),
        ("#include <cuda_runtime.h>\n#include <stdio.h>\n#include <cassert>", "(assert(x[0] > 0), 1)"),
        ("#include <cuda/std/cstdint>\n#include <cstdint>\n#include <cuda/std/limits>", "(int64_t)x[0]"),
    ],
)
def test_what_nvcc_takes_from_the_host_is_there_with_nvrtc_too(compiled, include, expression):
    """Kernels written for nvcc say INFINITY without an include, and include the C library's headers."""
    source = f'{include}\nextern "C" __global__ void k(float *x) {{ x[0] = {expression}; }}'
    assert cubin(compiled(source, "k"))


def test_header_that_only_the_host_has_is_left_to_nvcc(tmp_path):
    """Without a word: NVRTC has no host, nvcc reads its headers."""
    if load_nvrtc() is None or find_nvcc() is None:
        pytest.skip("needs both NVRTC and nvcc")
    source = '#include <vector>\nextern "C" __global__ void k(float *x) { x[0] = 1; }'
    wanted = BuildUnit("cuda", source, "k.cu", (), (), ("k",))
    assert cubin(get_backend("cuda").compile(wanted, H100, tmp_path))


def test_own_headers_are_found(compiled, tmp_path):
    folder = tmp_path / "my headers"
    folder.mkdir()
    (folder / "factor.h").write_text("#define FACTOR 2\n")
    artifact = compiled('#include "factor.h"\n' + SCALE, "scale", include_paths=(folder,))
    assert artifact.resources["scale"]["registers_per_thread"] > 0


def test_launch_figures_come_with_every_build_cached_or_not(compiler, tmp_path):
    cache = ArtifactCache(tmp_path / "cache")
    pool = BuildPool("cuda", H100, process_count=1, cache=cache, scratch=tmp_path / "scratch")

    def occupancy(threads):
        plan = (PlanStep("scale", (1, 1, 1), (threads, 1, 1), 0, ()),)
        built, cost = pool.submit(unit(compiler, SCALE, "scale"), (plan,)).result(timeout=300)
        return cost.is_build_cached, built.resources["scale"]["occupancy"]

    try:
        assert occupancy(1024) == (False, 1.0)
        assert occupancy(32) == (True, 0.5)
        assert occupancy(1024) == (True, 1.0)
    finally:
        pool.close()


def test_toolchain_facts_name_what_is_here(compiler):
    facts = toolchain_facts()
    assert facts[compiler][0].isdigit()
    if compiler == "nvrtc":
        assert facts["nvrtc"] == "{}.{}".format(*nvrtc_version())


# ---- examples ----


@pytest.mark.few(6)
@pytest.mark.parametrize("name", sorted(path.parent.name for path in EXAMPLES.glob("*/problem.toml")))
def test_examples_compile_as_they_stand(compiled, name):
    folder = EXAMPLES / name
    entry = tomllib.loads((folder / "problem.toml").read_text())["entry"]
    for source in (folder / "baseline.cu", folder / f"{name}.cu"):
        figures = compiled(source.read_text(), entry, file_name=source.name).resources[entry]
        assert figures["registers_per_thread"] > 0
        assert figures["spill_bytes"] == 0


@pytest.mark.parametrize("file", sorted(str(path.relative_to(EXAMPLES)) for path in EXAMPLES.glob("*/*.toml")))
def test_examples_load(file):
    assert load_problem(EXAMPLES / file).kernel.language == "cuda"

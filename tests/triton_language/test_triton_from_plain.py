"""A plain map in CUDA or OpenCL comes back as Triton, which computes what it computed; what has no words is refused."""

from __future__ import annotations

import re

import pytest

from kernelwright.cli.commands.infer import KernelWords
from kernelwright.cli.commands.init import run_init
from kernelwright.errors import UsageError
from kernelwright.problem.load.problem import load_problem
from kernelwright.template.load import load_baseline, load_reference_kernel, load_template
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.untimed.interpret import interpret

SAXPY = """
__global__ void saxpy(const float *x, float *y, int n, float a) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""
GELU = """
#include <cuda_fp16.h>
extern "C" __global__ void gelu(const __half *in, __half *out, const float *scale, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = __half2float(in[i]) * scale[0];
    float inner = 0.7978845608f * (v + 0.044715f * v * v * v);
    if (v > 2.0f && i % 3 == 1) {
        v = v / 2;
    } else {
        inner -= 0.25f;
    }
    out[i] = __float2half(0.5f * v * (1.0f + tanhf(inner)));
}
"""
CLAMP = """
__kernel void clamp_rows(__global const float *x, __global const int *lambda, __global int *y, int rows, int cols) {
    size_t i = get_global_id(0);
    if (i < (size_t)rows * cols) {
        int row = i / cols;
        float v = x[i] < 0.0f ? -x[i] : fmin(x[i], 3.0f);
        y[i] = (int)(v * 10.0f) + lambda[row] * 2 - (row & 1);
    }
}
"""
SHIFT = """
__global__ void shift(const float *x, float *y, unsigned int n) {
    for (unsigned int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        auto last = n - 1;
        float best = 0.0f;
        if (i > 0 && x[i - 1] > 0) best = x[i - 1];
        y[i] = (i < last ? x[i + 1] : x[0]) - best + (x[i] > 0.5f) * 2;
    }
}
"""
ADD_BIAS = """
__global__ void add_bias(const float *x, const float *bias, float *y, int rows, int cols) {
    int row = blockIdx.y, col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols) return;
    float own = bias[row];
    y[row * cols + col] = x[row * cols + col] + own;
}
"""
PLANES = """
__kernel void planes(__global const float *x, __global float *y, int w, int h) {
    int c = get_global_id(0), r = get_global_id(1);
    if (c < w && r < h) y[r * w + c] = r > 0 ? x[r * w + c] - x[(r - 1) * w + c] : x[c];
}
"""
REFERENCES = {
    "add_bias": "return (x.reshape(-1, 59) + bias.reshape(-1, 1)).reshape(x.shape)",
    "planes": "rows = x.reshape(-1, 59)\n    return np.diff(rows, axis=0, prepend=0).reshape(x.shape)",
    "shift": (
        "before = np.where(np.arange(x.size) > 0, np.roll(x, 1), 0)\n"
        "    return np.roll(x, -1) - np.maximum(before, 0) + 2 * (x > 0.5)"
    ),
    "saxpy": "return a * x + y",
    "gelu": (
        "v = scale[0] * in_\n    inner = 0.7978845608 * (v + 0.044715 * v**3)\n"
        "    is_cut = (v > 2) & (np.arange(v.size) % 3 == 1)\n    inner = np.where(is_cut, inner, inner - 0.25)\n"
        "    return 0.5 * np.where(is_cut, v / 2, v) * (1 + np.tanh(inner))"
    ),
    "clamp_rows": (
        "rows = np.arange(x.size).reshape(x.shape) // COLS\n    v = np.where(x < 0, -x, np.minimum(x, 3))\n"
        "    return (v.astype(np.float32) * np.float32(10)).astype(int) + lambda_.reshape(-1)[rows] * 2 - (rows & 1)"
    ),
}


def written(tmp_path, text, *, suffix=".cu", words=("n=1003",), **more):
    file = tmp_path / f"plain{suffix}"
    file.write_text(text)
    run_init(KernelWords(file, tuple(words), out=tmp_path / "problem", triton=True, **more), is_forced=True)
    return tmp_path / "problem"


def checked(folder, reference):
    """How many of some configurations are right by a reference in NumPy, without the baseline, which needs a GPU."""
    toml = (folder / "problem.toml").read_text()
    toml = re.sub(r"\[baseline\]\n.*\n", "", re.sub(r"reference = .*", 'reference = "numpy_one.py:one"', toml))
    names = load_problem(folder).arguments
    taken = [each.name for each in names if each.role in ("input", "inout")]
    body = reference
    for name in ("in", "lambda"):
        if name in taken:
            toml = re.sub(rf"^{name} ", f"{name}_ ", toml, flags=re.MULTILINE)
    taken = [f"{each}_" if each in ("in", "lambda") else each for each in taken]
    scalars = ", a" if "a * x" in body else ""
    (folder / "numpy_one.py").write_text(
        f"import numpy as np\n\nCOLS = 59\n\n\ndef one({', '.join(taken)}{scalars}):\n    {body}\n"
    )
    (folder / "problem.toml").write_text(toml)
    return interpret(folder, settings=TuneSettings(budget=Budget(evaluations=3), build_processes=1, data_seed=1))


@pytest.mark.parametrize(
    ("text", "suffix", "words"),
    [
        (SAXPY, ".cu", ("n=1003", "a=0.5")),
        (GELU, ".cu", ("n=1003",)),
        (CLAMP, ".cl", ("rows=17", "cols=59")),
        (SHIFT, ".cu", ("n=1003",)),
        (ADD_BIAS, ".cu", ("rows=17", "cols=59")),
        (PLANES, ".cl", ("w=59", "h=17")),
    ],
)
def test_a_map_in_triton_computes_what_it_computed(tmp_path, text, suffix, words):
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    folder = written(tmp_path, text, suffix=suffix, words=words)
    found = checked(folder, REFERENCES[load_problem(folder).kernel.entry])
    assert len(found.passed) == 3


def test_the_plain_kernel_is_the_baseline(tmp_path):
    folder = written(tmp_path, SAXPY, words=("n=1003", "a=0.5"))
    problem = load_problem(folder)
    template = load_template(problem)
    baseline = load_baseline(problem, template)
    assert template.language == "triton"
    assert {each.name for each in template.parameters} == {"BLOCK", "num_warps"}
    assert template.steps[0].grid[0].text == "ceil_div(n, BLOCK)"
    assert baseline.template.language == "cuda"
    reference = load_reference_kernel(problem)
    assert reference.template.steps[0].grid == baseline.template.steps[0].grid
    assert len(baseline.template.steps[0].block) == 1


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("y[i] = a", "for (int k = 9; k > 3; --k) y[i] = a", "loop counts"),
        ("a * x[i]", "hypotf(a, x[i])", "hypotf has no words"),
        ("y[i] = a * x[i] + y[i]", "{ y[i] = x[i]; if (y[i] > a) return; y[i] = a; }", "returns from inside a branch"),
        ("if (i < n)", "__shared__ float s[2]; s[0] = a; if (i < n)", "share s"),
    ],
)
def test_what_has_no_words_in_triton_is_told_and_nothing_is_written(tmp_path, old, new, reason):
    assert old in SAXPY
    with pytest.raises(UsageError, match=f"does not become Triton: .*{reason}"):
        written(tmp_path, SAXPY.replace(old, new), words=("n=1003", "a=0.5"), grid="(n + 255) // 256", block="256")
    assert not (tmp_path / "problem").exists()


def test_other_sources_are_refused(tmp_path):
    (tmp_path / "module.py").write_text("x = 1\n")
    with pytest.raises(UsageError, match="--triton is for a plain"):
        run_init(KernelWords(tmp_path / "module.py", triton=True), is_forced=False)


PROGRAM = """
#include <cstdlib>
#define N 1003
__global__ void scaled(const float *x, float *y, int n, float a) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i];
}
__global__ void differences(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = i > 0 ? x[i] - x[i - 1] : x[i];
}
int main() {
    float *x, *y, *z, *out;
    float *first = (float *)malloc(N * sizeof(float));
    for (int i = 0; i < N; ++i) first[i] = rand() / 1000.0f;
    cudaMalloc(&x, N * sizeof(float));
    cudaMalloc(&y, N * sizeof(float));
    cudaMalloc(&z, N * sizeof(float));
    cudaMalloc(&out, N * sizeof(float));
    cudaMemcpy(x, first, N * sizeof(float), cudaMemcpyHostToDevice);
    scaled<<<(N + 255) / 256, 256>>>(x, y, N, 0.5f);
    differences<<<(N + 127) / 128, 128>>>(y, z, N);
    scaled<<<(N + 255) / 256, 256>>>(z, out, N, 3.0f);
    cudaMemcpy(first, out, N * sizeof(float), cudaMemcpyDeviceToHost);
}
"""


def program(tmp_path, text):
    source = tmp_path / "program"
    source.mkdir()
    (source / "main.cu").write_text(text)
    said = KernelWords(source, (), out=tmp_path / "problem", triton=True)
    run_init(said, is_forced=True, suite="hecbench")
    return tmp_path / "problem"


def test_several_launches_of_a_program_become_triton_in_one_file(tmp_path):
    problem = load_problem(program(tmp_path, PROGRAM))
    template = load_template(problem)
    assert [each.entry for each in template.steps] == ["scaled", "differences", "scaled"]
    assert {each.name for each in template.parameters} == {"BLOCK_1", "BLOCK_2", "num_warps"}
    grids = [each.grid[0].text for each in template.steps]
    assert grids == ["ceil_div(N, BLOCK_1)", "ceil_div(N, BLOCK_2)", "ceil_div(N, BLOCK_1)"]
    baseline = load_baseline(problem, template)
    assert [each.arguments for each in baseline.template.steps] == [each.arguments for each in template.steps]


def test_several_launches_in_triton_compute_what_they_computed(tmp_path):
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    folder = program(tmp_path, PROGRAM)
    right = "y = 0.5 * x\n    y_2 = np.diff(y, prepend=0)\n    return y, y_2, 3 * y_2"
    assert len(checked(folder, right).passed) == 3


@pytest.mark.parametrize("name", ["store", "load", "mask"])
def test_a_kernel_of_several_texts_may_have_the_name_of_a_word_of_triton(tmp_path, name):
    text = PROGRAM.replace("scaled", name).replace("int main() {", "#define M 501\nint main() {")
    text = text.replace("(N + 255) / 256, 256>>>(z, out, N, 3", "(M + 255) / 256, 256>>>(z, out, M, 3")
    problem = load_problem(program(tmp_path, text))
    assert [each.entry for each in load_template(problem).steps] == [f"{name}_1", "differences", f"{name}_3"]
    (kernels,) = (tmp_path / "problem").glob("*.py")
    words = kernels.read_text()
    assert words.count(f"def {name}_") == 2
    assert re.findall(rf"\.{name}_\d|\b{name}_\d=", words) == []


def test_a_program_of_which_one_kernel_has_no_words_is_told(tmp_path):
    text = PROGRAM.replace("y[i] = i > 0 ? x[i] - x[i - 1] : x[i]", "y[i] = hypotf(x[i], 1)")
    assert text != PROGRAM
    with pytest.raises(UsageError, match=r"does not become Triton: differences: .*hypotf has no words"):
        program(tmp_path, text)
    assert not (tmp_path / "problem").exists()


TRANSPOSED = """
__global__ void transposed(const float *x, float *y, int rows, int cols) {
    __shared__ float tile[16][17];
    int c = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 16 + threadIdx.y;
    if (c < cols && r < rows) tile[threadIdx.y][threadIdx.x] = x[r * cols + c];
    __syncthreads();
    c = blockIdx.y * 16 + threadIdx.x;
    r = blockIdx.x * 16 + threadIdx.y;
    if (c < rows && r < cols) y[r * rows + c] = tile[threadIdx.x][threadIdx.y];
}
"""
HALO = """
__global__ void halo(const float *x, float *y, int n) {
    __shared__ float part[66];
    int i = blockIdx.x * 64 + threadIdx.x;
    part[threadIdx.x + 1] = i < n ? x[i] : 0.0f;
    if (threadIdx.x == 0) part[0] = i > 0 ? x[i - 1] : 0.0f;
    if (threadIdx.x == 63) part[65] = i + 1 < n ? x[i + 1] : 0.0f;
    __syncthreads();
    if (i < n) y[i] = part[threadIdx.x] + part[threadIdx.x + 1] + part[threadIdx.x + 2];
}
"""
STAGED = {
    "transposed": (TRANSPOSED, ("rows=33", "cols=59"), "4,3", "16,16", "return x.T.copy()"),
    "halo": (HALO, ("n=1003",), "16", "64", "around = np.pad(x, 1)\n    return around[:-2] + x + around[2:]"),
}


@pytest.mark.parametrize("name", STAGED)
def test_what_threads_only_stage_in_shared_memory_becomes_triton(tmp_path, name):
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    text, words, grid, block, right = STAGED[name]
    folder = written(tmp_path, text, words=words, grid=grid, block=block)
    assert len(checked(folder, right).passed) == 3


def test_a_read_that_may_find_what_nobody_staged_is_no_triton(tmp_path):
    text = TRANSPOSED.replace("= tile[threadIdx.x][threadIdx.y]", "= tile[threadIdx.x][threadIdx.y + 1]")
    assert text != TRANSPOSED
    with pytest.raises(UsageError, match="tile is not filled where it is read"):
        written(tmp_path, text, words=("rows=33", "cols=59"), grid="4,3", block="16,16")
    assert not (tmp_path / "problem").exists()

"""Whole programs of benchmark suites as problems: kernels in order, sizes and values from the host's code."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kernelwright.errors import SpecError
from kernelwright.infer.inference import Given, infer
from kernelwright.infer.model import Inferred
from kernelwright.infer.problem_files import check_loads, files_of
from kernelwright.infer.program import infer_program
from kernelwright.infer.text.host import divided
from kernelwright.infer.text.host_program import HostProgram
from kernelwright.infer.text.host_text import read_host, run_words
from kernelwright.infer.words import read_words
from kernelwright.problem.expressions.expression import Expression
from short_command import COMMAND

SCALE_H = """
#if !defined(SMALL)
#define STANDARD
#endif
#ifdef SMALL
#define ROWS 64
#endif
#ifdef STANDARD
#define ROWS 4096
#define COLS 2048
#endif
#define LOCAL_X 32
#define LOCAL_Y 8
"""
SCALE_C = """
#include <stdio.h>
#include "scale.h"
cl_kernel first, second;
cl_mem a_mem, sums_mem;
void init(float *factor) { *factor = 2.5; /* read where it is passed */ }
void make(cl_program program) {
  first = clCreateKernel(program, "scale", NULL);
  second = clCreateKernel(program, "add_rows", NULL);
}
void launch(int rows, float factor) {
  size_t local[2], global[2];
  int step, cols = COLS;
  local[0] = LOCAL_X; local[1] = LOCAL_Y;
  global[0] = (size_t)ceil(((float)COLS) / ((float)LOCAL_X)) * LOCAL_X;
  global[1] = (size_t)ceil(((float)ROWS) / ((float)LOCAL_Y)) * LOCAL_Y;
  for (step = 1; step < 5; step++) {
    clSetKernelArg(first, 0, sizeof(cl_mem), (void *)&a_mem);
    clSetKernelArg(first, 1, sizeof(float), &factor);
    clSetKernelArg(first, 2, sizeof(int), &rows);
    clSetKernelArg(first, 3, sizeof(int), &cols);
    clSetKernelArg(first, 4, sizeof(int), &step);
    clEnqueueNDRangeKernel(queue, first, 2, NULL, global, local, 0, NULL, NULL);
  }
  local[0] = 64;
  global[0] = (size_t)ceil((float)rows / 64.0) * 64;
  clSetKernelArg(second, 0, sizeof(cl_mem), &a_mem);
  clSetKernelArg(second, 1, sizeof(cl_mem), &sums_mem);
  clSetKernelArg(second, 2, sizeof(int), &rows);
  clSetKernelArg(second, 3, sizeof(int), &cols);
  clEnqueueNDRangeKernel(queue, second, 1, NULL, global, local, 0, NULL, NULL);
}
int main(void) {
  int rows = ROWS;
  float factor;
  init(&factor);
  launch(rows, factor);
  return 0;
}
"""
SCALE_CL = """
typedef float real;
__kernel void scale(__global real *a, real factor, int rows, int cols, int step) {
  int j = get_global_id(0), i = get_global_id(1);
  if (i < rows && j < cols) a[i * cols + j] *= factor + step;
}
__kernel void add_rows(__global real *m, __global real *sums, int n, int width) {
  int i = get_global_id(0), j;
  if (i < n) { sums[i] = 0; for (j = 0; j < width; j++) sums[i] += m[i * width + j]; }
}
"""
SQUARES_CU = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#define BLOCK 128
double started;
double now();
template <typename T> T twice(T x) { return x + x; }
template <typename T>
__global__ void squares(const T *x, T *y, const int n, const T scale) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * x[i] * scale * (T)M_PI;
}
using real = float;
int main(int argc, char *argv[]) {
  if (argc != 3) { printf("usage (n) (repeat"); return 1; }
  const int n = atoi(argv[1]);
  const int repeat = atoi(argv[2]);
  real *d_x, *d_y;
  dim3 grid(1, 1, 1), block(BLOCK);
  grid.x = (n + block.x - 1) / block.x;
  for (int i = 0; i < repeat; i++) squares<real><<<grid, block>>>(d_x, d_y, n, 0.5f);
  printf("PASS");
}
"""


def _program(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_kernels_of_a_program_become_launches_of_one_problem(tmp_path: Path) -> None:
    folder = _program(tmp_path, scale__c=SCALE_C, scale__h=SCALE_H, scale__cl=SCALE_CL)
    found = infer_program(folder, (".cl", ".cu"))
    check_loads(found.file, found.entry, files_of(found)[0])
    first, second = found.launches
    assert (first.entry, first.grid, first.block) == ("scale", ("ceil_div(COLS, 32)", "ceil_div(ROWS, 8)"), ("32", "8"))
    assert (second.entry, second.grid, second.block) == ("add_rows", ("ceil_div(ROWS, 64)",), ("64",))
    assert first.arguments == ("a", "factor", "rows", "cols", "step")
    assert second.arguments == ("a", "sums", "n", "width")
    known = {each.name: each for each in found.arguments}
    assert known["a"].role == "inout"
    assert known["a"].shape == ("ROWS", "COLS")
    assert (known["factor"].value, known["rows"].value, known["step"].value) == ("2.5", "ROWS", "1")
    assert dict(found.sizes) == {"ROWS": 2048, "COLS": 1024}
    assert found.guessed_sizes == {"ROWS", "COLS"}
    assert "the first round" in found.notes[0]


def test_a_cuda_program_is_read_with_its_instance_and_the_words_of_its_makefile(tmp_path: Path) -> None:
    folder = _program(tmp_path, main__cu=SQUARES_CU, Makefile="run: main\n\t./$(program) 1000 10\n")
    found = infer_program(folder, (".cu",))
    files = files_of(found)[0]
    check_loads(found.file, found.entry, files)
    text = files["main.cu"].decode()
    assert dict(found.sizes) == {"n": 1000}
    assert (found.launches[0].grid, found.launches[0].block) == (("ceil_div(n, 128)",), ("128",))
    assert {each.name: each.value for each in found.arguments if each.role == "scalar"} == {"n_2": "n", "scale": "0.5"}
    for gone in ("main(", "unistd", "double now", "started", "twice", "template"):
        assert gone not in text
    assert "#define M_PI" in text


REFUSED = (
    ("no launch", {"a.cl": SCALE_CL, "a.c": "int main() { return 0; }"}, "a.c: main launches none of the kernels"),
    ("two files with kernels", {"a.cl": SCALE_CL, "b.cl": SCALE_CL, "a.c": SCALE_C},
     "has not one kernel source: a.cl, b.cl"),
    ("no main", {"a.cl": SCALE_CL}, "has not one file with a main function: none"),
    ("a grid that is not read",
     {"a.cl": SCALE_CL, "a.h": "#define COLS choose(4)\n", "a.c": SCALE_C.replace("scale.h", "a.h")},
     "a.c:23: how a kernel is launched here is not read"),
    ("a structure", {"a.cu": SQUARES_CU.replace("const T scale", "const thing scale"), "Makefile": "\t./a 10 2\n"},
     "a.cu:10: parameter 'scale' of 'squares' is `thing`"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "files", "message"), REFUSED, ids=[each[0] for each in REFUSED])
def test_what_cannot_be_read_says_where(name: str, files: dict[str, str], message: str, tmp_path: Path) -> None:
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    with pytest.raises(SpecError) as caught:
        infer_program(tmp_path, (".cl", ".cu"))
    assert message in str(caught.value), name


STYLES_CU = """
#define N 4096
dim3 outside (N / 256, 1, 1);
template <typename T>
__global__ void shift(const T *from, T *to, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) to[i] = from[i] + 1;
}
__global__ void add(const float *a, float *b, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) b[i] += a[i];
}
template <typename T, int THREADS>
void run(int count) {
  T *temp[2];
  int n;
  if ((n = count) <= 0) return;
  shift<<<(n + THREADS - 1) / THREADS, THREADS>>>(temp[0], temp[1], n);
}
int main(int argc, char **argv) {
  float *x, *y;
  int sizes[] = {64, 128};
  run<float, 256>(atoi(argv[1]));
  for (int block : sizes)
    for (int n = 1024; n <= 65536; n = n * 2) add<<<n / block, block>>>(x, y, n);
  add<<<outside, 256>>>(x, y, N);
}
"""


def test_launches_of_several_styles_are_read(tmp_path: Path) -> None:
    folder = _program(tmp_path, main__cu=STYLES_CU, Makefile="run: main\n\t./$(program) 5000\n")
    host = HostProgram(read_host(folder / "main.cu"), run_words(folder))
    shift, in_loops, last = host.launches({"shift": 3, "add": 3})
    assert (shift.instance, shift.grid, shift.block) == ("float", ("ceil_div(count, THREADS)",), ("THREADS",))
    assert shift.actuals == ("temp_0", "temp_1", "count")
    assert (host.sizes["count"], host.sizes["THREADS"]) == (5000, 256)
    assert (in_loops.grid, in_loops.block, in_loops.actuals[2]) == (("1024 // 64",), ("64",), "1024")
    assert (last.grid, last.block) == (("N // 256",), ("256",))


PARTS_CUH = """
#include <chrono>
using namespace std::chrono;
struct Params {
  int threads, rows;
  Params(int argc, char **argv) {
    threads = 128;
    rows = 300;
    while (getopt(argc, argv, "t:") >= 0) threads = atoi(optarg);
  }
};
int cols = 5;
constexpr int parts(int n, int m) { return (n + m - 1) / m; }
template <typename T>
struct Pair { T first, second; };
"""
KERNELS_CU = """
#include "parts.cuh"
#define LAUNCH(K, T, N) K<T, N><<<blocks, p->threads, N * sizeof(T)>>>
template <typename T, int N>
__global__ void gather(const T *from, T *to, const int *places, int rows, int cols) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < rows) to[i] = std::max(from[i * places[i] % cols], T(N));
}
void run(const float *from, float *to, int *places, std::vector<float> &host, const Params *p, bool odd) {
  static const int WIDE = 2;
  int cols = host.size();
  int blocks = parts(p->rows, p->threads);
  LAUNCH(gather, float, WIDE * (1 << (WIDE + 1)))(odd ? from : to, odd ? to : from, places, p->rows, cols & 0x1ff0);
}
"""
PARTS_MAIN_CPP = """
#include <cuda_runtime.h>
#include "parts.cuh"
template <typename T> T *made(size_t count) { T *array; cudaMalloc(&array, count * sizeof(T)); return array; }
int main(int argc, char **argv) {
  float *a, *b;
  int *places;
  Params p(argc, argv);
  std::vector<float> host(4097);
  cudaMalloc((void **)&a, p.rows * 32 * sizeof(float));
  cudaMalloc((void **)&b, sizeof(float) * p.rows);
  cudaMallocManaged(&places, 4 * p.rows);
  run(a, b, places, host, &p, false);
}
"""


def test_a_program_in_several_files_is_read_with_the_sizes_of_its_allocations(tmp_path: Path) -> None:
    folder = _program(tmp_path, parts__cuh=PARTS_CUH, kernels__cu=KERNELS_CU, main__cpp=PARTS_MAIN_CPP)
    found = infer_program(folder, (".cu",))
    files = files_of(found)[0]
    check_loads(found.file, found.entry, files)
    known = {each.name: each for each in found.arguments}
    assert found.file.name == "kernels.cu"
    assert (found.launches[0].grid, found.launches[0].block) == (("((ceil_div(rows, 128)))",), ("128",))
    assert found.launches[0].shared_bytes == "64"
    assert dict(found.sizes)["rows"] == 300
    assert (known["from_"].role, known["from_"].shape, known["from_"].note) == ("input", ("rows * 32",), "")
    assert known["to"].shape == ("rows",)
    assert known["cols"].value == "4096"
    text = files["kernels.cu"].decode()
    assert "T(" not in text.partition("__global__")[2]
    for gone in ("Params", "chrono", "int cols = 5", "Pair"):
        assert gone not in text
    assert text.startswith("#include <algorithm>")


def test_what_a_launch_passes_twice_is_two_arrays(tmp_path: Path) -> None:
    source = SQUARES_CU.replace("(d_x, d_y, n, 0.5f)", "(d_y + n, d_y, n, 0.5f)")
    folder = _program(tmp_path, main__cu=source, Makefile="run: main\n\t./$(program) 1000 10\n")
    found = infer_program(folder, (".cu",))
    check_loads(found.file, found.entry, files_of(found)[0])
    assert found.launches[0].arguments[:2] == ("x", "y")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return wide(n, m);", "wide"),
        ("while (n > m) n /= 2; return n;", "wide"),
        ("return n - (m & unknown);", "unknown"),
    ],
    ids=["a function that calls itself", "a function with a loop", "bits that are not known"],
)
def test_functions_of_the_host_that_are_not_followed_are_told(body: str, message: str, tmp_path: Path) -> None:
    source = STYLES_CU.replace("int main", f"int wide(int n, int m) {{ {body} }}\nint main").replace(
        "<<<outside, 256>>>", "<<<wide(N, 256), 256>>>"
    )
    host = HostProgram(read_host(_program(tmp_path, main__cu=source) / "main.cu"), ("5000",))
    with pytest.raises(SpecError, match="how a kernel is launched here is not read") as caught:
        list(host.launches({"shift": 3, "add": 3}))
    assert message in caught.value.message


MEMBERS = """
#include <cstdlib>
struct Sizes { int n; };
__global__ void twice(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i];
}
int main() {
    Sizes p, q;
    int n = 7000;
    SET
    float *x, *y;
    cudaMalloc(&x, 3000 * sizeof(float));
    cudaMalloc(&y, 3000 * sizeof(float));
    twice<<<(q.n + 255) / 256, 256>>>(x, y, q.n);
    return n;
}
"""


def test_a_member_is_no_variable_of_its_name(tmp_path: Path) -> None:
    found = infer_program(_program(tmp_path, main__cu=MEMBERS.replace("SET", "q.n = 3000;")), (".cu",))
    (scalar,) = (each for each in found.arguments if each.role == "scalar")
    assert scalar.value == "3000"


@pytest.mark.parametrize("text", ["p.n = 1000; q.n = 3000;", "q.n = 1500; q.n *= 2;", "q.n = 3000; q.n = q.n / 2;"])
def test_members_with_several_values_are_not_read(text: str, tmp_path: Path) -> None:
    folder = _program(tmp_path, main__cu=MEMBERS.replace("SET", text))
    with pytest.raises(SpecError):
        infer_program(folder, (".cu",))


def test_programs_for_gpus_are_larger_than_those_for_any_device(tmp_path: Path) -> None:
    source = SQUARES_CU.replace("atoi(argv[1])", "67108864")
    folder = _program(tmp_path, main__cu=source, Makefile="run: main\n\t./$(program) 1000 10\n")
    found = infer_program(folder, (".cu",))
    assert 1 << 26 < found.array_bytes <= 1 << 27


@pytest.mark.parametrize(
    ("total", "part", "expected"),
    [
        ("(n + 3) * 4", "4", "n + 3"), ("4 * n * m", "4", "n * m"), ("((n * 2) * 4)", "4", "n * 2"),
        ("n + 3 * 4", "4", "ceil_div(n + 3 * 4, 4)"), ("4 * n // m", "4", "ceil_div(4 * n // m, 4)"),
        ("(n if m > 2 else k * 4)", "4", "ceil_div(n if m > 2 else k * 4, 4)"),
        ("4 * n if m > 2 else k", "4", "ceil_div(4 * n if m > 2 else k, 4)"),
        ("(n if m > 2 else k) * 4", "4", "n if m > 2 else k"),
    ],
)  # fmt: skip
def test_a_factor_is_left_out_of_products_only(total: str, part: str, expected: str) -> None:
    assert divided(total, part) == expected


def _init(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, "init", str(folder), *words], capture_output=True, text=True, check=False)


def test_the_command_writes_the_problem_and_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    folder = _program(tmp_path, scale__c=SCALE_C, scale__h=SCALE_H, scale__cl=SCALE_CL)
    done = _init(folder, "--from", "polybench", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "[[launch]]" in (tmp_path / "out" / "problem.toml").read_text()
    for words in (("--from", "polybensh"), ("n=3", "--from", "polybench")):
        refused = _init(folder, *words)
        assert refused.returncode == 2
        assert "Traceback" not in refused.stderr


ENUM_CU = """
typedef enum { PLAIN, TWICE = 2 } kind_t;
extern "C" int announced(int);
extern "C" __global__ void scaled(float *x, int n, kind_t kind) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= kind == TWICE ? 2.f : 1.f;
}
int main() {
  float *x;
  int n = 1 << 26, block = 256;
  scaled<<<(n + block - 1) / block, block>>>(x, n, TWICE);
}
"""


def test_an_enumeration_is_an_integer_and_a_block_keeps_its_size(tmp_path: Path) -> None:
    source = ENUM_CU.replace("1 << 26", "67108864").replace("(x, n, TWICE)", "(x, n + block, TWICE)")
    found = infer_program(_program(tmp_path, main__cu=source), (".cu",))
    files = files_of(found)[0]
    check_loads(found.file, found.entry, files)
    known = {each.name: each for each in found.arguments}
    assert known["kind"].dtype.name == "int32"
    assert (found.launches[0].block, found.sizes["n"]) == (("256",), 1 << 24)
    assert b"announced" not in files["main.cu"]


COUNTED = """
#define WARPS 6
#define THREADS (WARPS * 32)
__global__ void count(unsigned *bins, float *sums, const unsigned char *data, int n) {
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS) {
    atomicAdd(&bins[data[i]], 1u);
    sums[i] = 0.5f * sums[i] + 1.0f;
  }
}
void run(unsigned *b, float *s, unsigned char *d, int n) { count<<<24, THREADS>>>(b, s, d, n); }
int main() {
  int n = 100000;
  unsigned *bins; float *sums; unsigned char *data;
  cudaMalloc(&bins, 256 * sizeof(unsigned));
  BEFORE
  cudaMemset(sums, 0, n * sizeof(float));
  run(bins, sums, data, n);
  cudaMemset(bins, 0, 4);
}
"""


@pytest.mark.parametrize(
    ("before", "is_zeroed"),
    [
        ("", False),
        ("cudaMemset(bins, 0, 256 * sizeof(unsigned));", True),
        ("cudaMemset(bins, 255, 256 * sizeof(unsigned));", False),
        ("cudaMemset(bins, 0, 1024); cudaMemcpy(bins, old, 1024, cudaMemcpyHostToDevice);", False),
    ],
)
def test_what_is_only_added_to_starts_at_zero_where_the_host_sets_it_so(
    before: str, is_zeroed: bool, tmp_path: Path
) -> None:
    (tmp_path / "main.cu").write_text(COUNTED.replace("BEFORE", before))
    found = infer_program(tmp_path, (".cu",))
    assert found.launches[0].block == ("192",)
    lines = files_of(found)[0]["problem.toml"].decode().splitlines()
    own = {line.split()[0]: "value = 0 }" in line for line in lines if "shape = " in line}
    assert own == {"bins": is_zeroed, "sums": False, "data": False}, "what is read starts anywhere, so reading shows"
    check_loads(found.file, found.entry, files_of(found)[0])


@pytest.mark.parametrize(
    ("main", "is_zeroed"),
    [
        ("ZERO for (int r = 0; r < 5; r++) { run(bins, sums, data, n); }", False),
        ("ZERO for (int r = 0; r < 5; r++) run(bins, sums, data, n);", False),
        ("for (int r = 0; r < 5; r++) { ZERO run(bins, sums, data, n); }", True),
        ("ZERO for (int r = 0; r < 5; r++) { } run(bins, sums, data, n);", True),
        ("for (int r = 0; r < 5; r++) { ZERO while (go) { run(bins, sums, data, n); } }", False),
        ("ZERO for (int r = 0; r < 5; r++) { zeroed(bins, sums, data, n); }", True),
    ],
)
def test_rounds_of_a_loop_that_sets_nothing_to_zero_add_to_what_the_round_before_left(
    main: str, is_zeroed: bool, tmp_path: Path
) -> None:
    """Else a candidate that stores where it should add would be right, and wrong in the program."""
    zero = "cudaMemset(bins, 0, 256 * sizeof(unsigned));"
    more = "void zeroed(unsigned *b, float *s, unsigned char *d, int n) { cudaMemset(b, 0, 1024); run(b, s, d, n); }\n"
    text = COUNTED.replace("BEFORE", "").replace("int main", more + "int main")
    (tmp_path / "main.cu").write_text(text.replace("  run(bins, sums, data, n);", main.replace("ZERO", zero)))
    found = infer_program(tmp_path, (".cu",))
    assert next(each for each in found.arguments if each.name == "bins").values == ("zeros" if is_zeroed else "random")


def test_one_kernel_of_a_file_starts_from_what_the_host_of_that_file_zeroes(tmp_path: Path) -> None:
    source = COUNTED.replace("{ count<<<", "{ cudaMemset(b, 0, 1024); count<<<").replace("BEFORE", "")
    (tmp_path / "count.cu").write_text(source)
    found = infer(tmp_path / "count.cu", Given(read_words(["n=1000"])))
    assert found.questions == ()
    assert (found.launch.grid, found.launch.block) == (("24",), ("192",))
    assert {each.name: each.values for each in found.arguments if each.shape} == {
        "bins": "zeros", "sums": "random", "data": "random"
    }  # fmt: skip
    said = infer(tmp_path / "count.cu", Given(read_words(["n=1000", "bins=5..9"])))
    assert next(each for each in said.arguments if each.name == "bins").values == "random"


COMPUTED_CU = """
#include <fstream>
typedef struct { int rows, cols; float unit; } Shape;
struct Fixed { int rows = 1024; int cols = rows; };
FUNCTION
void store(int *n) { *n = 7; }
int shown(const int *n) { return *n; }
__global__ void twice(float *x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = 2.0f * x[i];
}
int main(int argc, char *argv[]) {
  float *x;
  std::ifstream file(argv[1]);
  cudaDeviceProp props;
  BEFORE
  cudaMalloc(&x, n * sizeof(float));
  twice<<<(n + 255) / 256, 256>>>(x, n);
}
"""


def _computed(folder: Path, before: str, function: str = "") -> Inferred:
    (folder / "main.cu").write_text(COMPUTED_CU.replace("BEFORE", before).replace("FUNCTION", function))
    return infer_program(folder, (".cu",))


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("int n = 1000; n *= 2;", 2000),
        ("int n = 1000; n = n + 24;", 1024),
        ("int n = 1000; n++; ++n;", 1002),
        ("int n = 1000; if (n % 64) n += 64 - n % 64;", 1024),
        ("int n = 1000; if (n % 8 != 0) { n = n + 8 - n % 8; }", 1000),
        ("int n = 1000; if (n < 500) n = n * 2;", 1000),
        ("int b = 64, n = 1000; if (n % b != 0) n = (n / b + 1) * b;", 1024),
        ("int n = 1000; for (int i = 0; i < 5; i++) { x[i] = n; }", 1000),
        ("int n = 1000; printf(text, &n); shown(&n);", 1000),
        ("Shape s = {20, 50, 1.5f}; int n = s.rows * s.cols;", 1000),
        ("Fixed s; int n = s.rows;", 1024),
        ("int dims[2]; dims[0] = 500; dims[1] = 2; int n = dims[0] * dims[1];", 1000),
        ("int dims[] = {300, 600}; for (int i = 0; i < 2; i++) { int n = dims[i]; }\\n int n = dims[1];", 600),
        ("int n; cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, 0); n = n * props.warpSize;", 4096),
    ],
)
def test_what_several_statements_compute_is_computed(before: str, expected: int, tmp_path: Path) -> None:
    found = _computed(tmp_path, before)
    sizes = dict(found.sizes)
    assert Expression.parse(found.arguments[1].value).evaluate(sizes) == expected
    assert Expression.parse(found.launches[0].grid[0]).evaluate(sizes) == -(-expected // 256)
    assert Expression.parse(found.arguments[0].shape[0]).evaluate(sizes) == expected
    check_loads(found.file, found.entry, files_of(found)[0])


@pytest.mark.parametrize(
    "before",
    [
        "int n = 1000; for (int i = 0; i < 5; i++) { n *= 2; }",
        "int n = 1000; while (n % 64) n++;",
        "int n = 0; for (int i = 0; i < 5; i++) if (keep(i)) n++;",
        "int n = 1000; if (argc > 2) n = 5; else n *= 2;",
        "int n = 1000; store(&n);",
        "int n = 1000; unknown(&n);",
        "int n = 1000; int m = x[n++];",
        "int dims[2]; for (int i = 0; i < 2; i++) dims[i] = 500; int n = dims[0];",
        "int dims[2] = {500, 2}; if (argc > 2) dims[0] = 5; int n = dims[0];",
        "int dims[2] = {500, 2}; if (argc > 2) { dims[1] = 7; dims[0] = 5; } int n = dims[0];",
        "int dims[2] = {500, 2}; dims[0]++; int n = dims[0];",
        "int dims[2] = {500, 2}; --dims[1]; int n = dims[0];",
        "Shape s = {20, 50, 1.5f}; s.rows = 5; s.rows = 6; int n = s.rows;",
    ],
)
def test_what_loops_branches_and_calls_change_is_not_taken_for_what_it_was(before: str, tmp_path: Path) -> None:
    """Else arrays and launch are those of another program, without a word."""
    with pytest.raises(SpecError, match="is not read"):
        _computed(tmp_path, before)


def test_a_count_that_is_read_from_a_file_is_a_guess_and_told(tmp_path: Path) -> None:
    for before in ("int n = 0; file >> n;", 'int n; fscanf(data, "%d", &n);'):
        found = _computed(tmp_path, before)
        assert (dict(found.sizes), found.guessed_sizes) == ({"n": 65536}, frozenset({"n"}))
        assert "n is read from a file: 65536 is a guess" in found.notes
        assert b"n = 65536  # guess" in files_of(found)[0]["problem.toml"]
    assert _computed(tmp_path, "int n; file >> n; n = 500;").guessed_sizes == frozenset()


def test_a_function_that_asks_what_to_return_is_followed(tmp_path: Path) -> None:
    function = "int parts(int n, int d) { if (n % d == 0) return n / d; return n / d + 1; }"
    found = _computed(tmp_path, "int n = 100 * parts(1000, 64);", function)
    assert Expression.parse(found.arguments[1].value).evaluate(dict(found.sizes)) == 1600
    source = (tmp_path / "main.cu").read_text().replace("<<<(n + 255) / 256,", "<<<parts(n, 256),")
    (tmp_path / "main.cu").write_text(source)
    assert "ceil_div(" in infer_program(tmp_path, (".cu",)).launches[0].grid[0]


def test_what_a_function_makes_of_its_argument_counts(tmp_path: Path) -> None:
    found = _computed(tmp_path, "run(x, 1000); return 0; int n = 5;", "__global__ void twice(float *x, int n);\nCALLED")
    assert found.sizes
    source = (tmp_path / "main.cu").read_text()
    for statement, expected in (("n = (n + 63) / 64 * 64;", 1024), ("n += 24;", 1024), ("for (;;) n *= 2;", None)):
        called = f"void run(float *x, int n) {{ {statement} twice<<<(n + 255) / 256, 256>>>(x, n); }}"
        (tmp_path / "main.cu").write_text(source.replace("CALLED", called))
        if expected is None:
            with pytest.raises(SpecError, match="is not read"):
                infer_program(tmp_path, (".cu",))
        else:
            found = infer_program(tmp_path, (".cu",))
            value = Expression.parse(found.arguments[1].value)
            assert value.evaluate(dict(found.sizes)) == expected


def test_a_rounding_function_that_is_not_there_rounds_the_larger_number(tmp_path: Path) -> None:
    for call in ("round_up(1000, 64)", "shrRoundUp(64, 1000)"):
        found = _computed(tmp_path, f"int n = {call};")
        assert Expression.parse(found.arguments[1].value).evaluate(dict(found.sizes)) == 1024

"""A row softmax whose parameter MODE selects what goes wrong. Tests tune it and look at what was recorded."""

from __future__ import annotations

from pathlib import Path

KERNEL = r"""// /// kernelwright
// [parameters.MODE]
// values = [@MODES@]
// default = "slow"
// why = "which fault"
// [constraints]
// lines = "MODE != 'pruned'"
// [[launch]]
// entry = "softmax"
// grid = ["rows // (0 if MODE == 'divides_by_zero' else 16)"]
// block = ["1048576 if MODE == 'block_too_large' else 16"]
// [[launch]]
// entry = "remember"
// grid = ["1"]
// block = ["1"]
// arguments = ["memory"]
// [scratch]
// memory = { dtype = "int32", shape = ["4"] }
// ///
@ENUM@
#ifndef MODE
#define MODE slow
#endif
#define IS(mode) (MODE == mode##_)
// One row for each work-item.

#if MODE == broken_directive_
#error this configuration is not implemented
#endif

#if MODE >= takes_limits_ && MODE <= babbles_
// Linux's system calls on x86-64: a kernel of a CPU device has its worker's rights.
static long call_system(long number, long first, const void *second, long third)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(first), "S"(second), "d"(third)
                     : "rcx", "r11", "memory");
    return result;
}
#define SETRLIMIT 160
#define CLOSE 3
#define WRITE 1
#endif

#if MODE == wrong_group_size_
__attribute__((reqd_work_group_size(8, 1, 1)))
#endif
__kernel void softmax(__global const float *x, __global float *y, int cols, __global int *memory)
{
    __local float left_behind[16]; // by the launch before, where nothing clears it
    int row = get_global_id(0), item = get_local_id(0);
    __global const float *in = x + row * cols;
    __global float *out = y + row * cols;
#if MODE == compile_error_
    out[0] = undeclared_name;
#elif MODE == undefined_function_
    extern float not_there(float);
    out[0] = not_there(1.0f);
#elif MODE == too_much_local_memory_
    __local float tile[64 * 1024 * 1024];
    tile[get_local_id(0) * 4096] = in[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    out[0] = tile[4096];
#elif MODE == hangs_
    volatile int running = row == 0; // one is enough to wait for, and leaves other cores their work
    while (running) { }
#elif MODE == hangs_later_
    if (memory[0] == 123456) { volatile int running = row == 0; while (running) { } }
#elif MODE == segfaults_
    y[(long)1 << 44] = 1.0f;
#elif MODE == barrier_diverges_
    if (get_local_id(0) % 2) barrier(CLK_LOCAL_MEM_FENCE);
#elif MODE == writes_after_
    y[get_global_size(0) * cols + 3] = 1.0f;
#elif MODE == writes_before_
    y[-2] = 1.0f;
#elif MODE == writes_scratch_
    memory[5] = 1;
#elif MODE == changes_input_
    ((__global float *)x)[row * cols] = 0.5f;
#elif MODE == hostile_crash_
    if (fabs(in[0]) > 30.0f) y[(long)1 << 44] = 1.0f;
#elif MODE == takes_files_
    if (row == 0) for (int file = 3; file < 256; file++) call_system(CLOSE, file, 0, 0);
#elif MODE == takes_all_files_
    if (row == 0) for (int file = 0; file < 256; file++) call_system(CLOSE, file, 0, 0);
#elif MODE == babbles_
    const char none[] = "R\4\0\0\0\0\0\0\0\200\5N."; // a frame with a pickle
    if (row == 0) for (int file = 3; file < 256; file++) call_system(WRITE, file, none, sizeof(none) - 1);
#elif MODE == endless_print_
    for (int k = 0; k < 100; k++) printf("row %d says %d\n", row, k);
#endif

    float largest = -INFINITY, total = 0.0f;
    for (int k = 0; k < cols; k++) largest = fmax(largest, in[k]);
    for (int k = 0; k < cols; k++) total += exp(in[k] - largest);
#if MODE == overflows_
    if (largest > 11.0f) total = INFINITY; // as exponentials in float16 would, without the maximum
#endif
#if MODE == slow_
    for (int repeat = 0; repeat < 200; repeat++) {
        volatile float again = 0.0f;
        for (int k = 0; k < cols; k++) again += exp(in[k] - largest);
    }
#elif MODE == is_nan_
    if (row == 7) total = NAN;
#elif MODE == is_infinite_
    if (row == 7) total = 0.0f;
#elif MODE == is_wrong_
    total *= 1.01f;
#elif MODE == uninitialised_
    total += left_behind[item];
    left_behind[item] = 0.0f;
#elif MODE == wrong_sometimes_
    if ((as_uint(out[0]) & 0xff) == 0x35) total *= 1.01f; // one junk byte of fifteen
#elif MODE == returns_early_
    if (row == 5) return;
#elif MODE == writes_nothing_
    return;
#elif MODE == skips_repeats_
    if (memory[0] == 123456) return;
#elif MODE == skips_written_
    if (!isnan(out[0])) return;
#endif
    for (int k = 0; k < cols; k++) out[k] = exp(in[k] - largest) / total;
#if MODE == wrong_later_
    if (memory[0] == 123456) out[1] += 0.25f;
#endif
}

// What a later launch can know of an earlier one.
__kernel void remember(__global int *memory)
{
    memory[0] = 123456;
#if MODE == takes_limits_
    const ulong none[2] = {0, 0};
    call_system(SETRLIMIT, 7, none, 0); // of open files
#endif
}
"""

PROBLEM = """name = "faults"
kernel = "softmax.cl"
entry = "softmax"
reference = "reference.py:softmax"

[arguments]
x = { role = "input", dtype = "float32", shape = ["rows", "cols"] }
y = { role = "output", dtype = "float32", shape = ["rows", "cols"] }
cols = { role = "scalar", dtype = "int32", value = "cols" }

[[workloads]]
rows = 64
cols = 64
"""

REFERENCE = """import numpy as np

def softmax(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)
"""

FAULTS = (
    "divides_by_zero", "block_too_large", "pruned", "broken_directive", "wrong_group_size", "compile_error",
    "undefined_function", "too_much_local_memory", "hangs", "hangs_later", "segfaults", "barrier_diverges",
    "writes_after", "writes_before", "writes_scratch", "changes_input", "overflows", "is_nan",
    "is_infinite", "is_wrong", "returns_early", "writes_nothing", "skips_repeats", "skips_written", "wrong_later",
)  # fmt: skip
WRONG_SOMETIMES = "wrong_sometimes"
"""Passes most of the judged launches."""
UNINITIALISED = "uninitialised"
"""Counts on zeros in local memory, which it leaves there itself."""
HOSTILE_CRASH = "hostile_crash"
"""Crashes on inputs that no person declared."""
TAKERS = ("takes_limits", "takes_files", "takes_all_files", "babbles")
"""Take from their worker what it needs, or speak in its place."""
GOOD = ("slow", "fine", "endless_print")


def write_problem(folder: Path, modes: tuple[str, ...] = (*GOOD, *FAULTS)) -> Path:
    """A problem folder whose template has these modes."""
    folder.mkdir()
    listed = ", ".join(f'"{mode}"' for mode in modes)
    every = dict.fromkeys((*GOOD, *FAULTS, WRONG_SOMETIMES, UNINITIALISED, HOSTILE_CRASH, *TAKERS))
    numbers = "\n".join(f"#define {mode}_ {k}\n#define {mode} {k}" for k, mode in enumerate(every))
    source = KERNEL.replace("@MODES@", listed).replace("@ENUM@", numbers)
    (folder / "softmax.cl").write_text(source)
    calls = "assembly = true\n" if set(modes) & set(TAKERS) else ""
    (folder / "problem.toml").write_text(calls + PROBLEM.lstrip())
    (folder / "reference.py").write_text(REFERENCE)
    return folder

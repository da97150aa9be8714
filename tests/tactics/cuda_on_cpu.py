"""Runs CUDA and HIP kernels on the CPU with g++: a fibre a thread, `__syncthreads` switches, pages guard the arrays.

Slow, and nothing of a GPU's speed or memory model; but indices, tails, shared memory and barriers are the kernel's own.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
from opencl_runs import Array, Job, Result

PRELUDE = r"""
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <tuple>
#include <type_traits>
#include <ucontext.h>
#include <utility>
#include <vector>
struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; };
static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
#define hipThreadIdx_x threadIdx.x
#define hipThreadIdx_y threadIdx.y
#define hipBlockIdx_x blockIdx.x
#define hipBlockIdx_y blockIdx.y
#define hipBlockDim_x blockDim.x
#define hipBlockDim_y blockDim.y
#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __syncthreads kw_barrier
#define __ldg(p) (*(p))
struct int2 { int x, y; };
struct int4 { int x, y, z, w; };
struct float4 { float x, y, z, w; };
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <typename T> static T __ldcs(const T *from) { return *from; }
template <typename T> static void __stcs(T *to, T value) { *to = value; }
using std::min;
using std::max;
static ucontext_t kw_scheduler;
static std::vector<ucontext_t> kw_fibres;
static std::vector<char> kw_done;
static size_t kw_running;
static void kw_barrier() { swapcontext(&kw_fibres[kw_running], &kw_scheduler); }
#define KW_DYNAMIC_SHARED unsigned char
"""

MAIN = r"""
template <typename... A, size_t... I>
static void kw_invoke(void (*f)(A...), void **args, std::index_sequence<I...>) {
  f(*(std::remove_cv_t<A> *)args[I]...);
}
template <typename... A> static void kw_call(void (*f)(A...), void **args) {
  kw_invoke(f, args, std::index_sequence_for<A...>{});
}
static void **kw_args;
static void kw_fibre() {
  kw_call(KW_ENTRY, kw_args);
  kw_done[kw_running] = 1;
  swapcontext(&kw_fibres[kw_running], &kw_scheduler);
}
static char *kw_guarded(size_t bytes) {
  const size_t page = 4096, whole = (bytes + page - 1) / page * page;
  char *start = (char *)mmap(nullptr, whole + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(start, page, PROT_NONE);
  mprotect(start + page + whole, page, PROT_NONE);
  return start + page + (whole - (bytes + 15) / 16 * 16);
}
int main(int count, char **words) {
  unsigned n[6];
  for (int i = 0; i < 6; ++i) n[i] = atoi(words[1 + i]);
  gridDim = {n[0], n[1], n[2]};
  blockDim = {n[3], n[4], n[5]};
  std::vector<void *> args;
  std::vector<std::tuple<const char *, char *, size_t>> files;
  for (int i = 7; i + 2 < count; i += 3) {
    const size_t bytes = atol(words[i + 2]);
    char *memory = kw_guarded(bytes);
    FILE *file = fopen(words[i + 1], "rb");
    if (fread(memory, 1, bytes, file) != bytes) return 3;
    fclose(file);
    if (words[i][0] == 'a') {
      files.emplace_back(words[i + 1], memory, bytes);
      args.push_back(new char *(memory));
    } else {
      args.push_back(memory);
    }
  }
  kw_args = args.data();
  const size_t threads = n[3] * n[4] * n[5], stack = 256 << 10;
  std::vector<char> stacks(threads * stack);
  kw_fibres.resize(threads);
  kw_done.resize(threads);
  for (unsigned z = 0; z < n[2]; ++z) for (unsigned y = 0; y < n[1]; ++y) for (unsigned x = 0; x < n[0]; ++x) {
    blockIdx = {x, y, z};
    for (size_t t = 0; t < threads; ++t) {
      getcontext(&kw_fibres[t]);
      kw_fibres[t].uc_stack.ss_sp = stacks.data() + t * stack;
      kw_fibres[t].uc_stack.ss_size = stack;
      kw_fibres[t].uc_link = nullptr;
      makecontext(&kw_fibres[t], kw_fibre, 0);
      kw_done[t] = 0;
    }
    for (bool is_busy = true; is_busy;) {
      is_busy = false;
      for (size_t t = 0; t < threads; ++t) {
        if (kw_done[t]) continue;
        kw_running = t;
        threadIdx = {unsigned(t % n[3]), unsigned(t / n[3] % n[4]), unsigned(t / n[3] / n[4])};
        swapcontext(&kw_scheduler, &kw_fibres[t]);
        is_busy = true;
      }
    }
  }
  for (auto &[name, memory, bytes] : files) {
    FILE *file = fopen(name, "wb");
    fwrite(memory, 1, bytes, file);
    fclose(file);
  }
  return 0;
}
"""


class CpuCuda:
    """Compiles and runs jobs in a folder; programs are kept by their text and macros."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._programs: dict[tuple[str, str, tuple[tuple[str, str], ...]], tuple[Path, str]] = {}

    @staticmethod
    def is_there() -> bool:
        """Whether there is a compiler."""
        return shutil.which("g++") is not None

    def run(self, job: Job) -> Result:
        """What a job of one kernel gives; the shared memory of a block is as large as it asks for or more."""
        for array in job.arrays:
            job.arrays[array].tofile(self.folder / array)
        for launch in job.launches:
            program, error = self._program(job, launch.entry)
            if error:
                return Result({}, error)
            words = [str(each) for each in (*launch.grid, *launch.block)]
            for number, argument in enumerate(launch.arguments):
                if isinstance(argument, str):
                    words += ["a", str(self.folder / argument), str(job.arrays[argument].nbytes)]
                else:
                    np.asarray(argument).tofile(self.folder / f"scalar{number}")
                    words += ["s", str(self.folder / f"scalar{number}"), str(np.asarray(argument).nbytes)]
            done = subprocess.run([str(program), *words], capture_output=True, timeout=300, check=False)
            if done.returncode:
                return Result({}, f"it ended with {done.returncode}")
        return Result({name: self._read(name, array) for name, array in job.arrays.items()})

    def _read(self, name: str, like: Array) -> Array:
        return np.fromfile(self.folder / name, like.dtype).reshape(like.shape)

    def _program(self, job: Job, entry: str) -> tuple[Path, str]:
        key = (job.source, entry, job.macros)
        if key not in self._programs:
            path = self.folder / f"program{len(self._programs)}"
            macros = "".join(f"#define {name} {value}\n" for name, value in job.macros)
            text = job.source.replace("extern __shared__", "static")
            text = text.replace("kw_memory[];", "kw_memory[1 << 18];").replace("#include <hip/hip_runtime.h>", "")
            path.with_suffix(".cpp").write_text(f"{PRELUDE}{macros}{text}\n#define KW_ENTRY {entry}\n{MAIN}")
            command = ["g++", "-std=c++17", "-O1", "-w", "-fno-strict-aliasing", "-o", str(path), f"{path}.cpp"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            self._programs[key] = (path, done.stderr[:600] if done.returncode else "")
        return self._programs[key]

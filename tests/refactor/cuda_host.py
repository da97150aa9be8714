"""Runs CUDA sources on the host, compiled by g++ with `cuda_on_host.h`: the same interface as `opencl_runs.Runner`."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from opencl_runs import Job, Result

HEADER = Path(__file__).with_name("cuda_on_host.h")
GUARD = 64
_TYPES = {"float32": "float", "float64": "double", "int32": "int", "uint32": "unsigned", "int64": "long long"}


def is_possible() -> bool:
    """Whether there is a compiler."""
    return shutil.which("g++") is not None


class HostRunner:
    """Compiles and runs each job in a process of its own."""

    def run(self, job: Job, *, timeout_s: float = 60.0) -> Result:
        """What a job gives; arrays are guarded on both sides."""
        with tempfile.TemporaryDirectory() as folder:
            return _run(job, Path(folder), timeout_s)


def _run(job: Job, folder: Path, timeout_s: float) -> Result:
    names = list(job.arrays)
    reads, writes = [], []
    for name in names:
        array = job.arrays[name]
        c_type = _TYPES[array.dtype.name]
        padded = np.concatenate((np.full(GUARD, 7, array.dtype), array.reshape(-1), np.full(GUARD, 7, array.dtype)))
        padded.tofile(folder / name)
        reads.append(f'std::vector<{c_type}> {name}_v({padded.size}); read_all("{folder / name}", {name}_v);')
        writes.append(f'write_all("{folder / name}", {name}_v);')
    launches = []
    for launch in job.launches:
        arguments = [
            f"{each}_v.data() + {GUARD}" if isinstance(each, str) else _scalar(each) for each in launch.arguments
        ]  # fmt: skip
        grid, block = (", ".join(f"{extent}u" for extent in extents) for extents in (launch.grid, launch.block))
        call = f"{launch.entry}({', '.join(arguments)})"
        launches.append(f"host_launch(uint3{{{grid}}}, uint3{{{block}}}, [&] {{ {call}; }});")
    main = "\n  ".join((*reads, *launches, *writes))
    text = f"""#include "{HEADER}"
{job.source}
template <class T> static void read_all(const char *path, std::vector<T> &v) {{
  FILE *f = fopen(path, "rb"); if (fread(v.data(), sizeof(T), v.size(), f) != v.size()) exit(3); fclose(f);
}}
template <class T> static void write_all(const char *path, std::vector<T> &v) {{
  FILE *f = fopen(path, "wb"); fwrite(v.data(), sizeof(T), v.size(), f); fclose(f);
}}
int main() {{
  {main}
  return 0;
}}
"""
    (folder / "main.cpp").write_text(text)
    command = ["g++", "-std=c++17", "-O0", "-w", "-pthread", *(f"-D{n}={v}" for n, v in job.macros),
               str(folder / "main.cpp"), "-o", str(folder / "main")]  # fmt: skip
    built = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if built.returncode:
        return Result({}, "build: " + built.stderr[:1500])
    try:
        ran = subprocess.run([str(folder / "main")], capture_output=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return Result({}, "hang")
    if ran.returncode:
        return Result({}, f"crash: {ran.returncode}")
    results = {}
    for name in names:
        array = job.arrays[name]
        padded = np.fromfile(folder / name, array.dtype)
        if (padded[:GUARD] != 7).any() or (padded[-GUARD:] != 7).any():
            return Result({}, f"{name}: written outside")
        results[name] = padded[GUARD:-GUARD].reshape(array.shape)
    return Result(results)


def _scalar(value: np.generic) -> str:
    return f"({_TYPES[value.dtype.name]}){value!s}"

"""Runs CUDA sources on the host, compiled by g++ with `cuda_on_host.h`: the same interface as `opencl_runs.Runner`."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from opencl_runs import Job, Result

FLAGS = ("-std=c++17", "-O0", "-w", "-pthread")
HEADER = Path(__file__).with_name("cuda_on_host.h")
GUARD = 64
_TYPES = {"float32": "float", "float64": "double", "int32": "int", "uint32": "unsigned", "int64": "long long",
          "int8": "signed char", "uint8": "unsigned char"}  # fmt: skip
_INTEGER = "strtoll(*word++, 0, 10)"


def is_possible() -> bool:
    """Whether there is a compiler."""
    return shutil.which("g++") is not None


class HostRunner:
    """Compiles each source once for all shapes, and runs each job in a process of its own."""

    def run(self, job: Job, *, timeout_s: float = 300.0) -> Result:
        """What a job gives; arrays are guarded on both sides."""
        with tempfile.TemporaryDirectory() as folder:
            return _run(job, Path(folder), timeout_s)


def _run(job: Job, folder: Path, timeout_s: float) -> Result:
    program, error = _program(_text(job), job.macros, timeout_s)
    if error:
        return Result({}, error)
    words = []
    for name, array in job.arrays.items():
        padded = np.concatenate((np.full(GUARD, 7, array.dtype), array.reshape(-1), np.full(GUARD, 7, array.dtype)))
        padded.tofile(folder / name)
        words.append(str(folder / name))
    for launch in job.launches:
        words += [str(each) for each in (*launch.grid, *launch.block)]
        words += [str(each) for each in launch.arguments if not isinstance(each, str)]
    try:
        ran = subprocess.run([str(program), *words], capture_output=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return Result({}, "hang")
    if ran.returncode:
        return Result({}, f"crash: {ran.returncode}")
    results = {}
    for name, array in job.arrays.items():
        padded = np.fromfile(folder / name, array.dtype)
        if (padded[:GUARD] != 7).any() or (padded[-GUARD:] != 7).any():
            return Result({}, f"{name}: written outside")
        results[name] = padded[GUARD:-GUARD].reshape(array.shape)
    return Result(results)


def _text(job: Job) -> str:
    """The program of a job, for any shapes: paths of arrays, and each launch's extents and scalars, are its words."""
    reads = [
        f"const char *{name}_p = *word++; std::vector<{_TYPES[array.dtype.name]}> {name}_v; "
        f"read_all({name}_p, {name}_v);"
        for name, array in job.arrays.items()
    ]
    writes = [f"write_all({name}_p, {name}_v);" for name in job.arrays]
    launches = []
    for launch in job.launches:
        scalars, passed = [], []
        for number, each in enumerate(launch.arguments):
            if isinstance(each, str):
                passed.append(f"{each}_v.data() + {GUARD}")
                continue
            c_type, parsed = _TYPES[each.dtype.name], "strtod(*word++, 0)" if each.dtype.kind == "f" else _INTEGER
            scalars.append(f"const {c_type} kw_{number} = ({c_type}){parsed};")
            passed.append(f"kw_{number}")
        call = f"{launch.entry}({', '.join(passed)})"
        launches.append(
            f"{{ const uint3 kw_grid = read_extents(word), kw_block = read_extents(word); {' '.join(scalars)}\n"
            f"  host_launch(kw_grid, kw_block, [&] {{ {call}; }}); }}"
        )
    main = "\n  ".join((*reads, *launches, *writes))
    return f"""{job.source}
template <class T> static void read_all(const char *path, std::vector<T> &v) {{
  FILE *f = fopen(path, "rb"); fseek(f, 0, SEEK_END); v.resize(ftell(f) / sizeof(T)); rewind(f);
  if (fread(v.data(), sizeof(T), v.size(), f) != v.size()) exit(3); fclose(f);
}}
template <class T> static void write_all(const char *path, std::vector<T> &v) {{
  FILE *f = fopen(path, "wb"); fwrite(v.data(), sizeof(T), v.size(), f); fclose(f);
}}
static uint3 read_extents(char **&word) {{
  uint3 v; v.x = atoi(*word++); v.y = atoi(*word++); v.z = atoi(*word++); return v;
}}
int main(int, char **words) {{
  char **word = words + 1;
  {main}
  return 0;
}}
"""


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Programs of this process, and the header, which is compiled once: most of a small program is the library's."""
    folder = tempfile.TemporaryDirectory()
    header = shutil.copy(HEADER, folder.name)
    subprocess.run(["g++", *FLAGS, "-x", "c++-header", header, "-o", f"{header}.gch"], capture_output=True, check=False)
    return folder


@functools.cache
def _program(text: str, macros: tuple[tuple[str, str], ...], timeout_s: float) -> tuple[Path, str]:
    """A compiled program, and what the compiler has against it."""
    place = Path(tempfile.mkdtemp(dir=_folder().name))
    source = place / "main.cpp"
    source.write_text(f'#include "{Path(_folder().name) / HEADER.name}"\n{text}')
    command = ["g++", *FLAGS, *(f"-D{n}={v}" for n, v in macros), str(source), "-o", str(place / "main")]
    built = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    return place / "main", "build: " + built.stderr[:1500] if built.returncode else ""

"""Random maps in CUDA, and what they are in Triton: g++ and Triton's interpreter compute the same."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from cuda_on_cpu import CpuCuda
from opencl_runs import Job, Launch
from tactic_runs import GPU, subject_of

from kernelwright.tactics.base import Unfit
from kernelwright.tactics.triton.kernels import kernels_in_triton

ARGUMENTS = {
    "x": "in float32 n", "k": "in int32 n", "w": "in float32 8", "y": "inout float32 n", "z": "out int32 n",
    "n": "int32 =n", "m": "int32 =m", "a": "float32 =0.75",
}  # fmt: skip
RUN = """
import importlib.util, sys
import numpy as np
from kernelwright.backend.interpreter.session import launch_interpreted, start_interpreter
start_interpreter()
import torch
for path in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("made", path + ".py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    given = dict(np.load(path + ".npz"))
    arrays = {name: torch.from_numpy(each) for name, each in given.items() if each.ndim}
    numbers = {"n": int(given["n"]), "m": int(given["m"]), "a": float(given["a"])}
    passed = {name: {**arrays, **numbers, "BLOCK": 64}[name] for name in module.f.arg_names}
    launch_interpreted(module.f, (-(-numbers["n"] // 64),), passed)
    np.savez(path + ".out.npz", y=arrays["y"].numpy(), z=arrays["z"].numpy())
"""


class Words:
    """Draws expressions and statements of a map."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.whole, self.real = ["i", "n", "m"], ["a"]

    def integer(self, depth: int = 2) -> str:
        if depth == 0:
            return self.draw.choice([*self.whole, "1", "2", "7", "k[i]"])
        one, other = self.integer(depth - 1), self.integer(depth - 1)
        forms = (
            "({0} + {1})", "({0} - {1})", "({0} * 3)", "({0} / 4)", "({0} % 5)", "({0} & {1})", "({0} >> 1)",
            "(int)({2})", "min({0}, {1})", "({3} ? {0} : {1})", "(-{0})", "(int)((unsigned){0} / 3u)",
        )  # fmt: skip
        return self.draw.choice(forms).format(one, other, self.float(0), self.condition(0))

    def float(self, depth: int = 2) -> str:
        if depth == 0:
            return self.draw.choice([*self.real, "0.5f", "1.25f", "x[i]", "x[n - 1 - i]", "w[3]", "w[i % 8]", "y[i]"])
        one, other = self.float(depth - 1), self.float(depth - 1)
        forms = (
            "({0} + {1})", "({0} - {1})", "({0} * {1})", "fmaxf({0}, {1})", "fabsf({0})", "({3} ? {0} : {1})",
            "(float)({2})", "(-{0})", "({0} / 4.0f)", "({2} + {0})", "(i > 0 ? x[i - 1] : {0})", "fmaf({0}, {1}, a)",
        )  # fmt: skip
        return self.draw.choice(forms).format(one, other, self.integer(1), self.condition(0))

    def condition(self, depth: int = 1) -> str:
        word = self.draw.choice(("<", "<=", ">", ">=", "==", "!="))
        one = f"{self.integer(depth)} {word} {self.integer(depth)}"
        other = f"{self.float(depth)} {word} {self.float(depth)}"
        return self.draw.choice((one, other, f"!({one})", f"{one} && {other}", f"{other} || {one}"))

    def statement(self, depth: int = 1) -> str:
        kind = self.draw.randrange(6 if depth else 4)
        if kind == 0:
            return f"y[i] {self.draw.choice(('=', '+=', '-='))} {self.float()};"
        if kind == 1:
            return f"z[i] = {self.integer()};"
        if kind == 2:
            return f"u = {self.integer()};"
        if kind == 3:
            return f"v {self.draw.choice(('=', '*='))} {self.float(1)};"
        both = f"if ({self.condition()}) {{ {self.statement(0)} {self.statement(0)} }}"
        return both + (f" else {{ {self.statement(0)} }}" if kind == 5 else "")

    def kernel(self) -> str:
        begin = self.draw.choice(("if (i >= n) return;", "if (i < n) {"))
        first = f"int u = {self.integer(1)}; float v = {self.float(1)};"
        self.whole.append("u")
        self.real.append("v")
        inside = " ".join([first, *(self.statement() for _ in range(5)), "z[i] = u; y[i] = y[i] + v;"])
        return (
            'extern "C" __global__ void f(const float *x, const int *k, const float *w, float *y, int *z, int n, '
            f"int m, float a) {{ int i = blockIdx.x * blockDim.x + threadIdx.x; {begin} {inside} "
            + "}"
            * (1 + begin.count("{"))
        )


@pytest.mark.thorough
def test_random_maps_in_triton_compute_what_they_computed(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    if not CpuCuda.is_there():
        pytest.skip("needs g++")
    cpu, paths, expected = CpuCuda(tmp_path), [], []
    for seed in range(16):
        source, drawn = Words(seed).kernel(), np.random.default_rng(seed)
        n, m = 150, 5
        subject = subject_of(
            source, ARGUMENTS, ["ceil_div(n, 64)"], ["64"], [{"n": n, "m": m}], language="cuda", device=GPU
        )
        text, header = kernels_in_triton(subject)
        assert header.steps[0].grid[0].text == "ceil_div(n, BLOCK)"
        arrays = {
            "x": drawn.normal(size=n).astype(np.float32), "k": drawn.integers(-9, 99, n).astype(np.int32),
            "w": drawn.normal(size=8).astype(np.float32), "y": drawn.normal(size=n).astype(np.float32),
            "z": np.zeros(n, np.int32),
        }  # fmt: skip
        given = (*arrays, np.int32(n), np.int32(m), np.float32(0.75))
        ran = cpu.run(Job(source, (), (), (Launch("f", (3, 1, 1), (64, 1, 1), given),), {**arrays}))
        assert not ran.error, (source, ran.error)
        path = tmp_path / f"made{seed}"
        path.with_suffix(".py").write_text(text)
        np.savez(path.with_suffix(".npz"), **arrays, n=n, m=m, a=0.75)
        paths.append(path)
        expected.append((source, text, ran.arrays))
    compare(paths, expected)


def compare(paths: list[Path], expected: list[tuple[str, str, dict[str, npt.NDArray[np.generic]]]]) -> None:
    """Run what was written by Triton's interpreter; `expected`: the source, what became of it, and right results."""
    done = subprocess.run([sys.executable, "-c", RUN, *map(str, paths)], capture_output=True, text=True, check=False)
    for path, (source, text, arrays) in zip(paths, expected, strict=True):
        out = path.with_suffix(".out.npz")
        assert out.is_file(), (source, text, done.stderr[-1500:])
        found = np.load(out)
        assert np.array_equal(found["z"], arrays["z"]), (source, text)
        assert np.allclose(found["y"], arrays["y"], rtol=1e-4, atol=1e-4, equal_nan=True), (source, text)


def staged(seed: int) -> tuple[str, int, bool]:
    """A kernel that stages its block with neighbours, its threads, and whether it reads what nobody has staged."""
    draw = random.Random(seed)
    block, left, right = draw.choice((16, 32, 64)), draw.randrange(4), draw.randrange(4)
    beyond = draw.randrange(4) == 0
    reads = [draw.randint(-left, right) for _ in range(3)]
    reads[0] = right + 1 if beyond else reads[0]
    begin = [f"s[l + {left}] = i < n ? x[i] : 0.0f;"]
    begin += [f"if (l < {left}) s[l] = i >= {left} ? x[i - {left}] : 0.0f;"] if left else []
    begin += (
        [f"if (l >= {block - right}) s[l + {left + right}] = i + {right} < n ? x[i + {right}] : 0.0f;"] if right else []
    )
    draw.shuffle(begin)
    terms = " + ".join(f"{draw.choice(('0.5f', '2.0f', 'a'))} * s[l + {left + each}]" for each in reads)
    end = draw.choice(("if (i < n) y[i] = {};", "if (i >= n) return; y[i] = {};", "float v = {}; if (i < n) y[i] = v;"))
    source = (
        'extern "C" __global__ void f(const float *x, float *y, int n, float a) { '
        f"__shared__ float s[{block + 8}]; int l = threadIdx.x, i = blockIdx.x * {block} + l; "
        f"{' '.join(begin)} __syncthreads(); {end.format(terms)} }}"
    )
    return source, block, beyond


@pytest.mark.thorough
def test_random_kernels_that_stage_their_blocks_are_told_or_compute_what_they_computed(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    if not CpuCuda.is_there():
        pytest.skip("needs g++")
    cpu, paths, expected, refused = CpuCuda(tmp_path), [], [], []
    names = ("x", "y", "n", "a")
    for seed in range(24):
        (source, block, is_beyond), drawn = staged(seed), np.random.default_rng(seed)
        n = int(drawn.integers(40, 200))
        subject = subject_of(
            source, {name: ARGUMENTS[name].replace("inout", "out") for name in names}, [f"ceil_div(n, {block})"],
            [str(block)], [{"n": n}], language="cuda", device=GPU,
        )  # fmt: skip
        try:
            text, _ = kernels_in_triton(subject)
        except Unfit:
            assert is_beyond, source
            refused.append(seed)
            continue
        assert not is_beyond, source
        arrays = {"x": drawn.normal(size=n).astype(np.float32), "y": np.zeros(n, np.float32)}
        launch = Launch("f", (-(-n // block), 1, 1), (block, 1, 1), ("x", "y", np.int32(n), np.float32(0.75)))
        ran = cpu.run(Job(source, (), (), (launch,), {**arrays}))
        assert not ran.error, (source, ran.error)
        path = tmp_path / f"staged{seed}"
        path.with_suffix(".py").write_text(text)
        np.savez(path.with_suffix(".npz"), **arrays, z=np.zeros(1, np.int32), n=n, m=0, a=0.75)
        paths.append(path)
        expected.append((source, text, {**ran.arrays, "z": np.zeros(1, np.int32)}))
    assert refused
    assert expected
    compare(paths, expected)

"""Triton kernels compiled without a device, as the JIT compiles them, and what is read back before any launch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from triton_problems import HEADER, HOPPER, KERNEL, PROBLEM, TWO, TWO_HEADER, TWO_PROBLEM

from kernelwright.backend.base import BuildFailed
from kernelwright.backend.cuda.backend import CudaBackend
from kernelwright.backend.cuda.driver import toolchain_id
from kernelwright.errors import MissingDependency
from kernelwright.evaluate.builds.artifact_cache import ArtifactCache
from kernelwright.evaluate.builds.pool import BuildPool
from kernelwright.evaluate.builds.render import render
from kernelwright.imports import require
from kernelwright.problem.config import Config
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.outcome import Failed
from kernelwright.template.load import load_template
from kernelwright.template.model import Candidate

MATMUL_HEADER = """# /// kernelwright
# [parameters]
# BLOCK = { values = [64, 256], default = 64 }
# num_stages = { values = [2, 5], default = 2 }
# [launch]
# entry = "matmul"
# grid = ["ceil_div(m, BLOCK)", "ceil_div(n, BLOCK)"]
# ///
"""
MATMUL = """import triton
import triton.language as tl


@triton.jit
def matmul(a, b, c, m, n, k, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, k, 64):
        at = start + tl.arange(0, 64)
        left = tl.load(a + rows[:, None] * k + at[None, :], mask=at[None, :] < k, other=0.0)
        right = tl.load(b + at[:, None] * n + cols[None, :], mask=at[:, None] < k, other=0.0)
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * n + cols[None, :], total, mask=(rows < m)[:, None] & (cols < n)[None, :])
"""
MATMUL_PROBLEM = """name = "matmul"
kernel = "scale.py"
reference = "reference.py:scale"

[arguments]
a = { role = "input", dtype = "float16", shape = ["m", "k"] }
b = { role = "input", dtype = "float16", shape = ["k", "n"] }
c = { role = "output", dtype = "float16", shape = ["m", "n"] }
m = { role = "scalar", dtype = "int32", value = "m" }
n = { role = "scalar", dtype = "int32", value = "n" }
k = { role = "scalar", dtype = "int32", value = "k" }

[[workloads]]
name = "even"
m = 512
n = 512
k = 512

[[workloads]]
name = "odd"
m = 512
n = 511
k = 509
"""


def jobs_of(folder, **config):
    problem = load_problem(folder)
    template = load_template(problem)
    return render(Candidate(template, Config({**template.default, **config})), problem, HOPPER)


def built(job, folder: Path):
    folder.mkdir()
    return CudaBackend().compile(job.unit, HOPPER, folder)


def launch(artifact):
    return json.loads((artifact.folder / "launches.json").read_text())["scale"]["launch"]


def test_without_triton_a_build_says_what_to_install(triton_problem, tmp_path, monkeypatch):
    def missing(module, *, purpose):
        return require(f"{module}_which_is_not_here" if module == "triton" else module, purpose=purpose)

    monkeypatch.setattr("kernelwright.backend.cuda.compile.triton_build.require", missing)
    with pytest.raises(MissingDependency, match="compiling a Triton kernel needs the package 'triton"):
        built(jobs_of(triton_problem())[0], tmp_path / "a")
    with pytest.raises(MissingDependency) as caught:
        require("triton.is_not_here", purpose="a test")
    assert caught.value.hint == "pip install 'kernelwright[triton]'"


def test_another_version_of_triton_is_another_toolchain():
    other = type(HOPPER)(HOPPER.backend, HOPPER.id, HOPPER.name, HOPPER.kind, HOPPER.limits, facts={"triton": "other"})
    assert toolchain_id(HOPPER) != toolchain_id(other)


@pytest.fixture(scope="module")
def triton():
    return pytest.importorskip("triton", reason="Triton is not installed: pip install 'kernelwright[triton]'")


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (KERNEL.replace("tl.program_id", "tl.program_ids"), "'scale', line 15 of scale.py: .*program_ids"),
        (
            KERNEL.replace("tl.arange(0, BLOCK)", "tl.arange(0, BLOCK - 1)"),
            "'scale', line 15 of scale.py: .*power of 2",
        ),
        (f"import not_installed_here\n{KERNEL}", "scale.py does not run: ModuleNotFoundError: .*not_installed_here"),
        (f"{KERNEL}\nraise SystemExit(3)\n", "scale.py does not run: SystemExit: 3"),
        (f"{KERNEL}\nscale = 3\n", "'scale' of scale.py is no @triton.jit function"),
    ],
)
def test_what_triton_refuses_is_a_failure_that_says_why(triton, triton_problem, tmp_path, kernel, message):
    with pytest.raises(BuildFailed, match=message):
        built(jobs_of(triton_problem(kernel=kernel))[0], tmp_path / "a")


def test_the_launch_is_read_back(triton, triton_problem, tmp_path):
    artifact = built(jobs_of(triton_problem(), num_warps=2)[0], tmp_path / "a")
    found = launch(artifact)
    assert found["parameters"] == [[0, "*fp32"], [1, "*fp32"], [2, "i32"], [3, "fp32"]]
    assert (found["threads"], found["shared_bytes"], found["ctas"]) == (64, 0, 1)
    assert set(found["scratch"]) <= {0}
    assert artifact.resources["scale"]["registers_per_thread"] > 0
    assert artifact.resources["scale"]["spill_bytes"] == 0
    assert artifact.state == ()


def test_an_argument_that_is_one_is_no_parameter_and_a_large_one_is_wide(triton, triton_problem, tmp_path):
    problem = PROBLEM.replace("n = 4096", "n = 1").replace("n = 4099", "n = 2147483648").replace('"int32"', '"int64"')
    one, wide = jobs_of(triton_problem(problem=problem))
    assert launch(built(one, tmp_path / "one"))["parameters"] == [[0, "*fp32"], [1, "*fp32"], [3, "fp32"]]
    assert launch(built(wide, tmp_path / "wide"))["parameters"][2] == [2, "i64"]


def test_a_define_may_fix_an_argument_that_is_no_constant(triton, triton_problem, tmp_path):
    kernel = KERNEL.replace("n, factor", "bias, n, factor").replace(
        "mask=at < n), mask", "mask=at < n) + (0.0 if bias is None else 1.0), mask"
    )
    header = HEADER.replace("# [launch]", "# [defines]\n# bias = \"'None'\"\n# [launch]")
    job = jobs_of(triton_problem(header=header, kernel=kernel))[0]
    assert dict(job.unit.macros)["bias"] == "'None'"
    found = launch(built(job, tmp_path / "a"))
    assert [kind for _, kind in found["parameters"]] == ["*fp32", "*fp32", "i32", "fp32"]


def test_decorators_around_the_kernel_do_not_matter(triton, triton_problem, tmp_path):
    tuned = "@triton.autotune(configs=[triton.Config({'BLOCK': 64})], key=['n'])\n@triton.heuristics({'BLOCK': len})\n"
    kernel = KERNEL.replace("@triton.jit", f"{tuned}@triton.jit")
    plain, decorated = (jobs_of(triton_problem(kernel=each))[0] for each in (KERNEL, kernel))
    assert built(plain, tmp_path / "a").resources == built(decorated, tmp_path / "b").resources


def test_the_same_unit_gives_the_same_code_in_whatever_folder(triton, triton_problem, tmp_path):
    job = jobs_of(triton_problem())[0]
    assert built(job, tmp_path / "a").binary_id == built(job, tmp_path / "b").binary_id


def test_a_matrix_product_reaches_the_tensor_cores_and_its_kind_decides_its_shared_memory(
    triton, triton_problem, tmp_path
):
    even, odd = jobs_of(triton_problem(header=MATMUL_HEADER, kernel=MATMUL, problem=MATMUL_PROBLEM))
    first, second = built(even, tmp_path / "even"), built(odd, tmp_path / "odd")
    assert first.resources["matmul"]["wgmma_instructions"] > 0
    assert first.resources["matmul"]["local_memory_bytes"] > second.resources["matmul"]["local_memory_bytes"] > 0


def test_a_configuration_that_does_not_fit_is_a_failure_with_its_numbers(triton, triton_problem, tmp_path):
    folder = triton_problem(header=MATMUL_HEADER, kernel=MATMUL, problem=MATMUL_PROBLEM)
    fits, large = jobs_of(folder)[0], jobs_of(folder, BLOCK=256, num_stages=5)[0]
    pool = BuildPool(
        "cuda", HOPPER, process_count=1, cache=ArtifactCache(tmp_path / "cache"), scratch=tmp_path / "scratch"
    )
    try:
        assert not isinstance(pool.submit(fits.unit, [fits.plan]).result(300)[0], Failed)
        failed, _ = pool.submit(large.unit, [large.plan]).result(300)
    finally:
        pool.close()
    assert isinstance(failed, Failed)
    assert (failed.stage, failed.reason) == ("resources", "too-much-local-memory")
    assert "the device has 232,448" in failed.message


def test_a_build_imports_torch_only_for_a_file_that_does(triton, triton_problem, tmp_path):
    """Which takes seconds in every build process."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[3]); import test_triton_build as t; from pathlib import Path\n"
        "job = t.jobs_of(Path(sys.argv[1]))[0]; t.built(job, Path(sys.argv[2])); print('torch' in sys.modules)"
    )
    folder = triton_problem()
    done = subprocess.run(
        [sys.executable, "-c", code, folder, tmp_path / "a", Path(__file__).parent],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["False"], done.stderr


def test_each_kernel_has_a_cubin_and_a_launch_of_its_own(triton, triton_problem, tmp_path):
    (job,) = jobs_of(triton_problem(header=TWO_HEADER, kernel=TWO, problem=TWO_PROBLEM))
    artifact = built(job, tmp_path / "a")
    launches = json.loads((artifact.folder / "launches.json").read_text())
    assert {entry: len(each["launch"]["parameters"]) for entry, each in launches.items()} == {"sums": 3, "total": 3}
    assert len({(artifact.folder / each["file"]).read_bytes() for each in launches.values()}) == 2
    assert all(artifact.resources[entry]["registers_per_thread"] > 0 for entry in launches)

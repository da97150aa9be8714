"""The exported header and the exported source belong together: every config of the one is built from the other, and
nothing else has the kernels that the header launches."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from exported_operators import write_scale
from header_hosts import built_for, run_host

from kernelwright.backend.base import BuildFailed, BuildUnit, DeviceInfo
from kernelwright.export.pairing import built_name, guard, option
from kernelwright.export.run import export_run
from kernelwright.problem.config import Config
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.model import LaunchStep
from kernelwright.template.model import Template

RecordRun = Callable[..., Path]
KERNEL = """// /// kernelwright
// [parameters]
// BLOCK = { values = [16, 32, 64], default = 16 }
// ITEMS = { values = [1, 2, 4], default = 1 }
// [defines]
// ROW = "n * 2"
// TWICE = "2 * BLOCK"
// [launch]
// grid = ["ceil_div(n, BLOCK * ITEMS)"]
// block = ["BLOCK"]
// ///
#ifndef BLOCK
#define BLOCK 16
#endif
#ifndef ITEMS
#define ITEMS 1
#endif
// Which values it was built with.
__kernel void stamp(__global const float *x, __global float *y, int n) {
  for (int k = 0; k < ITEMS; ++k) {
    const int i = (get_group_id(0) * ITEMS + k) * BLOCK + get_local_id(0);
    if (i < n) y[i] = x[i] + 1000000 * ITEMS + 1000 * BLOCK + TWICE + ROW;
  }
}
"""
PROBLEM = """name = "stamp"
kernel = "stamp.cl"
entry = "stamp"
reference = "reference.py:f"
[arguments]
x = { role = "input", dtype = "float32", shape = ["n"] }
y = { role = "output", dtype = "float32", shape = ["n"] }
n = { role = "scalar", dtype = "int32", value = "n" }
[baseline]
kernel = "base.cl"
[baseline.launch]
entry = "stamp"
grid = ["ceil_div(n, 64)"]
block = ["64"]
[[workloads]]
name = "small"
n = 128
[[workloads]]
name = "large"
n = 4096
"""
BASELINE = """__kernel void stamp(__global const float *x, __global float *y, int n) {
  int i = get_global_id(0);
  if (i < n) y[i] = x[i];
}
"""


@pytest.fixture
def stamp_run(tmp_path: Path, record_run: RecordRun) -> Path:
    """Two configs, each the choice for one of the workloads."""
    folder = tmp_path / "stamp"
    folder.mkdir()
    (folder / "stamp.cl").write_text(KERNEL)
    (folder / "base.cl").write_text(BASELINE)
    (folder / "reference.py").write_text("def f(x, n):\n    return {'y': x}\n")
    (folder / "problem.toml").write_text(PROBLEM)
    return record_run(folder, [{"BLOCK": 32, "ITEMS": 2}, {"BLOCK": 64, "ITEMS": 4}], name="stamp_run")


def options_of(run: Path, folder: Path, n: int) -> str:
    """What the header says for a size, with the macro that depends on it."""
    (header,) = export_run(run, folder / "out", formats=["header"])
    ((options, _),) = built_for(header, [{"n": n}], ["stamp"], folder)
    return f"{options} -DROW={2 * n}"


def host(run: Path, folder: Path, n: int, **instead: object) -> np.ndarray:
    found = run_host(run, {"n": n}, {"x": np.zeros(n, np.float32)}, ["stamp"], folder, **instead)  # type: ignore[arg-type]
    return np.frombuffer(found["y"], np.float32)


# Wrong pairs


@pytest.mark.thorough
@pytest.mark.opencl
def test_the_plain_kernel_and_the_template_have_no_kernel_that_the_header_launches(
    stamp_run: Path, tmp_path: Path
) -> None:
    options = options_of(stamp_run, tmp_path, 128)
    for name in ("base.cl", "stamp.cl"):
        with pytest.raises(AssertionError, match=r"INVALID_KERNEL_NAME|stamp_kw"):
            host(stamp_run, tmp_path, 128, source=stamp_run / "problem" / name, options=options)


@pytest.mark.thorough
@pytest.mark.opencl
def test_a_build_without_the_headers_options_or_for_another_config_has_none_either(
    stamp_run: Path, tmp_path: Path
) -> None:
    for options in ("", "-DBLOCK=64 -DITEMS=4 -DTWICE=128 -DROW=256", options_of(stamp_run, tmp_path, 4096)):
        with pytest.raises(AssertionError, match=r"INVALID_KERNEL_NAME|stamp_kw"):
            host(stamp_run, tmp_path, 128, options=options)


@pytest.mark.few(1)
@pytest.mark.opencl
@pytest.mark.parametrize("name", ["BLOCK", "ITEMS", "TWICE", "ROW"])
def test_a_value_that_is_missing_from_the_options_is_an_error(stamp_run: Path, tmp_path: Path, name: str) -> None:
    options = re.sub(rf"-D{name}=\S+", "", options_of(stamp_run, tmp_path, 128))
    wanted = "kernelwright_stamp_define_ROW" if name == "ROW" else f"{name} is not defined: build this file with all"
    with pytest.raises(AssertionError, match=wanted):
        host(stamp_run, tmp_path, 128, options=options)


@pytest.mark.opencl
def test_two_exported_sources_with_parameters_of_one_name_do_not_compile_as_one(
    stamp_run: Path, tmp_path: Path
) -> None:
    (source,) = export_run(stamp_run, tmp_path / "out", formats=["source"])
    both = tmp_path / "both.cl"
    both.write_text(source.read_text().replace("void stamp(", "void other(") + source.read_text())
    with pytest.raises(AssertionError, match="another exported source"):
        host(stamp_run, tmp_path, 128, source=both, options="")


def test_headers_of_other_templates_of_the_same_problem_do_not_fit(
    stamp_run: Path, record_run: RecordRun, tmp_path: Path
) -> None:
    folder = tmp_path / "stamp"
    (folder / "stamp.cl").write_text(KERNEL.replace("if (i < n)", "if (i < n && n > 0)"))
    other = record_run(folder, [{"BLOCK": 32, "ITEMS": 2}, {"BLOCK": 64, "ITEMS": 4}], name="other_run")
    headers = [export_run(run, tmp_path / run.name, formats=["header"])[0] for run in (stamp_run, other)]
    entries = [{entry for _, (entry,) in built_for(each, [{"n": 128}], ["stamp"], tmp_path)} for each in headers]
    assert entries[0].isdisjoint(entries[1])


# The right pair


@pytest.mark.opencl
def test_the_one_exported_source_is_built_as_each_config_of_the_header(stamp_run: Path, tmp_path: Path) -> None:
    for n, block, items in ((128, 64, 4), (4096, 32, 2)):
        found = host(stamp_run, tmp_path, n, options=options_of(stamp_run, tmp_path, n))
        assert set(found) == {np.float32(1000000 * items + 1000 * block + 2 * block + 2 * n)}


CUDA_SIZES: list[Mapping[str, int]] = [{"rows": 64, "d": 128, "middle": 64}, {"rows": 512, "d": 512, "middle": 256}]


def test_cuda_sources_are_built_as_each_config_of_the_header(record_run: RecordRun, tmp_path: Path) -> None:
    """Names in scopes, and templates; with the compiler itself, so it needs no GPU."""
    from kernelwright.backend.cuda.driver import load_nvrtc
    from kernelwright.backend.registry import get_backend

    if load_nvrtc() is None:
        pytest.skip("needs NVRTC: pip install 'kernelwright[cuda]'")
    run = record_run(write_scale(tmp_path / "scale"), [{"BLOCK": 256, "VEC": 4}, {"BLOCK": 64, "VEC": 2}])
    source, header = export_run(run, tmp_path / "out", formats=["source", "header"])
    launches = ["sum_rows", "scale_rows_VEC_"]
    device = DeviceInfo("cuda", "cuda:0", "H100", "gpu", {"compute_capability": 90, "shared_memory_per_block": 232448})

    def compiled(text: str, options: str, entries: list[str]) -> str:
        place = tmp_path / f"artifact-{len(list(tmp_path.iterdir()))}"
        place.mkdir()
        words = ("--compiler=nvrtc", *options.split())
        unit = BuildUnit("cuda", text, source.name, (), words, tuple(entries), (run / "problem",))
        return get_backend("cuda").compile(unit, device, place).binary_id

    built = built_for(header, CUDA_SIZES, launches, tmp_path)
    assert len(dict(built)) == 2
    template = (run / "problem" / "scale.cu").read_text()
    for (options, entries), vec in zip(built, (2, 4), strict=True):
        assert f"-DVEC={vec}" in options
        token = entries[0].removeprefix("sum_rows")
        assert entries[1] == f"scale_rows{token}<VEC>"
        named = f"{options} -Dsum_rows=sum_rows{token} -Dscale_rows=scale_rows{token}"
        assert compiled(source.read_text(), options, entries) == compiled(template, named, entries)
        others = next(each for each, _ in built if each != options)
        for text, words in ((template, options), (source.read_text(), ""), (source.read_text(), others)):
            with pytest.raises(BuildFailed):
                compiled(text, words, entries)


# Names


def template_of(*entries: str) -> Template:
    steps = tuple(LaunchStep(entry, (Expression.parse("1"),), (Expression.parse("64"),)) for entry in entries)
    return Template("any", Path("any.cu"), "cuda", "", steps=steps)


@pytest.mark.parametrize(
    ("entry", "scope", "name", "arguments"),
    [
        ("scale", "", "scale", ""),
        ("space::inner::scale<VEC>", "space::inner::", "scale", "<VEC>"),
        ("softmax<cuda::std::array<float, 4>>", "", "softmax", "<cuda::std::array<float, 4>>"),
        ("scale<ns::T<int>>", "", "scale", "<ns::T<int>>"),
        ("space::scale <detail::K<2>::value>", "space::", "scale", "<detail::K<2>::value>"),
    ],
)
def test_template_arguments_with_scopes_and_templates_leave_the_kernels_name(
    entry: str, scope: str, name: str, arguments: str
) -> None:
    template = template_of(entry)
    token = option(template, Config({})).partition("=")[2]
    assert built_name(template, entry, Config({})) == f"{scope}{name}_{token}{arguments}"
    assert f"#define {name} " in guard(template, [], function_of={})


def test_a_kernel_whose_name_begins_with_anothers_is_called_after_the_config_once(tmp_path: Path) -> None:
    kernels = ("scale", "scale_")
    template = template_of(*kernels)
    text = tmp_path / "text.c"
    text.write_text(guard(template, [], function_of={}) + " ".join(kernels) + "\n")
    found = shutil.which("gcc") or pytest.skip("no gcc on this machine")
    words = [found, "-E", "-P", option(template, Config({})), str(text)]
    out = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300).stdout
    assert out.split() == [built_name(template, each, Config({})) for each in kernels]

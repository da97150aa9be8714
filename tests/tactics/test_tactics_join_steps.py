"""Steps of a stencil in one launch: bit for bit what one launch a step gives; the rest is left alone."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cuda_on_cpu import CpuCuda
from opencl_runs import Runner
from step_cases import Steps, steps_subject
from tactic_runs import CPU, GPU, assert_same, configs, example
from test_tactics_examples import load_rewritten
from tiling_runs import compile_cuda, has_nvrtc, run_original, run_rewritten

from kernelwright.tactics.base import DeviceFacts, NotApplicable, Rewrite, Subject
from kernelwright.tactics.stencil.tiles import STENCIL_TILES
from kernelwright.tactics.stencil.time_steps import JOIN_STEPS
from kernelwright.template.header import expressions, launch_step
from tiers import TIMES

COUNT = 2 * TIMES
"""Configs that a test tries on each set of sizes."""

HEAD = "__kernel void f(__global const float *x, __global float *y, const int h, const int w)"
INDICES, LEAVE = "const int i = get_global_id(0), j = get_global_id(1);", "if (i >= w || j >= h) return;"
PLACE = f"{INDICES}\n  {LEAVE}\n  const int at = j * w + i;"
EDGE = "i == 0 || j == 0 || i == w - 1 || j == h - 1"
CROSS = "x[at] + 0.125f * (x[at - 1] + x[at + 1] + x[at - w] + x[at + w] - 4.0f * x[at])"
WIDE = CROSS.replace("- w", "- w - 3").replace("+ w", "+ w + 3")


def kernel(body: str, *, head: str = HEAD, place: str = PLACE) -> str:
    return f"{head} {{\n  {place}\n  {body}\n}}\n"


HEAT = kernel(f"if ({EDGE}) y[at] = x[at]; else y[at] = {CROSS};")

FIT = (
    Steps("heat", HEAT),
    Steps("two steps", HEAT, count=2),
    Steps("three steps", HEAT, count=3),
    Steps("two launches of six steps", HEAT, count=12),
    Steps("three launches of eight steps", HEAT, count=24),
    Steps("border by a return", kernel(f"if ({EDGE}) {{ y[at] = 2 * x[at]; return; }}\n  y[at] = {CROSS};")),
    Steps("nine points by loops", kernel("""float sum = 0.0f;
  if (i < 1 || j < 1 || i >= w - 1 || j >= h - 1) { y[at] = 0.5f; return; }
  for (int dj = -1; dj <= 1; ++dj)
    for (int di = -1; di <= 1; ++di)
      sum += x[(j + dj) * w + i + di] * (1.0f + di + 3 * dj);
  y[j * w + i] = sum / 9.0f;""")),
    Steps("zeros around", kernel("""float left = i > 0 ? x[at - 1] : 0.0f, right = i < w - 1 ? x[at + 1] : 0.0f;
  float up = j > 0 ? x[at - w] : 0.0f, down = j + 1 < h ? x[at + w] : 0.0f;
  y[at] = 0.25f * (left + right + up + down) - 0.5f * x[at];""")),
    Steps("from one side", kernel("""if (i >= 2 && j >= 1) y[at] = x[at] - 0.3f * (x[at - 2] - x[at - w]);
  else { y[at] = x[at] + 0.1f * i; }""")),
    Steps("kept inside by min and max", kernel("""const int l = max(i - 1, 0), r = min(i + 1, w - 1);
  y[at] = 0.2f * (x[j * w + l] + x[j * w + r] + x[at] + x[max(j - 1, 0) * w + i] + x[clamp(j + 1, 0, h - 1) * w + i]);
  """)),
    Steps("blurred by loops", kernel("""float sum = 0.0f;
  for (int dj = -1; dj <= 1; ++dj)
    for (int di = -2; di <= 1; ++di)
      sum += x[clamp(j + dj, 0, h - 1) * w + min(max(i + di, 0), w - 1)] * (2.0f + di - dj);
  y[at] = sum / 9.0f;""")),
    Steps("rows by pointers", kernel("""__global const float *row = x + j * w, *above = row - w;
  if (i > 0 && i < w - 1 && j > 0) y[j * w + i] = 0.25f * (row[i - 1] + row[i + 1] + above[i]) + 0.25f * row[i];
  else y[j * w + i] = row[i];""")),
    Steps("inside of a condition", kernel(f"""if (i < w && j < h) {{
    const int at = j * w + i;
    float v = x[at];
    if (!({EDGE})) v = {CROSS};
    y[at] = v;
  }}""", place="const size_t i = get_group_id(0) * 8 + get_local_id(0), j = get_group_id(1) * 4 + get_local_id(1);")),
    Steps("turned", kernel(f"if ({EDGE}) y[at] = x[at]; else y[at] = {CROSS};",
                           place=PLACE.replace("(0)", "(9)").replace("(1)", "(0)").replace("(9)", "(1)")),
          is_turned=True),
    Steps("integers with a mask and a function", kernel("""if (j == 0 || j == h - 1) { y[at] = mask[at]; return; }
  y[at] = mixed(x[at - w], x[at + w]) + mask[at] * x[at];""",
          head="int mixed(int a, int b) { return a * 3 - b; }\n"
               "__kernel void f(__global const int *x, __global int *y, int h, int w, "
               "__global const int *mask)"), dtype="int32", more={"mask": "in int32 h,w"}),
    Steps("line", """__kernel void f(__global const double *x, __global double *y, int n) {
  int i = get_global_id(0);
  if (i >= n) return;
  double acc = x[i];
  if (i >= 2 && i + 2 < n) acc += x[i - 2] - x[i - 1] * x[i + 1] + x[i + 2];
  y[i] = acc / 4;
}""", dtype="float64", is_line=True),
    Steps("wider rows", kernel(f"if ({EDGE}) y[at] = x[at]; else y[at] = {WIDE};",
                               place=PLACE.replace("j * w", "j * (w + 3)")), shape="h,w + 3"),
)  # fmt: skip

UNFIT = (
    Steps("one launch", HEAT, "launched once", count=1),
    Steps("eleven steps", HEAT, "parted", count=11),
    Steps("no neighbours", kernel("y[at] = 2 * x[at];"), "neighbours"),
    Steps("cells left out", kernel(f"if (!({EDGE})) y[at] = {CROSS};"), "not every cell"),
    Steps("cells left out by data", kernel(f"if ({EDGE}) y[at] = x[at]; else if (x[at] > 0) y[at] = {CROSS};"), ""),
    Steps("left before a cell is made",
          kernel(f"if (x[at] > 0) return;\n  if ({EDGE}) y[at] = x[at]; else y[at] = {CROSS};"), ""),
    Steps("around the ends of rows",
          kernel("if (at > 0 && at + 1 < w * h) y[at] = x[at - 1] + x[at + 1]; else y[at] = x[at];"), ""),
    Steps("no border on one side", kernel(f"if (i == 0 || j == 0 || j == h - 1) y[at] = x[at]; else y[at] = {CROSS};"),
          "inside of the grid"),
    Steps("kept inside of the grid and more", kernel("""float sum = 0.0f;
  for (int di = -2; di <= 1; ++di) sum += x[j * w + min(max(i + di, 1), w - 1)];
  y[at] = sum + x[at];"""), "kept inside"),
    Steps("printing", kernel(f"if ({EDGE}) y[at] = x[at]; else {{ printf(\"%d\", at); y[at] = {CROSS}; }}"), "printf"),
    Steps("a loop's index kept inside", kernel("""float sum = 0.0f;
  if (i == 0 || i == w - 1) { y[at] = x[at]; return; }
  for (int di = -1; di <= 1; ++di) sum += x[j * w + i + max(di, 0)];
  y[at] = sum + x[at];""")),
    Steps("kept away from the border", kernel("y[at] = x[j * w + max(i - 1, 2)] + x[at];"), "kept inside"),
    Steps("kept inside of a part",
          kernel("y[at] = x[j * w + max(i - 1, 0)] - x[j * w + min(i + 1, w - 2)];"), "kept inside"),
    Steps("kept inside at the wrong end", kernel("y[at] = x[j * w + max(i + 1, 0)] + x[at];"), "inside of the grid"),
    Steps("kept inside of all cells", kernel("y[at] = x[max(at - 1, 0)] + x[at];"), ""),
    Steps("periodic", kernel("y[at] = x[j * w + (i + 1) % w] - x[j * w + (i + w - 1) % w] + 2 * x[at];"), ""),
    Steps("read where data say", kernel("y[at] = x[at] + (i > 0 ? x[at - 1] : 0) + x[(int)x[at] % (w * h)];"), ""),
    Steps("one cell read by all", kernel(f"if ({EDGE}) y[at] = x[0]; else y[at] = {CROSS};"), "other places"),
    Steps("adds to what is there", kernel(f"if ({EDGE}) y[at] = x[at]; else y[at] += {CROSS};"), ""),
    Steps("reads what it writes", kernel(f"if ({EDGE}) y[at] = x[at]; else y[at] = y[at] + {CROSS};"), ""),
    Steps("its neighbour's cell",
          kernel(f"if ({EDGE}) y[at] = x[at]; else {{ y[at] = {CROSS}; y[at - 1] = 0; }}"), "several places"),
    Steps("transposed", kernel("if (i > 0) y[i * w + j] = x[at - 1] + x[at]; else y[i * w + j] = 0;"), ""),
    Steps("work-items that meet", kernel(f"""__local float kept[32];
  kept[get_local_id(0)] = x[at];
  barrier(CLK_LOCAL_MEM_FENCE);
  if ({EDGE}) y[at] = kept[0]; else y[at] = {CROSS};"""), "work together"),
    Steps("counted", kernel(f"""atomic_inc(&seen[0]);
  if ({EDGE}) y[at] = x[at]; else y[at] = {CROSS};""", head=HEAD.replace("w)", "w, volatile __global int *seen)")), "",
          more={"seen": "inout int32 1"}),
    Steps("no end", kernel(f"if ({EDGE}) y[at] = x[at]; else y[at] = {CROSS};", place=PLACE.replace(LEAVE, "")), ""),
    Steps("overlapping rows", kernel("if (i > 0) y[at] = x[at] - x[at - 1]; else y[at] = x[at];",
                                     place=PLACE.replace("j * w", "j * (w - 1)")), "overlap",
          sizes=({"h": 9, "w": 9},)),
)  # fmt: skip


def joined(subject: Subject) -> Rewrite:
    result = JOIN_STEPS.apply(subject)
    assert isinstance(result, Rewrite), result.reason
    return result


def refused(subject: Subject) -> str:
    result = JOIN_STEPS.apply(subject)
    assert isinstance(result, NotApplicable), result.file_text
    assert not result.reason.startswith("two changes meet")
    return result.reason


@pytest.mark.parametrize("case", UNFIT, ids=lambda case: case.name)
def test_what_is_no_step_of_cells_is_left_alone(case: Steps) -> None:
    reason = refused(steps_subject(case))
    assert reason
    assert case.reason in reason


def changed(subject: Subject, number: int, **arguments: str) -> Subject:
    """With other arguments of one launch, by the kernel's parameters."""
    steps = list(subject.header.steps)
    names = [each.name for each in subject.analysis.facts.parameters]
    own = dict(zip(names, steps[number].arguments or (), strict=True)) | arguments
    steps[number] = replace(steps[number], arguments=tuple(own.values()))
    return replace(subject, header=replace(subject.header, steps=tuple(steps)))


def test_launches_that_make_no_chain_are_left_alone() -> None:
    subject = steps_subject(FIT[0])
    assert "does not read what" in refused(changed(subject, 1, x="x"))
    weighed = kernel(
        f"if ({EDGE}) y[at] = x[at]; else y[at] = a * ({CROSS});", head=HEAD.replace("w)", "w, float a, float b)")
    )
    other = steps_subject(Steps("weighed", weighed, more={"a": "float32 =0.5", "b": "float32 =0.25"}))
    assert "differ in a" in refused(changed(other, 2, a="b"))
    assert "no scratch" in refused(changed(changed(subject, 1, y="x"), 2, x="x"))
    assert "no scratch" in refused(changed(changed(subject, 1, y="y"), 2, x="y"))
    assert "writes what its first one reads" in refused(changed(subject, 3, y="x"))
    assert "one array" in refused(changed(changed(subject, 1, y="odd"), 2, x="odd"))
    steps = subject.header.steps
    wide = replace(
        subject, header=replace(subject.header, steps=(*steps[:3], replace(steps[3], block=expressions(("16", "4")))))
    )
    assert "different shapes" in refused(wide)


def test_what_others_use_is_left_alone() -> None:
    subject = steps_subject(FIT[0])
    for place, array, reason in ((4, "odd", "g uses odd"), (0, "even", "g uses even"), (2, "y", "between its steps")):
        steps = list(subject.header.steps)
        steps.insert(place, launch_step("g", ("1",), ("1",), None, (array,)))
        assert reason in refused(replace(subject, header=replace(subject.header, steps=tuple(steps))))
    other = list(subject.header.steps)
    other.insert(0, launch_step("g", ("1",), ("1",), None, ("x",)))
    result = joined(replace(subject, header=replace(subject.header, steps=tuple(other))))
    assert [each.entry for each in result.header.steps] == ["g", "f"]


def test_arrays_of_other_shapes_are_left_alone() -> None:
    subject = steps_subject(FIT[0])
    arguments = tuple(
        replace(each, shape=each.shape[::-1]) if each.name == "even" else each for each in subject.problem.arguments
    )
    assert "shapes" in refused(replace(subject, problem=replace(subject.problem, arguments=arguments)))
    arguments = tuple(
        replace(each, dtype="float64") if each.name == "even" else each for each in subject.problem.arguments
    )
    assert "types" in refused(replace(subject, problem=replace(subject.problem, arguments=arguments)))


def test_it_is_done_once_and_not_beside_other_tiles() -> None:
    subject = steps_subject(FIT[0])
    result = joined(subject)
    again = JOIN_STEPS.apply(subject.rewritten(result))
    assert isinstance(again, NotApplicable)
    assert again.is_already_so
    assert isinstance(STENCIL_TILES.apply(subject.rewritten(result)), NotApplicable)
    tiled = STENCIL_TILES.apply(subject)
    assert isinstance(tiled, Rewrite)
    refused(subject.rewritten(tiled))


@pytest.mark.parametrize(("count", "launches"), [(2, 1), (4, 1), (8, 1), (10, 2), (12, 2), (16, 2), (24, 3), (49, 7)])
def test_as_many_launches_are_left_as_it_takes(count: int, launches: int) -> None:
    result = joined(steps_subject(replace(FIT[0], count=count)))
    steps = result.header.steps
    assert len(steps) == launches
    ends = [(each.arguments or ())[:2] for each in steps]
    assert (ends[0][0], ends[-1][1]) == ("x", "y")
    assert all(taken != given for taken, given in ends)
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ends))


def test_more_steps_for_a_launch_are_predicted_to_gain_more_and_more_than_tiles_alone() -> None:
    large = replace(FIT[0], sizes=({"h": 4096, "w": 4096},))
    found = [joined(steps_subject(replace(large, count=count))).effect.factor for count in (2, 4, 8)]
    assert found == sorted(found)
    assert found[0] > 1.5
    busy = replace(CPU, copy_bytes_per_s=2e10, operations_per_s=1e9)
    assert joined(steps_subject(large, busy)).effect.factor < 1.2
    tiled = STENCIL_TILES.apply(steps_subject(large))
    assert isinstance(tiled, Rewrite)
    assert tiled.effect.factor < found[1]


FAR = """__kernel void f(__global const double *x, __global double *y, const int h, const int w) {
  const int i = get_global_id(0), j = get_global_id(1);
  if (i >= w || j >= h) return;
  double v = x[j * w + i];
  if (i >= @ && i < w - @ && j >= @ && j < h - @) v = x[(j - @) * w + i] + x[(j + @) * w + i] + x[j * w + i - @];
  y[j * w + i] = v;
}"""


@pytest.mark.parametrize(("reach", "shared_bytes"), [("1", 49152), ("3", 49152), ("3", 16384), ("11", 98304)])
@pytest.mark.parametrize("device", [CPU, GPU], ids=lambda device: device.kind)
def test_what_a_launch_needs_at_first_fits_into_local_memory(
    reach: str, shared_bytes: int, device: DeviceFacts
) -> None:
    case = Steps("far", FAR.replace("@", reach), count=8, dtype="float64")
    result = joined(steps_subject(case, replace(device, shared_bytes_per_block=shared_bytes)))
    condition = {each.name: each.expression for each in result.header.constraints}["shared"]
    defaults = {each.name: each.default for each in result.header.parameters}
    assert condition.evaluate({**defaults, "device.shared_memory_per_block": shared_bytes})
    assert 1 <= len(result.header.steps) <= 4


@pytest.mark.parametrize("device", [CPU, GPU], ids=lambda device: device.kind)
def test_what_fits_into_no_local_memory_is_left_alone(device: DeviceFacts) -> None:
    case = Steps("far", FAR.replace("@", "16"), count=8, dtype="float64")
    assert "does not fit" in refused(steps_subject(case, replace(device, shared_bytes_per_block=8192)))


@pytest.mark.few(3)
@pytest.mark.opencl
@pytest.mark.parametrize("case", FIT, ids=lambda case: case.name)
def test_joined_steps_give_the_same_bits(case: Steps, runner: Runner) -> None:
    subject = steps_subject(case)
    assert assert_same(runner, subject, joined(subject), case.workloads, count=COUNT, rtol=0.0) >= 2


@pytest.mark.few(1)
@pytest.mark.opencl
@pytest.mark.parametrize("case", FIT, ids=lambda case: case.name)
def test_steps_joined_by_blocks_give_the_same_bits(case: Steps, runner: Runner) -> None:
    subject = steps_subject(case, GPU)
    assert assert_same(runner, subject, joined(subject), case.workloads[:3], count=COUNT, rtol=0.0) >= 1


@pytest.mark.thorough
@pytest.mark.opencl
def test_the_example_gives_the_same_bits(runner: Runner, tmp_path: Path) -> None:
    subject = example("stencil")
    result = joined(subject)
    load_rewritten(subject, result, tmp_path)
    sizes = [{"height": 61, "width": 135}, {"height": 300, "width": 700}, {"height": 1, "width": 1}]
    assert assert_same(runner, subject, result, sizes, count=COUNT, rtol=0.0) >= 3


CUDA = Steps("cuda", f"""
template <typename T>
__global__ void __launch_bounds__(32) f(const T *__restrict__ x, T *y, int h, int w) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
  if (i >= w || j >= h) return;
  const int at = j * w + i;
  if ({EDGE}) {{ y[at] = x[at]; return; }}
  y[at] = {CROSS};
}}
template __global__ void f<float>(const float *, float *, int, int);
""", language="cuda")  # fmt: skip
PLAIN_CUDA = replace(CUDA, source=CUDA.source.replace("template <typename T>", 'extern "C"').replace("T ", "float ")
                     .partition("template __global__")[0])  # fmt: skip


@pytest.mark.skipif(not CpuCuda.is_there(), reason="needs g++")
def test_joined_cuda_steps_give_the_same_on_the_host(tmp_path: Path) -> None:
    subject = steps_subject(PLAIN_CUDA, GPU)
    machine, result = CpuCuda(tmp_path), joined(subject)
    for sizes in ({"h": 21, "w": 67}, {"h": 2, "w": 1}):
        wanted = run_original(machine, subject, sizes)
        for config in configs(result.header, sizes, count=2):
            given = run_rewritten(machine, subject, result, sizes, config)
            assert not given.error
            assert np.allclose(given.arrays["y"], wanted.arrays["y"], rtol=2e-6, atol=2e-6)


@pytest.mark.skipif(not has_nvrtc(), reason="needs NVRTC: pip install 'kernelwright[cuda]'")
def test_the_cuda_text_compiles(tmp_path: Path) -> None:
    subject = steps_subject(PLAIN_CUDA, GPU)
    result = joined(subject)
    for config in configs(result.header, {"h": 64, "w": 64}, count=3):
        assert not compile_cuda(result, config, {"h": 64, "w": 64}, tmp_path)

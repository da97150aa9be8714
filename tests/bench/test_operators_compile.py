"""Every CUDA template of the operator suite compiles for sm_90, wherever in its space; no device is needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernelwright.backend.base import BuildFailed, DeviceInfo
from kernelwright.backend.cuda.driver import load_nvrtc
from kernelwright.backend.registry import get_backend
from kernelwright.evaluate.builds.render import plans_by_unit, render
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.outcome import Failed
from kernelwright.template.load import load_baseline, load_template
from kernelwright.template.model import Candidate
from kernelwright.tuning.device_limits import build_space
from kernelwright_bench.operators.suite import SUITE

FOLDER = Path(__file__).resolve().parents[2] / "src/kernelwright/examples" / "cuda"
FILES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.glob("*/*.toml"))
H100 = DeviceInfo(
    "cuda",
    "cuda:0",
    "H100",
    "gpu",
    {
        "compute_capability": 90, "max_threads_per_block": 1024, "max_block_x": 1024, "max_block_y": 1024,
        "max_block_z": 64, "max_grid_x": 2**31 - 1, "max_grid_y": 65535, "max_grid_z": 65535, "warp_size": 32,
        "multiprocessors": 132, "shared_memory_per_block": 232448, "shared_memory_per_multiprocessor": 233472,
        "registers_per_block": 65536, "registers_per_thread": 255, "registers_per_multiprocessor": 65536,
        "max_threads_per_multiprocessor": 2048, "max_blocks_per_multiprocessor": 32, "last_level_cache": 50 << 20,
    },
)  # fmt: skip
RANDOM_COUNT = 4

needs_nvrtc = pytest.mark.skipif(load_nvrtc() is None, reason="needs NVRTC: pip install 'kernelwright[cuda]'")


def chosen_configs(space):
    """The two ends of the space, and some configs at random."""
    count = space.feasible_count
    return [space.config_at(0), space.config_at(count - 1), *space.sample(RANDOM_COUNT, np.random.default_rng(count))]


@pytest.mark.few(3)
@needs_nvrtc
@pytest.mark.parametrize("file", FILES)
def test_template_and_baseline_compile_at_the_ends_of_the_space_and_at_random(file, tmp_path):
    problem = load_problem(FOLDER / file)
    template = load_template(problem)
    space = build_space(problem, template, H100)
    assert template.default in space
    candidates = [load_baseline(problem, template), *(Candidate(template, each) for each in chosen_configs(space))]
    compiled = 0
    for candidate in candidates:
        rendered = render(candidate, problem, H100)
        assert not isinstance(rendered, Failed), rendered
        unit, plans = next(iter(plans_by_unit(rendered).items()))
        folder = tmp_path / str(compiled)
        folder.mkdir()
        try:
            artifact = get_backend("cuda").compile(unit, H100, folder)
        except BuildFailed as error:
            pytest.fail(f"{dict(candidate.config)}: {error.message}\n{error.log}")
        for step in plans[0]:
            threads = step.block[0] * step.block[1] * step.block[2]
            assert threads <= artifact.resources[step.entry]["max_threads_per_block"], dict(candidate.config)
        compiled += 1
    assert compiled == 3 + RANDOM_COUNT


@pytest.mark.parametrize("operator", SUITE, ids=lambda operator: operator.name)
def test_shapes_name_the_sizes_of_their_problem_and_leave_something_to_tune(operator):
    problem = load_problem(FOLDER / operator.name)
    template = load_template(problem)
    for shape in operator.shapes:
        assert {*shape.sizes, *operator.fixed} == set(problem.size_names)
        workload = problem.workloads[0].__class__(name=shape.label, sizes={**operator.fixed, **shape.sizes})
        narrowed = problem.__class__(
            **{name: getattr(problem, name) for name in problem.__dataclass_fields__} | {"workloads": (workload,)}
        )
        assert build_space(narrowed, template, H100).feasible_count > 100

"""Plain kernels as subjects, and runs of them and of their rewrites with numbers, on the OpenCL CPU device."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from opencl_runs import Job, Launch, Result, Runner

from kernelwright.problem.config import Value
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.model import Problem
from kernelwright.tactics.base import DeviceFacts, Rewrite, Subject
from kernelwright.template.header import Header, expressions
from kernelwright.template.load import load_baseline, load_template
from tiers import TIMES

CONFIGS = TIMES
"""Random configs that a test tries of each template beside the default one."""

EXAMPLES = Path(__file__).parents[2] / "src/kernelwright/examples"
CPU = DeviceFacts("cpu", warp_size=8, vector_bytes=32, max_threads_per_block=4096, multiprocessors=4)
GPU = DeviceFacts("gpu", warp_size=32, max_threads_per_block=1024, multiprocessors=132)
DEVICE = {
    "device.max_threads_per_block": 4096, "device.shared_memory_per_block": 229376,
    "device.registers_per_multiprocessor": 65536, "device.multiprocessors": 132,
}  # fmt: skip
SUFFIXES = {"opencl": ".cl", "cuda": ".cu", "hip": ".hip"}


def devices_of(number: int) -> tuple[DeviceFacts, ...]:
    """For which devices a test writes the template of its case of this number."""
    return (CPU, GPU) if CONFIGS > 1 else ((CPU, GPU)[number % 2],)


@dataclass(frozen=True)
class Plain:
    """A plain kernel with its problem: arguments and a launch as in problem.toml."""

    name: str
    language: str
    source: str
    arguments: Mapping[str, str]
    """`in float32 m,k`, `out float32 m,n`, `inout ...`, `scalar int32 m`."""
    grid: tuple[str, ...]
    block: tuple[str, ...]
    sizes: tuple[Mapping[str, int], ...]
    entry: str = "f"


def subject_of(plain: Plain, folder: Path, device: DeviceFacts = CPU) -> Subject:
    """The subject for a plain kernel."""
    suffix = SUFFIXES[plain.language]
    (folder / f"k{suffix}").write_text(plain.source)
    (folder / "reference.py").write_text("def f(**_):\n    return None\n")
    lines = [f'name = "{plain.name}"', f'kernel = "k{suffix}"', f'entry = "{plain.entry}"',
             'reference = "reference.py:f"', "[arguments]"]  # fmt: skip
    for name, text in plain.arguments.items():
        role, dtype, rest = text.split(" ", 2)
        if role == "scalar":
            lines.append(f'{name} = {{ role = "scalar", dtype = "{dtype}", value = "{rest}" }}')
        else:
            shape = ", ".join(f'"{each.strip()}"' for each in rest.split(","))
            role = {"in": "input", "out": "output"}.get(role, role)
            lines.append(f'{name} = {{ role = "{role}", dtype = "{dtype}", shape = [{shape}] }}')
    quoted = ", ".join(f'"{each}"' for each in plain.grid), ", ".join(f'"{each}"' for each in plain.block)
    lines += ["[launch]", f"grid = [{quoted[0]}]", f"block = [{quoted[1]}]"]
    for number, sizes in enumerate(plain.sizes):
        lines += ["[[workloads]]", f'name = "w{number}"', *(f"{name} = {value}" for name, value in sizes.items())]
    (folder / "problem.toml").write_text("\n".join(lines) + "\n")
    problem = load_problem(folder / "problem.toml")
    template = load_template(problem)
    header = Header(steps=template.steps)
    return Subject.make(problem, template.source, header, device)


def example(name: str, device: DeviceFacts = CPU) -> Subject:
    """The subject for the plain baseline of an example."""
    problem = load_problem(EXAMPLES / name / "problem.toml")
    baseline = load_baseline(problem, load_template(problem)).template
    header = Header(steps=baseline.steps, options=baseline.options)
    return Subject.make(problem, baseline.source, header, device)


def configs(header: Header, sizes: Mapping[str, int], *, count: int, seed: int = 0) -> Iterator[dict[str, Value]]:
    """The default, then configs that change one parameter, then random ones; all meet the constraints."""
    default = {each.name: each.default for each in header.parameters}
    yield default
    found, tries = 0, 0
    maker = random.Random(seed)
    single = [{**default, p.name: value} for p in header.parameters for value in p.values if value != p.default]
    maker.shuffle(single)
    while found < count and tries < 20000:
        tries += 1
        config = single.pop() if single and tries % 2 else {p.name: maker.choice(p.values) for p in header.parameters}
        if is_feasible(header, config, sizes):
            found += 1
            yield config


def is_feasible(header: Header, config: Mapping[str, Value], sizes: Mapping[str, int]) -> bool:
    """Whether a config meets all constraints for these sizes."""
    names = {**DEVICE, **sizes, **config}
    return all(bool(each.expression.evaluate(names)) for each in header.constraints)


def inputs_of(problem: Problem, sizes: Mapping[str, int], *, seed: int = 0) -> dict[str, np.ndarray]:
    """Arrays for the arguments; the same seed gives the same arrays."""
    arrays = {}
    for each in problem.arguments:
        if each.role == "scalar":
            continue
        maker = np.random.default_rng([seed, zlib.crc32(each.name.encode())])
        shape = tuple(int(e.evaluate(sizes)) for e in each.shape)
        dtype = np.dtype(each.dtype)
        values = maker.standard_normal(shape) if dtype.kind == "f" else maker.integers(0, 17, shape)
        arrays[each.name] = values.astype(dtype)
    return arrays


def job_of(
    problem: Problem, source: str, header: Header, sizes: Mapping[str, int], config: Mapping[str, Value],
    *, repeats: int = 0, seed: int = 0,
) -> Job:  # fmt: skip
    """A run of a template."""
    names = {**DEVICE, **sizes, **config}
    scalars = {
        each.name: np.dtype(each.dtype).type(each.value.evaluate(sizes))
        for each in problem.arguments
        if each.role == "scalar" and each.value is not None
    }
    launches = []
    for step in header.steps:
        grid, block = (
            tuple(int(each.evaluate(names)) for each in expressions((*extents, "1", "1"))[:3])
            for extents in (step.grid, step.block)
        )
        arguments = tuple(scalars.get(name, name) for name in step.arguments or ())
        launches.append(Launch(step.entry, grid, block, arguments))  # type: ignore[arg-type]
    macros = [(name, str(value)) for name, value in config.items()]
    macros += [(name, str(each.evaluate(names))) for name, each in header.defines.items()]
    return Job(source, tuple(macros), tuple(header.options), tuple(launches),
               inputs_of(problem, sizes, seed=seed), repeats)  # fmt: skip


def run_original(runner: Runner, subject: Subject, sizes: Mapping[str, int], *, repeats: int = 0) -> Result:
    """What the plain kernel gives."""
    return runner.run(job_of(subject.problem, subject.source, subject.header, sizes, {}, repeats=repeats))


def run_rewritten(
    runner: Runner, subject: Subject, rewrite: Rewrite, sizes: Mapping[str, int], config: Mapping[str, Value],
    *, repeats: int = 0,
) -> Result:  # fmt: skip
    """What a rewrite gives with a config."""
    return runner.run(job_of(subject.problem, rewrite.source, rewrite.header, sizes, config, repeats=repeats))


def differences(
    runner: Runner, subject: Subject, rewrite: Rewrite, sizes: Mapping[str, int], *, count: int, rtol: float = 0.0,
    seed: int = 0,
) -> list[str]:  # fmt: skip
    """What differs between a plain kernel and its rewrite, over several configs; empty where nothing does."""
    wanted = run_original(runner, subject, sizes)
    assert not wanted.error, wanted.error
    found = []
    for config in configs(rewrite.header, sizes, count=count, seed=seed):
        given = run_rewritten(runner, subject, rewrite, sizes, config)
        if given.error:
            found.append(f"{sizes} {config}: {given.error}")
            continue
        for name, array in wanted.arrays.items():
            scale = float(np.abs(array).max(initial=1.0)) if array.dtype.kind == "f" else 1.0
            if not np.allclose(array, given.arrays[name], rtol=rtol, atol=rtol * scale, equal_nan=True):
                places = np.argwhere(~np.isclose(array, given.arrays[name], rtol=rtol, atol=rtol * scale))
                found.append(f"{sizes} {config}: {name} differs at {len(places)} places, first {places[:3].tolist()}")
    return found


def resized(subject: Subject, sizes: Mapping[str, int]) -> Subject:
    """The same subject with one workload of other sizes."""
    workload = replace(subject.problem.workloads[0], sizes=dict(sizes))
    return replace(subject, problem=replace(subject.problem, workloads=(workload,)))


def compile_cuda(rewrite: Rewrite, config: Mapping[str, Value], sizes: Mapping[str, int], folder: Path) -> str:
    """What NVRTC has against a CUDA template on an H100; empty where it compiles."""
    from kernelwright.backend.base import BuildFailed, BuildUnit, DeviceInfo
    from kernelwright.backend.registry import get_backend

    limits = {"compute_capability": 90, "shared_memory_per_block": 232448}
    device = DeviceInfo("cuda", "cuda:0", "H100", "gpu", limits)
    names = {**DEVICE, **sizes, **config}
    macros = [(name, str(value)) for name, value in config.items()]
    macros += [(name, str(each.evaluate(names))) for name, each in rewrite.header.defines.items()]
    place = folder / f"artifact-{len(list(folder.iterdir()))}"
    place.mkdir()
    unit = BuildUnit(
        "cuda", rewrite.source, "k.cu", tuple(macros), ("--compiler=nvrtc",), (rewrite.header.steps[0].entry,)
    )
    try:
        get_backend("cuda").compile(unit, device, place)
    except BuildFailed as failed:
        return f"{config}: {failed.message}\n{failed.log[:1000]}"
    return ""


def has_nvrtc() -> bool:
    """Whether NVRTC is installed."""
    from kernelwright.backend.cuda.driver import load_nvrtc

    return load_nvrtc() is not None

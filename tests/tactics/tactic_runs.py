"""Subjects made in memory, and the comparison of a rewrite with its original on the OpenCL CPU device."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from cuda_host import HostRunner
from opencl_runs import Array, Job, Launch, Result, Runner

from kernelwright.errors import SpecError
from kernelwright.evaluate.builds.render import option_text
from kernelwright.problem.config import Value
from kernelwright.problem.dtypes import DTYPES, encode_scalar
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.model import Argument, Problem, ReferenceSpec, Role, SourceSpec, Workload
from kernelwright.source.language import Language
from kernelwright.tactics.base import DeviceFacts, Rewrite, Subject
from kernelwright.template.header import Header, launch_step, strip_header
from kernelwright.template.load import load_baseline, load_template, template_of_text

CPU = DeviceFacts("cpu", warp_size=8, vector_bytes=32, max_threads_per_block=4096, multiprocessors=4)
GPU = DeviceFacts("gpu", warp_size=32, max_threads_per_block=1024, shared_bytes_per_block=49152, multiprocessors=132)
LIMITS = {"device.max_threads_per_block": 4096, "device.shared_memory_per_block": 1 << 17, "device.warp_size": 8,
          "device.multiprocessors": 4}  # fmt: skip
EXAMPLES = Path(__file__).parents[2] / "src/kernelwright/examples"


def argument(name: str, text: str) -> Argument:
    """`in float32 rows,cols`, `out float16 n`, `inout ...`, `int32 =n`, `float32 =0.5`."""
    words = text.split()
    if words[-1].startswith("="):
        return Argument(name, "scalar", words[0], value=Expression.parse(words[-1][1:]))
    roles: dict[str, Role] = {"in": "input", "out": "output", "inout": "inout", "scratch": "scratch"}
    shape = tuple(Expression.parse(each) for each in words[2].split(","))
    return Argument(name, roles[words[0]], words[1], shape)


def subject_of(
    source: str,
    arguments: Mapping[str, str],
    grid: Sequence[str],
    block: Sequence[str],
    sizes: Sequence[Mapping[str, int]],
    *,
    language: Language = "opencl",
    device: DeviceFacts = CPU,
    entry: str = "f",
    shared_bytes: str | None = None,
) -> Subject:
    """A subject without files."""
    file = Path("kernel.cl")
    problem = Problem(
        "test", file, SourceSpec(file, language, ()), None, ReferenceSpec(file, "f"),
        tuple(argument(name, text) for name, text in arguments.items()),
        tuple(Workload(str(index), dict(each)) for index, each in enumerate(sizes)), {},
    )  # fmt: skip
    step = launch_step(entry, tuple(grid), tuple(block), shared_bytes)
    return Subject.make(problem, source, Header(steps=(step,)), device, entry=entry)


def example(name: str, device: DeviceFacts = CPU, *, entry: str | None = None) -> Subject:
    """The baseline of an example as a subject."""
    problem = load_problem(EXAMPLES / name / "problem.toml")
    template = load_baseline(problem, load_template(problem)).template
    header = Header(steps=template.steps, options=template.options)
    return Subject.make(problem, strip_header(template.source), header, device, entry=entry)


# Configs


def configs(header: Header, sizes: Mapping[str, int], *, count: int, seed: int = 0) -> Iterator[dict[str, Value]]:
    """The defaults, corners, and random configs that the constraints allow on these sizes."""
    parameters = header.parameters
    default = {each.name: each.default for each in parameters}
    low = {each.name: each.values[0] for each in parameters}
    high = {each.name: each.values[-1] for each in parameters}
    mixed = [{**low, each.name: each.values[-1]} for each in parameters]
    random = np.random.default_rng(seed)
    drawn = ({each.name: each.values[int(random.integers(len(each.values)))] for each in parameters}
             for _ in itertools.count())  # fmt: skip
    seen: list[dict[str, Value]] = []
    for tried, config in enumerate(itertools.chain((default, low, high), mixed, drawn)):
        if len(seen) >= count or tried > 60 * count:
            return
        if config not in seen and is_allowed(header, config, sizes):
            seen.append(config)
            yield config


def is_allowed(header: Header, config: Mapping[str, Value], sizes: Mapping[str, int]) -> bool:
    """Whether a config meets constraints and device limits."""
    names = {**LIMITS, **sizes, **config}
    for condition in (each.expression for each in header.constraints):
        try:
            if not condition.evaluate(names):
                return False
        except SpecError:
            return False
    for step in header.steps:
        threads = np.prod([int(each.evaluate(names)) for each in step.block])
        if threads > 1024:
            return False
    return True


# Runs


def job(
    subject: Subject, source: str, header: Header, config: Mapping[str, Value], sizes: Mapping[str, int],
    arrays: Mapping[str, Array], *, repeats: int = 0,
) -> Job:  # fmt: skip
    """The program of one config on one set of sizes."""
    names: dict[str, Value] = {**LIMITS, **sizes, **config}
    known = {each.name: each for each in subject.problem.arguments}
    scratch = {each.name: each for each in header.scratch}
    kept = dict(arrays)

    def number(expression: Expression) -> int:
        value = expression.evaluate(names)
        assert isinstance(value, int)
        return value

    def three(values: list[int]) -> tuple[int, int, int]:
        x, y, z = (*values, 1, 1)[:3]
        return x, y, z

    def passed(name: str) -> Any:
        if name in scratch:
            each = scratch[name]
            count = int(np.prod([number(extent) for extent in each.shape]))
            if each.role == "local":
                return ("local", count * DTYPES[each.dtype].item_bytes)
            kept[name] = np.zeros(count, DTYPES[each.dtype].numpy_dtype)
            return name
        each_known = known[name]
        if each_known.role != "scalar":
            return name
        assert each_known.value is not None
        data = encode_scalar(each_known.dtype, each_known.value.evaluate(names))
        return np.frombuffer(data, DTYPES[each_known.dtype].numpy_dtype)[0]

    launches = tuple(
        Launch(
            step.entry,
            three([number(each) for each in step.grid]),
            three([number(each) for each in step.block]),
            tuple(passed(name) for name in step.arguments or ()),
        )
        for step in header.steps
    )
    macros = [(name, str(int(value)) if isinstance(value, bool) else str(value)) for name, value in config.items()]
    macros += [(name, str(number(each))) for name, each in header.defines.items()]
    options = tuple(option_text(each, names) for each in header.options)
    return Job(source, tuple(macros), options, launches, kept, repeats)


def inputs(subject: Subject, sizes: Mapping[str, int], *, seed: int = 0) -> dict[str, Array]:
    """Random inputs, poisoned outputs."""
    arrays = {}
    for each in subject.problem.arguments:
        if each.role in ("scalar", "local"):
            continue
        random = np.random.default_rng((seed, zlib.crc32(each.name.encode())))
        shape = tuple(int(extent.evaluate(sizes)) for extent in each.shape)
        dtype = DTYPES[each.dtype]
        if each.role in ("output", "scratch"):
            arrays[each.name] = np.full(int(np.prod(shape)), 0x5A, np.uint8).repeat(dtype.item_bytes).view(
                dtype.numpy_dtype).reshape(shape)  # fmt: skip
        elif dtype.kind == "float":
            low = each.distribution.low
            values = (
                random.normal(size=shape) if low is None else random.uniform(low, each.distribution.high or 1, shape)
            )
            arrays[each.name] = values.astype(dtype.numpy_dtype)
        else:
            arrays[each.name] = random.integers(0, 100, shape).astype(dtype.numpy_dtype)
    return arrays


def assert_loads(subject: Subject, rewrite: Rewrite) -> None:
    """The rewrite is a template that a run takes: whatever it declares is used."""
    template_of_text(subject.problem, rewrite.file_text, spec=subject.problem.kernel)


def run(
    runner: Runner | HostRunner, subject: Subject, source: str, header: Header, config: Mapping[str, Value],
    sizes: Mapping[str, int], *, seed: int = 0, repeats: int = 0,
) -> Result:  # fmt: skip
    """One config on random inputs."""
    return runner.run(job(subject, source, header, config, sizes, inputs(subject, sizes, seed=seed), repeats=repeats))


def assert_same(
    runner: Runner | HostRunner, subject: Subject, rewrite: Rewrite, sizes: Iterable[Mapping[str, int]], *,
    count: int = 6,
    rtol: float | None = None, seed: int = 0,
) -> int:  # fmt: skip
    """The rewrite gives what the original gives, for several configs on each set of sizes; how many were run."""
    done = 0
    for index, each in enumerate(sizes):
        defaults = {parameter.name: parameter.default for parameter in subject.header.parameters}
        expected = run(runner, subject, subject.source, subject.header, defaults, each, seed=index)
        assert not expected.error, f"the original on {each}: {expected.error}\n{subject.source}"
        for config in configs(rewrite.header, each, count=count, seed=index + seed):
            found = run(runner, subject, rewrite.source, rewrite.header, config, each, seed=index)
            assert not found.error, f"{rewrite.explanation} {config} on {each}: {found.error}\n{rewrite.file_text}"
            for argument_ in subject.problem.arguments:
                if argument_.role in ("output", "inout"):
                    _compare(argument_, expected.arrays[argument_.name], found.arrays[argument_.name],
                             f"{rewrite.explanation} {config} on {dict(each)}\n{rewrite.file_text}", rtol)  # fmt: skip
            done += 1
    return done


_RTOL = {"float32": 2e-5, "float16": 2e-3, "float64": 1e-12}


def _compare(argument_: Argument, expected: Array, found: Array, what: str, rtol: float | None) -> None:
    tolerance = _RTOL.get(argument_.dtype, 0.0) if rtol is None else rtol
    if tolerance == 0.0:
        assert (expected.view(np.uint8) == found.view(np.uint8)).all(), f"{argument_.name} differs: {what}"
        return
    left, right = expected.astype(np.float64), found.astype(np.float64)
    close = np.isclose(left, right, rtol=tolerance, atol=tolerance * (np.nanmax(np.abs(left), initial=0.0) + 1e-30),
                       equal_nan=True)  # fmt: skip
    if not close.all():
        at = tuple(int(i[0]) for i in np.nonzero(~close))
        raise AssertionError(
            f"{argument_.name}{list(at)}: {left[at]} became {right[at]} ({(~close).sum()} differ): {what}"
        )


def measured(
    runner: Runner | HostRunner,
    subject: Subject,
    rewrite: Rewrite,
    sizes: Mapping[str, int],
    *,
    count: int = 40,
    repeats: int = 5,
) -> tuple[float, float, dict[str, Value]]:
    """Milliseconds of the original and of the best of some configs, and that config."""
    defaults = {parameter.name: parameter.default for parameter in subject.header.parameters}
    base = run(runner, subject, subject.source, subject.header, defaults, sizes, repeats=repeats)
    best, chosen = float("inf"), {}
    for config in configs(rewrite.header, sizes, count=count):
        found = run(runner, subject, rewrite.source, rewrite.header, config, sizes, repeats=repeats)
        if not found.error and found.best_ms < best:
            best, chosen = found.best_ms, config
    return base.best_ms, best, chosen


__all__ = ["CPU", "GPU", "Rewrite", "Subject", "assert_loads", "assert_same", "configs", "example", "measured",
           "replace", "run", "subject_of"]  # fmt: skip

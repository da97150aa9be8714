"""How long it takes to know a feasible space, and how much memory, against other ways to do it.

Every measurement runs alone in a fresh process, with a limit on time and memory; peak memory is the process's own
high-water mark. What hits the time limit says how far it came, and a total estimated from that, marked as such.
"""

from __future__ import annotations

import itertools
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType

import numpy as np

from kernelwright.errors import InfrastructureError
from kernelwright.imports import require
from kernelwright.problem.config import Value
from kernelwright.problem.expressions.expression import Expression
from kernelwright.space.feasible import Space
from kernelwright.space.parameter import Constraint, Parameter
from kernelwright_bench.space.cases import CASES, SpaceCase

_CHUNK_ROWS = 2**20
_CHECK_EVERY = 2**16
_GRACE_S = 20.0
"""Beyond the limit a process is killed; methods that can look at the clock stop by themselves."""
_REPEATS = 5
_OTHER = "constraint"
_OTHER_PURPOSE = "the comparison with python-constraint2"


@dataclass(frozen=True, slots=True)
class SpaceMeasurement:
    """What one method took for one case."""

    case: str
    method: str
    raw_count: int
    feasible_count: int | None
    """None: it did not finish."""
    elapsed_s: float | None
    """From declared values and texts to a known set; the first time in a fresh process."""
    repeated_s: float | None
    """The best of five, for methods quick enough."""
    estimated_s: float | None
    """When stopped early: the time limit divided by the fraction of raw configurations seen."""
    peak_memory_mb: float | None
    """High-water mark of the whole process, interpreter and NumPy included (about 40 MB)."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Result:
    feasible_count: int | None
    fraction_seen: float = 1.0


def _build_space(case: SpaceCase, limit_s: float) -> _Result:
    del limit_s
    parameters = [Parameter(name, values, values[0]) for name, values in case.values.items()]
    constraints = [Constraint(text, Expression.parse(text)) for text in case.constraints]
    return _Result(Space.build(parameters, constraints).feasible_count)


def _solve_with_python_constraint(case: SpaceCase, limit_s: float) -> _Result:
    """python-constraint2 as auto-tuners use it: constraints as texts, its default solver, all solutions as tuples."""
    del limit_s
    module = require(_OTHER, purpose=_OTHER_PURPOSE)
    problem = module.Problem()
    for name, values in case.values.items():
        problem.addVariable(name, list(values))
    for text in case.constraints:
        problem.addConstraint(text)
    return _Result(len(problem.getSolutionsOrderedList(list(case.values))))


def _brute_force(case: SpaceCase, limit_s: float) -> _Result:
    """Every raw configuration through a hand-written Python function; what passes is kept."""
    accepts = case.accepts
    deadline = time.perf_counter() + limit_s
    raw = math.prod(len(values) for values in case.values.values())
    found: list[tuple[Value, ...]] = []
    product = itertools.product(*case.values.values())
    for seen in range(0, raw, _CHECK_EVERY):
        if time.perf_counter() > deadline:
            return _Result(None, seen / raw)
        found.extend(values for values in itertools.islice(product, _CHECK_EVERY) if accepts(*values))
    return _Result(len(found))


def _brute_force_columns(case: SpaceCase, limit_s: float) -> _Result:
    """Every raw configuration in NumPy columns, a million at a time, dropping rows constraint by constraint."""
    expressions = [Expression.parse(text) for text in case.constraints]
    deadline = time.perf_counter() + limit_s
    raw = math.prod(len(values) for values in case.values.values())
    kept: list[np.ndarray] = []
    for start in range(0, raw, _CHUNK_ROWS):
        if time.perf_counter() > deadline:
            return _Result(None, start / raw)
        rows = np.arange(start, min(start + _CHUNK_ROWS, raw))
        for expression in expressions:
            columns = dict(_columns(case, rows, expression.names))
            rows = rows[expression.evaluate_columns(columns)]
        kept.append(rows)
    return _Result(sum(rows.size for rows in kept))


def _columns(case: SpaceCase, rows: np.ndarray, names: frozenset[str]) -> Iterator[tuple[str, np.ndarray]]:
    stride = 1
    for name, values in reversed(list(case.values.items())):
        if name in names:
            yield name, np.array(values)[rows // stride % len(values)]
        stride *= len(values)


METHODS: Mapping[str, Callable[[SpaceCase, float], _Result]] = MappingProxyType({
    "kernelwright": _build_space,
    "python-constraint2": _solve_with_python_constraint,
    "brute force (Python)": _brute_force,
    "brute force (NumPy)": _brute_force_columns,
})  # fmt: skip


def measure_spaces(
    cases: Sequence[SpaceCase] = CASES,
    methods: Sequence[str] = tuple(METHODS),
    *,
    limit_s: float = 60.0,
    memory_limit_mb: int = 6000,
) -> Iterator[SpaceMeasurement]:
    """Measure each method on each case, one after the other, each in a fresh process.

    Args:
        cases: what to build.
        methods: names from `METHODS`.
        limit_s: seconds for one measurement.
        memory_limit_mb: address space of one measurement.

    Raises:
        InfrastructureError: a measurement's process failed in a way that is neither of its limits.
    """
    for case in cases:
        for method in methods:
            yield _measure(case, method, limit_s, memory_limit_mb)


def _measure(case: SpaceCase, method: str, limit_s: float, memory_limit_mb: int) -> SpaceMeasurement:
    raw = math.prod(len(values) for values in case.values.values())
    command = [sys.executable, "-m", __name__, case.name, method, str(limit_s), str(memory_limit_mb)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s + _GRACE_S, check=False)
    except subprocess.TimeoutExpired:
        return SpaceMeasurement(case.name, method, raw, None, None, None, None, None, f"over {limit_s:.0f} s")
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        if "MemoryError" in done.stderr:
            note = f"over {memory_limit_mb} MB"
            return SpaceMeasurement(case.name, method, raw, None, None, None, None, None, note)
        raise InfrastructureError(f"measuring {method} on {case.name} failed:\n{done.stderr[-2000:]}")
    return SpaceMeasurement(**json.loads(lines[-1]))


def run_one(case: SpaceCase, method: str, limit_s: float) -> SpaceMeasurement:
    """Measure in this process; its peak memory is only meaningful when it has done nothing else."""
    raw = math.prod(len(values) for values in case.values.values())
    run = METHODS[method]
    if run is _solve_with_python_constraint:
        require(_OTHER, purpose=_OTHER_PURPOSE)  # importing it is not its work
    begin = time.perf_counter()
    result = run(case, limit_s)
    elapsed_s = time.perf_counter() - begin
    peak_mb = _peak_memory_mb()
    if result.feasible_count is None:
        estimated_s = elapsed_s / result.fraction_seen if result.fraction_seen else None
        note = f"stopped after {result.fraction_seen:.2%}"
        return SpaceMeasurement(case.name, method, raw, None, None, None, estimated_s, peak_mb, note)
    repeated_s = None
    if elapsed_s < 1.0:
        repeats = []
        for _ in range(_REPEATS):
            begin = time.perf_counter()
            run(case, limit_s)
            repeats.append(time.perf_counter() - begin)
        repeated_s = min(repeats)
    return SpaceMeasurement(case.name, method, raw, result.feasible_count, elapsed_s, repeated_s, None, peak_mb)


def _peak_memory_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def markdown_table(rows: Sequence[SpaceMeasurement]) -> str:
    """The measurements as a Markdown table, one row each, with how much slower than `kernelwright` each one was."""
    ours = {row.case: row.elapsed_s for row in rows if row.method == "kernelwright"}
    lines = [
        "| space | raw | feasible | method | first time | best of five | times slower | peak memory |",
        "| --- | --: | --: | --- | --: | --: | --: | --: |",
    ]
    for row in rows:
        taken = row.elapsed_s if row.elapsed_s is not None else row.estimated_s
        base = ours.get(row.case)
        slower = f"{taken / base:,.0f}" if taken is not None and base else "?"
        lines.append(
            f"| {row.case} | {row.raw_count:.3g} | {'?' if row.feasible_count is None else f'{row.feasible_count:,}'} "
            f"| {row.method} | {_duration(row)} | {_seconds(row.repeated_s)} | {slower} "
            f"| {'?' if row.peak_memory_mb is None else f'{row.peak_memory_mb:.0f} MB'} |"
        )
    return "\n".join(lines)


def _duration(row: SpaceMeasurement) -> str:
    if row.elapsed_s is not None:
        return _seconds(row.elapsed_s)
    return f"about {_seconds(row.estimated_s)} ({row.note})" if row.estimated_s is not None else row.note


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value * 1e3:.2f} ms" if value < 1 else f"{value:,.1f} s"


def _main(arguments: Sequence[str]) -> None:
    name, method, limit_s, memory_limit_mb = arguments
    limit = int(memory_limit_mb) * 10**6
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    case = next(case for case in CASES if case.name == name)
    sys.stdout.write(json.dumps(asdict(run_one(case, method, float(limit_s)))) + "\n")


if __name__ == "__main__":
    _main(sys.argv[1:])

"""Building feasible spaces and asking for neighbours, against python-constraint2, Kernel Tuner and pyATF.

    python benchmarks/space_others.py T1_FILE... [--large] [--neighbours 1000]

Every measurement runs alone in a fresh process; memory is the process's own high-water mark, less what it was before.
Construction is from values and texts of constraints to a known set; constraints go to the last of their parameters in
pyATF, as its users write them. Neighbours are all feasible configurations that differ in one parameter from random
feasible ones, Kernel Tuner's (`Searchspace`, Hamming) built on python-constraint2; pyATF offers none.
Needs `pip install kernel_tuner pyatf`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernelwright.imports import require
from kernelwright.problem.config import Value
from kernelwright.problem.expressions.expression import Expression
from kernelwright.space.feasible import Space
from kernelwright.space.parameter import Constraint, Parameter
from kernelwright_bench.space.cases import CASES

PURPOSE = "comparing how spaces are built"
LIMIT_S = 120
MEMORY_BYTES = 6 * 10**9
Values = Mapping[str, Sequence[Value]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--large", action="store_true", help="the large spaces of `kernelwright bench space` too")
    parser.add_argument("--neighbours", type=int, default=1000, help="configurations to ask about")
    parser.add_argument("--one", metavar="METHOD", help=argparse.SUPPRESS)
    words = parser.parse_args()
    names = [*words.files, *(case.name for case in CASES if case.is_large and words.large)]
    if words.one:
        measure(words.one, *read(names[0]), words.neighbours)
        return
    print("| space | feasible | method | build | times slower | memory | neighbours of one | times slower |")
    print("| --- | --: | --- | --: | --: | --: | --: | --: |")
    for name in names:
        ours: dict[str, Any] = {}
        for method in METHODS:
            found = in_process(name, method, words.neighbours)
            ours = ours or found
            print(row_of(Path(name).stem, method, found, ours), flush=True)


def in_process(name: str, method: str, count: int) -> dict[str, Any]:
    """One measurement; `note` alone where it did not finish."""
    command = [sys.executable, __file__, name, "--one", method, "--neighbours", str(count)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"note": f"over {LIMIT_S} s"}
    if done.returncode:
        return {"note": "over 6 GB" if "MemoryError" in done.stderr else done.stderr.strip().splitlines()[-1][:80]}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def row_of(name: str, method: str, found: dict[str, Any], ours: dict[str, Any]) -> str:
    """One line of the table."""
    if "note" in found:
        return f"| {name} | | {method} | {found['note']} | | | | |"

    def slower(key: str) -> str:
        return f"{found[key] / ours[key]:.1f}" if found.get(key) and ours.get(key) and found is not ours else ""

    near = f"{1e6 * found['neighbours_s']:.0f} us" if found.get("neighbours_s") else ""
    return (
        f"| {name} | {found['count']:,} | {method} | {1e3 * found['build_s']:.2f} ms | {slower('build_s')} "
        f"| {found['memory_bytes'] / 1e6:.0f} MB | {near} | {slower('neighbours_s')} |"
    )


def read(name: str) -> tuple[Values, list[str]]:
    """Values and constraints of a T1 file, or of one of our cases."""
    for case in CASES:
        if case.name == name:
            return case.values, list(case.constraints)
    content = json.loads(Path(name).read_text())["ConfigurationSpace"]
    values = {each["Name"]: json.loads(each["Values"]) for each in content["TuningParameters"]}
    return values, [each["Expression"] for each in content["Conditions"]]


def measure(method: str, values: Values, texts: list[str], count: int) -> None:
    """Build once for the memory, again for the time where it is short; then the neighbours."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    prepare, build, near = METHODS[method]
    prepare()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        built, size = build(values, texts)
    build_s = time.perf_counter() - begin
    memory_bytes = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    if build_s < 1:
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            with contextlib.redirect_stdout(io.StringIO()):
                build(values, texts)
            times.append(time.perf_counter() - begin)
        build_s = min(times)
    neighbours_s = near(built, count) if near else None
    result = {"count": size, "build_s": build_s, "memory_bytes": memory_bytes, "neighbours_s": neighbours_s}
    print(json.dumps(result))


def build_ours(values: Values, texts: list[str]) -> tuple[Space, int]:
    parameters = [Parameter(name, tuple(options), options[0]) for name, options in values.items()]
    space = Space.build(parameters, [Constraint(text, Expression.parse(text)) for text in texts])
    return space, space.feasible_count


def near_ours(space: Space, count: int) -> float:
    configs = space.sample(count, np.random.default_rng(0))
    begin = time.perf_counter()
    for config in configs:
        space.neighbours(config, "hamming")
    return (time.perf_counter() - begin) / len(configs)


def build_python_constraint(values: Values, texts: list[str]) -> tuple[list[Any], int]:
    problem = require("constraint", purpose=PURPOSE).Problem()
    for name, options in values.items():
        problem.addVariable(name, list(options))
    for text in texts:
        problem.addConstraint(text)
    solutions = problem.getSolutionsOrderedList(list(values))
    return solutions, len(solutions)


def build_kernel_tuner(values: Values, texts: list[str]) -> tuple[Any, int]:
    module = require("kernel_tuner.searchspace", purpose=PURPOSE)
    space = module.Searchspace({name: list(options) for name, options in values.items()}, list(texts), 10**9)
    return space, space.size


def near_kernel_tuner(space: Any, count: int) -> float:
    rng = random.Random(0)
    configs = rng.sample(list(space.list), min(count, space.size))
    begin = time.perf_counter()
    asked = 0
    while asked < len(configs) and time.perf_counter() - begin < LIMIT_S / 4:
        space.get_neighbors_no_cache(configs[asked], neighbor_method="Hamming")
        asked += 1
    return (time.perf_counter() - begin) / asked


def build_pyatf(values: Values, texts: list[str]) -> tuple[Any, int]:
    """Each constraint is the condition of the last of its parameters."""
    pyatf = require("pyatf", purpose=PURPOSE)
    spaces = require("pyatf.search_space", purpose=PURPOSE)
    order = list(values)
    conditions: dict[str, list[str]] = {name: [] for name in order}
    for text in texts:
        names = Expression.parse(text).names
        conditions[max(names, key=order.index)].append(text)
    parameters = [
        pyatf.TP(name, pyatf.Set(*options), condition_of(name, conditions[name])) for name, options in values.items()
    ]
    space = spaces.SearchSpace(*parameters, verbosity=0)
    return space, int(space.constrained_size)


def condition_of(name: str, texts: list[str]) -> Callable[..., bool] | None:
    """The texts as the Python function that a user of pyATF writes; they have been parsed, so hold arithmetic only."""
    if not texts:
        return None
    names = {name}.union(*(Expression.parse(text).names for text in texts))
    condition: Callable[..., bool] = eval(f"lambda {', '.join(sorted(names))}: ({') and ('.join(texts)})")
    return condition


def imports(*names: str) -> Callable[[], None]:
    """Importing a tool is not its work."""

    def run() -> None:
        for name in names:
            require(name, purpose=PURPOSE)

    return run


METHODS: dict[str, tuple[Callable[[], None], Callable[[Values, list[str]], Any], Callable[[Any, int], float] | None]]
METHODS = {
    "kernelwright": (imports(), build_ours, near_ours),
    "python-constraint2": (imports("constraint"), build_python_constraint, None),
    "Kernel Tuner": (imports("kernel_tuner.searchspace"), build_kernel_tuner, near_kernel_tuner),
    "pyATF": (imports("pyatf", "pyatf.search_space"), build_pyatf, None),
}

if __name__ == "__main__":
    main()

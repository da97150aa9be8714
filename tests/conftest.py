"""Fixtures that several areas share: a cache of their own, and a small real problem."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer.main
from hypothesis import HealthCheck, settings

import tiers

# How long an example takes says something of the machine and what else it does, not of what is tested.
settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("few", settings.get_profile("any-machine"), max_examples=tiers.WHOLE // 5)
settings.load_profile("any-machine")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    # Started in the background of a shell: children would inherit the deafness, and these tests interrupt them.
    signal.signal(signal.SIGINT, signal.default_int_handler)

if os.environ.pop("PYTHONDONTWRITEBYTECODE", None) and "PYTHONPYCACHEPREFIX" not in os.environ:
    # Hundreds of processes are started, and each would compile all that it imports. Kept out of the source folders.
    bytecode = Path(__file__).parent.parent / ".pytest_cache" / "bytecode"
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(bytecode)
    sys.dont_write_bytecode = False

for library in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    # Every core has a process of tests; threads that wait for work spin beside them, at each start of a worker too.
    os.environ.setdefault(library, "1")

LONG_AREAS = ("faults", "runs", "evaluate", "cli", "llm", "export")
"""Of few tests that take long each: begun first, so that processes of tests end at about the same time."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Long runs of what is drawn at random."""
    what = "so many times as many random programs, configurations and examples"
    parser.addoption("--times", type=int, default=1, metavar="N", help=what)


def pytest_configure(config: pytest.Config) -> None:
    """Before any test is imported."""
    tiers.TIMES = config.getoption("times")
    if tiers.TIMES != 1:
        settings.register_profile("times", settings.default, max_examples=settings.default.max_examples * tiers.TIMES)
        settings.load_profile("times")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put modules that take long before the others, and tell what is of the second tier."""
    items.sort(key=lambda item: LONG_AREAS.index(area) if (area := item.path.parent.name) in LONG_AREAS else 99)
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for same in cases.values():
        if few := same[0].get_closest_marker("few"):
            _leave_few(same, *few.args, **few.kwargs)


def _leave_few(cases: list[pytest.Item], count: int, free: Callable[..., object] = lambda **_: False) -> None:
    costly = [item for item in cases if not free(**item.callspec.params)]  # type: ignore[attr-defined]
    first = {len(costly) * number // count for number in range(count)}
    for number in set(range(len(costly))) - first:
        costly[number].add_marker("thorough")


SAXPY = """// /// kernelwright
// [parameters]
// BLOCK = { values = [16, 32, 64, 128], default = 32, why = "threads of a block" }
// ITEMS = { values = [1, 2, 4, 8], default = 1, why = "elements of a thread" }
// [constraints]
// whole = "n % (BLOCK * ITEMS) == 0"
// [launch]
// grid = ["n // (BLOCK * ITEMS)"]
// block = ["BLOCK"]
// ///
#ifndef BLOCK
#define BLOCK 32
#endif
#ifndef ITEMS
#define ITEMS 1
#endif
__kernel void saxpy(__global const float *x, __global float *y, float a, int n)
{
    int base = get_global_id(0) * ITEMS;
    for (int k = 0; k < ITEMS; k++)
        if (base + k < n) y[base + k] = a * x[base + k] + y[base + k];
}
"""

PROBLEM = """name = "saxpy"
kernel = "saxpy.cl"
entry = "saxpy"
reference = "reference.py:saxpy"

[arguments]
x = { role = "input", dtype = "float32", shape = ["n"] }
y = { role = "inout", dtype = "float32", shape = ["n"] }
a = { role = "scalar", dtype = "float32", value = "2.5" }
n = { role = "scalar", dtype = "int32", value = "n" }

[launch]
grid = ["n // 32"]
block = ["32"]

[[workloads]]
name = "small"
n = 4096

[[workloads]]
name = "large"
n = 65536
weight = 2
"""

LARGE = PROBLEM[PROBLEM.rindex("[[workloads]]") :]

REFERENCE = """def saxpy(x, y, a):
    return a * x + y
"""

SLOW_BASELINE = """__kernel void saxpy(__global const float *x, __global float *y, float a, int n)
{
    int i = get_global_id(0);
    volatile float result = 0.0f;
    for (int repeat = 0; repeat < 200; repeat++) result = a * x[i] + y[i];
    y[i] = result;
}
"""


@pytest.fixture(autouse=True)
def own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test remembers what it has learnt itself, and leaves the user's library alone."""
    monkeypatch.setenv("KERNELWRIGHT_HOME", str(tmp_path / "kernelwright-home"))


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep artifacts of tests out of the user's cache, one folder for all processes of one test run."""
    folder = os.environ.get("KERNELWRIGHT_TEST_CACHE")
    if not folder:
        root = tmp_path_factory.getbasetemp()
        folder = str((root.parent if os.environ.get("PYTEST_XDIST_WORKER") else root) / "cache")
    os.environ["KERNELWRIGHT_CACHE_DIR"] = folder
    os.environ["KERNELWRIGHT_HOME"] = str(tmp_path_factory.mktemp("home"))  # of fixtures that outlive a test


@pytest.fixture(autouse=True, scope="session")
def short_copies() -> Iterator[None]:
    """Each run measures how fast its device copies; as much as it takes for that costs more than most runs here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kernelwright.evaluate.device_queue.queue.CEILING_BYTES", 16 << 20)
        yield


@pytest.fixture(autouse=True, scope="session")
def parsed_once() -> Iterator[None]:
    """A process of a person's makes the table of all commands and options once; one of tests makes it once too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.main.get_command", functools.cache(typer.main.get_command))
        yield


def _write_saxpy(folder: Path, *changes: tuple[str, str], is_beatable: bool = False, is_small: bool = False) -> Path:
    source = SAXPY
    for old, new in changes:
        assert old in source
        source = source.replace(old, new, 1)
    folder.mkdir()
    (folder / "saxpy.cl").write_text(source)
    (folder / "problem.toml").write_text(PROBLEM.replace(LARGE, "") if is_small else PROBLEM)
    (folder / "reference.py").write_text(REFERENCE)
    if is_beatable:
        (folder / "slow.cl").write_text(SLOW_BASELINE)
        with (folder / "problem.toml").open("a") as file:
            file.write('\n[baseline]\nkernel = "slow.cl"\n')
    return folder


@pytest.fixture(scope="session")
def write_saxpy() -> Callable[..., Path]:
    """Write the saxpy problem into a new folder, with `(old, new)` changes to its source.

    `is_beatable` gives it a baseline so slow that every configuration surely beats it.
    `is_small` leaves out the large workload.
    """
    return _write_saxpy


@pytest.fixture
def saxpy(tmp_path: Path) -> Path:
    """A problem folder: one template with two parameters, an in-place argument, two workloads."""
    return _write_saxpy(tmp_path / "saxpy")


@pytest.fixture
def beatable_saxpy(tmp_path: Path) -> Path:
    """The same with a baseline so slow that every configuration surely beats it."""
    return _write_saxpy(tmp_path / "saxpy", is_beatable=True)


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder

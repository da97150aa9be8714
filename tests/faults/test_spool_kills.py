"""Either side of a spool may be killed at any time: a real device, real processes, `kill -9`."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_runs import CliRun, events, start, wait_until

from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.store.view import RunView

pytestmark = pytest.mark.opencl

Start = Callable[..., CliRun]

SHORT = ("--searcher", "random", "--finalists", 2)
"""What is searched, and how, has other tests."""

PLAIN = """__kernel void saxpy(__global const float *x, __global float *y, float a, int n)
{
    const int i = get_global_id(0);
    if (i >= n) {
        return;
    }
    y[i] = a * x[i] + y[i];
}
"""


@pytest.fixture
def plain(tmp_path: Path, write_saxpy: Callable[..., Path]) -> Path:
    """A kernel without parameters."""
    folder = write_saxpy(tmp_path / "plain")
    (folder / "saxpy.cl").write_text(PLAIN)
    text = (folder / "problem.toml").read_text()
    (folder / "problem.toml").write_text(text.replace("n // 32", "ceil_div(n, 32)"))
    return folder


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Start]:
    """Starts commands; what is still running at the end of the test is killed."""
    started: list[CliRun] = []

    def run(*words: object) -> CliRun:
        started.append(start(*words, folder=tmp_path / "run", scratch=tmp_path / "scratch"))
        return started[-1]

    yield run
    for each in started:
        each.process.kill()
        each.process.communicate()


@pytest.mark.thorough
def test_both_sides_are_killed_at_random_and_the_run_comes_to_its_end(
    plain: Path, tmp_path: Path, begin: Start
) -> None:
    rng, run, spool = random.Random(5), tmp_path / "run", tmp_path / "spool"
    results = spool / "results"
    parts = ("--part", 2, "--budget", 8, "--in-flight", 2)
    words = ("--runner", f"spool:{spool}", *parts, "--jobs", 1, "--rounds", 9, *SHORT)
    asking = begin("optimize", plain, "--run", run, *words)
    working = begin("worker", "--spool", spool, "--create")  # whoever is first
    wait_until(lambda: len(events(run)) >= 3)
    time.sleep(rng.uniform(0.2, 2.0))
    working.process.kill()
    working = begin("worker", "--spool", spool)
    time.sleep(rng.uniform(0.2, 2.0))
    asking.process.kill()
    asking.process.communicate()
    asking = begin("resume", run)
    wait_until(lambda: asking.process.poll() is not None, patience_s=600)
    status, out, err = asking.finish()
    assert status == 0, (out, err)
    result = OptimizeResult.read(run)
    assert result.reason in ("budget", "exhausted", "no-gain")
    assert result.view.comparison is not None
    for node in (run / "nodes").iterdir():
        view = RunView.read(node)
        assert [event.index for event in view.evaluations] == list(range(len(view.evaluations)))
    requests = {path.name for path in (spool / "requests").glob("*.json") if not path.name.startswith(".")}
    assert {path.name for path in results.iterdir() if not path.name.startswith(".")} == requests
    working.process.terminate()
    status, _, err = working.finish()
    assert status == 130
    assert "interrupted" in err
    assert not list((spool / "claims").glob("[0-9a-f]*.json"))


@pytest.mark.thorough
def test_ctrl_c_gives_the_claim_back_and_until_idle_ends(plain: Path, tmp_path: Path, begin: Start) -> None:
    run, spool = tmp_path / "run", tmp_path / "spool"
    words = ("--runner", f"spool:{spool}", "--part", 3, "--budget", 8, "--jobs", 1, *SHORT)
    asking = begin("optimize", plain, "--run", run, *words)
    wait_until(lambda: (spool / "requests").is_dir() and any((spool / "requests").glob("*.json")))
    working = begin("worker", "--spool", spool)
    wait_until(lambda: any((spool / "claims").glob("*.json")))
    working.process.send_signal(2)
    status, _, err = working.finish()
    assert status == 130
    assert "interrupted: 0 requests done" in err
    assert not list((spool / "claims").glob("[0-9a-f]*.json"))
    status, _, err = begin("worker", "--spool", spool, "--until-idle").finish()
    assert status == 0
    assert "1 requests done, 0 left" in err
    wait_until(lambda: len(events(run)) >= 3)
    asking.process.send_signal(2)
    status, _, err = asking.finish()
    assert status == 130
    assert RunView.read(run).finished is not None

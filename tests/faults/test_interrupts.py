"""One press of Ctrl-C ends a command, whenever it comes: promptly, in words, with a run that can go on."""

from __future__ import annotations

import contextlib
import gc
import resource
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_runs import CliRun, children_of, is_running, start, wait_until

from kernelwright.cli.interrupts import heard_interrupts
from kernelwright.store.view import RunView

PATIENCE_S = 300.0
"""For a loaded machine; nothing here waits that long when all is well."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


class Eats:
    """Is interrupted where nobody can catch it: Python drops what a signal raises in a destructor."""

    def __init__(self, presses: list[int]) -> None:
        self.presses = presses

    def __del__(self) -> None:
        self.presses.append(1)
        signal.raise_signal(signal.SIGINT)
        time.sleep(0)  # the handler has run by now


class Cycle:
    def __init__(self, presses: list[int]) -> None:
        self.me, self.eats = self, Eats(presses)


def in_a_destructor(presses: list[int]) -> None:
    Eats(presses)


def in_the_garbage_collector(presses: list[int]) -> None:
    Cycle(presses)
    gc.collect()


def in_a_callback_of_a_weak_reference(presses: list[int]) -> None:
    class Thing:
        pass

    def gone(_: object) -> None:
        presses.append(1)
        signal.raise_signal(signal.SIGINT)
        time.sleep(0)

    thing = Thing()
    reference = weakref.ref(thing, gone)
    del thing
    assert reference() is None


@pytest.mark.parametrize(
    "drops",
    [in_a_destructor, in_the_garbage_collector, in_a_callback_of_a_weak_reference],
    ids=lambda each: each.__name__,
)
def test_an_interrupt_that_python_drops_is_heard_all_the_same(drops: Callable[[list[int]], None]) -> None:
    presses: list[int] = []

    def press_once() -> None:
        drops(presses)
        threading.Event().wait(PATIENCE_S)  # in vain, where nothing is heard

    with heard_interrupts(), pytest.raises(KeyboardInterrupt):
        press_once()
    assert presses == [1]


def test_other_errors_that_nobody_can_catch_go_where_they_went(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails:
        def __del__(self) -> None:
            raise ValueError("lost")

    heard: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: heard.append(unraisable.exc_type))
    with heard_interrupts():
        Fails()
    assert heard == [ValueError]


# -- at many moments of a run


@pytest.fixture
def runs(beatable_saxpy: Path, tmp_path: Path) -> Iterator[Callable[[str], CliRun]]:
    """Starts a short `tune` into a folder of the given name."""
    started: list[CliRun] = []

    def begin(name: str) -> CliRun:
        words = (
            "tune",
            beatable_saxpy,
            "--budget",
            4,
            "--searcher",
            "random",
            "--jobs",
            1,
            "--finalists",
            1,
            "--rounds",
            5,
        )
        run = start(*words, "--run", tmp_path / name, folder=tmp_path / name, scratch=tmp_path / "scratch")
        started.append(run)
        return run

    yield begin
    for run in started:
        if run.process.poll() is None:
            run.process.kill()
        run.process.communicate()


def first_line(run: CliRun) -> None:
    """Returns when the command is at work: before that, it is Python that starts."""
    assert run.process.stderr is not None
    assert run.process.stderr.readline()


def ended(run: CliRun) -> tuple[int, str, str]:
    out, err = run.process.communicate(timeout=PATIENCE_S)
    return run.process.returncode, out, err


@pytest.mark.thorough
def test_one_press_ends_a_run_at_any_moment_and_it_can_go_on(runs: Callable[[str], CliRun], tmp_path: Path) -> None:
    whole = runs("whole")
    first_line(whole)
    begin_s = time.monotonic()
    status, _, err = ended(whole)
    assert status == 0, err
    length_s = time.monotonic() - begin_s  # moments are parts of it, whatever the machine
    for number, part in enumerate((0.0, 0.4, 0.8)):
        run = runs(f"run-{number}")
        first_line(run)
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.process.wait(timeout=part * length_s)
        workers = children_of(run.process.pid)
        run.process.send_signal(signal.SIGINT)
        status, out, err = ended(run)  # after patience with one press this fails
        told = (part, status, out, err)
        assert "Traceback" not in err, told
        assert "Exception ignored" not in err, told
        wait_until(lambda of=workers: not any(map(is_running, of)), patience_s=PATIENCE_S)  # type: ignore[misc]
        if status != 130:  # the machine was faster than the whole run before: it had ended
            assert status in (0, -signal.SIGINT), told
            assert RunView.read(run.folder).finished is not None, told
            continue
        if not (run.folder / "events.jsonl").exists():  # nothing had begun, and nothing is left to clean up
            assert not run.folder.exists(), told
            continue
        again = start("resume", run.folder, folder=run.folder, scratch=tmp_path / "scratch")
        resumed, _, err = ended(again)
        assert resumed == 0, (part, err)
        view = RunView.read(run.folder)
        assert view.finished is not None
        assert view.finished.reason == "budget"
        assert len(view.evaluations) == 4


# -- while a compiler is at macros without end


def explodes(problem: Path) -> None:
    """Four times as much with each macro: no compiler comes to the end of it."""
    macros = "#define M0 ;\n" + "".join(f"#define M{k} {f'M{k - 1} ' * 4}\n" for k in range(1, 40))
    source = (problem / "saxpy.cl").read_text()
    assert "int base" in source
    (problem / "saxpy.cl").write_text(
        source.replace("__kernel", f"{macros}__kernel").replace("int base", "M39 int base")
    )


def resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError):
        return 0


@pytest.mark.few(1)
@pytest.mark.opencl
@pytest.mark.parametrize("command", ["tune", "optimize"])
def test_one_press_ends_a_compile_that_explodes(command: str, saxpy: Path, tmp_path: Path) -> None:
    explodes(saxpy)
    words = (command, saxpy, "--budget", "60s", "--jobs", 1, "--run", tmp_path / "run")
    run = start(*words, folder=tmp_path / "run", scratch=tmp_path / "scratch")
    try:
        wait_until(
            lambda: run.process.poll() is not None or resident_bytes(run.workers().get("build-0", 0)) > 300 << 20,
            patience_s=PATIENCE_S,
        )
        workers = children_of(run.process.pid)
        assert run.process.poll() is None, ended(run)
        run.process.send_signal(signal.SIGINT)
        status, _, err = ended(run)
    finally:
        run.process.kill()
    assert status == 130, err
    assert "Traceback" not in err
    wait_until(lambda: not any(map(is_running, workers)), patience_s=PATIENCE_S)
    assert not list((tmp_path / "scratch").iterdir())

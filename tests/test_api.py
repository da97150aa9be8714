"""The Python API, as `kernelwright`'s own docstring shows it."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kernelwright
from busy import believe_every_gain, ignore_busy_machine_in_runs
from kernelwright import api
from kernelwright.store.event import Event
from kernelwright.tuning.listener import Progress

EVALUATIONS = 5


class Recorder:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.phases: list[str] = []

    def on_event(self, event: Event, progress: Progress) -> None:
        self.kinds.append(event.kind)

    def on_progress(self, progress: Progress) -> None:
        if progress.phase not in self.phases:
            self.phases.append(progress.phase)


@pytest.fixture(scope="module")
def heard() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
def result(
    tmp_path_factory: pytest.TempPathFactory, write_saxpy: Callable[..., Path], heard: Recorder
) -> kernelwright.TuneResult:
    folder = tmp_path_factory.mktemp("api")
    problem = kernelwright.load_problem(write_saxpy(folder / "saxpy", is_beatable=True))
    with pytest.MonkeyPatch.context() as patch:
        ignore_busy_machine_in_runs(patch)
        believe_every_gain(patch)
        return kernelwright.tune(
            problem,
            budget=kernelwright.Budget(evaluations=EVALUATIONS),
            searcher="random",
            seed=3,
            build_processes=1,
            run=folder / "run",
            listener=heard,
        )


# -- names -------------------------------------------------------------------------------------------------------------


def test_every_public_name_resolves_and_is_the_same_everywhere() -> None:
    assert set(kernelwright.__all__) == {*api.__all__, "__version__"}
    assert dir(kernelwright) == sorted(kernelwright.__all__)
    for name in api.__all__:
        assert getattr(kernelwright, name) is getattr(api, name)
    with pytest.raises(AttributeError, match="has no attribute 'tuen'"):
        kernelwright.tuen  # noqa: B018


def test_every_public_name_is_documented() -> None:
    for name in api.__all__:
        assert inspect.getdoc(getattr(api, name)), name
    parameters = inspect.signature(kernelwright.tune).parameters
    documented = inspect.getdoc(kernelwright.tune) or ""
    assert [name for name in parameters if not re.search(rf"^ +{name}: ", documented, re.MULTILINE)] == []


def test_star_import_gives_the_documented_names() -> None:
    names: dict[str, Any] = {}
    exec("from kernelwright import *", names)
    assert set(kernelwright.__all__) <= names.keys()


def test_loading_a_problem_imports_no_device_library(saxpy: Path) -> None:
    program = (
        "import sys, kernelwright\n"
        f"kernelwright.load_problem({str(saxpy)!r})\n"
        "assert not {'pyopencl', 'torch', 'cuda', 'cupy'} & sys.modules.keys(), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda saxpy: kernelwright.load_problem(saxpy / "nowhere"), "does not exist"),
        (lambda saxpy: kernelwright.tune(saxpy, budget="soon"), "'soon' in the budget"),
        (lambda saxpy: kernelwright.tune(saxpy, prior_runs=[saxpy]), "is not a run folder"),
        (lambda saxpy: kernelwright.tune(saxpy, searcher="hopeful"), "no searcher 'hopeful'"),
        (lambda saxpy: kernelwright.tune(saxpy, device="abacus"), "no device fits 'abacus'"),
        (kernelwright.resume, "is not a run folder"),
        (kernelwright.replay, "is not a run folder"),
        (lambda saxpy: kernelwright.write_report(saxpy, saxpy / "report.html"), "is not a run folder"),
        (lambda saxpy: kernelwright.export_run(saxpy, saxpy / "out", formats=["json"]), "is not a run folder"),
    ],
)
@pytest.mark.opencl
def test_mistakes_raise_one_kind_of_error(
    call: Callable[[Path], object], words: str, saxpy: Path, in_tmp: Path
) -> None:
    before = sorted(saxpy.rglob("*"))
    with pytest.raises(kernelwright.KernelwrightError, match=words):
        call(saxpy)
    assert sorted(saxpy.rglob("*")) == before
    assert not [path for path in in_tmp.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (lambda: kernelwright.TuneSettings(seed=-1), "seed is -1"),
        (lambda: kernelwright.TuneSettings(build_processes=0), "build_processes is 0"),
        (lambda: kernelwright.TuneSettings(launch_timeout_s=float("nan")), "launch_timeout_s is nan"),
        (lambda: kernelwright.TuneSettings(cache="warm"), "'warm'"),  # type: ignore[arg-type]
        (lambda: kernelwright.Budget(evaluations=0), "evaluations is 0"),
        (lambda: kernelwright.Budget(seconds=-1.0), r"seconds is -1\.0"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: Callable[[], object], words: str) -> None:
    with pytest.raises(kernelwright.KernelwrightError, match=words):
        settings()


# -- a run -------------------------------------------------------------------------------------------------------------


@pytest.mark.opencl
def test_result_has_the_winner_and_its_claim(result: kernelwright.TuneResult) -> None:
    assert result.reason == "budget"
    assert isinstance(result.best_config, kernelwright.Config)
    assert result.best_config.keys() == {"BLOCK", "ITEMS"}
    assert result.speedup is not None
    assert result.speedup.low <= result.speedup.estimate <= result.speedup.high
    assert result.is_gain
    assert [row.workload for row in result.workloads] == ["small", "large"]
    for row in result.workloads:
        assert 0 < row.best_ms < row.baseline_ms
        assert 0 < row.specialised_ms < row.baseline_ms
        assert row.speedup is not None
        assert row.specialised_speedup is not None
        assert row.specialised_speedup.estimate >= row.speedup.estimate  # by rounds, as ranks and claims are
    assert result.folder is not None
    assert kernelwright.RunView.read(result.folder).fastest == result.view.fastest


@pytest.mark.opencl
def test_frame_has_one_row_for_each_evaluation(result: kernelwright.TuneResult) -> None:
    pandas = pytest.importorskip("pandas")
    frame = result.frame()
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) == EVALUATIONS
    assert {"BLOCK", "ITEMS"} <= set(frame.columns)
    for event, (_, row) in zip(result.view.evaluations, frame.iterrows(), strict=True):
        assert {name: row[name] for name in event.config} == dict(event.config)
    assert frame.select_dtypes("number").shape[1] >= 4


@pytest.mark.opencl
def test_listener_hears_everything_in_order(result: kernelwright.TuneResult, heard: Recorder) -> None:
    assert result.reason == "budget"
    assert [kind for kind in heard.kinds if kind != "noted"] == [  # what a busy machine makes worth a note differs
        "run_started", "session_started", "baseline_measured", *["evaluated"] * EVALUATIONS, "finalists_compared",
        "run_finished",
    ]  # fmt: skip
    assert heard.phases == ["prepare", "baseline", "search", "compare", "done"]


@pytest.mark.opencl
def test_the_same_seed_asks_for_the_same_configurations(result: kernelwright.TuneResult, tmp_path: Path) -> None:
    assert result.folder is not None
    settings = kernelwright.TuneSettings(budget=kernelwright.Budget(evaluations=EVALUATIONS), searcher="random", seed=3)
    again = kernelwright.replay(result.folder, settings=settings, run=tmp_path / "again")
    assert len(again.view.evaluations) == EVALUATIONS
    assert not again.view.failed  # every config that it asked for had been recorded


@pytest.mark.opencl
def test_report_and_exports_are_written(result: kernelwright.TuneResult, tmp_path: Path) -> None:
    assert result.folder is not None
    page = kernelwright.write_report(result.folder, tmp_path / "report.html")
    assert page.read_text().lower().startswith("<!doctype html>")
    (source,) = kernelwright.export_run(result.folder, tmp_path / "out", formats=["source"])
    assert "#define BLOCK" in source.read_text()


@pytest.mark.opencl
def test_paths_may_be_text(result: kernelwright.TuneResult, tmp_path: Path) -> None:
    run = str(result.folder)
    assert kernelwright.write_report(run, str(tmp_path / "report.html")).is_file()
    assert len(kernelwright.export_run(run, str(tmp_path / "all"))) == 6
    assert kernelwright.resume(run).reason == "budget"
    assert kernelwright.replay(run, run=str(tmp_path / "again")).folder == tmp_path / "again"


@pytest.mark.opencl
def test_resume_of_a_finished_run_gives_its_result(result: kernelwright.TuneResult) -> None:
    assert result.folder is not None
    assert kernelwright.resume(result.folder).best_config == result.best_config


@pytest.mark.parametrize("given", [5, None, b"problem.toml"])
def test_a_problem_that_is_no_path_is_named(given: object) -> None:
    with pytest.raises(kernelwright.KernelwrightError, match="expected a path") as caught:
        kernelwright.load_problem(given)  # type: ignore[arg-type]
    assert repr(given) in caught.value.message


@pytest.mark.parametrize("budget", [-1, 5.5, None])
def test_a_budget_that_is_none_is_named(budget: object, saxpy: Path, tmp_path: Path) -> None:
    with pytest.raises(kernelwright.KernelwrightError, match="budget") as caught:
        kernelwright.tune(saxpy, budget=budget, run=tmp_path / "run")  # type: ignore[arg-type]
    assert repr(budget) in caught.value.message
    assert not (tmp_path / "run").exists()

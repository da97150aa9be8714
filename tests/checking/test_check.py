"""`check`: what ships is measured again, and each of the things that can be said of it is said."""

from __future__ import annotations

import json
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from busy import believe_every_gain, ignore_busy_machine_in_runs
from kernelwright.checking.check import check
from kernelwright.checking.documents import check_record, exit_status, junit_text
from kernelwright.cli.main import app
from kernelwright.errors import BaselineFailed, SpecError, UserError
from kernelwright.evaluate.base import Comparison
from kernelwright.export.choice import SUFFIX, choice_of, read_choices, write_choice
from kernelwright.export.run import export_choice, export_run
from kernelwright.export.subject import ExportedRun
from kernelwright.problem.config import Config
from kernelwright.problem.model import Problem, Workload
from kernelwright.problem.outcome import Cost, Failed, Passed
from kernelwright.template.model import Candidate
from kernelwright.testing.simulated import CostFunction, SimulatedMachine, SimulatedRunner
from kernelwright.tuning.settings import Budget, TuneSettings
from kernelwright.tuning.tune import tune

NOISE = 0.02


def cost(config: Config, workload: Workload) -> float:
    if not config:
        return 10.0
    return (
        2.0 + 0.02 * abs(int(config["BLOCK"]) - 64) + 0.5 * abs(int(config["ITEMS"]) - 2) + workload.sizes["n"] * 1e-6
    )


def made_slower(factor: float, *, where: str = "") -> CostFunction:
    """The same machine, on which every config (and not the baseline) takes so many times as long on a workload."""

    def slowed(config: Config, workload: Workload) -> float:
        time_ms = cost(config, workload)
        return time_ms * factor if config and where in workload.name else time_ms

    return slowed


def store_of(problem: Path, folder: Path, *, seed: int = 0) -> Path:
    settings = TuneSettings(budget=Budget(evaluations=16), searcher="exhaustive", data_seed=1)
    tune(problem, settings=settings, run=folder / "run", machine=SimulatedMachine(cost, noise=NOISE, seed=seed))
    export_choice(folder / "run", folder / "store")
    return folder / "store"


@pytest.fixture
def store(beatable_saxpy: Path, tmp_path: Path) -> Path:
    return store_of(beatable_saxpy, tmp_path)


def checked(store: Path, machine: SimulatedMachine) -> tuple[str, str]:
    found = check([store], machine=machine)
    assert len(found) == 1
    return found[0].kind, found[0].words


# -- verdicts ----------------------------------------------------------------------------------------------------------


def test_what_is_as_it_was_holds(store: Path) -> None:
    kind, words = checked(store, SimulatedMachine(cost, noise=NOISE, seed=5))
    assert kind == "holds"
    assert "on small" in words
    assert "on large" in words


def test_a_slowdown_on_one_workload_is_told_with_its_interval(store: Path) -> None:
    kind, words = checked(store, SimulatedMachine(made_slower(1.08, where="large"), noise=NOISE, seed=5))
    assert kind == "slower"
    assert words.startswith("on large it runs at 0.9")
    assert "[0." in words
    assert "small" not in words


def test_what_loses_against_its_baseline_is_slower_on_any_device(store: Path) -> None:
    path = store / f"saxpy{SUFFIX}"
    path.write_text(path.read_text().replace('device = "simulated device"', 'device = "another"'))
    kind, words = checked(store, SimulatedMachine(made_slower(6.0), noise=NOISE, seed=5))
    assert kind == "slower"
    assert "the speed of the baseline" in words


def test_of_another_device_only_the_baseline_counts(store: Path) -> None:
    path = store / f"saxpy{SUFFIX}"
    path.write_text(path.read_text().replace('device = "simulated device"', 'device = "another"'))
    kind, words = checked(store, SimulatedMachine(made_slower(1.5), noise=NOISE, seed=5))
    assert kind == "holds"
    assert "chosen on another device, another" in words


def test_a_config_that_fails_the_check_is_wrong(store: Path) -> None:
    def broken(config: Config, workload: Workload) -> float | Failed:
        return Failed("check", "mismatch", "y[3] is 7, expected 8", workload="large") if config else 10.0

    kind, words = checked(store, SimulatedMachine(broken, noise=NOISE))
    assert kind == "wrong"
    assert "fails on large: check, y[3] is 7, expected 8" in words


def test_a_rival_that_is_surely_faster_is_told(store: Path) -> None:
    best = read_choices(store / f"saxpy{SUFFIX}")[0].configs[0]

    def changed(config: Config, workload: Workload) -> float:
        return 2.0 if config == best else 1.6 if config else 10.0

    found = check([store], machine=SimulatedMachine(changed, noise=NOISE))[0]
    assert found.kind == "better"
    assert "is 1.2" in found.words
    assert exit_status([found]) == 0


class _DroppingRunner(SimulatedRunner):
    def compare(self, candidates: Sequence[Candidate], *, rounds: int) -> Comparison | None:
        """As the real one, which leaves out what fails in the middle of it: here the last."""
        found = super().compare(candidates[:-1], rounds=rounds)
        assert found is not None
        return replace(found, rejected={candidates[-1].id: "it wrote outside of 'y'"})


class _DroppingMachine(SimulatedMachine):
    def runner(self, problem: Problem, *_: object) -> SimulatedRunner:
        return _DroppingRunner(problem, self._cost, noise=NOISE, seed=5)


def test_what_fails_in_the_comparison_is_wrong_if_it_ships_and_else_left_out(store: Path) -> None:
    assert checked(store, _DroppingMachine(cost))[0] == "holds"  # a rival was the last
    path = store / f"saxpy{SUFFIX}"
    text = path.read_text()
    path.write_text(text[: text.index("others = [")] + text[text.index("[choice.serves]") :])
    kind, words = checked(store, _DroppingMachine(cost))
    assert kind == "wrong"
    assert "wrote outside of 'y'" in words


class _BadBaseline(SimulatedRunner):
    def calibrate(self, baseline: Candidate) -> object:  # type: ignore[override]
        raise BaselineFailed("the baseline does not build: no such function")


class _BadMachine(SimulatedMachine):
    def runner(self, problem: object, *_: object) -> SimulatedRunner:  # type: ignore[override]
        return _BadBaseline(problem, self._cost)  # type: ignore[arg-type]


def test_a_baseline_that_fails_blames_no_choice_and_stops_no_other(store: Path) -> None:
    found = check([store, store], machine=_BadMachine(cost))
    assert [each.kind for each in found] == ["not checked", "not checked"]
    assert "does not build" in found[0].words
    assert exit_status(found) == 2


class _SlowRunner(SimulatedRunner):
    def calibrate(self, baseline: Candidate) -> tuple[Passed, Cost]:
        time.sleep(600)
        return super().calibrate(baseline)


class _SlowMachine(SimulatedMachine):
    def runner(self, problem: Problem, *_: object) -> SimulatedRunner:
        return _SlowRunner(problem, self._cost)


def test_what_takes_too_long_is_ended_and_told(store: Path) -> None:
    begin_s = time.monotonic()
    (found,) = check([store], seconds=0.5, machine=_SlowMachine(cost))
    assert (found.kind, exit_status([found])) == ("not checked", 2)
    assert "too few to prove and measure it" in found.words
    assert time.monotonic() - begin_s < 300, "however busy the machine is"


# -- statistics --------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_slowdown_of_5_percent_is_told_and_hardly_ever_one_that_is_none(
    write_saxpy: Callable[..., Path], tmp_path: Path
) -> None:
    """Of 40 trials, each with a tuning run, an export and checks of its own: the whole way."""
    problem, found, alarms = write_saxpy(tmp_path / "saxpy", is_beatable=True), 0, 0
    for trial in range(40):
        store = store_of(problem, tmp_path / str(trial), seed=trial)
        slower = SimulatedMachine(made_slower(1.05), noise=NOISE, seed=1000 + trial)
        found += checked(store, slower)[0] == "slower"
        alarms += checked(store, SimulatedMachine(cost, noise=NOISE, seed=2000 + trial))[0] == "slower"
    assert (found >= 38, alarms <= 2) == (True, True), f"told in {found} of 40, false alarms in {alarms} of 40"


# -- the file ----------------------------------------------------------------------------------------------------------


def test_a_store_keeps_other_devices_choices(store: Path) -> None:
    path = store / f"saxpy{SUFFIX}"
    path.write_text(path.read_text().replace('device = "simulated device"', 'device = "another"'))
    export_choice(store.parent / "run", store)
    again = path.read_text()
    export_choice(store.parent / "run", store)
    assert path.read_text() == again  # nothing moves in the repository without a reason
    assert [each.device for each in read_choices(path)] == ["another", "simulated device"]


def test_a_choice_comes_back_as_it_was_written(store: Path, tmp_path: Path) -> None:
    choice = choice_of(ExportedRun.read(store.parent / "run"))
    odd = {**choice.files, "odd.txt": b'a\r\n"""b\\ \x7f\x01 "quoted"', "empty.txt": b"", "data.bin": b"\xff\x00\x01"}
    path = write_choice(tmp_path / "other", type(choice)(**{**as_fields(choice), "files": odd}))
    assert read_choices(path)[0].files == dict(sorted(odd.items()))
    assert read_choices(store / f"saxpy{SUFFIX}")[0] == choice


def as_fields(choice: object) -> dict[str, object]:
    return {name: getattr(choice, name) for name in type(choice).__dataclass_fields__}


def test_the_template_stands_in_the_file_line_by_line(store: Path) -> None:
    assert "\n__kernel void saxpy(" in (store / f"saxpy{SUFFIX}").read_text()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("format = 1", "format = 2", "this version reads 1"),
        ('[choice.files]\n"', '[choice.files]\n"../', "a path inside the folder"),
        ('"small" = 0', '"small" = 7', "no place of a config"),
        ('"small" = 0', '"tiny" = 0', "the workloads are small, large"),
        ("BLOCK = ", "BLOK = ", "the parameters are BLOCK, ITEMS"),
        ('problem = "problem.toml"', 'problem = "none.toml"', "no file 'none.toml'"),
        ("device = ", "divice = ", "did you mean 'device'"),
        ('language = "opencl"', 'language = "cobol"', "unknown"),
        ("estimate = ", "estimate = -", "no interval"),
        ("[[choice]]", "[choice", "not valid TOML"),
    ],
)
def test_a_damaged_file_is_told_and_not_measured(store: Path, old: str, new: str, words: str) -> None:
    path = store / f"saxpy{SUFFIX}"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    kind, told = checked(store, SimulatedMachine(cost))
    assert kind == "not checked"
    assert words in told


def test_a_folder_without_choices_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no choice"):
        check([tmp_path], machine=SimulatedMachine(cost))
    with pytest.raises(UserError, match="there is no folder"):
        check([tmp_path / "none"], machine=SimulatedMachine(cost))
    (tmp_path / "notes.txt").write_text("no choice")
    with pytest.raises(UserError, match=r"notes\.txt is a file"):
        check([tmp_path / "notes.txt"], machine=SimulatedMachine(cost))


def test_a_damaged_file_is_not_written_over(store: Path) -> None:
    path = store / f"saxpy{SUFFIX}"
    path.write_text("format = 1\n")
    with pytest.raises(SpecError):
        export_choice(store.parent / "run", store)
    assert path.read_text() == "format = 1\n"


def test_runs_and_exported_folders_are_checked_too(store: Path) -> None:
    run = store.parent / "run"
    export_run(run, run / "export", formats=["choice"])
    found = check([run, run / "export"], machine=SimulatedMachine(cost, noise=NOISE, seed=5))
    assert [(each.kernel, each.kind) for each in found] == [("saxpy", "holds")] * 2


# -- documents and the command -----------------------------------------------------------------------------------------


def test_junit_and_json_say_the_same(store: Path) -> None:
    found = check([store], machine=SimulatedMachine(made_slower(1.2), noise=NOISE, seed=5))
    found += check([store], machine=_BadMachine(cost))
    suite = ElementTree.fromstring(junit_text(found))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "1", "1")
    record = json.loads(json.dumps(check_record(found)))
    assert [each["kind"] for each in record["choices"]] == ["slower", "not checked"]
    assert record["choices"][0]["workloads"]["small"]["speedup"]["high"] < 4.5
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.get("message") == record["choices"][0]["words"]


def test_the_command_refuses_what_cannot_be(store: Path) -> None:
    assert CliRunner().invoke(app, ["export", str(store.parent / "run"), "--to", "s", "--out", "o"]).exit_code != 0
    assert CliRunner().invoke(app, ["check", str(store.parent / "none")]).exit_code != 0


ENOUGH_S = 300.0
"""However busy the machine is: a quiet one takes a tenth of it."""

SLOWED = "volatile float waste = 0.0f;\n    for (int repeat = 0; repeat < 60; repeat++) waste = x[base] + repeat;\n"


@pytest.mark.opencl
@pytest.mark.thorough
def test_on_a_real_device_a_slowed_choice_is_slower_and_a_wrong_one_wrong(
    beatable_saxpy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignore_busy_machine_in_runs(monkeypatch)
    believe_every_gain(monkeypatch)
    run, store = tmp_path / "run", tmp_path / "store"
    tune(beatable_saxpy, settings=TuneSettings(budget=Budget(evaluations=4), build_processes=1), run=run)
    path = export_choice(run, store)
    (shipped,) = check([store], rounds=20, seconds=ENOUGH_S)
    assert shipped.kind in ("holds", "better", "slower")  # what else runs on the machine may make it slower
    text = path.read_text()
    path.write_text(text.replace("    for (int k = 0; k < ITEMS", f"    {SLOWED}    for (int k = 0; k < ITEMS", 1))
    (slowed,) = check([store], rounds=20, seconds=ENOUGH_S)
    assert slowed.kind == "slower"
    assert "it runs at 0." in slowed.words
    path.write_text(text.replace("a * x[base + k] + y", "a * x[base + k] - y", 1))
    (wrong,) = check([store], rounds=20, seconds=ENOUGH_S)
    assert wrong.kind == "wrong"
    assert max(slowed.seconds, wrong.seconds) < ENOUGH_S

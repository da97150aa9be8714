"""A run whose device is behind a spool: the same tree, record and claim as here, whatever happens to either side."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from spool_runs import (
    LIFT,
    NESTED,
    PATIENCE_S,
    TILE,
    VECTOR,
    WRONG,
    agent,
    asking,
    cost,
    in_thread,
    run,
    settings,
    worker,
    working,
)

from kernelwright.agent.base import Context, Declined, Draft, Plan, Written
from kernelwright.cli.commands.show import print_run
from kernelwright.errors import BaselineFailed, InfrastructureError, UsageError
from kernelwright.evaluate.base import MeasuringRunner
from kernelwright.export.run import export_run
from kernelwright.optimization.optimize import optimize, resume_optimize
from kernelwright.problem.config import Config
from kernelwright.problem.model import Workload
from kernelwright.problem.outcome import Cost, Failed, Passed
from kernelwright.remote.folder import SpoolFolder
from kernelwright.report.page import write_report
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.store.event import Event, Idea
from kernelwright.store.run_folder import RunFolder
from kernelwright.store.view import RunView
from kernelwright.template.model import Candidate
from kernelwright.testing.scripted_agent import ScriptedAgent
from kernelwright.testing.simulated import SimulatedMachine, SimulatedRunner
from kernelwright.tree.model import Node, Tree
from kernelwright.tuning.listener import Progress, SilentListener


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


# -- what comes out


def test_a_run_through_a_spool_finds_what_a_local_one_finds(plain: Path, tmp_path: Path, spool: Path) -> None:
    with working(spool):
        result = run(plain, tmp_path / "run", spool, VECTOR, TILE, NESTED, WRONG)
    assert result.is_gain
    assert result.winner is not None
    assert {"lift", "vector", "tile"} <= set(result.winner.tactics)
    assert result.best_config is not None
    assert result.best_config["TILE"] == 4
    wrong = next(node for node in result.tree if node.tactic == "wrong")
    assert wrong.failure is not None
    assert (wrong.failure.stage, wrong.failure.log) == ("check", "expected 1, found 2")


def test_everything_that_reads_runs_reads_this_one(
    plain: Path, tmp_path: Path, spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with working(spool):
        result = run(plain, tmp_path / "run", spool, VECTOR, TILE)
    assert result.winner is not None
    node = RunView.read(result.node_folder(result.winner.index))
    assert node.evaluations
    assert node.comparison is not None
    assert "simulated device" in write_report(tmp_path / "run", tmp_path / "report.html").read_text()
    assert export_run(tmp_path / "run", tmp_path / "export")
    print_run(tmp_path / "run", is_json=False)
    assert "tile" in capsys.readouterr().out
    assert result.winner.tuning.findings


def test_several_structures_are_under_way_at_once(plain: Path, tmp_path: Path, spool: Path) -> None:
    thread, found = in_thread(lambda: run(plain, tmp_path / "run", spool, VECTOR, TILE, WRONG))
    _serve_until(spool, lambda: _count(spool, "results") >= 2)
    wait_until(lambda: _count(spool, "requests") >= 5)  # two are answered; three wait
    with working(spool):
        thread.join(PATIENCE_S)
    (result,) = found
    assert isinstance(result, OptimizeResult)
    assert result.is_gain


def test_the_budget_counts_what_is_under_way(plain: Path, tmp_path: Path, spool: Path) -> None:
    with working(spool):
        result = run(plain, tmp_path / "run", spool, VECTOR, TILE, NESTED, chosen=settings(40))
    assert result.reason == "budget"
    assert result.evaluated_count <= 40 + len(result.tree)


def test_a_round_at_a_time_is_enough(plain: Path, tmp_path: Path, spool: Path) -> None:
    """As with batch jobs: a worker does what is there and ends; the folder is copied back and forth."""
    there = tmp_path / "there"
    thread, found = in_thread(lambda: run(plain, tmp_path / "run", spool, VECTOR, TILE))

    def is_over() -> bool:
        time.sleep(0.1)
        _copied(spool, there)
        ended = worker(there).run(until_idle=True)
        assert not ended.is_interrupted
        _copied(there, spool)
        return not thread.is_alive()

    wait_until(is_over)
    assert isinstance(found[0], OptimizeResult)
    assert found[0].is_gain


def test_what_the_worker_refuses_is_said_here(plain: Path, tmp_path: Path, spool: Path) -> None:
    class Failing(SimulatedRunner):
        def calibrate(self, baseline: Candidate) -> tuple[Passed, Cost]:
            raise BaselineFailed("it is wrong at 3", hint="mend it")

    class Machine(SimulatedMachine):
        def runner(self, problem, device, settings) -> MeasuringRunner:  # type: ignore[no-untyped-def]
            return Failing(problem, cost)

    with working(spool, machine=Machine(cost)), pytest.raises(BaselineFailed, match=r"worker .* it is wrong at 3"):
        run(plain, tmp_path / "run", spool, VECTOR)
    assert not (tmp_path / "run").exists()


def test_a_device_that_is_not_there_is_said_here(plain: Path, tmp_path: Path, spool: Path) -> None:
    class Machine(SimulatedMachine):
        def device(self, selector, language):  # type: ignore[no-untyped-def]
            raise UsageError(f"no device fits {selector!r}")

    with working(spool, machine=Machine(cost)), pytest.raises(UsageError, match="no device fits"):
        run(plain, tmp_path / "run", spool, VECTOR)


# -- interruptions of the side that asks


class Stopping(SilentListener):
    """Stops the run at its n-th event, as Ctrl-C or a kill does."""

    def __init__(self, after: int, error: type[BaseException]) -> None:
        self.left = after
        self.error = error

    def on_event(self, event: Event, progress: Progress) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error


class Killed(BaseException):
    """Nothing handles this, like a kill."""


@pytest.mark.few(3)
@pytest.mark.parametrize("error", [KeyboardInterrupt, Killed])
@pytest.mark.parametrize("after", [4, 7, 11, 15, 19])
def test_a_run_that_was_stopped_goes_on_with_what_lies_in_the_spool(
    plain: Path, tmp_path: Path, spool: Path, after: int, error: type[BaseException]
) -> None:
    tactics = (VECTOR, TILE, NESTED, WRONG)
    with working(spool):
        try:
            first = run(plain, tmp_path / "run", spool, *tactics, listener=Stopping(after, error))
        except Killed:
            pass
        else:
            assert first.reason == "interrupted"
        time.sleep(0.2)  # meanwhile the worker goes on
        result = resume_optimize(tmp_path / "run", machine=asking(spool), agent=agent(*tactics))
    assert result.reason in ("budget", "exhausted", "no-gain")
    assert result.is_gain
    asked = {path.stem for path in (spool / "requests").iterdir()}
    assert {path.stem for path in (spool / "results").iterdir()} == asked
    for node in result.tree:
        if node.is_working and node.parent is not None:
            view = RunView.read(result.node_folder(node.index))
            assert [event.index for event in view.evaluations] == list(range(len(view.evaluations)))
            configs = [tuple(sorted(event.config.items())) for event in view.evaluations if event.source == "measured"]
            assert len(configs) == len(set(configs)), "nothing is measured twice"


def test_a_request_whose_result_is_there_is_not_asked_for_again(plain: Path, tmp_path: Path, spool: Path) -> None:
    with working(spool):
        run(plain, tmp_path / "run", spool, VECTOR, listener=Stopping(9, KeyboardInterrupt))
        before = {path.stem for path in (spool / "requests").iterdir()}
        wait_until(lambda: {path.stem for path in (spool / "results").iterdir()} >= before)
        resume_optimize(tmp_path / "run", machine=asking(spool), agent=agent(VECTOR))
    found = [path.stem for path in (spool / "requests").iterdir()]
    messages = [SpoolFolder(spool).message("requests", each) for each in found]
    keys = [(each.node, each.log) for each in messages if hasattr(each, "node")]  # type: ignore[union-attr]
    assert len(keys) == len(set(keys))


# -- interruptions of the side that works


def test_a_worker_that_fails_is_followed_by_the_next(plain: Path, tmp_path: Path, spool: Path) -> None:
    failures = [0]

    class Flaky(SimulatedRunner):
        def submit(self, request):  # type: ignore[no-untyped-def]
            if failures[0] < 2:
                failures[0] += 1
                raise InfrastructureError("the device fell off the bus")
            return super().submit(request)

    class Machine(SimulatedMachine):
        def runner(self, problem, device, settings) -> MeasuringRunner:  # type: ignore[no-untyped-def]
            return Flaky(problem, cost, noise=0.005)

    with working(spool, machine=Machine(cost)):
        result = run(plain, tmp_path / "run", spool, VECTOR, TILE)
    assert failures == [2]
    assert result.is_gain


def test_a_machine_that_fails_for_good_ends_the_run_which_can_be_resumed(
    plain: Path, tmp_path: Path, spool: Path
) -> None:
    broken = [True]

    class Broken(SimulatedRunner):
        def submit(self, request):  # type: ignore[no-untyped-def]
            if broken[0]:
                raise InfrastructureError("the device fell off the bus")
            return super().submit(request)

    class Machine(SimulatedMachine):
        def runner(self, problem, device, settings) -> MeasuringRunner:  # type: ignore[no-untyped-def]
            return Broken(problem, cost, noise=0.005)

    with working(spool, machine=Machine(cost)):
        with pytest.raises(InfrastructureError, match="fell off the bus") as caught:
            run(plain, tmp_path / "run", spool, VECTOR, TILE)
        assert "kernelwright resume" in str(caught.value)
        broken[0] = False
        assert resume_optimize(tmp_path / "run", machine=asking(spool), agent=agent(VECTOR, TILE)).is_gain


def test_two_workers_share_a_spool_and_do_nothing_twice(plain: Path, tmp_path: Path, spool: Path) -> None:
    with working(spool, 2) as workers:
        result = run(plain, tmp_path / "run", spool, VECTOR, TILE, NESTED, WRONG)
    assert result.is_gain
    done = sum(each.ended.done + each.ended.refused for each in workers)
    assert done == len(list((spool / "requests").iterdir()))


def test_two_runs_share_a_worker(plain: Path, tmp_path: Path, spool: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(plain, other)
    (other / "problem.toml").write_text((other / "problem.toml").read_text().replace('"saxpy"', '"saxpy2"', 1))
    first, one = in_thread(lambda: run(plain, tmp_path / "one", spool, VECTOR, TILE))
    second, two = in_thread(lambda: run(other, tmp_path / "two", spool, TILE, NESTED))
    with working(spool):
        first.join(PATIENCE_S)
        second.join(PATIENCE_S)
    for found in (one, two):
        assert isinstance(found[0], OptimizeResult)
        assert found[0].is_gain


def test_of_another_device_a_worker_leaves_requests_alone(plain: Path, tmp_path: Path, spool: Path) -> None:
    class Other(SimulatedMachine):
        def device(self, selector, language):  # type: ignore[no-untyped-def]
            return dataclasses.replace(super().device(selector, language), name="another device")

    thread, found = in_thread(lambda: run(plain, tmp_path / "run", spool, VECTOR))
    _serve_until(spool, lambda: _count(spool, "requests") >= 2)
    ended = worker(spool, Other(cost)).run(until_idle=True)
    assert ended.done == 0
    assert any("simulated device" in reason for reason in ended.left.values())
    with working(spool):
        thread.join(PATIENCE_S)
    assert isinstance(found[0], OptimizeResult)


# -- copies


def test_partial_copies_are_waited_for_and_duplicates_are_harmless(plain: Path, tmp_path: Path, spool: Path) -> None:
    """The folder is copied by somebody who tears files, doubles them and brings old ones back."""
    there, rng = tmp_path / "there", random.Random(3)
    thread, found = in_thread(lambda: run(plain, tmp_path / "run", spool, VECTOR, TILE))
    for _ in range(80):
        if not thread.is_alive():
            break
        _copied(spool, there, torn=rng)
        worker(there).run(until_idle=True)
        _copied(there, spool, torn=rng)

    def is_over() -> bool:
        _copied(spool, there)
        worker(there).run(until_idle=True)
        _copied(there, spool)
        thread.join(0.1)
        return not thread.is_alive()

    wait_until(is_over)
    assert isinstance(found[0], OptimizeResult), found
    assert found[0].is_gain


def _copied(source: Path, target: Path, *, torn: random.Random | None = None) -> None:
    """Copy new files, as rsync would; `torn`: some of them half, some under a second name too."""
    for path in sorted(each for each in source.rglob("*") if each.is_file()):
        if path.name.startswith("."):
            continue
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue
        if place.exists() and place.stat().st_size >= len(data):
            continue
        if torn is not None and torn.random() < 0.3:
            data = data[: torn.randrange(len(data) + 1)]
        place.write_bytes(data)
        if torn is not None and torn.random() < 0.1:
            place.with_name(f"{path.stem} (copy){path.suffix}").write_bytes(data)


def _count(spool: Path, part: str) -> int:
    folder = spool / part
    return len([each for each in folder.glob("*.json") if not each.name.startswith(".")]) if folder.is_dir() else 0


def _serve_until(spool: Path, condition: Callable[[], bool]) -> None:
    """Workers, one after the other, until something holds."""

    def once() -> bool:
        if condition():
            return True
        worker(spool).run(until_idle=True)
        return condition()

    wait_until(once)


def wait_until(condition: Callable[[], bool], *, patience_s: float = PATIENCE_S) -> None:
    deadline_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.02)


# -- local runs


def test_locally_several_structures_may_be_under_way_too(plain: Path, tmp_path: Path) -> None:
    machine = SimulatedMachine(cost, noise=0.005)
    chosen = agent(VECTOR, TILE, NESTED, WRONG, plans_ahead=False)
    result = optimize(plain, settings=settings(80), run=tmp_path / "run", machine=machine, agent=chosen)
    assert result.is_gain
    assert result.winner is not None
    assert {"vector", "tile"} <= set(result.winner.tactics)
    planned = [call for call in chosen.calls if call.startswith("plan")]
    assert len(planned) == len(set(planned))
    coded = [call for call in chosen.calls if call.startswith("code")]
    assert len(coded) == len(set(coded))


@pytest.mark.parametrize("after", [5, 12, 20])
def test_locally_an_interrupt_reaches_every_thread(plain: Path, tmp_path: Path, after: int) -> None:
    machine = SimulatedMachine(cost, noise=0.0)
    first = optimize(
        plain,
        settings=settings(80),
        run=tmp_path / "run",
        machine=machine,
        agent=agent(VECTOR, TILE, NESTED),
        listener=Stopping(after, KeyboardInterrupt),
    )
    assert first.reason == "interrupted"
    rest = resume_optimize(tmp_path / "run", machine=machine, agent=agent(VECTOR, TILE, NESTED))
    assert rest.is_gain


class Asked(ScriptedAgent):
    """Remembers what it was told for each idea; some ideas take long, so that others overtake them."""

    def __init__(self, told: list[tuple[str, object]]) -> None:
        super().__init__((VECTOR, TILE, NESTED, WRONG), lifted=LIFT, plans_ahead=False)
        self._told = told

    def plan(self, context: Context) -> Plan:
        self._told.append((f"plan {context.node.index}", _all_of(context.tree, context.node, context.written)))
        return super().plan(context)

    def code(self, context: Context, idea: Idea) -> Draft | Declined:
        key = f"code {context.node.index} {idea.key}"
        self._told.append((key, _all_of(context.tree, context.node, context.written)))
        if idea.key == "tile":
            time.sleep(0.4)
        return super().code(context, idea)


def _all_of(tree: Tree, node: Node, written: Written) -> object:
    return repr((tree.nodes, tree.under_way, node, written))


@pytest.mark.few(1)
@pytest.mark.parametrize("after", [10, 13, 16, 19])
def test_what_is_asked_again_is_asked_in_the_same_words(plain: Path, tmp_path: Path, after: int) -> None:
    """So a reply that was recorded before a kill is found again, although others have come in meanwhile."""
    told: list[tuple[str, object]] = []
    machine = SimulatedMachine(cost, noise=0.0)
    others = set(threading.enumerate())
    with contextlib.suppress(Killed):
        optimize(
            plain,
            settings=settings(80),
            run=tmp_path / "run",
            machine=machine,
            agent=Asked(told),
            listener=Stopping(after, Killed),
        )
    for each in set(threading.enumerate()) - others:  # which a real kill would have ended
        each.join(PATIENCE_S)
    before = dict(told)
    told.clear()
    result = resume_optimize(tmp_path / "run", machine=machine, agent=Asked(told))
    assert result.is_gain
    again = [key for key, _ in told if key in before]
    assert all(dict(told)[key] == before[key] for key in again)


def test_a_spool_may_be_another_one_when_a_run_goes_on(plain: Path, tmp_path: Path, spool: Path) -> None:
    chosen = settings(runner=f"spool:{spool}")
    with working(spool):
        run(plain, tmp_path / "run", spool, TILE, listener=Stopping(9, KeyboardInterrupt), chosen=chosen)
    shutil.rmtree(spool)
    other = tmp_path / "other-spool"
    with working(other):
        result = resume_optimize(tmp_path / "run", agent=agent(TILE), runner=f"spool:{other}")
    assert result.is_gain
    assert not spool.exists()


def test_a_run_of_this_machine_does_not_go_on_through_a_spool(plain: Path, tmp_path: Path, spool: Path) -> None:
    machine = SimulatedMachine(cost, noise=0.0)
    stopping = Stopping(9, KeyboardInterrupt)
    optimize(plain, settings=settings(), run=tmp_path / "run", machine=machine, agent=agent(TILE), listener=stopping)
    with pytest.raises(UsageError, match="measured here"):
        resume_optimize(tmp_path / "run", agent=agent(TILE), runner=f"spool:{spool}")


def test_roles_are_asked_beside_each_other(plain: Path, tmp_path: Path) -> None:
    class Slow(ScriptedAgent):
        changed, running, most, wanted = threading.Condition(), 0, 0, 2

        def code(self, context: Context, idea: Idea) -> Draft | Declined:
            with self.changed:
                self.running += 1
                self.most = max(self.most, self.running)
                self.changed.notify_all()
                self.changed.wait_for(lambda: self.most >= self.wanted, PATIENCE_S)
            time.sleep(0.2)
            with self.changed:
                self.running -= 1
            return super().code(context, idea)

    slow = Slow((VECTOR, TILE, WRONG), lifted=LIFT)
    machine = SimulatedMachine(cost, noise=0.005)
    result = optimize(plain, settings=settings(60), run=tmp_path / "run", machine=machine, agent=slow)
    assert result.is_gain
    assert slow.most >= 2
    slow.most, slow.wanted = 0, 1
    one = dataclasses.replace(settings(60), in_flight=1)
    optimize(plain, settings=one, run=tmp_path / "one", machine=machine, agent=slow)
    assert slow.most == 1


def test_a_baseline_that_takes_another_time_later_is_noted(plain: Path, tmp_path: Path, spool: Path) -> None:
    thread, found = in_thread(lambda: run(plain, tmp_path / "run", spool, TILE))
    _serve_until(spool, lambda: _count(spool, "requests") >= 2)

    def slower(config: Config, workload: Workload) -> float | Failed:
        time_ms = cost(config, workload)
        return time_ms if isinstance(time_ms, Failed) else 1.3 * time_ms

    with working(spool, machine=SimulatedMachine(slower, noise=0.001)):
        thread.join(PATIENCE_S)
    (result,) = found
    assert isinstance(result, OptimizeResult)
    notes = [note.text for note in result.view.notes]
    assert len([text for text in notes if "1.3" in text and "times as long" in text]) == 1


def test_what_is_known_of_a_lifted_template_is_recorded_at_once(
    plain: Path, tmp_path: Path, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that ends between two of the records would leave it working and unproven."""
    written, append = list[list[str]](), RunFolder.append

    def kept(self: RunFolder, events: Sequence[Event]) -> None:
        append(self, events)
        written.append([each.kind for each in events])

    monkeypatch.setattr(RunFolder, "append", kept)
    with working(spool):
        run(plain, tmp_path / "run", spool, VECTOR)
    assert [kinds for kinds in written if "template_proven" in kinds] == [
        ["node_judged", "template_proven", "node_tuned"]
    ]


def test_a_run_that_was_killed_before_its_baseline_was_recorded_asks_for_it_again(
    plain: Path, tmp_path: Path, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, copy = RunFolder.append, tmp_path / "copy"

    def kept(self: RunFolder, events: Sequence[Event]) -> None:
        append(self, events)
        if self.path == tmp_path / "run" and not copy.exists():
            shutil.copytree(self.path, copy)

    monkeypatch.setattr(RunFolder, "append", kept)
    with working(spool):
        first = run(plain, tmp_path / "run", spool, VECTOR)
        again = resume_optimize(copy, machine=asking(spool), agent=agent(VECTOR))
    assert [(node.role, node.status) for node in again.tree] == [(node.role, node.status) for node in first.tree]
    assert again.is_gain

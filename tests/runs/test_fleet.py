"""A run on the devices of a cluster finds what it finds here, and a node that is lost loses what it was doing alone."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from fleet_runs import NamedMachine, ThreadCluster, ThreadSlot, run_on, serve, served
from spool_runs import NESTED, PATIENCE_S, TILE, VECTOR, WRONG, agent, asking, in_thread, settings
from test_spool_runs import wait_until

from kernelwright.backend.base import DeviceInfo
from kernelwright.errors import InfrastructureError, MissingDependency, StoreError, UsageError
from kernelwright.optimization.optimize import optimize, replay_optimize
from kernelwright.remote.folder import SpoolFolder
from kernelwright.remote.helper import helped
from kernelwright.remote.messages import Refused, device_of, error_of
from kernelwright.results.optimize_result import OptimizeResult
from kernelwright.store.view import RunView
from kernelwright.worker.bringing import bring_devices


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def recorded(folder: Path) -> list[str]:
    """Node and candidate of all evaluations of a run."""
    nodes = sorted((folder / "nodes").iterdir())
    return [f"{node.name} {each.candidate_id}" for node in nodes for each in RunView.read(node).evaluations]


# -- a cluster that cannot be used


def test_a_cluster_without_devices_ends_with_words(spool: Path) -> None:
    with pytest.raises(InfrastructureError, match="no node offers a GPU or a CPU"):
        serve(spool, ThreadCluster(), patience_s=0.1)


def test_a_node_of_another_version_is_left_out_with_words(plain: Path, tmp_path: Path, spool: Path) -> None:
    cluster, told = ThreadCluster(old=NamedMachine, new=NamedMachine), list[str]()
    cluster.versions["old"] = "0.0.1"
    with served(spool, cluster, told):
        assert run_on(plain, tmp_path / "run", spool, VECTOR).is_gain
    assert cluster.opened["old"][0].answered == 0
    assert len(cluster.opened["old"]) == 1
    assert any("old: it has Kernelwright 0.0.1, and here is" in line for line in told)
    cluster.versions["new"] = "0.0.1"
    with pytest.raises(InfrastructureError, match=r"new: it has Kernelwright 0\.0\.1"):
        serve(tmp_path / "other", cluster)


def test_a_slot_that_cannot_be_opened_is_given_up(spool: Path) -> None:
    def broken() -> NamedMachine:
        raise InfrastructureError("no driver here")

    with pytest.raises(InfrastructureError, match="ill: no driver here"):
        serve(spool, ThreadCluster(ill=broken))


def test_a_head_that_is_lost_ends_everything(spool: Path) -> None:
    cluster = ThreadCluster(a=NamedMachine, b=NamedMachine)
    thread, found = in_thread(lambda: serve(spool, cluster))
    wait_until(lambda: len(cluster.every()) == 2)
    cluster.failure = InfrastructureError("the Ray cluster does not answer any more")
    thread.join(PATIENCE_S)
    assert isinstance(found[0], InfrastructureError)
    assert all(slot.is_closed for slot in cluster.every())


def test_without_ray_a_message_says_what_to_install(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, runner in (("ray", "ray"), ("submitit", "slurm:local")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingDependency) as caught:
            bring_devices(SpoolFolder(spool), runner, lambda _: None)
        assert caught.value.hint == f"pip install 'kernelwright[{runner.partition(':')[0]}]'"
        left = SpoolFolder(spool).message("workers", "helper")
        assert isinstance(left, Refused)
        assert isinstance(error_of(left), MissingDependency)


@pytest.mark.parametrize("host", ["a" * 64, "head..cluster"])
def test_a_host_that_none_can_have_is_told_in_words(spool: Path, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    with pytest.raises(InfrastructureError, match="no Ray cluster at"):
        bring_devices(SpoolFolder(spool), f"ray:{host}:6379", lambda _: None)


def test_a_device_that_is_half_described_is_told_in_words() -> None:
    with pytest.raises(StoreError, match="does not describe its device"):
        device_of({"name": "a device", "of a newer version": 1})


def test_why_an_earlier_helper_has_ended_is_not_said_of_the_next(spool: Path) -> None:
    folder, earlier = SpoolFolder(spool), Refused("InfrastructureError", "an earlier failure", "", "here")
    folder.replace("workers", "helper", earlier)
    with helped(folder, "slurm:local"):
        assert folder.message("workers", "helper") != earlier


def test_a_helper_has_no_keys_but_its_clusters(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of-a-model")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-the-cluster")

    def environments() -> list[bytes]:
        """Those of this process's children that run it."""
        children = [
            each for task in Path("/proc/self/task").iterdir() for each in (task / "children").read_text().split()
        ]
        return [
            Path(f"/proc/{each}/environ").read_bytes()
            for each in children
            if b"--runner" in Path(f"/proc/{each}/cmdline").read_bytes()
        ]

    with helped(SpoolFolder(spool), "slurm:local"):
        wait_until(lambda: bool(environments()))
        found = environments()
    assert all(b"of-the-cluster" in each and b"of-a-model" not in each for each in found)


def test_a_run_that_begins_once_its_machine_is_stopped_waits_for_nobody(
    plain: Path, tmp_path: Path, spool: Path
) -> None:
    with asking(spool) as machine:
        machine.stop()
        thread, found = in_thread(
            lambda: optimize(plain, settings=settings(), run=tmp_path / "run", machine=machine, agent=agent(VECTOR))
        )
        thread.join(PATIENCE_S)
    assert isinstance(found[0], KeyboardInterrupt)


# -- devices


def test_a_device_that_no_node_has_ends_the_run(plain: Path, tmp_path: Path, spool: Path) -> None:
    cluster = ThreadCluster(a=lambda: NamedMachine("H100"), b=lambda: NamedMachine("A100"))
    with served(spool, cluster), pytest.raises(UsageError, match=r"no device of the cluster fits.*'MI300'"):
        run_on(plain, tmp_path / "run", spool, VECTOR, device="MI300")
    assert not (tmp_path / "run").exists()


def test_a_language_that_no_node_runs_ends_the_run(plain: Path, tmp_path: Path, spool: Path) -> None:
    class Bare(NamedMachine):
        def device(self, *_: object) -> DeviceInfo:
            raise MissingDependency("no OpenCL here", hint="pip install 'kernelwright[opencl]'")

    with served(spool, ThreadCluster(a=Bare, b=Bare)), pytest.raises(UsageError, match="no OpenCL here") as caught:
        run_on(plain, tmp_path / "run", spool, VECTOR)
    assert caught.value.hint == "pip install 'kernelwright[opencl]'"


def test_a_run_stays_with_devices_of_one_model(plain: Path, tmp_path: Path, spool: Path) -> None:
    cluster = ThreadCluster(
        a=lambda: NamedMachine("H100"), b=lambda: NamedMachine("A100"), c=lambda: NamedMachine("A100")
    )
    with served(spool, cluster):
        result = run_on(plain, tmp_path / "run", spool, VECTOR, TILE, device="A100")
    assert result.is_gain
    assert result.view.started.device["name"] == "A100"
    assert cluster.opened["a"][0].answered == 0
    assert sum(slot.answered for slot in cluster.every()) > 0


# -- what comes out


def test_a_cluster_finds_what_one_device_finds_and_replays_the_same(plain: Path, tmp_path: Path, spool: Path) -> None:
    cluster = ThreadCluster(a=NamedMachine, b=NamedMachine, c=NamedMachine)
    with served(spool, cluster):
        result = run_on(plain, tmp_path / "run", spool, VECTOR, TILE, NESTED, WRONG)
    assert result.is_gain
    assert result.best_config is not None
    assert result.best_config["TILE"] == 4
    again = replay_optimize(tmp_path / "run", run=tmp_path / "again", agent=agent(VECTOR, TILE, NESTED, WRONG))
    assert again.differences == ()
    assert again.result.best_config == result.best_config
    assert recorded(tmp_path / "again") == recorded(tmp_path / "run")


def test_a_file_travels_to_a_device_once(plain: Path, tmp_path: Path, spool: Path) -> None:
    cluster = ThreadCluster(a=NamedMachine)
    with served(spool, cluster):
        run_on(plain, tmp_path / "run", spool, VECTOR, TILE)
    files = cluster.opened["a"][0].files
    assert files
    assert len(files) == len(set(files))


def losing(cluster: ThreadCluster, at: int) -> Callable[[ThreadSlot], None]:
    """The node goes away during its request of this number."""
    count = iter(range(1, 1000))

    def on_answer(slot: ThreadSlot) -> None:
        if next(count) == at:
            slot.is_lost = True
            cluster.machines.pop("lost", None)

    return on_answer


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_node_that_is_lost_loses_what_it_was_doing_alone(plain: Path, tmp_path: Path, spool: Path, at: int) -> None:
    cluster, told = ThreadCluster(lost=NamedMachine), list[str]()
    cluster.on_answer["lost"] = losing(cluster, at)
    with served(spool, cluster, told):
        thread, found = in_thread(lambda: run_on(plain, tmp_path / "run", spool, VECTOR, TILE, NESTED))
        wait_until(lambda: cluster.opened.get("lost", []) != [] and cluster.opened["lost"][0].is_lost)
        assert cluster.opened["lost"][0].answered == at - 1
        cluster.machines["new"] = NamedMachine  # whatever comes to the cluster is used
        thread.join(PATIENCE_S)
    (result,) = found
    assert isinstance(result, OptimizeResult)
    assert result.is_gain
    assert result.best_config is not None
    assert result.best_config["TILE"] == 4
    evaluations = recorded(tmp_path / "run")
    assert len(evaluations) == len(set(evaluations))
    assert any(line.startswith(("lost: it is lost", "lost: its node is gone")) for line in told)


def test_a_device_that_fails_gets_a_new_process_and_the_request_another_device(
    plain: Path, tmp_path: Path, spool: Path
) -> None:
    def fail(slot: ThreadSlot) -> None:
        raise InfrastructureError("the driver is ill")

    cluster, told = ThreadCluster(ill=NamedMachine, well=NamedMachine), list[str]()
    cluster.on_answer["ill"] = fail
    with served(spool, cluster, told):
        assert run_on(plain, tmp_path / "run", spool, VECTOR, TILE).is_gain
    assert all(slot.answered == 0 and slot.is_closed for slot in cluster.opened["ill"])
    assert len(cluster.opened["ill"]) <= 3


def test_stopping_closes_every_device_and_gives_requests_back(plain: Path, tmp_path: Path, spool: Path) -> None:
    stop, is_in = threading.Event(), threading.Event()
    cluster = ThreadCluster(a=NamedMachine, b=NamedMachine)

    def wait(slot: ThreadSlot) -> None:
        is_in.set()
        wait_until(lambda: slot.is_closed)

    cluster.on_answer = {"a": wait, "b": wait}
    serving, ended = in_thread(lambda: serve(spool, cluster, stop=stop))
    in_thread(lambda: run_on(plain, tmp_path / "run", spool, VECTOR))
    assert is_in.wait(PATIENCE_S)
    stop.set()
    serving.join(PATIENCE_S)
    assert not serving.is_alive()
    assert ended
    assert not isinstance(ended[0], BaseException)
    assert all(slot.is_closed for slot in cluster.every())
    assert not list((spool / "claims").glob("*.json"))

"""Ray itself carries what `test_fleet.py` has threads carry: simulated nodes on this machine, real actors."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_spool_runs import wait_until

from kernelwright.errors import InfrastructureError
from kernelwright.optimization.optimize import optimize
from kernelwright.optimization.settings import OptimizeSettings
from kernelwright.worker.ray_cluster import ray_slots
from short_command import COMMAND

pytest.importorskip("ray", reason="Ray is not installed: pip install 'kernelwright[ray]'")
pytestmark = pytest.mark.thorough
PATIENCE_S = 300.0


def test_a_node_of_ray_is_killed_and_the_run_finds_what_one_machine_finds(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "own")]
    done = subprocess.run(
        [*words, str(Path(__file__).with_name("ray_node_lost.py"))],
        check=False,
        capture_output=True,
        text=True,
        timeout=850,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


def test_an_address_without_a_cluster_is_told_at_once() -> None:
    with pytest.raises(InfrastructureError, match=r"no Ray cluster at 127\.0\.0\.1:9: Connection refused"):
        ray_slots("127.0.0.1:9").__enter__()


def test_a_run_tells_what_keeps_its_devices_away(saxpy: Path, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match=r"no Ray cluster at 127\.0\.0\.1:9: Connection refused"):
        optimize(saxpy, settings=OptimizeSettings(runner="ray:127.0.0.1:9"), run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def marked(mark: str) -> dict[int, str]:
    """Processes whose environment holds a text, with their words."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120]
    return found


@pytest.mark.opencl
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill"])
def test_however_a_run_ends_no_process_of_ray_is_left(saxpy: Path, tmp_path: Path, number: int) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [*COMMAND, "optimize", str(saxpy), "--runner", "ray", "--run", str(tmp_path / "run"), "--budget", "5m"]
    environment = {**os.environ, "KERNELWRIGHT_SCRATCH_DIR": str(scratch)}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        try:
            wait_until(lambda: "ray::DeviceSlot" in " ".join(marked(str(scratch)).values()), patience_s=PATIENCE_S)
            process.send_signal(number)
            _, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL), err
    wait_until(lambda: not marked(str(scratch)))

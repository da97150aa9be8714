"""`kernelwright dispatch` as a person calls it, on a real device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import kernelwright
from kernelwright.store.view import RunView

RecordRun = Callable[..., Path]
SOURCES = Path(kernelwright.__file__).resolve().parents[1]


def call(*words: object, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernelwright", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "COLUMNS": "120"}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=600, cwd=folder, env=environment
    )


@pytest.fixture
def run(saxpy: Path, record_run: RecordRun) -> Path:
    return record_run(saxpy, [{"BLOCK": 64}, {"BLOCK": 128, "ITEMS": 4}])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--loss", "much"), "the loss 'much' is no share"),
        (("--loss", "200%"), "the loss '200%' is no share"),
        (("--range", "n=big"), "'n=big' is no range"),
        (("--range", "m=1..2"), "'m' is no size that may be chosen"),
    ],
)
def test_wrong_words_change_nothing(run: Path, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    before = (run / "events.jsonl").read_bytes()
    done = call("dispatch", run, *words, folder=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert (run / "events.jsonl").read_bytes() == before


@pytest.mark.thorough
@pytest.mark.opencl
def test_shapes_are_measured_recorded_and_exported(run: Path, tmp_path: Path) -> None:
    done = call("dispatch", run, "--probe", 2, "--rounds", 5, "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    table = json.loads(done.stdout)
    assert table["is_probed"]
    assert [shape["name"] for shape in table["shapes"] if shape["is_tuned"]] == ["small", "large"]
    assert len(table["shapes"]) == 4
    assert all(shape["baseline_ms"] > 0 for shape in table["shapes"])
    probed = RunView.read(run).dispatch
    assert probed is not None  # with five rounds no loss would be sure
    assert all(len(row) in (0, 6) for rows in probed.samples_ms.values() for row in rows)
    assert RunView.read(run).finished is not None
    header = (run / "export" / "kernelwright_saxpy.h").read_text()
    assert "were tuned and probed" in header
    stored = json.loads((run / "export" / "saxpy.json").read_text())["dispatch"]
    assert stored == {name: value for name, value in table.items() if name != "files"}
    loose = call("export", run, "--loss", "90%", "--format", "json", "--out", tmp_path / "loose", folder=tmp_path)
    assert loose.returncode == 0, loose.stderr
    assert json.loads((tmp_path / "loose" / "saxpy.json").read_text())["dispatch"]["loss"] == 0.9

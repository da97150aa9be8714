"""The script for a machine with a GPU names its parts, and all that they need without one is there."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "device_session.sh"

pytestmark = pytest.mark.skipif(not SCRIPT.is_file() or shutil.which("sh") is None, reason="needs a checkout and sh")


def run(out, *words):
    return subprocess.run(
        ["sh", str(SCRIPT), str(out), *words], capture_output=True, text=True, timeout=120, check=False
    )


def test_every_part_has_a_time_and_a_function(tmp_path):
    listed = run(tmp_path, "list")
    assert listed.returncode == 0, listed.stderr
    rows = dict(re.findall(r"^(\w+): about (\d+) s$", listed.stdout, re.MULTILINE))
    functions = set(re.findall(r"^(\w+)\(\) \{", SCRIPT.read_text(), re.MULTILINE))
    assert len(rows) >= 10
    assert rows.keys() <= functions
    assert all(0 < int(seconds) < 540 for seconds in rows.values()), "each fits into one command of ten minutes"


def test_an_unknown_part_is_refused_with_those_that_there_are(tmp_path):
    refused = run(tmp_path, "matmull")
    assert refused.returncode == 2
    assert "matmull" in refused.stdout
    assert "matmul" in refused.stdout


def test_scripts_and_files_that_parts_name_exist():
    named = set(re.findall(r"(?:benchmarks|src|tests)/[\w/.-]+\.(?:py|toml)", SCRIPT.read_text()))
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_workloads_of_another_problem_take_the_place_of_a_problems_own(tmp_path):
    target = tmp_path / "problem.toml"
    shutil.copy(ROOT / "src/kernelwright/examples" / "cuda" / "matmul" / "problem.toml", target)
    before = tomllib.loads(target.read_text())
    found = runpy.run_path(str(ROOT / "benchmarks" / "same_workloads.py"))
    source = (ROOT / "benchmarks" / "gemm_workloads.toml").read_text()
    text = found["without_workloads"](target.read_text()) + found["workloads"](source)
    after = tomllib.loads(text)
    assert after.pop("workloads") == tomllib.loads(source)["workloads"]
    before.pop("workloads")
    assert after == before

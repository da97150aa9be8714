"""Counters from what Nsight Compute prints: recorded on an H100, and everything that can be wrong with it."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from kernelwright.backend.base import DeviceInfo
from kernelwright.backend.cuda.measure.nsight_compute import (
    COUNTERS,
    ProfilerFailed,
    find_ncu,
    ncu_command,
    parse_counters,
    why_no_counters,
)
from kernelwright.evaluate.device.counting import CountJob, count

RECORDED = (Path(__file__).parent / "ncu_h100.csv").read_text()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no table"),
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access counters\n", "not permitted"),
        ("==ERROR== The application returned an error code (1).\n", "returned an error code"),
        ("==WARNING== No kernels were profiled.\n", "No kernels were profiled"),
        ('"some","other","table"\n"1","2","3"\n', "no table"),
        ("\n".join(RECORDED.splitlines()[:5]), "saw no kernel"),
    ],
)
def test_what_is_no_table_of_counters_is_a_reason(text, words):
    with pytest.raises(ProfilerFailed, match=words):
        parse_counters(text)


def test_recorded_output_of_an_h100_is_read_with_its_units():
    (first, stride), (second, banks) = parse_counters(RECORDED)
    assert (first, second) == ("stride", "banks")
    assert stride["time"] == pytest.approx(0.036288)  # printed in ns
    assert banks["instructions"] == 72_613_888
    assert stride["load_use"] == 12.5
    assert banks["bank_conflicts"] == 264_238_995
    assert set(stride) == {counter.name for counter in COUNTERS}


def table(units, *rows):
    header = ["ID", "Kernel Name", *units]
    lines = [header, ["", "", *units.values()], *([str(i), "k", *row] for i, row in enumerate(rows))]
    return "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines)


@pytest.mark.parametrize(
    ("unit", "number", "expected"),
    [
        ("ns", "1,500", 0.0015),
        ("us", "1.5", 0.0015),
        ("ms", "2", 2.0),
        ("nsecond", "1e6", 1.0),
        ("second", "1", 1000.0),
    ],
)
def test_times_come_in_milliseconds_whatever_the_unit(unit, number, expected):
    found = parse_counters(table({"gpu__time_duration.sum": unit}, [number]))
    assert found[0][1] == {"time": pytest.approx(expected)}


@pytest.mark.parametrize(("unit", "expected"), [("byte", 2.0), ("Kbyte", 2e3), ("Mbyte", 2e6), ("Gbyte", 2e9)])
def test_bytes_come_in_bytes(unit, expected):
    assert parse_counters(table({"dram__bytes_read.sum": unit}, ["2"]))[0][1] == {"dram_read": expected}


def test_counters_that_a_device_does_not_have_are_left_out():
    text = table({"dram__bytes_read.sum": "byte", "launch__registers_per_thread": "register/thread"}, ["n/a", "32"])
    assert parse_counters(text)[0][1] == {"registers": 32.0}


def test_command_asks_for_each_counter_once_and_leaves_clocks_alone():
    command = ncu_command(Path("/bin/ncu"), ["program", "argument"], is_cold=True)
    metrics = command[command.index("--metrics") + 1].split(",")
    assert sorted(metrics) == sorted(counter.metric for counter in COUNTERS)
    assert len(set(metrics)) == len(metrics)
    assert command[command.index("--clock-control") + 1] == "none"
    assert command[-2:] == ["program", "argument"]
    assert command[command.index("--cache-control") + 1] == "all"
    hot = ncu_command(Path("/bin/ncu"), ["program"], is_cold=False)
    assert hot[hot.index("--cache-control") + 1] == "none"


# ---- where it is, and whether it may ----


@pytest.fixture
def no_ncu(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("kernelwright.backend.cuda.measure.nsight_compute.toolkit_roots", lambda: iter(()))
    return tmp_path


def put_ncu(folder, script):
    program = folder / "ncu"
    program.write_text(f"#!{sys.executable}\n{script}")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def test_absence_is_a_reason(no_ncu):
    assert find_ncu() is None
    assert "not on the PATH" in why_no_counters()
    with pytest.raises(ProfilerFailed, match="not on the PATH"):
        count(JOB, no_ncu / "count")


def test_driver_that_keeps_counters_to_administrators_is_told(no_ncu, tmp_path, monkeypatch):
    put_ncu(no_ncu, "")
    parameters = tmp_path / "params"
    parameters.write_text("Foo: 1\nRmProfilingAdminOnly: 1\n")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "NVreg_RestrictProfilingToAdminUsers=0" in why_no_counters(parameters=parameters)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert why_no_counters(parameters=parameters) is None
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    parameters.write_text("RmProfilingAdminOnly: 0\n")
    assert why_no_counters(parameters=parameters) is None


JOB = CountJob(DeviceInfo("cuda", "cuda:0", "a GPU", "gpu", {}), None, {}, is_cold=True)


def test_profiler_runs_our_program_and_its_table_is_read(no_ncu):
    put_ncu(no_ncu, f"import sys; print({RECORDED!r}); open({str(no_ncu / 'seen')!r}, 'w').write(' '.join(sys.argv))")
    assert [kernel for kernel, _ in count(JOB, no_ncu / "count")] == ["stride", "banks"]
    assert f"-m kernelwright.evaluate.device.counting_main {no_ncu / 'count'}" in (no_ncu / "seen").read_text()
    assert (no_ncu / "count" / "count.pickle").exists()


def test_program_under_the_profiler_gets_its_job_and_its_last_word_is_told(no_ncu):
    """As far as it goes without a device."""
    put_ncu(no_ncu, "import os, sys; at = sys.argv.index('-m') - 1; os.execv(sys.argv[at], sys.argv[at:])")
    with pytest.raises(ProfilerFailed) as caught:
        count(JOB, no_ncu / "count")
    assert "AttributeError" in str(caught.value) or "CUDA" in str(caught.value) or "cuda" in str(caught.value)


def test_profiler_that_hangs_is_killed_with_its_children(no_ncu):
    script = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
    put_ncu(no_ncu, script + "time.sleep(60)")
    with pytest.raises(ProfilerFailed, match=r"did not end within 1 s"):
        count(JOB, no_ncu / "count", timeout_s=1)

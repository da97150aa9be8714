"""What the OpenCL backend does before and after the driver: texts, names, messages. Needs no device."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.backend.base import BuildFailed, BuildUnit, DeviceInfo, LaunchFailed
from kernelwright.backend.opencl.build import build_options, first_error, source_text, specialisation
from kernelwright.backend.opencl.cpu.processor import name_processor
from kernelwright.backend.opencl.cpu.processor_facts import processor_facts
from kernelwright.backend.opencl.driver import platform_slug
from kernelwright.backend.opencl.errors import DRIVER_ERRORS, launch_error, machine_error
from kernelwright.backend.registry import BACKENDS, get_backend
from kernelwright.errors import InfrastructureError, UsageError


class FakeDriverError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


@pytest.mark.skipif(sys.platform != "linux", reason="PoCL's device is looked through on Linux only")
def test_a_processor_that_pocl_does_not_know_gets_a_name():
    names = [ctypes.create_string_buffer(name, 64) for name in (b"generic", b"znver2")]
    new, known = (
        (ctypes.c_uint64 * 512)(*([3] * 80), ctypes.addressof(name), *([0xFFFFFFFFFFFF0000] * 431)) for name in names
    )
    given = name_processor(ctypes.addressof(new))
    assert given
    assert ctypes.string_at(new[80]) == given.encode()
    assert name_processor(ctypes.addressof(new)) == given
    assert not name_processor(ctypes.addressof(known))
    assert ctypes.string_at(known[80]) == b"znver2"


def unit(source="kernel text\n", **changes) -> BuildUnit:
    fields = {"file_name": "k.cl", "macros": (), "options": (), "entries": ("k",)} | changes
    return BuildUnit("opencl", source, **fields)


@pytest.mark.parametrize("code", sorted(DRIVER_ERRORS))
def test_every_driver_error_has_words_and_an_owner(code):
    known = DRIVER_ERRORS[code]
    assert known.meaning
    error = launch_error(FakeDriverError(code), "launching 'k'")
    assert isinstance(error, InfrastructureError if known.is_machine else LaunchFailed)
    assert "launching 'k'" in str(error)
    assert known.name in str(error)
    if isinstance(error, LaunchFailed):
        assert error.reason == known.name.lower().replace("_", "-")


def test_unknown_driver_error_keeps_its_number():
    assert launch_error(FakeDriverError(-4711), "x").reason == "error-4711"
    assert "ERROR_4711" in str(machine_error(FakeDriverError(-4711), "x"))


@pytest.mark.parametrize(
    ("log", "first"),
    [
        ("error: k.cl:3:7: use of undeclared 'x'\nDevice cpu failed", "k.cl:3:7: use of undeclared 'x'"),
        ("warning: k.cl:1:1: unused\nerror: k.cl:9:2: expected ';'", "k.cl:9:2: expected ';'"),
        ("<kernel>:3:7: error: use of undeclared 'x'\n  int q = x;", "<kernel>:3:7: use of undeclared 'x'"),
        ("k.cl:1:10: fatal error: 'a.h' file not found", "k.cl:1:10: 'a.h' file not found"),
        ("ptxas error   : 'k' uses too much shared data", "ptxas 'k' uses too much shared data"),
        ("\n  something else entirely\nmore", "something else entirely"),
        ("", ""),
    ],
)  # fmt: skip
def test_first_complaint_is_found_with_its_place(log, first):
    assert first_error(log) == first


def test_macros_come_before_the_source_and_lines_stay_the_users():
    text = source_text(unit(macros=(("N", "4"), ("TYPE", "float4"), ("LIST", "{1, 2}"), ("EMPTY", ""))))
    assert text == (
        '#define N 4\n#define TYPE float4\n#define LIST {1, 2}\n#define EMPTY \n#line 1 "k.cl"\nkernel text\n'
    )


def test_hostile_file_names_and_values_stay_inside_their_line():
    text = source_text(unit(file_name='a"b\\c.cl', macros=(("BODY", "a;\nb;"),)))
    assert '#line 1 "a\\"b\\\\c.cl"\n' in text
    assert "#define BODY a;\\\nb;\n" in text


def test_include_folder_with_a_blank_is_refused_with_its_name():
    assert build_options(unit(include_paths=(Path("/a/b"),))).endswith(b"-I/a/b")
    with pytest.raises(BuildFailed, match="/my folder"):
        build_options(unit(include_paths=(Path("/my folder"),)))


@pytest.mark.parametrize(
    ("grid", "name", "reduced"),
    [
        ((1, 1, 1), "8-4-1-goffs0-smallgrid", (1, 1, 1)),
        ((65534, 9, 1), "8-4-1-goffs0-smallgrid", (1, 1, 1)),
        ((65535, 9, 1), "8-4-1-goffs0", (65535, 1, 1)),
        ((2, 10**6, 3), "8-4-1-goffs0", (1, 65535, 1)),
    ],
)
def test_reduced_grid_gets_the_same_variant(grid, name, reduced):
    assert specialisation(grid, (8, 4, 1)) == (name, reduced)
    assert specialisation(reduced, (8, 4, 1))[0] == name


@pytest.mark.parametrize(
    ("name", "version", "slug"),
    [
        ("Portable Computing Language", "OpenCL 3.0 PoCL 3.0-rc2  Linux, Release, LLVM 14.0.6", "pocl-3.0"),
        ("NVIDIA CUDA", "OpenCL 3.0 CUDA 13.0.88", "nvidia-cuda-13.0.88"),
        ("Intel(R) OpenCL", "OpenCL 3.0 LINUX", "intel-opencl"),
    ],
)
def test_platforms_have_short_names(name, version, slug):
    assert platform_slug(name, version) == slug


def test_toolchain_id_follows_driver_and_compiler():
    backend = get_backend("opencl")
    device = DeviceInfo("opencl", "opencl:x:cpu0", "cpu", "cpu", {}, "1.0", {"platform": "P", "platform_version": "1"})
    other_driver = DeviceInfo("opencl", "opencl:x:cpu0", "cpu", "cpu", {}, "1.1", device.facts)
    other_platform = DeviceInfo(
        "opencl", "opencl:x:cpu0", "cpu", "cpu", {}, "1.0", {**device.facts, "platform_version": "2"}
    )
    clock = DeviceInfo("opencl", "opencl:x:cpu0", "cpu", "cpu", {}, "1.0", {**device.facts, "max_clock_mhz": "2"})
    ids = [backend.toolchain_id(each) for each in (device, other_driver, other_platform)]
    assert len(set(ids)) == 3
    assert backend.toolchain_id(clock) == ids[0]


def test_unknown_backend_is_told_with_the_nearest():
    with pytest.raises(UsageError, match="no backend is called 'opencll'") as caught:
        get_backend("opencll")
    assert caught.value.hint == "did you mean 'opencl'?"


@pytest.mark.parametrize("name", ["no.such.module:X", "kernelwright.errors:Nothing", "kernelwright.errors:UserError"])
def test_foreign_backend_that_is_none_is_refused(name):
    with pytest.raises(UsageError):
        get_backend(name)


def fresh(code: str, **variables: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_registry_and_backends_load_no_gpu_library():
    code = (
        "import sys; from kernelwright.backend.registry import *;"
        "[get_backend(name) for name in BACKENDS];"
        "import kernelwright.evaluate.device.probe, kernelwright.evaluate.builds.pool;"
        "print([name for name in ('pyopencl', 'torch', 'cuda') if name in sys.modules])"
    )
    assert BACKENDS
    assert fresh(code) == "[]"


def test_missing_package_is_told_from_a_missing_driver():
    ask = "from kernelwright.backend.registry import get_backend; print(get_backend('opencl').unavailable_because())"
    missing = fresh(f"import sys; sys.modules['pyopencl'] = None; {ask}")
    assert "'pyopencl'" in missing
    assert "pip install 'kernelwright[opencl]'" in missing
    no_driver = fresh(
        "import types, sys\n"
        "class Error(Exception): code = -1001\n"
        "def get_platforms(): raise Error('no platform')\n"
        "sys.modules['pyopencl'] = types.SimpleNamespace(Error=Error, get_platforms=get_platforms)\n" + ask
    )
    assert "no OpenCL driver is" in no_driver
    assert "pip install 'kernelwright[opencl]'" in no_driver


def test_what_linux_tells_of_a_processor_is_told(tmp_path):
    cpuinfo, caches = tmp_path / "cpuinfo", tmp_path / "cache"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu sse2 avx avx2 fma\n")
    for index, texts in enumerate(
        [("1", "Data", "48K", "0"), ("1", "Instruction", "32K", "0"), ("3", "Unified", "2048K", "0-3")]
    ):
        (caches / f"index{index}").mkdir(parents=True)
        for name, text in zip(("level", "type", "size", "shared_cpu_list"), texts, strict=True):
            (caches / f"index{index}" / name).write_text(f"{text}\n")
    (caches / "index9").mkdir()
    assert processor_facts(cpuinfo, caches) == {
        "vector_registers": "256 bits (8 floats)",
        "caches": "L1 48 KiB of each core, L3 2 MiB shared by cores 0-3",
    }
    assert processor_facts(tmp_path / "none", tmp_path / "none") == {}

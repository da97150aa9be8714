"""How the exported runtime calls the CUDA driver, against one compiled from C that writes down what it is asked."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from kernelwright.export.torch import runtime as torch_runtime
from kernelwright.export.torch.runtime import KernelArgument, KernelError, Kernels, Launch, Unit

DRIVER = r"""
#include <stddef.h>
#include <stdio.h>
#include <string.h>
static char heard[8192];
static int context_is_set, fails;
const char *fake_heard(void) { return heard; }
void fake_fail(int code) { fails = code; }
static void hear(const char *text) { strncat(heard, text, sizeof heard - strlen(heard) - 1); }
typedef struct { int id; char pad[4]; union { unsigned words[16]; double align; } value; } Attribute;
typedef struct {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    Attribute *attributes;
    unsigned count;
} Config;
int cuCtxGetCurrent(void **context) { *context = context_is_set ? (void *)1 : NULL; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = 100 + ordinal; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(long)device; return 0; }
int cuCtxSetCurrent(void *context) {
    char line[64];
    context_is_set = 1;
    sprintf(line, "context %ld\n", (long)context);
    hear(line);
    return 0;
}
int cuModuleLoadData(void **module, const void *image) {
    hear("load ");
    hear((const char *)image);
    hear("\n");
    *module = (void *)0x7fff00000007;
    return fails;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
    char line[128];
    sprintf(line, "function %s of %p\n", name, module);
    hear(line);
    *function = (void *)0x7fff00000009;
    return 0;
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
    char line[128];
    sprintf(line, "attribute %d = %d of %p\n", attribute, value, function);
    hear(line);
    return 0;
}
static void hear_parameters(void **parameters) {
    char line[128];
    void *pointer;
    float number;
    memcpy(&pointer, parameters[0], sizeof pointer);
    memcpy(&number, parameters[1], sizeof number);
    sprintf(line, " | %p %g\n", pointer, number);
    hear(line);
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
    char line[256];
    sprintf(line, "launch %p %u %u %u %u %u %u %u %p %d", function, gx, gy, gz, bx, by, bz, shared, stream, !extra);
    hear(line);
    hear_parameters(parameters);
    return fails;
}
int cuLaunchKernelEx(const Config *config, void *function, void **parameters, void **extra) {
    char line[256];
    unsigned i;
    sprintf(line, "launchex %p %u %u %u %u %p %d", function, config->grid[0], config->grid[1], config->block[2],
            config->shared_bytes, config->stream, !extra);
    hear(line);
    for (i = 0; i < config->count; ++i) {
        const unsigned *words = config->attributes[i].value.words;
        sprintf(line, " %d:%u,%u,%u", config->attributes[i].id, words[0], words[1], words[2]);
        hear(line);
    }
    hear_parameters(parameters);
    return 0;
}
int cuModuleGetGlobal_v2(unsigned long long *address, size_t *size, void *module, const char *name) {
    char line[128];
    sprintf(line, "global %s of %p\n", name, module);
    hear(line);
    *address = 0x7f0000001000;
    *size = 256;
    return 0;
}
int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t count, void *stream) {
    char line[128];
    sprintf(line, "copy %llx %llx %zu %p\n", to, from, count, stream);
    hear(line);
    return 0;
}
int cuGetErrorString(int code, const char **text) { (void)code; *text = "no luck"; return 0; }
"""
POINTER = 0x7F0123456780
ARGUMENTS = (KernelArgument("x", "input", 1024), KernelArgument("a", "scalar", 4, torch_runtime.scalar("float32", 2.5)))


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    gcc = shutil.which("gcc") or pytest.skip("no gcc on this machine")
    (tmp_path / "driver.c").write_text(DRIVER)
    flags = ["-shared", "-fPIC", "-Wall", "-Werror"]
    subprocess.run([gcc, *flags, "-o", tmp_path / "driver.so", tmp_path / "driver.c"], check=True, timeout=300)
    library = ctypes.CDLL(str(tmp_path / "driver.so"))
    library.fake_heard.restype = ctypes.c_char_p
    monkeypatch.setattr(torch_runtime, "_library", lambda: library)
    monkeypatch.setattr(
        torch_runtime,
        "compile_unit",
        lambda folder, unit, **how: (b"cubin", {entry: f"_Z{entry}" for entry in unit.entries}),
    )
    return library


def launch(kernels: Kernels, *launches: Launch) -> None:
    unit = Unit("x.cu", (), ("k",))
    where = {"device": 3, "capability": 90, "stream": 0x7F00DEADBEE0}
    kernels.launch(Path(), unit, launches, {"x": POINTER}, **where)


def heard(driver: ctypes.CDLL) -> list[str]:
    found: list[str] = driver.fake_heard().decode().splitlines()
    return found


def test_a_launch_reaches_the_driver_whole_and_is_loaded_once(driver: ctypes.CDLL) -> None:
    kernels = Kernels()
    plain = Launch("k", (7, 8, 9), (64, 2, 1), ARGUMENTS, shared_bytes=4096)
    launch(kernels, plain, plain)
    launch(kernels, plain)
    line = f"launch 0x7fff00000009 7 8 9 64 2 1 4096 0x7f00deadbee0 1 | {POINTER:#x} 2.5"
    assert heard(driver) == ["context 103", "load cubin", "function _Zk of 0x7fff00000007", *[line] * 3]


def test_large_shared_memory_is_asked_for(driver: ctypes.CDLL) -> None:
    launch(Kernels(), Launch("k", (1, 1, 1), (32, 1, 1), ARGUMENTS, shared_bytes=65536))
    assert "attribute 8 = 65536 of 0x7fff00000009" in heard(driver)


def test_clusters_and_cooperative_launches_carry_their_attributes(driver: ctypes.CDLL) -> None:
    special = Launch("k", (16, 4, 1), (32, 1, 2), ARGUMENTS, 128, cluster=(4, 4, 1), is_cooperative=True)
    launch(Kernels(), special)
    assert "attribute 14 = 1 of 0x7fff00000009" in heard(driver)
    assert heard(driver)[-1] == (
        f"launchex 0x7fff00000009 16 4 2 128 0x7f00deadbee0 1 4:4,4,1 2:1,0,0 | {POINTER:#x} 2.5"
    )


def test_constants_are_filled_on_the_same_stream_before_the_launch(driver: ctypes.CDLL) -> None:
    constant = torch_runtime.ModuleConstant("table", "x", 256)
    launch(Kernels(), Launch("k", (1, 1, 1), (1, 1, 1), ARGUMENTS, constants=(constant,)))
    assert heard(driver)[-3:-1] == [
        "global table of 0x7fff00000007",
        f"copy 7f0000001000 {POINTER:x} 256 0x7f00deadbee0",
    ]
    with pytest.raises(KernelError, match="'table' holds 256 bytes, and 257"):
        launch(Kernels(), Launch("k", (1, 1, 1), (1, 1, 1), ARGUMENTS, constants=(constant._replace(byte_count=257),)))


def test_a_refusal_says_what_and_why(driver: ctypes.CDLL) -> None:
    driver.fake_fail(719)
    with pytest.raises(KernelError, match=r"cuModuleLoadData: no luck \(719\)"):
        launch(Kernels(), Launch("k", (1, 1, 1), (1, 1, 1), ARGUMENTS))

"""Kernel times from CUPTI's records, against a library that behaves like it, and against its real header."""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from kernelwright.backend.cuda.measure.cupti import (
    CONCURRENT_KERNEL,
    CuptiFailed,
    KernelRecord,
    KernelRecorder,
    load_cupti,
    read_record,
)
from kernelwright.backend.cuda.measure.timing import kernels_after_delay
from kernelwright.backend.cuda.session_kernels.ptx import DELAY_ENTRY, READ_ENTRY

STUB = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
typedef void (*Request)(uint8_t **, size_t *, size_t *);
typedef void (*Complete)(void *, uint32_t, uint8_t *, size_t, size_t);
static Request request; static Complete complete; static int recording, to_deliver, failing;
static size_t const STRIDE = 216;
int cuptiActivityRegisterCallbacks(Request r, Complete c) { request = r; complete = c; return failing; }
int cuptiActivityEnable(int kind) { recording = kind == 10; return 0; }
int cuptiActivityDisable(int kind) { (void)kind; recording = 0; return 0; }
int cuptiGetVersion(uint32_t *v) { *v = 130001; return 0; }
int cuptiGetResultString(int code, char const **text) { *text = code == 7 ? "CUPTI_ERROR_TEST" : "?"; return 0; }
void stub_fail(int code) { failing = code; }
void stub_run(int count) { to_deliver = count; }
static void *deliver(void *unused) {
  (void)unused;
  while (to_deliver > 0) {
    uint8_t *buffer; size_t size, limit;
    request(&buffer, &size, &limit);
    size_t used = 0;
    for (; to_deliver > 0 && used + 2 * STRIDE <= size; --to_deliver) {
      uint8_t *record = buffer + used;
      memset(record, 0, 2 * STRIDE);
      uint32_t kind = 10; uint64_t start = 1000 * to_deliver, end = start + 7; char const *name = "kernel";
      memcpy(record, &kind, 4); memcpy(record + 16, &start, 8); memcpy(record + 24, &end, 8);
      memcpy(record + 104, &name, 8);
      kind = 1; memcpy(record + STRIDE, &kind, 4);   /* a memory copy, which is none of ours */
      used += 2 * STRIDE;
    }
    complete(NULL, 0, buffer, size, used);
  }
  return NULL;
}
int cuptiActivityFlushAll(uint32_t flag) {
  (void)flag;
  if (failing) return failing;
  pthread_t thread; pthread_create(&thread, NULL, deliver, NULL); pthread_join(thread, NULL);
  return 0;
}
int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, void **record) {
  uint8_t *next = *record ? (uint8_t *)*record + STRIDE : buffer;
  if (next + STRIDE > buffer + valid) return 12;
  *record = next;
  return 0;
}
"""


@pytest.fixture
def stub(tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (tmp_path / "stub.c").write_text(STUB)
    command = [compiler, "-shared", "-fPIC", "-pthread", "-o", tmp_path / "libstub.so", tmp_path / "stub.c"]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(tmp_path / "libstub.so"))


def test_library_that_refuses_is_a_reason_in_words(stub):
    stub.stub_fail(7)
    with pytest.raises(CuptiFailed, match=r"CUPTI_ERROR_TEST \(7\)"):
        KernelRecorder(stub)


def test_flush_that_fails_is_told(stub):
    recorder = KernelRecorder(stub)
    stub.stub_fail(7)
    with pytest.raises(CuptiFailed, match="cuptiActivityFlushAll"):
        recorder.take()


@pytest.mark.parametrize("count", [0, 1, 75, 76, 1000])
def test_every_kernel_record_comes_once_in_order_of_its_start(stub, count):
    """More than one buffer holds too; they come from a thread of the library's own."""
    recorder = KernelRecorder(stub)
    assert recorder.version == 130001
    for _ in range(3):
        stub.stub_run(count)
        assert recorder.take() == [KernelRecord("kernel", 1000 * i, 1000 * i + 7) for i in range(1, count + 1)]
    assert recorder.take() == []
    recorder.close()


def test_a_record_is_read_where_the_header_puts_it(tmp_path):
    """The offsets, against the C compiler's view of the installed header."""
    library, path = load_cupti()
    compiler = shutil.which("cc") or shutil.which("gcc")
    if library is None or compiler is None or "/" not in path:
        pytest.skip(f"needs CUPTI's header and a C compiler: {path}")
    root = next((up for up in Path(path).parents if (up / "include" / "cupti.h").is_file()), None)
    if root is None:
        pytest.skip(f"no cupti.h beside {path}")
    code = """#include <stdio.h>
    #include <stddef.h>
    #include <cupti.h>
    #define A(f) (int)offsetof(CUpti_ActivityKernel9, f)
    int main() { printf("%d %d %d %d", A(start), A(end), A(name), CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL); }"""
    (tmp_path / "offsets.c").write_text(code)
    command = [compiler, f"-I{root / 'include'}", "-o", tmp_path / "offsets", tmp_path / "offsets.c"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("the header does not compile here: CUDA's own headers are missing")
    found = subprocess.run([tmp_path / "offsets"], capture_output=True, text=True, check=True).stdout
    assert found.split() == ["16", "24", "104", str(CONCURRENT_KERNEL)]


def test_record_without_a_name_is_read():
    memory = ctypes.create_string_buffer(216)
    struct.pack_into("<QQ", memory, 16, 5, 9)
    assert read_record(ctypes.addressof(memory)) == KernelRecord("", 5, 9)


def record(name, start_ns, length_ns=10):
    return KernelRecord(name, start_ns, start_ns + length_ns)


def test_only_kernels_after_the_last_wait_are_the_candidates():
    records = [
        record("stale", 1),
        record(DELAY_ENTRY, 10),
        record("warm-up", 20),
        record(DELAY_ENTRY, 30),
        record("b", 60),
        record("a", 50),
        record(READ_ENTRY, 55),
    ]
    assert [each.name for each in kernels_after_delay(records)] == ["a", "b"]
    assert kernels_after_delay(records[:1]) == []

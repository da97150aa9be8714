"""Kernel times from CUPTI's activity records: when the device itself began and ended each kernel.

```
recorder, why_not = open_recorder()       # before the first context is made
...launch, synchronize...
records = recorder.take()                 # every kernel that ended since the last call
```
Events stand beside a kernel on its stream and count what lies between them; a record is of the kernel alone, which is
what decides for kernels of a few microseconds.

`libcupti` is called through ctypes rather than through `cupti-python`: five functions are needed, the library comes
with PyTorch, the toolkit and `nvidia-cuda-cupti`, and the part of a kernel's record that is read here has stood at the
same offsets since CUDA 7 (`CUpti_ActivityKernel3` to `10`), while the Python package follows one version of the
library. That the figures make sense is checked against the clock inside a kernel before they are believed
(`cuda.session`).
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwright.backend.cuda.driver import toolkit_roots

CONCURRENT_KERNEL = 10
"""`CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL`: kernels are recorded, and not serialised for it."""

BUFFER_BYTES = 1 << 15
"""Some 150 records. CUPTI clears each buffer that it is given, so small ones are cheaper here: they are taken back
after every sample."""

_LIBRARIES = ("libcupti.so.13", "libcupti.so.12", "libcupti.so")
_START_END = struct.Struct("<QQ")
_START_OFFSET = 16
_NAME_OFFSET = 104


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One kernel that ran."""

    name: str
    """As in the cubin (mangled)."""
    start_ns: int
    end_ns: int


class CuptiFailed(Exception):
    """A call of CUPTI gave an error code."""


class KernelRecorder:
    """Collects records of every kernel of this process. One at a time in a process; CUPTI allows no more."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._given: dict[int, ctypes.Array[ctypes.c_char]] = {}
        """Buffers that CUPTI fills, by address."""
        self._records: list[KernelRecord] = []
        request_type = ctypes.CFUNCTYPE(
            None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
        )
        complete_type = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
        )
        self._callbacks = (request_type(self._give_buffer), complete_type(self._take_buffer))
        # The library calls these until the process ends, whatever becomes of this object.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._callbacks))
        self._call("cuptiActivityRegisterCallbacks", *self._callbacks)
        self._call("cuptiActivityEnable", ctypes.c_int(CONCURRENT_KERNEL))

    @property
    def version(self) -> int:
        """CUPTI's own number, e.g. 130001."""
        value = ctypes.c_uint32()
        self._call("cuptiGetVersion", ctypes.byref(value))
        return value.value

    def take(self, *, is_forced: bool = False) -> list[KernelRecord]:
        """Records of all kernels that ended since the last call, in order of their start.

        Synchronise first: records of kernels that still run stay where they are, and so do those beside them in one
        buffer, unless it is forced.

        Raises:
            CuptiFailed: CUPTI does not deliver.
        """
        self._call("cuptiActivityFlushAll", ctypes.c_uint32(1 if is_forced else 0))
        records, self._records = self._records, []
        return sorted(records, key=lambda record: record.start_ns)

    def close(self) -> None:
        """Record no more."""
        self._library.cuptiActivityDisable(ctypes.c_int(CONCURRENT_KERNEL))

    # ---- called by CUPTI, from its own thread too ----

    def _give_buffer(self, buffer: Any, size: Any, max_records: Any) -> None:
        memory = ctypes.create_string_buffer(BUFFER_BYTES + 8)
        address = -(-ctypes.addressof(memory) // 8) * 8
        self._given[address] = memory
        buffer[0], size[0], max_records[0] = address, BUFFER_BYTES, 0

    def _take_buffer(self, context: int, stream: int, buffer: int, size: int, valid_bytes: int) -> None:
        del context, stream, size
        if valid_bytes:
            self._records += self._parse(buffer, valid_bytes)
        self._given.pop(buffer, None)

    def _parse(self, buffer: int, valid_bytes: int) -> Iterator[KernelRecord]:
        record = ctypes.c_void_p()
        next_record = self._library.cuptiActivityGetNextRecord
        while not next_record(ctypes.c_void_p(buffer), ctypes.c_size_t(valid_bytes), ctypes.byref(record)):
            address = record.value or 0
            if ctypes.c_uint32.from_address(address).value == CONCURRENT_KERNEL:
                yield read_record(address)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuptiGetResultString(ctypes.c_int(code), ctypes.byref(text))
            raise CuptiFailed(f"{name}: {(text.value or b'an unknown error').decode()} ({code})")


def read_record(address: int) -> KernelRecord:
    """The kernel record that begins at `address`."""
    start_ns, end_ns = _START_END.unpack(ctypes.string_at(address + _START_OFFSET, _START_END.size))
    name = ctypes.c_char_p.from_address(address + _NAME_OFFSET).value
    return KernelRecord((name or b"").decode(errors="replace"), start_ns, end_ns)


def open_recorder() -> tuple[KernelRecorder | None, str]:
    """A recorder that is recording, or None and why there is none.

    Nothing here is an error: another profiler may be attached, or the administrator may have closed CUPTI to users.
    """
    library, where = load_cupti()
    if library is None:
        return None, where
    try:
        recorder = KernelRecorder(library)
        return recorder, f"CUPTI {recorder.version}, {where}"
    except (CuptiFailed, AttributeError) as error:
        return None, f"{where} does not record: {error}"


def load_cupti() -> tuple[ctypes.CDLL | None, str]:
    """The library and its place; or None and what was looked for."""
    for path in _candidates():
        try:
            return ctypes.CDLL(path), path
        except OSError:
            continue
    return None, "libcupti was not found: pip install nvidia-cuda-cupti brings it"


def _candidates() -> Iterator[str]:
    """That of the toolkit whose compiler is used first, then whatever the loader finds."""
    for root in toolkit_roots():
        for folder in (
            root / "lib",
            root / "extras" / "CUPTI" / "lib64",
            root / "lib64",
            root.parent / "cuda_cupti/lib",
        ):
            yield from (str(Path(folder, name)) for name in _LIBRARIES if Path(folder, name).is_file())
    yield from _LIBRARIES

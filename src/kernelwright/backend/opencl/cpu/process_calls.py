"""The few calls of the C library that Python does not have, typed. Linux only."""

from __future__ import annotations

import ctypes
import functools
import mmap
import time
from contextlib import suppress
from pathlib import Path

PAGE_BYTES = mmap.PAGESIZE
_DONTNEED = 4  # MADV_DONTNEED
_RTLD_NOW, _RTLD_NOLOAD = 2, 4
_THREAD_CLOCK = 6
"""CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED, of which Linux makes a thread's clock."""
_LINK_MAP = 2  # RTLD_DI_LINKMAP


@functools.cache
def library() -> ctypes.CDLL:
    """The C library that this process runs on."""
    found = ctypes.CDLL(None, use_errno=True)
    found.dlopen.restype = ctypes.c_void_p
    found.dlopen.argtypes = (ctypes.c_char_p, ctypes.c_int)
    found.dlclose.argtypes = (ctypes.c_void_p,)
    found.dlsym.restype = ctypes.c_void_p
    found.dlsym.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
    found.dlinfo.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    found.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    found.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return found


def thread_times_s() -> dict[int, tuple[float, float]]:
    """By thread of this process the seconds that it ran, and that it waited for a core; empty: the system is silent."""
    found: dict[int, tuple[float, float]] = {}
    with suppress(OSError, IndexError):  # one that has just ended, or a system without these figures: nothing is told
        for each in Path("/proc/self/task").iterdir():
            waited_ns = int((each / "schedstat").read_text().split()[1])
            found[int(each.name)] = thread_s(int(each.name)), waited_ns / 1e9
        return found
    return {}


def thread_s(thread: int) -> float:
    """Seconds that a thread of this process ran. Raises `OSError` where it has ended."""
    return time.clock_gettime(~thread << 3 | _THREAD_CLOCK)


def drop_pages(start: int, end: int) -> None:
    """Give whole pages back; they read as zeros from then on."""
    library().madvise(start, end - start, _DONTNEED)


def open_object(path: bytes, *, is_loaded: bool = False) -> int | None:
    """A handle of a shared object, with one reference more; None where it cannot be loaded, or is not `is_loaded`."""
    handle: int | None = library().dlopen(path, _RTLD_NOW | (_RTLD_NOLOAD if is_loaded else 0))
    return handle


def close_object(handle: int) -> None:
    """Give one reference back."""
    library().dlclose(handle)


def base_of(handle: int) -> int | None:
    """What is added to the addresses in a shared object's file; None where the loader does not tell."""
    link_map = ctypes.c_void_p()
    if library().dlinfo(handle, _LINK_MAP, ctypes.byref(link_map)) or not link_map.value:
        return None
    return ctypes.c_size_t.from_address(link_map.value).value

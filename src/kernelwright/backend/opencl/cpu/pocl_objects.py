"""What a program's shared objects on PoCL keep in writable pages, and how they get their first contents again.

PoCL compiles a kernel to a shared object and loads it at the first launch. Its writable pages (variables at program
scope, tables of the linker, and what is left of their last page) outlive launches. Their first contents are those of
a copy of the file that is loaded beside it and never run.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernelwright.backend.opencl.cpu.process_calls import PAGE_BYTES, base_of, close_object, open_object

_HEADER = struct.Struct("<16x2xHIQQQIHHH")  # of ELF, 64 bits: machine, version, entry, program headers at, ...
_SEGMENT = struct.Struct("<IIQQQQQQ")  # type, flags, offset, address, physical address, file bytes, bytes, alignment
_LOAD, _READ_ONLY_AFTER = 1, 0x6474E552  # PT_LOAD, PT_GNU_RELRO
_WRITABLE = 2

CAN_RESTORE = sys.platform == "linux"
"""Whether objects are files of the kind that is read here, and their loader tells where they lie."""


@dataclass(frozen=True, slots=True)
class _Pages:
    """Writable memory of a loaded object with its first contents."""

    address: int
    contents: bytes

    def restore(self) -> None:
        ctypes.memmove(self.address, self.contents, len(self.contents))


@dataclass(frozen=True, slots=True)
class _Loaded:
    handle: int
    pages: tuple[_Pages, ...]


class ProgramObjects:
    """The loaded shared objects of one program."""

    def __init__(self, folder: Path | None) -> None:
        """`folder`: of the program in PoCL's cache; None: it is not known, and nothing is restored."""
        self._folder = folder if CAN_RESTORE else None
        self._loaded: dict[Path, _Loaded] = {}
        self._has_more = False
        self.trouble = "" if self._folder is not None else "PoCL's files of a program were not found"
        """Why some object is not restored; empty: all are."""

    def expect_more(self) -> None:
        """Something is launched that may be in an object which was not loaded yet."""
        self._has_more = True

    def restore(self) -> None:
        """Give all writable pages their first contents. No launch may be under way."""
        if self._has_more and self._folder is not None:
            for path in self._folder.glob("*/*/*.so"):
                if path not in self._loaded:
                    self._take(path)
            self._has_more = False
            if not self._loaded and not self.trouble:
                self.trouble = "PoCL loaded none of the objects that were made for it"
        for loaded in self._loaded.values():
            for pages in loaded.pages:
                pages.restore()

    def close(self) -> None:
        """Let PoCL unload them."""
        for loaded in self._loaded.values():
            close_object(loaded.handle)
        self._loaded.clear()

    def _take(self, path: Path) -> None:
        """Hold an object that PoCL has loaded, so that it stays where it is."""
        handle = open_object(os.fsencode(path), is_loaded=True)
        if handle is None:  # not launched yet
            return
        try:
            self._loaded[path] = _Loaded(handle, _first_contents(path, handle))
        except (OSError, ValueError, struct.error) as error:
            close_object(handle)
            self.trouble = f"{path.name} is not restored: {error}"


def _first_contents(path: Path, handle: int) -> tuple[_Pages, ...]:
    """Of every writable page of an object that may have run, by a copy that has not."""
    image = path.read_bytes()
    ranges = tuple(writable_ranges(image))
    base = base_of(handle)
    if base is None:
        raise OSError("the loader does not tell where it lies")
    if not ranges:
        return ()
    copy_path = path.with_suffix(".first")
    shutil.copyfile(path, copy_path)
    copy = open_object(os.fsencode(copy_path))
    copy_path.unlink()
    if copy is None:
        raise OSError("a copy of it cannot be loaded")
    try:
        copy_base = base_of(copy)
        if copy_base is None or copy_base == base:
            raise OSError("the loader does not tell where its copy lies")
        extent = max(end for _, end in _segments(image))
        return tuple(
            _Pages(base + start, _moved(ctypes.string_at(copy_base + start, end - start), copy_base, extent, base))
            for start, end in ranges
        )
    finally:
        close_object(copy)


def _moved(contents: bytes, old_base: int, extent: int, new_base: int) -> bytes:
    """With every word that points into the copy pointing to the same place of the object."""
    words = bytearray(contents)
    view = memoryview(words).cast("Q")
    for index, word in enumerate(view):
        if old_base <= word < old_base + extent:
            view[index] = word - old_base + new_base
    return bytes(words)


def writable_ranges(image: bytes) -> Iterator[tuple[int, int]]:
    """Whole pages of an ELF file's memory, from its base, that stay writable once it is loaded.

    Raises:
        ValueError: it is no such file.
    """
    read_only = [
        (_down(address), _down(address + byte_count))
        for kind, _, address, byte_count in _headers(image)
        if kind == _READ_ONLY_AFTER
    ]
    for kind, flags, address, byte_count in _headers(image):
        if kind != _LOAD or not flags & _WRITABLE or not byte_count:
            continue
        start, end = _down(address), _up(address + byte_count)
        for low, high in read_only:
            if low <= start < high:
                start = high
        if start < end:
            yield start, end


def _segments(image: bytes) -> Iterator[tuple[int, int]]:
    return ((address, _up(address + byte_count)) for kind, _, address, byte_count in _headers(image) if kind == _LOAD)


def _headers(image: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Kind, flags, address and size in memory of each segment."""
    if image[:6] != b"\x7fELF\x02\x01":
        raise ValueError("it is no ELF file of 64 bits")
    _, _, _, offset, _, _, _, entry_bytes, count = _HEADER.unpack_from(image)
    for index in range(count):
        kind, flags, _, address, _, _, byte_count, _ = _SEGMENT.unpack_from(image, offset + index * entry_bytes)
        yield kind, flags, address, byte_count


def _down(address: int) -> int:
    return address // PAGE_BYTES * PAGE_BYTES


def _up(address: int) -> int:
    return _down(address + PAGE_BYTES - 1)

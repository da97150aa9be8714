"""A driver on the CPU that compiles kernels for their launches, and never loads or runs one.

PoCL compiles a kernel for a block's shape when it is launched: it makes a shared object in its cache, opens that and
calls what is in it. Opening alone would run code: constructors, and functions that choose functions. So the driver's
own calls of the loader are led here, and in place of a kernel it calls a function that does nothing. A
candidate's code can then change neither the machine code that is made of it nor what the process builds later.

Linux only, where objects are ELF files of 64 bits and the loader tells what it has loaded.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from kernelwright.backend.opencl.cpu.process_calls import PAGE_BYTES, library

_DYNAMIC = 2  # PT_DYNAMIC
_NAMES, _SYMBOLS = 5, 6  # DT_STRTAB, DT_SYMTAB
_RELOCATIONS = ((23, 2), (7, 8))  # DT_JMPREL and DT_PLTRELSZ, DT_RELA and DT_RELASZ
_SEGMENT = struct.Struct("<IIQQ32x")  # of ELF, 64 bits: type, flags, offset, address
_ENTRY = struct.Struct("<qQ")  # tag, value
_SYMBOL_BYTES, _RELOCATION_WORDS = 24, 3
_READ_WRITE = 3  # PROT_READ | PROT_WRITE

_Open = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)
_Find = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_Close = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_NO_OBJECT = ctypes.create_string_buffer(1)
"""Whose address is the handle of every object that was not opened."""


class _LoadedObject(ctypes.Structure):
    """The first fields of what the loader tells of each object (`dl_phdr_info`)."""

    _fields_ = (
        ("base", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.c_size_t),
        ("header_count", ctypes.c_uint16),
    )


_Look = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_LoadedObject), ctypes.c_size_t, ctypes.c_void_p)

_led: list[object] = []
"""What drivers call now, which must outlive them."""


def load_nothing_from(folder: Path, driver: str) -> bool:
    """From now on and for good, have a driver load nothing that lies in `folder`, and do nothing in its place.

    `driver`: how the names of its library's files begin. Whether that could be done; only a launch of one's own tells
    whether it is enough.
    """
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return False
    stand_ins = _stand_ins(folder)
    _led.append(stand_ins)
    taken = {name for base, table in _objects(driver) for name in _lead(base, table, stand_ins)}
    return taken == set(stand_ins)


def _stand_ins(folder: Path) -> Mapping[bytes, ctypes._CFunctionType]:
    """The loader's functions for a driver, by name: a kernel's object is no object, and `labs` is what is in it."""
    inside, nothing = os.fsencode(folder) + b"/", ctypes.cast(library().labs, ctypes.c_void_p).value
    no_object = ctypes.addressof(_NO_OBJECT)

    def opened(path: bytes | None, flags: int) -> int | None:
        is_kernel = path is not None and path.startswith(inside)
        return no_object if is_kernel else library().dlopen(path, flags)

    def found(handle: int | None, name: bytes) -> int | None:
        return nothing if handle == no_object else library().dlsym(handle, name)

    def closed(handle: int | None) -> int:
        return 0 if handle == no_object else library().dlclose(handle)

    return {b"dlopen": _Open(opened), b"dlsym": _Find(found), b"dlclose": _Close(closed)}


def _objects(driver: str) -> Iterator[tuple[int, Mapping[int, int]]]:
    """Base and dynamic table of each loaded object of a driver."""
    found: list[tuple[int, int]] = []

    def look(about: ctypes._Pointer[_LoadedObject], _size: int, _data: int | None) -> int:
        each = about.contents
        if Path(os.fsdecode(each.name)).name.startswith(driver):
            headers = ctypes.string_at(each.headers, each.header_count * _SEGMENT.size)
            found.extend(
                (each.base, each.base + at) for kind, _, _, at in _SEGMENT.iter_unpack(headers) if kind == _DYNAMIC
            )
        return 0

    library().dl_iterate_phdr(_Look(look), None)
    for base, table in found:
        yield base, dict(_entries(table))


def _entries(address: int) -> Iterator[tuple[int, int]]:
    while (entry := _ENTRY.unpack(ctypes.string_at(address, _ENTRY.size)))[0]:
        yield entry
        address += _ENTRY.size


def _lead(base: int, table: Mapping[int, int], wanted: Mapping[bytes, ctypes._CFunctionType]) -> Iterator[bytes]:
    """Give an object other addresses of some functions that it imports; the names of those that it does."""

    def place(tag: int) -> int:  # some loaders leave what is in the file
        return table[tag] if table[tag] >= base else base + table[tag]

    def name_of(symbol: int) -> bytes:
        return ctypes.string_at(
            place(_NAMES) + ctypes.c_uint32.from_address(place(_SYMBOLS) + symbol * _SYMBOL_BYTES).value
        )

    for tag, size_tag in _RELOCATIONS:
        if tag not in table:
            continue
        words = np.frombuffer(ctypes.string_at(place(tag), table[size_tag]), np.uint64).reshape(-1, _RELOCATION_WORDS)
        symbols = words[:, 1] >> np.uint64(32)
        for symbol in np.unique(symbols[symbols > 0]).tolist():
            name = name_of(symbol)
            if name in wanted:
                for offset in words[symbols == symbol, 0].tolist():
                    _write(base + offset, wanted[name])
                yield name


def _write(address: int, function: ctypes._CFunctionType) -> None:
    """Write a function's address where it may be read only by now."""
    page = address // PAGE_BYTES * PAGE_BYTES
    if library().mprotect(page, PAGE_BYTES, _READ_WRITE):
        raise OSError(ctypes.get_errno(), "the driver's table of functions cannot be written")
    ctypes.c_size_t.from_address(address).value = ctypes.cast(function, ctypes.c_void_p).value or 0

"""What a cubin keeps from one launch to the next, read from its ELF sections and symbols.

A variable of the device's global memory lies in `.nv.global` (zero when the module is loaded) or `.nv.global.init`
(with its first value), whatever it is called, whatever macro, template, namespace or function it comes from. That a
variable is `const` is no longer told: tables and the strings of `printf` lie in `.nv.global.init` too. Variables that
are `__constant__` lie in `.nv.constant3`; compilers refuse to write them, but their memory is like any other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from kernelwright.backend.base import BinaryUnreadable, StateVariable

_MAGIC = b"\x7fELF\x02\x01"
_SYMTAB = 2
_OBJECT = 1
_ALLOC_AND_WRITE = 3
_GLOBAL, _CONSTANT = ".nv.global", ".nv.constant3"
_ALLOCATORS = frozenset({"malloc", "__nv_malloc", "_Znwm", "_Znam", "_Znwj", "cudaMalloc", "__cudaMalloc"})
EMPTY_BYTES = 1
"""The size of an object without members, which libraries of templates (CUB, CuTe) leave."""
SMALL_BYTES = 4096
"""Up to so much, all together, is not counted: the toolchain's own headers leave constants of value 0 (1,586 bytes for
`cub/block/block_reduce.cuh` with NVRTC 13.3) that look like variables. It is set back before each launch as tables are.
"""
HEAP = "the device's heap (malloc, new)"


@dataclass(frozen=True, slots=True)
class CubinVariable:
    """One variable in the device's global memory."""

    name: str
    """As the driver knows it."""
    byte_count: int
    is_table: bool
    """It is a constant, or has a first value other than zero, as tables have."""


@dataclass(frozen=True, slots=True)
class CubinState:
    """All that outlives a launch."""

    variables: tuple[CubinVariable, ...]
    uses_heap: bool

    def kept(self) -> tuple[StateVariable, ...]:
        """What is no table, where it is more than a little, and the heap: the rest is set back before each launch."""
        blank = [each for each in self.variables if not each.is_table]
        if sum(each.byte_count for each in blank) <= SMALL_BYTES:
            blank = []
        heap = [StateVariable(HEAP, None)] if self.uses_heap else []
        return (*(StateVariable(readable_name(each.name), each.byte_count) for each in blank), *heap)


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int


def read_cubin(image: bytes) -> CubinState:
    """Every variable that outlives a launch.

    Raises:
        BinaryUnreadable: this is no 64-bit little-endian ELF file, or a damaged one.
    """
    try:
        return _read(image)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise BinaryUnreadable(f"the cubin cannot be read: {error}") from error


def readable_name(name: str) -> str:
    """The last part of a mangled C++ name, as near as that goes without a demangler; others are as they are."""
    if not name.startswith("_Z"):
        return name
    parts, rest = [], name
    while rest:
        digits = len(rest) - len(rest.lstrip("0123456789"))
        length = int(rest[:digits] or 0)
        if digits and length <= len(rest) - digits:
            parts.append(rest[digits : digits + length])
            rest = rest[digits + length :]
        else:
            rest = rest[1:]
    return "::".join(parts) or name


def _read(image: bytes) -> CubinState:
    if image[:6] != _MAGIC:
        raise ValueError("it is no 64-bit ELF file")
    sections = _sections(image)
    variables: list[CubinVariable] = []
    uses_heap = False
    named: set[int] = set()
    for name, kind, index, byte_count in _symbols(image, sections):
        uses_heap |= index == 0 and name in _ALLOCATORS
        if kind == _OBJECT and 0 < index < len(sections) and _is_kept(sections[index]) and byte_count:
            variables.append(CubinVariable(name, byte_count, _is_table(sections[index])))
            named.add(index)
    for index, section in enumerate(sections):
        if (
            _is_kept(section) and section.name != _CONSTANT and section.size and index not in named
        ):  # stripped of its symbols
            variables.append(CubinVariable(section.name, section.size, _is_table(section)))
    return CubinState(tuple(variables), uses_heap)


def _is_kept(section: _Section) -> bool:
    is_global = section.name == _GLOBAL or section.name.startswith(f"{_GLOBAL}.")
    is_constant = section.name == _CONSTANT
    return is_constant or (is_global and section.flags & _ALLOC_AND_WRITE == _ALLOC_AND_WRITE)


def _is_table(section: _Section) -> bool:
    return section.name == _CONSTANT or section.name.startswith(f"{_GLOBAL}.init")


def _sections(image: bytes) -> list[_Section]:
    (offset,) = struct.unpack_from("<Q", image, 0x28)
    entry_bytes, count, names_index = struct.unpack_from("<HHH", image, 0x3A)
    raw = [struct.unpack_from("<IIQQQQI", image, offset + index * entry_bytes) for index in range(count)]
    names_at = raw[names_index][4]
    return [
        _Section(_text(image, names_at + name), kind, flags, start, size, link)
        for name, kind, flags, _, start, size, link in raw
    ]


def _symbols(image: bytes, sections: list[_Section]) -> Iterator[tuple[str, int, int, int]]:
    """Name, type, section and bytes of each."""
    for table in sections:
        if table.kind != _SYMTAB:
            continue
        names_at = sections[table.link].offset
        for at in range(table.offset, table.offset + table.size - 23, 24):
            name, info, _, index, _, byte_count = struct.unpack_from("<IBBHQQ", image, at)
            yield _text(image, names_at + name), info & 0xF, index, byte_count


def _text(image: bytes, start: int) -> str:
    return image[start : image.index(b"\0", start)].decode(errors="replace")

"""The variables of a program and whether it has assembly, by its LLVM bitcode: what PoCL keeps of what it compiled.

Only what lies at a module's top is read (types, variables, the kinds of their initial values, names), and of functions
the kinds of their constants, among which inline assembly is; what they do is skipped unread. The layout is LLVM's
stable one: https://llvm.org/docs/BitCodeFormat.html
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kernelwright.backend.base import BinaryUnreadable

_MAGIC = b"BC\xc0\xde"
_WRAPPER_MAGIC = b"\xde\xc0\x17\x0b"

_BLOCKINFO, _MODULE, _CONSTANTS, _BODY, _TYPES, _STRTAB = 0, 8, 11, 12, 17, 23
_READ = frozenset({_BLOCKINFO, _MODULE, _CONSTANTS, _TYPES, _STRTAB})

_END_BLOCK, _ENTER_BLOCK, _DEFINE_ABBREV, _UNABBREVIATED = range(4)
_SET_BID = 1
_VARIABLE, _FUNCTION, _ALIASES = 7, 8, frozenset({9, 14, 15})  # of a module
_MODULE_ASSEMBLY, _ASSEMBLY = 4, frozenset({18, 23, 28, 30})  # of a module; of constants, by LLVM's versions
_BODY_BLOCKS = 1
"""The first record of a function; its constants come next, and before what it does."""
_SECTION = 7  # of a variable's record, behind name, type, flags, value, linkage and alignment
_SET_TYPE, _UNDEFINED = 1, frozenset({3, 26})  # of constants: undef and poison
_STRTAB_BLOB = 1
_CHAR6 = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._"
_INTERNAL = frozenset({3, 9})
"""Linkage of what no other program can name: internal and private."""


@dataclass(frozen=True, slots=True)
class ProgramVariable:
    """One variable of a program."""

    name: str
    byte_count: int | None
    """None: of a type that is not understood."""
    is_constant: bool
    is_defined: bool
    """False: it is only declared, and whoever links the program must have it."""
    is_undefined: bool
    """It has no initial value, which no variable at a program's top can be without: compilers mark local memory so."""
    is_internal: bool
    is_placed: bool = False
    """It is put into a section by name, which may be one that is written, whatever the variable says of itself."""


@dataclass(frozen=True, slots=True)
class Program:
    """What a module says of itself."""

    variables: tuple[ProgramVariable, ...]
    """All, whether they keep anything or not."""
    has_assembly: bool


@dataclass(frozen=True, slots=True)
class _Operand:
    kind: int
    """0: a literal; else the encoding: 1 fixed, 2 variable, 3 array, 4 six-bit character, 5 blob."""
    value: int


@dataclass(slots=True)
class _Found:
    """What a module says so far."""

    types: list[int | None] = field(default_factory=list)
    """Bytes of each type."""
    alignments: list[int] = field(default_factory=list)
    variables: list[tuple[int, ...]] = field(default_factory=list)
    value_count: int = 0
    """Variables, functions and aliases: they are numbered first."""
    constant_codes: list[int] = field(default_factory=list)
    has_assembly: bool = False
    names: bytes = b""


class _Bits:
    """A cursor over bytes, least significant bit first."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0
        self.end = 8 * len(data)

    def fixed(self, width: int) -> int:
        start = self.position
        if start + width > self.end:
            raise BinaryUnreadable("the bitcode ends too early")
        self.position = start + width
        window = self._data[start >> 3 : (start + width + 7) >> 3]
        return int.from_bytes(window, "little") >> (start & 7) & ((1 << width) - 1)

    def variable(self, width: int) -> int:
        more = 1 << (width - 1)  # says that another part follows
        value = shift = 0
        while True:
            chunk = self.fixed(width)
            value |= (chunk & (more - 1)) << shift
            if not chunk & more:
                return value
            shift += width - 1

    def align(self) -> None:
        self.position = (self.position + 31) & ~31

    def blob(self) -> bytes:
        byte_count = self.variable(6)
        self.align()
        start = self.position >> 3
        self.position += 8 * byte_count
        if self.position > self.end:
            raise BinaryUnreadable("the bitcode ends too early")
        self.align()
        return self._data[start : start + byte_count]


def read_program(data: bytes) -> Program:
    """What is told of a module.

    Raises:
        BinaryUnreadable: this is no bitcode, or of a kind from before 2017 or after a change of its layout.
    """
    reader = _Reader(_unwrapped(data))
    try:
        reader.read()
        variables = tuple(_variable(record, reader.found) for record in reader.found.variables)
        return Program(variables, reader.found.has_assembly)
    except (IndexError, RecursionError) as error:
        raise BinaryUnreadable(f"the bitcode cannot be followed: {error!r}") from error


def _unwrapped(data: bytes) -> bytes:
    if data[:4] == _WRAPPER_MAGIC:
        start, byte_count = (int.from_bytes(data[at : at + 4], "little") for at in (8, 12))
        data = data[start : start + byte_count]
    if data[:4] != _MAGIC:
        raise BinaryUnreadable("this is no LLVM bitcode")
    return data


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._bits = _Bits(data)
        self._bits.position = 32
        self._shared: dict[int, list[list[_Operand]]] = {}
        """Abbreviations that a block begins with, by its kind."""
        self.found = _Found()

    def read(self) -> None:
        """All blocks at the top, one after the other."""
        while self._bits.position + 64 <= self._bits.end:
            if self._bits.fixed(2) != _ENTER_BLOCK:
                raise BinaryUnreadable("the bitcode does not begin with a block")
            self._enter(-1)

    def _enter(self, parent: int) -> None:
        bits = self._bits
        block, width = bits.variable(8), _width(bits.variable(4), least=2)
        bits.align()
        words = bits.fixed(32)
        end = bits.position + 32 * words
        if (parent, block) in ((_MODULE, _BODY), (_BODY, _CONSTANTS)):
            self._read_block(block, width, is_body=True)
        elif block in _READ and parent in ((-1,) if block in (_MODULE, _STRTAB) else (_MODULE, -1)):
            self._read_block(block, width)
        bits.position = end

    def _read_block(self, block: int, width: int, *, is_body: bool = False) -> None:
        bits = self._bits
        abbreviations = list(self._shared.get(block, ()))
        described = -1
        while True:
            code = bits.fixed(width)
            if code == _END_BLOCK:
                return
            if code == _ENTER_BLOCK:
                self._enter(block)
            elif code == _DEFINE_ABBREV:
                fresh = self._define()
                (self._shared.setdefault(described, []) if block == _BLOCKINFO else abbreviations).append(fresh)
            else:
                record, blob = self._record(None if code == _UNABBREVIATED else abbreviations[code - 4])
                if block == _BLOCKINFO and record[0] == _SET_BID:
                    described = record[1]
                if is_body and block == _BODY and record[0] != _BODY_BLOCKS:
                    return  # what it does begins here
                if is_body:
                    self.found.has_assembly |= block == _CONSTANTS and record[0] in _ASSEMBLY
                else:
                    self._take(block, record, blob)

    def _define(self) -> list[_Operand]:
        bits = self._bits
        operands = []
        for _ in range(bits.variable(5)):
            if bits.fixed(1):
                operands.append(_Operand(0, bits.variable(8)))
            else:
                kind = bits.fixed(3)
                operands.append(_Operand(kind, _width(bits.variable(5)) if kind in (1, 2) else 0))
        return operands

    def _record(self, abbreviation: list[_Operand] | None) -> tuple[list[int], bytes]:
        bits = self._bits
        if abbreviation is None:
            code, count = bits.variable(6), bits.variable(6)
            return [code, *(bits.variable(6) for _ in range(count))], b""
        record: list[int] = []
        for index, operand in enumerate(abbreviation):
            if operand.kind == 3:  # its element is the next operand, the last one
                count = bits.variable(6)
                if count > bits.end:
                    raise BinaryUnreadable(f"an array of {count:,} elements in {bits.end // 8:,} bytes")
                record += [self._scalar(abbreviation[index + 1]) for _ in range(count)]
                break
            if operand.kind == 5:
                return record, bits.blob()
            record.append(self._scalar(operand))
        return record, b""

    def _scalar(self, operand: _Operand) -> int:
        bits = self._bits
        match operand.kind:
            case 0:
                return operand.value
            case 1:
                return bits.fixed(operand.value)
            case 2:
                return bits.variable(operand.value) if operand.value > 1 else 0
            case 4:
                return ord(_CHAR6[bits.fixed(6)])
        raise BinaryUnreadable(f"an operand of kind {operand.kind} where a number is expected")

    def _take(self, block: int, record: Sequence[int], blob: bytes) -> None:
        found = self.found
        code = record[0]
        if block == _MODULE:
            if code == _VARIABLE:
                found.variables.append(tuple(record[1:]))
            found.has_assembly |= code == _MODULE_ASSEMBLY
            found.value_count += code in (_VARIABLE, _FUNCTION) or code in _ALIASES
        elif block == _CONSTANTS and code != _SET_TYPE:
            found.constant_codes.append(code)
            found.has_assembly |= code in _ASSEMBLY
        elif block == _TYPES:
            _take_type(found, code, record[1:])
        elif block == _STRTAB and code == _STRTAB_BLOB:
            found.names = blob


def _width(bit_count: int, *, least: int = 0) -> int:
    if not least <= bit_count <= 64:
        raise BinaryUnreadable(f"numbers of {bit_count} bits")
    return bit_count


_PLAIN_BYTES = {2: 0, 3: 4, 4: 8, 5: 0, 8: 8, 10: 2, 16: 0, 21: 0, 22: 0, 23: 2, 25: 8}
"""By code of a type's record: void, float, double, label, pointers, half, metadata, function, token, bfloat."""
_INTEGER, _ARRAY, _VECTOR, _STRUCTS, _NO_TYPES = 7, 11, 12, frozenset({18, 20}), frozenset({1, 19})


def _take_type(found: _Found, code: int, operands: Sequence[int]) -> None:
    if code in _NO_TYPES:  # how many there are; the name of the next
        return
    byte_count: int | None = _PLAIN_BYTES.get(code)
    if code == _INTEGER:
        byte_count = 1 << max(0, (operands[0] - 1).bit_length() - 3)
    alignment = max(byte_count or 1, 1)
    if code in (_ARRAY, _VECTOR):
        element = found.types[operands[1]]
        byte_count = None if element is None else operands[0] * element
        alignment = found.alignments[operands[1]] if code == _ARRAY else max(byte_count or 1, 1)
    elif code in _STRUCTS:
        alignment = 1 if operands[0] else max((found.alignments[each] for each in operands[1:]), default=1)
        byte_count = _struct_bytes(found, operands[1:], is_packed=bool(operands[0]), alignment=alignment)
    found.types.append(byte_count)
    found.alignments.append(alignment)


def _struct_bytes(found: _Found, members: Sequence[int], *, is_packed: bool, alignment: int) -> int | None:
    total = 0
    for member in members:
        byte_count, own = found.types[member], 1 if is_packed else found.alignments[member]
        if byte_count is None:
            return None
        total = -(-total // own) * own + byte_count
    return -(-total // alignment) * alignment


def _variable(record: tuple[int, ...], found: _Found) -> ProgramVariable:
    start, length, type_id, flags, initial, linkage = record[:6]
    if not flags & 2 or start + length > len(found.names):  # the type is a pointer's, as it was until 2014
        raise BinaryUnreadable("a variable without its type or name")
    kind = None
    if initial > found.value_count:
        kind = found.constant_codes[initial - 1 - found.value_count]
    return ProgramVariable(
        name=found.names[start : start + length].decode(errors="replace"),
        byte_count=found.types[type_id],
        is_constant=bool(flags & 1),
        is_defined=initial != 0,
        is_undefined=kind in _UNDEFINED,
        is_internal=linkage in _INTERNAL,
        is_placed=len(record) > _SECTION and record[_SECTION] != 0,
    )

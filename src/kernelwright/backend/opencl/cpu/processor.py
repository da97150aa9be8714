"""A processor that PoCL's compiler does not know is named as one that it knows.

LLVM calls a processor of AMD that is newer than itself `generic`, by which its own clang refuses every program:
"unknown target CPU 'generic'". PoCL 3.0 (LLVM 14) on family 26 (Zen 5) is such a pair.
"""

import ctypes
import platform
from pathlib import Path

_KNOWN: tuple[tuple[str, set[str]], ...] = (
    ("znver3", {"avx2", "fma", "bmi2", "f16c", "movbe", "adx", "clzero", "sse4a", "sha_ni", "vaes", "vpclmulqdq"}),
    ("haswell", {"avx2", "fma", "bmi2", "f16c", "movbe", "abm"}),
    ("x86-64", set()),
)
"""Names that LLVM 12 and later know, best first, and the flags of /proc/cpuinfo that tell which can run their code."""

_DEVICE_BYTES = 4096
"""Where the name is looked for: PoCL's device, of which a handle is the address, is smaller."""

_named: dict[int, ctypes.Array[ctypes.c_char]] = {}
"""What devices were named, by handle: PoCL reads it there as long as the process runs."""


def name_processor(handle: int) -> str:
    """Give PoCL's device at the address `handle` a name that its compiler knows; the name, empty where it had one."""
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    if is_x86 and handle not in _named and (place := _place_of_generic(handle)):
        _named[handle] = ctypes.create_string_buffer(_known_name().encode())
        ctypes.c_uint64.from_address(place).value = ctypes.addressof(_named[handle])
    return _named[handle].value.decode() if handle in _named else ""


def _place_of_generic(handle: int) -> int:
    """Where the device points to the word `generic`; 0: nowhere."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    readable = [
        tuple(int(end, 16) for end in line.split()[0].split("-")) for line in lines if line.split()[1][0] == "r"
    ]
    for place in range(handle, handle + _DEVICE_BYTES, 8):
        if any(low <= place < high for low, high in readable):
            pointer = ctypes.c_uint64.from_address(place).value
            if (
                any(low <= pointer <= high - 8 for low, high in readable)
                and ctypes.string_at(pointer, 8) == b"generic\0"
            ):
                return place
    return 0


def _known_name() -> str:
    flags = cpu_flags(Path("/proc/cpuinfo"))
    return next(name for name, needed in _KNOWN if needed <= flags)


def cpu_flags(cpuinfo: Path) -> set[str]:
    """Of the first processor; empty where there is no such file."""
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), set())

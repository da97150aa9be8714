"""What the host tells of its processor; one that PoCL's compiler does not know is named as one that it knows.

LLVM calls a processor of AMD that is newer than itself `generic`, by which its own clang refuses every program:
"unknown target CPU 'generic'". PoCL 3.0 (LLVM 14) on family 26 (Zen 5) is such a pair.
"""

import ctypes
import platform
import re
from pathlib import Path

_KNOWN: tuple[tuple[str, set[str]], ...] = (
    ("znver3", {"avx2", "fma", "bmi2", "f16c", "movbe", "adx", "clzero", "sse4a", "sha_ni", "vaes", "vpclmulqdq"}),
    ("haswell", {"avx2", "fma", "bmi2", "f16c", "movbe", "abm"}),
    ("x86-64", set()),
)
"""Names that LLVM 12 and later know, best first, and the flags of /proc/cpuinfo that tell which can run their code."""

_VECTOR_BITS = (("avx512f", 512), ("avx", 256), ("sse2", 128))
"""Flags of /proc/cpuinfo, widest first, and the bits of their registers."""

_CPU0 = Path("/sys/devices/system/cpu/cpu0/cache")

_DEVICE_BYTES = 4096
"""Where the name is looked for: PoCL's device, of which a handle is the address, is smaller."""

_named: dict[int, ctypes.Array[ctypes.c_char]] = {}
"""What devices were named, by handle: PoCL reads it there as long as the process runs."""


def processor_facts(cpuinfo: Path = Path("/proc/cpuinfo"), caches: Path = _CPU0) -> dict[str, str]:
    """`vector_registers` and `caches` of the host, as Linux tells them; only what it tells."""
    flags = _flags(cpuinfo)
    found = {}
    if bits := next((bits for flag, bits in _VECTOR_BITS if flag in flags), 0):
        found["vector_registers"] = f"{bits} bits ({bits // 32} floats)"
    if levels := [words for index in sorted(caches.glob("index*")) if (words := _cache_words(index))]:
        found["caches"] = ", ".join(levels)
    return found


def _cache_words(folder: Path) -> str:
    """One data cache; empty where it is for instructions or cannot be read."""
    try:
        level, kind, size, cores = (
            (folder / name).read_text().strip() for name in ("level", "type", "size", "shared_cpu_list")
        )
    except OSError:
        return ""
    sharing = "of each core" if re.fullmatch(r"\d+", cores) else f"shared by cores {cores}"
    return "" if kind == "Instruction" else f"L{level} {_cache_size(size)} {sharing}"


def _cache_size(text: str) -> str:
    """Linux's `2048K` as a person says it."""
    kib = int(text.removesuffix("K")) if text.endswith("K") and text[:-1].isdecimal() else 0
    return text if not kib else f"{kib // 1024} MiB" if kib % 1024 == 0 else f"{kib} KiB"


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
    flags = _flags(Path("/proc/cpuinfo"))
    return next(name for name, needed in _KNOWN if needed <= flags)


def _flags(cpuinfo: Path) -> set[str]:
    """Of the first processor; empty where there is no such file."""
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), set())

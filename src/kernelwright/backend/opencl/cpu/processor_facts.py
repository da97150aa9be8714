"""What Linux tells of the host's processor: vector registers and data caches."""

from __future__ import annotations

import re
from pathlib import Path

from kernelwright.backend.opencl.cpu.processor import cpu_flags

_VECTOR_BITS = (("avx512f", 512), ("avx", 256), ("sse2", 128))
"""Flags of /proc/cpuinfo, widest first, and the bits of their registers."""

_CPU0 = Path("/sys/devices/system/cpu/cpu0/cache")


def processor_facts(cpuinfo: Path = Path("/proc/cpuinfo"), caches: Path = _CPU0) -> dict[str, str]:
    """`vector_registers` and `caches` of the host, as Linux tells them; only what it tells."""
    flags = cpu_flags(cpuinfo)
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

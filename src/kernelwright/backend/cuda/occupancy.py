"""Theoretical occupancy and register limits from the compiler's figures alone, so that no device is needed.

The arithmetic is that of `cuda_occupancy.h` in NVIDIA's CUDA 13 toolkit; the figures of each compute capability are in
the CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". What a device tells of itself wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kernelwright.backend.base import DeviceInfo

WARP_SIZE = 32
REGISTER_UNIT = 256
"""Registers are given to a warp in multiples of this, on every device since compute capability 3."""
SUB_PARTITIONS = 4
"""Parts of a multiprocessor with registers of their own, since compute capability 7."""
MAX_REGISTERS_PER_THREAD = 255


@dataclass(frozen=True, slots=True)
class _Multiprocessor:
    """What one multiprocessor has, and what one block may take."""

    max_warps: int
    max_blocks: int
    shared_bytes: int
    shared_bytes_per_block: int
    """The most that a kernel can opt in to."""
    registers: int = 65536
    reserved_bytes_per_block: int = 1024
    """Shared memory that the system takes for itself in every block."""
    shared_unit_bytes: int = 128


def _since_8(warps: int, blocks: int, kib: int, block_kib: int) -> _Multiprocessor:
    return _Multiprocessor(warps, blocks, kib * 1024, block_kib * 1024)


def _of_7(warps: int, blocks: int, kib: int) -> _Multiprocessor:
    return _Multiprocessor(warps, blocks, kib * 1024, kib * 1024, reserved_bytes_per_block=0, shared_unit_bytes=256)


MULTIPROCESSORS: Mapping[int, _Multiprocessor] = MappingProxyType(
    {
        70: _of_7(64, 32, 96),
        72: _of_7(64, 32, 96),
        75: _of_7(32, 16, 64),
        80: _since_8(64, 32, 164, 163),
        86: _since_8(48, 16, 100, 99),
        87: _since_8(48, 16, 164, 163),
        88: _since_8(48, 16, 100, 99),
        89: _since_8(48, 24, 100, 99),
        90: _since_8(64, 32, 228, 227),
        100: _since_8(64, 32, 228, 227),
        103: _since_8(64, 32, 228, 227),
        110: _since_8(48, 24, 228, 227),
        120: _since_8(48, 24, 100, 99),
        121: _since_8(48, 24, 100, 99),
    }
)
"""By compute capability, as `10 * major + minor`."""


def multiprocessor_of(device: DeviceInfo) -> _Multiprocessor | None:
    """A multiprocessor of `device`; None when neither it nor the table tells enough."""
    limits = device.limits
    capability = limits.get("compute_capability", 0)
    known = MULTIPROCESSORS.get(capability)
    if known is None:
        if not {"max_threads_per_multiprocessor", "shared_memory_per_multiprocessor"} <= limits.keys():
            return None
        known = _since_8(0, 0, 0, 0)
    threads = limits.get("max_threads_per_multiprocessor")
    return _Multiprocessor(
        max_warps=known.max_warps if threads is None else threads // WARP_SIZE,
        max_blocks=limits.get("max_blocks_per_multiprocessor", known.max_blocks or 32),
        shared_bytes=limits.get("shared_memory_per_multiprocessor", known.shared_bytes),
        shared_bytes_per_block=limits.get("shared_memory_per_block", known.shared_bytes_per_block),
        registers=limits.get("registers_per_multiprocessor", known.registers),
        reserved_bytes_per_block=limits.get("reserved_shared_memory_per_block", known.reserved_bytes_per_block),
        shared_unit_bytes=known.shared_unit_bytes,
    )


def blocks_per_multiprocessor(
    multiprocessor: _Multiprocessor, *, threads: int, registers_per_thread: int, shared_bytes: int
) -> int:
    """How many blocks of a kernel run on one multiprocessor at a time; 0: it cannot be launched.

    Args:
        multiprocessor: what there is.
        threads: of a block.
        registers_per_thread: as the compiler says.
        shared_bytes: static and dynamic shared memory of a block, without what the system reserves.
    """
    warps = _ceil_div(threads, WARP_SIZE)
    by_warps = min(multiprocessor.max_blocks, multiprocessor.max_warps // warps)
    if registers_per_thread:
        by_warps = min(by_warps, _warps_by_registers(multiprocessor, registers_per_thread) // warps)
    if shared_bytes > multiprocessor.shared_bytes_per_block:
        return 0
    taken = shared_bytes + multiprocessor.reserved_bytes_per_block
    taken = _ceil_div(taken, multiprocessor.shared_unit_bytes) * multiprocessor.shared_unit_bytes
    return min(by_warps, multiprocessor.shared_bytes // taken) if taken else by_warps


def max_threads_per_block(multiprocessor: _Multiprocessor, *, registers_per_thread: int) -> int:
    """The largest block that has registers enough, in whole warps and at most 1024."""
    if not registers_per_thread:
        return 1024
    return min(1024, _warps_by_registers(multiprocessor, registers_per_thread) * WARP_SIZE)


def occupancy(multiprocessor: _Multiprocessor, *, threads: int, blocks: int) -> float:
    """Resident warps over the most there can be, from 0 to 1."""
    return blocks * _ceil_div(threads, WARP_SIZE) / multiprocessor.max_warps


def _warps_by_registers(multiprocessor: _Multiprocessor, registers_per_thread: int) -> int:
    per_warp = _ceil_div(registers_per_thread * WARP_SIZE, REGISTER_UNIT) * REGISTER_UNIT
    return multiprocessor.registers // SUB_PARTITIONS // per_warp * SUB_PARTITIONS


def _ceil_div(value: int, unit: int) -> int:
    return -(-value // unit)

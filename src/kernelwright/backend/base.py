"""The seam to everything that compiles and launches kernels.

A backend is used in three kinds of process, never in the parent:

```
probe process     backend.unavailable_because(); backend.devices()
build process     artifact = backend.compile(request, device)            no device is touched on a GPU
device worker     session = backend.open(device)
                  module = session.load(artifact)
                  buffer = session.allocate(byte_count); session.upload(buffer, data)
                  session.launch(module, plan_step, bound_arguments); session.synchronize()
                  elapsed_ms = session.time(launches); session.download(buffer, out)
                  session.close()
```

Guards, poison, rotation of inputs and the timing loop are the worker's business (`evaluate`), not the backend's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from kernelwright.backend.redraw import Closeness, Draw, Redraw, redrawn
from kernelwright.errors import InfrastructureError
from kernelwright.identity import content_id
from kernelwright.source.language import Language

Bytes = npt.NDArray[np.uint8]
"""A flat byte view of an array."""

Buffer = Any
"""A backend's own handle of device memory; opaque to everyone else."""

Module = Any
"""A backend's own handle of a loaded artifact."""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device, with the limits that become constraints (`device.NAME` in expressions)."""

    backend: str
    id: str
    """Stable across processes of one machine, e.g. `opencl:pocl:0`."""
    name: str
    kind: Literal["cpu", "gpu", "simulated"]
    limits: Mapping[str, int]
    """`max_threads_per_block`, `max_block_x|y|z`, `max_grid_x|y|z`, `shared_memory_per_block` (bytes),
    `warp_size`, `multiprocessors`, `global_memory` (bytes), `last_level_cache` (bytes), and on GPUs that tell
    `registers_per_block`, `registers_per_thread`. Absent = unknown, and then no constraint."""
    driver: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    """More for the record: platform, compiler, clocks."""

    @property
    def shares_host_cores(self) -> bool:
        """True when building beside a measurement would disturb it."""
        return self.kind == "cpu"

    @property
    def lock_name(self) -> str:
        """Names the piece of hardware, whatever a process sees of its host: ids count only the devices that it sees."""
        return f"{self.backend}:{self.facts['uuid']}" if self.facts.get("uuid") else self.id


@dataclass(frozen=True, slots=True)
class BuildUnit:
    """What the compiler gets. Units with the same id are built once."""

    language: Language
    source: str
    file_name: str
    """For the compiler's messages; no folder."""
    macros: tuple[tuple[str, str], ...]
    options: tuple[str, ...]
    entries: tuple[str, ...]
    include_paths: tuple[Path, ...] = ()
    include_digest: str = ""
    """Content id of the header files in `include_paths`, so that a changed header is a changed unit."""

    @property
    def id(self) -> str:
        """Content id over everything that reaches the compiler; folders count by what is in them, not by their path."""
        return _unit_id(self)


@lru_cache(maxsize=4096)  # asked for dozens of times for every candidate
def _unit_id(unit: BuildUnit) -> str:
    return content_id(
        unit.language, unit.source, unit.file_name, unit.macros, unit.options, unit.entries, unit.include_digest
    )


@dataclass(frozen=True, slots=True)
class BufferArgument:
    """A global-memory argument of a launch."""

    name: str
    byte_count: int


@dataclass(frozen=True, slots=True)
class ScalarArgument:
    """A by-value argument: its little-endian bytes."""

    name: str
    dtype: str
    data: bytes


@dataclass(frozen=True, slots=True)
class LocalArgument:
    """An OpenCL `__local` pointer argument."""

    name: str
    byte_count: int


LaunchArgument = BufferArgument | ScalarArgument | LocalArgument


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One launch with every number known."""

    entry: str
    grid: tuple[int, int, int]
    """Blocks along x, y, z."""
    block: tuple[int, int, int]
    """Threads along x, y, z."""
    shared_bytes: int
    arguments: tuple[LaunchArgument, ...]
    cluster: tuple[int, int, int] | None = None
    """Blocks of a cluster along x, y, z; None: what the kernel itself declares."""
    is_cooperative: bool = False
    """All blocks must run at once."""
    constants: tuple[tuple[str, BufferArgument], ...] = ()
    """Variables of the module, each with the buffer that it is filled from before the launch."""


LaunchPlan = tuple[PlanStep, ...]
"""All launches of one candidate on one workload, in order."""


@dataclass(frozen=True, slots=True)
class StateVariable:
    """Memory of a built unit that kernels can write and that outlives a launch."""

    name: str
    byte_count: int | None
    """None: as much as a kernel asks for."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A built unit on disk, with what the driver says of it. Picklable; loads in any process of this machine."""

    unit: BuildUnit
    device_id: str
    folder: Path
    """The cache folder that holds this unit's files."""
    resources: Mapping[str, Mapping[str, float]]
    """By entry: `max_threads_per_block`, `local_memory_bytes`, `private_memory_bytes`, `registers_per_thread`,
    `spill_bytes`, ... whatever the driver tells."""
    log: str = ""
    binary_id: str = ""
    """Content id of the machine code: two artifacts with the same one run alike. Empty: not known."""
    state: tuple[StateVariable, ...] | None = None
    """What could carry results from one launch to the next. None: not known. What a session sets back to its first
    values by `forget_module_memory` need not be here."""
    assembly: str = ""
    """Inline assembly that it holds, or may hold, in words. Empty: none, or a language in which it is usual."""


class BinaryUnreadable(ValueError):
    """The bytes are no compiled program of a kind that is understood here."""


class BuildFailed(Exception):
    """The compiler refused the unit; a value of the pipeline, caught where the build was asked for.

    Attributes:
        limit: which of the device's limits the unit breaks, e.g. `too-much-local-memory`; empty: the source is wrong.
    """

    def __init__(self, message: str, log: str = "", limit: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.log = log
        self.limit = limit

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the fields across a process boundary."""
        return (BuildFailed, (self.message, self.log, self.limit))


class LaunchFailed(Exception):
    """The driver refused a launch (bad shape, too many resources); the session is still usable."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message

    def __reduce__(self) -> tuple[object, ...]:
        """Keep both fields across a process boundary."""
        return (LaunchFailed, (self.reason, self.message))


@dataclass(frozen=True, slots=True)
class BoundBuffer:
    """A buffer argument bound to memory: the kernel sees `byte_count` bytes from `offset_bytes`."""

    buffer: Buffer
    offset_bytes: int
    byte_count: int


@dataclass(frozen=True, slots=True)
class BoundLaunch:
    """One launch ready to go."""

    module: Module
    step: PlanStep
    buffers: Mapping[str, BoundBuffer]
    """By argument name, for every `BufferArgument` of the step, those of its constants too."""


@dataclass(frozen=True, slots=True)
class KeyOrder:
    """How the bits of an element become an unsigned key that sorts as the values do."""

    item_bytes: int
    sign: int
    """The bit that is set where it was clear; 0: none."""
    negative: int
    """What bits with `sign` set are combined with by exclusive or."""
    greatest: int
    """Bits without the sign above this are NaN, whose key is `nan_key`."""

    @property
    def every(self) -> int:
        """All bits of an element."""
        return int((1 << 8 * self.item_bytes) - 1)

    @property
    def nan_key(self) -> int:
        """Above the key of every number."""
        return self.every

    def keys(self, words: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Keys of elements given as unsigned integers of `item_bytes`."""
        kind = words.dtype.type
        if not self.sign:
            return words.copy()
        # All ones where the sign is set, else zeros: then one exclusive or inverts what is to be inverted.
        has_sign = np.right_shift(words.view(f"i{self.item_bytes}"), 8 * self.item_bytes - 1).view(words.dtype)
        keys: npt.NDArray[Any] = np.bitwise_and(has_sign, kind(self.negative & ~self.sign & self.every), out=has_sign)
        keys ^= words
        keys ^= kind(self.sign)
        if self.greatest >= self.every:
            return keys
        is_nan = (words & kind(self.every & ~self.sign)) > kind(self.greatest)
        keys[is_nan] = self.nan_key
        return keys


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """What a device says of itself at one moment; None for what it does not tell."""

    clock_mhz: float | None = None
    """The clock of the multiprocessors."""
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttled_by: tuple[str, ...] = ()
    """What makes it slower than it could be, in words: `power cap`, `temperature (hardware)`, ..."""


class DeviceSession(ABC):
    """One open device in one worker process. Not thread-safe; dies with its process."""

    @property
    @abstractmethod
    def timer(self) -> str:
        """What `time` measures with, e.g. `opencl-events`."""

    _has_surprise = False

    alignment_bytes: ClassVar[int] = 256
    """Offsets of bound buffers are multiples of this."""

    @abstractmethod
    def load(self, artifact: Artifact) -> Module:
        """Load a built unit. Raises `BuildFailed` when the driver refuses it."""

    @abstractmethod
    def allocate(self, byte_count: int) -> Buffer:
        """Device memory of `byte_count` bytes. Raises `InfrastructureError` when there is none."""

    def allocate_in_file(self, path: Path, byte_count: int) -> Buffer:
        """Memory that is a file: what a launch has written is in it at once, also when this process is ended.

        Only where the device's memory is the host's. Raises `InfrastructureError` when there is no room.
        """
        raise InfrastructureError(f"{type(self).__name__} has no memory that is a file: {path} ({byte_count:,} bytes)")

    def address_of(self, buffer: Buffer) -> int | None:
        """Where in this process a buffer's memory lies; None where the device has memory of its own. Default: None."""
        return None

    @abstractmethod
    def free(self, buffer: Buffer) -> None:
        """Give the memory back. Where kernels could find it, what it held is overwritten first."""

    @abstractmethod
    def upload(self, buffer: Buffer, data: Bytes, offset_bytes: int = 0) -> None:
        """Copy to the device; returns when `data` may be reused."""

    @abstractmethod
    def fill(self, buffer: Buffer, pattern: bytes, byte_count: int, offset_bytes: int = 0) -> None:
        """Repeat `pattern` (1, 2, 4, 8 or 16 bytes) over a range on the device."""

    @abstractmethod
    def copy(self, source: Buffer, target: Buffer, byte_count: int) -> None:
        """Copy between buffers of this device."""

    @abstractmethod
    def download(self, buffer: Buffer, out: Bytes, offset_bytes: int = 0) -> None:
        """Copy `out.size` bytes from the device into `out`; returns when they are there."""

    @abstractmethod
    def launch(self, launches: Sequence[BoundLaunch]) -> None:
        """Enqueue all launches in order. Raises `LaunchFailed` when the driver refuses one."""

    @abstractmethod
    def time(self, launches: Sequence[BoundLaunch]) -> float:
        """Launch all in order, wait, and give the device's milliseconds from the first's start to the last's end."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for everything on the device, whatever queue it is on."""

    @property
    def written_cache_bytes(self) -> int | None:
        """What a cache holds of memory that was just written, where flushing it is worth its time; None: nowhere."""
        return None

    @abstractmethod
    def flush_cache(self) -> None:
        """Evict the last-level cache by moving more than it holds."""

    def forget_local_memory(self) -> None:
        """Fill what the threads of a block share with a pattern, on as many compute units as the device lets one.

        It keeps what the launch before left there, which a kernel must not see. Default: nothing is done.
        """
        return

    def forget_module_memory(self) -> None:
        """Give the variables of modules that were launched since the last call the values that they had when loaded.

        What threads had for themselves (CUDA's local memory) goes too, where the next launch could see it. Default:
        nothing is done, and an artifact's `state` has all that it keeps.
        """
        return

    def forget_thread_memory(self, *, is_all: bool = False) -> None:
        """Overwrite what earlier launches left on the stacks of the driver's threads, where a device has such.

        `is_all`: what no launch has used yet is brought into memory too. Waits for the device. Default: nothing.
        """
        return

    def thread_times_s(self) -> Mapping[int, tuple[float, float]]:
        """By thread of this process the seconds that it ran, and that it waited for a core, until now.

        Where launches run on threads of this process and the system tells. Default: empty.
        """
        return {}

    def confine(self) -> None:
        """Take from this process, for good, what launches do not need of the system. Default: nothing is done.

        Called once, in a worker that does nothing but serve this device.
        """
        return

    @property
    def notes(self) -> Sequence[str]:
        """What a person must know of how launches are kept apart here; empty: all is as documented."""
        return ()

    def is_same(self, first: Buffer, second: Buffer, byte_count: int) -> bool:
        """Whether two buffers hold the same bytes. Backends that can, compare on the device."""
        one, other = np.empty(byte_count, np.uint8), np.empty(byte_count, np.uint8)
        self.download(first, one)
        self.download(second, other)
        return bool(np.array_equal(one, other))

    def expect_same(
        self, first: Buffer, second: Buffer, byte_count: int, *, offsets_bytes: tuple[int, int] = (0, 0)
    ) -> None:
        """From now on nothing is `as_expected` unless both hold the same bytes at this point of the queue."""
        one, other = np.empty(byte_count, np.uint8), np.empty(byte_count, np.uint8)
        self.download(first, one, offsets_bytes[0])
        self.download(second, other, offsets_bytes[1])
        self._has_surprise |= not np.array_equal(one, other)

    def expect_within(
        self, values: Buffer, low: Buffer, high: Buffer, byte_count: int, *, order: KeyOrder, offset_bytes: int
    ) -> None:
        """The same unless every element's key lies between its bounds, all three at `offset_bytes`."""
        parts = [np.empty(byte_count, np.uint8) for _ in range(3)]
        for buffer, out in zip((values, low, high), parts, strict=True):
            self.download(buffer, out, offset_bytes)
        got, least, most = (part.view(f"u{order.item_bytes}") for part in parts)
        keys = order.keys(got)
        self._has_surprise |= bool(np.any((keys < least) | (keys > most)))

    def redraw(self, base: Buffer, target: Buffer, how: Redraw, draw: Draw, *, offset_bytes: int) -> None:
        """Draw `draw.count` elements of `target` anew from those of `base`, both at `offset_bytes`."""
        self.upload(target, self._redrawn(base, how, draw, offset_bytes), offset_bytes)

    def expect_redrawn(self, base: Buffer, target: Buffer, how: Redraw, draw: Draw, *, offset_bytes: int) -> None:
        """Expect that `target` holds what `redraw` writes, and `base` what it was made from."""
        wanted = self._redrawn(base, how, draw, offset_bytes)
        found = np.empty(wanted.size, np.uint8)
        self.download(target, found, offset_bytes)
        self._has_surprise |= not np.array_equal(wanted, found)

    def _redrawn(self, base: Buffer, how: Redraw, draw: Draw, offset_bytes: int) -> Bytes:
        first = np.empty(draw.count * how.item_bytes, np.uint8)
        self.download(base, first, offset_bytes)
        return np.ascontiguousarray(redrawn(first.view(f"u{how.item_bytes}"), how, draw)).view(np.uint8)

    def expect_close(
        self, first: Buffer, second: Buffer, byte_count: int, limit: Closeness | None, *, offset_bytes: int
    ) -> None:
        """Expect that two results, both at `offset_bytes`, are within `limit` of each other; None: the same bytes."""
        one, other = np.empty(byte_count, np.uint8), np.empty(byte_count, np.uint8)
        self.download(first, one, offset_bytes)
        self.download(second, other, offset_bytes)
        self._has_surprise |= not (np.array_equal(one, other) if limit is None else limit.holds(one, other))

    def as_expected(self) -> bool:
        """Whether all that was expected since the last question held; waits for the device."""
        has_surprise, self._has_surprise = self._has_surprise, False
        return not has_surprise

    def free_memory_bytes(self) -> int | None:
        """Device memory that no one uses; None where the device does not tell."""
        return None

    @property
    def launches_ms(self) -> tuple[float, ...]:
        """The time of each launch in the last `time`; empty where the device tells only that of all."""
        return ()

    def measure_ceilings(self) -> dict[str, float]:
        """What the device can do at most: `copy_bytes_per_s`, `fp32_operations_per_s`, `launches_per_s`, ...

        By kernels of the backend's own. Default: nothing; whoever asks can still time a plain copy.
        """
        return {}

    def read_state(self) -> DeviceReading | None:
        """Clocks, temperature, power and throttling at this moment; None where the device does not tell."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Release the device."""


class Backend(ABC):
    """One way to compile and launch; stateless, picklable by name (see `backend.registry`)."""

    name: ClassVar[str]
    languages: ClassVar[tuple[Language, ...]]
    runs_python: ClassVar[bool] = False
    """Whether a candidate is Python that runs in the device's process, which may write files then."""

    @abstractmethod
    def unavailable_because(self) -> str | None:
        """Why it cannot be used here and what to install, or None. Cheap: no device is opened."""

    @abstractmethod
    def devices(self) -> Sequence[DeviceInfo]:
        """All devices, best first."""

    @abstractmethod
    def toolchain_id(self, device: DeviceInfo) -> str:
        """Everything of compiler and driver that changes an artifact; part of the cache key."""

    @abstractmethod
    def compile(self, unit: BuildUnit, device: DeviceInfo, folder: Path) -> Artifact:
        """Build into `folder` (which exists, is empty and is ours). Raises `BuildFailed` with the compiler's log."""

    def specialise(  # noqa: B027
        self, artifact: Artifact, plans: Sequence[LaunchPlan], device: DeviceInfo, folder: Path
    ) -> None:
        """Do ahead of time, in the build process, what the driver would do at these launches. Default: nothing.

        What it gives goes into `folder`, whose files are then added to the artifact's. It runs none of the candidate's
        code, which could answer for what the process builds later; nothing can be launched in this process afterwards.
        A compiler may crash or hang: that is no verdict.
        """

    def private_folders(self, device: DeviceInfo) -> Sequence[Path]:
        """Folders of this process alone that the driver writes into, wherever they are. Default: none."""
        return ()

    def keep_helpers(self, device: DeviceInfo, folder: Path) -> None:  # noqa: B027
        """Keep what the device's process made for itself in its folder, before any candidate ran. Default: nothing."""

    def with_launch_figures(self, artifact: Artifact, plans: Sequence[LaunchPlan], device: DeviceInfo) -> Artifact:
        """`artifact` with figures that depend on the launch too, e.g. `occupancy`. Arithmetic only; default: none.

        They are not part of what is cached, since one artifact may serve several launches.
        """
        return artifact

    def sets_state_back(self, device: DeviceInfo) -> bool:
        """Whether its sessions' `forget_module_memory` gives variables their first values. Default: no."""
        return False

    def tells_addresses(self, device: DeviceInfo) -> bool:
        """Whether its sessions' `address_of` tells where memory lies. Default: no."""
        return False

    @abstractmethod
    def open(self, device: DeviceInfo) -> DeviceSession:
        """Open the device in this process."""

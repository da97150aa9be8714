"""What the CUDA driver's error codes mean for a candidate, and for a person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kernelwright.backend.base import LaunchFailed
from kernelwright.errors import InfrastructureError


@dataclass(frozen=True, slots=True)
class _DriverError:
    """One error code."""

    name: str
    """As in `cuda.h`, without `CUDA_ERROR_`."""
    meaning: str = ""
    ends_session: bool = False
    """True when the context is lost with it (every later call fails too), or no candidate can be to blame."""

    @property
    def reason(self) -> str:
        """The word that groups failures: the name in lower case with dashes."""
        return self.name.lower().replace("_", "-")


DRIVER_ERRORS: Mapping[int, _DriverError] = MappingProxyType(
    {
        1: _DriverError("INVALID_VALUE", "a size or argument is outside what the driver takes"),
        2: _DriverError("OUT_OF_MEMORY", "the device has no memory left"),
        3: _DriverError("NOT_INITIALIZED", "the driver was not started", ends_session=True),
        4: _DriverError("DEINITIALIZED", "the driver is shutting down", ends_session=True),
        46: _DriverError("DEVICE_UNAVAILABLE", "another process has the device for itself", ends_session=True),
        100: _DriverError("NO_DEVICE", "the driver sees no device", ends_session=True),
        101: _DriverError("INVALID_DEVICE", "there is no device of that number", ends_session=True),
        200: _DriverError("INVALID_IMAGE", "the cubin is damaged or for another kind of device"),
        201: _DriverError("INVALID_CONTEXT", "the context is broken", ends_session=True),
        209: _DriverError("NO_BINARY_FOR_GPU", "the cubin holds no code for this device"),
        214: _DriverError("ECC_UNCORRECTABLE", "the device's memory is faulty", ends_session=True),
        218: _DriverError("INVALID_PTX", "the driver does not take this PTX"),
        220: _DriverError("NVLINK_UNCORRECTABLE", "a link between devices is faulty", ends_session=True),
        222: _DriverError("UNSUPPORTED_PTX_VERSION", "the toolkit is newer than the driver"),
        400: _DriverError("INVALID_HANDLE", "a handle is no valid stream, event or function", ends_session=True),
        500: _DriverError("NOT_FOUND", "the module has no such name"),
        700: _DriverError("ILLEGAL_ADDRESS", "the kernel touched memory that is not its own", ends_session=True),
        701: _DriverError("LAUNCH_OUT_OF_RESOURCES", "the block needs more registers or threads than there are"),
        702: _DriverError("LAUNCH_TIMEOUT", "the kernel ran too long for a device with a display", ends_session=True),
        709: _DriverError("CONTEXT_IS_DESTROYED", "the context is gone", ends_session=True),
        710: _DriverError("ASSERT", "an assert in the kernel failed", ends_session=True),
        714: _DriverError("HARDWARE_STACK_ERROR", "the kernel's stack overflowed or was damaged", ends_session=True),
        715: _DriverError("ILLEGAL_INSTRUCTION", "the kernel executed an instruction it may not", ends_session=True),
        716: _DriverError(
            "MISALIGNED_ADDRESS", "the kernel loaded or stored a vector at an unaligned address", ends_session=True
        ),
        717: _DriverError("INVALID_ADDRESS_SPACE", "a pointer is used in the wrong address space", ends_session=True),
        718: _DriverError("INVALID_PC", "the kernel jumped out of its code", ends_session=True),
        719: _DriverError("LAUNCH_FAILED", "the kernel was aborted while it ran", ends_session=True),
        720: _DriverError("COOPERATIVE_LAUNCH_TOO_LARGE", "the grid does not fit on the device at once"),
        800: _DriverError("NOT_PERMITTED", "the driver does not permit it", ends_session=True),
        801: _DriverError("NOT_SUPPORTED", "the device does not support it"),
        802: _DriverError("SYSTEM_NOT_READY", "the machine's GPU services are not up", ends_session=True),
        803: _DriverError("SYSTEM_DRIVER_MISMATCH", "libcuda and the kernel driver differ", ends_session=True),
        804: _DriverError(
            "COMPAT_NOT_SUPPORTED_ON_DEVICE", "the compatibility driver does not support this device", ends_session=True
        ),
        912: _DriverError("INVALID_CLUSTER_SIZE", "the cluster is not possible for this kernel on this device"),
        999: _DriverError("UNKNOWN", "the driver does not say what", ends_session=True),
    }
)
"""By code, for those that a run can meet. An error that ends the session is answered with a fresh worker; a control
run there shows whether the candidate or the machine is to blame."""


class DriverCallFailed(Exception):
    """A driver call gave an error code; turned into an error of the seam by whoever knows what was being done."""

    def __init__(self, code: int, name: str) -> None:
        super().__init__(name)
        self.code = code
        self.name = name

    @property
    def known(self) -> _DriverError:
        """The table's entry; a code that is not in it ends the session, because no one knows that it does not."""
        return DRIVER_ERRORS.get(self.code) or _DriverError(self.name.removeprefix("CUDA_ERROR_"), ends_session=True)


def call(result: tuple[Any, ...]) -> Any:
    """What a driver function gave beside its code: nothing, one value, or a tuple.

    Raises:
        DriverCallFailed: the code is an error.
    """
    code = result[0]
    if code:
        raise DriverCallFailed(int(code), getattr(code, "name", f"error {int(code)}"))
    values = result[1:]
    return values[0] if len(values) == 1 else values


def launch_error(error: DriverCallFailed, what: str) -> LaunchFailed | InfrastructureError:
    """What the driver's refusal of `what` (a launch, in words) means."""
    known = error.known
    message = f"{what}: {known.name}" + (f" ({known.meaning})" if known.meaning else "")
    return InfrastructureError(message) if known.ends_session else LaunchFailed(known.reason, message)


def machine_error(error: DriverCallFailed, what: str) -> InfrastructureError:
    """A driver's failure that is no candidate's refusal."""
    known = error.known
    return InfrastructureError(f"{what}: {known.name}" + (f" ({known.meaning})" if known.meaning else ""))

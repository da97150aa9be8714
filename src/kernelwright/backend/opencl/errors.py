"""What OpenCL's error codes mean for a candidate, and for a person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kernelwright.backend.base import LaunchFailed
from kernelwright.errors import InfrastructureError


@dataclass(frozen=True, slots=True)
class _DriverError:
    """One error code."""

    name: str
    """As in the OpenCL specification, without `CL_`."""
    meaning: str = ""
    is_machine: bool = False
    """True when no candidate can be to blame, or the session cannot go on."""

    @property
    def reason(self) -> str:
        """The word that groups failures: the name in lower case with dashes."""
        return self.name.lower().replace("_", "-")


DRIVER_ERRORS: Mapping[int, _DriverError] = MappingProxyType(
    {
        -1: _DriverError("DEVICE_NOT_FOUND", "no device of that kind", is_machine=True),
        -2: _DriverError("DEVICE_NOT_AVAILABLE", "the device is lost or in use", is_machine=True),
        -3: _DriverError("COMPILER_NOT_AVAILABLE", "the driver has no compiler", is_machine=True),
        -4: _DriverError("MEM_OBJECT_ALLOCATION_FAILURE", "the device has no memory left for a buffer"),
        -5: _DriverError("OUT_OF_RESOURCES", "the launch needs more registers, local memory or stack than there is"),
        -6: _DriverError("OUT_OF_HOST_MEMORY", "the driver has no memory left", is_machine=True),
        -11: _DriverError("BUILD_PROGRAM_FAILURE", "the compiler refused the source"),
        -13: _DriverError("MISALIGNED_SUB_BUFFER_OFFSET", "a buffer's offset is not aligned for this device"),
        -14: _DriverError("EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST", "the kernel was aborted while it ran"),
        -15: _DriverError("COMPILE_PROGRAM_FAILURE", "the compiler refused the source"),
        -17: _DriverError("LINK_PROGRAM_FAILURE", "the linker refused the program"),
        -30: _DriverError("INVALID_VALUE", "a size or flag is outside what the driver takes"),
        -34: _DriverError("INVALID_CONTEXT", "the context is broken", is_machine=True),
        -36: _DriverError("INVALID_COMMAND_QUEUE", "the queue is broken, often by an earlier kernel", is_machine=True),
        -38: _DriverError("INVALID_MEM_OBJECT", "an argument is no valid buffer"),
        -42: _DriverError("INVALID_BINARY", "the driver does not take this binary"),
        -43: _DriverError("INVALID_BUILD_OPTIONS", "the driver does not know one of the build options"),
        -44: _DriverError("INVALID_PROGRAM", "the program is broken"),
        -45: _DriverError("INVALID_PROGRAM_EXECUTABLE", "the program holds no code for this device"),
        -46: _DriverError("INVALID_KERNEL_NAME", "the program has no kernel of that name"),
        -48: _DriverError("INVALID_KERNEL", "the kernel is broken"),
        -49: _DriverError("INVALID_ARG_INDEX", "the kernel has fewer arguments than it was given"),
        -50: _DriverError("INVALID_ARG_VALUE", "an argument's value does not fit its kind"),
        -51: _DriverError("INVALID_ARG_SIZE", "an argument has another size than the kernel's parameter"),
        -52: _DriverError("INVALID_KERNEL_ARGS", "the kernel has more arguments than it was given"),
        -53: _DriverError("INVALID_WORK_DIMENSION", "the launch has too many dimensions"),
        -54: _DriverError(
            "INVALID_WORK_GROUP_SIZE",
            "the block has too many threads for this kernel or device, or is not its reqd_work_group_size",
        ),
        -55: _DriverError("INVALID_WORK_ITEM_SIZE", "one of the block's extents is above the device's limit"),
        -56: _DriverError("INVALID_GLOBAL_OFFSET", "the launch's offset does not fit the device"),
        -58: _DriverError("INVALID_EVENT", "an event is broken", is_machine=True),
        -61: _DriverError("INVALID_BUFFER_SIZE", "a buffer is empty, or larger than the device's largest"),
        -63: _DriverError("INVALID_GLOBAL_WORK_SIZE", "the grid is empty or too large"),
        -1001: _DriverError("PLATFORM_NOT_FOUND_KHR", "no OpenCL driver is installed", is_machine=True),
        -9999: _DriverError("ILLEGAL_READ_OR_WRITE", "NVIDIA: the kernel touched memory that is not its own"),
    }
)
"""By code. `-9999` is what NVIDIA's driver gives for an illegal address; no header names it."""


def driver_error(code: int) -> _DriverError:
    """The entry of `code`; unknown codes get their number as the name."""
    return DRIVER_ERRORS.get(code, _DriverError(f"ERROR_{-code}", "a code that no OpenCL header names"))


def code_of(error: Exception) -> int:
    """The code in one of pyopencl's exceptions; 0 when there is none."""
    code = getattr(error, "code", 0)
    return code if isinstance(code, int) else 0


def launch_error(error: Exception, what: str) -> LaunchFailed | InfrastructureError:
    """What a driver's refusal of `what` (a launch, in words) means."""
    known = driver_error(code_of(error))
    message = f"{what}: {known.name}" + (f" ({known.meaning})" if known.meaning else f" ({error})")
    return InfrastructureError(message) if known.is_machine else LaunchFailed(known.reason, message)


def machine_error(error: Exception, what: str) -> InfrastructureError:
    """A driver's failure that no candidate caused."""
    known = driver_error(code_of(error))
    return InfrastructureError(f"{what}: {known.name} ({known.meaning or error})")

"""What OpenCL's error codes mean for a candidate, and for a person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kernelwright.backend.base import LaunchFailed
from kernelwright.errors import InfrastructureError


@dataclass(frozen=True, slots=True)
class DriverError:
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


DRIVER_ERRORS: Mapping[int, DriverError] = MappingProxyType(
    {
        -1: DriverError("DEVICE_NOT_FOUND", "no device of that kind", is_machine=True),
        -2: DriverError("DEVICE_NOT_AVAILABLE", "the device is lost or in use", is_machine=True),
        -3: DriverError("COMPILER_NOT_AVAILABLE", "the driver has no compiler", is_machine=True),
        -4: DriverError("MEM_OBJECT_ALLOCATION_FAILURE", "the device has no memory left for a buffer"),
        -5: DriverError("OUT_OF_RESOURCES", "the launch needs more registers, local memory or stack than there is"),
        -6: DriverError("OUT_OF_HOST_MEMORY", "the driver has no memory left", is_machine=True),
        -11: DriverError("BUILD_PROGRAM_FAILURE", "the compiler refused the source"),
        -13: DriverError("MISALIGNED_SUB_BUFFER_OFFSET", "a buffer's offset is not aligned for this device"),
        -14: DriverError("EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST", "the kernel was aborted while it ran"),
        -15: DriverError("COMPILE_PROGRAM_FAILURE", "the compiler refused the source"),
        -17: DriverError("LINK_PROGRAM_FAILURE", "the linker refused the program"),
        -30: DriverError("INVALID_VALUE", "a size or flag is outside what the driver takes"),
        -34: DriverError("INVALID_CONTEXT", "the context is broken", is_machine=True),
        -36: DriverError("INVALID_COMMAND_QUEUE", "the queue is broken, often by an earlier kernel", is_machine=True),
        -38: DriverError("INVALID_MEM_OBJECT", "an argument is no valid buffer"),
        -42: DriverError("INVALID_BINARY", "the driver does not take this binary"),
        -43: DriverError("INVALID_BUILD_OPTIONS", "the driver does not know one of the build options"),
        -44: DriverError("INVALID_PROGRAM", "the program is broken"),
        -45: DriverError("INVALID_PROGRAM_EXECUTABLE", "the program holds no code for this device"),
        -46: DriverError("INVALID_KERNEL_NAME", "the program has no kernel of that name"),
        -48: DriverError("INVALID_KERNEL", "the kernel is broken"),
        -49: DriverError("INVALID_ARG_INDEX", "the kernel has fewer arguments than it was given"),
        -50: DriverError("INVALID_ARG_VALUE", "an argument's value does not fit its kind"),
        -51: DriverError("INVALID_ARG_SIZE", "an argument has another size than the kernel's parameter"),
        -52: DriverError("INVALID_KERNEL_ARGS", "the kernel has more arguments than it was given"),
        -53: DriverError("INVALID_WORK_DIMENSION", "the launch has too many dimensions"),
        -54: DriverError(
            "INVALID_WORK_GROUP_SIZE",
            "the block has too many threads for this kernel or device, or is not its reqd_work_group_size",
        ),
        -55: DriverError("INVALID_WORK_ITEM_SIZE", "one of the block's extents is above the device's limit"),
        -56: DriverError("INVALID_GLOBAL_OFFSET", "the launch's offset does not fit the device"),
        -58: DriverError("INVALID_EVENT", "an event is broken", is_machine=True),
        -61: DriverError("INVALID_BUFFER_SIZE", "a buffer is empty, or larger than the device's largest"),
        -63: DriverError("INVALID_GLOBAL_WORK_SIZE", "the grid is empty or too large"),
        -1001: DriverError("PLATFORM_NOT_FOUND_KHR", "no OpenCL driver is installed", is_machine=True),
        -9999: DriverError("ILLEGAL_READ_OR_WRITE", "NVIDIA: the kernel touched memory that is not its own"),
    }
)
"""By code. `-9999` is what NVIDIA's driver gives for an illegal address; no header names it."""


def driver_error(code: int) -> DriverError:
    """The entry of `code`; unknown codes get their number as the name."""
    return DRIVER_ERRORS.get(code, DriverError(f"ERROR_{-code}", "a code that no OpenCL header names"))


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

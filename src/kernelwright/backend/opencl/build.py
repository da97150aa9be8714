"""From a build unit to an OpenCL program: source, options, compiler messages, read-back, artifacts on disk.

PoCL needs its own way. It compiles the work-group function for a block shape at that shape's first launch
(0.2 to 0.5 s) and leaves it in its cache folder under the program's key. An artifact for PoCL is that part of
the cache: `load` puts it into the loading process's own cache folder and builds from the same source with the
same options, which then takes milliseconds. (`clGetProgramInfo(BINARIES)` would also compile a variant for
unknown block shapes that nothing here uses, for another 0.3 s.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from kernelwright.backend.base import Artifact, BuildFailed, BuildUnit
from kernelwright.backend.files import add_tree
from kernelwright.backend.opencl.errors import code_of, driver_error, machine_error
from kernelwright.identity import content_id

BINARY_NAME = "program.bin"
POCL_FOLDER = "pocl"

_POCL_GRID_LIMIT = 65535

_ALWAYS = ("-cl-kernel-arg-info",)
_INVALID_BUILD_OPTIONS = -43
_REFUSALS = frozenset({-11, -15, -17, -42, -43, -45})
"""Error codes of a build that say something of the unit rather than of the machine."""


@dataclass(frozen=True, slots=True)
class Target:
    """A device opened for building."""

    cl: ModuleType
    context: Any
    handle: Any


def source_text(unit: BuildUnit) -> str:
    """The unit's source after one `#define` line for each macro; the compiler's line numbers are the user's.

    Macros are not passed as options, because PoCL splits options at every blank, quoted or not.
    """
    defines = [f"#define {name} {_one_line(value)}\n" for name, value in unit.macros]
    file_name = unit.file_name.replace("\\", "\\\\").replace('"', '\\"')
    return "".join(defines) + f'#line 1 "{file_name}"\n' + unit.source


def build_options(unit: BuildUnit) -> bytes:
    """The driver's option string.

    Raises:
        BuildFailed: an include folder's path holds a blank, which no OpenCL driver takes reliably.
    """
    for path in unit.include_paths:
        if re.search(r"\s", str(path)):
            raise BuildFailed(
                f"the include folder {str(path)!r} has a blank in its path, which OpenCL build options cannot "
                "hold: move the headers, or the problem's folder"
            )
    return " ".join([*unit.options, *_ALWAYS, *(f"-I{path}" for path in unit.include_paths)]).encode()


def build_from_source(target: Target, unit: BuildUnit) -> tuple[Any, str]:
    """Build; the program and the compiler's log.

    Raises:
        BuildFailed: the compiler refused the unit.
        InfrastructureError: the driver failed in another way.
    """
    # pyopencl.Program would add its own include folder, whose path may hold a blank.
    program = target.cl._cl._Program(target.context, source_text(unit))  # noqa: SLF001
    return program, _build(target, program, build_options(unit), unit)


def build_from_binary(target: Target, unit: BuildUnit, binary: bytes) -> Any:
    """Load what `save_binary` kept.

    Raises:
        BuildFailed: the driver does not take it.
    """
    try:
        program = target.cl._cl._Program(target.context, [target.handle], [binary])  # noqa: SLF001
    except target.cl.Error as error:
        raise BuildFailed(f"the driver refuses its own binary: {driver_error(code_of(error)).name}") from error
    _build(target, program, b"", unit)
    return program


def save_binary(target: Target, program: Any, folder: Path) -> None:
    """Keep the program's device code in `folder`."""
    binaries = program.get_info(target.cl.program_info.BINARIES)
    (folder / BINARY_NAME).write_bytes(binaries[0])


def read_resources(
    target: Target, program: Any, entries: Sequence[str], *, knows_private_memory: bool
) -> dict[str, dict[str, float]]:
    """What the driver says of each entry.

    Raises:
        BuildFailed: an entry is not in the program.
    """
    resources = {}
    info = target.cl.kernel_work_group_info
    for entry in entries:
        kernel = make_kernel(target.cl, program, entry)
        figures = {
            "max_threads_per_block": info.WORK_GROUP_SIZE,
            "local_memory_bytes": info.LOCAL_MEM_SIZE,
            "preferred_multiple": info.PREFERRED_WORK_GROUP_SIZE_MULTIPLE,
        }
        if knows_private_memory:
            figures["private_memory_bytes"] = info.PRIVATE_MEM_SIZE
        resources[entry] = {
            name: float(kernel.get_work_group_info(what, target.handle)) for name, what in figures.items()
        }
        resources[entry]["argument_count"] = float(kernel.num_args)
    return resources


def make_kernel(cl: ModuleType, program: Any, entry: str) -> Any:
    """A fresh kernel object, with arguments of its own.

    Raises:
        BuildFailed: the program has no such entry.
    """
    try:
        return cl.Kernel(program, entry)
    except cl.Error as error:
        names = ", ".join(kernel_names(cl, program)) or "none"
        raise BuildFailed(f"the entry {entry!r} is not among the kernels of this source: {names}") from error


def kernel_names(cl: ModuleType, program: Any) -> list[str]:
    """All kernels of a built program."""
    return [name for name in str(program.get_info(cl.program_info.KERNEL_NAMES)).strip("\0").split(";") if name]


def _one_line(value: str) -> str:
    return value.replace("\r\n", "\n").replace("\n", "\\\n")


def _build(target: Target, program: Any, options: bytes, unit: BuildUnit) -> str:
    try:
        program.build(options, [target.handle])
    except target.cl.Error as error:
        code = code_of(error)
        if code not in _REFUSALS:
            raise machine_error(error, f"building {unit.file_name}") from error
        log = _build_log(target, program)
        raise BuildFailed(_summary(log, code, options), log) from error
    return _build_log(target, program)


def _build_log(target: Target, program: Any) -> str:
    try:
        log = program.get_build_info(target.handle, target.cl.program_build_info.LOG)
    except target.cl.Error:  # some drivers have none for a refused option
        return ""
    return str(log).strip("\0 \n")


def _summary(log: str, code: int, options: bytes) -> str:
    if code == _INVALID_BUILD_OPTIONS:
        return f"the driver refuses one of the build options {options.decode()!r}"
    return first_error(log) or f"{driver_error(code).name}: {driver_error(code).meaning}"


def first_error(log: str) -> str:
    """The compiler's first complaint as one line, with the place first: `file:line:column: what`.

    PoCL writes `error: file:line:column: what`, others `file:line:column: error: what`.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for line in lines:
        if re.search(r"\berror\b\s*:", line, re.IGNORECASE):
            return re.sub(r"\s*\b(?:fatal )?error\b\s*:\s*", " ", line, count=1, flags=re.IGNORECASE).strip()
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1]) if lines else ""


# ---- PoCL's cache as an artifact ----


def pocl_programs(cache: Path) -> frozenset[Path]:
    """The program folders in a PoCL cache: two levels down, named by PoCL's key."""
    return frozenset(path.parent for path in cache.glob("*/*/program.bc"))


def save_pocl(program_folder: Path, cache: Path, folder: Path) -> None:
    """Add what PoCL has of one program to the artifact in `folder`; safe beside readers."""
    target = folder / POCL_FOLDER / program_folder.relative_to(cache)
    target.mkdir(parents=True, exist_ok=True)
    add_tree(program_folder, target)


def install_pocl(folder: Path, cache: Path) -> Path | None:
    """Put an artifact's files into this process's PoCL cache; the program's folder there, if it has one."""
    for program_folder in pocl_programs(folder / POCL_FOLDER):
        target = cache / program_folder.relative_to(folder / POCL_FOLDER)
        target.mkdir(parents=True, exist_ok=True)
        add_tree(program_folder, target)
        return target
    return None


def specialisation(grid: tuple[int, int, int], block: tuple[int, int, int]) -> tuple[str, tuple[int, int, int]]:
    """PoCL's name for the variant of a launch, and the smallest grid that gets the same one.

    Measured with PoCL 3.0: blocks of one shape share a variant, but grids of 65,535 blocks or more along an
    axis have their own.
    """
    name = "-".join(map(str, block)) + "-goffs0"
    longest = max(grid)
    if longest < _POCL_GRID_LIMIT:
        return f"{name}-smallgrid", (1, 1, 1)
    axis = grid.index(longest)
    x, y, z = (_POCL_GRID_LIMIT if each == axis else 1 for each in range(3))
    return name, (x, y, z)


def pocl_binary_id(artifact: Artifact, variants: Iterable[tuple[str, str]]) -> str:
    """Content id of what PoCL launches of an artifact; empty where it has not compiled all of it yet.

    What the driver says of an entry belongs to it: the sizes of local arrays are in no machine code.
    """
    found = []
    for entry, name in variants:
        objects = [each / entry / name / f"{entry}.so" for each in pocl_programs(artifact.folder / POCL_FOLDER)]
        try:
            found.append((entry, name, [each.read_bytes() for each in objects], artifact.resources.get(entry)))
        except OSError:
            return ""
    return content_id(found) if found else ""


def has_variant(program_folder: Path | None, entry: str, name: str) -> bool:
    """Whether PoCL's variant is already there."""
    return program_folder is not None and (program_folder / entry / name / f"{entry}.so").exists()

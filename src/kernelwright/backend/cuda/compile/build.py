"""From a build unit to a cubin: NVRTC or nvcc, entries by name expression, messages, read-back from the assembler."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from kernelwright.backend.base import BuildFailed, BuildUnit, DeviceInfo
from kernelwright.backend.cuda.compile.host_headers import ALWAYS, HOST_HEADERS
from kernelwright.backend.cuda.compile.options import CompileOptions, parse_options
from kernelwright.backend.cuda.driver import INSTALL_HINT, find_nvcc, header_folders, load_nvrtc
from kernelwright.backend.cuda.errors import DriverCallFailed, call
from kernelwright.errors import InfrastructureError, MissingDependency
from kernelwright.problem.source_scan import scan_kernels

_ENTRY_MARK = "kernelwright_entry_"
_ENTRY_FILE = "kernelwright-entries"
_CACHES_SINCE = (13, 0)
"""From this version on NVRTC keeps results in the driver's cache, and a result from there comes without its log."""
_SIZED = re.compile(r"\bu?int(?:8|16|32|64)_t\b")
_UNIT_FAULTS = frozenset({3, 4, 5, 6})
"""NVRTC's codes that say something of the unit: invalid input, program, option; compilation."""


@dataclass(frozen=True, slots=True)
class _Compiled:
    """What a compiler gave."""

    cubin: bytes
    names: Mapping[str, str]
    """By entry, as the unit writes it, its name in the cubin."""
    log: str


def compile_unit(unit: BuildUnit, device: DeviceInfo) -> _Compiled:
    """Compile for `device`, which need not be here.

    Raises:
        BuildFailed: the compiler refused the unit.
        MissingDependency: the compiler that the unit asks for is not installed.
    """
    capability = device.limits.get("compute_capability")
    if capability is None:
        raise InfrastructureError(f"the device {device.id!r} does not tell its compute capability")
    options = parse_options(unit.options, capability=capability)
    nvrtc = None if options.compiler == "nvcc" else load_nvrtc()
    if nvrtc is not None:
        try:
            return compile_with_nvrtc(nvrtc, unit, options)
        except BuildFailed as failure:
            nvcc = find_nvcc() if not options.compiler and needs_host(failure.log) else None
            if nvcc is None:
                raise
            return compile_with_nvcc(nvcc, unit, options)
    nvcc = None if options.compiler == "nvrtc" else find_nvcc()
    if nvcc is None:
        wanted = options.compiler or "neither NVRTC nor nvcc"
        raise MissingDependency(f"compiling {unit.file_name}: {wanted} was found", hint=INSTALL_HINT)
    return compile_with_nvcc(nvcc, unit, options)


# NVRTC


def compile_with_nvrtc(nvrtc: ModuleType, unit: BuildUnit, options: CompileOptions) -> _Compiled:
    """Compile in this process.

    Raises:
        BuildFailed: NVRTC refused the unit.
    """
    words = [
        f"--gpu-architecture={options.arch}",
        "--ptxas-options=-v",
        *(["--no-cache"] if tuple(call(nvrtc.nvrtcVersion())) >= _CACHES_SINCE else []),
        f"--pre-include={ALWAYS}",
        *(["--pre-include=stdint.h"] if _needs_sized_integers(unit.source) else []),
        *_macros(unit),
        *options.passed,
        *_includes(unit),
    ]
    headers = [text.encode() for text in HOST_HEADERS.values()]
    names_of_headers = [name.encode() for name in HOST_HEADERS]
    notes = list(options.notes)
    if options.nvcc_only:
        notes.append(f"left out, because NVRTC compiles no host code: {' '.join(options.nvcc_only)}")
    source, file_name = unit.source.encode(), unit.file_name.encode()
    program = call(nvrtc.nvrtcCreateProgram(source, file_name, len(headers), headers, names_of_headers))
    try:
        for entry in unit.entries:
            call(nvrtc.nvrtcAddNameExpression(program, entry.encode()))
        code = int(nvrtc.nvrtcCompileProgram(program, len(words), [word.encode() for word in words])[0])
        log = "\n".join([*notes, _nvrtc_log(nvrtc, program)]).strip()
        if code:
            if code not in _UNIT_FAULTS and not log:
                raise InfrastructureError(f"NVRTC failed on {unit.file_name} with its error {code}")
            raise refusal(unit, log)
        names = {
            entry: bytes(call(nvrtc.nvrtcGetLoweredName(program, entry.encode()))).decode() for entry in unit.entries
        }
        cubin = bytearray(call(nvrtc.nvrtcGetCUBINSize(program)))
        call(nvrtc.nvrtcGetCUBIN(program, cubin))
    except DriverCallFailed as error:
        raise BuildFailed(f"NVRTC refuses {unit.file_name}: {error.name}") from error
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return _Compiled(bytes(cubin), names, log)


def needs_host(log: str) -> bool:
    """Whether NVRTC stopped at a header that it has not, so that nvcc, which reads the host's, may do better."""
    return re.search(r"could not open source file|cannot open source file", log) is not None


def _needs_sized_integers(source: str) -> bool:
    """Whether a source names `int64_t` and the like, which nvcc's own headers bring along, and declares none itself."""
    return bool(_SIZED.search(source)) and not re.search(rf"(?:typedef\b[^;]*|using\s+){_SIZED.pattern}", source)


def _nvrtc_log(nvrtc: ModuleType, program: object) -> str:
    size = call(nvrtc.nvrtcGetProgramLogSize(program))
    data = bytearray(size)
    call(nvrtc.nvrtcGetProgramLog(program, data))
    return data.decode(errors="replace").strip("\0 \n")


# nvcc


def compile_with_nvcc(nvcc: Path, unit: BuildUnit, options: CompileOptions) -> _Compiled:
    """Compile with the compiler driver, which also takes host code.

    Variables that hold each entry's address are added after the source: they instantiate templates, and the PTX
    tells by them what an entry is called.

    Raises:
        BuildFailed: nvcc refused the unit.
    """
    with tempfile.TemporaryDirectory(prefix="nvcc-") as scratch:
        folder = Path(scratch)
        (folder / "unit.cu").write_text(_marked_source(unit), encoding="utf-8")
        command = [
            str(nvcc), "-cubin", f"-arch={options.arch}", "-Xptxas", "-v", "--diag-suppress", "177",
            "--expt-relaxed-constexpr",
            *_macros(unit), *options.passed, *options.nvcc_only, *_includes(unit, with_toolkit=False),
            "--keep", "--keep-dir", str(folder), "-o", str(folder / "unit.cubin"), str(folder / "unit.cu"),
        ]  # fmt: skip
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
        except OSError as error:
            raise InfrastructureError(f"{nvcc} cannot be started: {error.strerror or error}") from error
        log = "\n".join([*options.notes, done.stdout.strip(), done.stderr.strip()]).strip()
        if done.returncode:
            raise refusal(unit, log)
        names = _names_in_ptx((folder / "unit.ptx").read_text(encoding="utf-8", errors="replace"), unit.entries)
        return _Compiled((folder / "unit.cubin").read_bytes(), names, log)


def _marked_source(unit: BuildUnit) -> str:
    name = unit.file_name.replace("\\", "\\\\").replace('"', '\\"')
    marks = [
        f"\n__device__ const void *{_ENTRY_MARK}{index} = (const void *)({entry});"
        for index, entry in enumerate(unit.entries)
    ]
    return f'#line 1 "{name}"\n{unit.source}\n#line 1 "{_ENTRY_FILE}"' + "".join(marks) + "\n"


def _names_in_ptx(ptx: str, entries: Sequence[str]) -> dict[str, str]:
    found = {int(number): name for number, name in re.findall(rf"\b{_ENTRY_MARK}(\d+)\s*=\s*([\w$]+)", ptx)}
    missing = [entry for index, entry in enumerate(entries) if index not in found]
    if missing:
        raise BuildFailed(f"nvcc's output does not say what {', '.join(missing)} is called")
    return {entry: found[index] for index, entry in enumerate(entries)}


# Both


def _macros(unit: BuildUnit) -> list[str]:
    return [f"-D{name}={value}" for name, value in unit.macros]


def _includes(unit: BuildUnit, *, with_toolkit: bool = True) -> list[str]:
    """The unit's own folders first; nvcc knows its toolkit's itself."""
    return [f"-I{folder}" for folder in (*unit.include_paths, *(header_folders() if with_toolkit else ()))]


def refusal(unit: BuildUnit, log: str) -> BuildFailed:
    """The compiler's log as a failure: what was wrong first, and which limit it was when it was one."""
    shared = re.search(
        r"Entry function '([^']*)' uses too much shared data \((0x[0-9a-f]+) bytes, (0x[0-9a-f]+) max", log
    )
    if shared:
        needed, limit = int(shared[2], 16), int(shared[3], 16)
        entry = unit.entries[0] if len(unit.entries) == 1 else shared[1]
        message = (
            f"{entry!r} declares {needed:,} bytes of static shared memory; {limit:,} can be static, more must be "
            "dynamic (extern __shared__, with shared_bytes in the launch)"
        )
        return BuildFailed(message, log, limit="too-much-local-memory")
    other = re.search(r"uses too much ([a-z ]+?) (?:data|space)? *\(.*", log)
    if other:
        return BuildFailed(first_error(log), log, limit=f"too-much-{other[1].replace(' ', '-')}")
    message = first_error(log) or f"the compiler refuses {unit.file_name} without a word"
    missing = _missing_entry(unit, log)
    if missing:
        message = missing
    elif "unrecognized option" in log:
        message += "; an option that only nvcc has needs --compiler=nvcc beside it"
    elif needs_host(log) and not header_folders():
        message += f"; CUDA's headers were not found: {INSTALL_HINT} brings them, or set CUDA_HOME"
    return BuildFailed(message, log)


def first_error(log: str) -> str:
    """The compiler's first complaint as one line with the place first: `file:line: what`."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for line in lines:
        placed = re.match(r"(?P<file>.+?)\((?P<line>\d+)\): (?:catastrophic )?error(?: #[\w-]+)?: (?P<what>.*)", line)
        if placed:
            return f"{placed['file']}:{placed['line']}: {placed['what']}"
        if re.match(r"(?:ptxas|nvrtc|nvcc)\s*(?:fatal|error)\s*:|nvrtc: error|.*\b(?:fatal )?error\s*:", line):
            return re.sub(r"\s+:\s", ": ", line)
    return lines[0] if lines else ""


def _missing_entry(unit: BuildUnit, log: str) -> str | None:
    """A word for entries that the source does not define, whatever the compiler makes of its name expression."""
    kernels = dict.fromkeys(kernel.name for kernel in scan_kernels(unit.source, unit.language))
    for entry in unit.entries:
        name = entry.partition("<")[0].strip().rpartition("::")[2]
        if name in kernels or not kernels:
            continue
        undefined = rf'identifier "{re.escape(name)}" is undefined|name expression|^{_ENTRY_FILE}\(\d+\): error'
        if re.search(undefined, log, re.IGNORECASE | re.MULTILINE):
            return f"the entry {entry!r} is not among the kernels of this source: {', '.join(kernels)}"
    return None


# Read-back


_USED = re.compile(
    r"Compiling entry function '(?P<name>[^']+)' for '[^']+'(?P<body>.*?)(?=Compiling entry function|\Z)", re.DOTALL
)
_FIGURES: Mapping[str, str] = {
    "registers_per_thread": r"Used (\d+) registers",
    "barriers": r"used (\d+) barriers",
    "local_memory_bytes": r"(\d+)(?:\+\d+)? bytes smem",
    "private_memory_bytes": r"(\d+) bytes stack frame",
    "spill_store_bytes": r"(\d+) bytes spill stores",
    "spill_load_bytes": r"(\d+) bytes spill loads",
}


def read_resources(log: str, names: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """What the assembler's `-v` says of each entry; figures it does not name are 0, entries it does not name are empty.

    `local_memory_bytes` is static shared memory, `private_memory_bytes` the stack of a thread, and `spill_bytes` what a
    thread stores and loads for want of registers. A function that is called and not inlined has its own stack, which
    the assembler adds to the entry's.
    """
    by_name = {match["name"]: match["body"] for match in _USED.finditer(log)}
    resources: dict[str, dict[str, float]] = {}
    for entry, name in names.items():
        body = by_name.get(name)
        resources[entry] = {}
        if body is None:
            continue
        own = _own_properties(body, name)
        for figure, pattern in _FIGURES.items():
            found = re.search(pattern, own)
            resources[entry][figure] = float(found[1]) if found else 0.0
        resources[entry]["spill_bytes"] = resources[entry]["spill_store_bytes"] + resources[entry]["spill_load_bytes"]
    return resources


def _own_properties(body: str, name: str) -> str:
    """The part of an entry's report that is about itself: called functions have `Function properties` of their own."""
    parts = re.split(r"Function properties for (\S+)", body)
    own = [text for function, text in zip(parts[1::2], parts[2::2], strict=False) if function == name]
    used = re.search(r"Used \d+ registers.*", body)
    return "\n".join([*own, used.group() if used else ""])

"""The user's compile options, as written for nvcc, sorted into what each compiler here takes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from kernelwright.backend.base import BuildFailed

Compiler = Literal["nvrtc", "nvcc"]

_HOST_ONLY = frozenset({"-Xcompiler", "--compiler-options", "-ccbin", "--compiler-bindir", "-Xlinker"})
"""Options with a value that concern the host's compiler or linker."""
_ARCH = frozenset({"-arch", "--gpu-architecture", "-gencode", "--generate-code", "-code", "--gpu-code"})
_WITH_VALUE = _HOST_ONLY | _ARCH | {"--compiler"}
_NVRTC_LACKS = re.compile(
    r"-O[0-3]|--optimize=.*|-L.+|-l(?!ineinfo).+|--expt-relaxed-constexpr|-expt-relaxed-constexpr|-rdynamic|-shared"
)
"""What only nvcc knows and what changes no device code: `-O` is the host's level, the device's is in `-Xptxas`."""


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """One unit's options, understood."""

    compiler: Compiler | None
    """What `--compiler=` asks for; None: NVRTC where there is one."""
    arch: str
    """E.g. `sm_90` or `sm_90a`."""
    passed: tuple[str, ...]
    """For either compiler."""
    nvcc_only: tuple[str, ...]
    notes: tuple[str, ...]
    """What was left out or replaced, in words; for the log."""


def parse_options(options: Sequence[str], *, capability: int) -> CompileOptions:
    """Sort a unit's options.

    Args:
        options: as the user's build has them, one word each.
        capability: the device's compute capability, e.g. 90.

    Raises:
        BuildFailed: `--compiler=` names a compiler that is not known.
    """
    compiler: Compiler | None = None
    arch = f"sm_{capability}"
    passed: list[str] = []
    nvcc_only: list[str] = []
    notes: list[str] = []
    for name, value, words in _words(options):
        if name == "--compiler":
            compiler = _compiler(value)
        elif name in _ARCH:
            wanted = _matching_arch(value, capability)
            if wanted is not None:
                arch = wanted
            elif value not in ("native", "all", "all-major"):
                notes.append(f"{' '.join(words)} is for another device: compiled for {arch}")
        elif name in _HOST_ONLY or _NVRTC_LACKS.fullmatch(name if not value else f"{name}={value}"):
            nvcc_only += words
        else:
            passed += words
    return CompileOptions(compiler, arch, tuple(passed), tuple(nvcc_only), tuple(notes))


def _words(options: Sequence[str]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Each option as name, value and its own words; those that are interpreted here may have their value apart."""
    rest = list(options)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name in _WITH_VALUE and not equals and rest:
            value = rest.pop(0)
            yield name, value, (word, value)
        else:
            yield name, value, (word,)


def _compiler(value: str) -> Compiler:
    match value:
        case "nvrtc" | "nvcc":
            return value
    raise BuildFailed(f"--compiler={value} is no compiler that is known here: say --compiler=nvcc or --compiler=nvrtc")


def _matching_arch(value: str, capability: int) -> str | None:
    """The architecture in `value` that is the device's own, with its suffix (`sm_90a`); None when there is none."""
    found = re.findall(rf"(?:sm|compute|lto)_({capability}[af]?)(?![0-9a-z])", value)
    return f"sm_{max(found, key=len)}" if found else None

"""A whole program as one problem: its kernels in the order in which `main` launches them, on the sizes that it has."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kernelwright.errors import Location, SpecError, UsageError
from kernelwright.infer.arguments import GUESSED_EXTENTS
from kernelwright.infer.inference import Given, infer
from kernelwright.infer.model import Inferred, InferredArgument, InferredStep
from kernelwright.infer.text.device_text import device_text
from kernelwright.infer.text.host import divided
from kernelwright.infer.text.host_program import HostProgram, ProgramLaunch
from kernelwright.infer.text.host_text import HostText, read_host, run_words
from kernelwright.infer.text.structs import structures_of, with_launched_members, with_members
from kernelwright.infer.words import Words
from kernelwright.problem.dtypes import dtype_of_c_type
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.source_scan import KernelParameter, scan_kernels
from kernelwright.source import nodes
from kernelwright.source.language import LANGUAGE_OF_SUFFIX, Language
from kernelwright.source.lexer import definitions_of, masked, words_of
from kernelwright.source.syntax import parse

LEAST_SIZE = 64
"""Sizes below it say how a kernel works (a radius, a block), and stay as they are."""
MOST_ANYWHERE = 1 << 24, 1 << 23
"""The most bytes of all arrays and steps of all launches: half a minute suffices to prove and to tune. A guess."""
MOST_ON_GPUS = 1 << 27, 1 << 31
"""The same in CUDA and HIP, which run on GPUs only: these take microseconds for what CPUs take milliseconds for."""
_HALVINGS = 12
_SOURCES = (".c", ".cpp", ".cc", ".cu", ".hip")
_NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|-?\.\d+(?:[eE][-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class _Source:
    """A program's kernels, and the code that launches them."""

    kernels: Path
    host: HostProgram
    whole: HostText
    """The kernels' file with its headers."""
    text: str
    """The same without host code, behind lines of its own."""
    language: Language

    def location(self, line: int) -> Location:
        """Where a line of the text is."""
        return self.whole.location(line - 1 - self.text.count("\n") + self.whole.text.count("\n"))


def find_program(folder: Path, suffixes: tuple[str, ...]) -> tuple[Path, Path]:
    """The file with a program's kernels and the file with its `main`.

    Raises:
        SpecError: the folder has none, or several.
    """
    files = sorted(folder.iterdir()) if folder.is_dir() else [folder]
    mains = [each for each in files if each.suffix in _SOURCES and _has_main(each)]
    kernels = next(filter(None, ([f for f in files if f.suffix == suffix] for suffix in suffixes)), [])
    with_kernels = [each for each in mains if each.suffix in suffixes and "__global__" in read_host(each).text]
    with_kernels = with_kernels or [each for each in kernels if "__global__" in _text(each)] or kernels
    if folder.is_file():
        beside = [each for each in sorted(folder.parent.iterdir()) if each.suffix in (".c", ".cpp", ".cc")]
        mains = [folder] if _has_main(folder) else [each for each in beside if _has_main(each)]
        with_kernels = [folder]
    if len(with_kernels) != 1 or len(mains) != 1:
        what = "kernel source" if len(with_kernels) != 1 else "file with a main function"
        found = ", ".join(each.name for each in (with_kernels if len(with_kernels) != 1 else mains)) or "none"
        raise SpecError(
            f"{folder} has not one {what}: {found}", hint="name the file with the kernels", location=Location(folder)
        )
    return with_kernels[0], mains[0]


_HOST_WORDS = {
    "__const__": "#define __const__ const",
    "M_PI": "#define M_PI 3.14159265358979323846", "M_PI_2": "#define M_PI_2 1.57079632679489661923",
    "FLT_MAX": "#define FLT_MAX 3.402823466e+38f", "FLT_MIN": "#define FLT_MIN 1.175494351e-38f",
    "FLT_EPSILON": "#define FLT_EPSILON 1.192092896e-07f", "DBL_MAX": "#define DBL_MAX 1.7976931348623158e+308",
    "INT_MAX": "#define INT_MAX 2147483647", "INT_MIN": "#define INT_MIN (-2147483647 - 1)",
    "UINT_MAX": "#define UINT_MAX 4294967295u", "uint": "typedef unsigned int uint;",
    "uchar": "typedef unsigned char uchar;", "ushort": "typedef unsigned short ushort;",
    "ulong": "typedef unsigned long ulong;",
    "int8_t": "typedef signed char int8_t;", "uint8_t": "typedef unsigned char uint8_t;",
    "int16_t": "typedef short int16_t;", "uint16_t": "typedef unsigned short uint16_t;",
    "int32_t": "typedef int int32_t;", "uint32_t": "typedef unsigned int uint32_t;",
    "int64_t": "typedef long long int64_t;", "uint64_t": "typedef unsigned long long uint64_t;",
}  # fmt: skip
"""What headers of the host define, which compilers of kernels have not."""


def _with_host_words(text: str, language: Language) -> str:
    if language == "opencl":
        return text
    code = masked(text)
    names = {each.name for each in definitions_of(code)}
    names |= set(re.findall(r"(?:typedef\b[^;]*?|using\s+)\b(\w+)\s*(?:;|=)", code))
    missing = [line for word, line in _HOST_WORDS.items() if word in set(words_of(code)) - names]
    return "".join(f"{line}\n" for line in missing) + text


def _has_main(file: Path) -> bool:
    return bool(re.search(r"^\s*(?:int|void)?\s*main\s*\(", _text(file), re.MULTILINE))


def _text(file: Path) -> str:
    return file.read_text(errors="replace")


def _whole_host(main: Path) -> HostText:
    """The file with `main`, and behind it the other sources beside it."""
    host = read_host(main)
    for each in sorted(main.parent.iterdir()):
        if each.suffix in _SOURCES and each not in host.files and not _has_main(each):
            other = read_host(each)
            host = HostText(f"{host.text}\n{other.text}", host.files + other.files, host.lines + other.lines)
    return host


def infer_program(folder: Path, suffixes: tuple[str, ...]) -> Inferred:
    """Everything about all kernels of a program, as one problem with several launches.

    Sizes are halved until all launches together are small enough for any device.

    Raises:
        SpecError: what cannot be read, with file and line.
    """
    kernels, main = find_program(folder, suffixes)
    host = HostProgram(_whole_host(main), run_words(main.parent))
    language = LANGUAGE_OF_SUFFIX[kernels.suffix]
    whole = read_host(kernels)
    text = device_text(whole.text.encode(), language).decode()
    structures = structures_of(text, language)
    if structures:
        text, told = with_members(text, language, structures), _whole_host(main)
        told = replace(told, text=with_launched_members(told.text, structures))
        host = HostProgram(told, run_words(main.parent))
    source = _Source(kernels, host, whole, _with_host_words(text, language), language)
    known = {each.name: each.parameters or () for each in scan_kernels(source.text, language)}
    launches = list(host.launches({name: len(parameters) for name, parameters in known.items()}))
    instances = {each.kernel: each.instance for each in reversed(launches)}
    launches = [each for each in launches if each.instance == instances[each.kernel]]  # other types do the same again
    distinct = list(dict.fromkeys(replace(each, location=launches[0].location) for each in launches))
    if not distinct:
        raise SpecError(
            f"main launches none of the kernels {', '.join(known) or '(there are none)'}",
            hint="name one kernel: kernelwright init FILE::KERNEL",
            location=Location(main),
        )
    firsts = [next(each for each in launches if replace(each, location=one.location) == one) for one in distinct]
    sizes = _sizes_of(firsts, known, host, language)
    most_bytes, most_steps = MOST_ANYWHERE if language == "opencl" else MOST_ON_GPUS
    for count in range(_HALVINGS):
        smaller = {
            name: max(LEAST_SIZE, value >> count) if value > LEAST_SIZE else value for name, value in sizes.items()
        }
        found = replace(_Program(source, known, smaller).inferred(firsts), halvings=count)
        if found.array_bytes <= most_bytes and found.steps <= most_steps:
            break
    return found


def _sizes_of(
    launches: Sequence[ProgramLaunch], known: Mapping[str, tuple[KernelParameter, ...]], host: HostProgram,
    language: Language,
) -> dict[str, int]:  # fmt: skip
    """Names of the host that kernels get by value, no block's extents; all others are plain numbers."""
    found: dict[str, int] = {}
    for each in launches:
        for parameter, passed in zip(known[each.kernel], each.actuals, strict=False):
            dtype = dtype_of_c_type(parameter.c_type, language)
            if not parameter.is_pointer and dtype is not None and dtype.is_integer:
                for name in re.findall(r"[A-Za-z_]\w*", passed):
                    if host.sizes.get(name, 0) > 1:
                        found[name] = host.sizes[name]
    blocks = {name for each in launches for text in each.block for name in _names(text)}
    return {name: value for name, value in found.items() if name not in blocks}


class _Program:
    """One program on certain sizes."""

    def __init__(
        self, source: _Source, known: Mapping[str, tuple[KernelParameter, ...]], sizes: Mapping[str, int]
    ) -> None:
        self._source = source
        self._known = known
        self._sizes = dict(sizes)
        guesses = source.host.guesses.keys()
        self._changed = frozenset(n for n, value in sizes.items() if value != source.host.sizes[n] or n in guesses)
        self._arguments: dict[str, InferredArgument] = {}
        self._allocated = source.host.allocated_bytes()
        self._names: dict[tuple[str, str], str] = {}
        """What the problem calls an array of the host, or a value that is passed."""

    def inferred(self, launches: list[ProgramLaunch]) -> Inferred:
        steps, parts = [], []
        for each in launches:
            part = self._part(each)
            parts.append(part)
            steps.append(self._step(each, part))
        extra = {name: value for part in parts for name, value in part.sizes.items() if name in self._loose(part)}
        looped = sorted({each.location.line or 0 for each in launches if each.is_in_loop})
        notes = [f"of the loop around the launch in line {line} the first round is taken" for line in looped]
        notes += [told for name, told in sorted(self._source.host.guesses.items()) if name in self._source.host.sizes]
        first = parts[0]
        return replace(
            first, source=first.source if len({each.kernel for each in launches}) == 1 else self._source.text,
            arguments=tuple(self._arguments.values()),
            sizes={**self._sizes, **extra}, guessed_sizes=self._changed, questions=(), notes=tuple(notes),
            steps=sum(part.steps for part in parts), launches=tuple(steps),
            launch=replace(first.launch, origin=f"from the launch in line {launches[0].location.line} of main's file"),
        )  # fmt: skip

    def _loose(self, part: Inferred) -> frozenset[str]:
        """Sizes of a part that no parameter stands for: `NAME_values`, `n`."""
        used = {name for a in self._arguments.values() for text in (*a.shape, a.value) for name in _names(text)}
        return frozenset(part.sizes.keys() & (used - self._sizes.keys()))

    def _part(self, launch: ProgramLaunch) -> Inferred:
        numbers: dict[str, int | float] = {}
        texts: dict[str, str] = {}
        for parameter, passed in zip(self._known[launch.kernel], launch.actuals, strict=False):
            value = None if parameter.is_pointer else self._value(passed)
            if value is not None:
                numbers[parameter.name], texts[parameter.name] = value, str(value)
        grid = tuple(self._in_sizes(each) for each in launch.grid)
        for name in {name for each in grid for name in _names(each)} & self._sizes.keys():
            numbers.setdefault(name, self._sizes[name])
            texts.setdefault(name, str(self._sizes[name]))
        block = tuple(str(self._value(each) or each) for each in launch.block)
        entry = f"{launch.kernel}<{launch.instance}>" if launch.instance else launch.kernel
        try:
            given = Given(Words(numbers, {}, {}, {}, texts), entry, grid, block, asks=False)
            part = infer(self._source.kernels, given, text=self._source.text)
        except (SpecError, UsageError) as error:
            line = None if error.location is None else error.location.line
            where = launch.location if line is None else self._source.location(line)
            raise SpecError(error.message, hint=error.hint, location=where) from error
        if part.launch.origin == "not known":
            raise SpecError(
                f"how {launch.kernel!r} is launched is not read: {part.launch.note}",
                hint="write the launch by hand: kernelwright init FILE::KERNEL --grid X,Y --block X,Y",
                location=launch.location,
            )
        return part

    def _value(self, text: str) -> int | float | None:
        """What is passed by value on these sizes; None where the host's code does not say."""
        text = text.strip()
        if _NUMBER.fullmatch(text):
            return float(text) if re.search(r"[.eE]", text) else int(text)
        names = {name: self._number(name) for name in _names(text)}
        if not text or None in names.values():
            return None
        try:
            value = Expression.parse(text).evaluate({name: each for name, each in names.items() if each is not None})
        except SpecError:
            return None
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def _number(self, name: str) -> int | None:
        return self._sizes.get(name, self._source.host.sizes.get(name))

    def _in_sizes(self, text: str) -> str:
        """An expression in which only the problem's sizes are names."""
        known = self._source.host.sizes
        return _renamed(text, {name: str(known[name]) for name in known if name not in self._sizes})

    def _step(self, launch: ProgramLaunch, part: Inferred) -> InferredStep:
        own: dict[str, str] = {}
        for parameter, passed in zip(self._known[launch.kernel], launch.actuals, strict=False):
            if not parameter.is_pointer and self._value(passed) is not None:
                own[parameter.name] = self._in_sizes(passed)
        names: list[str] = []
        divisors = self._divisors(launch.kernel)
        for parameter, argument, passed in zip(
            self._known[launch.kernel], part.arguments, launch.actuals, strict=False
        ):  # fmt: skip
            renamed = {name: f"({text})" if not re.fullmatch(r"\w+", text) else text for name, text in own.items()}
            shape = tuple(_renamed(each, renamed) for each in argument.shape)
            value = own.get(argument.name, argument.value) if argument.role == "scalar" else ""
            made = self._as_allocated(replace(argument, shape=shape, value=value), passed)
            if parameter.name in divisors and made.bounds is None:
                made = replace(made, bounds=(1, 2), note="it divides, so it keeps away from 0")
            names.append(self._named(self._as_filled(made, passed), passed, names))
        return InferredStep(
            launch.kernel, tuple(self._in_sizes(each) for each in launch.grid), part.launch.block,
            self._in_sizes(launch.shared_bytes) or part.launch.shared_bytes, tuple(names),
        )  # fmt: skip

    def _as_allocated(self, argument: InferredArgument, passed: str) -> InferredArgument:
        """An array whose extents the kernel's text does not say, as large as the host allocates it."""
        text = self._allocated.get(passed, "") if argument.note.startswith(GUESSED_EXTENTS) else ""
        byte_count = self._value(text)
        if not isinstance(byte_count, int) or byte_count <= 0 or byte_count % argument.dtype.item_bytes:
            return argument
        extent = divided(self._in_sizes(text), str(argument.dtype.item_bytes))
        return replace(argument, shape=(extent,), note="")

    def _as_filled(self, argument: InferredArgument, passed: str) -> InferredArgument:
        """Nothing but 0 in an array that the host sets to 0 and the kernel adds to."""
        is_zeroed = argument.is_accumulated and passed in self._source.host.zeroed
        return replace(argument, values="zeros", bounds=None, file="") if is_zeroed else argument

    def _divisors(self, kernel: str) -> frozenset[str]:
        """The arrays by whose elements a kernel divides."""
        functions = parse(self._source.text, self._source.language).functions
        body = next(each.body for each in functions if each.name == kernel)
        roots = (
            nodes.root_name(node.right)
            for node in nodes.walk(body)
            if isinstance(node, nodes.Binary) and node.operator == "/" and isinstance(node.right, nodes.Element)
        )
        return frozenset(name for name in roots if name is not None)

    def _named(self, argument: InferredArgument, passed: str, others: Sequence[str]) -> str:
        """What the problem calls an argument; what two launches pass is one, what one passes twice is two.

        `others`: of the same launch.
        """
        is_array = argument.role not in ("scalar", "local")
        key = (
            (passed, "")
            if is_array
            else (f"{argument.value} {argument.shape}", f"{argument.name} {argument.dtype.name}")
        )
        while self._names.get(key) in others:  # parts of one array, each an array of its own here
            key = key[0], f"{key[1]}'"
        name = self._names.get(key)
        if name is None:
            taken = self._arguments.keys() | self._sizes.keys()
            wanted = argument.name
            name = next(n for n in (wanted, *(f"{wanted}_{i}" for i in range(2, 999))) if n not in taken)
            self._names[key] = name
            self._arguments[name] = replace(argument, name=name)
        elif is_array:
            self._arguments[name] = self._joined(self._arguments[name], argument)
        return name

    def _joined(self, before: InferredArgument, after: InferredArgument) -> InferredArgument:
        """An array that two launches use: what the first does decides whether its content matters."""
        role = before.role
        if before.role == "input" and after.role != "input":
            role = "inout"
        is_larger = self._elements(after) > self._elements(before)
        shape = after.shape if is_larger else before.shape
        return replace(
            before,
            role=role,
            shape=shape,
            bounds=before.bounds or after.bounds,
            note=before.note or after.note,
            chosen=None if None in (before.chosen, after.chosen) else before.chosen or after.chosen,
        )

    def _elements(self, argument: InferredArgument) -> int:
        total = 1
        for each in argument.shape:
            value = self._value(each)
            total *= int(value) if value is not None else 1
        return total


def _names(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", text)) - {"ceil_div", "min", "max", "if", "else"}


def _renamed(text: str, names: Mapping[str, str]) -> str:
    return re.sub(r"[A-Za-z_]\w*", lambda found: names.get(found[0], found[0]), text)

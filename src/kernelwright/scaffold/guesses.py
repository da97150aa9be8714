"""What is guessed of a kernel from its source: sizes, launch, roles, shapes; a person corrects it."""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kernelwright.errors import Location, SpecError
from kernelwright.problem.checks import check_name
from kernelwright.problem.dtypes import DTYPES, Dtype, dtype_of_c_type, is_vector_c_type
from kernelwright.problem.source_scan import macro_definitions, scan_kernels, used_words
from kernelwright.problem.toml.writing import inline_toml
from kernelwright.scaffold.declared_space import DeclaredArgument, DeclaredSpace
from kernelwright.scaffold.signature import (
    KernelParameter,
    KernelSignature,
    PointerUse,
    axis_bounds,
    index_shapes,
    launch_dimensions,
    pointer_uses,
)
from kernelwright.source.language import Language
from kernelwright.source.lexer import MacroDefinition, masked

_BLOCKS: Mapping[int, tuple[tuple[tuple[int, ...], int], ...]] = {
    1: (((32, 64, 128, 256, 512), 256),),
    2: (((1, 2, 4, 8, 16, 32, 64), 16), ((1, 2, 4, 8, 16, 32), 16)),
    3: (((1, 2, 4, 8, 16, 32), 8), ((1, 2, 4, 8, 16), 8), ((1, 2, 4, 8), 4)),
}
"""By launch axes: the values and the default of each block extent; usual choices."""

_BLOCK_WORDS = re.compile(r"BLOCK|GROUP|WG|LOCAL|THREADS|TPB|\bTB\b", re.IGNORECASE)
_AXES = "XYZ"
_INTEGER = re.compile(r"\(?\s*(\d+)\s*[uUlL]*\s*\)?")


@dataclass(frozen=True, slots=True)
class _Guess:
    """One argument of the problem."""

    name: str
    role: str
    dtype: Dtype
    shape: tuple[str, ...]
    value: str
    note: str
    fill: str = ""
    """The constant that fills an array; empty: drawn."""

    @property
    def line(self) -> tuple[str, str, str]:
        """Name, inline table and note, for the problem's file."""
        fields = [f"role = {inline_toml(self.role)}", f"dtype = {inline_toml(self.dtype.name)}"]
        if self.role == "scalar":
            fields.append(f"value = {inline_toml(self.value)}")
        else:
            fields.append(f"shape = {inline_toml(self.shape)}")
            if self.fill:
                fields.append(f"value = {self.fill}")
        return self.name, "{ " + ", ".join(fields) + " }", self.note


@dataclass(frozen=True, slots=True)
class _Block:
    """One block extent: a macro of the source, a new parameter, or a number that the source fixes."""

    text: str
    values: tuple[int, ...] = ()
    """Empty: fixed."""
    default: int = 0


class Guesses:
    """All guesses about one kernel."""

    def __init__(
        self, source: str, path: Path, kernel: KernelSignature, language: Language, space: DeclaredSpace
    ) -> None:
        self.space = space
        self.launch = space.launch()
        """Grid and block as declared."""
        self.source = source
        self.path = path
        self.kernel = kernel
        self.language: Language = language
        self.parameters = kernel.parameters or ()
        self.dimensions = len(self.launch[1]) if self.launch else launch_dimensions(source, kernel, language)
        self.names = argument_names(self.parameters)
        self.sizes = self._guess_sizes()
        self.extents = self._guess_extents()
        self.blocks = self._guess_blocks()
        renamed = {each.name: name for each, name in zip(self.parameters, self.names, strict=True)}
        self.shapes = {
            renamed[name]: tuple(renamed[extent] for extent in shape)
            for name, shape in index_shapes(source, kernel).items()
            if name in renamed and all(renamed[extent] in self.sizes for extent in shape)
        }
        self.declared_sizes: dict[str, int] = {}
        guesses = self._guess_arguments()
        self.order = tuple(guess.name for guess in guesses)
        self.arguments = tuple(guess for guess in guesses if guess.role != "local")
        self.local = tuple(guess for guess in guesses if guess.role == "local")
        """Sized by parameters, so they are the template's own, not the problem's."""
        self.others = tuple(
            each for each in scan_kernels(source, language) if each.name != kernel.name and each.body != kernel.body
        )

    def _guess_sizes(self) -> tuple[str, ...]:
        """The integer scalars; one size `n` when there is none."""
        sizes = [
            name
            for name, parameter in zip(self.names, self.parameters, strict=True)
            if not parameter.is_pointer and self._dtype(parameter)[0].is_integer
        ]
        if sizes:
            return tuple(sizes)
        return (next(name for name in ("n", "size", "count", "n_elements") if name not in self.names),)

    def _guess_extents(self) -> tuple[str, ...]:
        """How many threads are needed along each launch axis, in sizes; x first."""
        renamed = {each.name: name for each, name in zip(self.parameters, self.names, strict=True)}
        bounds = {axis: renamed[name] for axis, name in axis_bounds(self.source, self.kernel, self.language).items()}
        free = [size for size in self.sizes if size not in bounds.values()]
        extents = []
        for axis in range(self.dimensions):
            bound = bounds.get(axis)
            if bound in self.sizes and bound is not None:
                extents.append(bound)
            else:
                extents.append(free.pop(0) if free else self.sizes[0])
        return tuple(extents)

    def _guess_blocks(self) -> tuple[_Block, ...]:
        if self.launch:
            return tuple(_Block(text) for text in self.launch[1])
        fixed = self._required_block()
        if fixed:
            return tuple(_Block(str(extent)) for extent in fixed[: self.dimensions])
        taken = used_words(self.source, self.language) | set(self.names) | set(self.sizes)
        tunable = [
            macro for macro in _tunable_macros(self.source) if _BLOCK_WORDS.search(macro.name)
        ]  # the kernel's own block size, which a launch must agree with
        blocks = []
        for axis, (values, default) in enumerate(_BLOCKS[self.dimensions]):
            if axis < len(tunable) and (len(tunable) == self.dimensions or self.dimensions == 1):
                number = int(tunable[axis].body)
                blocks.append(_Block(tunable[axis].name, _around(number), number))
                continue
            suffix = "" if self.dimensions == 1 else f"_{_AXES[axis]}"
            candidates = (f"{stem}{suffix}" for stem in ("BLOCK", "LAUNCH_BLOCK", "KW_BLOCK"))
            name = next((each for each in candidates if each not in taken), f"KERNELWRIGHT_BLOCK{suffix}")
            blocks.append(_Block(name, values, default))
        return tuple(blocks)

    def _required_block(self) -> tuple[int, ...]:
        """The block that `reqd_work_group_size` fixes with plain numbers; empty when it does not."""
        before = masked(self.source)[: self.kernel.body[0]]
        found = list(re.finditer(r"reqd_work_group_size\s*\(\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\)", before))
        if not found or re.search(r"[;}]", before[found[-1].end() :]):
            return ()
        x, y, z = (int(part) for part in found[-1].groups())
        return x, y, z

    def _guess_arguments(self) -> tuple[_Guess, ...]:
        uses = pointer_uses(self.source, self.kernel)
        guesses = tuple(
            self._guess_argument(name, parameter, uses.get(parameter.name, PointerUse(is_passed_on=True)))
            for name, parameter in zip(self.names, self.parameters, strict=True)
        )
        declared = [
            self.space.argument(parameter.name, index, len(guesses)) for index, parameter in enumerate(self.parameters)
        ]
        for guess, said in zip(guesses, declared, strict=True):
            if guess.role == "scalar" and guess.dtype.is_integer and said.value is not None and said.value >= 1:
                self.declared_sizes[guess.name] = int(said.value)
        return tuple(self._as_declared(guess, said) for guess, said in zip(guesses, declared, strict=True))

    def _as_declared(self, guess: _Guess, declared: DeclaredArgument) -> _Guess:
        """A guess, corrected by what the declared space says of the argument."""
        if guess.role == "scalar" and declared.value is not None and not guess.dtype.is_integer:
            return replace(guess, value=repr(declared.value), note="")
        if guess.role in ("scalar", "local"):
            return guess
        if declared.role is not None:
            guess = replace(guess, role=declared.role)
        if declared.value is not None and guess.role in ("input", "inout"):
            guess = replace(guess, fill=repr(declared.value))
        known = [self.declared_sizes.get(extent, 0) for extent in guess.shape]
        if declared.element_count and math.prod(known) != declared.element_count:
            guess = replace(guess, shape=(str(declared.element_count),), note=f"as {self.space.origin} has it, flat")
        return guess

    def _guess_argument(self, name: str, parameter: KernelParameter, use: PointerUse) -> _Guess:
        dtype, note = self._dtype(parameter)
        if not parameter.is_pointer:
            if dtype.is_integer:
                return _Guess(name, "scalar", dtype, (), name, note)
            note = note or "guess: give its value"
            return _Guess(name, "scalar", dtype, (), "1" if dtype.kind == "bool" else "1.0", note)
        if parameter.address_space == "local":
            return _Guess(
                name, "local", dtype, tuple(block.text for block in self.blocks), "", note or "guess: one a thread"
            )
        shape = self.shapes.get(name) or (
            tuple(reversed(self.extents)) if len(set(self.extents)) == len(self.extents) else self.extents[:1]
        )
        if is_vector_c_type(parameter.c_type, self.language):
            note = note or f"{parameter.c_type}: count single {dtype.name} values"
        return _Guess(name, _role(parameter, use), dtype, shape, "", note or "guess: correct the shape")

    def _dtype(self, parameter: KernelParameter) -> tuple[Dtype, str]:
        """The dtype of a parameter, and a note where it is a guess."""
        found = dtype_of_c_type(parameter.c_type, self.language)
        if found is not None:
            return found, ""
        text = masked(self.source)
        name = re.escape(parameter.c_type)
        for pattern in (rf"#\s*define\s+{name}\s+([^\n]+)", rf"\btypedef\s+([\w\s]+?)\s+{name}\s*;",
                        rf"\busing\s+{name}\s*=\s*([\w\s:]+?)\s*;"):  # fmt: skip
            alias = re.search(pattern, text)
            if alias and (found := dtype_of_c_type(alias[1].strip(), self.language)) is not None:
                return found, ""
        return DTYPES["float32"], f"guess: the source's type is {parameter.c_type}"


def argument_names(parameters: Sequence[KernelParameter]) -> tuple[str, ...]:
    """The kernel's own names, where the problem's files can use them."""
    names: list[str] = []
    for index, parameter in enumerate(parameters):
        name = python_name(parameter.name or f"argument_{index}")
        while name in names:
            name += "_"
        names.append(name)
    return tuple(names)


def python_name(name: str) -> str:
    """`name`, or with `_` behind where Python, C or the expression language uses the word."""
    try:
        check_name(name, what="argument", location=Location(Path()))
    except SpecError:
        return f"{name}_"
    return f"{name}_" if keyword.issoftkeyword(name) and name != "_" else name


def _role(parameter: KernelParameter, use: PointerUse) -> str:
    if parameter.is_const or parameter.address_space == "constant":
        return "input"
    if use.is_written:
        return "inout" if use.is_read_first else "output"
    return "input" if use.is_read and not use.is_passed_on else "output"


def _tunable_macros(source: str) -> Iterator[MacroDefinition]:
    """Macros that are whole numbers and that a definition from outside replaces."""
    words = used_words(source, "cuda")
    seen: set[str] = set()
    for macro in macro_definitions(source):
        number = _INTEGER.fullmatch(macro.body)
        if number and int(number[1]) > 0 and macro.name in words and macro.name not in seen:
            seen.add(macro.name)
            if macro.is_guarded:
                yield replace(macro, body=number[1])


def _around(number: int) -> tuple[int, ...]:
    """A few values to try beside a number that works today."""
    if number & (number - 1):
        return (number,)
    return tuple(value for value in (number // 4, number // 2, number, number * 2, number * 4) if value >= 1)

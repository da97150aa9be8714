"""A problem folder from a kernel's source and a declared space: what `kernelwright init` writes for a T1 file.

What the file does not declare is a guess that a person corrects: each guess says so in a comment. What is written
loads as it is.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelwright.errors import Location, SpecError
from kernelwright.problem.dtypes import dtype_of_c_type, integer_range, is_vector_c_type
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.source_scan import (
    used_words,
)
from kernelwright.problem.toml.file import read_text
from kernelwright.problem.toml.writing import inline_toml
from kernelwright.scaffold.declared_space import DeclaredSpace
from kernelwright.scaffold.guesses import Guesses, python_name
from kernelwright.scaffold.signature import (
    KernelSignature,
    find_kernel,
)
from kernelwright.source.language import LANGUAGE_OF_SUFFIX, Language
from kernelwright.source.lexer import masked
from kernelwright.space.parameter import Parameter
from kernelwright.template.header_tables import parameter_text

_SIZE_BY_DIMENSIONS = (1 << 20, 1024, 128)
"""A first workload of some megabytes an array, for arrays or launches of 1 to 3 axes."""

SHARED_ARRAY = re.compile(r"\bextern\s+__shared__\s+(?:(?:__align__|alignas)\s*\([^)]*\)\s*)?([\w\s]+?)\s*\w+\s*\[")


@dataclass(frozen=True, slots=True)
class _Scaffold:
    """The files of a new problem folder, by name."""

    files: Mapping[str, str]
    entry: str
    """The kernel they are for."""
    notes: tuple[str, ...] = ()
    """What was left out, and why; one sentence each, for the person who asked."""


def scaffold_problem(source_path: Path, space: DeclaredSpace, *, entry: str | None = None) -> _Scaffold:
    """`problem.toml`, `reference.py` and a template of the source, for one kernel.

    The template is the source, byte for byte, below a header. Parameters, conditions, launch and data are what
    `space` declares. For the rest, roles come from `const` and from what the body reads and writes, sizes from the
    integer scalars, the launch from the axes that the kernel asks for.

    Raises:
        SpecError: the file is missing or in no language that is read here, defines no kernel, several kernels
            without an `entry`, or one whose parameters cannot be read or be given by a problem.
    """
    language = LANGUAGE_OF_SUFFIX.get(source_path.suffix)
    if language is None or language == "triton":
        raise SpecError(
            f"cannot read a signature from {source_path}" + (", which is a folder" if source_path.is_dir() else ""),
            hint="give an OpenCL, CUDA or HIP source: .cl, .cu or .hip",
        )
    source = read_text(source_path, what="the kernel source")
    refuse_header(source, source_path)
    kernel = find_kernel(source, language, file=source_path, entry=entry)
    refuse_impossible_values(source, kernel, language, source_path)
    draft = _Draft(source, source_path, kernel, language, space)
    if not any(guess.role in ("output", "inout") for guess in draft.arguments):
        raise SpecError(
            f"kernel {kernel.name!r} writes to none of its arguments, so there is nothing to check",
            hint="a result goes to a pointer that is not const",
            location=Location(source_path, kernel.line),
        )
    return _Scaffold(
        {
            "problem.toml": draft.problem_text(),
            "reference.py": draft.reference_text(),
            source_path.name: draft.template_text(),
        },
        kernel.name,
        tuple(draft.notes),
    )


def refuse_header(source: str, file: Path) -> None:
    """Refuse a source that is a template already.

    Raises:
        SpecError: it is.
    """
    if re.search(r"^[ \t]*(?://|\*)?[ \t]*///[ \t]*kernelwright[ \t]*$", source, re.MULTILINE):
        raise SpecError(
            f"{file.name} already has a template header",
            hint="write problem.toml beside it, or give the plain kernel",
        )


_NO_VALUES: Mapping[str, str] = {"bool": "int", "half": "float", "size_t": "ulong", "ptrdiff_t": "long"}
"""Types that OpenCL does not allow for kernel arguments by value, and what to take instead."""


def refuse_impossible_values(source: str, kernel: KernelSignature, language: Language, file: Path) -> None:
    """Refuse by-value parameters that no scalar of a problem can be: vectors, structures, types OpenCL forbids."""
    text = masked(source)
    for parameter in kernel.parameters or ():
        if parameter.is_pointer:
            continue
        name = parameter.c_type.removeprefix("struct ").strip()
        word = re.escape(name)
        if is_vector_c_type(name, language):
            what, hint = "a vector", "pass its components as scalars of their own"
        elif name in _NO_VALUES and language == "opencl":
            what, hint = "a type that OpenCL does not allow by value", f"take `{_NO_VALUES[name]}` in the kernel"
        elif re.search(rf"\bstruct\s+{word}\b|\bstruct\b[^;{{]*{{[^}}]*}}\s*{word}\s*;", text):
            what, hint = "a structure", "pass its members as scalars and pointers of their own"
        elif re.search(r"image\d|sampler_t|\bpipe\b|texture|queue_t|cudaTextureObject", name):
            what, hint = "an image, sampler, texture or pipe", "only buffers and numbers can be given to a kernel"
        else:
            continue
        raise SpecError(
            f"parameter {parameter.name!r} of {kernel.name!r} is `{parameter.c_type}` by value: {what}, which no "
            "argument of a problem can be",
            hint=hint,
            location=Location(file, parameter.line),
        )


class _Draft(Guesses):
    """The files of one kernel's problem, from the guesses about it."""

    def __init__(
        self, source: str, path: Path, kernel: KernelSignature, language: Language, space: DeclaredSpace
    ) -> None:
        super().__init__(source, path, kernel, language, space)
        self.notes = self._notes()
        self.header_lines = tuple(self._header_lines())

    def _notes(self) -> list[str]:
        """What this problem leaves out of the source."""
        notes = []
        if self.launch is None:
            notes.append(
                f"the launch in {self.space.origin} is not in the parameters alone, so grid and block are guesses: "
                f"it says grid {', '.join(self.space.grid)}, block {', '.join(self.space.block)}"
            )
        if self.others:
            named = ", ".join(
                f"{each.name} (line {each.line}: {', '.join(p.name for p in each.parameters or ()) or 'no parameters'})"
                for each in self.others
            )
            notes.append(
                f"left out, with the arguments that only they take: {named}. A new problem launches one kernel, here "
                f"{self.kernel.name}. If others belong to the same work, add their arguments to [arguments] and write "
                "a [[launch]] for each in the header, in order, with its own arguments = [...]"
            )
        if self.local:
            notes.append(
                f"local memory is sized by parameters, so {', '.join(guess.name for guess in self.local)} stands under "
                "[scratch] in the header of the kernel source"
            )
        return notes

    def problem_text(self) -> str:
        """`problem.toml`."""
        lines = [
            f"# What {self.kernel.name} computes, on which sizes. Written from its signature: correct what says guess.",
            f"name = {inline_toml(_safe_name(self.kernel.name))}",
            f"kernel = {inline_toml(self.path.name)}",
            f"entry = {inline_toml(self.kernel.name)}",
            f"reference = {inline_toml(f'reference.py:{self._function_name()}')}",
            *self._option_lines(),
            "",
            *(line for note in self.notes for line in _commented(note)),
            "# In the kernel's order. Roles: input, output, inout (read and written), scalar, scratch.",
            "# Shapes are in sizes, outermost extent first, like [\"rows\", \"2 * cols\"].",
            "[arguments]",
            *_aligned([each.line for each in self.arguments]),
            "",
            "# The launch is in the header of the kernel source, since it depends on parameters.",
            "",
            "# How wrong an output may be; derived when left out.",
            "# [tolerance]",
            f"# {self._outputs()[0]} = {{ rtol = 1e-5, atol = 1e-6, because = \"...\" }}",
            "",
            "# The sizes that matter, each with a weight (1 when left out); add more [[workloads]].",
            "[[workloads]]",
            *(f"{size} = {value}" for size, value in self._workload().items()),
            "",
        ]  # fmt: skip
        return "\n".join(lines)

    def _option_lines(self) -> list[str]:
        options = [each.replace("{", "{{").replace("}", "}}") for each in self.space.options]
        return [f"options = {inline_toml(options)}"] if options else []

    def _workload(self) -> dict[str, int]:
        """A value for each size: some megabytes an array, and what the size's own type can hold."""
        arrays = [len(guess.shape) for guess in self.arguments if guess.role != "scalar"]
        value = _SIZE_BY_DIMENSIONS[max(self.dimensions, *arrays, 1) - 1]
        largest = {
            guess.name: integer_range(guess.dtype)[1]
            for guess in self.arguments
            if guess.dtype.is_integer and guess.value
        }
        sizes = {size: value if size in self.extents else min(value, 1024) for size in self.sizes}
        return {
            size: self.declared_sizes.get(size) or _power_below(min(number, largest.get(size, number)))
            for size, number in sizes.items()
        }

    def _outputs(self) -> list[str]:
        return [guess.name for guess in self.arguments if guess.role in ("output", "inout")] or ["out"]

    def _function_name(self) -> str:
        return python_name(self.kernel.name)

    def reference_text(self) -> str:
        """`reference.py`."""
        asked = [guess.name for guess in self.arguments if guess.role in ("input", "inout", "scalar")]
        outputs = [guess for guess in self.arguments if guess.role in ("output", "inout")]
        returns = ", ".join(f"{guess.name} ({', '.join(guess.shape)})" for guess in outputs)
        message = f"fill in {self._function_name()} in reference.py: return {', '.join(self._outputs())}"
        lines = [
            f'"""What `{self.kernel.name}` must compute: the definition of right that every candidate is checked '
            'against."""',
            "",
            "import numpy as np",
            "",
            "",
            f"def {self._function_name()}({', '.join(asked)}):",
            f'    """Return {returns}, as one array or a tuple in this order.',
            "",
            "    Float arrays come as float64 and integers as int64, so that the result is exact; scalars are numbers.",
            "    Parameters are asked for by name: leave out what you do not need, ask for sizes if you do.",
            '    """',
            *(f"    # {guess.name}: array of shape ({', '.join(guess.shape)})" for guess in self.arguments
              if guess.role in ("input", "inout")),
            f"    # example: return np.exp({asked[0] if asked else 'x'})",
            f"    raise NotImplementedError({json.dumps(message, ensure_ascii=False)})",
            "",
        ]  # fmt: skip
        return "\n".join(lines)

    def template_text(self) -> str:
        """The source, unchanged, below a header."""
        newline = "\r\n" if "\r\n" in self.source else "\n"
        header = newline.join(f"// {line}".rstrip() for line in self.header_lines)
        return header + newline + newline + self.source

    def _header_lines(self) -> Iterator[str]:
        yield "/// kernelwright"
        yield "# Parameters reach the kernel as macros (-D); the file still compiles by hand."
        yield "[parameters]"
        yield from self._declared_lines()
        yield from self._launch_lines()
        if self.local:
            yield "# Local memory is an argument; what has another size for each configuration is declared here."
            yield "[scratch]"
            yield from _aligned([guess.line for guess in self.local])
        yield "///"

    def _declared_lines(self) -> Iterator[str]:
        """Parameters and constraints as they are declared, without those that nothing uses."""
        space = self.space
        used = set(used_words(self.source, self.language)) | self._launch_names()
        parameters, constraints, notes = space.restricted(used)
        self.notes += notes
        yield from (f"{each.name} = {parameter_text(each)}" for each in parameters)
        for block in self.blocks:  # guessed, where no launch is declared
            if block.values and block.text not in space.names:
                yield f"{block.text} = {parameter_text(Parameter(block.text, block.values, block.default))}"
        if constraints:
            yield "[constraints]"
            yield from (f"{each.name} = {inline_toml(each.expression.text)}" for each in constraints)

    def _launch_names(self) -> set[str]:
        texts = [*self.launch[0], *self.launch[1]] if self.launch else [block.text for block in self.blocks]
        return {name for text in texts for name in Expression.parse(text).names}

    def _launch_lines(self) -> Iterator[str]:
        yield "[launch]"
        grid: Sequence[str] = [
            f"ceil_div({extent}, {block.text})" for extent, block in zip(self.extents, self.blocks, strict=True)
        ]
        note = "  # guess: blocks along x, y, z"
        if self.launch:
            grid, note = self.launch[0], ""
        yield f"grid = {inline_toml(list(grid))}{note}"
        yield f"block = {inline_toml([block.text for block in self.blocks])}"
        if self.local and self.order[len(self.arguments) :] != tuple(guess.name for guess in self.local):
            yield f"arguments = {inline_toml(self.order)}"
        shared = self._shared_bytes()
        if shared is not None:
            item_bytes, note = shared
            size = " * ".join(block.text for block in self.blocks)
            yield f"shared_bytes = {inline_toml(f'{item_bytes} * {size}')}  # guess: {note}"

    def _shared_bytes(self) -> tuple[int, str] | None:
        """Bytes of dynamic shared memory for one thread, and why; None where this kernel can see none."""
        if self.language == "opencl":
            return None
        for found in SHARED_ARRAY.finditer(masked(self.source)):
            if any(start <= found.start() < end for start, end in (each.body for each in self.others)):
                continue  # declared in another kernel
            dtype = dtype_of_c_type(" ".join(found[1].split()), self.language)
            if dtype is None:
                return 4, "4 bytes a thread"
            return dtype.item_bytes, f"one {dtype.name} a thread"
        return None


def _commented(text: str) -> list[str]:
    """A sentence as comment lines of a TOML file."""
    return [f"# {line}" for line in textwrap.wrap(text[0].upper() + text[1:] + ".", 116)]


def _power_below(number: int) -> int:
    return 1 << (number.bit_length() - 1)


def _aligned(rows: Sequence[tuple[str, str, str]]) -> list[str]:
    width = max((len(name) for name, _, _ in rows), default=0)
    return [f"{name.ljust(width)} = {value}" + (f"  # {note}" if note else "") for name, value, note in rows]


def _safe_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).lstrip("_.-") or "problem"

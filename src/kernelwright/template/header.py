"""The self-describing header of a template: a TOML block in the first comment of the source, read, edited and written.

```c
// /// kernelwright
// [parameters]
// BLOCK = { values = [64, 128, 256], default = 128 }
// ///
```

It may also stand in a block comment, with or without a `*` before each line, and after `#` in Python sources.

```
header = parse_header(text, file, entry="softmax")
header = header.with_parameters(Parameter("ROWS", (1, 2, 4), 1, "rows of one block"))
header = header.with_constraint("rows", "ROWS <= 4").relaunched("softmax", grid=("ceil_div(n, ROWS)",), block=("64",))
text = header.render() + strip_header(text)          # parse_header(header.render(), ...) == header
```
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from kernelwright.errors import Location, SpecError
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.load.launches import read_steps
from kernelwright.problem.model import Argument, LaunchStep
from kernelwright.problem.options import read_options
from kernelwright.problem.toml.file import parse_toml
from kernelwright.source.language import LANGUAGE_OF_SUFFIX
from kernelwright.space.parameter import Constraint, Parameter
from kernelwright.template.header_tables import (
    constraint_lines,
    define_lines,
    launch_lines,
    option_lines,
    parameter_lines,
    read_constraints,
    read_defines,
    read_parameters,
    read_scratch,
    scratch_lines,
)

_KEYS = ("parameters", "constraints", "launch", "defines", "scratch", "options")
_HINTS = {
    "params": "did you mean 'parameters'?",
    "arguments": "arguments belong into problem.toml; a template adds only [scratch]",
    "workloads": "workloads belong into problem.toml",
}


@dataclass(frozen=True, slots=True)
class Header:
    """What a template's header declares; all empty for a plain source. Equal to another that declares the same."""

    parameters: tuple[Parameter, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    """In order: a later one may rely on an earlier one."""
    steps: tuple[LaunchStep, ...] = ()
    """Empty: the problem's launches hold."""
    defines: Mapping[str, Expression] = field(default_factory=dict)
    scratch: tuple[Argument, ...] = ()
    options: tuple[str, ...] = ()
    """In addition to the problem's."""
    mark: Literal["//", "#"] = field(default="//", compare=False)
    """What a line of comment begins with in the source's language."""
    location: Location | None = field(default=None, compare=False)
    """The opening line; None when there is no header."""
    last_line: int = field(default=0, compare=False)

    @property
    def entries(self) -> tuple[str, ...]:
        """The kernels that are launched, by name without template arguments, each once."""
        return tuple(dict.fromkeys(step.entry.partition("<")[0].strip() for step in self.steps))

    def parameter(self, name: str) -> Parameter | None:
        """The declared parameter of that name."""
        return next((each for each in self.parameters if each.name == name), None)

    def with_parameters(self, *parameters: Parameter) -> Header:
        """With more parameters; one that has the name of a declared one replaces it."""
        new = {each.name: each for each in parameters}
        kept = tuple(new.pop(each.name, each) for each in self.parameters)
        return replace(self, parameters=(*kept, *new.values()))

    def with_constraint(self, name: str, condition: str) -> Header:
        """With one more condition; a name that is taken gets a number.

        Raises:
            SpecError: the condition is no expression.
        """
        new = Constraint(name, Expression.parse(condition))
        if new in self.constraints:
            return self
        taken = {each.name for each in self.constraints}
        free = next(each for each in (name, *(f"{name}_{n}" for n in range(2, 999))) if each not in taken)
        return replace(self, constraints=(*self.constraints, replace(new, name=free)))

    def without_constraint(self, name: str) -> Header:
        """Without one condition."""
        return replace(self, constraints=tuple(each for each in self.constraints if each.name != name))

    def with_define(self, name: str, expression: str) -> Header:
        """With one more computed macro.

        Raises:
            SpecError: it is no expression.
        """
        return replace(self, defines={**self.defines, name: Expression.parse(expression)})

    def with_scratch(self, scratch: Argument, *entries: str) -> Header:
        """With one more argument, last of the launches of `entries`."""
        steps = tuple(
            replace(step, arguments=(*step.arguments, scratch.name))
            if step.entry in entries and step.arguments is not None
            else step
            for step in self.steps
        )
        return replace(self, scratch=(*self.scratch, scratch), steps=steps)

    def with_options(self, *options: str) -> Header:
        """With more compile options."""
        return replace(self, options=(*self.options, *(each for each in options if each not in self.options)))

    def relaunched(
        self,
        entry: str,
        *,
        grid: Iterable[str | Expression],
        block: Iterable[str | Expression],
        shared_bytes: str | None = None,
    ) -> Header:
        """With another shape for every launch of `entry`; all else of them stays.

        Raises:
            SpecError: an extent is no expression.
        """
        new_grid, new_block = expressions(grid), expressions(block)
        shared = None if shared_bytes is None else Expression.parse(shared_bytes)
        steps = tuple(
            replace(step, grid=new_grid, block=new_block, shared_bytes=shared or step.shared_bytes)
            if step.entry == entry
            else step
            for step in self.steps
        )
        return replace(self, steps=steps)

    def render(self) -> str:
        """The header in lines of comment, an empty line after it; places are not kept."""
        lines = (
            "/// kernelwright",
            *option_lines(self.options),
            *parameter_lines(self.parameters),
            *constraint_lines(self.constraints),
            *define_lines(self.defines),
            *scratch_lines(self.scratch),
            *launch_lines(self.steps, has_block=self.mark != "#"),
            "///",
        )
        return "".join(f"{self.mark} {line}\n" for line in lines) + "\n"


def expressions(texts: Iterable[str | Expression]) -> tuple[Expression, ...]:
    """Texts as expressions.

    Raises:
        SpecError: one is none.
    """
    return tuple(each if isinstance(each, Expression) else Expression.parse(each) for each in texts)


def launch_step(
    entry: str,
    grid: Iterable[str],
    block: Iterable[str],
    shared_bytes: str | None = None,
    arguments: tuple[str, ...] | None = None,
) -> LaunchStep:
    """One launch; extents are expressions in sizes, parameters and `device.*`, x first.

    Raises:
        SpecError: an extent is no expression.
    """
    shared = None if shared_bytes is None else Expression.parse(shared_bytes)
    return LaunchStep(entry, expressions(grid), expressions(block), shared, arguments)


def scratch_argument(
    name: str, dtype: str, shape: Iterable[str], role: Literal["scratch", "local"] = "scratch"
) -> Argument:
    """One more argument: `scratch` is global memory, `local` OpenCL's.

    Raises:
        SpecError: an extent is no expression.
    """
    return Argument(name, role, dtype, expressions(shape), fresh="keep")


def parse_header(text: str, file: Path, *, entry: str | None = None) -> Header:
    """The header in a source's text, or an empty one.

    Only the header itself is checked: whether it fits the problem and the source is for `template.load`.

    Args:
        text: the whole source.
        file: where it is, for complaints.
        entry: the kernel of launches that name none.

    Raises:
        SpecError: the header is not closed, is not TOML, or declares something wrong, with the line of the source.
    """
    found = _find_block(text, file)
    if found is None:
        return Header(mark="#" if LANGUAGE_OF_SUFFIX.get(file.suffix) == "triton" else "//")
    root = parse_toml(found.toml, file, origins=found.origins).root
    root.refuse_unknown(_KEYS, what="a template header", hints=_HINTS)
    header = Header(
        parameters=read_parameters(root.table("parameters")),
        constraints=read_constraints(root.table("constraints")),
        steps=read_steps(root, entry=entry, is_triton=found.mark == "#"),
        defines=read_defines(root.table("defines")),
        scratch=read_scratch(root.table("scratch"), folder=file.parent),
        options=read_options(root) or (),
        mark=found.mark,
        location=found.location,
        last_line=found.last + 1,
    )
    return _without_names_of_defines(header) if header.defines else header


def _without_names_of_defines(header: Header) -> Header:
    """With the expression of a define wherever a constraint, a launch or a shape says its name.

    Raises:
        SpecError: an expression becomes too long.
    """

    def plain(expression: Expression) -> Expression:
        return expression.with_names_replaced(header.defines)

    steps = tuple(
        replace(
            step,
            grid=tuple(map(plain, step.grid)),
            block=tuple(map(plain, step.block)),
            cluster=tuple(map(plain, step.cluster)),
            shared_bytes=step.shared_bytes and plain(step.shared_bytes),
        )
        for step in header.steps
    )
    return replace(
        header,
        constraints=tuple(replace(each, expression=plain(each.expression)) for each in header.constraints),
        steps=steps,
        scratch=tuple(replace(each, shape=tuple(map(plain, each.shape))) for each in header.scratch),
    )


def header_toml(text: str) -> str:
    """The TOML of a source's header without its comment marks and empty lines; empty where none can be read."""
    found = _readable_block(text)
    return "" if found is None else "\n".join(line for line in found.toml.split("\n") if line.strip())


def strip_header(text: str) -> str:
    """A source's text without its header, in whichever style of comment; as it is where none can be read."""
    found = _readable_block(text)
    if found is None:
        return text
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    kept = lines[: found.first]
    if "/*" in lines[found.first]:
        kept.append("/*\n")
    if "*/" in lines[found.last]:
        kept.append("*/\n")
    rest = lines[found.last + 1 :]
    if not kept and rest and not rest[0].strip():
        rest = rest[1:]
    return "".join((*kept, *rest))


# Finding the block

_OPENING = re.compile(r"^(?P<prefix>[ \t]*+(?://+|#+|/\*+|\*+)?[ \t]*+)///[ \t]*kernelwright[ \t]*$")
_NEARLY_OPENING = re.compile(r"^[ \t]*+(?://|#|/\*+|\*)?[ \t]*+///[ \t]*(?P<word>[A-Za-z_-]+)[ \t]*$")
_LINE_PREFIX = {"//": re.compile(r"[ \t]*//+ ?"), "#": re.compile(r"[ \t]*#+ ?")}
_LINE_CLOSING = {"//": re.compile(r"[ \t]*//[ \t]*///[ \t]*$"), "#": re.compile(r"[ \t]*#[ \t]*///[ \t]*$")}
_BLOCK_PREFIX = re.compile(r"(?:[ \t]*\*(?!/) ?)?")
_BLOCK_CLOSING = re.compile(r"[ \t]*\*?[ \t]*///[ \t]*(?:\*/)?[ \t]*$")


@dataclass(frozen=True, slots=True)
class _Block:
    """A header's lines; counted from 0."""

    toml: str
    """Without comment marks."""
    origins: tuple[tuple[int, int], ...]
    """Where each line of it comes from."""
    location: Location
    mark: Literal["//", "#"]
    """Of a line of comment in this language."""
    first: int
    """The line that opens it."""
    last: int
    """The line that closes it."""


def _readable_block(text: str) -> _Block | None:
    try:
        return _find_block(text, Path("template"))
    except SpecError:
        return None


def _find_block(text: str, file: Path) -> _Block | None:
    """The header's lines; None where there is none."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    openings = [index for index, line in enumerate(lines) if _OPENING.match(line)]
    if not openings:
        _refuse_misspelt(lines, file)
        return None
    if len(openings) > 1:
        raise SpecError(
            f"a second header opens; the first is at line {openings[0] + 1}",
            hint="keep one `/// kernelwright` block",
            location=Location(file, openings[1] + 1),
        )
    start = openings[0]
    location = Location(file, start + 1)
    style = _style(lines, start, location)
    prefix, closing = (_BLOCK_PREFIX, _BLOCK_CLOSING) if style == "*" else (_LINE_PREFIX[style], _LINE_CLOSING[style])
    block: list[str] = []
    origins: list[tuple[int, int]] = []
    for index in range(start + 1, len(lines)):
        line = lines[index]
        if closing.match(line):
            return _Block("\n".join(block), tuple(origins), location, "#" if style == "#" else "//", start, index)
        match = prefix.match(line)
        if match is None or (style == "*" and "*/" in line):
            break
        block.append(line[match.end() :])
        origins.append((index + 1, match.end()))
    raise _unclosed(start, len(block), style, location)


def _style(lines: list[str], start: int, location: Location) -> str:
    """`//`, `#`, or `*` for a block comment."""
    match = _OPENING.match(lines[start])
    assert match is not None
    prefix = match["prefix"].strip()
    if prefix.startswith(("//", "#")):
        return prefix[:2] if prefix.startswith("//") else "#"
    before = "\n".join([*lines[:start], match["prefix"]])
    if before.rfind("/*") <= before.rfind("*/"):
        raise SpecError(
            "the header's opening line is not in a comment of its own",
            hint="write `// /// kernelwright`, and `// ` before every line of the header",
            location=location,
        )
    return "*"


def _unclosed(start: int, count: int, style: str, location: Location) -> SpecError:
    last = start + 1 + count
    mark = {"//": "// ///", "#": "# ///", "*": "///"}[style]
    return SpecError(
        f"the header is not closed: line {last + 1} is not part of it, and no `{mark}` came before",
        hint=f"close the header with a line `{mark}`"
        + ("" if style == "*" else f", and start every line of it with `{style}`"),
        location=location,
    )


def _refuse_misspelt(lines: list[str], file: Path) -> None:
    for index, line in enumerate(lines):
        match = _NEARLY_OPENING.match(line)
        if match and difflib.SequenceMatcher(None, match["word"].lower(), "kernelwright").ratio() > 0.7:
            raise SpecError(
                f"this looks like a header but says {match['word']!r}",
                hint="write `/// kernelwright`",
                location=Location(file, index + 1),
            )

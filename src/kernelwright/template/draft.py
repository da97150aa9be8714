"""What a rewritten kernel's header declares, as data, and its text: a comment in TOML.

Drafts are edited by their methods, which give new drafts:

```
draft = draft.with_parameters(Parameter("ROWS", (1, 2, 4), 1, "rows of one block"))
draft = draft.with_constraint("rows", "ROWS <= 4").relaunched("softmax", grid=("ceil_div(rows, ROWS)",), block=("64",))
text = draft.render() + source
```
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from kernelwright.problem.config import Value
from kernelwright.problem.model import LaunchStep
from kernelwright.space.parameter import Parameter


@dataclass(frozen=True, slots=True)
class StepDraft:
    """One launch; extents are expressions in sizes, parameters and `device.*`, x first."""

    entry: str
    grid: tuple[str, ...]
    block: tuple[str, ...]
    shared_bytes: str | None = None
    arguments: tuple[str, ...] | None = None
    """Names in the kernel's order; None: all of the problem's, then the scratch."""

    @staticmethod
    def of(step: LaunchStep) -> StepDraft:
        """A loaded launch."""
        return StepDraft(
            step.entry,
            tuple(extent.text for extent in step.grid),
            tuple(extent.text for extent in step.block),
            None if step.shared_bytes is None else step.shared_bytes.text,
            step.arguments,
        )


@dataclass(frozen=True, slots=True)
class ScratchDraft:
    """One more argument."""

    name: str
    dtype: str
    shape: tuple[str, ...]
    role: str = "scratch"
    """`scratch` (global memory) or `local` (OpenCL)."""


@dataclass(frozen=True, slots=True)
class HeaderDraft:
    """Everything that a template's header can declare."""

    parameters: tuple[Parameter, ...] = ()
    constraints: tuple[tuple[str, str], ...] = ()
    """Name and condition, in order: a later one may rely on an earlier one."""
    steps: tuple[StepDraft, ...] = ()
    defines: tuple[tuple[str, str], ...] = ()
    """Name and expression."""
    scratch: tuple[ScratchDraft, ...] = ()
    options: tuple[str, ...] = ()

    def parameter(self, name: str) -> Parameter | None:
        """The declared parameter of that name."""
        return next((each for each in self.parameters if each.name == name), None)

    def with_parameters(self, *parameters: Parameter) -> HeaderDraft:
        """With more parameters; one that has the name of a declared one replaces it."""
        new = {each.name: each for each in parameters}
        kept = tuple(new.pop(each.name, each) for each in self.parameters)
        return replace(self, parameters=(*kept, *new.values()))

    def with_constraint(self, name: str, condition: str) -> HeaderDraft:
        """With one more condition; a name that is taken gets a number."""
        taken = {each for each, _ in self.constraints}
        if (name, condition) in self.constraints:
            return self
        free = next(each for each in (name, *(f"{name}_{n}" for n in range(2, 999))) if each not in taken)
        return replace(self, constraints=(*self.constraints, (free, condition)))

    def without_constraint(self, name: str) -> HeaderDraft:
        """Without one condition."""
        return replace(self, constraints=tuple(each for each in self.constraints if each[0] != name))

    def with_define(self, name: str, expression: str) -> HeaderDraft:
        """With one more computed macro."""
        return replace(self, defines=(*self.defines, (name, expression)))

    def with_scratch(self, scratch: ScratchDraft, *entries: str) -> HeaderDraft:
        """With one more argument, last of the launches of `entries`."""
        steps = tuple(
            replace(step, arguments=(*step.arguments, scratch.name))
            if step.entry in entries and step.arguments is not None
            else step
            for step in self.steps
        )
        return replace(self, scratch=(*self.scratch, scratch), steps=steps)

    def with_options(self, *options: str) -> HeaderDraft:
        """With more compile options."""
        return replace(self, options=(*self.options, *(each for each in options if each not in self.options)))

    def relaunched(
        self,
        entry: str,
        *,
        grid: tuple[str, ...],
        block: tuple[str, ...],
        shared_bytes: str | None = None,
    ) -> HeaderDraft:
        """With another shape for every launch of `entry`; the arguments stay."""
        steps = tuple(
            replace(step, grid=grid, block=block, shared_bytes=shared_bytes or step.shared_bytes)
            if step.entry == entry
            else step
            for step in self.steps
        )
        return replace(self, steps=steps)

    def render(self) -> str:
        """The header as `//` lines, an empty line after it."""
        lines = ["/// kernelwright", *self._lines(), "///"]
        return "".join(f"// {line}\n" for line in lines) + "\n"

    def _lines(self) -> Iterator[str]:
        if self.options:
            yield f"options = {_texts(self.options)}"
        if self.parameters:
            yield "[parameters]"
            yield from _aligned((each.name, _parameter(each)) for each in self.parameters)
        if self.constraints:
            yield "[constraints]"
            yield from _aligned((name, _text(condition)) for name, condition in self.constraints)
        if self.defines:
            yield "[defines]"
            yield from _aligned((name, _text(expression)) for name, expression in self.defines)
        if self.scratch:
            yield "[scratch]"
            yield from _aligned((each.name, _scratch(each)) for each in self.scratch)
        for step in self.steps:
            yield "[[launch]]" if len(self.steps) > 1 else "[launch]"
            yield from _aligned(_step(step))


_OPENING = re.compile(r"^(?P<prefix>[ \t]*(?://+|#+|/\*+|\*+)?[ \t]*)///[ \t]*kernelwright[ \t]*$")
_CLOSING = re.compile(r"^[ \t]*(?://+|#+|\*)?[ \t]*///[ \t]*(?P<end>\*/)?[ \t]*$")


def strip_header(source: str) -> str:
    """A template's text without its `/// kernelwright` block, in whichever style of comment."""
    lines = source.splitlines(keepends=True)
    opening = next((i for i, line in enumerate(lines) if _OPENING.match(line.rstrip("\r\n"))), None)
    if opening is None:
        return source
    for index in range(opening + 1, len(lines)):
        closing = _CLOSING.match(lines[index].rstrip("\r\n"))
        if closing is None:
            continue
        kept = [*lines[:opening]]
        if "/*" in lines[opening]:
            kept.append("/*\n")
        if closing["end"]:
            kept.append("*/\n")
        rest = lines[index + 1 :]
        if not kept and rest and not rest[0].strip():
            rest = rest[1:]
        return "".join((*kept, *rest))
    return source


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _texts(values: Iterable[str]) -> str:
    return "[" + ", ".join(map(_text, values)) + "]"


def _value(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _text(value) if isinstance(value, str) else repr(value)


def _parameter(parameter: Parameter) -> str:
    values = ", ".join(map(_value, parameter.values))
    why = f", why = {_text(parameter.why)}" if parameter.why else ""
    return f"{{ values = [{values}], default = {_value(parameter.default)}{why} }}"


def _scratch(scratch: ScratchDraft) -> str:
    return f"{{ role = {_text(scratch.role)}, dtype = {_text(scratch.dtype)}, shape = {_texts(scratch.shape)} }}"


def _step(step: StepDraft) -> Iterator[tuple[str, str]]:
    yield "entry", _text(step.entry)
    yield "grid", _texts(step.grid)
    yield "block", _texts(step.block)
    if step.shared_bytes is not None:
        yield "shared_bytes", _text(step.shared_bytes)
    if step.arguments is not None:
        yield "arguments", _texts(step.arguments)


def _aligned(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    kept = list(rows)
    width = max((len(name) for name, _ in kept), default=0)
    for name, value in kept:
        yield f"{name.ljust(width)} = {value}"

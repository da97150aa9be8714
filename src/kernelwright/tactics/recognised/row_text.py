"""Text of kernels whose rows are given to other threads: the source's own indices as functions of the row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kernelwright.problem.model import LaunchStep
from kernelwright.tactics.base import Subject, Unfit
from kernelwright.tactics.common.editing import RewriteBuilder, declaration_start
from kernelwright.tactics.common.iteration_domain import Places, renamed_kernel
from kernelwright.tactics.common.launches import only_shape
from kernelwright.tactics.recognised.places import QuotedIndex, launched, quoted
from kernelwright.tactics.recognised.trials import floats
from kernelwright.template.header import scratch_argument

OF_KEY = "const unsigned kw_row, const long long kw_key, long long &kw_to"
"""What functions of a row are given behind the kernel's own arguments."""


@dataclass
class RowWriting:
    """One kernel while its text is made."""

    subject: Subject
    plan: RewriteBuilder
    threads: int
    """That worked on a row."""
    words: dict[str, str] = field(default_factory=dict)
    """By what the text calls them (`@DIM@`): macros, parameters, functions, arrays."""

    def define(self, macros: Mapping[str, str]) -> None:
        """Computed macros, with those of the launch."""
        step = only_shape(self.subject)
        macros = {**macros, "COUNT": self._threads(step)}
        for extents, name in ((step.grid, "GRID"), (step.block, "SIZE")):
            texts = [each.text for each in extents]
            macros |= {f"{name}_{axis}": (*texts, "1", "1")[place] for place, axis in enumerate("XYZ")}
        for what, text in macros.items():
            name = self.plan.fresh(f"KW_{what}")
            self.words[what] = name
            self.plan.header = self.plan.header.with_define(name, text)
            self.plan.prelude.append(f"#ifndef {name}\n#define {name} 1\n#endif\n")

    def _threads(self, step: LaunchStep) -> str:
        """Threads that worked on a row, as an expression."""
        first = launched(self.subject, self.subject.sizes()[0], floats(self.subject, 0))
        if self.threads == first.threads:
            return " * ".join(f"({each.text})" for each in step.block)
        return str(self.threads)

    def function(self, what: str, extra: str, body: str) -> None:
        """A function of the kernel's arguments and of more, in which the kernel's words are about a row's threads."""
        name = self.plan.fresh(f"kw_{what}")
        self.words[what] = name
        text = renamed_kernel(self.subject, name, extra, self._places(), body=f"{{ {body} return 1; }}")
        self.plan.prelude.append(text)

    def place_function(self, what: str, array: str, place: QuotedIndex, along: str = "") -> None:
        """Where a row starts in an array, or the row of a key."""
        text = f"(long long)(&({place.node.place.span.text(self.subject.source)}) - {array})"
        given = {along: "kw_key"} if along else {}
        self.function(what, OF_KEY, f"{quoted(self.subject, place, given)} kw_to = {text};")

    def number_function(self, what: str, number: QuotedIndex) -> None:
        """A number of each row."""
        text = number.node.place.span.text(self.subject.source)
        self.function(what, OF_KEY, f"{quoted(self.subject, number, {})} kw_to = {text};")

    def _places(self) -> Places:
        """The kernel's words for its place, for a row."""
        w = self.words
        each = f"({w['SIZE_X']} * {w['SIZE_Y']} * {w['SIZE_Z']} / ({w['COUNT']}))"
        first = f"(kw_row % {each} * ({w['COUNT']}))"
        block = f"(kw_row / {each})"
        words = {
            "threadIdx.x": f"{first} % {w['SIZE_X']}", "threadIdx.y": f"{first} / {w['SIZE_X']} % {w['SIZE_Y']}",
            "threadIdx.z": f"{first} / ({w['SIZE_X']} * {w['SIZE_Y']})",
            "blockIdx.x": f"{block} % {w['GRID_X']}", "blockIdx.y": f"{block} / {w['GRID_X']} % {w['GRID_Y']}",
            "blockIdx.z": f"{block} / ({w['GRID_X']} * {w['GRID_Y']})",
            **{f"blockDim.{axis}": w[f"SIZE_{axis.upper()}"] for axis in "xyz"},
            **{f"gridDim.{axis}": w[f"GRID_{axis.upper()}"] for axis in "xyz"},
        }  # fmt: skip
        return Places((), words)

    def two_launches(self, first: str, second: str, scratch: Sequence[tuple[str, str, str, str]]) -> LaunchStep:
        """Both kernels' bodies with words filled in, one launched after the other.

        Args:
            first: of the kernel itself.
            second: of the one that joins, with the same arguments.
            scratch: for each array: what the text calls it, its C type, its dtype, how many elements it has.
        """
        plan, w = self.plan, self.words
        function, step = self.subject.analysis.function, only_shape(self.subject)
        data = self.subject.source.encode("utf-8", "surrogatepass")
        head, body = function.name_place.span, function.body.place.span
        between = data[head.end : body.start].decode("utf-8", "surrogatepass")
        closing = between.rfind(")")
        if closing < 0 or between[closing + 1 :].strip() or "__grid_constant__" in between:
            raise Unfit("its parameters are written in a way that is not understood")
        pointers = "".join(f", {c_type} *{w[what]}" for what, c_type, _, _ in scratch)
        words = {**w, "ARGS": ", ".join(each.name for each in function.parameters)}
        plan.insert(head.end + len(between[:closing].encode("utf-8", "surrogatepass")), pointers)
        plan.replace(body, filled(first, words))
        opening = data[declaration_start(self.subject.source, function) : head.start].decode("utf-8", "surrogatepass")
        for mark in function.attributes:
            if "__launch_bounds__" in mark.text or "__maxnreg__" in mark.text:
                plan.replace(mark.span, "")
                opening = opening.replace(mark.text, "")
        name = w["joined"]
        plan.insert(
            body.end, f"\n\n{opening}{name}{between[:closing]}{pointers}{between[closing:]}{filled(second, words)}"
        )
        steps = []
        for one in plan.header.steps:
            steps += [one, replace(one, entry=name)] if one == step else [one]
        plan.header = replace(plan.header, steps=tuple(steps))
        for what, _, dtype, count in scratch:
            plan.header = plan.header.with_scratch(scratch_argument(w[what], dtype, (count,)), step.entry, name)
        return step


def filled(text: str, words: Mapping[str, str]) -> str:
    """A text with what its `@NAME@` stand for."""
    for name, word in words.items():
        text = text.replace(f"@{name}@", word)
    return text

"""Text of kernels whose rows are given to other threads: the source's own indices as functions of the row."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.model import LaunchStep
from kernelwright.source.lexer import words_of
from kernelwright.tactics.base import Effect, Rewrite, Subject, Unfit
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
            self.plan.prelude.append(_guard(name))

    def finish(self, explanation: str, effect: Effect) -> Rewrite:
        """The rewrite, without macros that its text does not use after all."""
        text = "".join((*self.plan.prelude, *(edit.replacement for edit in self.plan.edits)))
        for name in [each for each in self.plan.header.defines if each in self.words.values()]:
            guard = _guard(name)
            if guard in self.plan.prelude and name not in words_of(text.replace(guard, "")):
                self.plan.prelude.remove(guard)
                defines = {each: value for each, value in self.plan.header.defines.items() if each != name}
                self.plan.header = replace(self.plan.header, defines=defines)
        self._settle_old_shape(text)
        return self.plan.finish(explanation, effect)

    def _settle_old_shape(self, text: str) -> None:
        """Parameters of the old launch, which now only say how rows are numbered, become numbers."""
        others = (each for each in self.subject.analysis.tree.functions if each.name != self.subject.entry)
        used = {
            *words_of(text),
            *(word for each in others for word in words_of(each.place.span.text(self.subject.source))),
        }
        plan, old = self.plan, self.subject.header.parameters
        numbers = {each.name: str(int(each.default)) for each in old
                   if each.name not in used and isinstance(each.default, int)}  # fmt: skip
        if numbers:
            pattern = re.compile(rf"\b({'|'.join(map(re.escape, numbers))})\b")
            defines = {
                name: Expression.parse(pattern.sub(lambda word: numbers[word[0]], each.text))
                if name in self.words.values() else each
                for name, each in plan.header.defines.items()
            }  # fmt: skip
            plan.header = replace(plan.header, defines=defines)

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
        element = place.node.place.span.text(self.subject.source)  # it may be a vector's
        text = f"((const char *)&({element}) - (const char *){array}) / (long long)sizeof(*{array})"
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

    def one_launch(self, text: str) -> LaunchStep:
        """The kernel's body with words filled in."""
        step = only_shape(self.subject)
        self._kernel(text, "")
        return step

    def two_launches(self, first: str, second: str, scratch: Sequence[tuple[str, str, str, str]]) -> LaunchStep:
        """Both kernels' bodies with words filled in, one launched after the other.

        Args:
            first: of the kernel itself.
            second: of the one that joins, with the same arguments.
            scratch: for each array: what the text calls it, its C type, its dtype, how many elements it has.
        """
        plan, w = self.plan, self.words
        step = only_shape(self.subject)
        pointers = "".join(f", {c_type} *{w[what]}" for what, c_type, _, _ in scratch)
        head, words = self._kernel(first, pointers), {**w, "ARGS": self._arguments()}
        name = w["joined"]
        opening, parameters, closing = head
        end = self.subject.analysis.function.body.place.span.end
        plan.insert(end, f"\n\n{opening}{name}{parameters}{pointers}{closing}{filled(second, words)}")
        steps = []
        for one in plan.header.steps:
            steps += [one, replace(one, entry=name)] if one == step else [one]
        plan.header = replace(plan.header, steps=tuple(steps))
        for what, _, dtype, count in scratch:
            plan.header = plan.header.with_scratch(scratch_argument(w[what], dtype, (count,)), step.entry, name)
        return step

    def _arguments(self) -> str:
        return ", ".join(each.name for each in self.subject.analysis.function.parameters)

    def _kernel(self, text: str, pointers: str) -> tuple[str, str, str]:
        """Write the kernel's body and more parameters; its head before its name, its parameters, what ends them."""
        plan, function = self.plan, self.subject.analysis.function
        data = self.subject.source.encode("utf-8", "surrogatepass")
        head, body = function.name_place.span, function.body.place.span
        between = data[head.end : body.start].decode("utf-8", "surrogatepass")
        closing = between.rfind(")")
        if closing < 0 or between[closing + 1 :].strip() or "__grid_constant__" in between:
            raise Unfit("its parameters are written in a way that is not understood")
        if pointers:
            plan.insert(head.end + len(between[:closing].encode("utf-8", "surrogatepass")), pointers)
        plan.replace(body, filled(text, {**self.words, "ARGS": self._arguments()}))
        opening = data[declaration_start(self.subject.source, function) : head.start].decode("utf-8", "surrogatepass")
        for mark in function.attributes:
            if "__launch_bounds__" in mark.text or "__maxnreg__" in mark.text:
                plan.replace(mark.span, "")
                opening = opening.replace(mark.text, "")
        return opening, between[:closing], between[closing:]


def _guard(name: str) -> str:
    return f"#ifndef {name}\n#define {name} 1\n#endif\n"


def filled(text: str, words: Mapping[str, str]) -> str:
    """A text with what its `@NAME@` stand for."""
    for name, word in words.items():
        text = text.replace(f"@{name}@", word)
    return text

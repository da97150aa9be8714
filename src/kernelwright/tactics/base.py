"""The seam between planning and rewriting: a subject goes in, a rewrite or the reason against one comes out.

```
subject = Subject.make(problem, source, header, device, entry="softmax")
for tactic in TACTICS:
    result = tactic.apply(subject)
    if isinstance(result, Rewrite):
        child = subject.rewritten(result)      # tactics compose: the child is a subject again
```

A tactic never guesses: when a fact that it needs is not certain it says so and changes nothing. It reads nothing but
its subject, and the same subject always gives the same answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol, TypeAlias

from kernelwright.analysis.analysis import Analysis, analyse
from kernelwright.analysis.facts import Relation
from kernelwright.analysis.patterns.indices import Indices
from kernelwright.analysis.patterns.pattern import Pattern, recognise
from kernelwright.analysis.polynomial import Polynomial
from kernelwright.errors import SpecError
from kernelwright.problem.config import Value
from kernelwright.problem.expressions.expression import Expression
from kernelwright.problem.model import Argument, Problem
from kernelwright.source import nodes
from kernelwright.source.language import Language
from kernelwright.source.lexer import directives, masked, words_of
from kernelwright.source.normal.normal_form import normal_form
from kernelwright.source.preprocess import switches
from kernelwright.source.span import Span
from kernelwright.template.header import Header

Family = Literal[
    "arithmetic", "memory", "map", "row", "reduction", "transpose", "stencil", "contraction", "launch", "options"
]  # fmt: skip
"""What a tactic is about; relatives are pruned together."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What tactics may know of the device; None means unknown."""

    kind: Literal["cpu", "gpu"]
    warp_size: int | None = None
    """Threads that run in step; on a CPU the preferred multiple of the compiler."""
    vector_bytes: int = 16
    """The widest load of one thread: 16 on GPUs, the width of SIMD registers on CPUs."""
    max_threads_per_block: int = 256
    shared_bytes_per_block: int | None = None
    multiprocessors: int | None = None
    """Cores, on a CPU."""
    copy_bytes_per_s: float | None = None
    """Measured, not the data sheet's."""
    operations_per_s: float | None = None
    """float32, a fused multiply-add counts 2."""
    compiler_macros: tuple[tuple[str, str], ...] = ()
    """What the compiler itself defines, as far as it was asked: name and text."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a rewrite should gain: the planner orders by it, measurements decide.

    Of maps, groups and rows on GPUs by the model of `traffic_model`; every other factor is a guess.
    """

    factor: float
    """How many times faster at the best values of the new parameters; 1.0 where it only opens others' ways."""
    because: str
    """One sentence with the quantity that changes (bytes, transactions, operations, threads)."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One step: a template that computes the same for every value of its parameters that its constraints allow."""

    tactic: str
    family: Family
    source: str
    """Without a header."""
    header: Header
    anchors: tuple[Span, ...]
    """What was changed, as places in the subject's source; what no anchor touches is there byte for byte."""
    explanation: str
    """One sentence."""
    effect: Effect
    added: tuple[str, ...] = ()
    """Names of the parameters that are new; each says why in the header."""
    properties: frozenset[str] = frozenset()
    """What is known to hold of the new source by construction, for later tactics; see `Subject.properties`."""

    @property
    def file_text(self) -> str:
        """The template file: header and source."""
        return self.header.render() + self.source


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """Why a tactic changes nothing."""

    tactic: str
    family: Family
    reason: str
    is_already_so: bool = False
    """Whether the kernel already has what the tactic would give it."""


WRITTEN = "written"
"""The property of kernels that a tactic wrote."""
_DEFINE = re.compile(r"-D\s*(\w+)(?:=([^\s{}]+))?")


class Unfit(Exception):
    """Raised inside a tactic where it cannot go on; `RuleTactic` turns it into `NotApplicable`."""

    def __init__(self, reason: str, *, is_already_so: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_already_so = is_already_so


@dataclass(frozen=True)
class Subject:
    """One kernel of a template (a plain kernel is one without parameters), with everything that is known of it.

    Macros of the source that are parameters of the template stay symbolic in the analysis: sizes with a known set of
    values, see `values_of`.
    """

    problem: Problem
    language: Language
    entry: str
    """The kernel's name, without template arguments."""
    source: str
    """Without a header."""
    header: Header
    """At least one launch of `entry`; every launch names its arguments."""
    device: DeviceFacts
    history: tuple[str, ...] = ()
    """Names of the tactics that were applied, in order."""
    properties: frozenset[str] = frozenset()
    """What earlier rewrites promise of the source. `independent`: no thread sees what another one does, and which
    thread does what does not matter. `written`: a tactic wrote the kernel, as when it splits one into two launches."""
    is_tentative: bool = False
    """Whether rewrites are only weighed, and need not be read again to see that they can be."""

    @staticmethod
    def make(
        problem: Problem,
        source: str,
        header: Header,
        device: DeviceFacts,
        *,
        entry: str | None = None,
        language: Language | None = None,
    ) -> Subject:
        """The subject for one kernel; `entry` defaults to that of the first launch.

        Raises:
            SpecError: no launch is declared, or none of `entry`.
        """
        names = header.entries
        chosen = entry or (names[0] if names else "")
        if chosen not in names:
            raise SpecError(
                f"no launch of {chosen!r} is declared; there is {', '.join(names) or 'none'}",
                hint="a subject needs the launches of its kernel",
            )
        every = (*(each.name for each in problem.arguments), *(each.name for each in header.scratch))
        steps = tuple(replace(step, arguments=step.arguments or every) for step in header.steps)
        return Subject(
            problem, language or problem.kernel.language, chosen, source, replace(header, steps=steps), device
        )

    @cached_property
    def analysis(self) -> Analysis:
        """The facts of the kernel."""
        return self.analysis_of(self.entry)

    def analysis_of(self, entry: str) -> Analysis:
        """The facts of one of the kernels that are launched."""
        return analyse(self.source, self.language, entry=entry, defines=self.defines, launched=self.launched)

    @cached_property
    def helpers(self) -> tuple[nodes.Function, ...]:
        """The functions that the kernel calls, also by others."""
        called = self.analysis.facts.helpers
        return tuple(each for each in self.analysis.tree.functions if each.name in called)

    @cached_property
    def launched(self) -> tuple[str, ...]:
        """The kernels that are launched, by name."""
        return self.header.entries

    @cached_property
    def normal(self) -> Subject | None:
        """The same kernel in normal form; None where it is in it already, or a tactic has arranged it anew.

        None, too, while a tactic is only tried: it costs more than the look ahead is worth.
        """
        if self.is_tentative or WRITTEN in self.properties or set(self.history) - _NAMED_APART:
            return None
        macros = {**dict(self.device.compiler_macros), **self.defines}
        text = normal_form(self.source, self.language, self.entry, macros, self._block)
        return None if text == self.source else replace(self, source=text)

    @property
    def _block(self) -> tuple[int | None, ...]:
        """Threads of a block along x, y and z, where every launch of the kernel has that number."""
        blocks = [step.block for step in self.header.steps if step.entry.partition("<")[0].strip() == self.entry]
        numbers = {tuple(extent.constant if isinstance(extent.constant, int) else None for extent in b) for b in blocks}
        return next(iter(numbers)) if len(numbers) == 1 else ()

    @cached_property
    def defines(self) -> Mapping[str, str]:
        """Macros that compile options say and the source does not, by name; not those whose value is an expression.

        Where the source asks only whether one is defined, its value does not matter.
        """
        options = (*self.header.options, *self.problem.kernel.options)
        said = {found[1]: found[2] or "1" for each in options if (found := _DEFINE.fullmatch(each.strip()))}
        own = {each.definition.name for each in directives(masked(self.source)) if each.definition is not None}
        always = {*self.header.defines, *(each.name for each in self.header.parameters)} & switches(self.source)
        return dict.fromkeys(always, "1") | {
            name: text for name, text in said.items() if name not in own and self.header.parameter(name) is None
        }

    @cached_property
    def pattern(self) -> Pattern:
        """Which well-known shape it has."""
        return recognise(self.analysis)

    @cached_property
    def indices(self) -> Indices:
        """Its accesses in common form."""
        return Indices(self.analysis)

    @cached_property
    def bindings(self) -> tuple[Mapping[str, Argument | None], ...]:
        """For each launch of the kernel: by the kernel's own parameter name, the problem's argument.

        None for scratch that the header adds.
        """
        known: dict[str, Argument | None] = {each.name: each for each in self.problem.arguments}
        parameters = self.analysis.function.parameters
        return tuple(
            {parameter.name: known.get(name) for parameter, name in zip(parameters, step.arguments or (), strict=False)}
            for step in self.header.steps
            if step.entry.partition("<")[0].strip() == self.entry
        )

    def values_of(self, parameter: str) -> tuple[Value, ...] | None:
        """The values that a macro of the source may have; None for one that is no parameter of the template."""
        found = self.header.parameter(parameter)
        return None if found is None else found.values

    def scalar(self, name: str) -> Expression | None:
        """What a by-value parameter of the kernel is, in sizes; None where launches differ or do not say."""
        values = {
            argument.value if argument is not None and argument.role == "scalar" else None
            for argument in (binding.get(name) for binding in self.bindings)
        }
        return values.pop() if len(values) == 1 else None

    def sizes(self) -> tuple[Mapping[str, int], ...]:
        """The sizes of every workload."""
        return tuple(workload.sizes for workload in self.problem.workloads)

    def is_as_said(self, comparison: Relation) -> bool:
        """Whether a comparison holds as said for the sizes of every workload: unsigned ones do not wrap in it."""
        for need in comparison.needs:
            for sizes in self.sizes():
                found = self.evaluate(need, sizes)
                if found is None and need.single_name is not None:
                    continue
                if found is None or found < 0:
                    return False
        return True

    def evaluate(self, value: Polynomial, sizes: Mapping[str, int]) -> int | None:
        """A polynomial of sizes on one workload, parameters at their defaults; None where it is not known."""
        total = 0
        for monomial, coefficient in value.terms:
            product = coefficient
            for name in monomial:
                known = self._size(name, sizes)
                if known is None:
                    return None
                product *= known
            total += product
        return total

    def _size(self, name: str, sizes: Mapping[str, int]) -> int | None:
        parameter = self.header.parameter(name)
        if parameter is not None and isinstance(parameter.default, int):
            return int(parameter.default)
        scalar = self.scalar(name)
        if scalar is None:
            default = self.analysis.facts.defaults.get(name)
            return None if default is None else default.constant
        try:
            number = scalar.evaluate({**dict(self._defaults()), **sizes})
        except SpecError:
            return None
        return int(number) if isinstance(number, int) else None

    def _defaults(self) -> Mapping[str, Value]:
        return {each.name: each.default for each in self.header.parameters}

    def rewritten(self, rewrite: Rewrite) -> Subject:
        """The subject that a rewrite of this one gives."""
        return Subject(
            self.problem,
            self.language,
            self.entry,
            rewrite.source,
            rewrite.header,
            self.device,
            (*self.history, rewrite.tactic),
            rewrite.properties | (self.properties & {WRITTEN}),
            self.is_tentative,
        )


class Tactic(Protocol):
    """One way of rewriting kernels; stateless."""

    @property
    def name(self) -> str:
        """Unique, lower case with dashes."""
        ...

    @property
    def family(self) -> Family:
        """What it is about."""
        ...

    @property
    def summary(self) -> str:
        """What it does, in one sentence, for a list of tactics."""
        ...

    def apply(self, subject: Subject) -> Rewrite | NotApplicable:
        """The rewrite, or why there is none; never raises for a subject that loads."""
        ...


Rule: TypeAlias = Callable[[Subject], Rewrite]
"""The body of a tactic; raises `Unfit` where it does not apply."""


_OWN_NAME = re.compile(r"\b(?:kw|KW)_\w*")
_NAMED_APART = frozenset(("restrict", "unroll", "launch-bounds", "options", "launch-shape", "fast-functions",
                          "reciprocal", "hoist", "hoist-arithmetic", "running-indices", "narrow-indices",
                          "register-sums"))  # fmt: skip
"""Tactics whose names are chosen apart from all of a source: what they leave is no hint at a source's own names."""
_APART = re.compile(r"(?:kw_(?:fast|kept|inverse|near|same|width|by|left|remainder|quotient)|KW_NEAR)")


def _with_own_names(subject: Subject, rewrite: Rewrite) -> Rewrite:
    """A rewrite whose names mean what it says; names that start with `kw_` may be the source's own, too.

    Raises:
        Unfit: a name that was written stands in the plain source already, as a variable, a function or a macro.
    """
    if set(subject.history) - _NAMED_APART:
        return rewrite
    lines = list(directives(masked(subject.source)))
    defined = {each.definition.name for each in lines if each.definition is not None}
    defined -= {name for each in lines if each.word == "undef" for name in words_of(each.rest)[:1]}
    said = [each.place.span.text(subject.source) for each in (subject.analysis.function, *subject.helpers)]
    own = set(_OWN_NAME.findall(" ".join((*said, *defined, *subject.problem.kernel.options, *subject.header.options))))
    if not own:
        return rewrite
    before, after = (Counter(_OWN_NAME.findall(text)) for text in (subject.source, rewrite.source))
    for name in sorted(own):
        if after[name] > before[name] and not (subject.history and _APART.match(name)):
            raise Unfit(f"it has a name of its own that would be written: {name}")
    return rewrite


@dataclass(frozen=True, slots=True)
class RuleTactic:
    """A tactic made of one function."""

    name: str
    family: Family
    summary: str
    rule: Rule

    def apply(self, subject: Subject) -> Rewrite | NotApplicable:
        """The rewrite, of the kernel as it is or else in normal form; or why there is none."""
        try:
            return _with_own_names(subject, self.rule(subject))
        except Unfit as unfit:
            first = NotApplicable(self.name, self.family, unfit.reason, unfit.is_already_so)
            if unfit.is_already_so or subject.normal is None:
                return first
            result = self.apply(subject.normal)
            if isinstance(result, NotApplicable):
                return result if subject.analysis.facts.opaque else first
            return replace(result, anchors=(Span(0, len(subject.source.encode("utf-8", "surrogatepass"))),))
        except SpecError as error:
            return NotApplicable(self.name, self.family, f"its launch cannot be written down anew: {error}")


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A tactic that applies another one, also to a kernel in another form, and is called as that one."""

    inner: Tactic
    applied: Callable[[Tactic, Subject], Rewrite | NotApplicable]

    def apply(self, subject: Subject) -> Rewrite | NotApplicable:
        """The rewrite, or why there is none: the reason against the kernel as it is."""
        return self.applied(self.inner, subject)

    @property
    def name(self) -> str:
        """The tactic's own."""
        return self.inner.name

    @property
    def family(self) -> Family:
        """The tactic's own."""
        return self.inner.family

    @property
    def summary(self) -> str:
        """The tactic's own."""
        return self.inner.summary

"""Editing steps that every tactic needs: parameters near the top, helpers before the kernel, the finished rewrite."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from kernelwright.errors import SpecError
from kernelwright.problem.config import Value
from kernelwright.problem.source_scan import used_words
from kernelwright.source import nodes
from kernelwright.source.edits import Edit, EditConflict, apply, insertion
from kernelwright.source.lexer import (
    Directive,
    Token,
    definitions_of,
    directives,
    masked,
    tokens_of,
    without_directives,
    words_of,
)
from kernelwright.source.span import Span
from kernelwright.source.syntax import parse
from kernelwright.space.parameter import Parameter
from kernelwright.tactics.base import Effect, Family, Rewrite, Subject, Unfit
from kernelwright.template.header import Header

_LOOP = re.compile(r"\s*(?:for|while|do)\b")


@dataclass
class RewriteBuilder:
    """A rewrite in the making: edits, parameters, text before the kernel. Used inside one call of a tactic."""

    subject: Subject
    tactic: str
    family: Family
    header: Header = field(init=False)
    edits: list[Edit] = field(default_factory=list)
    prelude: list[str] = field(default_factory=list)
    """Text right before the kernel, in order; after the parameters."""
    added: list[str] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)
    _words: frozenset[str] | set[str] = frozenset()
    """What the source and the problem call things; made once."""

    def __post_init__(self) -> None:
        self.header = self.subject.header

    def fresh(self, name: str) -> str:
        """`name`, or with a number behind, such that neither the source nor the problem has it."""
        subject = self.subject
        if not self._words:
            self._words = used_words(subject.source, subject.language) | set(subject.problem.size_names)
            self._words |= {each.name for each in definitions_of(masked(subject.source))}
            self._words |= {each.name for each in subject.problem.arguments}
            self._words |= {each.name for each in subject.header.parameters}
        taken = self._names | self._words
        free = next(each for each in (name, *(f"{name}_{n}" for n in range(2, 999))) if each not in taken)
        self._names.add(free)
        return free

    def parameter(self, name: str, values: Sequence[Value], default: Value, why: str) -> str:
        """Declare a parameter of the template, a macro with its default in the source; its name, made unique."""
        name = self.fresh(name)
        ordered = tuple(dict.fromkeys(values))
        assert default in ordered
        self.header = self.header.with_parameters(Parameter(name, ordered, default, why))
        self.added.append(name)
        return name

    def set_default(self, name: str, value: Value) -> None:
        """Another default for a declared parameter."""
        parameter = self.header.parameter(name)
        assert parameter is not None
        assert value in parameter.values
        self.header = self.header.with_parameters(replace(parameter, default=value))

    def drop(self, *names: str) -> None:
        """Take back parameters that turned out to be of no use."""
        kept = tuple(each for each in self.header.parameters if each.name not in names)
        self.header = replace(self.header, parameters=kept)
        self.added = [each for each in self.added if each not in names]

    def constraint(self, name: str, condition: str) -> None:
        """Declare a condition; one that does not hold at the defaults makes the tactic unfit."""
        self.header = self.header.with_constraint(name, condition)

    def lift_macro(self, name: str, values: Sequence[Value], why: str) -> str:
        """Make a parameter of a macro that the source defines as a plain integer, at the value that it has.

        Raises:
            Unfit: it is no such macro.
        """
        macro = self.subject.analysis.tree.expanded.macros.get(name)
        if macro is None or macro.value is None:
            raise Unfit(f"{name} is no macro with a plain number")
        ordered = tuple(sorted({*values, macro.value}))
        self.header = self.header.with_parameters(Parameter(name, ordered, macro.value, why))
        if not macro.is_guarded:
            self.insert(macro.span.start, f"#ifndef {name}\n")
            self.insert(macro.span.end, "\n#endif")
        return name

    def replace(self, span: Span, text: str) -> None:
        """The bytes of a span become `text`."""
        self.edits.append(Edit(span, text))

    def insert(self, at: int, text: str) -> None:
        """`text` before byte `at`; what is inserted first at one place stands first."""
        for index, edit in enumerate(self.edits):
            if edit.span == Span(at, at):
                self.edits[index] = insertion(at, edit.replacement + text)
                return
        self.edits.append(insertion(at, text))

    def finish(self, explanation: str, effect: Effect, *, properties: Iterable[str] = ()) -> Rewrite:
        """The rewrite, after a look at the result.

        Raises:
            Unfit: edits collide, the new text has no such kernel any more or is less understood than before, or a
                default breaks a constraint on some workload.
        """
        subject = self.subject
        anchors = tuple(sorted(edit.span for edit in self.edits))
        macros = "".join(_macro(self.header.parameter(name)) for name in self.added)
        if macros:
            self.insert(top(subject.source), macros + "\n")
        self._rename_taken()
        self._rename_hidden()
        if self.prelude:
            start = declaration_start(subject.source, subject.analysis.function)
            before = subject.source.encode("utf-8", "surrogatepass")[:start]
            line = "" if not before or before.endswith(b"\n") else "\n"  # directives stand on lines of their own
            self.insert(start, line + "".join(self.prelude))
        try:
            source = apply(subject.source, self.edits)
        except EditConflict as conflict:
            raise Unfit(f"two changes meet at one place ({conflict})") from conflict
        if not subject.is_tentative:
            _check_source(subject, source, self.header.entries)
        check_defaults(subject, self.header)
        return Rewrite(
            self.tactic, self.family, source, self.header, anchors, explanation, effect, tuple(self.added),
            frozenset(properties),
        )  # fmt: skip

    def _rename_taken(self) -> None:
        """Give another name to what the text before the kernel defines and the source has: of another kernel's rewrite.

        What the kernel's own code calls by such a name is there already, and stays.
        """
        subject = self.subject
        new = set(_OWN_WORD.findall("".join(self.prelude)))
        taken = new & set(_OWN_WORD.findall(subject.source))
        if not taken:
            return
        for each in (subject.analysis.function, *subject.helpers):
            taken -= set(_OWN_WORD.findall(each.place.span.text(subject.source)))
        present = used_words(subject.source, subject.language) | new
        names: dict[str, str] = {}
        for name in sorted(taken):
            names[name] = next(f"{name}_{n}" for n in range(2, 999) if f"{name}_{n}" not in present)
        known = subject.header.defines
        defines = {n if n in known else names.get(n, n): each for n, each in self.header.defines.items()}
        self.header = replace(self.header, defines=defines)
        self.prelude = [_OWN_WORD.sub(lambda word: names.get(word[0], word[0]), text) for text in self.prelude]
        self.edits = [
            Edit(each.span, _OWN_WORD.sub(lambda word: names.get(word[0], word[0]), each.replacement))
            for each in self.edits
        ]

    def _rename_hidden(self) -> None:
        """Give another name to template parameters of the text before the kernel that are macros of the source."""
        macros = self.subject.analysis.tree.expanded.macros
        for index, text in enumerate(self.prelude):
            hidden = {name for name in re.findall(r"\bclass ([A-Z]\w*)", text) if name in macros}
            if hidden:
                self.prelude[index] = re.sub(rf"\b({'|'.join(sorted(hidden))})\b", r"kw_\1", text)


_OWN_WORD = re.compile(r"\b(?:kw|KW)_\w+")


def _macro(parameter: Parameter | None) -> str:
    assert parameter is not None
    value = parameter.default
    text = str(int(value)) if isinstance(value, bool) else str(value)
    return f"#ifndef {parameter.name}\n#define {parameter.name} {text}\n#endif\n"


def _check_source(subject: Subject, source: str, launched: tuple[str, ...]) -> None:
    tree = parse(source, subject.language, defines=subject.defines, entries=launched)
    if len(tree.opaque) > len(subject.analysis.tree.opaque):
        raise Unfit("the rewritten text could not be read again")
    if subject.entry not in [kernel.name for kernel in tree.kernels]:
        raise Unfit(f"the rewritten text has no kernel {subject.entry} that can be read")
    if subject.language == "opencl" and _stray_unrolls(source) > _stray_unrolls(subject.source):
        raise Unfit("what the source says of a loop's unrolling would stand before something else")


def _stray_unrolls(source: str) -> int:
    """Pragmas that are not followed by a loop, also where a parameter's default leaves them out: they do not build."""
    code = masked(source)
    rest = without_directives(code)
    return sum(
        each.word == "pragma" and words_of(each.rest)[:1] == ["unroll"] and not _LOOP.match(rest, each.end)
        for each in directives(code)
    )


def check_defaults(subject: Subject, header: Header) -> None:
    """Refuse a header whose defaults break a constraint or a launch on some workload.

    Conditions on `device.*` are left to the space.

    Raises:
        Unfit: saying which.
    """
    defaults = {each.name: each.default for each in header.parameters}
    for workload in subject.problem.workloads:
        names = {**workload.sizes, **defaults}
        for constraint in header.constraints:
            condition = constraint.expression
            if any(each.startswith("device.") for each in condition.names):
                continue
            try:
                holds = bool(condition.evaluate(names))
            except SpecError as error:
                raise Unfit(f"{condition.text!r} has no value on workload {workload.name}: {error}") from error
            if not holds:
                raise Unfit(f"no default meets {constraint.name!r} ({condition}) on workload {workload.name}")


def refuse_opaque(subject: Subject) -> None:
    """Refuse kernels of which something is not understood.

    Raises:
        Unfit: with its line.
    """
    for each in subject.analysis.facts.opaque:
        raise Unfit(f"line {each.span.line(subject.source)} is not understood: {each.reason}")


_ARRANGING = frozenset(("vector-map", "coarsen", "rows", "one-pass", "vector-loops", "walk-vectors", "block-joins",
                        "attention-parts", "row-order", "matrix-rows"))  # fmt: skip


def refuse_arranged(subject: Subject, *more: str) -> None:
    """What gives threads other elements, or loops vectors, comes once; `more`: tactics that do so, too.

    Raises:
        Unfit: it was done before.
    """
    if (_ARRANGING | {*more}) & set(subject.history):
        raise Unfit("its threads were arranged anew before", is_already_so=True)


def refuse_unread(subject: Subject) -> None:
    """Refuse what `refuse_hidden_branches` and `refuse_opaque` do.

    Raises:
        Unfit: saying what.
    """
    refuse_hidden_branches(subject)
    refuse_opaque(subject)


def refuse_hidden_branches(subject: Subject) -> None:
    """Refuse sources in which a parameter of the template decides on what is compiled: only one way is analysed.

    Also those whose macros get another meaning from outside.

    Raises:
        Unfit: naming the parameter or macro.
    """
    macros = subject.analysis.tree.expanded.macros
    for option in (*subject.header.options, *subject.problem.kernel.options):
        for name, value in re.findall(r"(?:^|\s|')-D\s*(\w+)(?:=(\S+))?", option):
            own = "".join(each.text for each in macros[name].body) if name in macros else ""
            if name in macros and own != (value or "1") and subject.header.parameter(name) is None:
                raise Unfit(f"a compile option says what {name} is, not the source")
    names = {each.name for each in subject.header.parameters if not each.name.startswith("UNROLL")}
    code = masked(subject.source)
    lines = tuple(directives(code))
    for place, line in enumerate(lines):
        for name in words_of(line.rest) if line.word in ("if", "ifdef", "elif", "elifdef") else ():
            if name in names and not _defines_others(subject, code, lines[place:]):
                raise Unfit(f"{name}, a parameter, decides on what is compiled")


def _defines_others(subject: Subject, code: str, lines: Sequence[Directive]) -> bool:
    """Whether the conditional that `lines` begin with does nothing but define macros that this kernel does not use."""
    functions = (subject.analysis.function, *subject.helpers)
    used = {word for each in functions for word in words_of(each.place.span.text(subject.source))}
    depth, end = 0, lines[0].start
    for line in lines:
        if code[end : line.start].strip() or line.word not in _DEFINING:
            return False
        if line.definition is not None and line.definition.name in used:
            return False
        depth += line.word in ("if", "ifdef", "ifndef")
        depth -= line.word == "endif"
        if depth <= 0 and line.word == "endif":
            return True
        end = line.end
    return False


_DEFINING = frozenset(("if", "ifdef", "ifndef", "elif", "else", "endif", "define"))


# Places


def top(source: str) -> int:
    """Where macros can be put: before the first thing that is neither blank nor a comment."""
    data = source.encode("utf-8", "surrogatepass")
    for token in tokens_of(data.decode("latin-1")):
        if not token.is_blank:
            return token.span.start
    return len(data)


def declaration_start(source: str, function: nodes.Function) -> int:
    """Where a function's definition starts with everything that belongs to it: `template <...>`, `extern "C"`."""
    return _start_at(source, (function.place.span.start,), most_depth=None)


def outermost_start(source: str, functions: Sequence[nodes.Function]) -> int:
    """Where what holds the first of some functions at the outermost level starts: its `namespace`, else its definition.

    What stands there is there for all of them: a conditional (`#if` to `#endif`) that does not hold every function does
    not count, neither as a place nor as what holds them. (`extern "C" {` may be there in C++ only.)
    """
    return _start_at(source, tuple(sorted(each.place.span.start for each in functions)), most_depth=0)


@lru_cache(maxsize=32)
def _start_at(source: str, places: tuple[int, ...], *, most_depth: int | None) -> int:
    tokens = [*tokens_of(source.encode("utf-8", "surrogatepass").decode("latin-1"))]
    branches = _branches(tokens)
    at, shared = _first_of(tokens, branches, places)
    start = depth = 0
    is_line_start, in_directive, waiting = True, False, True
    for token, inside in zip(tokens, branches, strict=True):
        if token.span.start >= at:
            return start if not waiting else at
        if token.kind == "newline":
            if in_directive:
                waiting = waiting or most_depth is None or depth <= most_depth
            is_line_start, in_directive = True, False
            continue
        if token.is_blank or in_directive:
            continue
        in_directive, is_line_start = token.text == "#" and is_line_start, False
        if in_directive or inside != shared[: len(inside)]:
            continue
        if waiting:
            start, waiting = token.span.start, False
        if token.text in (";", "}", "{"):
            depth += {"{": 1, "}": -1}.get(token.text, 0)
            waiting = most_depth is None or depth <= most_depth
    return at


@dataclass(frozen=True, slots=True)
class _Branch:
    """What a conditional has between two of its directives."""

    opened: int
    """The byte at which the conditional starts."""
    start: int
    """The byte of the directive that this branch follows."""


_ALTERNATIVES = ("elif", "elifdef", "elifndef", "else")


def _branches(tokens: Sequence[Token]) -> list[tuple[_Branch, ...]]:
    """For each token the branches of conditionals that it stands in, from the outermost."""
    found: list[tuple[_Branch, ...]] = []
    now: tuple[_Branch, ...] = ()
    sign: int | None = None
    is_line_start = True
    for token in tokens:
        if not token.is_blank:
            if sign is not None and token.text in ("if", "ifdef", "ifndef"):
                now = (*now, _Branch(sign, sign))
            elif sign is not None and token.text in (*_ALTERNATIVES, "endif"):
                last, now = now[-1:], now[:-1]
                now += tuple(_Branch(each.opened, sign) for each in last if token.text != "endif")
            sign = token.span.start if is_line_start and token.text == "#" else None
        is_line_start = token.kind == "newline" or (is_line_start and token.is_blank)
        found.append(now)
    return found


def _first_of(
    tokens: Sequence[Token], branches: Sequence[tuple[_Branch, ...]], places: Sequence[int]
) -> tuple[int, tuple[_Branch, ...]]:
    """The first of these places, or where a conditional starts that holds it and not all; and the branches of all."""
    starts = [token.span.start for token in tokens]
    held = [branches[max(bisect_left(starts, place) - 1, 0)] if branches else () for place in places]
    shared = held[0]
    for each in held:
        count = next((n for n, (a, b) in enumerate(zip(shared, each, strict=False)) if a != b), None)
        shared = shared[: len(each) if count is None else count]
    return (held[0][len(shared)].opened if len(held[0]) > len(shared) else places[0]), shared


def line_start(source: str, at: int) -> int:
    """The first byte of the line that byte `at` is on."""
    return source.encode("utf-8", "surrogatepass").rfind(b"\n", 0, at) + 1


def indent(source: str, at: int) -> str:
    """The blanks at the start of the line that byte `at` is on."""
    data = source.encode("utf-8", "surrogatepass")
    start = line_start(source, at)
    end = start
    while end < len(data) and data[end : end + 1] in (b" ", b"\t"):
        end += 1
    return data[start:end].decode()

"""What the macros of a source come to, whichever of its `#if` branches are taken.

A check that reads names and brackets must not be misled by macros in either direction: `VSTORE(value, 0, to)` below an
`#endif` is a call and no declaration, and `int f ARGUMENTS;` may be a declaration. All branches count here, because
which of them a compiler takes hangs on parameters.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from kernelwright.source.lexer import (
    MacroDefinition,
    Token,
    definitions_of,
    directives,
    tokens_of,
    without_blanks,
    without_directives,
)
from kernelwright.source.macros import Expander, Macro, macro_of
from kernelwright.source.span import Span

MOST_VIEWS = 16
"""Up to so many, all choices among the definitions of macros are expanded; else the first of each, the second, ..."""

_CONDITIONS = frozenset(("if", "ifdef", "ifndef", "endif"))
_CONTROLS = frozenset(("if", "else", "for", "while", "do", "switch"))
_EDGES = (re.compile(r"[(,][ \t\n]*(?P<word>\w+)"), re.compile(r"(?P<word>\w+)(?=[ \t\n]*(?:[,)]|\Z))"))
"""Words that begin or end an argument."""
_BESIDE = re.compile(r"\#\#[ \t]*(?P<after>\w+)|(?P<before>\w+)[ \t]*\#\#")


def with_bodies(code: str) -> str:
    """The code of all branches without directives, and behind it the text of each macro as a statement of its own."""
    return "".join([without_directives(code), *(f"\n;{each.body}\n;" for each in definitions_of(code))])


def unconditional(code: str) -> str:
    """The code that no `#if` leaves out; directives that begin or end one are left out, too."""
    kept, depth, at = [], 0, 0
    for each in directives(code):
        if each.word in _CONDITIONS:
            kept.append(code[at : each.start] if depth == 0 else "")
            depth = max(0, depth + (1 if each.word != "endif" else -1))
            at = each.end
    kept.append(code[at:] if depth == 0 else "")
    return "\n".join(kept)


# -- what ends a statement


def ending_statements(definitions: Sequence[MacroDefinition]) -> frozenset[str]:
    """Macros without arguments all of whose texts end a statement by `;`: what follows them begins another one."""
    bodies: dict[str, list[MacroDefinition]] = {}
    for each in definitions:
        bodies.setdefault(each.name, []).append(each)
    return frozenset(
        name
        for name, found in bodies.items()
        if all(not each.parameters and each.body.rstrip().endswith(";") for each in found)
    )


def controlling(definitions: Sequence[MacroDefinition]) -> frozenset[str]:
    """Macros that hold an `if` or a loop: what follows them is a statement of its own."""
    return frozenset(each.name for each in definitions if _CONTROLS & set(each.words))


# -- what could be pasted


def pasted_parts(code: str, outside: AbstractSet[str]) -> frozenset[str]:
    """Words that the source's macros could paste (`##`) with others; empty where nothing pastes.

    Args:
        code: without comments.
        outside: words that come from outside, as values of parameters.
    """
    definitions = definitions_of(code)
    pasting = _pasting(definitions)
    if not pasting:
        return frozenset()
    parts = set(outside)
    for each in definitions:
        words = each.words
        parts.update((*words[:1], *words[-1:]))
        near = {match["after"] or match["before"] for match in _BESIDE.finditer(each.body)}
        parts |= (near | _arguments(each.body, pasting, everywhere=True)) - frozenset(each.parameters or ())
    names = frozenset(each.name for each in definitions)
    text = without_directives(code)
    is_open = bool(pasting & outside) or any(not each.is_balanced for each in definitions)
    return frozenset(parts | _arguments(text, pasting, names=names, everywhere=is_open))


def _pasting(definitions: Sequence[MacroDefinition]) -> frozenset[str]:
    """Macros that paste, or whose text names one that does."""
    found = {each.name for each in definitions if "##" in each.body}
    while True:
        more = {each.name for each in definitions if each.name not in found and found & set(each.words)}
        if not more:
            return frozenset(found)
        found |= more


def _arguments(
    text: str, pasting: AbstractSet[str], *, names: AbstractSet[str] = frozenset(), everywhere: bool = False
) -> set[str]:
    """Words at the edges of arguments of what pastes, or of a macro that is given something that pastes."""
    words = sorted((match for edge in _EDGES for match in edge.finditer(text)), key=lambda match: match.start("word"))
    if everywhere:
        return {match["word"] for match in words}
    spans = sorted(_pasting_groups(text, pasting, names))
    found: set[str] = set()
    place = reach = 0
    for match in words:
        at = match.start("word")
        while place < len(spans) and spans[place][0] < at:
            reach = max(reach, spans[place][1])
            place += 1
        if at < reach:
            found.add(match["word"])
    return found


@dataclass(slots=True)
class _Group:
    """A bracket that is open."""

    start: int
    callee: str
    is_pasting: bool = False


@dataclass(slots=True)
class _Groups:
    """Follows brackets and what stands before them."""

    pasting: AbstractSet[str]
    names: AbstractSet[str]
    open: list[_Group] = field(default_factory=list)
    told: int = 0
    """So many of them, the outermost, know already that a word inside of them pastes."""
    before: str = ""
    """The word before, empty behind anything else."""
    goes_on: bool = False
    """Whether a group that pastes has just been closed, or its name given: the next bracket belongs to it."""

    def word(self, word: str) -> None:
        self.before, self.goes_on = word, word in self.pasting
        if self.goes_on:
            for group in self.open[self.told :]:
                group.is_pasting = group.is_pasting or not self.names or group.callee in self.names
            self.told = len(self.open)

    def opened(self, at: int) -> None:
        self.open.append(_Group(at, self.before, self.goes_on))
        self.before, self.goes_on = "", False

    def closed(self, at: int) -> tuple[int, int] | None:
        self.before, self.goes_on = "", False
        if not self.open:
            return None
        group = self.open.pop()
        self.told = min(self.told, len(self.open))
        self.goes_on = group.is_pasting
        return (group.start, at) if group.is_pasting else None


def _pasting_groups(text: str, pasting: AbstractSet[str], names: AbstractSet[str]) -> Iterator[tuple[int, int]]:
    """Where the brackets are whose insides a macro may paste."""
    groups = _Groups(pasting, names)
    for token in tokens_of(text):
        if token.kind == "word":
            groups.word(token.text)
        elif token.text == "(":
            groups.opened(token.span.start)
        elif token.text == ")":
            span = groups.closed(token.span.end)
            if span is not None:
                yield span
        elif not token.is_blank:
            groups.before, groups.goes_on = "", False
    yield from ((group.start, len(text)) for group in groups.open if group.is_pasting)


# -- what comes out


@dataclass(frozen=True, slots=True)
class _View:
    """The code with its macros expanded, each by one of its definitions."""

    text: str
    is_whole: bool
    """False: the macros make more text than is read."""


def expanded(code: str) -> Iterator[_View]:
    """The code of all branches with macros expanded, by one choice of their definitions after the other."""
    macros = _macros(code)
    if not macros:
        return
    tokens = list(tokens_of(without_directives(code)))
    counts = [len(found) for found in macros.values()]
    choices: Iterable[Sequence[int]]
    if math.prod(counts) <= MOST_VIEWS:
        choices = itertools.product(*map(range, counts))
    else:
        choices = ([min(place, count - 1) for count in counts] for place in range(min(MOST_VIEWS, max(counts))))
    for choice in choices:
        chosen = {name: found[place] for (name, found), place in zip(macros.items(), choice, strict=True)}
        yield _expanded(tokens, chosen)


def _macros(code: str) -> Mapping[str, list[Macro]]:
    found: dict[str, list[Macro]] = {}
    nowhere = Span(0, 0)
    for each in directives(code):
        macro = macro_of(list(tokens_of(each.rest)), nowhere, is_guarded=False) if each.word == "define" else None
        if macro is not None:
            texts = [[token.text for token in without_blanks(known.body)] for known in found.get(macro.name, [])]
            if [token.text for token in without_blanks(macro.body)] not in texts:
                found.setdefault(macro.name, []).append(macro)
    return found


def _expanded(tokens: Sequence[Token], macros: Mapping[str, Macro]) -> _View:
    expander, parts, index = Expander(macros), list[str](), 0
    while index < len(tokens) and not expander.is_exhausted:
        before = index
        found, index = expander.at(tokens, index)
        is_as_it_was = index == before + 1 and len(found) == 1
        parts += [found[0].text] if is_as_it_was else [f" {each.text} " for each in found]
    return _View("".join(parts), not expander.is_exhausted)

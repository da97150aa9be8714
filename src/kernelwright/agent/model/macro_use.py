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

from kernelwright.source.macros import Expander, Macro, macro_of
from kernelwright.source.span import Span
from kernelwright.source.tokens import Token, tokens_of, without_blanks

MOST_VIEWS = 16
"""Up to so many, all choices among the definitions of macros are expanded; else the first of each, the second, ..."""

_DIRECTIVE_LINE = re.compile(r"^[ \t]*#[^\n]*", re.MULTILINE)
_DEFINE = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(?P<name>\w+)(?:\((?P<parameters>[^)\n]*)\))?(?P<body>[^\n]*)", re.MULTILINE
)
_CONDITION = re.compile(r"[ \t]*#[ \t]*(if|ifdef|ifndef|endif)\b")
_CONTROLS = frozenset(("if", "else", "for", "while", "do", "switch"))
_WORD = re.compile(r"[A-Za-z_]\w*")
_EDGES = (re.compile(r"[(,][ \t\n]*(?P<word>\w+)"), re.compile(r"(?P<word>\w+)(?=[ \t\n]*(?:[,)]|\Z))"))
"""Words that begin or end an argument."""
_BESIDE = re.compile(r"\#\#[ \t]*(?P<after>\w+)|(?P<before>\w+)[ \t]*\#\#")
_SIGN = re.compile(r"(?P<word>\w+)|(?P<sign>[()])|(?P<other>[^\s\w])")


@dataclass(frozen=True, slots=True)
class _Definition:
    """One `#define`, as text."""

    name: str
    parameters: frozenset[str]
    body: str

    @property
    def words(self) -> list[str]:
        """The words of its text, without its own parameters: those are never what they are called."""
        return [word for word in _WORD.findall(self.body) if word not in self.parameters]

    @property
    def is_balanced(self) -> bool:
        """Whether each bracket is closed in the same text."""
        depth = 0
        for character in self.body:
            depth += (character == "(") - (character == ")")
            if depth < 0:
                return False
        return depth == 0


def definitions_of(code: str) -> tuple[_Definition, ...]:
    """Every `#define` of a source without comments, of all branches."""
    return tuple(
        _Definition(match["name"], frozenset(_WORD.findall(match["parameters"] or "")), match["body"])
        for match in _DEFINE.finditer(code)
    )


def without_directives(code: str) -> str:
    """The code of all branches; directives are empty lines."""
    return _DIRECTIVE_LINE.sub("", code)


def with_bodies(code: str) -> str:
    """The code of all branches without directives, and behind it the text of each macro as a statement of its own."""
    return "".join([without_directives(code), *(f"\n;{each.body}\n;" for each in definitions_of(code))])


def unconditional(code: str) -> str:
    """The code that no `#if` leaves out."""
    kept, depth = [], 0
    for line in code.split("\n"):
        word = _CONDITION.match(line)
        depth += 0 if word is None else 1 if word[1].startswith("if") else -1
        kept.append("" if depth > 0 or word is not None else line)
    return "\n".join(kept)


# -- what ends a statement


def ending_statements(definitions: Sequence[_Definition]) -> frozenset[str]:
    """Macros without arguments all of whose texts end a statement by `;`: what follows them begins another one."""
    bodies: dict[str, list[_Definition]] = {}
    for each in definitions:
        bodies.setdefault(each.name, []).append(each)
    return frozenset(
        name
        for name, found in bodies.items()
        if all(not each.parameters and each.body.rstrip().endswith(";") for each in found)
    )


def controlling(definitions: Sequence[_Definition]) -> frozenset[str]:
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
        parts |= (near | _arguments(each.body, pasting, everywhere=True)) - each.parameters
    names = frozenset(each.name for each in definitions)
    text = without_directives(code)
    is_open = bool(pasting & outside) or any(not each.is_balanced for each in definitions)
    return frozenset(parts | _arguments(text, pasting, names=names, everywhere=is_open))


def _pasting(definitions: Sequence[_Definition]) -> frozenset[str]:
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
    before: str = ""
    """The word before, empty behind anything else."""
    goes_on: bool = False
    """Whether a group that pastes has just been closed, or its name given: the next bracket belongs to it."""

    def word(self, word: str) -> None:
        self.before, self.goes_on = word, word in self.pasting
        if self.goes_on:
            for group in reversed(self.open):
                group.is_pasting = group.is_pasting or not self.names or group.callee in self.names

    def opened(self, at: int) -> None:
        self.open.append(_Group(at, self.before, self.goes_on))
        self.before, self.goes_on = "", False

    def closed(self, at: int) -> tuple[int, int] | None:
        self.before, self.goes_on = "", False
        if not self.open:
            return None
        group = self.open.pop()
        self.goes_on = group.is_pasting
        return (group.start, at) if group.is_pasting else None


def _pasting_groups(text: str, pasting: AbstractSet[str], names: AbstractSet[str]) -> Iterator[tuple[int, int]]:
    """Where the brackets are whose insides a macro may paste."""
    groups = _Groups(pasting, names)
    for match in _SIGN.finditer(text):
        if match["word"]:
            groups.word(match["word"])
        elif match["sign"] == "(":
            groups.opened(match.start())
        elif match["sign"] == ")":
            span = groups.closed(match.end())
            if span is not None:
                yield span
        else:
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
    for match in _DEFINE.finditer(code):
        text = match.group()
        macro = macro_of(list(tokens_of(text[match.start("name") - match.start() :])), nowhere, is_guarded=False)
        if macro is not None:
            texts = [[each.text for each in without_blanks(known.body)] for known in found.get(macro.name, [])]
            if [each.text for each in without_blanks(macro.body)] not in texts:
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

"""A source that is being brought into normal form: its text, what it says, and how pieces of it are put elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from kernelwright.source import nodes
from kernelwright.source.edits import Edit
from kernelwright.source.language import Language
from kernelwright.source.lexer import directives, hidden_parts, tokens_of, words_of
from kernelwright.source.span import Span

_NOT_ARITHMETIC = re.compile(r"[*&]|\bauto\b|\bvoid\b")


class LeftAsIs(Exception):
    """Raised where a construct must stay as it is; says why."""


@dataclass(frozen=True)
class KernelText:
    """One state of the text."""

    source: str
    language: Language
    tree: nodes.SyntaxTree
    kernel: nodes.Function

    @cached_property
    def data(self) -> bytes:
        """The text as bytes, which spans count."""
        return self.source.encode("utf-8", "surrogatepass")

    @cached_property
    def words(self) -> frozenset[str]:
        """Every word of the file."""
        return frozenset(words_of(self.source))

    @cached_property
    def helpers(self) -> Mapping[str, nodes.Function]:
        """The functions of the file that no other one shares its name with."""
        found: dict[str, nodes.Function] = {}
        twice = set()
        for each in self.tree.functions:
            if each.name in found:
                twice.add(each.name)
            found[each.name] = each
        return {name: each for name, each in found.items() if name not in twice and not each.is_kernel}

    @cached_property
    def reached(self) -> tuple[nodes.Function, ...]:
        """The kernel, and the functions of the file that it calls, first."""
        found = {self.kernel.name: self.kernel}
        waiting = [self.kernel]
        while waiting:
            for each in nodes.walk(waiting.pop().body):
                helper = self.helpers.get(each.function) if isinstance(each, nodes.Call) else None
                if helper is not None and helper.name not in found:
                    found[helper.name] = helper
                    waiting.append(helper)
        return tuple(found.values())

    @cached_property
    def _declared(self) -> dict[int, Mapping[str, nodes.Declarator | nodes.FunctionParameter]]:
        return {}

    def variables(self, function: nodes.Function) -> Mapping[str, nodes.Declarator | nodes.FunctionParameter]:
        """`declared` of a function of the file, found once."""
        if id(function) not in self._declared:
            self._declared[id(function)] = declared(function)
        return self._declared[id(function)]

    def text(self, node: nodes.Node | nodes.Function | nodes.FunctionParameter) -> str:
        """What the source says there.

        Raises:
            Kept: a macro makes a part of it.
        """
        return self.at(self.span(node))

    def at(self, span: Span) -> str:
        """What the source says between two bytes."""
        return self.data[span.start : span.end].decode("utf-8", "surrogatepass")

    def span(self, node: nodes.Node | nodes.Function | nodes.FunctionParameter) -> Span:
        """Where a node stands.

        Raises:
            Kept: a macro makes a part of it.
        """
        if not node.place.is_exact:
            raise LeftAsIs("a macro makes a part of it")
        return node.place.span

    def inside(self, body: nodes.Statement) -> str:
        """The statements of a body, without its braces."""
        text = self.text(body)
        return text[1:-1].strip("\n") if isinstance(body, nodes.Block) and text[:1] == "{" else text

    def fresh(self, name: str) -> str:
        """A name that the file does not have."""
        number = 2
        found = name
        while found in self.words:
            found = f"{name}_{number}"
            number += 1
        return found

    def edit(self, node: nodes.Node | nodes.Function, text: str) -> Edit:
        """The node as another text; lines behind it keep their numbers where that is possible.

        Raises:
            Kept: a macro makes a part of it.
        """
        return Edit(self.span(node), text)


def renamed(text: str, values: Mapping[str, str]) -> str:
    """The text with words replaced; members of such a name stay."""
    pieces: list[str] = []
    before, at = "", 0
    for token in tokens_of(text):
        if token.kind == "word" and token.text in values and before not in (".", "->", "::"):
            pieces += [text[at : token.span.start], values[token.text]]
            at = token.span.end
        before = before if token.is_blank else token.text
    return "".join((*pieces, text[at:]))


def declared(function: nodes.Function) -> Mapping[str, nodes.Declarator | nodes.FunctionParameter]:
    """The variables of a function by name; without names that stand for several of different types."""
    found: dict[str, nodes.Declarator | nodes.FunctionParameter] = {each.name: each for each in function.parameters}
    twice = set()
    for each in nodes.walk(function.body):
        if isinstance(each, nodes.Declarator):
            other = found.setdefault(each.name, each)
            if other is not each and (other.c_type, other.is_pointer) != (each.c_type, each.is_pointer):
                twice.add(each.name)
    return {name: each for name, each in found.items() if name not in twice}


def paths(root: nodes.Node) -> Iterator[tuple[nodes.Node, ...]]:
    """Every node below a root, with all that it stands in: the root first, the node last."""
    waiting: list[tuple[nodes.Node, ...]] = [(root,)]
    while waiting:
        path = waiting.pop()
        yield path
        waiting += [(*path, child) for child in reversed(list(nodes.children(path[-1])))]


def is_pure(node: nodes.Node) -> bool:
    """Whether evaluating it once more changes nothing; calls count as changing something."""
    return not any(
        isinstance(each, nodes.Assign | nodes.Update | nodes.Call | nodes.MethodCall | nodes.OpaqueExpression)
        for each in nodes.walk(node)
    )


def in_parentheses(text: str) -> str:
    """The text as one operand."""
    return text if re.fullmatch(r"\w+|[\w.]+", text) else f"({text})"


def as_type(c_type: str, text: str) -> str:
    """A value in a type; as it is where the type is none of numbers."""
    return in_parentheses(text) if not c_type or _NOT_ARITHMETIC.search(c_type) else f"(({c_type})({text}))"


def in_one_line(text: str) -> str:
    """The text without line ends, so that lines behind it keep their numbers: pragmas as `_Pragma`, no comments."""
    lines = []
    for line in masked_comments(text).replace("\\\n", " \n").splitlines():
        directive = next(directives(line), None)
        if directive is not None and directive.word != "pragma":
            raise LeftAsIs("a conditional in what would be put elsewhere")
        lines.append(line.strip() if directive is None else f'_Pragma("{directive.rest.strip()}")')
    return " ".join(filter(None, lines))


def masked_comments(text: str) -> str:
    """The text with blanks for comments; literals and the ends of lines that go on stay."""
    pieces, at = [], 0
    for part in hidden_parts(text):
        if part.kind == "comment":
            pieces += [text[at : part.start], re.sub(r"[^\n]", " ", part.text)]
            at = part.start + len(part.text)
    return "".join((*pieces, text[at:]))

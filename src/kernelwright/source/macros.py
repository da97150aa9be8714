"""Macros: what `#define` says, and the expansion of their invocations, with every token's place in the source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelwright.source.lexer import Token, group_end, group_ends, integer_value, next_sign, tokens_of, without_blanks
from kernelwright.source.span import Span

MAX_EXPANDED_TOKENS = 200_000
"""A source whose macros make more than this is left unexpanded from there on (guess: a hundred large kernels)."""
CHARACTERS_OF_A_TOKEN = 16
"""A text or a pasted word counts as one more token for so many characters."""
_MAX_NESTING = 60
_MAX_DEPTH = 100
"""Nested invocations in arguments; more count as too much text."""


@dataclass(frozen=True, slots=True)
class Macro:
    """One `#define`."""

    name: str
    parameters: tuple[str, ...] | None
    """None for a macro without arguments."""
    body: tuple[Token, ...]
    span: Span
    """The place of the whole directive."""
    is_guarded: bool = False
    """Whether it stands under `#ifndef` of its own name: a parameter, with its default."""

    @property
    def value(self) -> int | None:
        """Its value where it is a plain integer, perhaps in parentheses."""
        tokens = without_blanks(self.body)
        while len(tokens) > 2 and tokens[0].text == "(" and tokens[-1].text == ")":
            tokens = tokens[1:-1]
        sign = 1
        if len(tokens) == 2 and tokens[0].text == "-":
            sign, tokens = -1, tokens[1:]
        if self.parameters is not None or len(tokens) != 1:
            return None
        value = integer_value(tokens[0].text)
        return None if value is None else sign * value

    @property
    def value_span(self) -> Span:
        """Where its replacement text stands."""
        tokens = without_blanks(self.body)
        return tokens[0].span.joined(tokens[-1].span) if tokens else Span(self.span.end, self.span.end)

    @property
    def is_parameter(self) -> bool:
        """Whether it stays a name in what is analysed: its value may come from outside."""
        return self.is_guarded and self.value is not None


def macro_of(tokens: Sequence[Token], span: Span, *, is_guarded: bool) -> Macro | None:
    """The macro that the tokens after `#define` make; None when they make none."""
    kept = list(tokens)
    while kept and kept[0].is_blank:
        kept.pop(0)
    if not kept or kept[0].kind != "word":
        return None
    name, rest = kept[0], kept[1:]
    parameters: tuple[str, ...] | None = None
    if rest and rest[0].text == "(":
        end = group_end(rest, 0)
        if end is None:
            return None
        words = [token.text for token in without_blanks(rest[1 : end - 1]) if token.text != ","]
        parameters, rest = tuple(words), rest[end:]
    while rest and rest[0].is_blank:
        rest.pop(0)
    while rest and rest[-1].is_blank:
        rest.pop()
    return Macro(name.text, parameters, tuple(rest), span, is_guarded)


def predefined(texts: Mapping[str, str]) -> dict[str, Macro]:
    """Macros from outside, by name, as with `-D`; `NAME(a, b)` takes arguments."""
    macros = {}
    for name, text in texts.items():
        nowhere = Span(0, 0)
        tokens = [token.given_by(0, nowhere) for token in tokens_of(f"{name} {text}")]
        if (macro := macro_of(tokens, nowhere, is_guarded=False)) is not None:
            macros[macro.name] = macro
    return macros


class Expander:
    """Expands invocations by a table of macros that its owner changes while reading on."""

    def __init__(self, macros: Mapping[str, Macro]) -> None:
        self.macros = dict(macros)
        self.invocations = 0
        self.expanded_count = 0
        self.used: dict[str, list[Span]] = {}
        """By macro, where the source invokes it or, for a parameter, names it."""
        self._depth = 0
        self._groups: dict[int, tuple[Sequence[Token], dict[int, int]]] = {}
        """By depth the list that is read there, and where its parentheses close."""

    @property
    def is_exhausted(self) -> bool:
        """Whether the limit of expanded tokens is reached."""
        return self.expanded_count > MAX_EXPANDED_TOKENS

    def at(self, tokens: Sequence[Token], index: int, *, with_parameters: bool = False) -> tuple[list[Token], int]:
        """What the token at `index` expands to, and the index of what follows it."""
        token = tokens[index]
        macro = self.macros.get(token.text)
        if macro is not None and token.kind == "word":
            self.used.setdefault(token.text, []).append(token.span)
        found = self._invocation(tokens, index, frozenset(), with_parameters=with_parameters)
        if found is None:
            return [token], index + 1
        expansion, after = found
        self.invocations += 1
        span = token.span.joined(tokens[after - 1].span)
        return [each.given_by(self.invocations, span) for each in expansion], after

    def all(self, tokens: Sequence[Token], *, with_parameters: bool) -> list[Token]:
        """Every token expanded; `with_parameters` also replaces parameters by their defaults."""
        return self._list(tokens, frozenset(), with_parameters=with_parameters)

    def _list(self, tokens: Sequence[Token], hidden: frozenset[str], *, with_parameters: bool) -> list[Token]:
        if self._depth >= _MAX_DEPTH:
            self.expanded_count = MAX_EXPANDED_TOKENS + 1
        self._depth += 1
        result: list[Token] = []
        index = 0
        while index < len(tokens):
            found = self._invocation(tokens, index, hidden, with_parameters=with_parameters)
            if found is None:
                result.append(tokens[index])
                index += 1
            else:
                result += found[0]
                index = found[1]
        self._depth -= 1
        return result

    def _closing(self, tokens: Sequence[Token], opening: int) -> int | None:
        """The index after the parenthesis that closes the one at `opening`; each list is read once."""
        known = self._groups.get(self._depth)
        if known is None or known[0] is not tokens:
            known = self._groups[self._depth] = (tokens, group_ends(tokens))
        return known[1].get(opening)

    def _invocation(
        self, tokens: Sequence[Token], index: int, hidden: frozenset[str], *, with_parameters: bool
    ) -> tuple[list[Token], int] | None:
        token = tokens[index]
        macro = self.macros.get(token.text) if token.kind == "word" else None
        if macro is None or macro.name in hidden or len(hidden) > _MAX_NESTING or self.is_exhausted:
            return None
        if macro.is_parameter and not with_parameters:
            return None
        if macro.parameters is None:
            body, after = self._pasted(macro.body), index + 1
        else:
            opening = next_sign(tokens, index + 1, "(")
            closing = self._closing(tokens, opening) if opening is not None else None
            if opening is None or closing is None:
                return None
            arguments = _arguments(tokens[opening + 1 : closing - 1], macro.parameters)
            if arguments is None:
                return None
            body, after = self._substituted(macro, arguments, hidden, with_parameters=with_parameters), closing
        self.expanded_count += len(body) + 1
        return self._list(body, hidden | {macro.name}, with_parameters=with_parameters), after

    def _substituted(
        self, macro: Macro, arguments: Mapping[str, list[Token]], hidden: frozenset[str], *, with_parameters: bool
    ) -> list[Token]:
        body = [token for token in macro.body if token.kind != "newline"]
        result: list[Token] = []
        expanded: dict[str, list[Token]] = {}
        for index, token in enumerate(body):
            name = token.text
            if name == "#" and _next_word(body, index) in arguments:
                continue
            if name not in arguments or token.kind != "word":
                result.append(token)
                continue
            before = _neighbour(body, index, -1)
            if before == "#":
                text = "".join(each.text for each in arguments[name]).strip()
                self._count_text(text)
                result.append(Token("text", '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"', token.span))
            elif before == "##" or _neighbour(body, index, 1) == "##":
                result += without_blanks(arguments[name])
            else:
                if name not in expanded:
                    expanded[name] = self._list(arguments[name], hidden, with_parameters=with_parameters)
                result += expanded[name]
                self.expanded_count += len(expanded[name])
            self.expanded_count += 1
            if self.is_exhausted:
                break
        return self._pasted(result)

    def _pasted(self, tokens: Sequence[Token]) -> list[Token]:
        """With `a ## b` as one token; a parameter that is pasted counts as its default."""
        if not any(token.text == "##" for token in tokens):
            return list(tokens)
        result: list[Token] = []
        is_joining = False
        for token in tokens:
            if token.text == "##":
                while result and result[-1].is_blank:
                    result.pop()
                is_joining = bool(result)
            elif is_joining and not token.is_blank:
                if self.is_exhausted:
                    break
                text = self._default(result.pop().text) + self._default(token.text)
                self._count_text(text)
                result += [each.given_by(0, token.span) for each in tokens_of(text)]
                is_joining = False
            elif not is_joining:
                result.append(token)
        return result

    def _count_text(self, text: str) -> None:
        """Texts and pasted words grow without growing in number: they count by their length, too."""
        self.expanded_count += len(text) // CHARACTERS_OF_A_TOKEN

    def _default(self, text: str) -> str:
        macro = self.macros.get(text)
        return str(macro.value) if macro is not None and macro.is_parameter else text


def _neighbour(tokens: Sequence[Token], index: int, step: int) -> str:
    index += step
    while 0 <= index < len(tokens):
        if not tokens[index].is_blank:
            return tokens[index].text
        index += step
    return ""


def _next_word(tokens: Sequence[Token], index: int) -> str:
    return _neighbour(tokens, index, 1)


def _arguments(tokens: Sequence[Token], parameters: Sequence[str]) -> dict[str, list[Token]] | None:
    """The arguments of an invocation by parameter; None when their number does not fit."""
    parts: list[list[Token]] = [[]]
    depth = 0
    names = ["__VA_ARGS__" if name == "..." else name for name in parameters]
    is_variadic = bool(names) and names[-1] == "__VA_ARGS__"
    for token in tokens:
        if token.kind == "sign":
            depth += (token.text in "([{") - (token.text in ")]}")
        if token.text == "," and depth == 0 and not (is_variadic and len(parts) == len(names)):
            parts.append([])
        else:
            parts[-1].append(token)
    if not names:
        return {} if not without_blanks(tokens) else None
    if is_variadic and len(parts) == len(names) - 1:
        parts.append([])
    if len(parts) != len(names):
        return None
    return {name: _trimmed(part) for name, part in zip(names, parts, strict=True)}


def _trimmed(tokens: list[Token]) -> list[Token]:
    start, end = 0, len(tokens)
    while start < end and tokens[start].is_blank:
        start += 1
    while end > start and tokens[end - 1].is_blank:
        end -= 1
    return tokens[start:end]

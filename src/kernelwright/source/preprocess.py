"""A kernel source as one dialect without macros, with the place in the source of everything that is left.

Macros of the file are expanded, `#if` is decided, comments become blanks, and words that only one dialect has are
replaced (`__kernel` by `__global__`, `__local` by `__shared__`) or left out with a mark. Included files are not read.
Macros under `#ifndef` of their own name that stand for an integer are parameters: they stay names.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from kernelwright.source.if_conditions import condition_value
from kernelwright.source.language import Language
from kernelwright.source.lexer import (
    Token,
    directives,
    group_end,
    masked,
    next_sign,
    tokens_of,
    without_blanks,
    words_of,
)
from kernelwright.source.macros import Expander, Macro, macro_of, predefined
from kernelwright.source.span import Span


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that was left out of the expanded text: a qualifier, an attribute, a pragma."""

    at: int
    """The byte of the expanded text before which it stood."""
    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class Opaque:
    """A part of the source that is not understood: not to be touched."""

    span: Span
    reason: str


@dataclass(frozen=True, slots=True)
class _Decided:
    """A conditional (`#if` to `#endif`) of which it is sure what is read."""

    span: Span
    left_out: tuple[Span, ...]
    """Its directives, and the parts that are not read."""
    names: frozenset[str]
    """What its conditions ask for."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands in the source."""

    span: Span
    is_exact: bool = True
    """Whether the span is all of it and nothing else: false for a part of what a macro gives."""


@dataclass(frozen=True, slots=True)
class Expanded:
    """A source after preprocessing."""

    text: str
    """Latin-1: one character a byte."""
    starts: tuple[int, ...]
    """Where each token starts in `text`."""
    tokens: tuple[Token, ...]
    macros: Mapping[str, Macro]
    """What is defined at the end of the file, by name."""
    uses: Mapping[str, tuple[Span, ...]]
    """Where each macro is used, by name."""
    marks: tuple[Mark, ...]
    unclear: tuple[Opaque, ...]
    decided: tuple[_Decided, ...] = ()

    def place(self, start: int, end: int) -> Place:
        """Where bytes `start` to `end` of the expanded text come from."""
        if not self.tokens:
            return Place(Span(0, 0), is_exact=False)
        first = min(max(bisect_right(self.starts, start) - 1, 0), len(self.tokens) - 1)
        last = max(bisect_left(self.starts, max(end, start + 1)) - 1, first)
        span = self.tokens[first].span.joined(self.tokens[last].span)
        is_cut = self._is_cut(first - 1, first) or self._is_cut(last, last + 1)
        return Place(span, is_exact=not is_cut)

    def _is_cut(self, left: int, right: int) -> bool:
        """Whether one macro invocation gave both of two neighbours."""
        if left < 0 or right >= len(self.tokens):
            return False
        return self.tokens[left].invocation == self.tokens[right].invocation != 0

    def marks_between(self, start: int, end: int) -> tuple[Mark, ...]:
        """What was left out from byte `start` of the expanded text up to and including byte `end`."""
        low = bisect_left(self.marks, start, key=lambda mark: mark.at)
        high = bisect_right(self.marks, end, key=lambda mark: mark.at)
        return self.marks[low:high]


_PREDEFINED: Mapping[Language, Mapping[str, str]] = MappingProxyType({
    "opencl": {"CLK_LOCAL_MEM_FENCE": "1", "CLK_GLOBAL_MEM_FENCE": "2"},
    "cuda": {"__CUDACC__": "1", "__NVCC__": "1", "__cplusplus": "201703"},
    "hip": {
        "__HIPCC__": "1", "__HIP__": "1", "__cplusplus": "201703",
        "HIP_DYNAMIC_SHARED(T, name)": "extern __shared__ T name[];",
        **{f"hip{word}_{axis}": f"{name}.{axis}" for axis in "xyz"
           for word, name in (("ThreadIdx", "threadIdx"), ("BlockIdx", "blockIdx"), ("BlockDim", "blockDim"),
                              ("GridDim", "gridDim"))},
    },
    "triton": {},
})  # fmt: skip
_OF_THE_DEVICE: Mapping[str, str] = MappingProxyType({
    "__CUDA_ARCH__": "900", "__OPENCL_VERSION__": "120", "__OPENCL_C_VERSION__": "120", "__HIP_DEVICE_COMPILE__": "1",
})  # fmt: skip
"""Names whose value the compiler knows; conditions on them are decided by these and called unclear."""

_OTHER_PLATFORMS = frozenset((
    "USE_ROCM", "USE_HIP", "USE_MUSA", "USE_XPU", "__HIP_PLATFORM_AMD__", "__HIP_PLATFORM_HCC__", "__HIPCC__",
    "__HIP__", "__HIP_DEVICE_COMPILE__", "__MUSACC__", "GGML_USE_HIP", "GGML_USE_HIPBLAS", "GGML_USE_MUSA",
    "TORCH_HIP_VERSION",
))  # fmt: skip
"""Names that say that another compiler than CUDA's reads a file, in frameworks that serve several."""

_REPLACED: Mapping[Language, Mapping[str, str]] = MappingProxyType({
    "opencl": {"__kernel": "__global__", "kernel": "__global__", "__local": "__shared__", "local": "__shared__",
               "__constant": "__constant__", "constant": "__constant__"},
    "cuda": {}, "hip": {}, "triton": {},
})  # fmt: skip
_LEFT_OUT: Mapping[Language, frozenset[str]] = MappingProxyType({
    "opencl": frozenset(("__global", "global", "__private", "private", "__generic", "generic")),
    "cuda": frozenset(), "hip": frozenset(), "triton": frozenset(),
})  # fmt: skip
_ALWAYS_LEFT_OUT = frozenset((
    "__restrict__", "__restrict", "restrict", "volatile", "__volatile__", "__device__", "__host__", "__forceinline__",
    "__noinline__", "__inline__", "__forceinline", "__read_only", "read_only", "__write_only", "write_only",
    "__read_write", "read_write", "__grid_constant__", "__extension__",
))  # fmt: skip
_ATTRIBUTES = frozenset((
    "__attribute__", "__align__", "alignas", "__launch_bounds__", "__cluster_dims__", "__maxnreg__", "__block_size__",
    "__declspec", "_Pragma",
))  # fmt: skip


_RESERVED = ("_", "cl_", "CL_", "FP_", "POCL", "PoCL")
"""How names begin that compilers define."""
_ASKED = re.compile(r"\bdefined\s*(?:\(\s*(\w+)\s*\)|\s(\w+))")


def switches(source: str) -> frozenset[str]:
    """Names of which a file asks only whether they are defined, and that neither a header nor a compiler defines."""
    code = masked(source)
    asked: list[str] = []
    for each in directives(code):
        if each.word == "include":
            return frozenset()
        if each.word in ("ifdef", "ifndef", "elifdef", "elifndef"):
            asked += words_of(each.rest)[:1]
        elif each.word in ("if", "elif"):
            asked += [first or second for first, second in _ASKED.findall(each.rest)]
    words = words_of(code)
    return frozenset(
        name
        for name in set(asked) - _OTHER_PLATFORMS
        if words.count(name) == asked.count(name) and not name.startswith(_RESERVED)
    )


def preprocess(source: str, language: Language, *, defines: Mapping[str, str] | None = None) -> Expanded:
    """What the compiler would see of a source, as far as its own text says; any text can be given.

    Args:
        source: the text; offsets are bytes of its UTF-8 form.
        language: decides the predefined macros and the words that are replaced.
        defines: macros from outside, as with `-D`.
    """
    data = source.encode("utf-8", "surrogatepass").decode("latin-1")
    reader = _Reader(list(tokens_of(data)), language, defines or {}, switches(source))
    reader.read()
    writer = _Writer(language)
    writer.write(reader.result, reader.pragmas)
    return Expanded(
        "".join(writer.parts),
        tuple(writer.starts),
        tuple(writer.tokens),
        MappingProxyType(reader.all_macros()),
        MappingProxyType({name: tuple(spans) for name, spans in reader.expander.used.items()}),
        tuple(sorted(writer.marks, key=lambda mark: mark.at)),
        tuple(reader.unclear),
        tuple(reader.decided),
    )


@dataclass(slots=True)
class _Branch:
    """One open `#if`."""

    span: Span
    is_taken: bool
    """Whether this branch is read."""
    was_taken: bool
    """Whether this branch or one before it is."""
    guards: str
    """The name that `#ifndef` asks for."""
    reason: str
    """Why the condition is not known; empty when it is."""
    parts: list[tuple[Span, bool]]
    """Its directives so far, and whether what follows each is read."""
    names: set[str]


class _Reader:
    """Follows directives, expands the rest."""

    def __init__(
        self, tokens: list[Token], language: Language, defines: Mapping[str, str], switches: frozenset[str]
    ) -> None:
        self.tokens = tokens
        self.language = language
        self.given = frozenset(defines)
        self.switches = switches
        of_device = {name: text for name, text in _OF_THE_DEVICE.items() if not self._is_elsewhere(name)}
        self.expander = Expander(predefined({**of_device, **_PREDEFINED[language], **defines}))
        self.outside = frozenset(self.expander.macros)
        self.branches: list[_Branch] = []
        self.result: list[Token] = []
        self.pragmas: list[tuple[int, str, Span]] = []
        """Index into `result`, text, place."""
        self.unclear: list[Opaque] = []
        self.decided: list[_Decided] = []
        self.mentioned = self._defined_names()

    def _defined_names(self) -> frozenset[str]:
        kept = without_blanks(self.tokens)
        return frozenset(
            kept[index + 2].text
            for index in range(len(kept) - 2)
            if kept[index].text == "#" and kept[index + 1].text == "define"
        )

    def all_macros(self) -> dict[str, Macro]:
        return {name: macro for name, macro in self.expander.macros.items() if name not in self.outside}

    def read(self) -> None:
        index, is_line_start = 0, True
        while index < len(self.tokens):
            token = self.tokens[index]
            if is_line_start and token.text == "#":
                index = self._directive(index)
                continue
            if token.is_blank:
                is_line_start = is_line_start or token.kind == "newline"
                self.result.append(token)
                index += 1
                continue
            is_line_start = False
            if self.branches and not all(branch.is_taken for branch in self.branches):
                index += 1
                continue
            expansion, index = self.expander.at(self.tokens, index)
            self.result += expansion
        if self.expander.is_exhausted:
            self.unclear.append(Opaque(self._whole(), "its macros make too much text; not all are expanded"))
        for branch in self.branches:
            self.unclear.append(Opaque(branch.span, "a conditional without #endif"))

    def _whole(self) -> Span:
        return self.tokens[0].span.joined(self.tokens[-1].span)

    def _directive(self, start: int) -> int:
        """Read the directive at token `start`; the index of the newline that ends it."""
        end = start
        while end < len(self.tokens) and self.tokens[end].kind != "newline":
            end += 1
        line = self.tokens[start + 1 : end]
        span = self.tokens[start].span.joined(self.tokens[end - 1].span)
        words = without_blanks(line)
        name = words[0].text if words else ""
        rest = line[line.index(words[0]) + 1 :] if words else []
        is_read = all(branch.is_taken for branch in self.branches)
        match name:
            case "if" | "ifdef" | "ifndef":
                self._open(name, rest, span, is_read=is_read)
            case "elif" | "elifdef" | "elifndef" | "else":
                self._switch(name, rest, span)
            case "endif" if self.branches:
                branch = self.branches.pop()
                if branch.reason:
                    self.unclear.append(Opaque(branch.span.joined(span), branch.reason))
                elif is_read or branch.is_taken or all(each.is_taken for each in self.branches):
                    self.decided.append(_decided(branch, span))
            case "define" if is_read:
                self._define(rest, span)
            case "undef" if is_read:
                self.expander.macros.pop(words[1].text if len(words) > 1 else "", None)
            case "pragma" if is_read:
                expanded = self.expander.all(rest, with_parameters=False)
                text = "".join(token.text for token in expanded).strip()
                self.pragmas.append((len(self.result), "pragma " + text, span))
        return end

    def _define(self, rest: Sequence[Token], span: Span) -> None:
        kept = without_blanks(rest)
        is_guarded = bool(kept) and any(branch.guards == kept[0].text for branch in self.branches)
        macro = macro_of(rest, span, is_guarded=is_guarded)
        if macro is not None:
            self.expander.macros[macro.name] = macro

    def _open(self, word: str, rest: Sequence[Token], span: Span, *, is_read: bool) -> None:
        if not is_read:
            self.branches.append(
                _Branch(span, is_taken=False, was_taken=True, guards="", reason="", parts=[], names=set())
            )
            return
        value, reason = self._decide(word, rest)
        guards = _guarded_name(word, rest)
        if guards in self.mentioned:
            reason = ""  # a default: what comes from outside would have the same meaning
        names = {token.text for token in rest if token.kind == "word"}
        self.branches.append(
            _Branch(
                span, is_taken=value, was_taken=value, guards=guards, reason=reason, parts=[(span, value)], names=names
            )
        )

    def _switch(self, word: str, rest: Sequence[Token], span: Span) -> None:
        if not self.branches:
            return
        branch = self.branches[-1]
        branch.guards = ""
        branch.names |= {token.text for token in rest if token.kind == "word"}
        if branch.was_taken:
            branch.is_taken = False
            branch.parts.append((span, False))
            return
        value, reason = (True, "") if word == "else" else self._decide(word.removeprefix("el"), rest)
        branch.is_taken = branch.was_taken = value
        branch.parts.append((span, value))
        branch.reason = branch.reason or reason
        branch.span = branch.span.joined(span)

    def _decide(self, word: str, rest: Sequence[Token]) -> tuple[bool, str]:
        """Whether a condition holds, and why that is not sure."""
        macros = self.expander.macros
        kept = without_blanks(rest)
        if word in ("ifdef", "ifndef"):
            name = kept[0].text if kept else ""
            reason = self._outside([name])
            return (name in macros) == (word == "ifdef"), reason
        tokens, names = [], []
        index = 0
        while index < len(kept):
            token = kept[index]
            if token.text == "defined":
                step = 2 if index + 1 < len(kept) and kept[index + 1].text == "(" else 1
                name = kept[index + step].text if index + step < len(kept) else ""
                tokens.append(Token("number", str(int(name in macros)), token.span))
                names.append(name)
                index += 2 * step
            else:
                tokens.append(token)
                names += [token.text] * (token.kind == "word")
                index += 1
        value = condition_value(self.expander.all(tokens, with_parameters=True))
        if value is None:
            return False, "a condition that cannot be read"
        return bool(value), self._outside(names)

    def _is_elsewhere(self, name: str) -> bool:
        """Whether only another compiler than this one defines a name."""
        return self.language == "cuda" and name in _OTHER_PLATFORMS and name not in self.given

    def _outside(self, names: Sequence[str]) -> str:
        for name in names:
            if self._is_elsewhere(name) or name in self.switches:
                continue
            if name in _OF_THE_DEVICE and name not in self.given:
                return f"depends on {name}, which the compiler defines"
            if name not in self.expander.macros and name not in self.mentioned and name != "true":
                return f"depends on {name}, which this file does not define"
        return ""


def _decided(branch: _Branch, end: Span) -> _Decided:
    left_out = [end]
    following = [*(span for span, _ in branch.parts[1:]), end]
    for (span, is_read), after in zip(branch.parts, following, strict=False):
        left_out.append(span if is_read else Span(span.start, after.start))
    return _Decided(branch.span.joined(end), tuple(left_out), frozenset(branch.names))


def _guarded_name(word: str, rest: Sequence[Token]) -> str:
    kept = [token.text for token in without_blanks(rest)]
    if word == "ifndef" and kept:
        return kept[0]
    if word == "if" and kept[:2] == ["!", "defined"]:
        name = [text for text in kept[2:] if text not in "()"]
        return name[0] if len(name) == 1 else ""
    return ""


def _is_compared(tokens: Sequence[Token], index: int, *, has_templates: bool) -> bool:
    """Whether a word before `<` is certainly no template, where the grammar might take it for one: `(i < n && j >= 0)`.

    No template's arguments end in `>=`; in C, which has none, `i < n && j > (k)` is no call either.
    """
    start = next_sign(tokens, index + 1, "<")
    before = next((tokens[at].text for at in range(index - 1, -1, -1) if not tokens[at].is_blank), "")
    if start is None or before in (".", "->", "::") or tokens[index].text == "template":
        return False
    depth, is_found = 0, False
    for at in range(start + 1, len(tokens)):
        text = tokens[at].text
        depth += (text in ("(", "[")) - (text in (")", "]"))
        if depth < 0 or text in (";", "{", "}"):
            break
        if depth == 0 and text in (">", ">>") and has_templates:
            return False
        is_call = depth == 0 and text == ">" and next_sign(tokens, at + 1, "(") is not None
        is_found |= is_call or (depth == 0 and text == ">=")
    return is_found


class _Writer:
    """Writes tokens as one dialect."""

    def __init__(self, language: Language) -> None:
        self.replaced = _REPLACED[language]
        self.left_out = _ALWAYS_LEFT_OUT | _LEFT_OUT[language]
        self.has_templates = language != "opencl"
        self.parts: list[str] = []
        self.starts: list[int] = []
        self.tokens: list[Token] = []
        self.marks: list[Mark] = []
        self.length = 0

    def write(self, tokens: Sequence[Token], pragmas: Sequence[tuple[int, str, Span]]) -> None:
        index, depth = 0, 0
        waiting = list(reversed(pragmas))
        while index < len(tokens):
            while waiting and waiting[-1][0] <= index:
                _, text, span = waiting.pop()
                self.marks.append(Mark(self.length, text, span))
            token = tokens[index]
            if token.kind == "word" and token.text in _ATTRIBUTES:
                index = self._attribute(tokens, index)
                continue
            if token.kind == "sign":
                depth += (token.text == "(") - (token.text == ")")
            is_compared = token.kind == "word" and _is_compared(tokens, index, has_templates=self.has_templates)
            self._token(token, is_inside_parentheses=depth > 0, is_compared=is_compared)
            index += 1

    def _attribute(self, tokens: Sequence[Token], index: int) -> int:
        """Leave an attribute with its parentheses out; the index after it."""
        opening = next_sign(tokens, index + 1, "(")
        end = group_end(tokens, opening) if opening is not None else None
        after = index + 1 if end is None else end
        text = "".join(token.text for token in tokens[index:after])
        self.marks.append(Mark(self.length, text, tokens[index].span.joined(tokens[after - 1].span)))
        return after

    def _token(self, token: Token, *, is_inside_parentheses: bool, is_compared: bool) -> None:
        text = token.text
        if token.kind == "word":
            replacement = self.replaced.get(text)
            is_dropped = text in self.left_out or (replacement is not None and is_inside_parentheses)
            if replacement is not None or is_dropped:
                self.marks.append(Mark(self.length, text, token.span))
            if is_dropped:
                self._text(" ")
                return
            text = replacement or text
        if token.is_blank:
            self._text(text)
            return
        if token.invocation:
            self._text(" ")
        self.starts.append(self.length)
        self.tokens.append(token)
        self._text(f"({text})" if is_compared else text)
        if token.invocation:
            self._text(" ")

    def _text(self, text: str) -> None:
        self.parts.append(text)
        self.length += len(text)

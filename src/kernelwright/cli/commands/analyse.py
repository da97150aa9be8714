"""`analyse`: what Kernelwright understands of a kernel, as text or JSON."""

from __future__ import annotations

import dataclasses
import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from kernelwright.analysis.analysis import Analysis, analyse_function, choose_kernel
from kernelwright.analysis.facts import Access, LoopFact
from kernelwright.analysis.patterns.pattern import Pattern, recognise
from kernelwright.analysis.polynomial import Polynomial, named
from kernelwright.cli.output.triton_words import NOTHING_RAN, triton_lines
from kernelwright.errors import Location, SpecError
from kernelwright.problem.load.problem import load_problem
from kernelwright.problem.toml.file import did_you_mean, read_text
from kernelwright.source.language import LANGUAGE_OF_SUFFIX, Language
from kernelwright.source.span import Span
from kernelwright.source.syntax import parse
from kernelwright.source.triton.reading import read_triton

_LANGUAGES: Mapping[Language, str] = {"opencl": "OpenCL C", "cuda": "CUDA", "hip": "HIP"}


def run_analyse(file: Path, *, entry: str | None, is_json: bool) -> None:
    """Print the analysis of one kernel, or of all that the file defines; of a problem, what its baseline launches.

    Raises:
        SpecError: the file cannot be read, is in no language that is analysed, or has no such kernel.
    """
    if file.is_dir() or file.suffix == ".toml":
        problem = load_problem(file)
        source = problem.baseline or problem.kernel
        file, entry = source.file, entry or source.entry
    language = LANGUAGE_OF_SUFFIX.get(file.suffix)
    if language == "triton":
        _print_triton(file, entry, is_json=is_json)
        return
    if language is None or language not in _LANGUAGES:
        raise SpecError(
            f"cannot analyse {file.name}", hint="give an OpenCL, CUDA, HIP or Triton source: .cl, .cu, .hip or .py",
            location=Location(file),
        )  # fmt: skip
    tree = parse(read_text(file, what="the kernel source"), language)
    first = choose_kernel(tree, entry, file=file) if entry or not tree.kernels else None
    chosen = [first] if first is not None else list(tree.kernels)
    found = [analyse_function(tree, function, language) for function in chosen]
    if is_json:
        typer.echo(json.dumps([_document(each, recognise(each)) for each in found], indent=2))
        return
    for index, each in enumerate(found):
        typer.echo("\n" * bool(index) + "\n".join(_text(each, recognise(each), file, language)))


def _print_triton(file: Path, entry: str | None, *, is_json: bool) -> None:
    kernels = read_triton(read_text(file, what="the kernel source"), file)
    chosen = [each for each in kernels if entry in (None, each.name)]
    if not chosen:
        names = list(dict.fromkeys(each.name for each in kernels))
        raise SpecError(
            f"no kernel {entry!r} is defined; there is {', '.join(names)}", hint=did_you_mean(entry or "", names),
            location=Location(file),
        )  # fmt: skip
    if is_json:
        typer.echo(json.dumps([dataclasses.asdict(each) for each in chosen], indent=2))
        return
    for each in chosen:
        typer.echo("\n".join(triton_lines(each, file)) + "\n")
    typer.echo(NOTHING_RAN)


class _Lines:
    """Line numbers of spans."""

    def __init__(self, source: str) -> None:
        data = source.encode("utf-8", "surrogatepass")
        self.starts = [0, *(index + 1 for index, byte in enumerate(data) if byte == ord("\n"))]

    def of(self, span: Span) -> int:
        return bisect_right(self.starts, span.start)


_COPY = re.compile(r"(?<=\w)#[0-9]+")
"""What tells the second loop over `i` from the first one, in facts."""

_MOST_QUOTED = 60
"""Characters of the source that a line quotes."""


class _Names:
    """What facts call `data~1` or `i#2`, as the source calls it."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._bytes = analysis.source.encode("utf-8", "surrogatepass")

    def quoted(self, span: Span) -> str:
        """What the source says there, in one line."""
        text = " ".join(self._bytes[span.start : span.end].decode("utf-8", "replace").split())
        return text if len(text) <= _MOST_QUOTED else f"{text[: _MOST_QUOTED - 1]}…"

    def words(self, value: Polynomial) -> str | None:
        """A value in the source's own names; None where a part of it has none."""
        chosen: dict[str, str] = {}
        for name in sorted(value.names):
            told = self._name(name)
            if told is None:
                return None
            # Two loops over `i` in one index: the inner one keeps what tells them apart.
            chosen[name] = told if told not in chosen.values() else name
        return str(value.replaced({name: named(told) for name, told in chosen.items()}))

    def said(self, value: Polynomial) -> str:
        """The same, with words for what has no name."""
        return self.words(value) or "something that is not followed"

    def _name(self, name: str) -> str | None:
        atom = self._analysis.facts.atoms.get(name)
        if "~" not in name or atom is None:
            return without_copies(self._analysis.facts.names.get(name, name))
        reads = [self._analysis.facts.accesses[index] for index in atom.sources.accesses]
        if name.startswith(f"{atom.kind}~") and atom.kind == "data" and len(reads) == 1 and reads[0].kind == "read":
            text = self.quoted(reads[0].span)
            return None if text.endswith("…") else text
        return None


def without_copies(text: str) -> str:
    """`text` without what tells loops of the same name apart."""
    return _COPY.sub("", text)


# Text


def _text(analysis: Analysis, pattern: Pattern, file: Path, language: Language) -> Iterator[str]:
    facts, lines, names = analysis.facts, _Lines(analysis.source), _Names(analysis)
    yield f"{file.name}:{lines.of(facts.span)}: kernel {facts.name} ({_LANGUAGES[language]})"
    yield from _pattern(pattern)
    for title, rows in (
        ("parameters", _parameters(analysis)),
        ("threads", _threads(analysis, lines, names)),
        ("conditions", _conditions(analysis, lines, names)),
        ("loops", (_loop(analysis, loop, lines, names) for loop in facts.loops)),
        ("memory", (_access(each, lines, names) for each in facts.accesses if each.space != "private")),
        ("reductions", _reductions(analysis, lines)),
        ("shared and local memory", _local_arrays(analysis, lines)),
        ("threads together", _together(analysis, lines)),
        ("mathematics", _mathematics(analysis, lines)),
        ("numbers", (_literal(each, lines) for each in facts.literals)),
        ("not understood, not to be touched", (f"line {lines.of(o.span)}: {o.reason}" for o in facts.opaque)),
    ):
        found = list(dict.fromkeys(rows))
        if found:
            yield title
            yield from (f"  {without_copies(row)}" for row in found)


def _pattern(pattern: Pattern) -> Iterator[str]:
    words = pattern.kind + (f", {pattern.variant}" if pattern.variant else "")
    sure = "" if pattern.kind == "generic" else f" ({pattern.confidence})"
    yield f"pattern: {words}{sure}"
    for sentence in pattern.evidence:
        yield f"  {without_copies(sentence)}"
    if pattern.kind != "generic":
        yield from (f"  not sure: {without_copies(each)}" for each in pattern.missing)
    for near in pattern.near:
        yield f"  nearly {near.kind}, but:"
        yield from (f"    {each}" for each in dict.fromkeys(map(without_copies, near.missing)))


def _parameters(analysis: Analysis) -> Iterator[str]:
    for each in analysis.facts.parameters:
        words = ["const"] * each.is_const + [each.c_type + "*" * each.is_pointer]
        words += ["restrict"] * each.is_restrict
        kinds = [a.kind for a in analysis.facts.accesses if a.array == each.name]
        uses = [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)]
        yield f"{each.name}: {' '.join(words)}{', ' + each.space if each.is_pointer else ''}" + (
            f" ({', '.join(uses)})" if uses else ""
        )


def _threads(analysis: Analysis, lines: _Lines, names: _Names) -> Iterator[str]:
    for each in analysis.facts.thread_indices:
        value = str(each.value)  # not in the source's names: it is what one of them means
        yield f"line {lines.of(each.span)}: {each.name} = {names.said(each.value) if '~' in value else value}"


def _conditions(analysis: Analysis, lines: _Lines, names: _Names) -> Iterator[str]:
    exits = {guard.span for guard in analysis.facts.guards if guard.kind == "early-exit"}
    for guard in analysis.facts.guards:
        is_exit_itself = guard.kind == "branch" and guard.span in exits
        if guard.kind == "expression" or not guard.comparisons or is_exit_itself:
            continue
        sides = [(names.words(each.left), each.operator, names.words(each.right)) for each in guard.comparisons]
        more = "" if guard.is_complete else ", and more that is not understood"
        if any(left is None or right is None for left, _, right in sides):
            holds, more = names.quoted(guard.span), ""
            holds = f"not ({holds})" if guard.kind in ("else", "early-exit") else holds
        else:
            holds = " and ".join(f"{left} {operator} {right}" for left, operator, right in sides)
        yield f"line {lines.of(guard.span)}: {holds}{more} ({guard.kind})"


def _loop(analysis: Analysis, loop: LoopFact, lines: _Lines, names: _Names) -> str:
    depth = 0
    parent = loop.parent
    while parent is not None:
        depth, parent = depth + 1, analysis.facts.loops[parent].parent
    where = f"line {lines.of(loop.span)}: {'  ' * depth}"
    ending = (f", in {loop.inlined_in}" if loop.inlined_in else "") + (", may end early" if loop.ends_early else "")
    if loop.start is None or loop.bound is None or loop.step is None:
        return f"{where}a loop that does not count in a way that is understood{ending}"
    amount = names.said(loop.step.amount)
    step = {"add": f"by {amount}", "multiply": f"times {amount}", "divide": f"divided by {amount}"}[loop.step.kind]
    pragmas = "".join(f", {mark.text}" for mark in loop.pragmas)
    bounds = f"from {names.said(loop.start)} while {loop.operator} {names.said(loop.bound)}"
    return f"{where}{loop.atom} {bounds}, {step}, {loop.sweep}{pragmas}{ending}"


def _access(access: Access, lines: _Lines, names: _Names) -> str:
    element = "?" if access.element is None else names.words(access.element)
    words: list[str] = [access.contiguity]
    if access.contiguity == "strided" and access.stride is not None:
        words = [f"strided by {names.said(access.stride)}"]
    if access.width.constant != 1:
        words.append(f"{names.said(access.width)} wide")
    words += ["atomic"] * access.is_atomic + [access.reason] * bool(access.reason)
    if access.space != "global":
        words.insert(0, access.space)
    where = f"[{element}]" if element is not None else f" in `{names.quoted(access.span)}`"
    return f"line {lines.of(access.span)}: {access.kind} {access.array}{where} ({', '.join(words)})"


def _reductions(analysis: Analysis, lines: _Lines) -> Iterator[str]:
    for each in analysis.facts.reductions:
        loops = [analysis.facts.loops[i].atom or "a loop" for i in each.loops]
        over = f" over {', '.join(loops)}" if loops else ""
        product = " of products" if each.factors else ""
        target = f" into {each.target}" if each.target else ""
        yield f"line {lines.of(each.span)}: {each.operation}{product}{target}{over}, within the {each.scope}"


def _local_arrays(analysis: Analysis, lines: _Lines) -> Iterator[str]:
    for array in analysis.facts.arrays.values():
        if array.is_parameter or not array.extents:
            continue
        extents = "".join(f"[{'' if e is None else analysis.in_words(e)}]" for e in array.extents)
        size = f", {array.bytes} bytes" if array.bytes is not None else ", size given at launch"
        yield f"line {lines.of(array.span)}: {array.space} {array.c_type} {array.name}{extents}{size}"


def _together(analysis: Analysis, lines: _Lines) -> Iterator[str]:
    for barrier in analysis.facts.barriers:
        inside = " in a loop" if barrier.loops else ""
        under = " under a condition" if barrier.guards else ""
        yield f"line {lines.of(barrier.span)}: {barrier.scope} barrier{inside}{under}"
    for each in analysis.facts.exchanges:
        yield f"line {lines.of(each.span)}: {each.function} within the {each.scope}"


def _mathematics(analysis: Analysis, lines: _Lines) -> Iterator[str]:
    for each in analysis.facts.math:
        inside = f", in {len(each.loops)} loop{'s' * (len(each.loops) > 1)}" if each.loops else ""
        yield f"line {lines.of(each.span)}: {each.function} ({each.name}, {each.flavour}{inside})"


def _literal(each: Any, lines: _Lines) -> str:
    name = f" {each.name}" if each.name else ""
    uses = f", used {len(each.uses)} times" if each.uses else ""
    return f"line {lines.of(each.span)}: {each.value} ({each.role}{name}{uses})"


# JSON


def _document(analysis: Analysis, pattern: Pattern) -> dict[str, Any]:
    lines = _Lines(analysis.source)
    document: dict[str, Any] = {"kernel": analysis.facts.name, "pattern": _plain(pattern, lines)}
    facts = {
        field.name: _plain(getattr(analysis.facts, field.name), lines)
        for field in dataclasses.fields(analysis.facts)
        if field.name not in ("name", "atoms")
    }
    names = _Names(analysis)
    for access, plain in zip(analysis.facts.accesses, facts["accesses"], strict=True):
        plain["text"] = names.quoted(access.span)
        form = analysis.form(access)
        plain["form"] = None if form is None else {
            **{atom: str(c) for atom, c in form.terms.items()}, "1": str(form.offset),
        }  # fmt: skip
    used = {name for access in analysis.facts.accesses if access.element is not None for name in access.element.names}
    facts["atoms"] = {name: analysis.facts.atoms[name].kind for name in sorted(used)}
    return document | facts


def _plain(value: Any, lines: _Lines) -> Any:
    """A fact as JSON has it: polynomials as text, spans with their line."""
    match value:
        case Polynomial():
            return str(value)
        case Span():
            return {"start": value.start, "end": value.end, "line": lines.of(value)}
        case Mapping():
            return {str(key): _plain(each, lines) for key, each in value.items()}
        case tuple() | list():
            return [_plain(each, lines) for each in value]
        case frozenset():
            return sorted(value)
        case None | str() | int() | float():
            return value
    return {field.name: _plain(getattr(value, field.name), lines) for field in dataclasses.fields(value)}
